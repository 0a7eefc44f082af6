//! Produce: one batch of one token, checked, sent, recorded, answered.
//!
//! Owns the order check, send, ledger, end, record, and what follows each failure: doubt keeps its
//! waiters and opens; a determinate failure of one operation is refused alone; a fencing is
//! counted. Carries I1, I2, I5 and I6.

use super::LeaseMachine;
use super::types::*;
use crate::protocol::batch::{self, Waiting};
use crate::protocol::bug::Bug;
use crate::protocol::fence::{Locked, Verdict, Write, judge};
use crate::protocol::lease::{BatchSeq, DbTime, FencingToken};
use crate::protocol::ledger::Batch;
use crate::protocol::operation::{Accepted, OperationId, Placed, Stored, fold_runs};
use crate::protocol::refusal::Refusal;
use std::borrow::Cow;
use std::sync::Arc;

impl LeaseMachine {
    /// Works on what waits, if anything does and its time has come.
    pub(in crate::protocol::machine) fn go(&mut self, at: u64, out: &mut Vec<Effect>) {
        self.pending.retain(|w| Self::in_time(w, at, out));
        if self.pending.is_empty() || at < self.resume_at {
            return;
        }
        if self.handle.is_none() {
            if at < self.fenced_until {
                let retry_after_ms = self.fenced_until.saturating_sub(at);
                self.refuse_waiting(&Refusal::ProducerFenced { retry_after_ms }, at, out);
                self.resume_at = self.resume_at.max(self.fenced_until);
                return;
            }
            return self.start_open(Job::Produce, out);
        }
        let count = batch::close(&self.pending, self.setting.limits);
        let turn = Turn {
            operations: self.pending.drain(..count).collect(),
            locked: None,
            glimpse: FencingToken(0),
            seq: BatchSeq(0),
            accepted: Vec::new(),
            dirty: false,
        };
        let operations = turn.operations.iter().map(|w| w.id.clone()).collect();
        let effect = Effect::Lock { both: false, operations };
        self.await_turn(TurnStage::Checking, Box::new(turn), effect, out);
    }

    /// Ids of the operations that the next batch would hold.
    pub(in crate::protocol::machine) fn next_ids(&self) -> Vec<OperationId> {
        let count = batch::close(&self.pending, self.setting.limits);
        self.pending.iter().take(count).map(|w| w.id.clone()).collect()
    }

    pub(in crate::protocol::machine) fn turn_step(
        &mut self,
        stage: TurnStage,
        mut turn: Box<Turn>,
        event: Event,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        match (stage, event) {
            (TurnStage::Checking, Event::Locked { outcome, glimpse, .. }) => {
                turn.glimpse = glimpse;
                self.checking(turn, outcome, at, out);
            }
            (TurnStage::CheckingLease, Event::LeaseLocked(reread)) => {
                self.lease_reread(turn, reread, at, out);
            }
            (TurnStage::Sending, Event::Sent(Ok(placed))) => self.sent(turn, placed, at, out),
            (TurnStage::Sending, Event::Sent(Err(failure))) => {
                self.send_failed(turn, failure, at, out);
            }
            (TurnStage::Ledger, Event::LedgerSent(Ok(()))) => {
                if self.setting.bugs.has(Bug::EarlyAnswer) {
                    self.answer_accepted(&turn, out);
                }
                self.await_turn(TurnStage::Ending, turn, Effect::EndTxn, out);
            }
            (TurnStage::Ending, Event::Ended(Ok(clean))) => {
                turn.dirty = !clean;
                let write = Write::Record { seq: turn.seq, operations: turn.accepted.clone() };
                self.await_turn(TurnStage::Recording, turn, Effect::Commit(write), out);
            }
            (TurnStage::Ledger, Event::LedgerSent(Err(failure)))
            | (TurnStage::Ending, Event::Ended(Err(failure))) => {
                self.end_failed(turn, &failure, at, out);
            }
            (TurnStage::Aborting(refusal), Event::Aborted(true)) => {
                self.await_turn(TurnStage::ConfirmingAbort(refusal), turn, Effect::Confirm, out);
            }
            (TurnStage::ConfirmingAbort(refusal), Event::Confirmed(true)) => {
                self.refused_alone(&turn, &refusal, at, out);
            }
            (TurnStage::Aborting(_), Event::Aborted(false))
            | (
                TurnStage::ConfirmingAbort(_) | TurnStage::ConfirmingFence,
                Event::Confirmed(false),
            ) => {
                self.doubt(*turn, at, out);
            }
            (TurnStage::ConfirmingFence, Event::Confirmed(true)) => {
                self.fenced_by_a_stranger(&turn, at, out);
            }
            (TurnStage::Recording, Event::Committed(CommitOutcome::Known(_))) => {
                self.recorded(*turn, at, out);
            }
            (TurnStage::Recording, Event::Committed(_)) => self.doubt(*turn, at, out),
            (TurnStage::Quarantining(reason), Event::Committed(outcome)) => {
                Self::alert_quarantined(reason, outcome, out);
                self.go(at, out);
            }
            (stage, _) => {
                self.phase = Phase::Turn(stage, turn);
                out.push(Effect::Alert(Alert::Unexpected));
            }
        }
    }

