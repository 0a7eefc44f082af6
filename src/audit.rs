//! The audit of a topic: does what stands there keep the promise?
//!
//! Owns the checks, as a fold over the topic's records in read_committed order and over the
//! operations that Postgres holds. Never reads either itself. Its memory grows with the number of
//! operations in the topic (about 200 bytes each).

use std::collections::BTreeMap;
use std::fmt;

/// One record of the topic that carries our headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Header `fencepost-lease`.
    pub lease: String,
    /// Header `fencepost-token`.
    pub token: u64,
    /// Header `fencepost-operation`.
    pub operation: String,
    /// Header `fencepost-batch`.
    pub batch: u64,
}

/// One accepted operation's records in the audited topic, as Postgres has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Lease.
    pub lease: String,
    /// Operation id.
    pub operation: String,
    /// Token that it was accepted under.
    pub token: u64,
    /// Batch that it was in.
    pub batch: u64,
    /// Partition and offset of each of its records in this topic.
    pub places: Vec<(i32, i64)>,
}

/// A broken promise.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// A record of a lower token behind one of a higher token.
    TokenWentDown {
        /// Lease.
        lease: String,
        /// Partition.
        partition: i32,
        /// Offset of the record.
        offset: i64,
        /// Its token.
        token: u64,
        /// Highest token before it.
        after: u64,
    },
    /// One operation in more than one batch.
    Repeated {
        /// Lease.
        lease: String,
        /// Operation id.
        operation: String,
        /// The batches that it is in.
        batches: Vec<u64>,
    },
    /// An acknowledged operation whose records are not all there, or not where they should be.
    Half {
        /// Lease.
        lease: String,
        /// Operation id.
        operation: String,
        /// Records that Postgres has.
        recorded: usize,
        /// Records in the topic.
        found: usize,
    },
    /// An acknowledged operation under another token or batch than Postgres has.
    Misnamed {
        /// Lease.
        lease: String,
        /// Operation id.
        operation: String,
        /// Token and batch that Postgres has.
        recorded: (u64, u64),
    },
    /// A record without our headers: somebody else writes to this topic.
    Foreign {
        /// How many.
        records: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TokenWentDown { lease, partition, offset, token, after } => write!(
                f,
                "lease {lease}: token {token} at {partition}/{offset} stands behind token {after}"
            ),
            Self::Repeated { lease, operation, batches } => {
                write!(f, "lease {lease}: operation {operation} is in batches {batches:?}")
            }
            Self::Half { lease, operation, recorded, found } => write!(
                f,
                "lease {lease}: operation {operation}: {found} of {recorded} records, or moved"
            ),
            Self::Misnamed { lease, operation, recorded: (token, batch) } => write!(
                f,
                "lease {lease}: operation {operation} is not under token {token} in batch {batch}"
            ),
            Self::Foreign { records } => {
                write!(f, "{records} records carry no fencepost headers: another writer")
            }
        }
    }
}

/// What an audit saw and found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Records read.
    pub records: u64,
    /// Leases among them.
    pub leases: usize,
    /// Operations among them.
    pub operations: usize,
    /// Of those, how many Postgres has no row of (purged, or still to be redone).
    pub unrecorded: usize,
    /// Broken promises.
    pub findings: Vec<Finding>,
}

#[derive(Debug, Default)]
struct Operation {
    batches: Vec<u64>,
    tokens: Vec<u64>,
    count: usize,
    /// Order-free sum over the places of its records.
    places: u64,
    recorded: bool,
}

/// The fold.
#[derive(Debug, Default)]
pub struct Audit {
    records: u64,
    foreign: u64,
    /// Highest token so far, by lease and partition.
    tokens: BTreeMap<(String, i32), u64>,
    operations: BTreeMap<(String, String), Operation>,
    findings: Vec<Finding>,
}

impl Audit {
    /// Takes one record, in offset order within its partition.
    pub fn record(&mut self, seen: Seen) {
        self.records = self.records.saturating_add(1);
        let top = self.tokens.entry((seen.lease.clone(), seen.partition)).or_insert(0);
        if seen.token < *top {
            self.findings.push(Finding::TokenWentDown {
                lease: seen.lease.clone(),
                partition: seen.partition,
                offset: seen.offset,
                token: seen.token,
                after: *top,
            });
        }
        *top = seen.token.max(*top);
        let operation = self.operations.entry((seen.lease, seen.operation)).or_default();
        if !operation.batches.contains(&seen.batch) {
            operation.batches.push(seen.batch);
        }
        if !operation.tokens.contains(&seen.token) {
            operation.tokens.push(seen.token);
        }
        operation.count = operation.count.saturating_add(1);
        operation.places = operation.places.wrapping_add(place(seen.partition, seen.offset));
    }

    /// Takes one record that lacks our headers.
    pub fn foreign(&mut self) {
        self.records = self.records.saturating_add(1);
        self.foreign = self.foreign.saturating_add(1);
    }

