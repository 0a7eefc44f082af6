//! One lease in one gateway, as a state machine: what happened goes in, what to do comes out.
//!
//! Owns the order of the protocol: open, produce, release, settle, and what follows each failure.
//! Carries I1 to I7 (see `protocol`). Never waits, and holds no client or session: the actor
//! performs the effects, the model checker chooses their outcomes.

mod doubt;
mod end;
mod headers;
mod install;
mod open;
mod produce;
mod stage;
mod takeover;
mod types;

pub use headers::{header, own_headers};
pub use types::*;

use crate::protocol::batch::{BatchLimits, Waiting};
use crate::protocol::bug::{Bug, Bugs};
use crate::protocol::fence::Handle;
use crate::protocol::lease::InstanceId;
use std::collections::VecDeque;

/// Most draws of a token that is not above the row's, before the attempt gives up.
const DRAWS_MAX: u8 = 8;
/// Most restarts of one acquire or release whose COMMIT is unknown.
const RESTARTS_MAX: u8 = 3;
/// Longest back-off after being fenced, in ms.
const FENCED_BACKOFF_MAX_MS: u64 = 5_000;
/// Longest wait between two attempts to decide an operation in doubt, in ms.
const DOUBT_BACKOFF_MAX_MS: u64 = 1_000;
/// Three fencings within this many ms raise an alert.
const FENCED_ALERT_WINDOW_MS: u64 = 60_000;

/// Settings of a machine that never change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Setting {
    /// This gateway.
    pub home: InstanceId,
    /// Where a batch closes.
    pub limits: BatchLimits,
    /// How long an accepted operation is remembered, in seconds.
    pub retention_s: i64,
    /// Defects of a test build.
    pub bugs: Bugs,
}

/// The machine of one lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseMachine {
    setting: Setting,
    phase: Phase,
    /// What the last known open left; `None` means that the next use opens.
    handle: Option<Handle>,
    /// A producer exists, with or without a handle.
    producer: bool,
    /// Operations that wait, first in order first.
    pending: VecDeque<Waiting>,
    /// Nothing of `pending` is tried before this.
    resume_at: u64,
    /// Doubts in a row.
    doubts: u32,
    /// Times of the last fencings by a stranger, oldest first.
    fencings: VecDeque<u64>,
    /// No producer is opened for waiting operations before this.
    fenced_until: u64,
    /// Offset of a barrier of ours that the tail had not shown in time.
    barrier_debt: Option<i64>,
    /// The rows of the lease are known to exist.
    ensured: bool,
    quarantined: bool,
}

impl LeaseMachine {
    /// A lease that this gateway knows nothing of.
    #[must_use]
    pub fn new(setting: Setting) -> Self {
        Self {
            setting,
            phase: Phase::Idle,
            handle: None,
            producer: false,
            pending: VecDeque::new(),
            resume_at: 0,
            doubts: 0,
            fencings: VecDeque::new(),
            fenced_until: 0,
            barrier_debt: None,
            ensured: false,
            quarantined: false,
        }
    }

    /// [`Self::apply`] as a function, for the model checker and the tests.
    #[must_use]
    pub fn step(mut self, event: Event, at: u64) -> (Self, Vec<Effect>) {
        let effects = self.apply(event, at);
        (self, effects)
    }

