//! Names of the effects, for logs and figures.

use super::types::Effect;

impl Effect {
    /// Its name, for logs and figures.
    #[must_use]
    pub fn stage(&self) -> &'static str {
        match self {
            Self::AwaitTail { .. } => "await_tail",
            Self::Ensure => "ensure",
            Self::Lock { .. } => "lock",
            Self::LockLease => "lock_lease",
            Self::DrawToken => "draw_token",
            Self::OpenProducer => "init",
            Self::WriteBarrier { .. } => "write_barrier",
            Self::AwaitBarrier => "await_barrier",
            Self::ReadBatch { .. } => "read_batch",
            Self::FindOperations(_) => "find_operations",
            Self::WriteState(_) => "write_state",
            Self::Send { .. } => "send",
            Self::SendLedger(_) => "send_ledger",
            Self::EndTxn => "end",
            Self::Abort => "abort",
            Self::Confirm => "confirm",
            Self::Commit(_) => "commit",
            Self::Reply(..) => "reply",
            Self::DropProducer => "drop_producer",
            Self::EndSession => "end_session",
            Self::Alert(_) => "alert",
        }
    }
}
