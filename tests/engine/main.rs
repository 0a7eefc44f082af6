//! The real engine on the memory ports: what a worker is answered, and what is in the topic then.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::wildcard_enum_match_arm,
    dead_code,
    reason = "a test that is wrong about a value fails, which is what it is for"
)]

mod callers;
#[path = "../support"]
mod support {
    pub(crate) mod gateway;
    pub(crate) mod memory;
}

use fencepost::engine::api::{AcquireRequest, Granted, Produced};
use fencepost::protocol::lease::{FencingToken, InstanceId, LeaseName, Nonce};
use fencepost::protocol::ledger::{LedgerKey, LedgerRecord, ledger_partition};
use fencepost::protocol::operation::Record;
use fencepost::protocol::refusal::{RecordRefused, Refusal, SideEffect};
use fencepost::telemetry;
use std::time::Duration;
use support::gateway::{
    Gateway, TTL, assert_log, copies, credential, lease, post, request, until_granted,
};
use support::memory::{Fault, PARTITIONS, World};
use tokio::time::sleep;

fn two() -> (World, Gateway, Gateway) {
    let world = World::new();
    let (first, second) = (Gateway::new(&world, 1), Gateway::new(&world, 2));
    (world, first, second)
}

#[tokio::test(start_paused = true)]
async fn a_post_is_written_once_and_a_repeat_gets_the_same_answer_from_any_gateway() {
    let (world, first, second) = two();
    let held = first.acquire("w").await.unwrap();
    let written = first.post(&held, "a").await.unwrap();
    assert!(!written.replayed);
    for gateway in [&first, &second] {
        let again = gateway.post(&held, "a").await.unwrap();
        assert_eq!(again, Produced { replayed: true, ..written.clone() });
    }
    let mut other = post(&credential(&held), "a");
    other.records.truncate(1);
    assert_eq!(second.engine.produce(other).await, Err(Refusal::OperationConflict));
    assert_eq!(copies(&world, "a"), 1);
    assert_log(&world);
}

/// The incident of the README: eleven minutes, then it wakes up.
#[tokio::test(start_paused = true)]
async fn a_worker_that_wakes_up_after_a_takeover_is_refused_and_nothing_of_it_is_written() {
    let (world, first, second) = two();
    let old = first.acquire("w").await.unwrap();
    first.post(&old, "a").await.unwrap();
    sleep(Duration::from_secs(660)).await;
    let new = second.acquire("x").await.unwrap();
    assert!(new.token > old.token);
    let (current, side_effect) = (new.token, SideEffect::None);
    let stale = Err(Refusal::StaleToken { current, side_effect });
    for gateway in [&first, &second] {
        assert_eq!(gateway.post(&old, "b").await, stale);
        // What it had written before is answered, not refused.
        assert!(gateway.post(&old, "a").await.unwrap().replayed);
    }
    assert_eq!(copies(&world, "b"), 0);
    second.post(&new, "b").await.unwrap();
    assert_log(&world);
}

