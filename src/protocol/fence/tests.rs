//! The verdict on an operation, rule by rule, and when a handle may be used.

use super::*;
use proptest::prelude::*;

pub(in crate::protocol) const RETENTION_S: i64 = 7 * 24 * 3600;
/// A plausible "now", far enough from 0 that no age underflows.
pub(in crate::protocol) const NOW_S: i64 = 1_800_000_000;

fn owner(name: &str) -> Owner {
    Owner::parse(name).unwrap()
}

fn id(text: &str) -> OperationId {
    OperationId::parse(text).unwrap()
}

pub(in crate::protocol) fn rows() -> Locked {
    let fence = FenceRow {
        token: FencingToken(7),
        owner: owner("w"),
        incarnation: Incarnation(2),
        seq: BatchSeq(4),
        nonce: Some(Nonce([1; 16])),
        home: Some(InstanceId([9; 16])),
        partition: LedgerPartition(3),
        quarantine: None,
    };
    let lease = LeaseRow {
        owner: owner("w"),
        identity: Identity::new("i"),
        token: FencingToken(7),
        expires_at: DbTime((NOW_S + 30) * 1_000_000),
        released: false,
        ttl_ms: 30_000,
        request_id: None,
    };
    let now = DbTime(NOW_S * 1_000_000);
    let forgotten_to = DbTime(0);
    Locked { fence, lease, now, incarnation: Incarnation(2), forgotten_to, found: Vec::new() }
}

pub(in crate::protocol) fn credential() -> Credential {
    Credential {
        lease: LeaseName::parse("l").unwrap(),
        owner: owner("w"),
        token: FencingToken(7),
        incarnation: Incarnation(2),
        expires_s: NOW_S + 30,
        issued_s: NOW_S,
    }
}

fn stored(fingerprint: u8) -> Stored {
    Stored {
        accepted: Accepted {
            id: id("op"),
            fingerprint: Fingerprint([fingerprint; 32]),
            runs: Vec::new(),
        },
        token: FencingToken(3),
        incarnation: Incarnation(1),
        seq: BatchSeq(2),
    }
}

fn verdict(locked: &Locked, credential: &Credential) -> Verdict {
    judge(locked, credential, &id("op"), &Fingerprint([1; 32]), RETENTION_S)
}

fn refused(locked: &Locked, credential: &Credential) -> Refusal {
    match verdict(locked, credential) {
        Verdict::Refused(refusal) => refusal,
        other @ (Verdict::Replay(_) | Verdict::Live | Verdict::Ahead) => panic!("{other:?}"),
    }
}

#[test]
fn the_holders_own_credential_on_a_held_lease_is_live() {
    assert_eq!(verdict(&rows(), &credential()), Verdict::Live);
}

#[test]
fn a_token_below_the_rows_is_stale_and_nothing_of_it_is_there() {
    let (locked, old) = (rows(), Credential { token: FencingToken(6), ..credential() });
    let current = FencingToken(7);
    let none = Refusal::StaleToken { current, side_effect: SideEffect::None };
    assert_eq!(refused(&locked, &old), none);
}

#[test]
fn a_credential_older_than_the_retention_proves_nothing_about_a_stale_operation() {
    let current = FencingToken(7);
    let of = |issued_s| Credential { token: FencingToken(6), issued_s, ..credential() };
    let maybe = Refusal::StaleToken { current, side_effect: SideEffect::Maybe };
    let none = Refusal::StaleToken { current, side_effect: SideEffect::None };
    assert_eq!(refused(&rows(), &of(NOW_S - RETENTION_S)), none);
    assert_eq!(refused(&rows(), &of(NOW_S - RETENTION_S - 1)), maybe);
}

#[test]
fn the_same_token_of_another_history_or_holder_is_stale_and_proves_nothing() {
    let current = FencingToken(7);
    let maybe = Refusal::StaleToken { current, side_effect: SideEffect::Maybe };
    for other in [
        Credential { incarnation: Incarnation(1), ..credential() },
        Credential { incarnation: Incarnation(3), ..credential() },
        Credential { owner: owner("other"), ..credential() },
    ] {
        assert_eq!(refused(&rows(), &other), maybe, "{other:?}");
    }
}

