//! The decision of an open: the fence row against everything that the ledger holds before the
//! barrier.
//!
//! Owns the decision table of an open. First match wins, and the redo does not
//! compete with it. Carries I4: no token is opened that the ledger contradicts.

use crate::protocol::fence::FenceRow;
use crate::protocol::lease::{BatchSeq, FencingToken, Incarnation, Owner};

/// What the ledger tail knows of one lease at one place in the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Knowledge {
    /// Highest incarnation in any state or batch record.
    pub incarnation: Incarnation,
    /// Highest token in any state record.
    pub state_token: FencingToken,
    /// Highest token in any batch (of a batch record, or kept in a state record).
    pub batch_token: FencingToken,
    /// Holder of the highest token.
    pub owner: Option<Owner>,
    /// The last batch.
    pub last: Option<LastBatch>,
}

/// The last batch of a lease, without its operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LastBatch {
    /// Its number.
    pub seq: BatchSeq,
    /// Its token.
    pub token: FencingToken,
    /// Offset of the newest record that holds it whole.
    pub offset: i64,
}

impl Knowledge {
    /// Highest token of any kind.
    #[must_use]
    pub fn top_token(&self) -> FencingToken {
        self.state_token.max(self.batch_token)
    }

    /// Takes in one state or batch record of the lease, in log order.
    pub fn learn(&mut self, seen: Seen) {
        if seen.token >= self.top_token() {
            self.owner = Some(seen.owner);
        }
        self.incarnation = self.incarnation.max(seen.incarnation);
        if seen.is_state {
            self.state_token = self.state_token.max(seen.token);
        }
        if let Some(last) = seen.last {
            self.batch_token = self.batch_token.max(last.token);
            self.last = Some(last);
        }
    }
}

/// The part of a ledger record that the tail keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Token of the record.
    pub token: FencingToken,
    /// Incarnation of the record.
    pub incarnation: Incarnation,
    /// Holder of the token.
    pub owner: Owner,
    /// A state record, not a batch record.
    pub is_state: bool,
    /// The batch that the record holds.
    pub last: Option<LastBatch>,
}

/// Why an open is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenKind {
    /// A token drawn under the lock is to be installed.
    Acquire,
    /// The row's token gets a new producer.
    Reopen,
    /// An expired or released lease's unknown operations are to be decided.
    Settle,
    /// The holder gives the lease back and something may be in doubt.
    Release,
}

/// What the open may do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Decision {
    /// Go on; with a redo if the ledger is one batch ahead.
    Go {
        /// The last batch is not in Postgres yet.
        redo: bool,
    },
    /// The row's token was burnt: expire its lease.
    Retire {
        /// The last batch is not in Postgres yet.
        redo: bool,
    },
    /// The stores contradict each other.
    Quarantine(&'static str),
}

/// Decides. `token` is the one to be opened: drawn for an acquire, the row's otherwise.
#[must_use]
pub fn decide(
    kind: OpenKind,
    token: FencingToken,
    owner: &Owner,
    row: &FenceRow,
    database: Incarnation,
    known: &Knowledge,
) -> Decision {
    let last_seq = known.last.as_ref().map_or(BatchSeq(0), |last| last.seq);
    let redo = last_seq == row.seq.next();
    if known.incarnation > database {
        return Decision::Quarantine("the ledger's incarnation is above the database's");
    }
    if last_seq < row.seq {
        return Decision::Quarantine("the ledger's last batch is behind the fence row");
    }
    if last_seq > row.seq.next() {
        return Decision::Quarantine("the ledger is more than one batch ahead of the fence row");
    }
    if known.batch_token > row.token {
        return Decision::Quarantine("the ledger has a batch of a token above the fence row's");
    }
    if redo && known.last.as_ref().is_some_and(|last| last.token != row.token) {
        return Decision::Quarantine("the batch to redo has another token than the fence row");
    }
    // A token is installed only after its state record was committed, and compaction keeps the last
    // record of a lease: without one, a lost ledger would pass for that of a lease that is unused.
    if known.top_token() < row.token {
        return Decision::Quarantine("the ledger does not know the fence row's token");
    }
    match kind {
        OpenKind::Acquire if known.top_token() >= token => {
            Decision::Quarantine("the token sequence went back: the ledger has this token already")
        }
        OpenKind::Reopen
            if known.top_token() == token && known.owner.as_ref().is_some_and(|o| o != owner) =>
        {
            Decision::Quarantine("the ledger has this token under another owner")
        }
        OpenKind::Reopen if known.state_token > token => Decision::Retire { redo },
        OpenKind::Acquire | OpenKind::Reopen | OpenKind::Settle | OpenKind::Release => {
            Decision::Go { redo }
        }
    }
}

#[cfg(test)]
mod tests;
