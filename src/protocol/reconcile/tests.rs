//! The decision table of an open, line by line, and what the tail keeps.

use super::*;
use crate::protocol::ledger::LedgerPartition;
use proptest::prelude::*;

const KINDS: [OpenKind; 4] =
    [OpenKind::Acquire, OpenKind::Reopen, OpenKind::Settle, OpenKind::Release];

fn owner(name: &str) -> Owner {
    Owner::parse(name).unwrap()
}

fn row(token: u64, seq: u64) -> FenceRow {
    FenceRow {
        token: FencingToken(token),
        owner: owner("w"),
        incarnation: Incarnation(2),
        seq: BatchSeq(seq),
        nonce: None,
        home: None,
        partition: LedgerPartition(0),
        quarantine: None,
    }
}

fn batch(seq: u64, token: u64) -> Option<LastBatch> {
    Some(LastBatch { seq: BatchSeq(seq), token: FencingToken(token), offset: 40 })
}

/// A ledger whose last record is a state record of `token`, holding batch (`seq`, `batch_token`).
fn known(token: u64, seq: u64, batch_token: u64) -> Knowledge {
    Knowledge {
        incarnation: Incarnation(2),
        state_token: FencingToken(token),
        batch_token: FencingToken(batch_token),
        owner: Some(owner("w")),
        last: if seq == 0 { None } else { batch(seq, batch_token) },
    }
}

/// Decides for the row's token (a token above it for an acquire).
fn on(kind: OpenKind, row: &FenceRow, known: &Knowledge) -> Decision {
    let token = match kind {
        OpenKind::Acquire => row.token.next(),
        OpenKind::Reopen | OpenKind::Settle | OpenKind::Release => row.token,
    };
    decide(kind, token, &owner("w"), row, Incarnation(2), known)
}

fn quarantines(decision: &Decision, word: &str) -> bool {
    matches!(decision, Decision::Quarantine(reason) if reason.contains(word))
}

#[test]
fn a_lease_without_any_record_goes_on_from_nothing() {
    let go = Decision::Go { redo: false };
    for kind in KINDS {
        assert_eq!(on(kind, &row(0, 0), &Knowledge::default()), go, "{kind:?}");
    }
}

#[test]
fn equal_seqs_are_in_sync_and_one_batch_ahead_is_redone() {
    for kind in KINDS {
        let in_sync = on(kind, &row(5, 3), &known(5, 3, 5));
        assert_eq!(in_sync, Decision::Go { redo: false }, "{kind:?}");
        let ahead = on(kind, &row(5, 3), &known(5, 4, 5));
        assert_eq!(ahead, Decision::Go { redo: true }, "{kind:?}");
    }
}

#[test]
fn a_ledger_of_a_higher_incarnation_quarantines_before_everything_else() {
    for kind in KINDS {
        for (token, seq) in [(5, 3), (5, 4), (5, 1), (5, 9), (6, 4)] {
            let mut known = known(token, seq, token);
            known.incarnation = Incarnation(3);
            assert!(quarantines(&on(kind, &row(5, 3), &known), "incarnation"), "{kind:?} {token}");
        }
    }
}

#[test]
fn a_failover_that_lost_nothing_locks_nobody_out() {
    for kind in KINDS {
        let mut known = known(5, 3, 5);
        known.incarnation = Incarnation(1);
        assert_eq!(on(kind, &row(5, 3), &known), Decision::Go { redo: false }, "{kind:?}");
    }
}

#[test]
fn a_ledger_behind_the_row_quarantines() {
    for kind in KINDS {
        assert!(quarantines(&on(kind, &row(5, 3), &known(5, 2, 5)), "behind"), "{kind:?}");
        assert!(quarantines(&on(kind, &row(5, 1), &known(5, 0, 0)), "behind"), "{kind:?}");
    }
}