#[test]
fn a_released_lease_says_none_and_an_expired_one_says_maybe() {
    let current = FencingToken(7);
    let mut locked = rows();
    locked.lease.released = true;
    let released = Refusal::LeaseReleased { current, side_effect: SideEffect::None };
    assert_eq!(refused(&locked, &credential()), released);
    // Released and expired: a release has decided everything, so that is what is said.
    locked.lease.expires_at = locked.now;
    assert_eq!(refused(&locked, &credential()), released);
    let aged = Credential { issued_s: NOW_S - RETENTION_S - 1, ..credential() };
    let maybe = Refusal::LeaseReleased { current, side_effect: SideEffect::Maybe };
    assert_eq!(refused(&locked, &aged), maybe);
    locked.lease.released = false;
    let expired = Refusal::LeaseExpired { current, side_effect: SideEffect::Maybe };
    assert_eq!(refused(&locked, &credential()), expired);
}

#[test]
fn a_lease_is_over_at_the_very_instant_of_its_expiry() {
    let mut locked = rows();
    locked.lease.expires_at = DbTime(locked.now.0 + 1);
    assert_eq!(verdict(&locked, &credential()), Verdict::Live);
    locked.lease.expires_at = locked.now;
    assert!(!locked.lease.is_held(locked.now));
    assert!(matches!(refused(&locked, &credential()), Refusal::LeaseExpired { .. }));
}

#[test]
fn a_lease_that_nobody_ever_acquired_is_not_held() {
    let mut locked = rows();
    locked.lease.token = FencingToken(0);
    assert!(!locked.lease.is_held(locked.now));
}

#[test]
fn a_credential_that_is_over_on_a_live_lease_never_writes() {
    let of = |expires_s| Credential { expires_s, ..credential() };
    assert_eq!(verdict(&rows(), &of(NOW_S + 1)), Verdict::Live);
    assert_eq!(refused(&rows(), &of(NOW_S)), Refusal::CredentialExpired);
    assert_eq!(Refusal::CredentialExpired.side_effect(), SideEffect::Maybe);
    // The lease's own state says more than the credential's age.
    let mut locked = rows();
    locked.lease.expires_at = locked.now;
    assert!(matches!(refused(&locked, &of(NOW_S)), Refusal::LeaseExpired { .. }));
}

/// Only `exp` is forgiven: not even what is stored is told.
#[test]
fn a_credential_that_is_not_valid_yet_is_none_whatever_the_rows_say() {
    let of = |issued_s| Credential { issued_s, ..credential() };
    let mut locked = rows();
    locked.now = DbTime(NOW_S * 1_000_000 + 999_999);
    assert_eq!(verdict(&locked, &of(NOW_S)), Verdict::Live);
    assert_eq!(refused(&locked, &of(NOW_S + 1)), Refusal::CredentialNotYet);
    assert_eq!(Refusal::CredentialNotYet.side_effect(), SideEffect::Maybe);
    for token in [6, 8] {
        let token = FencingToken(token);
        let early = Credential { token, ..of(NOW_S + 1) };
        assert_eq!(refused(&locked, &early), Refusal::CredentialNotYet);
    }
    locked.found = vec![stored(1)];
    locked.lease.released = true;
    locked.fence.quarantine = Some("why".to_owned());
    assert_eq!(refused(&locked, &of(NOW_S + 1)), Refusal::CredentialNotYet);
    let standing = standing(&locked, &of(NOW_S + 1), RETENTION_S);
    assert_eq!(standing, Standing::Over(Refusal::CredentialNotYet));
}

#[test]
fn a_credential_above_the_row_is_ahead_and_never_stale() {
    for incarnation in [Incarnation(1), Incarnation(2), Incarnation(3)] {
        let ahead = Credential { token: FencingToken(8), incarnation, ..credential() };
        assert_eq!(verdict(&rows(), &ahead), Verdict::Ahead);
    }
}

#[test]
fn a_quarantined_lease_answers_what_it_has_stored_and_takes_nothing() {
    let mut locked = rows();
    locked.fence.quarantine = Some("why".to_owned());
    assert_eq!(refused(&locked, &credential()), Refusal::Quarantined);
    assert_eq!(Refusal::Quarantined.side_effect(), SideEffect::Maybe);
    locked.found = vec![stored(1)];
    assert_eq!(verdict(&locked, &credential()), Verdict::Replay(stored(1)));
}

