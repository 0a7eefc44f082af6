//! The fence: the row that a token is checked against, and the verdict on an operation.
//!
//! Owns rows as values and the comparison (I1: an operation is sent only while its own credential's
//! token, owner and incarnation are the row's; I2: it is looked up before it is refused or sent).
//! Never reads a clock: `now` is the database's, read in a statement after the lock was got.

use crate::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Identity, Incarnation, InstanceId, LeaseName, Nonce, Owner,
    RequestId,
};
use crate::protocol::ledger::{Batch, LedgerPartition};
use crate::protocol::operation::{Accepted, Fingerprint, OperationId, Stored};
use crate::protocol::refusal::{Refusal, SideEffect};

/// A lease's fence row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FenceRow {
    /// Installed token; 0 before the first.
    pub token: FencingToken,
    /// Its holder.
    pub owner: Owner,
    /// Incarnation that issued it.
    pub incarnation: Incarnation,
    /// Last batch known to Postgres.
    pub seq: BatchSeq,
    /// Mark of the last open; a handle with another is not usable.
    pub nonce: Option<Nonce>,
    /// Gateway of the last open; a hint.
    pub home: Option<InstanceId>,
    /// Where the lease's ledger records stand.
    pub partition: LedgerPartition,
    /// Why nobody may write, if so.
    pub quarantine: Option<String>,
}

/// A lease's lease row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseRow {
    /// Who holds or held it.
    pub owner: Owner,
    /// Which worker identity acquired it.
    pub identity: Identity,
    /// Token of that acquire.
    pub token: FencingToken,
    /// First instant at which the lease is over.
    pub expires_at: DbTime,
    /// Given back.
    pub released: bool,
    /// Time to live of the last acquire or renew.
    pub ttl_ms: u64,
    /// The last acquire's request id.
    pub request_id: Option<RequestId>,
}

impl LeaseRow {
    /// The one rule of validity: a lease is held iff now < `expires_at` and it was not given back.
    #[must_use]
    pub fn is_held(&self, now: DbTime) -> bool {
        self.token.0 > 0 && !self.released && now < self.expires_at
    }
}

/// Everything read under a fence row's lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Locked {
    /// The fence row, locked.
    pub fence: FenceRow,
    /// The lease row, read after the lock (and locked itself if asked for).
    pub lease: LeaseRow,
    /// The database's clock, read after the locks.
    pub now: DbTime,
    /// The database's incarnation, read in the same transaction.
    pub incarnation: Incarnation,
    /// No operation accepted later than this was ever removed.
    pub forgotten_to: DbTime,
    /// Those of the asked operation ids that are already accepted.
    pub found: Vec<Stored>,
}

/// The facts of a fencing credential. They prove who, never whether still.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Credential {
    /// Lease that it is for.
    pub lease: LeaseName,
    /// Holder.
    pub owner: Owner,
    /// Token.
    pub token: FencingToken,
    /// Incarnation of the token.
    pub incarnation: Incarnation,
    /// When it is over, in whole seconds since 1970 (JWT `exp`).
    pub expires_s: i64,
    /// When it was made and from when it holds, in whole seconds since 1970 (JWT `iat` and `nbf`).
    pub issued_s: i64,
}

impl Credential {
    /// Made later than the database's clock says it is. Only `exp` is ever forgiven, so such a one
    /// is told nothing, not even of an operation that was found.
    #[must_use]
    pub fn is_from_later(&self, now: DbTime) -> bool {
        self.issued_s > now.seconds()
    }
}

/// Verdict on an operation under the lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Accepted before, with the same records.
    Replay(Stored),
    /// May be sent in this very transaction.
    Live,
    /// Not now, or never.
    Refused(Refusal),
    /// A valid credential above the row: Postgres may have gone back.
    Ahead,
}

