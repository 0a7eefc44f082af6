//! The headers that the gateway puts on every record.

use crate::protocol::lease::{BatchSeq, FencingToken, LeaseName};
use crate::protocol::operation::OperationId;

/// Names of the headers that the gateway puts on every record.
pub mod header {
    /// Lease.
    pub const LEASE: &str = "fencepost-lease";
    /// Token.
    pub const TOKEN: &str = "fencepost-token";
    /// Operation id.
    pub const OPERATION: &str = "fencepost-operation";
    /// Batch seq.
    pub const BATCH: &str = "fencepost-batch";
}

/// The gateway's own headers of one record, in their order.
#[must_use]
pub fn own_headers(
    lease: &LeaseName,
    token: FencingToken,
    id: &OperationId,
    seq: BatchSeq,
) -> [(&'static str, String); 4] {
    [
        (header::LEASE, lease.to_string()),
        (header::TOKEN, token.to_string()),
        (header::OPERATION, id.to_string()),
        (header::BATCH, seq.to_string()),
    ]
}
