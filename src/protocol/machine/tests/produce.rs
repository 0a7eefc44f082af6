//! Produce, and what follows when it does not simply succeed.

use super::*;
use crate::protocol::lease::BatchSeq;

const PRODUCED: &str = "Lock Send SendLedger EndTxn Commit:Record Reply:Produced";
const OPEN: &str = "AwaitTail Lock OpenProducer WriteBarrier AwaitBarrier";

#[test]
fn a_batch_is_sent_recorded_and_answered_only_after_both_commits() {
    let mut rig = Rig::acquired();
    let (a, trace) = rig.produce("a");
    assert_eq!(trace, PRODUCED);
    rig.assert_produced(a, false);
    let (b, c) = (rig.queue("b"), rig.queue("c"));
    assert_eq!(rig.run(Event::Go), format!("{PRODUCED} Reply:Produced"));
    rig.assert_produced(b, false);
    rig.assert_produced(c, false);
    assert_eq!(rig.world.rows.fence.seq.0, 2);
}

#[test]
fn a_repeat_is_replayed_and_another_payload_is_a_conflict() {
    let mut rig = Rig::acquired();
    rig.produce("a");
    let (again, trace) = rig.produce("a");
    assert_eq!(trace, "Lock Reply:Produced EndSession");
    rig.assert_produced(again, true);
    rig.world.stored[0].accepted.fingerprint = Fingerprint([9; 32]);
    let (other, trace) = rig.produce("a");
    assert_eq!(trace, "Lock Reply:OperationConflict EndSession");
    assert_eq!(rig.refusal(other).side_effect(), SideEffect::Committed);
    // Neither has cost the producer.
    assert!(rig.machine.handle().is_some());
}

#[test]
fn the_same_id_twice_is_sent_once_and_the_second_is_a_replay() {
    let mut rig = Rig::acquired();
    let (first, second) = (rig.queue("a"), rig.queue("a"));
    assert_eq!(rig.run(Event::Go), format!("{PRODUCED} Lock Reply:Produced EndSession"));
    rig.assert_produced(first, false);
    rig.assert_produced(second, true);
    rig.world.assert_promises();
}

#[test]
fn a_commit_whose_answer_was_lost_is_found_by_the_open_and_answered() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Lost);
    let (ticket, trace) = rig.produce("a");
    let redo = "ReadBatch FindOperations WriteState Commit:Reopen Lock Reply:Produced EndSession";
    let sent = "Lock Send SendLedger EndTxn DropProducer EndSession";
    assert_eq!(trace, format!("{sent} {OPEN} {redo}"));
    rig.assert_produced(ticket, false);
    rig.world.assert_promises();
}

#[test]
fn a_commit_that_never_arrived_is_sent_again_by_the_same_request() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Late);
    rig.world.fault("OpenProducer", Fault::Fail);
    let ticket = rig.queue("a");
    let trace = rig.run(Event::Go);
    assert!(trace.ends_with("OpenProducer DropProducer Commit:Nonce"), "{trace}");
    assert_eq!(rig.machine.state(), StateName::InDoubt);
    // It arrives while nobody looks: found after all.
    rig.world.arrive();
    rig.at = rig.machine.resume_at().unwrap();
    rig.run(Event::Go);
    rig.assert_produced(ticket, false);
    rig.world.assert_promises();
}

#[test]
fn an_operation_in_doubt_that_is_not_found_is_sent_again_under_its_own_token() {
    for step in ["Send", "SendLedger", "EndTxn", "Commit:Record"] {
        let mut rig = Rig::acquired();
        rig.world.fault(step, Fault::Fail);
        let (ticket, trace) = rig.produce("a");
        assert!(trace.contains(&format!("{step} DropProducer EndSession AwaitTail")), "{trace}");
        rig.assert_produced(ticket, false);
        rig.world.assert_promises();
        assert_eq!(rig.world.data, [(FencingToken(1), OperationId::parse("a").unwrap())]);
    }
}

#[test]
fn doubt_of_several_sends_them_one_at_a_time_in_order() {
    let mut rig = Rig::acquired();
    let tickets = ["a", "b", "c"].map(|id| rig.queue(id));
    rig.world.fault("EndTxn", Fault::Fail);
    let trace = rig.run(Event::Go);
    assert!(trace.ends_with(&format!("{PRODUCED} {PRODUCED} {PRODUCED}")), "{trace}");
    for ticket in tickets {
        rig.assert_produced(ticket, false);
    }
    let order: Vec<&str> = rig.world.data.iter().map(|(_, id)| id.as_str()).collect();
    assert_eq!(order, ["a", "b", "c"]);
}

