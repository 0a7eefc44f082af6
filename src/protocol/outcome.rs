//! What can be told of an operation by its id alone.
//!
//! Owns the answer to "what became of it?" for one who does not send it again. An operation is
//! *absent* only where nothing under a token up to the row's can bring it any more: after a release
//! or a settle, whose COMMIT has decided everything (MODEL-2 H4, H7). Under a live lease, or one
//! that merely expired, what is not found is unknown. Never opens a lease and never reads a clock.

use crate::protocol::fence::{Credential, Locked, Standing, is_forgotten, standing};
use crate::protocol::lease::FencingToken;
use crate::protocol::operation::{OperationId, Stored};
use crate::protocol::refusal::Refusal;

/// What became of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the topics, once and whole.
    Committed(Stored),
    /// It may be, or may still come to be.
    Unknown {
        /// A settle would decide it: the lease is over and was neither released nor settled.
        can_settle: bool,
    },
    /// Nothing of it is there, and nothing of it comes under these tokens.
    Absent {
        /// The highest of them.
        up_to: FencingToken,
    },
    /// The credential may not ask.
    Refused(Refusal),
}

/// Judges rows that were read in one snapshot, with the operation if it was found in it.
#[must_use]
pub fn outcome(
    rows: &Locked,
    id: &OperationId,
    credential: Option<&Credential>,
    retention_s: i64,
) -> Outcome {
    let (fence, lease) = (&rows.fence, &rows.lease);
    if credential.is_some_and(|c| c.is_from_later(rows.now)) {
        return Outcome::Refused(Refusal::CredentialNotYet);
    }
    if let Some(stored) = rows.found.iter().find(|s| s.accepted.id == *id) {
        return Outcome::Committed(stored.clone());
    }
    match credential.map(|c| standing(rows, c, retention_s)) {
        Some(Standing::Ahead) => return Outcome::Refused(Refusal::Quarantined),
        Some(Standing::Over(refusal @ Refusal::CredentialExpired)) => {
            return Outcome::Refused(refusal);
        }
        Some(Standing::Live | Standing::Over(_)) | None => {}
    }
    let over = !lease.is_held(rows.now);
    if fence.quarantine.is_some() {
        return Outcome::Unknown { can_settle: false };
    }
    if over && !lease.released && fence.token.0 > 0 {
        return Outcome::Unknown { can_settle: true };
    }
    // Of another history of the database, or so old that it may have been accepted and forgotten.
    let foreign = credential.is_some_and(|c| {
        c.token == fence.token && (c.incarnation != fence.incarnation || c.owner != fence.owner)
    });
    if !over || foreign || is_forgotten(rows, id, credential, retention_s) {
        return Outcome::Unknown { can_settle: false };
    }
    Outcome::Absent { up_to: fence.token }
}

#[cfg(test)]
mod tests;
