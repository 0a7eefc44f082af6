//! Open: make a lease's producer usable, always under the fence row's lock, always with a new
//! producer.
//!
//! Owns the order init, barrier, decision, state record, COMMIT.
//! Carries I3 (a handle only after a known COMMIT) and I4 (the decision of `reconcile`).

use super::LeaseMachine;
use super::types::*;
use crate::protocol::bug::Bug;
use crate::protocol::fence::Locked;
use crate::protocol::lease::{BatchSeq, FencingToken, Nonce, Owner};
use crate::protocol::ledger::{Batch, StateRecord};
use crate::protocol::operation::Stored;
use crate::protocol::reconcile::{Decision, Knowledge, OpenKind, decide};
use crate::protocol::refusal::Refusal;

impl Open {
    fn new(job: Job) -> Self {
        let kind = match job {
            Job::Acquire(_) => OpenKind::Acquire,
            Job::Produce => OpenKind::Reopen,
            Job::Release(_) => OpenKind::Release,
            Job::Settle(_) => OpenKind::Settle,
        };
        Self {
            job,
            kind,
            locked: None,
            token: FencingToken(0),
            nonce: Nonce([0; 16]),
            glimpse: FencingToken(0),
            lease_locked: false,
            draws: 0,
            asked: 0,
            barrier: None,
            known: Knowledge::default(),
            batch: None,
            redo: false,
            retire: false,
            dirty: false,
        }
    }

    /// Holder of the token to be opened.
    pub(super) fn owner(&self) -> Owner {
        match (&self.job, &self.locked) {
            (Job::Acquire(acquire), _) => acquire.owner.clone(),
            (_, Some(locked)) => locked.fence.owner.clone(),
            (_, None) => Owner::nobody(),
        }
    }

    /// Row's seq after the redo.
    pub(super) fn seq(&self, locked: &Locked) -> BatchSeq {
        if self.redo { locked.fence.seq.next() } else { locked.fence.seq }
    }

    pub(super) fn redone(&self) -> Option<Batch> {
        if self.redo { self.batch.clone() } else { None }
    }
}

impl LeaseMachine {
    /// Begins an open: without a lock until the tail is where it must be.
    pub(in crate::protocol::machine) fn start_open(&mut self, job: Job, out: &mut Vec<Effect>) {
        out.push(Effect::AwaitTail { past: self.barrier_debt });
        self.phase = Phase::Open(OpenStage::Tail, Box::new(Open::new(job)));
    }

