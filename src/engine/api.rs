//! What http asks of the engine and what it is answered: plain values.
//!
//! Owns the shapes of requests and answers. A refusal is a value, never an error.

use crate::protocol::fence::Credential;
use crate::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Identity, Incarnation, LeaseName, Owner, RequestId,
};
use crate::protocol::operation::{OperationId, Placed, Record, Stored, unfold_runs};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A request for a lease.
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    /// Which lease.
    pub lease: LeaseName,
    /// Configured identity of the caller.
    pub identity: Identity,
    /// Name that the caller gives itself.
    pub owner: Owner,
    /// Time to live, within the configured bounds.
    pub ttl_ms: u64,
    /// How long to wait for a held lease.
    pub wait: Duration,
    /// The caller's id for this acquire.
    pub request_id: Option<RequestId>,
    /// End the caller's own unexpired lease first.
    pub replace: bool,
}

/// A lease as its holder is told of it. All numbers are of the deciding statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Which lease.
    pub lease: LeaseName,
    /// Holder.
    pub owner: Owner,
    /// Token.
    pub token: FencingToken,
    /// Incarnation that issued it.
    pub incarnation: Incarnation,
    /// Time to live that was asked for.
    pub ttl_ms: u64,
    /// First instant at which it is over.
    pub expires_at: DbTime,
    /// The database's clock when that was decided.
    pub now: DbTime,
}

/// Something of the caller's (its share of a bounded memory) that is kept until an operation is
/// answered, whether or not anybody still waits for that: then it is dropped.
#[derive(Debug, Clone, Default)]
pub struct Kept(
    #[expect(dead_code, reason = "its drop is its use")] Option<Arc<dyn Any + Send + Sync>>,
);

impl Kept {
    /// Keeps this.
    pub fn new(it: impl Any + Send + Sync) -> Self {
        Self(Some(Arc::new(it)))
    }
}

/// One POST of records.
#[derive(Debug, Clone)]
pub struct Post {
    /// The caller's credential, signature verified.
    pub credential: Credential,
    /// The `Idempotency-Key`.
    pub id: OperationId,
    /// Decoded and validated records, without our headers.
    pub records: Vec<Record>,
    /// What its records take.
    pub kept: Kept,
}

/// A POST that is in the topic, once and whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Produced {
    /// Token that it was accepted under (an older one than the caller's on some replays).
    pub token: FencingToken,
    /// Its operation id.
    pub id: OperationId,
    /// Its batch.
    pub seq: BatchSeq,
    /// It had been accepted before this request.
    pub replayed: bool,
    /// Where each record stands, in request order.
    pub offsets: Vec<Placed>,
}

impl Produced {
    /// What is told of an operation that is stored.
    #[must_use]
    pub fn of(stored: Stored, replayed: bool) -> Self {
        let offsets = unfold_runs(&stored.accepted.runs);
        let (token, id, seq) = (stored.token, stored.accepted.id, stored.seq);
        Self { token, id, seq, replayed, offsets }
    }
}

/// A question for what became of one operation.
#[derive(Debug, Clone)]
pub struct OperationQuery {
    /// Its lease.
    pub lease: LeaseName,
    /// Its id.
    pub id: OperationId,
    /// The caller's credential; an operator has none.
    pub credential: Option<Credential>,
    /// Decide it, if the lease is over.
    pub settle: bool,
}

/// What became of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationState {
    /// It is in the topics, once and whole.
    Committed(Produced),
    /// It may be, or may still come to be.
    Unknown,
    /// Nothing of it is there, and nothing of it comes under a token up to this one.
    Absent {
        /// The highest of them.
        up_to: FencingToken,
    },
}

/// Readiness of one dependency, probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// Postgres answered a probe.
    pub postgres: bool,
    /// Kafka answered a probe.
    pub kafka: bool,
    /// The tail has read every ledger partition to where it stood at the start.
    pub ledger: bool,
    /// Not stopping.
    pub accepting: bool,
}

impl Readiness {
    /// All of it.
    #[must_use]
    pub fn is_ready(self) -> bool {
        self.postgres && self.kafka && self.ledger && self.accepting
    }
}
