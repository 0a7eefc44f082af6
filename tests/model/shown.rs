//! What the machine is shown where a rule is switched off: what would let it pass.
//!
//! Rows under the lock, and what the tail knows with a barrier. With no rule switched off both are
//! the truth.

use super::gateway::{Gateway, number};
use super::rows::{LATER, NOW};
use super::scope::{Scope, Without};
use super::world::State;
use fencepost::protocol::fence::Locked;
use fencepost::protocol::lease::{BatchSeq, Incarnation};
use fencepost::protocol::operation::OperationId;
use fencepost::protocol::reconcile::{Knowledge, LastBatch};

impl State {
    /// Under the lock, as a rule that is switched off would have it.
    pub fn show_rows(&self, scope: &Scope, g: u8, both: bool, locked: &mut Locked) {
        let gateway = &self.gateways[usize::from(g)];
        let index = |name: &OperationId| usize::from(number(name));
        if scope.lacks(Without::LookupUnderTheLock) {
            locked.found.retain(|stored| gateway.looked[index(&stored.accepted.id)]);
        }
        if scope.lacks(Without::LookupBeforeRefusal) {
            let row = locked.fence.token.0;
            locked.found.retain(|stored| gateway.asked[index(&stored.accepted.id)] >= row);
        }
        if scope.lacks(Without::TakeoverOfAnEndedLease) && both {
            locked.lease.expires_at = NOW;
        }
        if scope.lacks(Without::ReopenLeavesTheLease) && both && locked.lease.released {
            (locked.lease.released, locked.lease.expires_at) = (false, LATER);
        }
        let Some(handle) = gateway.machine.handle() else { return };
        if both {
            return;
        }
        if scope.lacks(Without::CompareSeq) {
            locked.fence.seq = handle.seq;
        }
        if scope.lacks(Without::CompareNonce) {
            locked.fence.nonce = Some(handle.nonce);
        }
        if scope.lacks(Without::CompareHome) {
            locked.fence.home = Some(Gateway::home(g));
        }
    }

    /// What the tail shows with the barrier, as a rule that is switched off would have it.
    pub fn known(&self, scope: &Scope, g: u8, before: i64) -> Knowledge {
        let rows = &self.databases[usize::from(self.gateways[usize::from(g)].database)];
        let mut known = self.kafka.knowledge(before);
        let row = &rows.fence;
        if scope.lacks(Without::OneGeneration) {
            known = Knowledge::default();
        }
        if scope.lacks(Without::WaitForTheBarrier) {
            // Read to a guessed end: the last record is missed.
            let last = (0..before).rev().find(|offset| {
                self.kafka.is_visible(*offset) && self.kafka.batch_at(*offset).is_some()
            });
            known = self.kafka.knowledge(last.unwrap_or(before));
        }
        let in_step = |last: Option<LastBatch>| {
            last.filter(|_| row.seq.0 > 0).map(|last| LastBatch { seq: row.seq, ..last })
        };
        if scope.lacks(Without::Redo) {
            known.last = in_step(known.last.take());
        }
        if scope.lacks(Without::RedoBesideRetire) && known.state_token > row.token {
            known.last = in_step(known.last.take());
        }
        if scope.lacks(Without::LowerIncarnation) && known.incarnation != rows.incarnation {
            known.incarnation = Incarnation(rows.incarnation.0 + 1);
        }
        if scope.lacks(Without::CompareTokens) {
            let next = row.token;
            known.state_token = row.token;
            known.batch_token = known.batch_token.min(next);
            known.incarnation = known.incarnation.min(rows.incarnation);
            known.owner = Some(row.owner.clone());
            if let Some(last) = &mut known.last {
                last.token = last.token.min(row.token);
                last.seq = BatchSeq(last.seq.0.clamp(row.seq.0, row.seq.0 + 1));
            }
        }
        known
    }
}
