//! What an open does with the rows that it has just locked.
//!
//! Owns who may acquire, the draw of a token under the lock
//! (I4), and the answers that the rows alone give.

use super::types::*;
use super::{DRAWS_MAX, LeaseMachine, RESTARTS_MAX};
use crate::protocol::batch::Waiting;
use crate::protocol::fence::{LeaseRow, Locked, Verdict};
use crate::protocol::lease::{DbTime, FencingToken};
use crate::protocol::reconcile::OpenKind;
use crate::protocol::refusal::Refusal;

impl LeaseMachine {
    pub(in crate::protocol::machine) fn open_locked(
        &mut self,
        mut open: Box<Open>,
        outcome: LockOutcome,
        glimpse: FencingToken,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let locked = match outcome {
            LockOutcome::Failed => {
                return self.refuse_job(open.job, Refusal::PostgresUnavailable, at, out);
            }
            LockOutcome::Absent => return self.rows_absent(open.job, at, out),
            LockOutcome::Locked(locked) => locked,
        };
        self.quarantined = locked.fence.quarantine.is_some();
        // Two opens must not share a mark: it tells one's handle from the other's.
        if locked.fence.nonce == Some(open.nonce) {
            out.push(Effect::EndSession);
            return self.refuse_job(open.job, Refusal::PostgresUnavailable, at, out);
        }
        open.token = locked.fence.token;
        match open.job.clone() {
            Job::Acquire(acquire) => self.acquire_locked(open, acquire, locked, out),
            Job::Produce => {
                open.glimpse = glimpse;
                open.locked = Some(locked);
                self.produce_locked(open, at, out);
            }
            Job::Release(release) => match Self::release_answer(&locked, &release, &self.setting) {
                Some(reply) => self.answer_under_lock(release.ticket, reply, out),
                None => {
                    open.locked = Some(locked);
                    self.init_open(open, out);
                }
            },
            Job::Settle(ticket) => self.settle_locked(open, ticket, locked, out),
        }
    }

    /// An acquire whose rows are gone makes them once more: the database went back, and the ledger
    /// decides whether the token that it draws is good.
    fn rows_absent(&mut self, job: Job, at: u64, out: &mut Vec<Effect>) {
        self.ensured = false;
        match job {
            Job::Acquire(mut acquire) if acquire.restarts < RESTARTS_MAX => {
                acquire.restarts = acquire.restarts.saturating_add(1);
                self.start_open(Job::Acquire(acquire), out);
            }
            job @ Job::Acquire(_) => {
                self.refuse_job(job, Refusal::PostgresUnavailable, at, out);
            }
            job @ (Job::Produce | Job::Release(_) | Job::Settle(_)) => {
                self.refuse_job(job, Refusal::LeaseNotFound, at, out);
            }
        }
    }

    /// A re-open for waiting operations: those that the rows answer are answered; the others need a
    /// producer.
    fn produce_locked(&mut self, mut open: Box<Open>, at: u64, out: &mut Vec<Effect>) {
        let Some(locked) = open.locked.take() else {
            return out.push(Effect::Alert(Alert::Unexpected));
        };
        if !open.lease_locked && self.finds_lease_over(&locked, open.asked) {
            open.locked = Some(locked);
            // A renew may be about to commit: only the locked row says that it is over.
            return self.await_open(OpenStage::Rereading, open, Effect::LockLease, out);
        }
        match self.judge_waiting(&locked, open.glimpse, open.asked, out) {
            (_, Some(token)) => {
                open.locked = Some(locked);
                self.quarantine_open(open, &Self::ahead_reason(token), out);
            }
            (true, None) => {
                open.locked = Some(locked);
                self.init_open(open, out);
            }
            (false, None) => {
                out.push(Effect::EndSession);
                self.go(at, out);
            }
        }
    }

    pub(in crate::protocol::machine) fn open_reread(
        &mut self,
        mut open: Box<Open>,
        reread: Option<(LeaseRow, DbTime)>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        match (&mut open.locked, reread) {
            (Some(locked), Some((lease, now))) => {
                locked.lease = lease;
                locked.now = now;
                open.lease_locked = true;
                self.produce_locked(open, at, out);
            }
            (_, _) => {
                out.push(Effect::EndSession);
                self.refuse_job(open.job, Refusal::PostgresUnavailable, at, out);
            }
        }
    }

    /// One of the first `asked` operations would be refused because the lease is over.
    fn finds_lease_over(&self, locked: &Locked, asked: usize) -> bool {
        self.pending.iter().take(asked).any(|w| self.is_lease_over(locked, w))
    }

