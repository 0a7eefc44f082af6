//! Group commit: which waiting operations go into the next batch.
//!
//! Owns the closing rule. A batch holds operations of one token only (MODEL-2 H1), an id at most
//! once (H16), one operation alone where it must go alone (H15), and never so much that its ledger
//! record could pass its bound: the worst case is counted, a run for every record.

use crate::protocol::fence::Credential;
use crate::protocol::ledger::{LEDGER_RECORD_MAX, RECORD_OVERHEAD_MAX, operation_bytes_max};
use crate::protocol::operation::{Fingerprint, OperationId, Record};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Names the caller that waits for an answer.
pub type Ticket = u64;

/// An operation that waits to be sent, or to be decided.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Who waits.
    pub ticket: Ticket,
    /// The operation's own credential.
    pub credential: Credential,
    /// Its id.
    pub id: OperationId,
    /// Of its records.
    pub fingerprint: Fingerprint,
    /// What is to be written.
    pub records: Arc<[Record]>,
    /// When its caller stops waiting, on the clock that `step` is given.
    pub deadline_ms: u64,
    /// It was part of a transaction whose outcome is not known.
    pub in_doubt: bool,
    /// It goes alone: its last batch failed or is in doubt.
    pub alone: bool,
}

impl Waiting {
    /// Most bytes that this operation can take in a ledger record.
    #[must_use]
    pub fn ledger_bytes(&self) -> usize {
        operation_bytes_max(&self.id, self.records.iter().map(|r| r.topic.len()))
    }

    /// Bytes of its records.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.records.iter().fold(0, |sum, r| sum.saturating_add(r.payload_bytes()))
    }
}

/// Where a batch closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchLimits {
    /// Most records.
    pub records: usize,
    /// Most bytes of keys, values and headers.
    pub bytes: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self { records: 5_000, bytes: 4 * 1024 * 1024 }
    }
}

/// How many operations at the front of the queue make the next batch: at least one if any waits.
#[must_use]
pub fn close(queue: &VecDeque<Waiting>, limits: BatchLimits) -> usize {
    let Some(first) = queue.front() else { return 0 };
    let (mut records, mut bytes, mut ledger) = (0usize, 0usize, RECORD_OVERHEAD_MAX);
    let mut ids = BTreeSet::new();
    let mut count = 0usize;
    for op in queue {
        records = records.saturating_add(op.records.len());
        bytes = bytes.saturating_add(op.payload_bytes());
        ledger = ledger.saturating_add(op.ledger_bytes());
        let fits =
            records <= limits.records && bytes <= limits.bytes && ledger <= LEDGER_RECORD_MAX;
        let same = op.credential.token == first.credential.token
            && op.credential.incarnation == first.credential.incarnation
            && op.credential.owner == first.credential.owner;
        let joins = fits && same && !op.alone && !first.alone;
        if !ids.insert(&op.id) || (count > 0 && !joins) {
            break;
        }
        count = count.saturating_add(1);
    }
    count
}

#[cfg(test)]
mod tests;
