//! Who enters a batch, and where it closes.

use super::*;
use crate::protocol::lease::{BatchSeq, FencingToken, Incarnation, LeaseName, Nonce, Owner};
use crate::protocol::ledger::{Batch, LedgerRecord, StateRecord};
use crate::protocol::operation::{Accepted, Run};
use proptest::prelude::*;

fn waiting(id: &str, token: u64, records: Vec<Record>) -> Waiting {
    Waiting {
        ticket: 0,
        credential: Credential {
            lease: LeaseName::parse("l").unwrap(),
            owner: Owner::parse("w").unwrap(),
            token: FencingToken(token),
            incarnation: Incarnation(1),
            expires_s: 0,
            issued_s: 0,
        },
        id: OperationId::parse(id).unwrap(),
        fingerprint: Fingerprint([0; 32]),
        records: records.into(),
        deadline_ms: 0,
        in_doubt: false,
        alone: false,
    }
}

fn record(topic: &str, bytes: usize) -> Record {
    Record {
        topic: topic.into(),
        partition: None,
        key: None,
        value: Some(vec![b'x'; bytes].into()),
        headers: Vec::new(),
        timestamp_ms: None,
    }
}

fn op(id: &str, token: u64) -> Waiting {
    waiting(id, token, vec![record("t", 1)])
}

fn closes_at(queue: &[Waiting]) -> usize {
    close(&queue.iter().cloned().collect(), BatchLimits::default())
}

#[test]
fn nothing_waits_nothing_closes_and_one_always_goes() {
    assert_eq!(closes_at(&[]), 0);
    let limits = BatchLimits { records: 1, bytes: 1 };
    let big = waiting("a", 1, vec![record("t", 100), record("t", 100)]);
    assert_eq!(close(&VecDeque::from([big.clone(), big]), limits), 1);
}

/// MODEL-2 H1.
#[test]
fn a_batch_holds_operations_of_one_token_only() {
    assert_eq!(closes_at(&[op("a", 1), op("b", 1), op("c", 2), op("d", 1)]), 2);
    let mut other = op("b", 1);
    other.credential.incarnation = Incarnation(2);
    assert_eq!(closes_at(&[op("a", 1), other]), 1);
    let mut stranger = op("b", 1);
    stranger.credential.owner = Owner::parse("x").unwrap();
    assert_eq!(closes_at(&[op("a", 1), stranger]), 1);
}

/// MODEL-2 H16.
#[test]
fn an_id_stands_in_a_batch_once_and_its_repeat_waits() {
    assert_eq!(closes_at(&[op("a", 1), op("b", 1), op("a", 1), op("c", 1)]), 2);
}

/// MODEL-2 H15.
#[test]
fn an_operation_that_must_go_alone_goes_alone_at_either_end() {
    let alone = |id| Waiting { alone: true, ..op(id, 1) };
    assert_eq!(closes_at(&[alone("a"), op("b", 1)]), 1);
    assert_eq!(closes_at(&[op("a", 1), alone("b"), op("c", 1)]), 1);
    assert_eq!(closes_at(&[alone("a"), alone("b")]), 1);
}

#[test]
fn a_batch_closes_before_its_records_or_bytes_could_pass_their_bounds() {
    let limits = BatchLimits { records: 3, bytes: 10 };
    let of = |sizes: &[usize]| -> VecDeque<Waiting> {
        let ids = ["a", "b", "c", "d", "e"];
        let one = |(id, n): (&&str, &usize)| waiting(id, 1, vec![record("t", *n)]);
        ids.iter().zip(sizes).map(one).collect()
    };
    assert_eq!(close(&of(&[1, 1, 1]), limits), 3);
    assert_eq!(close(&of(&[1, 1, 1, 1]), limits), 3);
    assert_eq!(close(&of(&[5, 5]), limits), 2);
    assert_eq!(close(&of(&[5, 6]), limits), 1);
}

