//! The ledger tail: what stands in the ledger, read from the log start, and the barriers in it.
//!
//! Owns the knowledge per partition and lease, of one generation at a time. A barrier is answered
//! with the knowledge of the very moment at which it was delivered, or with an error if the
//! generation that it was asked in is over. Never infers an end of the log for a decision: the
//! position is a courtesy ([`Tail::is_read`], [`Tail::passed`]), the barrier is the safety rule.

mod thread;

use crate::engine::ports::{Answer, BarrierWait, Failure};
use crate::kafka::KafkaOptions;
use crate::kafka::error::{answer, unavailable, unknown};
use crate::protocol::lease::{LeaseName, Nonce};
use crate::protocol::ledger::{LedgerKey, LedgerPartition, LedgerRecord};
use crate::protocol::reconcile::{Knowledge, LastBatch, Seen};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Part of the tail's client id and of its group's name.
pub(super) const ROLE: &str = "ledger";

/// The tail.
pub(super) struct Tail(Shared);

/// What the thread and its askers share.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Raised whenever the reading starts again from the log start.
    generation: u64,
    stopping: bool,
    /// The thread has ended, which it does only when it is told to or by a fault.
    ended: bool,
    partitions: HashMap<i32, Partition>,
    barriers: HashMap<Nonce, Barrier>,
}

/// One partition in one generation.
#[derive(Default)]
struct Partition {
    /// Every record below this offset is taken in.
    position: i64,
    /// Last stable offset when the generation began, if it could be asked for.
    stable: Option<i64>,
    read: bool,
    leases: HashMap<LeaseName, Known>,
    passing: Vec<(i64, oneshot::Sender<Result<(), Failure>>)>,
}

enum Known {
    Usable(Knowledge),
    /// A record of the lease cannot be read: nothing may be decided on it.
    Unusable,
}

struct Barrier {
    lease: LeaseName,
    partition: i32,
    seen: oneshot::Sender<Result<Knowledge, Failure>>,
}

impl Tail {
    pub(super) fn start(options: Arc<KafkaOptions>) -> Result<Self, Failure> {
        let shared = Shared(Arc::default());
        let on_thread = shared.clone();
        std::thread::Builder::new()
            .name("kafka-ledger".to_owned())
            .spawn(move || {
                let ending = Ending(on_thread);
                thread::run(&options, &ending.0);
            })
            .map_err(|_| unavailable("tail"))?;
        Ok(Self(shared))
    }

    pub(super) fn running(&self) -> Result<(), Failure> {
        if self.0.state().ended { Err(unavailable("tail")) } else { Ok(()) }
    }

    pub(super) fn is_read(&self, partition: LedgerPartition) -> bool {
        self.0.state().partitions.get(&partition.0).is_some_and(|p| p.read)
    }

    pub(super) fn glimpse(&self, lease: &LeaseName, partition: LedgerPartition) -> Knowledge {
        let state = self.0.state();
        match state.partitions.get(&partition.0).and_then(|p| p.leases.get(lease)) {
            Some(Known::Usable(known)) => known.clone(),
            Some(Known::Unusable) | None => Knowledge::default(),
        }
    }

    /// Registered here, under the generation of this moment; the future only waits.
    pub(super) fn passed(
        &self,
        partition: LedgerPartition,
        offset: i64,
        within: Duration,
    ) -> impl Future<Output = Result<(), Failure>> + Send + use<> {
        let stage = "passed";
        let (passed, answer) = oneshot::channel();
        let mut state = self.0.state();
        let asked = match state.partitions.get_mut(&partition.0) {
            Some(p) if p.position > offset => Ok(None),
            Some(p) => {
                p.passing.retain(|(_, asker)| !asker.is_closed());
                p.passing.push((offset, passed));
                Ok(Some(answer))
            }
            None => Err(unknown(stage, "the tail does not read this partition yet")),
        };
        drop(state);
        async move {
            let Some(answer) = asked? else { return Ok(()) };
            match tokio::time::timeout(within, answer).await {
                Ok(Ok(done)) => done,
                Ok(Err(_)) => Err(unknown(stage, "the tail has started again")),
                Err(_) => Err(unknown(stage, "the deadline passed")),
            }
        }
    }

    pub(super) fn expect(
        &self,
        lease: &LeaseName,
        partition: LedgerPartition,
        nonce: Nonce,
    ) -> Expected {
        let (seen, answer) = oneshot::channel();
        let barrier = Barrier { lease: lease.clone(), partition: partition.0, seen };
        let mut state = self.0.state();
        if !state.ended {
            state.barriers.insert(nonce, barrier);
        }
        drop(state);
        Expected { shared: self.0.clone(), nonce, answer: Some(answer) }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.0.state().stopping = true;
    }
}

/// Says that the thread has ended, also when it panicked: nobody waits for it in vain.
struct Ending(Shared);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.start_again("the tail has ended");
    }
}

/// A barrier that was asked for.
pub(super) struct Expected {
    shared: Shared,
    nonce: Nonce,
    answer: Option<oneshot::Receiver<Result<Knowledge, Failure>>>,
}

