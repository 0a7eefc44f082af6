//! The tail without a broker: what it learns, and what ends a generation.

use super::*;
use crate::protocol::lease::{BatchSeq, FencingToken, Incarnation, InstanceId, Owner};
use crate::protocol::ledger::{Batch, StateRecord};

const HERE: LedgerPartition = LedgerPartition(3);

fn tail() -> Tail {
    let shared = Shared(Arc::default());
    shared.begin(vec![(HERE.0, Some(0))]);
    Tail(shared)
}

fn lease(name: &str) -> LeaseName {
    LeaseName::parse(name).unwrap()
}

fn batch(token: u64, seq: u64) -> Batch {
    Batch {
        token: FencingToken(token),
        owner: Owner::stored("o"),
        incarnation: Incarnation(1),
        seq: BatchSeq(seq),
        operations: Vec::new(),
    }
}

fn put(tail: &Tail, offset: i64, key: &LedgerKey, value: Option<&[u8]>) {
    tail.0.take(HERE.0, offset, Some(&key.encode()), value);
}

fn put_record(tail: &Tail, offset: i64, name: &str, record: &LedgerRecord) {
    let key = match record {
        LedgerRecord::Barrier { .. } => LedgerKey::Barrier(lease(name)),
        LedgerRecord::Batch(_) | LedgerRecord::State(_) => LedgerKey::Lease(lease(name)),
    };
    put(tail, offset, &key, Some(&record.encode()));
}

fn barrier(nonce: u8) -> LedgerRecord {
    LedgerRecord::Barrier { nonce: Nonce([nonce; 16]), home: InstanceId([0; 16]) }
}

async fn seen(expected: Expected) -> Result<Knowledge, Failure> {
    Box::new(expected).seen(Duration::from_millis(20)).await
}

#[tokio::test]
async fn a_barrier_is_answered_with_the_knowledge_of_its_own_moment() {
    let tail = tail();
    let expected = tail.expect(&lease("l"), HERE, Nonce([7; 16]));
    put_record(&tail, 0, "l", &LedgerRecord::Batch(batch(1, 1)));
    put_record(&tail, 1, "other", &LedgerRecord::Batch(batch(9, 9)));
    put_record(&tail, 2, "l", &barrier(7));
    put_record(&tail, 3, "l", &LedgerRecord::Batch(batch(1, 2)));
    let known = seen(expected).await.unwrap();
    let last = LastBatch { seq: BatchSeq(1), token: FencingToken(1), offset: 0 };
    assert_eq!(known.last, Some(last));
    assert_eq!(tail.glimpse(&lease("l"), HERE).last.unwrap().seq, BatchSeq(2));
}

#[tokio::test]
async fn a_state_record_holds_the_last_batch_at_its_own_offset() {
    let tail = tail();
    let state = StateRecord {
        token: FencingToken(2),
        owner: Owner::stored("p"),
        incarnation: Incarnation(1),
        nonce: Nonce([1; 16]),
        last_batch: Some(batch(1, 4)),
    };
    put_record(&tail, 5, "l", &LedgerRecord::State(state));
    let known = tail.glimpse(&lease("l"), HERE);
    let last = LastBatch { seq: BatchSeq(4), token: FencingToken(1), offset: 5 };
    assert_eq!((known.last, known.state_token), (Some(last), FencingToken(2)));
    assert_eq!(known.batch_token, FencingToken(1));
}

#[tokio::test]
async fn a_new_generation_fails_whoever_waits_and_forgets_everything() {
    let tail = tail();
    put_record(&tail, 0, "l", &LedgerRecord::Batch(batch(1, 1)));
    let expected = tail.expect(&lease("l"), HERE, Nonce([7; 16]));
    let passed = tail.passed(HERE, 5, Duration::from_millis(20));
    tail.0.start_again("out of range");
    tail.0.begin(vec![(HERE.0, None)]);
    put_record(&tail, 1, "l", &barrier(7));
    assert!(matches!(seen(expected).await, Err(Failure::Indeterminate { .. })));
    assert!(passed.await.is_err());
    assert_eq!(tail.glimpse(&lease("l"), HERE), Knowledge::default());
    assert!(!tail.is_read(HERE));
}

#[tokio::test]
async fn an_unreadable_record_of_a_lease_makes_its_barrier_fail_and_no_other() {
    let tail = tail();
    let bad = tail.expect(&lease("l"), HERE, Nonce([7; 16]));
    let good = tail.expect(&lease("m"), HERE, Nonce([8; 16]));
    put(&tail, 0, &LedgerKey::Lease(lease("l")), Some(b"\x09junk"));
    put_record(&tail, 1, "l", &LedgerRecord::Batch(batch(1, 1)));
    put_record(&tail, 2, "l", &barrier(7));
    put_record(&tail, 3, "m", &barrier(8));
    assert!(seen(bad).await.is_err());
    assert_eq!(seen(good).await.unwrap(), Knowledge::default());
}

#[tokio::test]
async fn a_tombstone_of_a_lease_is_no_knowledge() {
    let tail = tail();
    let expected = tail.expect(&lease("l"), HERE, Nonce([7; 16]));
    put(&tail, 0, &LedgerKey::Lease(lease("l")), None);
    put_record(&tail, 1, "l", &barrier(7));
    assert!(seen(expected).await.is_err());
}

#[tokio::test]
async fn a_barrier_under_another_lease_or_an_unasked_one_tells_nothing() {
    let tail = tail();
    let expected = tail.expect(&lease("l"), HERE, Nonce([7; 16]));
    put_record(&tail, 0, "m", &barrier(7));
    assert!(seen(expected).await.is_err());
    put_record(&tail, 1, "l", &barrier(9));
    drop(tail.expect(&lease("l"), HERE, Nonce([6; 16])));
    assert!(tail.0.state().barriers.is_empty());
}

#[tokio::test]
async fn a_partition_is_read_by_its_position_and_passed_beyond_the_offset() {
    let shared = Shared(Arc::default());
    shared.begin(vec![(0, Some(0)), (HERE.0, Some(4))]);
    let tail = Tail(shared);
    assert!(tail.is_read(LedgerPartition(0)), "an empty partition");
    assert!(!tail.is_read(HERE));
    let passed = tail.passed(HERE, 4, Duration::from_millis(20));
    // The stable offset stands behind a control record, which is never delivered.
    tail.0.reached(0, HERE.0, 4);
    assert!(tail.is_read(HERE));
    assert!(tail.passed(HERE, 4, Duration::ZERO).await.is_err());
    tail.0.reached(1, HERE.0, 9);
    put_record(&tail, 6, "l", &barrier(1));
    assert!(passed.await.is_ok());
    assert!(tail.passed(HERE, 7, Duration::ZERO).await.is_err());
}
