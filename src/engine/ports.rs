//! What the engine needs of its two stores, and how they may fail.
//!
//! Owns the traits that the real adapters and the memory ones implement alike. Never names a table,
//! a topic setting, a driver's error or a status code. Unknown means [`Failure::Indeterminate`]: an
//! adapter promotes to the other kinds only what it can name.

use crate::protocol::fence::{Committed, LeaseRow, Locked, Write};
use crate::protocol::fence::{Credential, FenceRow};
use crate::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Incarnation, InstanceId, LeaseName, Nonce,
};
use crate::protocol::ledger::{LedgerPartition, LedgerRecord};
use crate::protocol::operation::{OperationId, Placed, Record, Stored};
use crate::protocol::reconcile::Knowledge;
use crate::protocol::refusal::RecordRefused;
use crate::protocol::transactional_id::TransactionalId;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A boxed future of a port's answer.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// How a call to a store failed. `stage` says where, for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// It certainly did not happen.
    #[error("{stage}: refused")]
    Determinate {
        /// Where.
        stage: &'static str,
        /// What was refused.
        refused: Refused,
    },
    /// It may have happened, or may still happen.
    #[error("{stage}: {detail}")]
    Indeterminate {
        /// Where.
        stage: &'static str,
        /// For the log only.
        detail: String,
    },
    /// Another producer of the same transactional.id was initialised after ours.
    #[error("{stage}: fenced")]
    Fenced {
        /// Where.
        stage: &'static str,
    },
}

/// What exactly was refused, of a determinate failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// One record of the batch, by its index in the list that was given.
    Record {
        /// Index.
        index: usize,
        /// Why.
        why: RecordRefused,
    },
    /// A right on a resource that is no record's.
    Denied {
        /// The resource and the operation that was denied on it.
        resource: String,
    },
    /// Anything else that is certain not to have happened (could not connect, timed out waiting).
    Unavailable,
}

/// What to read under a fence row's lock.
#[derive(Debug, Clone)]
pub struct LockRequest {
    /// Which lease.
    pub lease: LeaseName,
    /// Lock the lease row as well, after the fence row.
    pub both: bool,
    /// Operation ids to look up in the same transaction, after the lock.
    pub operations: Vec<OperationId>,
}

/// A renew that goes straight to the store: it locks the lease row only.
#[derive(Debug, Clone)]
pub struct RenewRequest {
    /// The credential of the holder.
    pub credential: Credential,
    /// New time to live; the lease's own where absent.
    pub ttl_ms: Option<u64>,
}

/// What a renew found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewed {
    /// The lease now ends at `lease.expires_at`, never earlier than before.
    Extended {
        /// The row after it.
        lease: LeaseRow,
        /// The deciding statement's clock.
        now: DbTime,
    },
    /// Refused by the rows, which were left alone.
    Refused(Box<Locked>),
    /// No such lease.
    Absent,
}

/// Both rows of a lease, unlocked: for people and dashboards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseView {
    /// Name.
    pub name: LeaseName,
    /// Fence row.
    pub fence: FenceRow,
    /// Lease row.
    pub lease: LeaseRow,
    /// URL of the gateway named as home, if it left one.
    pub home_url: Option<String>,
    /// Clock of the reading statement.
    pub now: DbTime,
}

/// Which leases to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeasePage {
    /// Only those whose name begins with this (any text of a lease name's alphabet).
    pub prefix: String,
    /// Only those after this name.
    pub after: Option<LeaseName>,
    /// At most so many.
    pub limit: u16,
}

/// Which part of a lease's history to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPage {
    /// Only what came after the entry with this number.
    pub after: i64,
    /// At most so many.
    pub limit: u16,
}

/// One thing that happened to a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Number; rises, with gaps.
    pub id: i64,
    /// When, by the database's clock.
    pub at: DbTime,
    /// What: install, reopen, release, settle, retire, quarantine, expire or lift.
    pub event: String,
    /// The row's token then.
    pub token: FencingToken,
    /// Its holder.
    pub owner: String,
    /// Incarnation that issued it.
    pub incarnation: Incarnation,
    /// Last batch.
    pub seq: BatchSeq,
    /// The gateway that wrote it.
    pub home: Option<InstanceId>,
    /// More about it.
    pub note: Option<String>,
}

/// One step of removing what is past its retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurgeStep {
    /// Nothing younger than this and the margin of `protocol::fence` is touched.
    pub retention_s: i64,
    /// At most so many rows.
    pub rows: u16,
    /// Where the step before ended: what is older is gone.
    pub from: DbTime,
}

/// What a step removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purged {
    /// How many rows.
    pub rows: u64,
    /// The youngest of them; where it was asked to begin if there was none.
    pub to: DbTime,
}