impl BarrierWait for Expected {
    fn seen(mut self: Box<Self>, within: Duration) -> Answer<'static, Knowledge> {
        Box::pin(async move {
            let stage = "barrier";
            let Some(answer) = self.answer.take() else {
                return Err(unknown(stage, "asked twice"));
            };
            match tokio::time::timeout(within, answer).await {
                Ok(Ok(seen)) => seen,
                Ok(Err(_)) => Err(unknown(stage, "the tail is not running")),
                Err(_) => Err(unknown(stage, "the deadline passed")),
            }
        })
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.shared.state().barriers.remove(&self.nonce);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.state().stopping
    }

    /// Throws all knowledge away and fails whoever waits. Returns the new generation.
    fn start_again(&self, why: &str) -> u64 {
        let mut state = self.state();
        state.generation = state.generation.saturating_add(1);
        let barriers = std::mem::take(&mut state.barriers);
        state.partitions.clear();
        let generation = state.generation;
        drop(state);
        for (_, barrier) in barriers {
            answer(barrier.seen, Err(unknown("barrier", why)));
        }
        generation
    }

    /// A generation has begun on these partitions.
    fn begin(&self, partitions: Vec<(i32, Option<i64>)>) {
        let mut state = self.state();
        for (partition, stable) in partitions {
            let mut fresh = Partition { stable, ..Partition::default() };
            fresh.reach(0);
            state.partitions.insert(partition, fresh);
        }
    }

    /// Takes one record in.
    fn take(&self, partition: i32, offset: i64, key: Option<&[u8]>, value: Option<&[u8]>) {
        let record = value.and_then(|bytes| LedgerRecord::decode(bytes).ok());
        let mut state = self.state();
        let State { partitions, barriers, .. } = &mut *state;
        let Some(reading) = partitions.get_mut(&partition) else { return };
        match (key.and_then(LedgerKey::decode), record) {
            (None, _) => tracing::warn!(partition, offset, "a foreign record in the ledger"),
            (Some(LedgerKey::Lease(lease)), Some(LedgerRecord::Batch(batch))) => {
                let last = Some(LastBatch { seq: batch.seq, token: batch.token, offset });
                let (token, incarnation, owner) = (batch.token, batch.incarnation, batch.owner);
                reading.learn(lease, Seen { token, incarnation, owner, is_state: false, last });
            }
            (Some(LedgerKey::Lease(lease)), Some(LedgerRecord::State(state))) => {
                let kept = state.last_batch.as_ref();
                let last = kept.map(|b| LastBatch { seq: b.seq, token: b.token, offset });
                let kept = kept.map_or(state.incarnation, |b| b.incarnation);
                let incarnation = state.incarnation.max(kept);
                let (token, owner) = (state.token, state.owner);
                reading.learn(lease, Seen { token, incarnation, owner, is_state: true, last });
            }
            (Some(LedgerKey::Lease(lease)), Some(LedgerRecord::Barrier { .. }) | None) => {
                tracing::error!(partition, offset, %lease, "unreadable ledger record of a lease");
                reading.leases.insert(lease, Known::Unusable);
            }
            (Some(LedgerKey::Barrier(lease)), Some(LedgerRecord::Barrier { nonce, .. })) => {
                if let Some(waiting) = barriers.remove(&nonce) {
                    waiting.deliver(&lease, partition, reading.leases.get(&lease));
                }
            }
            (Some(LedgerKey::Barrier(lease)), _) => {
                tracing::warn!(partition, offset, %lease, "unreadable barrier");
            }
        }
        reading.reach(offset.saturating_add(1));
    }

    /// The reading of a partition has come at least to this offset, or to the end of what is
    /// decided.
    fn reached(&self, generation: u64, partition: i32, offset: i64) {
        let mut state = self.state();
        if state.generation == generation
            && let Some(reading) = state.partitions.get_mut(&partition)
        {
            reading.reach(offset);
        }
    }

    fn reached_end(&self, partition: i32) {
        if let Some(reading) = self.state().partitions.get_mut(&partition) {
            reading.read = true;
        }
    }
}

impl Partition {
    fn learn(&mut self, lease: LeaseName, seen: Seen) {
        let known = self.leases.entry(lease);
        match known.or_insert_with(|| Known::Usable(Knowledge::default())) {
            Known::Usable(known) => known.learn(seen),
            Known::Unusable => {}
        }
    }

    fn reach(&mut self, position: i64) {
        self.position = self.position.max(position);
        let position = self.position;
        self.read |= self.stable.is_some_and(|stable| position >= stable);
        for (_, asker) in self.passing.extract_if(.., |(offset, _)| position > *offset) {
            answer(asker, Ok(()));
        }
    }
}

impl Barrier {
    fn deliver(self, lease: &LeaseName, partition: i32, known: Option<&Known>) {
        let stage = "barrier";
        let seen = if self.lease != *lease || self.partition != partition {
            Err(unknown(stage, "the barrier stands under another lease or partition"))
        } else {
            match known {
                None => Ok(Knowledge::default()),
                Some(Known::Usable(known)) => Ok(known.clone()),
                Some(Known::Unusable) => Err(unknown(stage, "unreadable ledger record")),
            }
        };
        answer(self.seen, seen);
    }
}

#[cfg(test)]
mod tests;
