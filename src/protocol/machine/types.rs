//! Events, effects and phases of the lease machine: data only.

use crate::protocol::batch::{Ticket, Waiting};
use crate::protocol::fence::{Committed, Credential, LeaseRow, Locked, Write};
use crate::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Identity, Incarnation, Nonce, Owner, RequestId,
};
use crate::protocol::ledger::{Batch, StateRecord};
use crate::protocol::operation::{Accepted, OperationId, Placed, Record, Stored};
use crate::protocol::reconcile::{Knowledge, OpenKind};
use crate::protocol::refusal::{RecordRefused, Refusal};
use std::sync::Arc;

/// An acquire, with what its attempts so far have left.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Acquire {
    /// Who waits.
    pub ticket: Ticket,
    /// Configured identity.
    pub identity: Identity,
    /// Name that the caller gives itself.
    pub owner: Owner,
    /// Time to live.
    pub ttl_ms: u64,
    /// The caller's id for this acquire.
    pub request_id: Option<RequestId>,
    /// End the caller's own unexpired lease first.
    pub replace: bool,
    /// Token that an attempt with an unknown COMMIT drew.
    pub drew: Option<FencingToken>,
    /// Attempts with an unknown COMMIT.
    pub restarts: u8,
}

/// A release.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Release {
    /// Who waits.
    pub ticket: Ticket,
    /// The holder's credential.
    pub credential: Credential,
    /// Attempts with an unknown COMMIT.
    pub restarts: u8,
}

/// What an open is made for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Job {
    /// A caller wants the lease.
    Acquire(Acquire),
    /// Operations wait.
    Produce,
    /// A caller gives the lease back.
    Release(Release),
    /// A caller wants to know what became of an expired lease's operations.
    Settle(Ticket),
}

/// How a call to Kafka failed, as far as the protocol cares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KafkaFailure {
    /// Not known whether it happened.
    Doubt,
    /// Kafka was not reached: certainly nothing was sent.
    Unreached,
    /// The epoch is not ours any more.
    Fenced,
    /// One record, by its index among those sent, was certainly refused.
    Record {
        /// Index.
        index: usize,
        /// Why.
        why: RecordRefused,
    },
    /// A right was certainly refused.
    Denied {
        /// The resource and the operation that was denied on it.
        resource: String,
    },
}

/// How a COMMIT ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitOutcome {
    /// Known to have succeeded, without a warning.
    Known(Committed),
    /// Certainly nothing was written.
    Failed,
    /// Not known.
    Unknown,
}

/// What the locked session gave.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LockOutcome {
    /// The store could not.
    Failed,
    /// No such lease.
    Absent,
    /// The rows, locked.
    Locked(Box<Locked>),
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// An operation arrived; does nothing by itself.
    Queue(Waiting),
    /// Work on what waits.
    Go,
    /// A caller wants the lease.
    Acquire(Acquire),
    /// A caller gives the lease back.
    Release(Release),
    /// A caller wants an expired lease's operations decided.
    Settle(Ticket),
    /// Nothing came for a while.
    Idle,
    /// The tail is (not) where an open may begin.
    TailReady(bool),
    /// The rows exist (or that could not be made sure of).
    Ensured(bool),
    /// Outcome of [`Effect::Lock`].
    Locked {
        /// The rows.
        outcome: LockOutcome,
        /// A nonce nobody has used.
        fresh: Nonce,
        /// Highest token that the tail happens to have seen.
        glimpse: FencingToken,
    },
    /// Outcome of [`Effect::LockLease`].
    LeaseLocked(Option<(LeaseRow, DbTime)>),
    /// Outcome of [`Effect::DrawToken`].
    Drawn(Option<FencingToken>),
    /// Outcome of [`Effect::OpenProducer`].
    Opened(Result<(), KafkaFailure>),
    /// Outcome of [`Effect::WriteBarrier`]: its offset, and whether its end was clean.
    BarrierWritten(Result<(i64, bool), KafkaFailure>),
    /// Outcome of [`Effect::AwaitBarrier`].
    BarrierSeen(Option<Knowledge>),
    /// Outcome of [`Effect::ReadBatch`].
    BatchRead(Option<Batch>),
    /// Outcome of [`Effect::FindOperations`].
    Found(Option<Vec<Stored>>),
    /// Outcome of [`Effect::WriteState`]: whether its end was clean.
    StateWritten(Result<bool, KafkaFailure>),
    /// Outcome of [`Effect::Send`].
    Sent(Result<Vec<Placed>, KafkaFailure>),
    /// Outcome of [`Effect::SendLedger`].
    LedgerSent(Result<(), KafkaFailure>),
    /// Outcome of [`Effect::EndTxn`]: whether it was clean.
    Ended(Result<bool, KafkaFailure>),
    /// Outcome of [`Effect::Abort`]: acknowledged or not.
    Aborted(bool),
    /// Outcome of [`Effect::Confirm`]: the session, and so the lock, still lives.
    Confirmed(bool),
    /// Outcome of [`Effect::Commit`].
    Committed(CommitOutcome),
}