    /// Takes one operation that Postgres holds as accepted.
    pub fn recorded(&mut self, recorded: Recorded) {
        if recorded.places.is_empty() {
            return;
        }
        let sum = |sum: u64, (p, o): &(i32, i64)| sum.wrapping_add(place(*p, *o));
        let places = recorded.places.iter().fold(0, sum);
        let key = (recorded.lease, recorded.operation);
        let (token, batch) = (recorded.token, recorded.batch);
        let found = self.operations.get_mut(&key).map(|operation| {
            operation.recorded = true;
            if operation.tokens != [token] || !operation.batches.contains(&batch) {
                let (lease, operation) = key.clone();
                let recorded = (token, batch);
                self.findings.push(Finding::Misnamed { lease, operation, recorded });
            }
            (operation.count, operation.places)
        });
        if found != Some((recorded.places.len(), places)) {
            let (lease, operation) = key;
            let found = found.map_or(0, |(count, _)| count);
            let recorded = recorded.places.len();
            self.findings.push(Finding::Half { lease, operation, recorded, found });
        }
    }

    /// The verdict.
    #[must_use]
    pub fn finish(mut self) -> Report {
        for ((lease, operation), seen) in &self.operations {
            if seen.batches.len() > 1 {
                self.findings.push(Finding::Repeated {
                    lease: lease.clone(),
                    operation: operation.clone(),
                    batches: seen.batches.clone(),
                });
            }
        }
        if self.foreign > 0 {
            self.findings.push(Finding::Foreign { records: self.foreign });
        }
        let mut leases: Vec<&String> = self.tokens.keys().map(|(lease, _)| lease).collect();
        leases.dedup();
        Report {
            records: self.records,
            leases: leases.len(),
            operations: self.operations.len(),
            unrecorded: self.operations.values().filter(|o| !o.recorded).count(),
            findings: self.findings,
        }
    }
}

/// Mixes one place, so that a sum over places tells sets apart.
fn place(partition: i32, offset: i64) -> u64 {
    let mixed = u64::from(partition.unsigned_abs()).wrapping_shl(48) ^ offset.unsigned_abs();
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(offset: i64, token: u64, operation: &str, batch: u64) -> Seen {
        let (lease, operation) = ("l".to_owned(), operation.to_owned());
        Seen { partition: 0, offset, lease, token, operation, batch }
    }

    fn recorded(operation: &str, offsets: &[i64]) -> Recorded {
        Recorded {
            lease: "l".to_owned(),
            operation: operation.to_owned(),
            token: 1,
            batch: 1,
            places: offsets.iter().map(|o| (0, *o)).collect(),
        }
    }

    #[test]
    fn a_clean_topic_has_no_findings() {
        let mut audit = Audit::default();
        audit.record(seen(0, 1, "a", 1));
        audit.record(seen(1, 1, "a", 1));
        audit.record(seen(3, 2, "b", 2));
        audit.recorded(recorded("a", &[0, 1]));
        audit.recorded(Recorded { token: 2, batch: 2, ..recorded("b", &[3]) });
        let report = audit.finish();
        assert_eq!(report.findings, Vec::new());
        assert_eq!((report.records, report.operations, report.unrecorded), (3, 2, 0));
    }

    #[test]
    fn a_record_of_a_stale_token_is_found() {
        let mut audit = Audit::default();
        audit.record(seen(0, 2, "a", 1));
        audit.record(seen(1, 1, "b", 2));
        let findings = audit.finish().findings;
        assert!(matches!(findings.as_slice(), [Finding::TokenWentDown { token: 1, after: 2, .. }]));
    }

    #[test]
    fn an_operation_in_two_batches_is_found() {
        let mut audit = Audit::default();
        audit.record(seen(0, 1, "a", 1));
        audit.record(seen(1, 1, "a", 2));
        assert!(matches!(audit.finish().findings.as_slice(), [Finding::Repeated { .. }]));
    }

    #[test]
    fn a_half_a_lost_and_a_displaced_operation_are_found() {
        for offsets in [&[0, 1, 2][..], &[0][..], &[0, 7][..]] {
            let mut audit = Audit::default();
            audit.record(seen(0, 1, "a", 1));
            audit.record(seen(1, 1, "a", 1));
            audit.recorded(recorded("a", offsets));
            let findings = audit.finish().findings;
            assert!(matches!(findings.as_slice(), [Finding::Half { found: 2, .. }]), "{offsets:?}");
        }
        let mut audit = Audit::default();
        audit.recorded(recorded("gone", &[5]));
        assert!(matches!(audit.finish().findings.as_slice(), [Finding::Half { found: 0, .. }]));
    }

    #[test]
    fn an_operation_under_another_token_or_batch_is_found() {
        for (token, batch) in [(2, 1), (1, 2)] {
            let mut audit = Audit::default();
            audit.record(seen(0, token, "a", batch));
            audit.recorded(recorded("a", &[0]));
            let findings = audit.finish().findings;
            assert!(matches!(findings.as_slice(), [Finding::Misnamed { .. }]), "{findings:?}");
        }
    }

    #[test]
    fn another_writer_is_found() {
        let mut audit = Audit::default();
        audit.foreign();
        assert_eq!(audit.finish().findings, vec![Finding::Foreign { records: 1 }]);
    }
}