/// Judges one operation. The order is the rule: a credential that does not hold yet is none; then
/// found first, then the token, then the lease.
#[must_use]
pub fn judge(
    locked: &Locked,
    credential: &Credential,
    id: &OperationId,
    fingerprint: &Fingerprint,
    retention_s: i64,
) -> Verdict {
    if credential.is_from_later(locked.now) {
        return Verdict::Refused(Refusal::CredentialNotYet);
    }
    if let Some(stored) = locked.found.iter().find(|s| s.accepted.id == *id) {
        return if stored.accepted.fingerprint == *fingerprint {
            Verdict::Replay(stored.clone())
        } else {
            Verdict::Refused(Refusal::OperationConflict)
        };
    }
    match standing(locked, credential, retention_s) {
        Standing::Ahead => Verdict::Ahead,
        Standing::Live => match age(id, locked, retention_s) {
            Age::Remembered => Verdict::Live,
            Age::TooOld => Verdict::Refused(Refusal::OperationTooOld),
            Age::Ahead => Verdict::Refused(Refusal::OperationAhead),
        },
        Standing::Over(refusal) if is_forgotten(locked, id, None, retention_s) => {
            Verdict::Refused(refusal.unproven())
        }
        Standing::Over(refusal) => Verdict::Refused(refusal),
    }
}

/// How far the clocks of those who make operation ids may be ahead, in seconds: an id's own time is
/// never later than its acceptance by more than this. Below [`PURGE_AFTER_S`], so that an id with a
/// time is refused as too old before its row can be gone.
pub const OPERATION_AHEAD_MAX_S: i64 = 300;

/// How long an accepted operation is kept beyond the retention, in seconds.
pub const PURGE_AFTER_S: i64 = 600;
const _: () = assert!(OPERATION_AHEAD_MAX_S < PURGE_AFTER_S);

/// Where the time inside an operation id stands. One without a time says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Age {
    Remembered,
    TooOld,
    Ahead,
}

/// Too old is what is past the retention, and what may have been forgotten under a shorter one (or
/// by a clock that was ahead): the rows say up to where.
fn age(id: &OperationId, rows: &Locked, retention_s: i64) -> Age {
    const AHEAD_MAX_MS: i64 = 1_000 * OPERATION_AHEAD_MAX_S;
    let Some(ms) = id.uuid_v7_ms() else { return Age::Remembered };
    let [now_ms, forgotten_ms] = [rows.now, rows.forgotten_to].map(|t| t.0.div_euclid(1_000));
    let since_ms = now_ms.saturating_sub(ms);
    if since_ms > retention_s.saturating_mul(1_000)
        || ms <= forgotten_ms.saturating_add(AHEAD_MAX_MS)
    {
        Age::TooOld
    } else if since_ms < -AHEAD_MAX_MS {
        Age::Ahead
    } else {
        Age::Remembered
    }
}

/// An operation with this id may have been accepted and is not kept any more. Of an id without a
/// time that is so while something within the retention was removed (under a shorter one).
#[must_use]
pub fn is_forgotten(
    rows: &Locked,
    id: &OperationId,
    credential: Option<&Credential>,
    retention_s: i64,
) -> bool {
    // Never before 1970, the time of "nothing was removed".
    let kept_from = rows.now.0.saturating_sub(retention_s.saturating_mul(1_000_000)).max(0);
    credential.is_some_and(|c| is_aged(c, rows, retention_s))
        || age(id, rows, retention_s) == Age::TooOld
        || (id.uuid_v7_ms().is_none() && rows.forgotten_to.0 > kept_from)
}

/// An operation of a credential this old may have been purged already. None was accepted under it
/// before it was issued.
fn is_aged(credential: &Credential, rows: &Locked, retention_s: i64) -> bool {
    rows.now.seconds().saturating_sub(credential.issued_s) > retention_s
        || credential.issued_s <= rows.forgotten_to.seconds()
}

/// How a credential stands against the rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Token, owner and incarnation are the row's and the lease is held.
    Live,
    /// Its token is above the row's.
    Ahead,
    /// Anything else, with what may be said of an operation that was *not found*.
    Over(Refusal),
}