    pub(in crate::protocol::machine) fn await_turn(
        &mut self,
        stage: TurnStage,
        turn: Box<Turn>,
        effect: Effect,
        out: &mut Vec<Effect>,
    ) {
        out.push(effect);
        self.phase = Phase::Turn(stage, turn);
    }

    pub(in crate::protocol::machine) fn checking(
        &mut self,
        mut turn: Box<Turn>,
        outcome: LockOutcome,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        match outcome {
            LockOutcome::Failed => {
                self.put_back(turn.operations, false);
                self.refuse_waiting(&Refusal::PostgresUnavailable, at, out);
            }
            LockOutcome::Absent => {
                self.drop_producer(out);
                self.put_back(turn.operations, false);
                self.refuse_waiting(&Refusal::LeaseNotFound, at, out);
            }
            LockOutcome::Locked(locked) => {
                let look_again = turn.operations.iter().any(|w| self.is_lease_over(&locked, w));
                turn.locked = Some(locked);
                if look_again {
                    // A renew may be about to commit: only the locked row says that it is over.
                    self.await_turn(TurnStage::CheckingLease, turn, Effect::LockLease, out);
                } else {
                    self.checked(turn, at, out);
                }
            }
        }
    }

    pub(in crate::protocol::machine) fn lease_reread(
        &mut self,
        mut turn: Box<Turn>,
        reread: Option<(crate::protocol::fence::LeaseRow, DbTime)>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        match (&mut turn.locked, reread) {
            (Some(locked), Some((lease, now))) => {
                locked.lease = lease;
                locked.now = now;
                self.checked(turn, at, out);
            }
            (_, _) => {
                out.push(Effect::EndSession);
                self.put_back(turn.operations, false);
                self.refuse_waiting(&Refusal::PostgresUnavailable, at, out);
            }
        }
    }

    /// I1, I2: everything is decided here, under the lock of the session that will write.
    pub(in crate::protocol::machine) fn checked(
        &mut self,
        mut turn: Box<Turn>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(locked) = turn.locked.take() else {
            return out.push(Effect::Alert(Alert::Unexpected));
        };
        self.quarantined = locked.fence.quarantine.is_some();
        let operations = std::mem::take(&mut turn.operations);
        let (mut live, ahead) = self.answer_judged(operations, &locked, turn.glimpse, out);
        // The lock may have been waited for until after the deadline.
        live.retain(|w| Self::in_time(w, at, out));
        let usable = self.handle.as_ref().filter(|h| h.matches(&locked.fence, self.setting.home));
        let handle = usable.cloned();
        if handle.is_none() {
            self.drop_producer(out);
        }
        if let Some(token) = ahead {
            let reason = Self::ahead_reason(token);
            self.drop_producer(out);
            turn.operations = live;
            self.put_back(turn.operations, false);
            out.push(Effect::Commit(Write::Quarantine { reason: reason.clone() }));
            let turn = Turn::default();
            self.phase = Phase::Turn(TurnStage::Quarantining(reason), Box::new(turn));
            return;
        }
        turn.operations = live;
        let Some(handle) = handle.filter(|_| !turn.operations.is_empty()) else {
            // This transaction ends before an open begins, so that a gateway that has just opened
            // gets its batch in between (MODEL-2 H14).
            out.push(Effect::EndSession);
            self.put_back(turn.operations, false);
            return self.go(at, out);
        };
        turn.seq = handle.seq.next();
        turn.locked = Some(locked);
        let operations =
            turn.operations.iter().map(|w| (w.id.clone(), Arc::clone(&w.records))).collect();
        let effect = Effect::Send { seq: turn.seq, token: handle.token, operations };
        self.await_turn(TurnStage::Sending, turn, effect, out);
    }

    /// Why a lease is quarantined whose row is below what a caller and the ledger both know.
    pub(in crate::protocol::machine) fn ahead_reason(token: FencingToken) -> String {
        format!("a credential and the ledger carry token {token}, the row does not")
    }

