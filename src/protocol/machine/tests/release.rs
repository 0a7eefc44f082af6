//! Release and settle: one COMMIT, and after it nothing of that token.

use super::*;

const SLOW: &str = "OpenProducer WriteBarrier AwaitBarrier";

#[test]
fn a_release_with_nothing_in_doubt_is_one_lock_and_one_commit() {
    let mut rig = Rig::acquired();
    let (ticket, trace) = rig.release();
    assert_eq!(trace, "Lock DropProducer Commit:Release Reply:Released");
    assert_eq!(rig.replies[&ticket], Reply::Released);
    let (ticket, trace) = rig.produce("a");
    assert_eq!(trace, "AwaitTail Lock Reply:LeaseReleased EndSession");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::None);
}

#[test]
fn a_second_release_is_answered_like_the_first() {
    let mut rig = Rig::acquired();
    rig.release();
    let (ticket, trace) = rig.release();
    assert_eq!(trace, "AwaitTail Lock Reply:Released EndSession");
    assert_eq!(rig.replies[&ticket], Reply::Released);
}

#[test]
fn a_release_of_an_older_token_is_stale_and_touches_nothing() {
    let mut rig = Rig::acquired();
    let credential = rig.world.credential();
    rig.world.expire();
    rig.acquire(acquire("x"));
    let release = Release { ticket: 60, credential, restarts: 0 };
    let trace = rig.run(Event::Release(release));
    assert_eq!(trace, "Lock Reply:StaleToken EndSession");
    assert!(!rig.world.rows.lease.released && rig.machine.handle().is_some());
}

/// MODEL-2 H5: as two transactions, a batch could come in between.
#[test]
fn a_release_without_a_handle_redoes_and_releases_in_one_commit() {
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Record", Fault::Fail);
    rig.world.fault("AwaitTail", Fault::Fail);
    let (op, _) = rig.produce("a");
    let (ticket, trace) = rig.release();
    let end = "ReadBatch FindOperations DropProducer Commit:Release Reply:Released";
    assert_eq!(trace, format!("AwaitTail Lock {SLOW} {end}"));
    assert_eq!(rig.replies[&ticket], Reply::Released);
    assert_eq!(rig.world.rows.fence.seq.0, 1);
    rig.at += 2_000;
    rig.run(Event::Go);
    rig.assert_produced(op, false);
    rig.world.assert_promises();
}

#[test]
fn a_release_where_another_gateway_has_opened_ends_its_session_and_opens() {
    let mut rig = Rig::acquired();
    rig.world.opened_elsewhere();
    let (_, trace) = rig.release();
    let start = format!("Lock DropProducer EndSession AwaitTail Lock {SLOW}");
    assert!(trace.starts_with(&start), "{trace}");
    assert!(trace.ends_with("DropProducer Commit:Release Reply:Released"), "{trace}");
    assert!(!trace.contains("WriteState"), "{trace}");
}

#[test]
fn a_release_whose_commit_is_unknown_is_made_sure_of_before_it_is_answered() {
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Release", Fault::Lost);
    let (_, trace) = rig.release();
    let end = "Commit:Release AwaitTail Lock Reply:Released EndSession";
    assert!(trace.ends_with(end), "{trace}");
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Release", Fault::Fail);
    let (_, trace) = rig.release();
    assert!(trace.ends_with("DropProducer Commit:Release Reply:Released"), "{trace}");
    assert_eq!(trace.matches("Commit:Release").count(), 2, "{trace}");
    let mut rig = Rig::acquired();
    (0..4).for_each(|_| rig.world.fault("Commit:Release", Fault::Fail));
    let (ticket, _) = rig.release();
    assert_eq!(*rig.refusal(ticket), Refusal::PostgresUnavailable);
    assert!(!rig.world.rows.lease.released);
}

#[test]
fn a_release_passes_over_a_burnt_token() {
    let mut rig = Rig::acquired();
    rig.world.burnt_elsewhere();
    let (ticket, trace) = rig.release();
    assert!(!trace.contains("Retire"), "{trace}");
    assert_eq!(rig.replies[&ticket], Reply::Released);
}

#[test]
fn a_settle_decides_what_is_unknown_and_ends_the_token_for_good() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Lost);
    rig.world.fault("AwaitTail", Fault::Fail);
    let (op, _) = rig.produce("a");
    rig.world.expire();
    let nonce = rig.world.rows.fence.nonce;
    let (ticket, trace) = rig.settle();
    let end = "ReadBatch FindOperations DropProducer Commit:Settle Reply:Settled";
    assert_eq!(trace, format!("AwaitTail Lock {SLOW} {end}"));
    assert_eq!(rig.replies[&ticket], Reply::Settled);
    assert!(rig.world.rows.lease.released);
    assert_ne!(rig.world.rows.fence.nonce, nonce);
    // The clock steps back: the token does not live again (MODEL-2 H4, sibling).
    rig.world.rows.now.0 -= 20_000_000;
    rig.at += 2_000;
    rig.run(Event::Go);
    rig.assert_produced(op, false);
    let (late, _) = rig.produce("b");
    assert!(matches!(rig.refusal(late), Refusal::LeaseReleased { .. }));
    rig.world.assert_promises();
}

/// MODEL-2 H3.
#[test]
fn a_settle_after_a_burnt_token_still_redoes() {
    let mut rig = Rig::acquired();
    rig.world.fault("Commit:Record", Fault::Fail);
    rig.world.fault("AwaitTail", Fault::Fail);
    rig.produce("a");
    rig.world.expire();
    rig.world.burnt_elsewhere();
    let (_, trace) = rig.settle();
    assert!(trace.ends_with("Commit:Settle Reply:Settled"), "{trace}");
    assert_eq!((rig.world.stored.len(), rig.world.rows.fence.seq.0), (1, 1));
}

#[test]
fn a_settle_never_touches_a_live_lease_and_a_second_one_answers_from_the_row() {
    let mut rig = Rig::acquired();
    let (ticket, trace) = rig.settle();
    assert_eq!(trace, "AwaitTail Lock Reply:LeaseHeld EndSession");
    assert!(matches!(rig.refusal(ticket), Refusal::LeaseHeld { .. }));
    rig.world.expire();
    rig.settle();
    let (ticket, trace) = rig.settle();
    assert_eq!(trace, "AwaitTail Lock Reply:Settled EndSession");
    assert_eq!(rig.replies[&ticket], Reply::Settled);
}

#[test]
fn a_settle_whose_commit_is_unknown_is_not_claimed() {
    let mut rig = Rig::acquired();
    rig.world.expire();
    rig.world.fault("Commit:Settle", Fault::Fail);
    let (ticket, _) = rig.settle();
    assert_eq!(*rig.refusal(ticket), Refusal::PostgresUnavailable);
}

#[test]
fn a_release_of_an_expired_lease_is_refused_and_proves_nothing() {
    let mut rig = Rig::acquired();
    rig.world.expire();
    let (ticket, trace) = rig.release();
    assert_eq!(trace, "Lock Reply:LeaseExpired EndSession");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
}
