//! What follows when a batch does not simply succeed.
//!
//! Owns the three ways out: doubt keeps its waiters and opens; a determinate failure of one
//! operation is refused alone; a fencing under our own nonce is counted. Carries I5: the producer
//! goes first, then the lock.

use super::types::*;
use super::{DOUBT_BACKOFF_MAX_MS, LeaseMachine};
use crate::protocol::batch::Waiting;
use crate::protocol::bug::Bug;
use crate::protocol::operation::OperationId;
use crate::protocol::refusal::{RecordRefused, Refusal, SideEffect};
use std::collections::BTreeSet;

impl LeaseMachine {
    /// An operation still waiting at its deadline is dropped, never sent.
    pub(in crate::protocol::machine) fn in_time(
        w: &Waiting,
        at: u64,
        out: &mut Vec<Effect>,
    ) -> bool {
        let late = w.deadline_ms <= at;
        if late {
            out.push(Effect::Reply(w.ticket, Reply::Refused(Refusal::OutcomeUnknown)));
        }
        !late
    }

    pub(in crate::protocol::machine) fn send_failed(
        &mut self,
        turn: Box<Turn>,
        failure: KafkaFailure,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let side_effect = SideEffect::None;
        let refusal = match failure {
            KafkaFailure::Unreached | KafkaFailure::Doubt => return self.doubt(*turn, at, out),
            KafkaFailure::Fenced => return self.fenced(turn, out),
            KafkaFailure::Record { index, why } => Refusal::Record { index, why, side_effect },
            KafkaFailure::Denied { resource } => Refusal::KafkaDenied { resource },
        };
        if turn.operations.len() > 1 {
            // The guilty one is found by sending them one at a time; the open's init aborts this
            // transaction and decides what became of it.
            self.drop_producer(out);
            out.push(Effect::EndSession);
            self.put_back(turn.operations, true);
            return self.go(at, out);
        }
        self.await_turn(TurnStage::Aborting(refusal), turn, Effect::Abort, out);
    }

    /// The ledger record or the end: whether it happened is not known, unless we are fenced.
    pub(in crate::protocol::machine) fn end_failed(
        &mut self,
        turn: Box<Turn>,
        failure: &KafkaFailure,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        match failure {
            KafkaFailure::Fenced => self.fenced(turn, out),
            KafkaFailure::Doubt if self.setting.bugs.has(Bug::DoubtIsNo) => {
                let (index, why, side_effect) = (0, RecordRefused::Invalid, SideEffect::None);
                self.refused_alone(&turn, &Refusal::Record { index, why, side_effect }, at, out);
            }
            KafkaFailure::Unreached
            | KafkaFailure::Doubt
            | KafkaFailure::Record { .. }
            | KafkaFailure::Denied { .. } => self.doubt(*turn, at, out),
        }
    }

    /// The abort was acknowledged and the lock still held after it: nothing of it is there.
    pub(in crate::protocol::machine) fn refused_alone(
        &mut self,
        turn: &Turn,
        refusal: &Refusal,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        for w in &turn.operations {
            out.push(Effect::Reply(w.ticket, Reply::Refused(refusal.clone())));
        }
        // Rebuilt after every abort: this client cannot tell a late one from the next.
        self.drop_producer(out);
        out.push(Effect::EndSession);
        self.doubts = 0;
        self.go(at, out);
    }

    /// I5: the producer goes first, then the lock; the waiters stay.
    pub(in crate::protocol::machine) fn doubt(
        &mut self,
        mut turn: Turn,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        self.drop_producer(out);
        out.push(Effect::EndSession);
        for w in &mut turn.operations {
            w.in_doubt = true;
        }
        // One at a time from here on: the one that caused it must not take others along again.
        self.put_back(turn.operations, true);
        self.doubts = self.doubts.saturating_add(1);
        self.back_off(at);
        self.go(at, out);
    }

    pub(in crate::protocol::machine) fn back_off(&mut self, at: u64) {
        let wait = match self.doubts {
            0 | 1 => 0,
            n => 25u64.saturating_mul(1 << n.min(10)).min(DOUBT_BACKOFF_MAX_MS),
        };
        self.resume_at = at.saturating_add(wait);
    }

    /// Another gateway's open needs our lock to be gone; so with the lock alive this is a stranger.
    pub(in crate::protocol::machine) fn fenced(&mut self, turn: Box<Turn>, out: &mut Vec<Effect>) {
        self.drop_producer(out);
        self.await_turn(TurnStage::ConfirmingFence, turn, Effect::Confirm, out);
    }

    pub(in crate::protocol::machine) fn fenced_by_a_stranger(
        &mut self,
        turn: &Turn,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let retry_after_ms = self.count_fencing(at, out);
        for w in &turn.operations {
            let refusal = Refusal::ProducerFenced { retry_after_ms };
            out.push(Effect::Reply(w.ticket, Reply::Refused(refusal)));
        }
        out.push(Effect::EndSession);
        self.go(at, out);
    }

    pub(in crate::protocol::machine) fn put_back(&mut self, operations: Vec<Waiting>, alone: bool) {
        for mut waiting in operations.into_iter().rev() {
            waiting.alone |= alone;
            self.pending.push_front(waiting);
        }
    }

    /// Refuses those that were not sent; those in doubt wait for the next attempt, and with them
    /// those that have joined one of them by its id.
    pub(in crate::protocol::machine) fn refuse_waiting(
        &mut self,
        refusal: &Refusal,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let final_no = matches!(refusal, Refusal::Quarantined);
        let in_doubt = self.pending.iter().filter(|w| w.in_doubt);
        let in_doubt: BTreeSet<OperationId> = in_doubt.map(|w| w.id.clone()).collect();
        self.pending.retain(|w| {
            let stays = in_doubt.contains(&w.id) && !final_no;
            if !stays {
                out.push(Effect::Reply(w.ticket, Reply::Refused(refusal.clone())));
            }
            stays
        });
        self.doubts = self.doubts.saturating_add(1).max(2);
        self.back_off(at);
    }
}
