//! Properties of the ledger codec and of the partitioner.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let run = ("[a-z.]{1,12}", 0i32..64, 0i64..1 << 40, 1u32..5_000);
    vec(run, 0..4).prop_map(|runs| {
        runs.into_iter()
            .map(|(topic, partition, first_offset, count)| Run {
                topic: topic.into(),
                partition,
                first_offset,
                count,
            })
            .collect()
    })
}

fn batch() -> impl Strategy<Value = Batch> {
    let op = ("[!-~]{1,200}", any::<[u8; 32]>(), runs());
    ((any::<u64>(), "[ -~]{0,30}"), any::<u64>(), any::<u64>(), vec(op, 0..4)).prop_map(
        |((token, owner), incarnation, seq, ops)| Batch {
            token: FencingToken(token),
            owner: Owner::stored(&owner),
            incarnation: Incarnation(incarnation),
            seq: BatchSeq(seq),
            operations: ops
                .into_iter()
                .map(|(id, fingerprint, runs)| Accepted {
                    id: OperationId::parse(&id).unwrap(),
                    fingerprint: Fingerprint(fingerprint),
                    runs,
                })
                .collect(),
        },
    )
}

proptest! {
    #[test]
    fn a_batch_record_reads_back_as_it_was_written(batch in batch()) {
        let record = LedgerRecord::Batch(batch);
        prop_assert_eq!(LedgerRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn a_state_record_keeps_the_whole_last_batch(
        batch in proptest::option::of(batch()), token: u64, nonce: [u8; 16],
    ) {
        let record = LedgerRecord::State(StateRecord {
            token: FencingToken(token),
            owner: Owner::stored("w"),
            incarnation: Incarnation(3),
            nonce: Nonce(nonce),
            last_batch: batch,
        });
        prop_assert_eq!(LedgerRecord::decode(&record.encode()), Ok(record));
    }

    #[test]
    fn a_cut_or_lengthened_record_is_unreadable_and_never_a_panic(batch in batch(), cut: usize) {
        let bytes = LedgerRecord::Batch(batch).encode();
        let cut = cut % bytes.len();
        prop_assert_eq!(LedgerRecord::decode(&bytes[..cut]), Err(Unreadable));
        let mut longer = bytes;
        longer.push(0);
        prop_assert_eq!(LedgerRecord::decode(&longer), Err(Unreadable));
    }

    #[test]
    fn noise_is_unreadable_and_never_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = LedgerRecord::decode(&bytes);
        let _ = decode_runs(&bytes);
    }

    #[test]
    fn no_operation_takes_more_room_than_admission_counted(batch in batch()) {
        let room: usize = batch.operations.iter().map(|op| {
            let placed = crate::protocol::operation::unfold_runs(&op.runs);
            operation_bytes_max(&op.id, placed.iter().map(|p| p.topic.len()))
        }).sum();
        let state = LedgerRecord::State(StateRecord {
            token: FencingToken(1),
            owner: Owner::stored(&"o".repeat(200)),
            incarnation: Incarnation(1),
            nonce: Nonce([0; 16]),
            last_batch: Some(batch),
        });
        prop_assert!(state.encode().len() <= room + RECORD_OVERHEAD_MAX);
    }
}

#[test]
fn a_barrier_carries_a_nonce_and_a_home_and_no_token() {
    let record = LedgerRecord::Barrier { nonce: Nonce([7; 16]), home: InstanceId([9; 16]) };
    assert_eq!(LedgerRecord::decode(&record.encode()), Ok(record));
}

#[test]
fn a_barrier_never_shares_the_key_of_state_and_batch_records() {
    let lease = LeaseName::parse("matter-7").unwrap();
    for key in [LedgerKey::Lease(lease.clone()), LedgerKey::Barrier(lease)] {
        assert_eq!(LedgerKey::decode(&key.encode()), Some(key));
    }
    assert_eq!(LedgerKey::decode(b"a#b#barrier"), None);
}

/// Values of the Java client's `Utils.murmur2`, and of FIELD-CASES F07's partitions.
#[test]
fn murmur2_is_the_java_clients() {
    let partition = |key: &str, n: u32| (murmur2(key.as_bytes()) & 0x7fff_ffff) % n;
    assert_eq!(partition("fd7af248-ce5c-46a5-93d7-1c0c9005b99d", 32), 26);
    assert_eq!(partition("TT0124", 15), 10);
    assert_eq!(partition("354afe16-939a-4ea8-8e17-8bb0840b6886", 10), 4);
    assert_eq!(partition("", 10), 1);
}