#[test]
fn an_unknown_lease_proves_nothing_to_one_who_has_a_credential_for_it() {
    // A row that is gone is a row that went back: like a token above it (MODEL C13).
    assert_eq!(Refusal::LeaseNotFound.side_effect(), SideEffect::Maybe);
}

#[test]
fn a_handle_is_usable_only_while_every_fact_of_the_row_is_its_own() {
    let (locked, home) = (rows(), InstanceId([9; 16]));
    let fence = locked.fence;
    let handle = Handle {
        token: FencingToken(7),
        owner: owner("w"),
        incarnation: Incarnation(2),
        nonce: Nonce([1; 16]),
        seq: BatchSeq(4),
    };
    assert!(handle.matches(&fence, home));
    assert!(!handle.matches(&fence, InstanceId([8; 16])));
    for row in [
        FenceRow { token: FencingToken(8), ..fence.clone() },
        FenceRow { owner: owner("other"), ..fence.clone() },
        FenceRow { incarnation: Incarnation(3), ..fence.clone() },
        FenceRow { nonce: Some(Nonce([2; 16])), ..fence.clone() },
        FenceRow { nonce: None, ..fence.clone() },
        FenceRow { seq: BatchSeq(3), ..fence.clone() },
        FenceRow { seq: BatchSeq(5), ..fence.clone() },
        FenceRow { home: None, ..fence.clone() },
    ] {
        assert!(!handle.matches(&row, home), "{row:?}");
    }
}

fn any_rows() -> impl Strategy<Value = Locked> {
    let flags = (any::<bool>(), any::<bool>(), 0u64..3);
    let times = (-2i64..3, 0i64..RETENTION_S * 2);
    (1u64..4, times, flags).prop_map(
        |(token, (rest, gone), (released, quarantined, incarnation))| {
            let mut locked = rows();
            locked.forgotten_to = DbTime(locked.now.0 - gone * 1_000_000);
            locked.fence.token = FencingToken(token);
            locked.lease.token = FencingToken(token);
            locked.lease.released = released;
            locked.lease.expires_at = DbTime(locked.now.0 + rest);
            locked.fence.quarantine = quarantined.then(String::new);
            locked.fence.incarnation = Incarnation(incarnation);
            locked
        },
    )
}

fn any_credential() -> impl Strategy<Value = Credential> {
    let times = (-1i64..2, -2i64..RETENTION_S * 2);
    (1u64..4, 0u64..3, any::<bool>(), times).prop_map(|(token, incarnation, own, (rest, age))| {
        Credential {
            token: FencingToken(token),
            incarnation: Incarnation(incarnation),
            owner: owner(if own { "w" } else { "x" }),
            expires_s: NOW_S + rest,
            issued_s: NOW_S - age,
            ..credential()
        }
    })
}

proptest! {
    /// Whoever asks, and however late (but not before the credential's time): what is stored is
    /// answered, or the conflict is.
    #[test]
    fn a_stored_operation_is_found_before_anything_else_is_judged(
        mut locked in any_rows(), credential in any_credential(), same: bool,
    ) {
        let kept = stored(if same { 1 } else { 2 });
        locked.found = vec![kept.clone()];
        let expected = if credential.issued_s > NOW_S {
            Verdict::Refused(Refusal::CredentialNotYet)
        } else if same {
            Verdict::Replay(kept)
        } else {
            Verdict::Refused(Refusal::OperationConflict)
        };
        prop_assert_eq!(verdict(&locked, &credential), expected);
    }

    #[test]
    fn only_the_current_holder_of_a_held_lease_is_live(
        locked in any_rows(), credential in any_credential(),
    ) {
        let holds = credential.token == locked.fence.token
            && credential.incarnation == locked.fence.incarnation
            && credential.owner == locked.fence.owner
            && locked.fence.quarantine.is_none()
            && locked.lease.is_held(locked.now)
            && (credential.issued_s..credential.expires_s).contains(&NOW_S);
        prop_assert_eq!(verdict(&locked, &credential) == Verdict::Live, holds);
    }

    /// "none" is final: only below the row's token or after a release, and only of young ids.
    #[test]
    fn none_is_said_only_where_nothing_can_come_any_more(
        locked in any_rows(), credential in any_credential(),
    ) {
        if let Verdict::Refused(refusal) = verdict(&locked, &credential)
            && refusal.side_effect() == SideEffect::None
        {
            prop_assert!(NOW_S - credential.issued_s <= RETENTION_S);
            prop_assert!(credential.issued_s > locked.forgotten_to.seconds());
            prop_assert!(NOW_S - locked.forgotten_to.seconds() >= RETENTION_S);
            let below = credential.token < locked.fence.token;
            let released = credential.token == locked.fence.token && locked.lease.released;
            prop_assert!(below || released, "{refusal:?}");
        }
    }
}