/// Compares a credential with the rows.
#[must_use]
pub fn standing(locked: &Locked, credential: &Credential, retention_s: i64) -> Standing {
    let (fence, lease) = (&locked.fence, &locked.lease);
    let current = fence.token;
    if credential.is_from_later(locked.now) {
        return Standing::Over(Refusal::CredentialNotYet);
    }
    let aged = is_aged(credential, locked, retention_s);
    let provable = if aged { SideEffect::Maybe } else { SideEffect::None };
    if fence.quarantine.is_some() {
        return Standing::Over(Refusal::Quarantined);
    }
    if credential.token > current {
        return Standing::Ahead;
    }
    if credential.token < current {
        return Standing::Over(Refusal::StaleToken { current, side_effect: provable });
    }
    if credential.incarnation != fence.incarnation || credential.owner != fence.owner {
        let side_effect = SideEffect::Maybe;
        return Standing::Over(Refusal::StaleToken { current, side_effect });
    }
    if lease.released {
        return Standing::Over(Refusal::LeaseReleased { current, side_effect: provable });
    }
    if !lease.is_held(locked.now) {
        let side_effect = SideEffect::Maybe;
        return Standing::Over(Refusal::LeaseExpired { current, side_effect });
    }
    if credential.expires_s <= locked.now.seconds() {
        return Standing::Over(Refusal::CredentialExpired);
    }
    Standing::Live
}

/// What an open of a token leaves in this process; it exists only after its COMMIT is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Handle {
    /// Token.
    pub token: FencingToken,
    /// Holder.
    pub owner: Owner,
    /// Incarnation of the token.
    pub incarnation: Incarnation,
    /// Mark of the open.
    pub nonce: Nonce,
    /// Last batch seq; the next batch is one above.
    pub seq: BatchSeq,
}

impl Handle {
    /// I3: a handle may send only while the row still is the one that its open (or its last batch)
    /// left behind.
    #[must_use]
    pub fn matches(&self, fence: &FenceRow, home: InstanceId) -> bool {
        fence.nonce == Some(self.nonce)
            && fence.seq == self.seq
            && fence.token == self.token
            && fence.owner == self.owner
            && fence.incarnation == self.incarnation
            && fence.home == Some(home)
    }
}

/// What a locked session writes, together with its COMMIT. Each is one decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    /// A takeover or first acquire: token, owner, expiry counted from this step's clock.
    Install {
        /// New token.
        token: FencingToken,
        /// New holder.
        owner: Owner,
        /// Identity that asked.
        identity: Identity,
        /// Time to live.
        ttl_ms: u64,
        /// The acquire's request id.
        request_id: Option<RequestId>,
        /// The database's incarnation, read under this lock.
        incarnation: Incarnation,
        /// Mark of this open.
        nonce: Nonce,
        /// Seq after the redo.
        seq: BatchSeq,
        /// A batch that only Kafka knew.
        redo: Option<Batch>,
    },
    /// Same token, new producer: never touches expiry or `released`.
    Reopen {
        /// Mark of this open.
        nonce: Nonce,
        /// Seq after the redo.
        seq: BatchSeq,
        /// A batch that only Kafka knew.
        redo: Option<Batch>,
    },
    /// An accepted batch.
    Record {
        /// Its number.
        seq: BatchSeq,
        /// Its operations.
        operations: Vec<Accepted>,
    },
    /// The holder gives the lease back. With a nonce if the producer was initialised for it.
    Release {
        /// Mark of this open, if one was needed.
        nonce: Option<Nonce>,
        /// Seq after the redo.
        seq: BatchSeq,
        /// A batch that only Kafka knew.
        redo: Option<Batch>,
    },
    /// An expired lease's unknown operations are decided; its token never lives again.
    Settle {
        /// Mark of this open.
        nonce: Nonce,
        /// Seq after the redo.
        seq: BatchSeq,
        /// A batch that only Kafka knew.
        redo: Option<Batch>,
    },
    /// The row's token was burnt by a failed takeover: expire its lease.
    Retire {
        /// Mark of this open.
        nonce: Nonce,
        /// Seq after the redo.
        seq: BatchSeq,
        /// A batch that only Kafka knew.
        redo: Option<Batch>,
    },
    /// Nobody may write until an operator has decided.
    Quarantine {
        /// Why, in words for the operator.
        reason: String,
    },
    /// `replace: true`: the expiry of the token that was seen.
    Expire,
    /// An open that failed: nothing but a fresh nonce.
    Nonce {
        /// Mark of the failed open.
        nonce: Nonce,
    },
}

/// What a COMMIT that is known to have succeeded tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Committed {
    /// The lease's expiry as it is now.
    pub expires_at: DbTime,
    /// The clock of the statement that wrote.
    pub now: DbTime,
}

#[cfg(test)]
pub(in crate::protocol) mod tests;