    pub(in crate::protocol::machine) fn is_lease_over(&self, locked: &Locked, w: &Waiting) -> bool {
        matches!(self.judged(locked, w), Verdict::Refused(Refusal::LeaseExpired { .. }))
    }

    pub(in crate::protocol::machine) fn answer_under_lock(
        &mut self,
        ticket: u64,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Reply(ticket, reply));
        out.push(Effect::EndSession);
    }

    pub(in crate::protocol::machine) fn settle_locked(
        &mut self,
        mut open: Box<Open>,
        ticket: u64,
        locked: Box<Locked>,
        out: &mut Vec<Effect>,
    ) {
        let reply = if locked.fence.quarantine.is_some() {
            Some(Reply::Refused(Refusal::Quarantined))
        } else if locked.lease.is_held(locked.now) {
            Some(Reply::Refused(Refusal::LeaseHeld {
                holder: locked.lease.owner.clone(),
                expires_in_ms: locked.lease.expires_at.ms_after(locked.now),
            }))
        } else if locked.lease.released || locked.fence.token.0 == 0 {
            // A release's or an earlier settle's COMMIT has decided everything already.
            Some(Reply::Settled)
        } else {
            None
        };
        match reply {
            Some(reply) => self.answer_under_lock(ticket, reply, out),
            None => {
                open.locked = Some(locked);
                self.init_open(open, out);
            }
        }
    }

    pub(in crate::protocol::machine) fn acquire_locked(
        &mut self,
        mut open: Box<Open>,
        mut acquire: Acquire,
        locked: Box<Locked>,
        out: &mut Vec<Effect>,
    ) {
        let (fence, lease, now) = (&locked.fence, &locked.lease, locked.now);
        let held = lease.is_held(now);
        let current = fence.token;
        let refuse = |refusal| Reply::Refused(refusal);
        // Nothing is to be waited for where only the request id is somebody else's.
        let rest = if held { lease.expires_at.ms_after(now) } else { 0 };
        let held_by = || Refusal::LeaseHeld { holder: lease.owner.clone(), expires_in_ms: rest };
        let asked_before = acquire.request_id.is_some()
            && acquire.request_id == lease.request_id
            && acquire.identity == lease.identity;
        let same_owner = acquire.owner == lease.owner;
        let its_own = acquire.drew == Some(current) && lease.token == current;
        if fence.quarantine.is_some() {
            return self.answer_under_lock(acquire.ticket, refuse(Refusal::Quarantined), out);
        }
        // The request id comes before `replace`, else a repeat ends the lease that its first
        // attempt won (MODEL-2 H12).
        if its_own || (asked_before && same_owner) {
            if !held || lease.token != current {
                let refusal = Self::lease_over(&locked);
                return self.answer_under_lock(acquire.ticket, refuse(refusal), out);
            }
            open.kind = OpenKind::Reopen;
            open.locked = Some(locked);
            return self.init_open(open, out);
        }
        if asked_before {
            return self.answer_under_lock(acquire.ticket, refuse(held_by()), out);
        }
        if held {
            if acquire.replace && same_owner && acquire.identity == lease.identity {
                // Commits the expiry of the token it saw, then starts again with every check.
                acquire.replace = false;
                open.job = Job::Acquire(acquire);
                open.locked = Some(locked);
                return self.commit_open(open, Meaning::Expired, out);
            }
            return self.answer_under_lock(acquire.ticket, refuse(held_by()), out);
        }
        open.locked = Some(locked);
        self.await_open(OpenStage::Drawing, open, Effect::DrawToken, out);
    }

    /// I4: a token at or below the row's is burnt and drawn again, never installed.
    pub(in crate::protocol::machine) fn drawn(
        &mut self,
        mut open: Box<Open>,
        token: Option<FencingToken>,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(token) = token else {
            out.push(Effect::EndSession);
            return self.refuse_job(open.job, Refusal::PostgresUnavailable, at, out);
        };
        open.draws = open.draws.saturating_add(1);
        if token > open.token {
            open.token = token;
            return self.init_open(open, out);
        }
        if open.draws < DRAWS_MAX {
            return self.await_open(OpenStage::Drawing, open, Effect::DrawToken, out);
        }
        out.push(Effect::Alert(Alert::SequenceBehind));
        out.push(Effect::EndSession);
        self.refuse_job(open.job, Refusal::Quarantined, at, out);
    }
}
