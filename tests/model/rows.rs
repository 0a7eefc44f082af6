//! The database: two rows, the sequence, the operations, and the locks of the rows.

use fencepost::protocol::fence::{FenceRow, LeaseRow, Locked, Write};
use fencepost::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Identity, Incarnation, InstanceId, Owner,
};
use fencepost::protocol::ledger::{Batch, LedgerPartition};
use fencepost::protocol::operation::{OperationId, Stored};
use std::collections::BTreeMap;

/// The database's clock stands still: that a lease ends is an event of its own.
pub const NOW: DbTime = DbTime(1_000_000_000);
/// A lease that has not ended yet ends then.
pub const LATER: DbTime = DbTime(2_000_000_000);

/// Who has a row's lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    Gateway(u8),
    /// A renew between its look at the row and its COMMIT.
    Renew,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rows {
    pub fence: FenceRow,
    pub lease: LeaseRow,
    pub incarnation: Incarnation,
    pub sequence: u64,
    pub operations: BTreeMap<OperationId, Stored>,
    pub fence_lock: Option<u8>,
    pub lease_lock: Option<Holder>,
}

impl Rows {
    pub fn new() -> Self {
        Self {
            fence: FenceRow {
                token: FencingToken(0),
                owner: Owner::nobody(),
                incarnation: Incarnation(1),
                seq: BatchSeq(0),
                nonce: None,
                home: None,
                partition: LedgerPartition(0),
                quarantine: None,
            },
            lease: LeaseRow {
                owner: Owner::nobody(),
                identity: Identity::new(""),
                token: FencingToken(0),
                expires_at: DbTime(0),
                released: false,
                ttl_ms: 0,
                request_id: None,
            },
            incarnation: Incarnation(1),
            sequence: 0,
            operations: BTreeMap::new(),
            fence_lock: None,
            lease_lock: None,
        }
    }

    pub fn read(&self, ids: &[OperationId]) -> Locked {
        Locked {
            fence: self.fence.clone(),
            lease: self.lease.clone(),
            now: NOW,
            incarnation: self.incarnation,
            forgotten_to: DbTime(0),
            found: self.find(ids),
        }
    }

    pub fn find(&self, ids: &[OperationId]) -> Vec<Stored> {
        ids.iter().filter_map(|id| self.operations.get(id)).cloned().collect()
    }

    pub fn is_held(&self) -> bool {
        self.lease.is_held(NOW)
    }

    /// A session's end.
    pub fn free(&mut self, gateway: u8) {
        self.fence_lock = self.fence_lock.filter(|holder| *holder != gateway);
        self.lease_lock = self.lease_lock.filter(|holder| *holder != Holder::Gateway(gateway));
    }

    /// The guards of the statements: false, and nothing is written.
    pub fn takes(&self, write: &Write) -> bool {
        let free = self.fence.quarantine.is_none();
        match write {
            Write::Install { token, .. } => free && !self.is_held() && *token > self.fence.token,
            Write::Settle { .. } => free && !self.is_held(),
            Write::Record { seq, .. } => free && *seq == self.fence.seq.next(),
            Write::Reopen { .. } | Write::Release { .. } | Write::Retire { .. } => free,
            Write::Quarantine { .. } | Write::Expire | Write::Nonce { .. } => true,
        }
    }

    /// Writes one decision; false if it would store an operation twice.
    pub fn write(&mut self, write: &Write, home: InstanceId) -> bool {
        let (nonce, seq, batch) = match write.clone() {
            Write::Install {
                token,
                owner,
                identity,
                ttl_ms,
                request_id,
                incarnation,
                nonce,
                seq,
                redo,
            } => {
                (self.fence.token, self.fence.owner) = (token, owner.clone());
                self.fence.incarnation = incarnation;
                let (expires_at, released) = (LATER, false);
                self.lease =
                    LeaseRow { owner, identity, token, expires_at, released, ttl_ms, request_id };
                self.fence.home = Some(home);
                (Some(nonce), seq, redo)
            }
            Write::Reopen { nonce, seq, redo } => {
                self.fence.home = Some(home);
                (Some(nonce), seq, redo)
            }
            Write::Record { seq, operations } => {
                let (token, incarnation) = (self.fence.token, self.fence.incarnation);
                let owner = self.fence.owner.clone();
                (None, seq, Some(Batch { token, owner, incarnation, seq, operations }))
            }
            Write::Release { nonce, seq, redo } => {
                self.lease.released = true;
                (nonce, seq, redo)
            }
            Write::Settle { nonce, seq, redo } => {
                self.lease.released = true;
                (Some(nonce), seq, redo)
            }
            Write::Retire { nonce, seq, redo } => {
                self.lease.expires_at = NOW;
                (Some(nonce), seq, redo)
            }
            Write::Quarantine { reason } => {
                self.fence.quarantine = Some(reason);
                (None, self.fence.seq, None)
            }
            Write::Expire => {
                self.lease.expires_at = NOW;
                (None, self.fence.seq, None)
            }
            Write::Nonce { nonce } => (Some(nonce), self.fence.seq, None),
        };
        self.fence.nonce = nonce.or(self.fence.nonce);
        self.fence.seq = seq;
        batch.is_none_or(|batch| self.keep(&batch))
    }

    fn keep(&mut self, batch: &Batch) -> bool {
        let (token, incarnation, seq) = (batch.token, batch.incarnation, batch.seq);
        batch.operations.iter().all(|accepted| {
            let stored = Stored { accepted: accepted.clone(), token, incarnation, seq };
            let kept = self.operations.entry(accepted.id.clone()).or_insert_with(|| stored.clone());
            *kept == stored
        })
    }
}
