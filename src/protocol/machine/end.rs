//! Release: the holder gives the lease back.
//!
//! Owns the short way (this gateway's handle matches and nothing is in doubt: one COMMIT) and the
//! judgement that the long way, an open, shares with it.

use super::types::*;
use super::{LeaseMachine, RESTARTS_MAX, Setting};
use crate::protocol::fence::{Locked, Standing, Write, standing};
use crate::protocol::lease::Nonce;
use crate::protocol::refusal::{Refusal, SideEffect};

impl LeaseMachine {
    pub(super) fn start_release(&mut self, release: Release, out: &mut Vec<Effect>) {
        if self.handle.is_none() || !self.pending.is_empty() {
            return self.start_open(Job::Release(release), out);
        }
        out.push(Effect::Lock { both: true, operations: Vec::new() });
        self.phase = Phase::Release(release);
    }

    /// The answer that the rows alone give; `None` where the release is still to be done.
    pub(super) fn release_answer(
        locked: &Locked,
        release: &Release,
        setting: &Setting,
    ) -> Option<Reply> {
        let credential = &release.credential;
        match standing(locked, credential, setting.retention_s) {
            // A release says nothing of operations, so an old credential changes nothing.
            Standing::Over(Refusal::LeaseReleased { .. }) => Some(Reply::Released),
            Standing::Over(refusal) => Some(Reply::Refused(refusal)),
            Standing::Ahead => Some(Reply::Refused(Refusal::Quarantined)),
            Standing::Live => None,
        }
    }

    pub(super) fn release_locked(
        &mut self,
        release: Release,
        outcome: LockOutcome,
        _fresh: Nonce,
        out: &mut Vec<Effect>,
    ) {
        let refuse = |refusal| Reply::Refused(refusal);
        let locked = match outcome {
            LockOutcome::Failed => {
                let reply = refuse(Refusal::PostgresUnavailable);
                return out.push(Effect::Reply(release.ticket, reply));
            }
            LockOutcome::Absent => {
                let reply = refuse(Refusal::LeaseNotFound);
                return out.push(Effect::Reply(release.ticket, reply));
            }
            LockOutcome::Locked(locked) => locked,
        };
        if let Some(reply) = Self::release_answer(&locked, &release, &self.setting) {
            return self.answer_under_lock(release.ticket, reply, out);
        }
        let usable =
            self.handle.as_ref().is_some_and(|h| h.matches(&locked.fence, self.setting.home));
        self.drop_producer(out);
        if usable {
            let seq = locked.fence.seq;
            out.push(Effect::Commit(Write::Release { nonce: None, seq, redo: None }));
            self.phase = Phase::Releasing(release);
        } else {
            // Another gateway opened it: what it left is found out under one lock.
            out.push(Effect::EndSession);
            self.start_open(Job::Release(release), out);
        }
    }

    /// Answered only after the COMMIT is known.
    pub(super) fn released(
        &mut self,
        mut release: Release,
        outcome: CommitOutcome,
        out: &mut Vec<Effect>,
    ) {
        match outcome {
            CommitOutcome::Known(_) => out.push(Effect::Reply(release.ticket, Reply::Released)),
            CommitOutcome::Failed | CommitOutcome::Unknown if release.restarts < RESTARTS_MAX => {
                release.restarts = release.restarts.saturating_add(1);
                self.start_open(Job::Release(release), out);
            }
            CommitOutcome::Failed | CommitOutcome::Unknown => {
                let reply = Reply::Refused(Refusal::PostgresUnavailable);
                out.push(Effect::Reply(release.ticket, reply));
            }
        }
    }

    /// What is said of a lease that is over, to one that cannot prove more.
    pub(super) fn lease_over(locked: &Locked) -> Refusal {
        let current = locked.fence.token;
        if locked.lease.released {
            Refusal::LeaseReleased { current, side_effect: SideEffect::Maybe }
        } else {
            Refusal::LeaseExpired { current, side_effect: SideEffect::Maybe }
        }
    }
}