/// F26: the batch that is to be redone may be what was lost.
#[test]
fn a_ledger_without_the_rows_token_is_a_lost_one_and_quarantines() {
    for kind in KINDS {
        for known in [Knowledge::default(), known(4, 0, 0)] {
            assert!(quarantines(&on(kind, &row(5, 0), &known), "does not know"), "{kind:?}");
        }
        // A batch record alone, its state record compacted away, is enough.
        let batch_only = known(0, 3, 5);
        assert_eq!(on(kind, &row(5, 3), &batch_only), Decision::Go { redo: false }, "{kind:?}");
    }
}

#[test]
fn a_ledger_two_batches_ahead_quarantines() {
    for kind in KINDS {
        assert!(quarantines(&on(kind, &row(5, 3), &known(5, 5, 5)), "more than one"), "{kind:?}");
    }
}

#[test]
fn a_batch_of_a_token_above_the_rows_quarantines_every_kind_of_open() {
    for kind in KINDS {
        let decision = on(kind, &row(5, 3), &known(6, 4, 6));
        assert!(quarantines(&decision, "above the fence row"), "{kind:?} {decision:?}");
        let in_sync = on(kind, &row(5, 3), &known(6, 3, 6));
        assert!(quarantines(&in_sync, "above the fence row"), "{kind:?} {in_sync:?}");
    }
}

#[test]
fn a_batch_to_redo_of_an_older_token_quarantines() {
    for kind in KINDS {
        let decision = on(kind, &row(5, 3), &known(5, 4, 4));
        assert!(quarantines(&decision, "another token"), "{kind:?} {decision:?}");
        // In Postgres already, an older token's batch is the normal thing after a takeover.
        let in_sync = on(kind, &row(5, 3), &known(5, 3, 4));
        assert_eq!(in_sync, Decision::Go { redo: false }, "{kind:?}");
    }
}

#[test]
fn an_acquire_of_a_token_that_the_ledger_has_quarantines() {
    let row = row(5, 3);
    for (token, ok) in [(7, false), (8, false), (9, true)] {
        let burnt = known(8, 3, 5);
        let token = FencingToken(token);
        let decision = decide(OpenKind::Acquire, token, &owner("w"), &row, Incarnation(2), &burnt);
        assert_eq!(decision == Decision::Go { redo: false }, ok, "{decision:?}");
        assert!(ok || quarantines(&decision, "sequence"), "{decision:?}");
    }
}

#[test]
fn a_reopen_of_a_token_that_the_ledger_gave_to_another_owner_quarantines() {
    let mut known = known(5, 3, 5);
    known.owner = Some(owner("other"));
    assert!(quarantines(&on(OpenKind::Reopen, &row(5, 3), &known), "another owner"));
    // Not so if the row's own token is not there at all: then the ledger has lost something.
    let mut older = self::known(4, 3, 4);
    older.owner = Some(owner("other"));
    assert!(quarantines(&on(OpenKind::Reopen, &row(5, 3), &older), "does not know"));
}

#[test]
fn a_reopen_under_a_burnt_token_retires_and_a_settle_or_release_passes_over_that_line() {
    let (row, burnt) = (row(5, 3), known(6, 3, 5));
    assert_eq!(on(OpenKind::Reopen, &row, &burnt), Decision::Retire { redo: false });
    for kind in [OpenKind::Settle, OpenKind::Release] {
        assert_eq!(on(kind, &row, &burnt), Decision::Go { redo: false }, "{kind:?}");
    }
}

/// MODEL-2 H3, H10: an open that retires or settles still writes the batch that only Kafka knows.
#[test]
fn the_redo_does_not_compete_with_the_retirement() {
    let (row, burnt) = (row(5, 3), known(6, 4, 5));
    assert_eq!(on(OpenKind::Reopen, &row, &burnt), Decision::Retire { redo: true });
    for kind in [OpenKind::Settle, OpenKind::Release] {
        assert_eq!(on(kind, &row, &burnt), Decision::Go { redo: true }, "{kind:?}");
    }
}

fn seen(token: u64, is_state: bool, last: Option<LastBatch>, who: &str) -> Seen {
    Seen {
        token: FencingToken(token),
        incarnation: Incarnation(1),
        owner: owner(who),
        is_state,
        last,
    }
}

