//! How an open ends: its COMMIT, the handle, the answers.
//!
//! Carries I3: a handle comes to be in `opened` and nowhere else. Owns what follows a COMMIT that
//! is not known to have succeeded.

use super::types::*;
use super::{LeaseMachine, RESTARTS_MAX};
use crate::protocol::fence::{Committed, Handle, Write};
use crate::protocol::reconcile::OpenKind;
use crate::protocol::refusal::Refusal;

impl LeaseMachine {
    pub(in crate::protocol::machine) fn quarantine_open(
        &mut self,
        open: Box<Open>,
        reason: &str,
        out: &mut Vec<Effect>,
    ) {
        self.drop_producer(out);
        out.push(Effect::Commit(Write::Quarantine { reason: reason.to_owned() }));
        let meaning = Meaning::Quarantined(reason.to_owned());
        self.phase = Phase::Open(OpenStage::Committing(meaning), open);
    }

    /// Said after the COMMIT, and not if it certainly failed: what a dead session saw under a lock
    /// that it has lost may be no contradiction at all.
    pub(in crate::protocol::machine) fn alert_quarantined(
        reason: String,
        outcome: CommitOutcome,
        out: &mut Vec<Effect>,
    ) {
        if outcome != CommitOutcome::Failed {
            out.push(Effect::Alert(Alert::Quarantined { reason }));
        }
    }

    /// An open that fails while its session lives commits a fresh nonce and nothing else.
    pub(in crate::protocol::machine) fn open_failed(
        &mut self,
        open: Box<Open>,
        failure: KafkaFailure,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let refusal = match failure {
            KafkaFailure::Unreached | KafkaFailure::Doubt | KafkaFailure::Record { .. } => {
                Refusal::KafkaUnavailable
            }
            KafkaFailure::Denied { resource } => Refusal::KafkaDenied { resource },
            KafkaFailure::Fenced => {
                let retry_after_ms = self.count_fencing(at, out);
                Refusal::ProducerFenced { retry_after_ms }
            }
        };
        self.drop_producer(out);
        out.push(Effect::Commit(Write::Nonce { nonce: open.nonce }));
        self.phase = Phase::Open(OpenStage::Committing(Meaning::Failed(refusal)), open);
    }

    pub(in crate::protocol::machine) fn commit_open(
        &mut self,
        open: Box<Open>,
        meaning: Meaning,
        out: &mut Vec<Effect>,
    ) {
        let Some(locked) = &open.locked else {
            self.phase = Phase::Open(OpenStage::Committing(meaning), open);
            return out.push(Effect::Alert(Alert::Unexpected));
        };
        let (nonce, seq, redo) = (open.nonce, open.seq(locked), open.redone());
        let write = match (&meaning, &open.job) {
            (Meaning::Opened, Job::Acquire(acquire)) if open.kind == OpenKind::Acquire => {
                Write::Install {
                    token: open.token,
                    owner: acquire.owner.clone(),
                    identity: acquire.identity.clone(),
                    ttl_ms: acquire.ttl_ms,
                    request_id: acquire.request_id.clone(),
                    incarnation: locked.incarnation,
                    nonce,
                    seq,
                    redo,
                }
            }
            (Meaning::Opened, _) => Write::Reopen { nonce, seq, redo },
            (Meaning::Retired, _) => Write::Retire { nonce, seq, redo },
            (Meaning::Released, _) => Write::Release { nonce: Some(nonce), seq, redo },
            (Meaning::Settled, _) => Write::Settle { nonce, seq, redo },
            (Meaning::Expired, _) => Write::Expire,
            (Meaning::Failed(_) | Meaning::Quarantined(_), _) => Write::Nonce { nonce },
        };
        // A producer that will not be used goes before the lock does.
        let keeps = meaning == Meaning::Opened && !open.dirty;
        if !keeps && meaning != Meaning::Expired {
            self.drop_producer(out);
        }
        out.push(Effect::Commit(write));
        self.phase = Phase::Open(OpenStage::Committing(meaning), open);
    }