#[test]
fn of_several_only_the_guilty_one_is_refused_and_nothing_of_it_is_there() {
    let mut rig = Rig::acquired();
    let (a, b, c) = (rig.queue("a"), rig.queue("b"), rig.queue("c"));
    rig.world.fault("Send", Fault::Record(1));
    // The first of the singles passes; the second is the guilty one.
    let effects = until(&mut rig, "Commit:Reopen");
    assert!(effects.contains("Send DropProducer EndSession AwaitTail"), "{effects}");
    rig.world.fault("Send", Fault::Dirty);
    rig.world.fault("Send", Fault::Record(0));
    let trace = resume(&mut rig);
    let guilty = "Lock Send Abort Confirm Reply:Record DropProducer EndSession AwaitTail";
    assert!(trace.contains(guilty), "{trace}");
    rig.assert_produced(a, false);
    rig.assert_produced(c, false);
    assert_eq!(rig.refusal(b).side_effect(), SideEffect::None);
    assert_eq!(rig.world.data.len(), 2);
    rig.world.assert_promises();
}

/// Runs up to and including the named effect, whose outcome is kept for [`resume`].
fn until(rig: &mut Rig, stop: &str) -> String {
    let (mut names, mut next) = (Vec::new(), Some(Event::Go));
    while let Some(event) = next.take() {
        for effect in rig.feed(event) {
            names.push(name(&effect));
            if names.last().is_some_and(|n| n == stop) {
                return names.join(" ");
            }
            if is_awaited(&effect) {
                next = Some(rig.world.perform(&effect));
            }
        }
    }
    panic!("no {stop} in {names:?}")
}

/// Goes on after [`until`] stopped at the COMMIT of a re-open.
fn resume(rig: &mut Rig) -> String {
    let write =
        Write::Reopen { nonce: rig.world.last_nonce(), seq: rig.world.rows.fence.seq, redo: None };
    let event = rig.world.perform(&Effect::Commit(write));
    rig.run(event)
}

/// MODEL C3: an abort proves nothing once the lock was lost.
#[test]
fn an_abort_counts_only_if_acknowledged_and_the_lock_still_held_after_it() {
    for step in ["Abort", "Confirm"] {
        let mut rig = Rig::acquired();
        rig.world.fault("Send", Fault::Record(0));
        rig.world.fault(step, Fault::Fail);
        let (ticket, trace) = rig.produce("a");
        assert!(trace.contains(&format!("{step} DropProducer EndSession AwaitTail")), "{trace}");
        assert!(!trace.contains("Reply:Record"), "{trace}");
        rig.assert_produced(ticket, false);
    }
}

#[test]
fn a_dirty_end_is_answered_and_the_next_use_opens() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Dirty);
    let (ticket, trace) = rig.produce("a");
    assert_eq!(trace, format!("{PRODUCED} DropProducer"));
    rig.assert_produced(ticket, false);
    assert_eq!(rig.machine.handle(), None);
    let (ticket, trace) = rig.produce("b");
    assert!(trace.starts_with(OPEN) && trace.ends_with(PRODUCED), "{trace}");
    rig.assert_produced(ticket, false);
    rig.world.assert_promises();
}

#[test]
fn a_stranger_that_fences_us_is_refused_counted_and_answered_by_a_reopen() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Fenced);
    let (ticket, trace) = rig.produce("a");
    let end = "EndTxn DropProducer Confirm Reply:ProducerFenced EndSession";
    assert!(trace.ends_with(end), "{trace}");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
    let (ticket, trace) = rig.produce("a");
    assert!(trace.starts_with(OPEN), "{trace}");
    rig.assert_produced(ticket, false);
}

#[test]
fn the_third_fencing_within_a_minute_raises_an_alert_and_never_a_quarantine() {
    let mut rig = Rig::acquired();
    for round in 0..3 {
        rig.world.fault("EndTxn", Fault::Fenced);
        rig.at += 6_000;
        rig.produce("a");
        assert_eq!(rig.alerts.len(), usize::from(round == 2));
    }
    assert_eq!(rig.alerts, [Alert::FencedRepeatedly { count: 3 }]);
    assert_eq!(rig.world.rows.fence.quarantine, None);
    // Backed off: refused at once, no init, until the time is over.
    let (ticket, trace) = rig.produce("b");
    assert_eq!(trace, "Reply:ProducerFenced");
    assert_eq!(*rig.refusal(ticket), Refusal::ProducerFenced { retry_after_ms: 800 });
    rig.at += 5_000;
    let (ticket, _) = rig.produce("b");
    rig.assert_produced(ticket, false);
}

#[test]
fn a_fencing_by_another_gateways_open_is_doubt_and_no_stranger() {
    let mut rig = Rig::acquired();
    let ticket = rig.queue("a");
    until(&mut rig, "EndTxn");
    // Our session dies, another gateway re-opens, and only then our commit arrives.
    rig.world.kill_session();
    rig.world.opened_elsewhere();
    let event = rig.world.perform(&Effect::EndTxn);
    let trace = rig.run(event);
    assert!(trace.starts_with("DropProducer Confirm EndSession AwaitTail"), "{trace}");
    rig.assert_produced(ticket, false);
    assert!(rig.alerts.is_empty());
    rig.world.assert_promises();
}

#[test]
fn an_operation_past_its_deadline_is_dropped_and_never_sent() {
    let mut rig = Rig::acquired();
    let ticket = rig.queue("a");
    rig.at += 10_000;
    assert_eq!(rig.run(Event::Go), "Reply:OutcomeUnknown");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
    assert!(rig.world.data.is_empty());
}

