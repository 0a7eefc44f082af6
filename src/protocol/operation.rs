//! Operations: the durable id, what a POST holds, its fingerprint, where its records came to stand.
//!
//! Owns the canonical encoding below a fingerprint and the runs that offsets are kept as. Never
//! parses JSON (that is http's) and never sends anything.

use crate::protocol::lease::{BatchSeq, FencingToken, Incarnation, text_newtype};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;

/// Longest operation id, in bytes.
pub const OPERATION_ID_MAX: usize = 200;
/// Most records in one operation.
pub const RECORDS_MAX: usize = 5_000;

text_newtype!(
    /// Durable id of one POST; its scope is the lease, not the token.
    OperationId
);

impl OperationId {
    /// Checks and takes an id: 1 to 200 visible ASCII characters.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let sized = !text.is_empty() && text.len() <= OPERATION_ID_MAX;
        (sized && text.bytes().all(|b| b.is_ascii_graphic())).then(|| Self(text.into()))
    }

    /// The time inside an id that is a UUIDv7 in its usual text form (RFC 9562, 5.7), in
    /// milliseconds since 1970. Any other id is opaque and has none.
    #[must_use]
    pub fn uuid_v7_ms(&self) -> Option<i64> {
        let text = self.as_str().as_bytes();
        if text.len() != UUID_BYTES {
            return None;
        }
        let mut ms = 0i64;
        for (index, byte) in text.iter().enumerate() {
            if UUID_HYPHENS.contains(&index) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = char::from(*byte).to_digit(16)?;
            match index {
                UUID_VERSION if digit != 7 => return None,
                UUID_VARIANT if digit & 0b1100 != 0b1000 => return None,
                0..UUID_VERSION => ms = (ms << 4) | i64::from(digit),
                _ => {}
            }
        }
        Some(ms)
    }
}

/// Length of a UUID as text, and where in it its hyphens, its version and its variant stand.
const UUID_BYTES: usize = 36;
const UUID_HYPHENS: [usize; 4] = [8, 13, 18, 23];
const UUID_VERSION: usize = 14;
const UUID_VARIANT: usize = 19;

/// Name of a Kafka topic, as the caller gave it.
pub type TopicName = Arc<str>;
/// Bytes of a key, a value or a header.
pub type Payload = Arc<[u8]>;

/// One record of a POST, decoded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// Where it goes.
    pub topic: TopicName,
    /// The partition the caller asked for.
    pub partition: Option<i32>,
    /// The key; absent and null are the same to Kafka.
    pub key: Option<Payload>,
    /// The value; `None` is a tombstone.
    pub value: Option<Payload>,
    /// Headers in the caller's order, repeats kept.
    pub headers: Vec<(Arc<str>, Option<Payload>)>,
    /// Milliseconds since 1970, if the caller gave one.
    pub timestamp_ms: Option<i64>,
}

impl Record {
    /// Bytes of key, value and headers.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        let len = |p: &Option<Payload>| p.as_ref().map_or(0, |b| b.len());
        self.headers
            .iter()
            .map(|(name, value)| name.len().saturating_add(len(value)))
            .fold(len(&self.key).saturating_add(len(&self.value)), usize::saturating_add)
    }
}

/// SHA-256 of the canonical encoding of an operation's decoded records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl Fingerprint {
    /// Every part is length-prefixed and every optional part says whether it was given, so that two
    /// different lists of records never have one encoding.
    #[must_use]
    pub fn of(records: &[Record]) -> Self {
        let mut hash = Sha256::new();
        hash.update([1u8]);
        put_len(&mut hash, records.len());
        for record in records {
            put(&mut hash, Some(record.topic.as_bytes()));
            put(&mut hash, record.partition.map(i32::to_be_bytes).as_ref().map(|b| &b[..]));
            put(&mut hash, record.key.as_deref());
            put(&mut hash, record.value.as_deref());
            put(&mut hash, record.timestamp_ms.map(i64::to_be_bytes).as_ref().map(|b| &b[..]));
            put_len(&mut hash, record.headers.len());
            for (name, value) in &record.headers {
                put(&mut hash, Some(name.as_bytes()));
                put(&mut hash, value.as_deref());
            }
        }
        Self(hash.finalize().into())
    }
}

fn put_len(hash: &mut Sha256, len: usize) {
    hash.update(u64::try_from(len).unwrap_or(u64::MAX).to_be_bytes());
}

fn put(hash: &mut Sha256, part: Option<&[u8]>) {
    match part {
        None => hash.update([0u8]),
        Some(bytes) => {
            hash.update([1u8]);
            put_len(hash, bytes.len());
            hash.update(bytes);
        }
    }
}

