//! The Kafka adapter on a real broker: producer, tail, read-back, topics. Fails without one.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a test that is wrong about a value fails, which is what it is for"
)]

#[path = "support/chaos_proxy.rs"]
mod chaos_proxy;
#[path = "kafka/faults.rs"]
mod faults;
#[path = "kafka/measure.rs"]
mod measure;
#[path = "kafka/world.rs"]
mod world;

use fencepost::engine::ports::{EndTxn, Failure, Outgoing, Refused, TransactionLog};
use fencepost::protocol::lease::BatchSeq;
use fencepost::protocol::ledger::LedgerPartition;
use fencepost::protocol::refusal::RecordRefused;
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::{LEDGER_PARTITIONS, LONG, P0, World};
use world::{barrier, barrier_key, eventually, lease_key, ledger_batch, nonce, open};

#[tokio::test(flavor = "multi_thread")]
async fn every_undisturbed_commit_is_clean() {
    let world = World::new("clean").await;
    let log = world.log();
    let mut producer = open(&log, &world).await;
    for n in 0..50 {
        let placed = producer.send(vec![world.record(0, &format!("{n}"))], LONG).await.unwrap();
        assert_eq!(placed.len(), 1);
        let (key, value) = (lease_key(&world.lease()), ledger_batch(n).encode());
        producer.send_ledger(key, value, P0, LONG).await.unwrap();
        assert_eq!(producer.commit(LONG).await.unwrap(), EndTxn::Clean, "commit {n}");
    }
    producer.discard().await;
    let wanted: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_eq!(world.values(), wanted);
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn placements_are_where_a_consumer_finds_the_records_byte_for_byte() {
    let world = World::new("bytes").await;
    let log = world.log();
    let mut producer = open(&log, &world).await;
    // Of today: the broker would soon delete a segment of older records.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let given = i64::try_from(now.as_millis()).unwrap() - 1_234;
    let header = |name: &str, value: Option<&[u8]>| (Arc::from(name), value.map(Arc::from));
    let record = |key: Option<&[u8]>, value: Option<&[u8]>| Outgoing {
        key: key.map(Arc::from),
        value: value.map(Arc::from),
        timestamp_ms: Some(given),
        ..world.record(1, "")
    };
    let mut with_headers = record(Some(b"\0\xff"), Some(b"v"));
    with_headers.headers = vec![
        header("b", Some(b"1")),
        header("a", None),
        header("b", Some(b"")),
        header("b", Some(b"\0")),
    ];
    let sent = vec![
        record(None, None),
        record(None, Some(b"")),
        record(Some(b""), None),
        record(Some(b""), Some(b"")),
        with_headers,
        Outgoing { timestamp_ms: None, partition: Some(2), ..record(None, Some(b"x")) },
        record(None, Some(b"last")),
    ];
    let placed = producer.send(sent.clone(), LONG).await.unwrap();
    assert_eq!(producer.commit(LONG).await.unwrap(), EndTxn::Clean);
    let read = world.read_data();
    assert_eq!(read.len(), sent.len());
    for (record, placed) in sent.iter().zip(&placed) {
        let at = (placed.partition, placed.offset);
        let found = read.iter().find(|r| (r.partition, r.offset) == at).unwrap();
        assert_eq!(placed.topic, record.topic);
        assert_eq!(found.key.as_deref(), record.key.as_deref());
        assert_eq!(found.value.as_deref(), record.value.as_deref());
        let headers = found.headers.iter();
        let headers = headers.map(|(n, v)| (n.as_str().into(), v.as_deref().map(Into::into)));
        assert_eq!(headers.collect::<Vec<_>>(), record.headers);
        if let Some(given) = record.timestamp_ms {
            assert_eq!(found.timestamp, Some(given));
        }
    }
    producer.discard().await;
    world.done().await;
}

fn refused(failure: Failure) -> (usize, RecordRefused) {
    let Failure::Determinate { refused: Refused::Record { index, why }, .. } = failure else {
        panic!("{failure:?}")
    };
    (index, why)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_taken_is_refused_by_its_index_and_nothing_is_written() {
    let world = World::new("refused").await;
    let log = world.log();
    let good = || world.record(0, "good");
    let nowhere: Arc<str> = format!("test.{}.absent", world.mark).into();
    let large = |n: usize| Outgoing { value: Some(vec![b'x'; n].into()), ..world.record(0, "") };
    let cases = [
        (world.record(99, "x"), RecordRefused::PartitionNotFound),
        (Outgoing { topic: nowhere, ..good() }, RecordRefused::TopicNotFound),
        (large(1_100_000), RecordRefused::TooLarge { limit_bytes: Some(1_000_000) }),
        // Over the topic's own limit, which only the broker knows.
        (large(300_000), RecordRefused::TooLarge { limit_bytes: None }),
    ];
    for (bad, why) in cases {
        let mut producer = open(&log, &world).await;
        let begun = Instant::now();
        let failure = producer.send(vec![good(), bad, good()], LONG).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_millis(1_500), "{why:?} {:?}", begun.elapsed());
        assert_eq!(refused(failure), (1, why));
        assert!(producer.commit(LONG).await.is_err(), "a failed send leaves nothing to commit");
        producer.abort(LONG).await.unwrap();
        producer.discard().await;
    }
    assert!(world.values().is_empty());
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_is_seen_with_everything_that_stands_before_it_and_nothing_behind() {
    let world = World::new("barrier").await;
    let log = world.log();
    let lease = world.lease();
    eventually("the tail reads", || log.is_read(P0)).await;
    let mut producer = open(&log, &world).await;
    for n in 1..=3 {
        let value = ledger_batch(n).encode();
        let offset = producer.send_ledger(lease_key(&lease), value, P0, LONG).await.unwrap();
        assert_eq!(producer.commit(LONG).await.unwrap(), EndTxn::Clean);
        let nonce = nonce();
        let expected = log.expect(&lease, P0, nonce);
        let marked = producer.send_ledger(barrier_key(&lease), barrier(nonce), P0, LONG).await;
        producer.commit(LONG).await.unwrap();
        let last = expected.seen(LONG).await.unwrap().last.unwrap();
        assert_eq!((last.seq, last.offset), (BatchSeq(n), offset));
        log.passed(P0, marked.unwrap(), LONG).await.unwrap();
        let back = log.read(&lease, P0, offset, LONG).await.unwrap();
        assert_eq!(back, ledger_batch(n));
    }
    let other = fencepost::protocol::lease::LeaseName::parse("other").unwrap();
    assert!(log.read(&other, P0, 0, LONG).await.is_err(), "the record is another lease's");
    producer.discard().await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_barrier_is_never_seen_but_passed() {
    let world = World::new("aborted").await;
    let log = world.log();
    let lease = world.lease();
    let mut producer = open(&log, &world).await;
    eventually("the tail reads", || log.is_read(P0)).await;
    let nonce = nonce();
    let expected = log.expect(&lease, P0, nonce);
    let marked = producer.send_ledger(barrier_key(&lease), barrier(nonce), P0, LONG).await.unwrap();
    let soon = Duration::from_millis(700);
    assert!(log.passed(P0, marked, soon).await.is_err(), "undecided is not passed");
    producer.abort(LONG).await.unwrap();
    log.passed(P0, marked, LONG).await.unwrap();
    assert!(expected.seen(Duration::from_millis(100)).await.is_err());
    producer.discard().await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_partition_is_read_also_an_empty_one_and_one_that_ends_in_control_records() {
    let world = World::new("read").await;
    let log = world.log();
    let lease = world.lease();
    let mut producer = open(&log, &world).await;
    producer.send_ledger(lease_key(&lease), ledger_batch(1).encode(), P0, LONG).await.unwrap();
    producer.commit(LONG).await.unwrap();
    let p1 = LedgerPartition(1);
    producer.send_ledger(lease_key(&lease), ledger_batch(1).encode(), p1, LONG).await.unwrap();
    producer.abort(LONG).await.unwrap();
    producer.discard().await;
    let second = world.log();
    for partition in 0..LEDGER_PARTITIONS {
        let what = format!("partition {partition} is read");
        eventually(&what, || second.is_read(LedgerPartition(partition))).await;
    }
    assert_eq!(second.glimpse(&lease, P0).last.unwrap().seq, BatchSeq(1));
    assert_eq!(second.glimpse(&lease, p1).last, None);
    world.done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_counted_once_cached_and_never_created_by_asking() {
    let world = World::new("topics").await;
    let log = world.log();
    assert_eq!(log.partitions(&world.data).await, Ok(Some(3)));
    let absent: Arc<str> = format!("test.{}.absent", world.mark).into();
    for _ in 0..2 {
        let begun = Instant::now();
        assert_eq!(log.partitions(&absent).await, Ok(None));
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
    assert_eq!(log.partitions(&"no topic/at all".into()).await, Ok(None));
    log.probe().await.unwrap();
    let facts = log.facts(LONG).await.unwrap();
    assert_eq!(facts.ledger_partitions, LEDGER_PARTITIONS);
    assert!(!facts.cluster_id.is_empty());
    assert!(facts.ledger_topic_id.is_some_and(|id| id.len() >= 22), "a uuid in base64");
    world.done().await;
}