#[test]
fn the_tail_keeps_the_last_batch_in_log_order_and_the_highest_tokens() {
    let mut known = Knowledge::default();
    known.learn(seen(1, true, None, "a"));
    assert_eq!((known.state_token, known.batch_token), (FencingToken(1), FencingToken(0)));
    known.learn(seen(1, false, batch(1, 1), "a"));
    assert_eq!((known.batch_token, known.last.clone()), (FencingToken(1), batch(1, 1)));
    // A takeover's state record holds the batch as well, at a newer offset.
    let moved = Some(LastBatch { offset: 77, ..batch(1, 1).unwrap() });
    known.learn(seen(2, true, moved.clone(), "b"));
    assert_eq!((known.state_token, known.batch_token), (FencingToken(2), FencingToken(1)));
    assert_eq!((known.owner.clone(), known.last.clone()), (Some(owner("b")), moved.clone()));
    // A record of an older token changes neither the top token nor its holder.
    known.learn(seen(1, true, None, "a"));
    assert_eq!((known.top_token(), known.owner), (FencingToken(2), Some(owner("b"))));
    assert_eq!(known.last, moved);
}

#[test]
fn a_state_record_alone_does_not_count_as_a_batch_of_its_token() {
    let mut known = Knowledge::default();
    known.learn(seen(5, true, batch(3, 4), "a"));
    assert_eq!((known.state_token, known.batch_token), (FencingToken(5), FencingToken(4)));
}

fn any_known() -> impl Strategy<Value = Knowledge> {
    let numbers = (0u64..4, 0u64..7, 0u64..6, 0u64..6);
    (numbers, any::<bool>()).prop_map(|((incarnation, token, seq, batch_token), own)| Knowledge {
        incarnation: Incarnation(incarnation),
        owner: Some(owner(if own { "w" } else { "x" })),
        ..known(token, seq, if seq == 0 { 0 } else { batch_token })
    })
}

proptest! {
    /// The table again, as a chain of plain comparisons in its order.
    #[test]
    fn the_first_line_that_matches_decides(
        kind in prop::sample::select(&KINDS[..]), token in 1u64..6, drawn in 1u64..4,
        seq in 0u64..4, known in any_known(),
    ) {
        let row = row(token, seq);
        let t = if kind == OpenKind::Acquire { token + drawn } else { token };
        let last = known.last.as_ref().map_or(0, |l| l.seq.0);
        let redo = last == seq + 1;
        let redo_token = known.last.as_ref().map_or(0, |l| l.token.0);
        let top = known.top_token().0;
        let other = known.owner != Some(owner("w"));
        let reopen = kind == OpenKind::Reopen;
        let lines = [
            known.incarnation.0 > 2,
            last < seq || last > seq + 1,
            known.batch_token.0 > token || (redo && redo_token != token),
            top < token,
            kind == OpenKind::Acquire && top >= t,
            reopen && top == t && other,
        ];
        let decision =
            decide(kind, FencingToken(t), &owner("w"), &row, Incarnation(2), &known);
        if lines.contains(&true) {
            prop_assert!(matches!(decision, Decision::Quarantine(_)), "{decision:?}");
        } else if reopen && known.state_token.0 > t {
            prop_assert_eq!(decision, Decision::Retire { redo });
        } else {
            prop_assert_eq!(decision, Decision::Go { redo });
        }
    }

    /// I4: whatever the ledger holds, a token at or below one of its tokens is never acquired.
    #[test]
    fn no_open_goes_on_under_a_token_that_the_ledger_contradicts(
        token in 1u64..6, drawn in 1u64..4, seq in 0u64..4, known in any_known(),
    ) {
        let row = row(token, seq);
        let t = FencingToken(token + drawn);
        let acquire = decide(OpenKind::Acquire, t, &owner("w"), &row, Incarnation(2), &known);
        if matches!(acquire, Decision::Go { .. }) {
            prop_assert!(known.top_token() < t);
        }
        let reopen = on(OpenKind::Reopen, &row, &known);
        if matches!(reopen, Decision::Go { .. }) {
            prop_assert!(known.top_token() <= row.token);
        }
    }
}
