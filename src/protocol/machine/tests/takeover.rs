//! Who gets the lease, and what becomes of the operations of the token before.

use super::*;
use crate::protocol::lease::DbTime;

/// MODEL-2 H1, the worst hole of that round.
#[test]
fn an_operation_in_doubt_never_follows_a_takeover_at_the_same_gateway() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Fail);
    rig.world.fault("AwaitTail", Fault::Fail);
    let (old, _) = rig.produce("a");
    assert_eq!(rig.machine.state(), StateName::InDoubt);
    rig.world.expire();
    let (new, _) = rig.acquire(acquire("x"));
    rig.assert_granted(new, 2);
    rig.at += 2_000;
    assert_eq!(rig.run(Event::Go), "Lock Reply:StaleToken EndSession");
    let (current, side_effect) = (FencingToken(2), SideEffect::None);
    assert_eq!(*rig.refusal(old), Refusal::StaleToken { current, side_effect });
    assert!(rig.world.data.is_empty());
}

#[test]
fn a_new_holder_does_not_wait_out_the_back_off_of_the_one_before() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Fail);
    rig.world.fault("AwaitTail", Fault::Fail);
    let (old, _) = rig.produce("a");
    assert!(rig.machine.resume_at().is_some_and(|at| at > rig.at));
    rig.world.expire();
    rig.acquire(acquire("x"));
    let (new, _) = rig.produce("b");
    assert!(matches!(rig.refusal(old), Refusal::StaleToken { .. }));
    rig.assert_produced(new, false);
}

#[test]
fn operations_of_two_tokens_never_share_a_batch() {
    let mut rig = Rig::acquired();
    let old = rig.world.credential();
    rig.world.expire();
    rig.acquire(acquire("x"));
    let (stale, live) = (rig.queue_as("a", old), rig.queue("b"));
    let trace = rig.run(Event::Go);
    assert!(trace.starts_with("Lock Reply:StaleToken EndSession Lock Send"), "{trace}");
    assert!(matches!(rig.refusal(stale), Refusal::StaleToken { .. }));
    rig.assert_produced(live, false);
    rig.world.assert_promises();
}

#[test]
fn a_stale_operation_costs_its_gateway_no_open() {
    let mut rig = Rig::acquired();
    let old = rig.world.credential();
    rig.run(Event::Idle);
    rig.world.expire();
    rig.world.opened_elsewhere();
    let ticket = rig.queue_as("a", old);
    assert_eq!(rig.run(Event::Go), "AwaitTail Lock Reply:StaleToken EndSession");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::None);
}

#[test]
fn a_new_owner_that_posts_the_old_owners_id_gets_the_stored_answer() {
    let mut rig = Rig::acquired();
    rig.produce("a");
    rig.world.expire();
    rig.acquire(acquire("x"));
    let (ticket, _) = rig.produce("a");
    rig.assert_produced(ticket, true);
    rig.world.assert_promises();
}

#[test]
fn a_held_lease_is_refused_to_everybody_who_does_not_replace_himself() {
    let stranger = Acquire { identity: Identity::new("other"), replace: true, ..acquire("w") };
    for asks in [acquire("w"), acquire("x"), Acquire { replace: true, ..acquire("x") }, stranger] {
        let mut rig = Rig::acquired();
        let before = rig.world.rows.clone();
        let (ticket, trace) = rig.acquire(asks);
        assert_eq!(trace, "AwaitTail Lock Reply:LeaseHeld EndSession");
        let held = Refusal::LeaseHeld { holder: owner("w"), expires_in_ms: 30_000 };
        assert_eq!(*rig.refusal(ticket), held);
        assert_eq!(rig.world.rows, before);
        assert!(rig.machine.handle().is_some());
    }
}

#[test]
fn replace_commits_the_expiry_and_starts_again_with_every_check() {
    let mut rig = Rig::acquired();
    let (ticket, trace) = rig.acquire(Acquire { replace: true, ..acquire("w") });
    let start = "AwaitTail Lock Commit:Expire AwaitTail Lock DrawToken DropProducer OpenProducer";
    assert!(trace.starts_with(start), "{trace}");
    rig.assert_granted(ticket, 2);
}

