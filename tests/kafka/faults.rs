//! What the adapter says when requests are lost, late or overtaken.

use crate::chaos_proxy::{Action, Mode, api};
use crate::world::{LONG, P0, World};
use crate::world::{barrier, barrier_key, chaos, eventually, nonce, open};
use fencepost::engine::ports::{EndTxn, Failure, TransactionLog};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_was_not_answered_at_its_first_attempt_is_dirty() {
    let world = World::new("dirty").await;
    let proxy = chaos().await;
    let log = world.log_through(&proxy);
    for (n, action) in [Action::LoseReply, Action::HoldAndCut, Action::Cut].iter().enumerate() {
        let mut producer = open(&log, &world).await;
        producer.send(vec![world.record(0, &format!("{n}"))], LONG).await.unwrap();
        proxy.next(api::END_TXN, *action);
        assert_eq!(producer.commit(LONG).await.unwrap(), EndTxn::Dirty, "{action:?}");
        assert_eq!(proxy.applied(), n + 1);
        producer.discard().await;
    }
    proxy.release_held();
    assert_eq!(world.values(), ["0", "1", "2"]);
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_records_is_asked_for_again_and_doubles_nothing() {
    let world = World::new("lost").await;
    let proxy = chaos().await;
    let log = world.log_through(&proxy);
    let mut producer = open(&log, &world).await;
    for n in 0..3 {
        proxy.next(api::PRODUCE, Action::LoseReply);
        producer.send(vec![world.record(0, &format!("{n}"))], LONG).await.unwrap();
        assert_eq!(producer.commit(LONG).await.unwrap(), EndTxn::Clean);
        assert_eq!(proxy.applied(), n + 1);
    }
    producer.discard().await;
    assert_eq!(world.values(), ["0", "1", "2"]);
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_owner_writes_nothing_visible_after_a_takeover() {
    let world = World::new("takeover").await;
    let log = world.log();
    let mut in_transaction = open(&log, &world).await;
    in_transaction.send(vec![world.record(0, "old")], LONG).await.unwrap();
    let mut idle = open(&log, &world).await;
    let mut new = open(&log, &world).await;

    let failure = in_transaction.commit(LONG).await.unwrap_err();
    assert!(!matches!(failure, Failure::Determinate { .. }), "{failure:?}");
    println!("commit of an old owner: {failure:?}");
    let begun = Instant::now();
    let failure = idle.send(vec![world.record(0, "old")], LONG).await.unwrap_err();
    assert!(!matches!(failure, Failure::Determinate { .. }), "{failure:?}");
    println!("send of an old owner: {failure:?} after {:?}", begun.elapsed());
    assert!(idle.commit(LONG).await.is_err());

    new.send(vec![world.record(0, "new")], LONG).await.unwrap();
    assert_eq!(new.commit(LONG).await.unwrap(), EndTxn::Clean);
    for producer in [in_transaction, idle, new] {
        producer.discard().await;
    }
    assert_eq!(world.values(), ["new"]);
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_asked_for_in_an_older_generation_fails() {
    let world = World::new("generation").await;
    let proxy = chaos().await;
    // The tail through the proxy, the producer straight.
    let (tail, straight) = (world.log_through(&proxy), world.log());
    eventually("the tail reads", || tail.is_read(P0)).await;
    let (lease, nonce) = (world.lease(), nonce());
    let mut producer = open(&straight, &world).await;
    let first = producer.send_ledger(barrier_key(&lease), barrier(nonce), P0, LONG).await.unwrap();
    producer.commit(LONG).await.unwrap();
    tail.passed(P0, first, LONG).await.unwrap();

    let expected = tail.expect(&lease, P0, nonce);
    let beyond = tail.passed(P0, 1_000, LONG);
    proxy.set_mode(Mode::Freeze);
    for _ in 0..2 {
        let (key, value) = (barrier_key(&lease), barrier(nonce));
        producer.send_ledger(key, value, P0, LONG).await.unwrap();
        producer.commit(LONG).await.unwrap();
    }
    world.delete_below(0, first + 5).await;
    // The answer to the fetch that was under way holds the barrier: it is lost, and what the tail
    // asks for then is gone.
    proxy.set_mode(Mode::Refuse);
    proxy.set_mode(Mode::Pass);
    let seen = expected.seen(LONG).await;
    let why = seen.as_ref().map(|_| ()).map_err(ToString::to_string);
    assert!(matches!(seen, Err(Failure::Indeterminate { .. })), "{why:?}");
    assert!(why.as_ref().is_err_and(|why| why.contains("consumption error")), "{why:?}");
    println!("{why:?}");
    assert!(beyond.await.is_err());
    eventually("the next generation reads", || tail.is_read(P0)).await;
    producer.discard().await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_discard_are_bounded_while_the_broker_is_frozen() {
    let world = World::new("frozen").await;
    let proxy = chaos().await;
    let log = world.log_through(&proxy);
    let mut committing = open(&log, &world).await;
    committing.send(vec![world.record(0, "x")], LONG).await.unwrap();
    proxy.set_mode(Mode::Freeze);
    let bounded = |begun: Instant, ms: u64| {
        let took = begun.elapsed();
        assert!(took < Duration::from_millis(ms + 150), "{took:?} for {ms} ms");
    };
    let within = Duration::from_millis(400);
    let begun = Instant::now();
    assert!(matches!(committing.commit(within).await, Err(Failure::Indeterminate { .. })));
    bounded(begun, 400);
    let begun = Instant::now();
    committing.discard().await;
    println!("discard of a frozen commit took {:?}", begun.elapsed());
    bounded(begun, 500);
    let begun = Instant::now();
    assert!(log.open(&world.id(), within).await.is_err());
    bounded(begun, 400);
    let begun = Instant::now();
    assert!(log.partitions(&"test.frozen".into()).await.is_err());
    bounded(begun, 800);
    let begun = Instant::now();
    assert!(log.read(&world.lease(), P0, 0, within).await.is_err());
    bounded(begun, 400);
    assert!(log.probe().await.is_err());

    proxy.set_mode(Mode::Pass);
    let mut sending = open(&log, &world).await;
    proxy.set_mode(Mode::Freeze);
    let begun = Instant::now();
    assert!(sending.send(vec![world.record(0, "y")], within).await.is_err());
    bounded(begun, 400);
    let begun = Instant::now();
    sending.discard().await;
    bounded(begun, 500);
    proxy.set_mode(Mode::Pass);
    open(&log, &world).await.discard().await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_end_of_a_discarded_producer_tears_no_later_transaction() {
    let world = World::new("late").await;
    let proxy = chaos().await;
    let log = world.log_through(&proxy);
    for round in 0..5 {
        let mut old = open(&log, &world).await;
        old.send(vec![world.record(0, &format!("old {round}"))], LONG).await.unwrap();
        proxy.next(api::END_TXN, Action::Hold);
        let unknown = old.commit(Duration::from_millis(200)).await;
        assert!(matches!(unknown, Err(Failure::Indeterminate { .. })), "{unknown:?}");
        assert!(proxy.wait_applied(round + 1, LONG));
        old.discard().await;

        let mut new = open(&log, &world).await;
        let first = vec![world.record(0, &format!("first {round}"))];
        new.send(first, LONG).await.unwrap();
        let late = proxy.release_held();
        let second = vec![world.record(1, &format!("second {round}"))];
        new.send(second, LONG).await.unwrap();
        assert_eq!(new.commit(LONG).await.unwrap(), EndTxn::Clean);
        println!("the late EndTxn was answered {late:?}");
        // Kafka's codes for an epoch or a state that is not the transaction's any more.
        assert_eq!(late.len(), 1);
        assert!(late.iter().all(|code| [47, 48, 90].contains(code)), "{late:?}");
        new.discard().await;
    }
    let wanted: Vec<String> = ["first", "second"]
        .iter()
        .flat_map(|part| (0..5).map(move |round| format!("{part} {round}")))
        .collect();
    assert_eq!(world.values(), wanted);
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_down_at_the_start_is_waited_for() {
    let world = World::new("down").await;
    let proxy = chaos().await;
    proxy.set_mode(Mode::Refuse);
    let log = world.log_through(&proxy);
    let failure = log.open(&world.id(), Duration::from_millis(300)).await.map(|_| ()).unwrap_err();
    println!("open without a broker: {failure:?}");
    assert!(log.probe().await.is_err());
    assert!(!log.is_read(P0));
    proxy.set_mode(Mode::Pass);
    eventually("the tail reads", || log.is_read(P0)).await;
    open(&log, &world).await.discard().await;

    // A connection that goes costs no generation: a barrier asked for before is seen after.
    let (lease, nonce) = (world.lease(), nonce());
    let expected = log.expect(&lease, P0, nonce);
    proxy.set_mode(Mode::Refuse);
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.set_mode(Mode::Pass);
    let mut producer = open(&log, &world).await;
    producer.send_ledger(barrier_key(&lease), barrier(nonce), P0, LONG).await.unwrap();
    producer.commit(LONG).await.unwrap();
    expected.seen(LONG).await.unwrap();
    producer.discard().await;
    world.done().await;
}