    pub(in crate::protocol::machine) fn open_committed(
        &mut self,
        open: Box<Open>,
        meaning: Meaning,
        outcome: CommitOutcome,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let known = match outcome {
            CommitOutcome::Known(committed) => Some(committed),
            CommitOutcome::Failed | CommitOutcome::Unknown => None,
        };
        if meaning == Meaning::Retired && known.is_some() {
            out.push(Effect::Alert(Alert::Retired));
        }
        match (meaning, known) {
            (Meaning::Failed(refusal), _) => self.refuse_job(open.job, refusal, at, out),
            (Meaning::Quarantined(reason), _) => {
                Self::alert_quarantined(reason, outcome, out);
                self.quarantined = true;
                self.refuse_job(open.job, Refusal::Quarantined, at, out);
            }
            (Meaning::Opened, Some(committed)) => self.opened(*open, committed, at, out),
            // Each waiter is judged again: what was redone is found and replayed.
            (Meaning::Retired, Some(_)) if open.job == Job::Produce => self.go(at, out),
            (Meaning::Retired, Some(_)) => {
                let refusal = open.locked.as_ref().map(|locked| Self::lease_over(locked));
                let refusal = refusal.unwrap_or(Refusal::PostgresUnavailable);
                self.refuse_job(open.job, refusal, at, out);
            }
            (Meaning::Expired, Some(_)) => self.start_open(open.job, out),
            (Meaning::Released, Some(_)) => self.reply_job(&open.job, Reply::Released, out),
            (Meaning::Settled, Some(_)) => self.reply_job(&open.job, Reply::Settled, out),
            (Meaning::Opened | Meaning::Released, None) => self.restart(*open, at, out),
            (Meaning::Retired | Meaning::Settled | Meaning::Expired, None) => {
                self.refuse_job(open.job, Refusal::PostgresUnavailable, at, out);
            }
        }
    }

    /// I3: here, and only here, a handle comes to be.
    pub(in crate::protocol::machine) fn opened(
        &mut self,
        open: Open,
        committed: Committed,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(locked) = &open.locked else { return };
        let is_acquire = open.kind == OpenKind::Acquire;
        let incarnation = if is_acquire { locked.incarnation } else { locked.fence.incarnation };
        if !open.dirty {
            self.handle = Some(Handle {
                token: open.token,
                owner: open.owner(),
                incarnation,
                nonce: open.nonce,
                seq: open.seq(locked),
            });
            // Usable at once: who waits need not sit out the back-off of an earlier failure.
            self.resume_at = at;
        }
        match &open.job {
            Job::Acquire(acquire) => out.push(Effect::Reply(
                acquire.ticket,
                Reply::Granted {
                    token: open.token,
                    incarnation,
                    ttl_ms: if is_acquire { acquire.ttl_ms } else { locked.lease.ttl_ms },
                    expires_at: committed.expires_at,
                    now: committed.now,
                },
            )),
            // Step 1 from its start, with each waiter's own token.
            Job::Produce => self.go(at, out),
            Job::Release(_) | Job::Settle(_) => {}
        }
    }

    /// The COMMIT is not known to have succeeded: nothing is usable, open again.
    pub(in crate::protocol::machine) fn restart(
        &mut self,
        open: Open,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        self.drop_producer(out);
        match open.job {
            Job::Acquire(mut acquire) if acquire.restarts < RESTARTS_MAX => {
                acquire.restarts = acquire.restarts.saturating_add(1);
                if open.kind == OpenKind::Acquire {
                    acquire.drew = Some(open.token);
                }
                self.start_open(Job::Acquire(acquire), out);
            }
            Job::Release(mut release) if release.restarts < RESTARTS_MAX => {
                release.restarts = release.restarts.saturating_add(1);
                self.start_open(Job::Release(release), out);
            }
            job @ (Job::Acquire(_) | Job::Release(_) | Job::Produce | Job::Settle(_)) => {
                self.refuse_job(job, Refusal::PostgresUnavailable, at, out);
            }
        }
    }

    pub(in crate::protocol::machine) fn reply_job(
        &mut self,
        job: &Job,
        reply: Reply,
        out: &mut Vec<Effect>,
    ) {
        match job {
            Job::Acquire(Acquire { ticket, .. })
            | Job::Release(Release { ticket, .. })
            | Job::Settle(ticket) => out.push(Effect::Reply(*ticket, reply)),
            Job::Produce => {}
        }
    }

    /// The open came to nothing: the caller is told, or those in doubt wait on.
    pub(in crate::protocol::machine) fn refuse_job(
        &mut self,
        job: Job,
        refusal: Refusal,
        at: u64,
        out: &mut Vec<Effect>,
    ) {
        match job {
            Job::Produce => self.refuse_waiting(&refusal, at, out),
            job @ (Job::Acquire(_) | Job::Release(_) | Job::Settle(_)) => {
                self.reply_job(&job, Reply::Refused(refusal), out);
            }
        }
    }
}