/// Records of one operation that stand one after the other in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Run {
    /// Topic of the run.
    pub topic: TopicName,
    /// Partition of the run.
    pub partition: i32,
    /// Offset of its first record.
    pub first_offset: i64,
    /// How many records, each at the next offset.
    pub count: u32,
}

/// Where one record came to stand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Topic of the record.
    pub topic: TopicName,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
}

/// Folds placements, in record order, into runs.
#[must_use]
pub fn fold_runs(placed: &[Placed]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for p in placed {
        if let Some(run) = runs.last_mut() {
            let next = run.first_offset.saturating_add(i64::from(run.count));
            if run.topic == p.topic && run.partition == p.partition && next == p.offset {
                run.count = run.count.saturating_add(1);
                continue;
            }
        }
        runs.push(Run {
            topic: Arc::clone(&p.topic),
            partition: p.partition,
            first_offset: p.offset,
            count: 1,
        });
    }
    runs
}

/// Unfolds runs into one placement a record, in record order.
#[must_use]
pub fn unfold_runs(runs: &[Run]) -> Vec<Placed> {
    let one = |run: &Run, k: u32| Placed {
        topic: Arc::clone(&run.topic),
        partition: run.partition,
        offset: run.first_offset.saturating_add(i64::from(k)),
    };
    runs.iter().flat_map(|run| (0..run.count).map(move |k| one(run, k))).collect()
}

/// What is kept of an accepted operation: enough to answer a repeat with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Accepted {
    /// Its id.
    pub id: OperationId,
    /// What it held.
    pub fingerprint: Fingerprint,
    /// Where its records stand, in record order.
    pub runs: Vec<Run>,
}

/// An accepted operation as a store gives it back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The operation.
    pub accepted: Accepted,
    /// Token it was accepted under.
    pub token: FencingToken,
    /// Incarnation of that token.
    pub incarnation: Incarnation,
    /// Batch it was part of.
    pub seq: BatchSeq,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(topic: &str, key: Option<&[u8]>, value: Option<&[u8]>) -> Record {
        Record {
            topic: topic.into(),
            partition: None,
            key: key.map(Into::into),
            value: value.map(Into::into),
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    #[test]
    fn null_empty_and_given_never_share_a_fingerprint() {
        let of = |r: Record| Fingerprint::of(&[r]);
        let mut seen = vec![
            of(record("t", None, None)),
            of(record("t", None, Some(b""))),
            of(record("t", Some(b""), None)),
            of(record("t", Some(b"a"), Some(b"b"))),
            of(record("ta", None, Some(b"b"))),
            of(Record { partition: Some(0), ..record("t", None, None) }),
            of(Record { timestamp_ms: Some(1), ..record("t", None, None) }),
            of(Record { headers: vec![("h".into(), None)], ..record("t", None, None) }),
            of(Record { headers: vec![("h".into(), Some([].into()))], ..record("t", None, None) }),
            Fingerprint::of(&[record("t", None, None), record("t", None, None)]),
            Fingerprint::of(&[]),
        ];
        let all = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all);
    }

    #[test]
    fn an_operation_id_is_visible_ascii_and_bounded() {
        let long = "x".repeat(OPERATION_ID_MAX + 1);
        for bad in ["", "a b", "a\n", "é", long.as_str()] {
            assert_eq!(OperationId::parse(bad), None, "{bad:?}");
        }
        assert!(OperationId::parse("doc-1/7").is_some());
    }

    #[test]
    fn only_a_uuid_of_version_7_has_a_time() {
        let ms = |text: &str| OperationId::parse(text).unwrap().uuid_v7_ms();
        // The example of RFC 9562, A.6.
        assert_eq!(ms("017F22E2-79B0-7CC3-98C4-DC0C0C07398F"), Some(0x017F_22E2_79B0));
        assert_eq!(ms("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), Some(0x017F_22E2_79B0));
        for opaque in [
            "017f22e279b07cc398c4dc0c0c07398f",
            "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-c8c4-dc0c0c07398f",
            "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
            "017f22e2_79b0-7cc3-98c4-dc0c0c07398f",
            "order-4711",
        ] {
            assert_eq!(ms(opaque), None, "{opaque}");
        }
    }

    proptest! {
        #[test]
        fn runs_keep_every_offset_in_record_order(
            steps in proptest::collection::vec((0i32..3, 0i64..3), 0..40),
        ) {
            let placed: Vec<Placed> = steps.iter()
                .map(|(partition, offset)| Placed {
                    topic: "t".into(), partition: *partition, offset: *offset,
                })
                .collect();
            prop_assert_eq!(unfold_runs(&fold_runs(&placed)), placed);
        }
    }
}
