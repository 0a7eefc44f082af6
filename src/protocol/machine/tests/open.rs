//! An open, step by step, and what each of its failures leaves behind.

use super::*;

const ACQUIRE: &str = "AwaitTail Ensure Lock DrawToken OpenProducer WriteBarrier AwaitBarrier \
                       WriteState Commit:Install Reply:Granted";
const TAKEOVER: &str = "AwaitTail Lock DrawToken DropProducer OpenProducer WriteBarrier \
                        AwaitBarrier WriteState Commit:Install Reply:Granted";
const REOPEN: &str = "AwaitTail Lock OpenProducer WriteBarrier AwaitBarrier WriteState \
                      Commit:Reopen";

#[test]
fn an_acquire_ensures_locks_draws_inits_proves_the_ledger_and_installs() {
    let mut rig = Rig::new();
    let (ticket, trace) = rig.acquire(acquire("w"));
    assert_eq!(trace, ACQUIRE);
    rig.assert_granted(ticket, 1);
    let handle = rig.machine.handle().unwrap();
    assert_eq!(Some(handle.nonce), rig.world.rows.fence.nonce);
    assert_eq!(rig.machine.state(), StateName::Active);
}

#[test]
fn every_takeover_uses_a_new_producer_and_a_higher_token() {
    let mut rig = Rig::acquired();
    rig.world.expire();
    let (ticket, trace) = rig.acquire(acquire("x"));
    assert_eq!(trace, TAKEOVER);
    rig.assert_granted(ticket, 2);
}

#[test]
fn no_lock_is_taken_before_the_tail_has_read_the_partition() {
    let mut rig = Rig::new();
    rig.world.fault("AwaitTail", Fault::Fail);
    let (_, trace) = rig.acquire(acquire("w"));
    assert_eq!(trace, "AwaitTail Reply:KafkaUnavailable");
}

#[test]
fn a_burnt_token_is_drawn_again_at_most_eight_times_and_nothing_is_written() {
    let mut rig = Rig::acquired();
    rig.world.expire();
    rig.world.sequence = 8;
    let (ticket, _) = rig.acquire(acquire("w"));
    rig.assert_granted(ticket, 9);
    rig.world.expire();
    rig.world.sequence = 1;
    let (_, trace) = rig.acquire(acquire("x"));
    assert_eq!(trace.matches("DrawToken").count(), 8, "{trace}");
    assert!(trace.ends_with("DrawToken Alert EndSession Reply:Quarantined"), "{trace}");
    assert_eq!(rig.alerts, [Alert::SequenceBehind]);
    assert_eq!(rig.world.rows.fence.quarantine, None);
    // The tenth draw is above the row.
    let (ticket, _) = rig.acquire(acquire("x"));
    rig.assert_granted(ticket, 10);
}

#[test]
fn an_init_or_barrier_that_fails_leaves_a_fresh_nonce_and_nothing_else() {
    for (step, fault) in [
        ("OpenProducer", Fault::Fail),
        ("OpenProducer", Fault::Lost),
        ("WriteBarrier", Fault::Fail),
        ("WriteBarrier", Fault::Lost),
        ("WriteBarrier", Fault::Dirty),
        ("AwaitBarrier", Fault::Fail),
        ("WriteState", Fault::Fail),
    ] {
        let mut rig = Rig::acquired();
        rig.world.expire();
        let before = rig.world.rows.clone();
        rig.world.fault(step, fault);
        let (_, trace) = rig.acquire(acquire("x"));
        let end = format!("{step} DropProducer Commit:Nonce Reply:KafkaUnavailable");
        assert!(trace.ends_with(&end), "{trace}");
        let mut after = rig.world.rows.clone();
        assert_ne!(after.fence.nonce, before.fence.nonce);
        (after.fence.nonce, after.now) = (before.fence.nonce, before.now);
        assert_eq!(after, before);
    }
}