#[test]
fn an_operation_whose_deadline_passed_while_the_lock_was_waited_for_is_not_sent() {
    let mut rig = Rig::acquired();
    let ticket = rig.queue("a");
    until(&mut rig, "Lock");
    rig.at += 10_000;
    let ids = vec![OperationId::parse("a").unwrap()];
    let event = rig.world.perform(&Effect::Lock { both: false, operations: ids });
    assert_eq!(rig.run(event), "Reply:OutcomeUnknown EndSession");
    assert_eq!(*rig.refusal(ticket), Refusal::OutcomeUnknown);
    assert!(rig.machine.handle().is_some());
}

#[test]
fn an_operation_in_doubt_waits_with_back_off_until_its_deadline() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Fail);
    let ticket = rig.queue("a");
    let mut attempts = 0;
    let mut next = Some(rig.at);
    while let Some(at) = next {
        rig.at = at;
        for _ in 0..3 {
            rig.world.fault("OpenProducer", Fault::Fail);
        }
        rig.run(Event::Go);
        attempts += 1;
        next = rig.machine.resume_at();
    }
    assert_eq!(*rig.refusal(ticket), Refusal::OutcomeUnknown);
    assert!((8..40).contains(&attempts), "{attempts}");
}

#[test]
fn an_operation_that_joined_one_in_doubt_waits_with_it() {
    let mut rig = Rig::acquired();
    rig.world.fault("EndTxn", Fault::Fail);
    (0..2).for_each(|_| rig.world.fault("OpenProducer", Fault::Fail));
    let tickets = ["a", "a", "b"].map(|id| rig.queue(id));
    rig.run(Event::Go);
    assert_eq!(*rig.refusal(tickets[2]), Refusal::KafkaUnavailable);
    assert_eq!(rig.machine.waiting(), 2);
    while let Some(at) = rig.machine.resume_at() {
        rig.at = at;
        rig.run(Event::Go);
    }
    rig.assert_produced(tickets[0], false);
    rig.assert_produced(tickets[1], true);
    rig.world.assert_promises();
}

/// MODEL-2 H14: else two gateways behind a balancer take the lock from each other for ever.
#[test]
fn a_row_that_is_not_the_handles_ends_the_session_before_the_opens_lock() {
    let changes: [fn(&mut World); 3] = [
        |w| w.rows.fence.nonce = Some(Nonce([77; 16])),
        |w| w.rows.fence.home = Some(InstanceId([2; 16])),
        World::opened_elsewhere,
    ];
    for change in changes {
        let mut rig = Rig::acquired();
        change(&mut rig.world);
        let (ticket, trace) = rig.produce("a");
        assert!(trace.starts_with("Lock DropProducer EndSession AwaitTail Lock"), "{trace}");
        rig.assert_produced(ticket, false);
    }
}

/// MODEL C11: Postgres went back under a live handle.
#[test]
fn a_row_that_went_back_a_batch_is_noticed_before_anything_is_sent() {
    let mut rig = Rig::acquired();
    rig.produce("a");
    rig.world.rows.fence.seq = BatchSeq(0);
    rig.world.stored.clear();
    let (ticket, trace) = rig.produce("a");
    assert!(trace.starts_with("Lock DropProducer EndSession AwaitTail"), "{trace}");
    rig.assert_produced(ticket, true);
    rig.world.assert_promises();
}

#[test]
fn an_expiry_is_refused_only_after_the_lease_row_was_locked_and_read_again() {
    let mut rig = Rig::acquired();
    rig.world.expire();
    let (ticket, trace) = rig.produce("a");
    assert_eq!(trace, "Lock LockLease Reply:LeaseExpired EndSession");
    assert_eq!(rig.refusal(ticket).side_effect(), SideEffect::Maybe);
    // A renew commits in between: the locked row says that the lease lives.
    let ticket = rig.queue("a");
    until(&mut rig, "LockLease");
    rig.world.rows.lease.expires_at.0 += 10_000_000;
    let event = rig.world.perform(&Effect::LockLease);
    let trace = rig.run(event);
    assert_eq!(trace, "Send SendLedger EndTxn Commit:Record Reply:Produced");
    rig.assert_produced(ticket, false);
}

#[test]
fn an_operation_that_comes_while_an_open_waits_for_its_lock_is_not_judged_unseen() {
    let mut rig = Rig::acquired();
    rig.produce("a");
    let old = rig.world.credential();
    rig.run(Event::Idle);
    rig.world.expire();
    rig.world.opened_elsewhere();
    rig.queue_as("b", old.clone());
    until(&mut rig, "Lock");
    // "a" is stored, but this lock was not asked about it.
    let late = rig.queue_as("a", old);
    let ids = vec![OperationId::parse("b").unwrap()];
    let event = rig.world.perform(&Effect::Lock { both: true, operations: ids });
    rig.run(event);
    rig.run(Event::Go);
    rig.assert_produced(late, true);
}