/// The worst that a batch can become: no two records next to each other.
fn worst_record(operations: &[Waiting]) -> Vec<u8> {
    let long = Owner::parse(&"o".repeat(200)).unwrap();
    let run = |r: &Record| Run {
        topic: Arc::clone(&r.topic),
        partition: i32::MAX,
        first_offset: i64::MAX,
        count: 1,
    };
    let operations = operations
        .iter()
        .map(|w| Accepted {
            id: w.id.clone(),
            fingerprint: w.fingerprint,
            runs: w.records.iter().map(run).collect(),
        })
        .collect();
    let (token, incarnation) = (FencingToken(u64::MAX), Incarnation(u64::MAX));
    let last =
        Batch { token, owner: long.clone(), incarnation, seq: BatchSeq(u64::MAX), operations };
    let nonce = Nonce([255; 16]);
    let state = StateRecord { token, owner: long, incarnation, nonce, last_batch: Some(last) };
    LedgerRecord::State(state).encode()
}

fn any_operation() -> impl Strategy<Value = Waiting> {
    let shape = (prop_oneof![Just(1usize), 1usize..40, 300usize..900], 1usize..249, 0usize..30);
    let flags = (prop::bool::weighted(0.03), 1u64..3, prop::bool::weighted(0.9));
    ("[a-z]{1,200}", shape, flags).prop_map(|(id, (count, topic, bytes), (alone, token, one))| {
        let records = vec![record(&"t".repeat(topic), bytes); count];
        Waiting { alone, ..waiting(&id, if one { 1 } else { token }, records) }
    })
}

/// Admission refuses an operation that alone would pass the bound, before it comes to a batch.
fn admitted(w: &Waiting) -> bool {
    RECORD_OVERHEAD_MAX + w.ledger_bytes() <= LEDGER_RECORD_MAX
}

proptest! {
    #[test]
    fn no_batch_passes_any_bound_or_breaks_any_rule(
        operations in prop::collection::vec(any_operation(), 0..30),
        records in 1usize..2_000, bytes in 1usize..20_000,
    ) {
        let queue: VecDeque<Waiting> = operations.into_iter().filter(admitted).collect();
        let limits = BatchLimits { records, bytes };
        let count = close(&queue, limits);
        prop_assert_eq!(count == 0, queue.is_empty());
        prop_assert!(count <= queue.len());
        let batch: Vec<Waiting> = queue.iter().take(count).cloned().collect();
        prop_assert!(worst_record(&batch).len() <= LEDGER_RECORD_MAX);
        if count > 1 {
            prop_assert!(batch.iter().map(|w| w.records.len()).sum::<usize>() <= records);
            prop_assert!(batch.iter().map(Waiting::payload_bytes).sum::<usize>() <= bytes);
            prop_assert!(batch.iter().all(|w| !w.alone));
        }
        let tokens: BTreeSet<_> = batch.iter().map(|w| w.credential.token).collect();
        let ids: BTreeSet<_> = batch.iter().map(|w| &w.id).collect();
        prop_assert!(tokens.len() <= 1);
        prop_assert_eq!(ids.len(), count);
    }

    /// A batch closes as late as the rules let it: one more would have broken one.
    #[test]
    fn a_batch_never_closes_without_a_reason(
        operations in prop::collection::vec(any_operation(), 0..30),
    ) {
        let queue: VecDeque<Waiting> = operations.into_iter().filter(admitted).collect();
        let limits = BatchLimits::default();
        let count = close(&queue, limits);
        if let (Some(next), Some(first)) = (queue.get(count), queue.front()) {
            let more: Vec<&Waiting> = queue.iter().take(count + 1).collect();
            let ledger: usize = more.iter().map(|w| w.ledger_bytes()).sum();
            let full = RECORD_OVERHEAD_MAX + ledger > LEDGER_RECORD_MAX
                || more.iter().map(|w| w.records.len()).sum::<usize>() > limits.records
                || more.iter().map(|w| w.payload_bytes()).sum::<usize>() > limits.bytes;
            let again = queue.iter().take(count).any(|w| w.id == next.id);
            let other = next.credential.token != first.credential.token;
            prop_assert!(full || again || other || next.alone || first.alone);
        }
    }
}