#[test]
fn a_barrier_that_came_too_late_is_awaited_before_the_next_lock() {
    let mut rig = Rig::acquired();
    rig.world.expire();
    rig.world.fault("AwaitBarrier", Fault::Fail);
    rig.acquire(acquire("x"));
    let barrier = rig.world.ledger_end;
    let asked = |rig: &mut Rig| rig.feed(Event::Acquire(Acquire { ticket: 77, ..acquire("x") }));
    let past = |past| vec![Effect::AwaitTail { past }];
    assert_eq!(asked(&mut rig), past(Some(barrier)));
    // The tail has not passed it: the debt stays, nothing is locked or initialised.
    let refused = rig.feed(Event::TailReady(false));
    let reply = Effect::Reply(77, Reply::Refused(Refusal::KafkaUnavailable));
    assert_eq!(refused, [reply]);
    rig.replies.clear();
    assert_eq!(asked(&mut rig), past(Some(barrier)));
    let locks = rig.feed(Event::TailReady(true));
    assert_eq!(locks, [Effect::Lock { both: true, operations: Vec::new() }]);
    let failed = LockOutcome::Failed;
    rig.feed(Event::Locked { outcome: failed, fresh: Nonce([0; 16]), glimpse: FencingToken(0) });
    rig.replies.clear();
    assert_eq!(asked(&mut rig), past(None));
}

/// Rows are never deleted, but a database may be restored to before there were any.
#[test]
fn an_acquire_whose_rows_are_gone_makes_them_again_and_is_never_told_that_there_is_no_lease() {
    let mut rig = Rig::new();
    rig.acquire(acquire("w"));
    let absent = || Event::Locked {
        outcome: LockOutcome::Absent,
        fresh: Nonce([0; 16]),
        glimpse: FencingToken(0),
    };
    let locks = [Effect::Lock { both: true, operations: Vec::new() }];
    rig.feed(Event::Acquire(Acquire { ticket: 77, ..acquire("x") }));
    assert_eq!(rig.feed(Event::TailReady(true)), locks);
    let mut restarts = 0;
    let refused = loop {
        let effects = rig.feed(absent());
        if effects != [Effect::AwaitTail { past: None }] {
            break effects;
        }
        restarts += 1;
        assert_eq!(rig.feed(Event::TailReady(true)), [Effect::Ensure]);
        assert_eq!(rig.feed(Event::Ensured(true)), locks);
    };
    assert!((1..10).contains(&restarts), "{restarts}");
    assert_eq!(refused, [Effect::Reply(77, Reply::Refused(Refusal::PostgresUnavailable))]);
}

#[test]
fn a_dirty_end_of_the_state_record_installs_and_keeps_no_producer() {
    let mut rig = Rig::new();
    rig.world.fault("WriteState", Fault::Dirty);
    let (ticket, trace) = rig.acquire(acquire("w"));
    assert!(trace.ends_with("WriteState DropProducer Commit:Install Reply:Granted"), "{trace}");
    rig.assert_granted(ticket, 1);
    assert_eq!(rig.machine.handle(), None);
    let (ticket, trace) = rig.produce("a");
    assert!(trace.starts_with(REOPEN), "{trace}");
    rig.assert_produced(ticket, false);
}

/// MODEL-2 H11: else the acquire would meet its own live lease.
#[test]
fn an_install_whose_commit_is_unknown_goes_on_as_a_reopen_if_the_row_has_its_token() {
    let mut rig = Rig::new();
    rig.world.fault("Commit:Install", Fault::Lost);
    let (ticket, trace) = rig.acquire(acquire("w"));
    let (first, second) = trace.split_once("Commit:Install ").unwrap();
    assert!(first.ends_with("WriteState "), "{trace}");
    assert_eq!(second, format!("DropProducer {REOPEN} Reply:Granted"));
    rig.assert_granted(ticket, 1);
    assert_eq!(rig.world.sequence, 1);
    assert!(rig.machine.handle().is_some());
}

#[test]
fn an_install_whose_commit_never_landed_starts_again_with_a_new_token() {
    for fault in [Fault::Fail, Fault::Denied] {
        let mut rig = Rig::new();
        rig.world.fault("Commit:Install", fault);
        let (ticket, trace) = rig.acquire(acquire("w"));
        assert_eq!(trace.matches("DrawToken").count(), 2, "{trace}");
        rig.assert_granted(ticket, 2);
    }
}

