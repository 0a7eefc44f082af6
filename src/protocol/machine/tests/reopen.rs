//! A re-open by the next use: what it locks, and what it leaves alone when Kafka is away.

use super::*;
use crate::protocol::fence::{FenceRow, LeaseRow, Locked};
use crate::protocol::lease::{BatchSeq, DbTime};
use crate::protocol::ledger::LedgerPartition;

const NOW: i64 = 1_700_000_000_000_000;

fn owner() -> Owner {
    Owner::parse("w").unwrap()
}

fn lease(expires_at: i64) -> LeaseRow {
    LeaseRow {
        owner: owner(),
        identity: Identity::new("i"),
        token: FencingToken(7),
        expires_at: DbTime(expires_at),
        released: false,
        ttl_ms: 30_000,
        request_id: None,
    }
}

fn locked(expires_at: i64) -> Event {
    let fence = FenceRow {
        token: FencingToken(7),
        owner: owner(),
        incarnation: Incarnation(1),
        seq: BatchSeq(0),
        nonce: Some(Nonce([9; 16])),
        home: None,
        partition: LedgerPartition(0),
        quarantine: None,
    };
    let lease = lease(expires_at);
    let (now, incarnation, found) = (DbTime(NOW), Incarnation(1), Vec::new());
    let rows = Locked { fence, lease, now, incarnation, forgotten_to: DbTime(0), found };
    let outcome = LockOutcome::Locked(Box::new(rows));
    Event::Locked { outcome, fresh: Nonce([1; 16]), glimpse: FencingToken(7) }
}

/// A machine that was just asked to work on one operation, with its tail ready.
fn asked() -> (LeaseMachine, Vec<Effect>) {
    let setting = Setting {
        home: InstanceId([1; 16]),
        limits: BatchLimits::default(),
        retention_s: 3_600,
        bugs: Bugs::default(),
    };
    let mut machine = LeaseMachine::new(setting);
    let credential = Credential {
        lease: LeaseName::parse("l").unwrap(),
        owner: owner(),
        token: FencingToken(7),
        incarnation: Incarnation(1),
        expires_s: NOW / 1_000_000 + 3_600,
        issued_s: NOW / 1_000_000,
    };
    let waiting = Waiting {
        ticket: 1,
        credential,
        id: OperationId::parse("op").unwrap(),
        fingerprint: Fingerprint::of(&[]),
        records: Vec::new().into(),
        deadline_ms: 10_000,
        in_doubt: false,
        alone: false,
    };
    assert_eq!(machine.apply(Event::Queue(waiting), 0), Vec::new());
    assert_eq!(machine.apply(Event::Go, 0), vec![Effect::AwaitTail { past: None }]);
    let effects = machine.apply(Event::TailReady(true), 0);
    (machine, effects)
}

#[test]
fn a_reopen_leaves_the_lease_row_to_renew() {
    let (mut machine, effects) = asked();
    assert!(matches!(effects.as_slice(), [Effect::Lock { both: false, .. }]), "{effects:?}");
    assert_eq!(machine.apply(locked(NOW + 1), 0), vec![Effect::OpenProducer]);
}

#[test]
fn a_reopen_refuses_for_expiry_only_by_the_locked_lease_row() {
    let (mut machine, _) = asked();
    assert_eq!(machine.apply(locked(NOW), 0), vec![Effect::LockLease]);
    // A renew had been about to commit.
    let renewed = Event::LeaseLocked(Some((lease(NOW + 1), DbTime(NOW))));
    assert_eq!(machine.apply(renewed, 0), vec![Effect::OpenProducer]);

    let (mut machine, _) = asked();
    assert_eq!(machine.apply(locked(NOW), 0), vec![Effect::LockLease]);
    let over = Event::LeaseLocked(Some((lease(NOW), DbTime(NOW))));
    let effects = machine.apply(over, 0);
    let refused =
        |e: &Effect| matches!(e, Effect::Reply(1, Reply::Refused(Refusal::LeaseExpired { .. })));
    assert!(effects.iter().any(refused), "{effects:?}");
    assert_eq!(effects.last(), Some(&Effect::EndSession));
}

#[test]
fn an_open_that_never_reached_kafka_leaves_the_nonce_of_a_healthy_home() {
    let (mut machine, _) = asked();
    assert_eq!(machine.apply(locked(NOW + 1), 0), vec![Effect::OpenProducer]);
    let effects = machine.apply(Event::Opened(Err(KafkaFailure::Unreached)), 0);
    assert!(!effects.iter().any(|e| matches!(e, Effect::Commit(_))), "{effects:?}");
    assert!(effects.contains(&Effect::EndSession));
    assert!(effects.contains(&Effect::Reply(1, Reply::Refused(Refusal::KafkaUnavailable))));
}
