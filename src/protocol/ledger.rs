//! The ledger: which records stand in it, how they are encoded, where a lease's records go.
//!
//! Owns the codec (a version byte first; an unknown one is an error, never skipped), the keys and
//! the partition of a lease. Never reads or writes Kafka.

use crate::protocol::lease::{
    BatchSeq, FencingToken, Incarnation, InstanceId, LeaseName, Nonce, Owner,
};
use crate::protocol::operation::{Accepted, Fingerprint, OperationId, Run};

/// Largest ledger record, in bytes; a batch closes before its record could pass it.
pub const LEDGER_RECORD_MAX: usize = 256 * 1024;
const VERSION: u8 = 1;
const BATCH: u8 = 1;
const STATE: u8 = 2;
const BARRIER: u8 = 3;
const BARRIER_SUFFIX: &str = "#barrier";

/// A partition of the ledger topic; stored in the fence row and never changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LedgerPartition(pub i32);

/// One accepted batch: everything that a redo needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Token that it was accepted under.
    pub token: FencingToken,
    /// Holder of that token.
    pub owner: Owner,
    /// Incarnation of the database that issued the token.
    pub incarnation: Incarnation,
    /// Its number.
    pub seq: BatchSeq,
    /// Its operations in the order in which they were accepted.
    pub operations: Vec<Accepted>,
}

/// What an open leaves in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StateRecord {
    /// Token that was opened.
    pub token: FencingToken,
    /// Its holder.
    pub owner: Owner,
    /// Incarnation of the database that issued it.
    pub incarnation: Incarnation,
    /// Mark of that open.
    pub nonce: Nonce,
    /// The whole last batch, so that compaction of its own record loses nothing.
    pub last_batch: Option<Batch>,
}

/// A ledger value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LedgerRecord {
    /// An accepted batch.
    Batch(Batch),
    /// A committed open.
    State(StateRecord),
    /// A place in the log; carries no token.
    Barrier {
        /// Mark of the open that wrote it.
        nonce: Nonce,
        /// Gateway that wrote it.
        home: InstanceId,
    },
}

/// Which record a key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerKey {
    /// State and batch records.
    Lease(LeaseName),
    /// Barrier records.
    Barrier(LeaseName),
}

impl LedgerKey {
    /// The key's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Lease(lease) => lease.as_str().as_bytes().to_vec(),
            Self::Barrier(lease) => format!("{lease}{BARRIER_SUFFIX}").into_bytes(),
        }
    }

    /// Reads a key; `#` cannot stand in a lease name.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        match text.strip_suffix(BARRIER_SUFFIX) {
            Some(lease) => LeaseName::parse(lease).ok().map(Self::Barrier),
            None => LeaseName::parse(text).ok().map(Self::Lease),
        }
    }
}

/// A ledger value that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unreadable ledger record")]
pub struct Unreadable;

impl LedgerRecord {
    /// The value's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self {
            Self::Batch(batch) => {
                out.push(BATCH);
                put_batch(&mut out, batch);
            }
            Self::State(state) => {
                out.push(STATE);
                put_u64(&mut out, state.token.0);
                put_bytes(&mut out, state.owner.as_str().as_bytes());
                put_u64(&mut out, state.incarnation.0);
                out.extend_from_slice(&state.nonce.0);
                out.push(u8::from(state.last_batch.is_some()));
                if let Some(batch) = &state.last_batch {
                    put_batch(&mut out, batch);
                }
            }
            Self::Barrier { nonce, home } => {
                out.push(BARRIER);
                out.extend_from_slice(&nonce.0);
                out.extend_from_slice(&home.0);
            }
        }
        out
    }

    /// Reads a value, whole: trailing bytes are refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut from = Reader(bytes);
        if from.u8()? != VERSION {
            return Err(Unreadable);
        }
        let record = match from.u8()? {
            BATCH => Self::Batch(from.batch()?),
            STATE => Self::State(StateRecord {
                token: FencingToken(from.u64()?),
                owner: Owner::stored(from.text()?),
                incarnation: Incarnation(from.u64()?),
                nonce: Nonce(from.array()?),
                last_batch: match from.u8()? {
                    0 => None,
                    1 => Some(from.batch()?),
                    _ => return Err(Unreadable),
                },
            }),
            BARRIER => {
                Self::Barrier { nonce: Nonce(from.array()?), home: InstanceId(from.array()?) }
            }
            _ => return Err(Unreadable),
        };
        if from.0.is_empty() { Ok(record) } else { Err(Unreadable) }
    }
}

/// Encodes the runs of one operation, as a database column keeps them.
#[must_use]
pub fn encode_runs(runs: &[Run]) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_runs(&mut out, runs);
    out
}