/// MODEL-2 H12: the expiry gives the lock away; somebody else may have the lease by then.
#[test]
fn replace_does_not_take_a_lease_that_another_owner_got_meanwhile() {
    let mut rig = Rig::acquired();
    let replace = Acquire { ticket: 50, replace: true, ..acquire("w") };
    let mut next = Some(Event::Acquire(replace));
    let mut names = Vec::new();
    while let Some(event) = next.take() {
        for effect in rig.feed(event) {
            names.push(name(&effect));
            if name(&effect) == "AwaitTail" && names.len() > 3 {
                rig.world.opened_elsewhere();
            }
            if is_awaited(&effect) {
                next = Some(rig.world.perform(&effect));
            }
        }
    }
    let trace = names.join(" ");
    assert!(trace.ends_with("Commit:Expire AwaitTail Lock Reply:LeaseHeld EndSession"), "{trace}");
    assert_eq!(rig.world.rows.fence.owner, owner("x"));
}

#[test]
fn a_repeated_request_id_opens_again_draws_nothing_and_extends_nothing() {
    let mut rig = Rig::new();
    rig.acquire(asking("w", "r1"));
    let lease = rig.world.rows.lease.clone();
    rig.world.rows.now.0 += 5_000_000;
    let (ticket, trace) = rig.acquire(asking("w", "r1"));
    let again = "AwaitTail Lock DropProducer OpenProducer WriteBarrier AwaitBarrier WriteState \
                 Commit:Reopen Reply:Granted";
    assert_eq!(trace, again);
    rig.assert_granted(ticket, 1);
    assert_eq!((rig.world.sequence, &rig.world.rows.lease), (1, &lease));
}

/// MODEL-2 H12: else a repeat ends the lease that its first attempt won.
#[test]
fn the_request_id_is_looked_at_before_replace() {
    let mut rig = Rig::new();
    let asks = Acquire { replace: true, ..asking("w", "r1") };
    rig.acquire(asks.clone());
    let (ticket, trace) = rig.acquire(asks);
    assert!(!trace.contains("Commit:Expire"), "{trace}");
    rig.assert_granted(ticket, 1);
}

#[test]
fn a_request_id_counts_only_with_its_own_identity_and_owner() {
    let mut rig = Rig::new();
    rig.acquire(asking("w", "r1"));
    let (ticket, _) = rig.acquire(asking("x", "r1"));
    assert!(matches!(rig.refusal(ticket), Refusal::LeaseHeld { .. }));
    let other = Acquire { identity: Identity::new("other"), ..asking("w", "r1") };
    let (ticket, _) = rig.acquire(other.clone());
    assert!(matches!(rig.refusal(ticket), Refusal::LeaseHeld { .. }));
    // Once the lease is over, the other identity's id is simply an id that it has not used.
    rig.world.expire();
    let (ticket, _) = rig.acquire(other);
    rig.assert_granted(ticket, 2);
}

/// MODEL-2 H6.
#[test]
fn a_request_id_revives_neither_an_expired_nor_a_released_lease() {
    let mut rig = Rig::new();
    rig.acquire(asking("w", "r1"));
    rig.release();
    let (ticket, trace) = rig.acquire(asking("w", "r1"));
    assert_eq!(trace, "AwaitTail Lock Reply:LeaseReleased EndSession");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
    rig.world.rows.lease.released = false;
    rig.world.expire();
    let (_, trace) = rig.acquire(asking("w", "r1"));
    assert_eq!(trace, "AwaitTail Lock Reply:LeaseExpired EndSession");
}

#[test]
fn an_acquire_is_judged_by_the_clock_that_was_read_under_the_lock() {
    let mut rig = Rig::acquired();
    let end = rig.world.rows.lease.expires_at;
    rig.world.rows.now = DbTime(end.0 - 1);
    let (ticket, _) = rig.acquire(acquire("x"));
    assert!(matches!(rig.refusal(ticket), Refusal::LeaseHeld { expires_in_ms: 0, .. }));
    rig.world.rows.now = end;
    let (ticket, _) = rig.acquire(acquire("x"));
    rig.assert_granted(ticket, 2);
}

#[test]
fn a_statement_that_fails_under_the_lock_ends_the_session() {
    let mut rig = Rig::acquired();
    rig.world.expire();
    rig.world.fault("DrawToken", Fault::Fail);
    let (_, trace) = rig.acquire(acquire("x"));
    assert!(trace.ends_with("DrawToken EndSession Reply:PostgresUnavailable"), "{trace}");
    rig.world.fault("LockLease", Fault::Fail);
    let (_, trace) = rig.produce("a");
    assert!(trace.ends_with("LockLease EndSession Reply:PostgresUnavailable"), "{trace}");
}