/// What to do. Those after `Commit` are done at once and give no event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// See that the tail has read the partition, and has passed an offset if one is given.
    AwaitTail {
        /// Offset of a barrier that came too late.
        past: Option<i64>,
    },
    /// Insert and commit missing rows.
    Ensure,
    /// Begin a session and lock.
    Lock {
        /// The lease row as well.
        both: bool,
        /// Operations to look up.
        operations: Vec<OperationId>,
    },
    /// Lock the lease row in the same session and read it and the clock again.
    LockLease,
    /// Draw a token in the same session.
    DrawToken,
    /// Build a producer and initialise it.
    OpenProducer,
    /// Ask the tail for a barrier, write and commit it.
    WriteBarrier {
        /// Mark of this open.
        nonce: Nonce,
    },
    /// Wait until the tail shows it.
    AwaitBarrier,
    /// Read the last batch back.
    ReadBatch {
        /// Where it stands.
        offset: i64,
    },
    /// Look operations up in the same session.
    FindOperations(Vec<OperationId>),
    /// Write and commit the state record.
    WriteState(StateRecord),
    /// Begin a transaction and send the operations' records.
    Send {
        /// Batch that they are in.
        seq: BatchSeq,
        /// Their token.
        token: FencingToken,
        /// The operations.
        operations: Vec<(OperationId, Arc<[Record]>)>,
    },
    /// Send the batch record.
    SendLedger(Batch),
    /// Commit the transaction.
    EndTxn,
    /// Abort the transaction.
    Abort,
    /// Prove that the session lives.
    Confirm,
    /// Write one decision and commit the session.
    Commit(Write),
    /// Answer a caller.
    Reply(Ticket, Reply),
    /// Drop the producer, off the async threads.
    DropProducer,
    /// Give the lock up, unwritten.
    EndSession,
    /// Tell the operator.
    Alert(Alert),
}

/// What a caller is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The lease is the caller's.
    Granted {
        /// Token.
        token: FencingToken,
        /// Incarnation that issued it.
        incarnation: Incarnation,
        /// Time to live.
        ttl_ms: u64,
        /// Expiry.
        expires_at: DbTime,
        /// Clock of the deciding statement.
        now: DbTime,
    },
    /// The lease is free.
    Released,
    /// What the lease's operations came to is in the rows now.
    Settled,
    /// The operation is in the topic.
    Produced {
        /// As it is stored.
        stored: Stored,
        /// Accepted before this request.
        replayed: bool,
    },
    /// No.
    Refused(Refusal),
}

/// What an operator should know of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Alert {
    /// Somebody else initialises this lease's transactional.id.
    FencedRepeatedly {
        /// Times within a minute.
        count: u32,
    },
    /// The sequence gives tokens that are not above the row's.
    SequenceBehind,
    /// A valid credential carries a token above the row's.
    CredentialAhead {
        /// The credential's.
        token: FencingToken,
        /// The row's.
        current: FencingToken,
    },
    /// A lease was quarantined.
    Quarantined {
        /// Why.
        reason: String,
    },
    /// A token that a failed takeover burnt was retired.
    Retired,
    /// An outcome came that nobody waited for: a defect.
    Unexpected,
}

/// State of the machine, for logs and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateName {
    /// No producer; the next use opens.
    Closed,
    /// An open is under way.
    Opening,
    /// Open and at rest.
    Active,
    /// A batch or a release is under way.
    Committing,
    /// Operations wait to be decided by an open.
    InDoubt,
    /// Fenced by somebody who is no gateway of ours.
    Fenced,
    /// An operator decides.
    Quarantined,
}

/// Where the machine stands between two events.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Idle,
    Open(OpenStage, Box<Open>),
    Turn(TurnStage, Box<Turn>),
    Release(Release),
    Releasing(Release),
}

/// Which outcome an open waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum OpenStage {
    Tail,
    Ensuring,
    Locking,
    Rereading,
    Drawing,
    Initialising,
    Barrier,
    Seeing,
    Reading,
    Finding,
    State,
    Committing(Meaning),
}

/// What an open's COMMIT means.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Meaning {
    Opened,
    Retired,
    Released,
    Settled,
    Quarantined(String),
    Expired,
    Failed(Refusal),
}

/// An open under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Open {
    pub(super) job: Job,
    pub(super) kind: OpenKind,
    /// Rows under the lock.
    pub(super) locked: Option<Box<Locked>>,
    /// Token to be opened.
    pub(super) token: FencingToken,
    pub(super) nonce: Nonce,
    /// Highest token that the tail happened to have seen.
    pub(super) glimpse: FencingToken,
    /// The lease row is locked, too.
    pub(super) lease_locked: bool,
    pub(super) draws: u8,
    /// How many waiting operations its lock looks up; one that came later was not.
    pub(super) asked: usize,
    pub(super) barrier: Option<i64>,
    pub(super) known: Knowledge,
    /// The last batch, kept from the decision on.
    pub(super) batch: Option<Batch>,
    pub(super) redo: bool,
    pub(super) retire: bool,
    /// The state record's EndTxn may be repeated: install, but keep no producer.
    pub(super) dirty: bool,
}

/// Which outcome a turn waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TurnStage {
    Checking,
    CheckingLease,
    Sending,
    Ledger,
    Ending,
    Aborting(Refusal),
    ConfirmingAbort(Refusal),
    ConfirmingFence,
    Recording,
    Quarantining(String),
}

/// One batch under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    pub(super) operations: Vec<Waiting>,
    pub(super) locked: Option<Box<Locked>>,
    pub(super) glimpse: FencingToken,
    pub(super) seq: BatchSeq,
    pub(super) accepted: Vec<Accepted>,
    pub(super) dirty: bool,
}