    pub(in crate::protocol::machine) fn open_step(
        &mut self,
        stage: OpenStage,
        mut open: Box<Open>,
        event: Event,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        match (stage, event) {
            (OpenStage::Tail, Event::TailReady(true)) => {
                self.barrier_debt = None;
                if open.kind == OpenKind::Acquire && !self.ensured {
                    self.await_open(OpenStage::Ensuring, open, Effect::Ensure, out);
                } else {
                    self.lock_open(open, out);
                }
            }
            (OpenStage::Tail, Event::TailReady(false)) => {
                self.refuse_job(open.job, Refusal::KafkaUnavailable, at, out);
            }
            (OpenStage::Ensuring, Event::Ensured(true)) => {
                self.ensured = true;
                self.lock_open(open, out);
            }
            (OpenStage::Ensuring, Event::Ensured(false)) => {
                self.refuse_job(open.job, Refusal::PostgresUnavailable, at, out);
            }
            (OpenStage::Locking, Event::Locked { outcome, fresh, glimpse }) => {
                open.nonce = fresh;
                self.open_locked(open, outcome, glimpse, at, out);
            }
            (OpenStage::Rereading, Event::LeaseLocked(reread)) => {
                self.open_reread(open, reread, at, out);
            }
            (OpenStage::Drawing, Event::Drawn(token)) => self.drawn(open, token, at, out),
            (OpenStage::Initialising, Event::Opened(Ok(()))) => {
                let nonce = open.nonce;
                self.await_open(OpenStage::Barrier, open, Effect::WriteBarrier { nonce }, out);
            }
            (OpenStage::Barrier, Event::BarrierWritten(Ok((offset, true)))) => {
                open.barrier = Some(offset);
                self.await_open(OpenStage::Seeing, open, Effect::AwaitBarrier, out);
            }
            // A dirty end could still commit the next transaction of this epoch (MODEL C5).
            (OpenStage::Barrier, Event::BarrierWritten(Ok((_, false)))) => {
                self.open_failed(open, KafkaFailure::Doubt, at, out);
            }
            (OpenStage::Seeing, Event::BarrierSeen(Some(known))) => {
                open.known = known;
                self.decided(open, at, out);
            }
            (OpenStage::Seeing, Event::BarrierSeen(None)) => {
                self.barrier_debt = open.barrier;
                self.open_failed(open, KafkaFailure::Doubt, at, out);
            }
            (OpenStage::Reading, Event::BatchRead(batch)) => self.batch_read(open, batch, at, out),
            (OpenStage::Finding, Event::Found(found)) => self.redo_found(open, found, at, out),
            (OpenStage::State, Event::StateWritten(Ok(clean))) => {
                open.dirty = !clean;
                self.commit_open(open, Meaning::Opened, out);
            }
            // Nothing was initialised, so another gateway's handle is as good as it was.
            (OpenStage::Initialising, Event::Opened(Err(KafkaFailure::Unreached))) => {
                self.drop_producer(out);
                out.push(Effect::EndSession);
                self.refuse_job(open.job, Refusal::KafkaUnavailable, at, out);
            }
            (OpenStage::Initialising, Event::Opened(Err(failure)))
            | (OpenStage::Barrier, Event::BarrierWritten(Err(failure)))
            | (OpenStage::State, Event::StateWritten(Err(failure))) => {
                self.open_failed(open, failure, at, out);
            }
            (OpenStage::Committing(meaning), Event::Committed(outcome)) => {
                self.open_committed(open, meaning, outcome, at, out);
            }
            (stage, _) => {
                self.phase = Phase::Open(stage, open);
                out.push(Effect::Alert(Alert::Unexpected));
            }
        }
    }

    pub(in crate::protocol::machine) fn await_open(
        &mut self,
        stage: OpenStage,
        open: Box<Open>,
        effect: Effect,
        out: &mut Vec<Effect>,
    ) {
        out.push(effect);
        self.phase = Phase::Open(stage, open);
    }

    pub(in crate::protocol::machine) fn lock_open(
        &mut self,
        mut open: Box<Open>,
        out: &mut Vec<Effect>,
    ) {
        let operations = match open.job {
            Job::Produce => self.next_ids(),
            Job::Acquire(_) | Job::Release(_) | Job::Settle(_) => Vec::new(),
        };
        open.asked = operations.len();
        // A re-open waits for Kafka with this lock: renew must not wait with it, so the lease row
        // is locked only where the lease is found to be over.
        let both = open.job != Job::Produce;
        self.await_open(OpenStage::Locking, open, Effect::Lock { both, operations }, out);
    }

    pub(in crate::protocol::machine) fn init_open(
        &mut self,
        open: Box<Open>,
        out: &mut Vec<Effect>,
    ) {
        self.drop_producer(out);
        // Whatever the outcome, a client may exist from here on.
        self.producer = true;
        self.await_open(OpenStage::Initialising, open, Effect::OpenProducer, out);
    }

