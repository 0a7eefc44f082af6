//! Opens that the ledger refuses: nothing is sent after their barrier.

use super::*;
use crate::protocol::lease::BatchSeq;

#[test]
fn a_quarantine_is_one_commit_of_the_locked_session_and_nothing_follows_its_barrier() {
    let mut rig = Rig::acquired();
    rig.produce("a");
    rig.world.expire();
    rig.world.rows.fence.seq = BatchSeq(3);
    let (_, trace) = rig.acquire(acquire("x"));
    let end = "AwaitBarrier DropProducer Commit:Quarantine Alert Reply:Quarantined";
    assert!(trace.ends_with(end), "{trace}");
    assert!(rig.world.rows.fence.quarantine.is_some());
    assert_eq!(rig.machine.state(), StateName::Quarantined);
    let (_, trace) = rig.acquire(acquire("x"));
    assert_eq!(trace, "AwaitTail Lock Reply:Quarantined EndSession");
}

#[test]
fn a_dead_session_quarantines_nothing() {
    let mut rig = Rig::acquired();
    rig.produce("a");
    rig.world.expire();
    rig.world.rows.fence.seq = BatchSeq(3);
    rig.world.fault("Commit:Quarantine", Fault::Fail);
    rig.acquire(acquire("x"));
    assert_eq!(rig.world.rows.fence.quarantine, None);
}

#[test]
fn a_sequence_that_went_back_quarantines_the_acquire() {
    let mut rig = Rig::acquired();
    rig.world.burnt_elsewhere();
    rig.world.sequence = 1;
    rig.world.expire();
    let (_, trace) = rig.acquire(acquire("x"));
    assert!(trace.contains("AwaitBarrier DropProducer Commit:Quarantine Alert"), "{trace}");
}

/// MODEL-2 H10: the retired re-open writes the batch it has seen, and says no "none".
#[test]
fn a_burnt_token_is_retired_with_the_redo_in_the_same_commit() {
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Record", Fault::Fail);
    rig.world.fault("AwaitTail", Fault::Fail);
    let (seen, _) = rig.produce("a");
    rig.world.burnt_elsewhere();
    rig.at += 2_000;
    let (unseen, trace) = rig.produce("b");
    let retires = "AwaitBarrier ReadBatch FindOperations DropProducer Commit:Retire Alert";
    assert!(trace.contains(retires), "{trace}");
    assert!(!trace.contains("WriteState"), "{trace}");
    rig.assert_produced(seen, false);
    assert!(matches!(
        rig.refusal(unseen),
        Refusal::LeaseExpired { side_effect: SideEffect::Maybe, .. }
    ));
    assert!(!rig.world.rows.lease.is_held(rig.world.rows.now));
    // The next acquire is above the burnt token.
    let (ticket, _) = rig.acquire(acquire("x"));
    rig.assert_granted(ticket, 3);
}

#[test]
fn a_repeated_acquire_of_a_burnt_token_is_told_to_reacquire() {
    let mut rig = Rig::new();
    rig.acquire(asking("w", "r1"));
    rig.world.burnt_elsewhere();
    let (ticket, trace) = rig.acquire(asking("w", "r1"));
    assert!(trace.ends_with("Commit:Retire Alert Reply:LeaseExpired"), "{trace}");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
}

#[test]
fn a_retirement_whose_commit_is_unknown_is_not_claimed() {
    let mut rig = Rig::new();
    rig.acquire(asking("w", "r1"));
    rig.world.burnt_elsewhere();
    rig.world.fault("Commit:Retire", Fault::Fail);
    let (_, trace) = rig.acquire(asking("w", "r1"));
    assert!(trace.ends_with("Commit:Retire Reply:PostgresUnavailable"), "{trace}");
}

#[test]
fn a_batch_to_redo_that_is_stored_with_other_records_quarantines() {
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Record", Fault::Lost);
    rig.world.fault("AwaitTail", Fault::Fail);
    rig.produce("a");
    // Stored, but the row's seq says that it is not: seq went back, and so did one operation.
    rig.world.rows.fence.seq = BatchSeq(0);
    rig.world.stored[0].accepted.fingerprint = Fingerprint([9; 32]);
    rig.world.expire();
    let (_, trace) = rig.acquire(acquire("x"));
    let end = "FindOperations DropProducer Commit:Quarantine Alert Reply:Quarantined";
    assert!(trace.ends_with(end), "{trace}");
}

#[test]
fn a_batch_to_redo_that_is_stored_already_is_redone_without_harm() {
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Record", Fault::Lost);
    rig.world.fault("AwaitTail", Fault::Fail);
    rig.produce("a");
    rig.world.rows.fence.seq = BatchSeq(0);
    rig.world.expire();
    let (ticket, _) = rig.acquire(acquire("x"));
    rig.assert_granted(ticket, 2);
    assert_eq!((rig.world.stored.len(), rig.world.rows.fence.seq), (1, BatchSeq(1)));
}

#[test]
fn a_credential_ahead_of_the_row_is_refused_and_the_row_left_alone() {
    let mut rig = Rig::acquired();
    let ahead = Credential { token: FencingToken(5), ..rig.world.credential() };
    let before = rig.world.rows.clone();
    let ticket = rig.queue_as("a", ahead);
    assert_eq!(rig.run(Event::Go), "Lock Alert Reply:Quarantined EndSession");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
    assert_eq!(rig.world.rows, before);
}

#[test]
fn a_credential_ahead_of_the_row_that_the_ledger_knows_quarantines_the_lease() {
    for open in [true, false] {
        let mut rig = Rig::acquired();
        rig.world.burnt_elsewhere();
        if !open {
            rig.run(Event::Idle);
        }
        let ahead = Credential { token: FencingToken(2), ..rig.world.credential() };
        let ticket = rig.queue_as("a", ahead);
        let trace = rig.run(Event::Go);
        assert!(trace.contains("Commit:Quarantine"), "{trace}");
        assert_eq!(*rig.refusal(ticket), Refusal::Quarantined);
        assert!(rig.world.rows.fence.quarantine.is_some());
    }
}

#[test]
fn a_lock_that_fails_refuses_and_leaves_nothing_behind() {
    let mut rig = Rig::acquired();
    rig.world.fault("Lock", Fault::Fail);
    let (ticket, trace) = rig.produce("a");
    assert_eq!(trace, "Lock Reply:PostgresUnavailable");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
    rig.at += 2_000;
    let (ticket, trace) = rig.produce("a");
    assert_eq!(trace, "Lock Send SendLedger EndTxn Commit:Record Reply:Produced");
    rig.assert_produced(ticket, false);
}

#[test]
fn a_lease_without_rows_proves_nothing_of_an_operation() {
    for open in [true, false] {
        let mut rig = Rig::acquired();
        if !open {
            rig.run(Event::Idle);
        }
        rig.world.fault("Lock", Fault::Absent);
        let (ticket, trace) = rig.produce("a");
        assert!(trace.ends_with("Reply:LeaseNotFound"), "{trace}");
        assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
    }
}