#[tokio::test(start_paused = true)]
async fn a_batch_frozen_in_its_gateway_is_decided_before_the_next_token_is_installed() {
    for pause in [0, 1, 2, 3, 4, 5, 6, 8, 12] {
        let (world, first, second) = two();
        let held = first.acquire("w").await.unwrap();
        sleep(TTL - Duration::from_millis(500)).await;
        let engine = first.engine.clone();
        let frozen =
            telemetry::spawn(
                "post",
                async move { engine.produce(post(&credential(&held), "a")).await },
            );
        sleep(Duration::from_millis(pause)).await;
        first.ports.freeze(Duration::from_secs(60));
        sleep(Duration::from_millis(500)).await;
        let new = until_granted(&second, request("x")).await;
        let before = copies(&world, "a");
        let answer = second.post(&new, "a").await.unwrap();
        assert_eq!(answer.replayed, before == 1, "pause {pause}");
        match frozen.await.unwrap() {
            Ok(produced) => assert_eq!((before, produced.offsets), (1, answer.offsets)),
            Err(refusal) => assert_eq!(refusal.side_effect(), SideEffect::Maybe),
        }
        sleep(Duration::from_secs(120)).await;
        assert_eq!(copies(&world, "a"), 1);
        assert_log(&world);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_lives_on_and_its_old_credential_does_not_write() {
    let (world, first, _) = two();
    let held = first.acquire("w").await.unwrap();
    sleep(TTL / 2).await;
    let renewed = first.engine.renew(credential(&held), None).await.unwrap();
    assert_eq!((renewed.token, renewed.ttl_ms), (held.token, held.ttl_ms));
    assert!(renewed.expires_at > held.expires_at);
    let shorter = first.engine.renew(credential(&renewed), Some(5_000)).await.unwrap();
    assert_eq!(shorter.expires_at, renewed.expires_at);
    sleep(TTL * 3 / 4).await;
    assert_eq!(first.post(&held, "a").await, Err(Refusal::CredentialExpired));
    first.post(&renewed, "a").await.unwrap();
    sleep(TTL).await;
    let renew = first.engine.renew(credential(&renewed), None).await;
    assert!(matches!(renew, Err(Refusal::LeaseExpired { .. })));
    assert_log(&world);
}

#[tokio::test(start_paused = true)]
async fn after_a_release_nothing_of_that_token_is_written_and_the_next_one_need_not_wait() {
    let (world, first, second) = two();
    let held = first.acquire("w").await.unwrap();
    first.post(&held, "a").await.unwrap();
    first.engine.release(credential(&held)).await.unwrap();
    second.engine.release(credential(&held)).await.unwrap();
    let current = held.token;
    let released = Refusal::LeaseReleased { current, side_effect: SideEffect::None };
    assert_eq!(second.post(&held, "b").await, Err(released.clone()));
    assert_eq!(first.post(&held, "b").await, Err(released));
    assert!(first.post(&held, "a").await.unwrap().replayed);
    second.acquire("x").await.unwrap();
    assert_log(&world);
}

#[tokio::test(start_paused = true)]
async fn a_release_runs_behind_the_operations_that_came_before_it() {
    let (world, first, _) = two();
    let held = first.acquire("w").await.unwrap();
    let (engine, mine) = (first.engine.clone(), credential(&held));
    let (a, released, b) = tokio::join!(
        biased;
        first.post(&held, "a"),
        engine.release(mine),
        first.post(&held, "b"),
    );
    assert!(!a.unwrap().replayed);
    released.unwrap();
    assert!(matches!(b, Err(Refusal::LeaseReleased { .. })));
    assert_log(&world);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_acquire_gets_the_lease_at_its_release_or_soon_after_its_expiry() {
    let (_, first, second) = two();
    let held = first.acquire("w").await.unwrap();
    let waits = AcquireRequest { wait: Duration::from_secs(30), ..request("x") };
    let engine = first.engine.clone();
    let waiter = telemetry::spawn("waiter", async move { engine.acquire(waits).await });
    sleep(Duration::from_millis(300)).await;
    let before = tokio::time::Instant::now();
    first.engine.release(credential(&held)).await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert!(before.elapsed() < Duration::from_millis(200));
    let waits = AcquireRequest { wait: Duration::from_secs(30), ..request("y") };
    let last = second.engine.acquire(waits).await.unwrap();
    assert!(last.token > next.token);
    let short = AcquireRequest { wait: Duration::from_secs(2), ..request("z") };
    assert!(matches!(second.engine.acquire(short).await, Err(Refusal::LeaseHeld { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_lease_moves_between_gateways_with_every_batch_and_no_batch_is_lost() {
    let (world, first, second) = two();
    let held = first.acquire("w").await.unwrap();
    for n in 0..20 {
        let gateway = if n % 2 == 0 { &second } else { &first };
        gateway.post(&held, &format!("op{n}")).await.unwrap();
    }
    // Both at once: the lock's queue lets each have its batch.
    for n in 20..40 {
        let (a, b) = (format!("op{n}a"), format!("op{n}b"));
        let (a, b) = tokio::join!(first.post(&held, &a), second.post(&held, &b));
        assert_eq!((a.is_ok(), b.is_ok()), (true, true));
    }
    assert_eq!(world.data().len(), 2 * 60);
    assert_log(&world);
}

#[tokio::test(start_paused = true)]
async fn a_neighbours_open_transaction_holds_an_open_back_and_never_its_lock() {
    let (world, first, second) = two();
    // A transaction of somebody else on the same partition hangs until the broker ends it.
    let other = LeaseName::parse("other").unwrap();
    let id = first.engine.transactional_id(&other);
    let mut hangs = first.ports.log.open(&id, TTL).await.unwrap();
    let (nonce, home) = (Nonce([5; 16]), InstanceId([5; 16]));
    let value = LedgerRecord::Barrier { nonce, home }.encode();
    let key = LedgerKey::Barrier(other).encode();
    let partition = ledger_partition(&lease(), PARTITIONS);
    hangs.send_ledger(key, value, partition, TTL).await.unwrap();
    assert_eq!(second.acquire("x").await, Err(Refusal::KafkaUnavailable));
    let inits = world.hits("init");
    let locks = world.hits("lock");
    let again = second.engine.clone();
    let again = telemetry::spawn("again", async move { again.acquire(request("x")).await });
    sleep(Duration::from_millis(2_000)).await;
    assert_eq!((world.hits("init"), world.hits("lock")), (inits, locks));
    drop(again.await);
    until_granted(&second, request("x")).await;
    assert_log(&world);
}

#[tokio::test(start_paused = true)]
async fn a_topic_or_partition_that_is_not_there_is_refused_before_any_lock() {
    let (world, first, _) = two();
    let of = |topic: &str, partition| Record {
        topic: topic.into(),
        partition,
        ..post(&credential_of(), "a").records.remove(0)
    };
    let why = |answer: Result<(), Refusal>| match answer {
        Err(Refusal::Record { index, why, .. }) => (index, why),
        other => panic!("{other:?}"),
    };
    let gone = first.engine.check(&[of("t", None), of("no", None)]).await;
    assert_eq!(why(gone), (1, RecordRefused::TopicNotFound));
    let gone = first.engine.check(&[of("t", Some(2))]).await;
    assert_eq!(why(gone), (0, RecordRefused::PartitionNotFound));
    assert_eq!(first.engine.check(&[of("t", Some(1)), of("t", None)]).await, Ok(()));
    assert_eq!(world.hits("lock"), 0);
}

fn credential_of() -> fencepost::protocol::fence::Credential {
    use fencepost::protocol::lease::{DbTime, Incarnation, Owner};
    credential(&Granted {
        lease: lease(),
        owner: Owner::parse("w").unwrap(),
        token: FencingToken(1),
        incarnation: Incarnation(1),
        ttl_ms: 1,
        expires_at: DbTime(0),
        now: DbTime(0),
    })
}

#[tokio::test(start_paused = true)]
async fn a_settle_decides_an_expired_leases_operations_and_leaves_live_ones_alone() {
    let (world, first, second) = two();
    let held = first.acquire("w").await.unwrap();
    assert!(matches!(second.engine.settle(&lease()).await, Err(Refusal::LeaseHeld { .. })));
    world.fault("commit.record", 0, Fault::Fail);
    (0..200).for_each(|_| world.fault("init", 0, Fault::Fail));
    assert_eq!(first.post(&held, "a").await, Err(Refusal::OutcomeUnknown));
    world.clear_faults();
    sleep(TTL).await;
    second.engine.settle(&lease()).await.unwrap();
    second.engine.settle(&lease()).await.unwrap();
    assert!(second.post(&held, "a").await.unwrap().replayed);
    let current = held.token;
    let none = Refusal::LeaseReleased { current, side_effect: SideEffect::None };
    assert_eq!(second.post(&held, "b").await, Err(none));
    assert_log(&world);
}