    pub(in crate::protocol::machine) fn decided(
        &mut self,
        mut open: Box<Open>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(locked) = &open.locked else {
            return self.open_failed(open, KafkaFailure::Doubt, at, out);
        };
        let (row, database) = (&locked.fence, locked.incarnation);
        let decision = decide(open.kind, open.token, &open.owner(), row, database, &open.known);
        match self.with_bugs(decision, row.seq, &open.known) {
            Decision::Quarantine(reason) => return self.quarantine_open(open, reason, out),
            Decision::Go { redo } => open.redo = redo,
            Decision::Retire { redo } => {
                open.redo = redo;
                open.retire = true;
            }
        }
        match open.known.last.as_ref().map(|last| last.offset) {
            // Read, checked and kept before anything more is written.
            Some(offset) => {
                self.await_open(OpenStage::Reading, open, Effect::ReadBatch { offset }, out);
            }
            None => self.after_decision(open, out),
        }
    }

    fn with_bugs(&self, decision: Decision, row: BatchSeq, known: &Knowledge) -> Decision {
        let bugs = self.setting.bugs;
        match decision {
            Decision::Go { .. } if bugs.has(Bug::NoRedo) => Decision::Go { redo: false },
            Decision::Quarantine(_) if bugs.has(Bug::RegressIgnored) => {
                let redo = known.last.as_ref().is_some_and(|last| last.seq == row.next());
                Decision::Go { redo }
            }
            Decision::Go { .. } | Decision::Retire { .. } | Decision::Quarantine(_) => decision,
        }
    }

    pub(in crate::protocol::machine) fn batch_read(
        &mut self,
        mut open: Box<Open>,
        batch: Option<Batch>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let wanted = open.known.last.as_ref().map(|last| (last.seq, last.token));
        match batch {
            Some(batch) if Some((batch.seq, batch.token)) == wanted => {
                let ids = batch.operations.iter().map(|op| op.id.clone()).collect();
                open.batch = Some(batch);
                if open.redo {
                    let effect = Effect::FindOperations(ids);
                    self.await_open(OpenStage::Finding, open, effect, out);
                } else {
                    self.after_decision(open, out);
                }
            }
            Some(_) | None => self.open_failed(open, KafkaFailure::Doubt, at, out),
        }
    }

    /// A redo is idempotent: what it meets must be the same operation of the same batch.
    pub(in crate::protocol::machine) fn redo_found(
        &mut self,
        open: Box<Open>,
        found: Option<Vec<Stored>>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(found) = found else {
            self.drop_producer(out);
            out.push(Effect::EndSession);
            return self.refuse_job(open.job, Refusal::PostgresUnavailable, at, out);
        };
        let same = |stored: &Stored, batch: &Batch| {
            stored.seq == batch.seq
                && batch.operations.iter().any(|op| {
                    op.id == stored.accepted.id && op.fingerprint == stored.accepted.fingerprint
                })
        };
        let agrees = open.batch.as_ref().is_some_and(|b| found.iter().all(|s| same(s, b)));
        if agrees {
            self.after_decision(open, out);
        } else {
            let reason = "an operation of the batch to redo is stored with other records or seq";
            self.quarantine_open(open, reason, out);
        }
    }

    pub(in crate::protocol::machine) fn after_decision(
        &mut self,
        open: Box<Open>,
        out: &mut Vec<Effect>,
    ) {
        if open.retire {
            return self.commit_open(open, Meaning::Retired, out);
        }
        match open.kind {
            OpenKind::Settle => self.commit_open(open, Meaning::Settled, out),
            OpenKind::Release => self.commit_open(open, Meaning::Released, out),
            OpenKind::Acquire | OpenKind::Reopen => {
                let incarnation = match (&open.locked, open.kind) {
                    (Some(locked), OpenKind::Acquire) => locked.incarnation,
                    (Some(locked), _) => locked.fence.incarnation,
                    (None, _) => open.known.incarnation,
                };
                let state = StateRecord {
                    token: open.token,
                    owner: open.owner(),
                    incarnation,
                    nonce: open.nonce,
                    last_batch: open.batch.clone(),
                };
                self.await_open(OpenStage::State, open, Effect::WriteState(state), out);
            }
        }
    }
}
