//! What the engine expects of a transaction log.

use crate::kafka_world;
use crate::on_both;
use crate::shared::memory::World;
use fencepost::engine::ports::{Failure, Outgoing, TransactionLog, TransactionalProducer};
use fencepost::protocol::lease::{
    BatchSeq, FencingToken, Incarnation, InstanceId, LeaseName, Nonce, Owner,
};
use fencepost::protocol::ledger::{Batch, LedgerKey, LedgerPartition, LedgerRecord};
use fencepost::protocol::machine::own_headers;
use fencepost::protocol::operation::{Accepted, Fingerprint, OperationId};
use fencepost::protocol::reconcile::Knowledge;
use fencepost::protocol::transactional_id::{Installation, TransactionalId};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const P0: LedgerPartition = LedgerPartition(0);

/// A log and the names of one case.
struct Subject {
    log: Arc<dyn TransactionLog>,
    topic: Arc<str>,
    absent: Arc<str>,
    lease: LeaseName,
}

async fn in_memory<F: Future<Output = ()>>(case: fn(Subject) -> F) {
    let world = World::new();
    case(Subject {
        log: world.ports(InstanceId([9; 16])).log,
        topic: "t".into(),
        absent: "no".into(),
        lease: LeaseName::parse("matter.7").unwrap(),
    })
    .await;
}