/// The fence store: tokens, leases, fences, operations. Every method is bounded in time.
pub trait FenceStore: Send + Sync {
    /// Inserts and commits missing rows (token 0, seq 0) of a lease; a second time changes nothing.
    fn ensure<'a>(&'a self, lease: &'a LeaseName) -> Answer<'a, ()>;
    /// Begins a transaction, locks the fence row in a statement of its own, then (if asked) the
    /// lease row, then reads lease row, clock, incarnation and operations. `None`: no such lease.
    fn lock(&self, request: LockRequest) -> Answer<'_, Option<(Box<dyn FenceSession>, Locked)>>;
    /// Renews under the lease row's lock alone.
    fn renew(&self, request: RenewRequest) -> Answer<'_, Renewed>;
    /// Reads both rows without a lock.
    fn inspect<'a>(&'a self, lease: &'a LeaseName) -> Answer<'a, Option<LeaseView>>;
    /// Looks one operation up, with both rows, in one snapshot and without a lock.
    fn find<'a>(
        &'a self,
        lease: &'a LeaseName,
        id: &'a OperationId,
    ) -> Answer<'a, Option<Box<Locked>>>;
    /// Reads the rows of several leases without a lock, by name (in byte order).
    fn list(&self, page: LeasePage) -> Answer<'_, Vec<LeaseView>>;
    /// Reads what happened to a lease, oldest first. `None`: no such lease.
    fn history<'a>(
        &'a self,
        lease: &'a LeaseName,
        page: HistoryPage,
    ) -> Answer<'a, Option<Vec<HistoryEntry>>>;
    /// Removes some operations that are older than the retention, oldest first.
    fn purge(&self, step: PurgeStep) -> Answer<'_, Purged>;
    /// Answers if the store can be written to.
    fn probe(&self) -> Answer<'_, ()>;
}

/// One transaction that holds a fence row's lock. Dropping it ends the session unwritten.
pub trait FenceSession: Send {
    /// Locks the lease row as well and reads it and the clock again.
    fn lock_lease(&mut self) -> Answer<'_, (LeaseRow, DbTime)>;
    /// Draws the next token of the sequence; a token drawn is never drawn again.
    fn draw_token(&mut self) -> Answer<'_, FencingToken>;
    /// Looks operations up.
    fn find(&mut self, ids: Vec<OperationId>) -> Answer<'_, Vec<Stored>>;
    /// A statement that does nothing but prove that the session, and so the lock, still lives.
    fn confirm(&mut self) -> Answer<'_, ()>;
    /// Writes one decision and commits. Only `Ok` is a known success; any error is unknown unless
    /// it is [`Failure::Determinate`].
    fn commit(self: Box<Self>, write: Write) -> Answer<'static, Committed>;
    /// Gives the lock up, unwritten.
    fn abandon(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// A record on its way to Kafka: the caller's, with our headers already in it.
pub type Outgoing = Record;

/// How a transaction's end was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndTxn {
    /// At its first attempt.
    Clean,
    /// Committed, but a repeat of the request may still be under way: this producer is finished.
    Dirty,
}

/// Kafka, as the engine sees it. Every method is bounded by the deadline given or by its own.
pub trait TransactionLog: Send + Sync {
    /// Builds a new producer and initialises it: returns only when the old epoch is decided.
    fn open(
        &self,
        id: &TransactionalId,
        within: Duration,
    ) -> Answer<'_, Box<dyn TransactionalProducer>>;
    /// True once the tail has read this partition to where it stood when the generation began.
    fn is_read(&self, partition: LedgerPartition) -> bool;
    /// Waits until the tail has passed an offset of a partition.
    fn passed(&self, partition: LedgerPartition, offset: i64, within: Duration) -> Answer<'_, ()>;
    /// Asks the tail for a barrier that is about to be written. Asked first, so that the generation
    /// is fixed before anything is sent.
    fn expect(
        &self,
        lease: &LeaseName,
        partition: LedgerPartition,
        nonce: Nonce,
    ) -> Box<dyn BarrierWait>;
    /// What the tail happens to know of a lease; no basis for a decision.
    fn glimpse(&self, lease: &LeaseName, partition: LedgerPartition) -> Knowledge;
    /// Reads one state or batch record of a lease back.
    fn read<'a>(
        &'a self,
        lease: &'a LeaseName,
        partition: LedgerPartition,
        offset: i64,
        within: Duration,
    ) -> Answer<'a, LedgerRecord>;
    /// Partition count of a topic, from a cache; `None` if there is no such topic.
    fn partitions<'a>(&'a self, topic: &'a Arc<str>) -> Answer<'a, Option<i32>>;
    /// Answers if the cluster can be reached and the tail is running.
    fn probe(&self) -> Answer<'_, ()>;
}

/// A barrier that the tail was asked for.
pub trait BarrierWait: Send {
    /// The knowledge of the moment at which the barrier was delivered, complete from the log start
    /// and of one generation; an error if the generation changed or the time is over.
    fn seen(self: Box<Self>, within: Duration) -> Answer<'static, Knowledge>;
}

/// One initialised producer. A transaction begins with its first send.
pub trait TransactionalProducer: Send {
    /// Sends records and waits for every delivery report; placements in the order given.
    fn send(&mut self, records: Vec<Outgoing>, within: Duration) -> Answer<'_, Vec<Placed>>;
    /// Sends one ledger record and waits for its report; returns its offset.
    fn send_ledger(
        &mut self,
        key: Vec<u8>,
        value: Vec<u8>,
        partition: LedgerPartition,
        within: Duration,
    ) -> Answer<'_, i64>;
    /// Commits. An error is unknown unless it is [`Failure::Determinate`].
    fn commit(&mut self, within: Duration) -> Answer<'_, EndTxn>;
    /// Aborts; `Ok` means acknowledged.
    fn abort(&mut self, within: Duration) -> Answer<'_, ()>;
    /// Ends this producer off the async threads; waits a bounded time until it is gone.
    fn discard(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}