/// Reads what [`encode_runs`] wrote.
pub fn decode_runs(bytes: &[u8]) -> Result<Vec<Run>, Unreadable> {
    let mut from = Reader(bytes);
    if from.u8()? != VERSION {
        return Err(Unreadable);
    }
    let runs = from.runs()?;
    if from.0.is_empty() { Ok(runs) } else { Err(Unreadable) }
}

/// Most bytes that one operation can take in a batch record: a run for every record.
#[must_use]
pub fn operation_bytes_max(id: &OperationId, topics: impl Iterator<Item = usize>) -> usize {
    let head = id.as_str().len().saturating_add(4 + 32 + 4);
    topics.fold(head, |sum, topic| sum.saturating_add(topic).saturating_add(4 + 4 + 8 + 4))
}

/// Most bytes of a state or batch record around its operations.
pub const RECORD_OVERHEAD_MAX: usize = 1_024;

/// Where the records of a lease go: murmur2 as in Kafka's Java client, modulo the stored count.
#[must_use]
pub fn ledger_partition(lease: &LeaseName, partitions: i32) -> LedgerPartition {
    let positive = murmur2(lease.as_str().as_bytes()) & 0x7fff_ffff;
    let count = u32::try_from(partitions).unwrap_or(1).max(1);
    LedgerPartition(i32::try_from(positive.checked_rem(count).unwrap_or(0)).unwrap_or(0))
}

/// Murmur2 as Kafka's Java client computes it (`org.apache.kafka.common.utils.Utils.murmur2`).
#[must_use]
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut h = 0x9747_b28c_u32 ^ len;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        let tail = rest.iter().rev().fold(0u32, |acc, b| (acc << 8) | u32::from(*b));
        h = (h ^ tail).wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

fn put_u32(out: &mut Vec<u8>, n: usize) {
    out.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes());
}

fn put_u64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(&n.to_be_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_batch(out: &mut Vec<u8>, batch: &Batch) {
    put_u64(out, batch.token.0);
    put_bytes(out, batch.owner.as_str().as_bytes());
    put_u64(out, batch.incarnation.0);
    put_u64(out, batch.seq.0);
    put_u32(out, batch.operations.len());
    for op in &batch.operations {
        put_bytes(out, op.id.as_str().as_bytes());
        out.extend_from_slice(&op.fingerprint.0);
        put_runs(out, &op.runs);
    }
}

fn put_runs(out: &mut Vec<u8>, runs: &[Run]) {
    put_u32(out, runs.len());
    for run in runs {
        put_bytes(out, run.topic.as_bytes());
        out.extend_from_slice(&run.partition.to_be_bytes());
        out.extend_from_slice(&run.first_offset.to_be_bytes());
        out.extend_from_slice(&run.count.to_be_bytes());
    }
}

/// Takes values off the front of a slice; nothing here can run past its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Unreadable> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Unreadable)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.take(N)?.try_into().map_err(|_| Unreadable)
    }

    fn u8(&mut self) -> Result<u8, Unreadable> {
        self.array().map(u8::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_be_bytes)
    }

    fn len(&mut self) -> Result<usize, Unreadable> {
        let n = self.array().map(u32::from_be_bytes)?;
        usize::try_from(n).map_err(|_| Unreadable)
    }

    fn text(&mut self) -> Result<&'a str, Unreadable> {
        let n = self.len()?;
        std::str::from_utf8(self.take(n)?).map_err(|_| Unreadable)
    }

    fn runs(&mut self) -> Result<Vec<Run>, Unreadable> {
        let mut runs = Vec::new();
        for _ in 0..self.len()? {
            runs.push(Run {
                topic: self.text()?.into(),
                partition: i32::from_be_bytes(self.array()?),
                first_offset: i64::from_be_bytes(self.array()?),
                count: u32::from_be_bytes(self.array()?),
            });
        }
        Ok(runs)
    }

    fn batch(&mut self) -> Result<Batch, Unreadable> {
        let token = FencingToken(self.u64()?);
        let owner = Owner::stored(self.text()?);
        let incarnation = Incarnation(self.u64()?);
        let seq = BatchSeq(self.u64()?);
        let mut operations = Vec::new();
        for _ in 0..self.len()? {
            operations.push(Accepted {
                id: OperationId::parse(self.text()?).ok_or(Unreadable)?,
                fingerprint: Fingerprint(self.array()?),
                runs: self.runs()?,
            });
        }
        Ok(Batch { token, owner, incarnation, seq, operations })
    }
}

#[cfg(test)]
mod tests;