#[test]
fn an_acquire_gives_up_after_a_bounded_number_of_unknown_commits() {
    let mut rig = Rig::new();
    for _ in 0..4 {
        rig.world.fault("Commit:Install", Fault::Fail);
    }
    let (_, trace) = rig.acquire(acquire("w"));
    assert!(trace.ends_with("DropProducer Reply:PostgresUnavailable"), "{trace}");
    assert_eq!(rig.world.unused_faults(), 0);
    assert_eq!(rig.machine.handle(), None);
}

#[test]
fn a_reopen_whose_commit_is_unknown_leaves_no_handle() {
    for fault in [Fault::Fail, Fault::Lost] {
        let mut rig = Rig::acquired();
        rig.run(Event::Idle);
        rig.world.fault("Commit:Reopen", fault);
        let (ticket, trace) = rig.produce("a");
        assert!(trace.ends_with("DropProducer Reply:PostgresUnavailable"), "{trace}");
        assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
        assert_eq!(rig.machine.handle(), None);
        rig.at += 2_000;
        let (ticket, _) = rig.produce("a");
        rig.assert_produced(ticket, false);
    }
}

#[test]
fn a_reopen_never_moves_the_expiry_or_the_release() {
    let mut rig = Rig::acquired();
    rig.run(Event::Idle);
    let before = rig.world.rows.lease.clone();
    rig.world.rows.now.0 += 1_000_000;
    rig.produce("a");
    assert_eq!(rig.world.rows.lease, before);
}

#[test]
fn an_idle_producer_is_closed_only_with_nothing_waiting() {
    let mut rig = Rig::acquired();
    rig.queue("a");
    assert_eq!(rig.run(Event::Idle), "");
    assert!(rig.machine.handle().is_some());
    rig.run(Event::Go);
    assert_eq!(rig.run(Event::Idle), "DropProducer");
    assert_eq!(rig.machine.state(), StateName::Closed);
}

#[test]
fn an_outcome_that_nobody_waits_for_changes_nothing_and_is_reported() {
    let rig = Rig::acquired();
    let (after, effects) = rig.machine.clone().step(Event::Ended(Ok(true)), rig.at);
    assert_eq!(effects, [Effect::Alert(Alert::Unexpected)]);
    assert_eq!(after, rig.machine);
}

/// A batch that only Kafka knows is read and kept before the state record supersedes it.
#[test]
fn a_takeover_redoes_the_batch_that_only_kafka_knows() {
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Record", Fault::Fail);
    rig.world.fault("AwaitTail", Fault::Fail);
    let (op, _) = rig.produce("a");
    assert_eq!(rig.machine.state(), StateName::InDoubt);
    rig.world.expire();
    let (ticket, trace) = rig.acquire(acquire("x"));
    let reads = "AwaitBarrier ReadBatch FindOperations WriteState Commit:Install";
    assert!(trace.contains(reads), "{trace}");
    rig.assert_granted(ticket, 2);
    assert_eq!(rig.world.rows.fence.seq.0, 1);
    // The state record, which may be all that compaction leaves, holds the batch.
    let newest = rig.world.known.last.as_ref().map(|last| last.offset);
    assert_eq!(newest, Some(rig.world.ledger_end));
    rig.at += 2_000;
    rig.run(Event::Go);
    rig.assert_produced(op, false);
    rig.world.assert_promises();
}

#[test]
fn a_last_batch_that_cannot_be_read_back_fails_the_open_before_the_state_record() {
    let mut rig = Rig::acquired();
    rig.produce("a");
    rig.world.expire();
    rig.world.fault("ReadBatch", Fault::Fail);
    let (_, trace) = rig.acquire(acquire("x"));
    let end = "ReadBatch DropProducer Commit:Nonce Reply:KafkaUnavailable";
    assert!(trace.ends_with(end), "{trace}");
}