    /// Takes one event at `at` (ms of a monotonic clock) and says what to do. At most the last
    /// effect is awaited (I7); its outcome is the next event.
    #[must_use]
    pub fn apply(&mut self, event: Event, at: u64) -> Vec<Effect> {
        let mut out = Vec::new();
        let event = self.as_seen(event);
        let phase = std::mem::replace(&mut self.phase, Phase::Idle);
        match (phase, event) {
            (phase, Event::Queue(waiting)) => {
                self.phase = phase;
                self.pending.push_back(waiting);
            }
            (Phase::Idle, Event::Go) => self.go(at, &mut out),
            (Phase::Idle, Event::Acquire(acquire)) => {
                self.start_open(Job::Acquire(acquire), &mut out);
            }
            (Phase::Idle, Event::Settle(ticket)) => self.start_open(Job::Settle(ticket), &mut out),
            (Phase::Idle, Event::Release(release)) => self.start_release(release, &mut out),
            (Phase::Idle, Event::Idle) => self.rest(&mut out),
            (Phase::Open(stage, open), event) => self.open_step(stage, open, event, at, &mut out),
            (Phase::Turn(stage, turn), event) => self.turn_step(stage, turn, event, at, &mut out),
            (Phase::Release(release), Event::Locked { outcome, fresh, .. }) => {
                self.release_locked(release, outcome, fresh, &mut out);
            }
            (Phase::Releasing(release), Event::Committed(outcome)) => {
                self.released(release, outcome, &mut out);
            }
            (phase, _) => {
                // An outcome that nobody waits for: keep the state, say so.
                self.phase = phase;
                out.push(Effect::Alert(Alert::Unexpected));
            }
        }
        out
    }

    /// The event itself, but for one defect of a test build.
    fn as_seen(&self, mut event: Event) -> Event {
        if self.setting.bugs.has(Bug::DirtyEndIgnored)
            && let Event::BarrierWritten(Ok((_, clean)))
            | Event::StateWritten(Ok(clean))
            | Event::Ended(Ok(clean)) = &mut event
        {
            *clean = true;
        }
        event
    }

    /// Forgets all back-offs: for the model, in which anything may happen at any time.
    pub fn forget_times(&mut self) {
        (self.resume_at, self.fenced_until, self.doubts) = (0, 0, 0);
        self.fencings.clear();
    }

    /// For logs, the ops page and tests.
    #[must_use]
    pub fn state(&self) -> StateName {
        match &self.phase {
            Phase::Open(..) => StateName::Opening,
            Phase::Turn(..) | Phase::Release(_) | Phase::Releasing(_) => StateName::Committing,
            Phase::Idle if self.pending.iter().any(|w| w.in_doubt) => StateName::InDoubt,
            Phase::Idle if self.handle.is_some() => StateName::Active,
            Phase::Idle if self.quarantined => StateName::Quarantined,
            Phase::Idle if !self.fencings.is_empty() => StateName::Fenced,
            Phase::Idle => StateName::Closed,
        }
    }

    /// No effect is awaited: a command may be given.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Operations that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// When [`Event::Go`] makes sense, if anything waits.
    #[must_use]
    pub fn resume_at(&self) -> Option<u64> {
        let deadline = self.pending.iter().map(|w| w.deadline_ms).min()?;
        Some(self.resume_at.min(deadline))
    }

    /// The handle, if the lease is open here.
    #[must_use]
    pub fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }

    /// An idle producer is closed only with nothing waiting, so with no doubt.
    fn rest(&mut self, out: &mut Vec<Effect>) {
        if self.pending.is_empty() {
            self.drop_producer(out);
        }
    }

    /// I5: no handle outlives its producer.
    fn drop_producer(&mut self, out: &mut Vec<Effect>) {
        self.handle = None;
        if std::mem::take(&mut self.producer) {
            out.push(Effect::DropProducer);
        }
    }

    /// Counts a fencing that cannot be another gateway's open: the nonce was ours, under the lock.
    fn count_fencing(&mut self, at: u64, out: &mut Vec<Effect>) -> u64 {
        let window = at.saturating_sub(FENCED_ALERT_WINDOW_MS);
        self.fencings.retain(|t| *t >= window);
        self.fencings.push_back(at);
        let count = u32::try_from(self.fencings.len()).unwrap_or(u32::MAX);
        if count >= 3 {
            out.push(Effect::Alert(Alert::FencedRepeatedly { count }));
        }
        // The first is answered by a re-open at once.
        let wait = match count {
            0 | 1 => 0,
            n => 100u64.saturating_mul(1 << n.min(8)).min(FENCED_BACKOFF_MAX_MS),
        };
        self.fenced_until = at.saturating_add(wait);
        wait
    }
}

#[cfg(test)]
mod tests;