    /// The verdict on one that waits, by its own credential.
    pub(in crate::protocol::machine) fn judged(&self, locked: &Locked, w: &Waiting) -> Verdict {
        let retention_s = self.setting.retention_s;
        let mut given = (Cow::Borrowed(locked), Cow::Borrowed(&w.credential));
        if self.setting.bugs.has(Bug::NoDedup) {
            given.0.to_mut().found.clear();
        }
        if self.setting.bugs.has(Bug::NoTokenCheck) {
            let credential = given.1.to_mut();
            credential.token = locked.fence.token;
            credential.incarnation = locked.fence.incarnation;
            credential.owner = locked.fence.owner.clone();
        }
        judge(&given.0, &given.1, &w.id, &w.fingerprint, retention_s)
    }

    /// Under an open's lock: answers those of the `asked` first, which it looked up, that can be
    /// answered. True if some are still to be sent; and a token that only the ledger has.
    pub(in crate::protocol::machine) fn judge_waiting(
        &mut self,
        locked: &Locked,
        glimpse: FencingToken,
        asked: usize,
        out: &mut Vec<Effect>,
    ) -> (bool, Option<FencingToken>) {
        // I2: one that was queued after the lock was asked for is not looked up yet.
        let count = asked.min(self.pending.len());
        let operations = self.pending.drain(..count).collect();
        let (live, ahead) = self.answer_judged(operations, locked, glimpse, out);
        let some = !live.is_empty();
        for waiting in live.into_iter().rev() {
            self.pending.push_front(waiting);
        }
        (some, ahead)
    }

    /// Answers what can be answered; gives back what may be sent, and a token that the ledger has
    /// and the row has not.
    pub(in crate::protocol::machine) fn answer_judged(
        &self,
        operations: Vec<Waiting>,
        locked: &Locked,
        glimpse: FencingToken,
        out: &mut Vec<Effect>,
    ) -> (Vec<Waiting>, Option<FencingToken>) {
        let mut live = Vec::new();
        let mut ahead = None;
        for w in operations {
            let reply = match self.judged(locked, &w) {
                Verdict::Live => {
                    live.push(w);
                    continue;
                }
                Verdict::Replay(stored) => Reply::Produced { stored, replayed: !w.in_doubt },
                Verdict::Refused(refusal) => Reply::Refused(refusal),
                Verdict::Ahead => {
                    let (token, current) = (w.credential.token, locked.fence.token);
                    out.push(Effect::Alert(Alert::CredentialAhead { token, current }));
                    if glimpse >= token {
                        ahead = Some(token);
                    }
                    Reply::Refused(Refusal::Quarantined)
                }
            };
            out.push(Effect::Reply(w.ticket, reply));
        }
        (live, ahead)
    }

    pub(in crate::protocol::machine) fn sent(
        &mut self,
        mut turn: Box<Turn>,
        placed: Vec<Placed>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let mut placed = placed.into_iter();
        let mut accepted = Vec::new();
        for w in &turn.operations {
            let own: Vec<Placed> = placed.by_ref().take(w.records.len()).collect();
            if own.len() != w.records.len() {
                return self.doubt(*turn, at, out);
            }
            let (id, fingerprint) = (w.id.clone(), w.fingerprint);
            accepted.push(Accepted { id, fingerprint, runs: fold_runs(&own) });
        }
        turn.accepted = accepted;
        let Some(handle) = &self.handle else { return self.doubt(*turn, at, out) };
        let batch = Batch {
            token: handle.token,
            owner: handle.owner.clone(),
            incarnation: handle.incarnation,
            seq: turn.seq,
            operations: turn.accepted.clone(),
        };
        self.await_turn(TurnStage::Ledger, turn, Effect::SendLedger(batch), out);
    }

    /// I6: both commits are known.
    pub(in crate::protocol::machine) fn recorded(
        &mut self,
        turn: Turn,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        self.doubts = 0;
        if let Some(handle) = &mut self.handle {
            handle.seq = turn.seq;
        }
        self.answer_accepted(&turn, out);
        if turn.dirty {
            self.drop_producer(out);
        }
        self.go(at, out);
    }
}

impl LeaseMachine {
    fn answer_accepted(&self, turn: &Turn, out: &mut Vec<Effect>) {
        let Some(handle) = &self.handle else { return };
        let (token, incarnation, seq) = (handle.token, handle.incarnation, turn.seq);
        for (w, accepted) in turn.operations.iter().zip(&turn.accepted) {
            let stored = Stored { accepted: accepted.clone(), token, incarnation, seq };
            out.push(Effect::Reply(w.ticket, Reply::Produced { stored, replayed: false }));
        }
    }
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            operations: Vec::new(),
            locked: None,
            glimpse: FencingToken(0),
            seq: BatchSeq(0),
            accepted: Vec::new(),
            dirty: false,
        }
    }
}