/// A UUIDv7 made `s` seconds before now.
fn v7(s: i64) -> OperationId {
    let ms = u64::try_from((NOW_S - s) * 1_000).unwrap();
    id(&format!("{:08x}-{:04x}-7000-8000-000000000000", ms >> 16, ms & 0xffff))
}

fn of_age(locked: &Locked, s: i64) -> Verdict {
    judge(locked, &credential(), &v7(s), &Fingerprint([1; 32]), RETENTION_S)
}

#[test]
fn an_operation_id_with_a_time_is_sent_only_while_it_would_be_remembered() {
    let refused = Verdict::Refused;
    assert_eq!(of_age(&rows(), 0), Verdict::Live);
    assert_eq!(of_age(&rows(), RETENTION_S), Verdict::Live);
    assert_eq!(of_age(&rows(), RETENTION_S + 1), refused(Refusal::OperationTooOld));
    assert_eq!(of_age(&rows(), -OPERATION_AHEAD_MAX_S), Verdict::Live);
    assert_eq!(of_age(&rows(), -OPERATION_AHEAD_MAX_S - 1), refused(Refusal::OperationAhead));
}

#[test]
fn an_operation_that_is_still_known_is_replayed_however_old_its_id_is() {
    let mut locked = rows();
    let mut known = stored(1);
    known.accepted.id = v7(RETENTION_S + 1);
    locked.found = vec![known.clone()];
    assert_eq!(of_age(&locked, RETENTION_S + 1), Verdict::Replay(known));
}

/// The retention was raised after a purge, or the purge's clock was ahead for a while.
#[test]
fn what_was_once_forgotten_never_counts_as_new_under_a_longer_retention() {
    const GONE_S: i64 = 3_600;
    let mut locked = rows();
    locked.forgotten_to = DbTime((NOW_S - GONE_S) * 1_000_000);
    // Accepted at that instant with the clock of its maker as far ahead as is taken.
    let last = GONE_S - OPERATION_AHEAD_MAX_S;
    assert_eq!(of_age(&locked, last), Verdict::Refused(Refusal::OperationTooOld));
    assert_eq!(of_age(&locked, last - 1), Verdict::Live);
    locked.fence.token = FencingToken(8);
    let said = |id: &OperationId, issued_s| {
        let asks = Credential { issued_s, ..credential() };
        match judge(&locked, &asks, id, &Fingerprint([1; 32]), RETENTION_S) {
            Verdict::Refused(refusal) => refusal.side_effect(),
            other @ (Verdict::Replay(_) | Verdict::Live | Verdict::Ahead) => panic!("{other:?}"),
        }
    };
    assert_eq!(said(&v7(0), NOW_S - GONE_S), SideEffect::Maybe);
    assert_eq!(said(&v7(0), NOW_S - GONE_S + 1), SideEffect::None);
    assert_eq!(said(&v7(last), NOW_S), SideEffect::Maybe);
    // One without a time may be as old as what is gone.
    assert_eq!(said(&id("op"), NOW_S), SideEffect::Maybe);
}

#[test]
fn nothing_is_proven_of_an_operation_that_may_have_been_forgotten() {
    let mut locked = rows();
    locked.fence.token = FencingToken(8);
    let stale = |side_effect| {
        Verdict::Refused(Refusal::StaleToken { current: FencingToken(8), side_effect })
    };
    assert_eq!(of_age(&locked, RETENTION_S), stale(SideEffect::None));
    assert_eq!(of_age(&locked, RETENTION_S + 1), stale(SideEffect::Maybe));
}