async fn for_real<F: Future<Output = ()>>(case: fn(Subject) -> F) {
    let world = kafka_world::World::new("contract").await;
    let log: Arc<dyn TransactionLog> = world.log();
    let until = tokio::time::Instant::now() + LONG;
    while !log.is_read(P0) {
        assert!(tokio::time::Instant::now() < until, "the tail has not read its partition");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let absent = format!("{}.absent", world.data).into();
    let (topic, lease) = (Arc::clone(&world.data), world.lease());
    case(Subject { log, topic, absent, lease }).await;
    world.done().await;
}

impl Subject {
    async fn open(&self) -> Box<dyn TransactionalProducer> {
        let id = TransactionalId::of(&Installation::parse("test").unwrap(), &self.lease);
        self.log.open(&id, LONG).await.unwrap()
    }

    fn records(&self, id: &str, count: usize) -> Vec<Outgoing> {
        let id = OperationId::parse(id).unwrap();
        let own = own_headers(&self.lease, FencingToken(1), &id, BatchSeq(1));
        let header = |(n, v): &(&str, String)| ((*n).into(), Some(v.as_bytes().into()));
        let headers = own.iter().map(header).collect();
        let record = Outgoing {
            topic: Arc::clone(&self.topic),
            partition: Some(0),
            key: None,
            value: Some(b"v".as_slice().into()),
            headers,
            timestamp_ms: None,
        };
        vec![record; count]
    }

    fn batch(&self, seq: u64) -> Batch {
        let id = OperationId::parse(&format!("op-{seq}")).unwrap();
        Batch {
            token: FencingToken(1),
            owner: Owner::parse("w").unwrap(),
            incarnation: Incarnation(1),
            seq: BatchSeq(seq),
            operations: vec![Accepted { id, fingerprint: Fingerprint([1; 32]), runs: Vec::new() }],
        }
    }

    /// Sends data and a batch record, without an end.
    async fn send(&self, producer: &mut Box<dyn TransactionalProducer>, seq: u64) -> i64 {
        producer.send(self.records(&format!("op-{seq}"), 1), LONG).await.unwrap();
        let key = LedgerKey::Lease(self.lease.clone()).encode();
        let value = LedgerRecord::Batch(self.batch(seq)).encode();
        producer.send_ledger(key, value, P0, LONG).await.unwrap()
    }

    /// What the tail knows at a barrier of this producer.
    async fn at_barrier(&self, producer: &mut Box<dyn TransactionalProducer>) -> Knowledge {
        let nonce = Nonce(uuid::Uuid::new_v4().into_bytes());
        let wait = self.log.expect(&self.lease, P0, nonce);
        let key = LedgerKey::Barrier(self.lease.clone()).encode();
        let value = LedgerRecord::Barrier { nonce, home: InstanceId([9; 16]) }.encode();
        producer.send_ledger(key, value, P0, LONG).await.unwrap();
        producer.commit(LONG).await.unwrap();
        wait.seen(LONG).await.unwrap()
    }
}

async fn records_of_one_send_stand_one_behind_the_other(subject: Subject) {
    let mut producer = subject.open().await;
    let placed = producer.send(subject.records("a", 5), LONG).await.unwrap();
    producer.commit(LONG).await.unwrap();
    assert_eq!(placed.len(), 5);
    for pair in placed.windows(2) {
        assert_eq!(pair[1].offset, pair[0].offset + 1);
    }
    producer.discard().await;
}

async fn a_barrier_is_seen_with_what_was_committed_before_it(subject: Subject) {
    let mut producer = subject.open().await;
    assert_eq!(subject.at_barrier(&mut producer).await, Knowledge::default());
    let offset = subject.send(&mut producer, 1).await;
    producer.commit(LONG).await.unwrap();
    let known = subject.at_barrier(&mut producer).await;
    let last = known.last.unwrap();
    assert_eq!((last.seq, last.token, last.offset), (BatchSeq(1), FencingToken(1), offset));
    assert_eq!(known.batch_token, FencingToken(1));
    let read = subject.log.read(&subject.lease, P0, offset, LONG).await.unwrap();
    assert_eq!(read, LedgerRecord::Batch(subject.batch(1)));
    producer.discard().await;
}

async fn an_open_aborts_what_the_old_producer_left_and_fences_it(subject: Subject) {
    let mut old = subject.open().await;
    subject.send(&mut old, 1).await;
    let mut new = subject.open().await;
    // Decided: not there, and it never will be.
    assert_eq!(subject.at_barrier(&mut new).await.last, None);
    let late = old.commit(LONG).await;
    assert!(
        matches!(late, Err(Failure::Fenced { .. } | Failure::Indeterminate { .. })),
        "an old epoch committed: {late:?}"
    );
    assert_eq!(subject.at_barrier(&mut new).await.last, None);
    old.discard().await;
    new.discard().await;
}

async fn an_aborted_batch_is_never_known(subject: Subject) {
    let mut producer = subject.open().await;
    subject.send(&mut producer, 1).await;
    producer.abort(LONG).await.unwrap();
    producer.discard().await;
    let mut next = subject.open().await;
    assert_eq!(subject.at_barrier(&mut next).await.last, None);
    next.discard().await;
}

async fn a_barrier_that_nobody_writes_is_an_error_at_its_deadline(subject: Subject) {
    let wait = subject.log.expect(&subject.lease, P0, Nonce([3; 16]));
    assert!(wait.seen(Duration::from_millis(200)).await.is_err());
}

async fn a_topic_is_counted_and_an_absent_one_is_none(subject: Subject) {
    let count = subject.log.partitions(&subject.topic).await.unwrap();
    assert!(count.is_some_and(|count| count > 0));
    assert_eq!(subject.log.partitions(&subject.absent).await.unwrap(), None);
    subject.log.probe().await.unwrap();
}

async fn the_tail_passes_what_is_decided(subject: Subject) {
    let mut producer = subject.open().await;
    let offset = subject.send(&mut producer, 1).await;
    let early = subject.log.passed(P0, offset, Duration::from_millis(200)).await;
    assert!(early.is_err(), "passed an open transaction");
    producer.commit(LONG).await.unwrap();
    subject.log.passed(P0, offset, LONG).await.unwrap();
    producer.discard().await;
}

on_both!(
    records_of_one_send_stand_one_behind_the_other,
    a_barrier_is_seen_with_what_was_committed_before_it,
    an_open_aborts_what_the_old_producer_left_and_fences_it,
    an_aborted_batch_is_never_known,
    a_barrier_that_nobody_writes_is_an_error_at_its_deadline,
    a_topic_is_counted_and_an_absent_one_is_none,
    the_tail_passes_what_is_decided,
);
