//! Performs the machine's effects against the ports, one at a time, each under its deadline.
//!
//! Owns the session, the producer and the barrier wait of one lease. Never decides anything: every
//! outcome goes back to the machine as an event.

use crate::engine::Deps;
use crate::engine::ports::{
    BarrierWait, EndTxn, Failure, FenceSession, LockRequest, Outgoing, Refused,
    TransactionalProducer,
};
use crate::failpoint::hit;
use crate::protocol::fence::Write;
use crate::protocol::lease::{BatchSeq, FencingToken, LeaseName, Nonce};
use crate::protocol::ledger::{
    Batch, LedgerKey, LedgerPartition, LedgerRecord, StateRecord, ledger_partition,
};
use crate::protocol::machine::{
    Alert, CommitOutcome, Effect, Event, KafkaFailure, LockOutcome, own_headers,
};
use crate::protocol::operation::{OperationId, Record};
use crate::protocol::transactional_id::TransactionalId;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Least time for the abort of a batch that has used its budget up.
const ABORT_MIN: Duration = Duration::from_millis(500);

/// What one lease holds of the two stores.
pub(super) struct Performer {
    pub(super) lease: LeaseName,
    id: TransactionalId,
    partition: LedgerPartition,
    deps: Arc<Deps>,
    session: Option<Box<dyn FenceSession>>,
    producer: Option<Box<dyn TransactionalProducer>>,
    barrier: Option<Box<dyn BarrierWait>>,
    /// End of the budget of the Kafka part under way; each call gets the rest of it.
    kafka_until: Instant,
}

impl Performer {
    pub(super) fn new(lease: LeaseName, deps: Arc<Deps>) -> Self {
        let id = TransactionalId::of(&deps.settings.installation, &lease);
        let partition = ledger_partition(&lease, deps.settings.ledger_partitions);
        Self {
            lease,
            id,
            partition,
            deps,
            session: None,
            producer: None,
            barrier: None,
            kafka_until: Instant::now(),
        }
    }

    /// Performs one effect; the awaited ones give their outcome.
    pub(super) async fn perform(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::AwaitTail { past } => Some(Event::TailReady(self.await_tail(past).await)),
            Effect::Ensure => Some(Event::Ensured(
                note(&self.lease, self.deps.store.ensure(&self.lease).await).is_some(),
            )),
            Effect::Lock { both, operations } => Some(self.lock(both, operations).await),
            Effect::LockLease => Some(Event::LeaseLocked(match &mut self.session {
                Some(session) => note(&self.lease, session.lock_lease().await),
                None => None,
            })),
            Effect::DrawToken => Some(Event::Drawn(match &mut self.session {
                Some(session) => note(&self.lease, session.draw_token().await),
                None => None,
            })),
            Effect::FindOperations(ids) => Some(Event::Found(match &mut self.session {
                Some(session) => note(&self.lease, session.find(ids).await),
                None => None,
            })),
            Effect::Confirm => Some(Event::Confirmed(match &mut self.session {
                Some(session) => note(&self.lease, session.confirm().await).is_some(),
                None => false,
            })),
            Effect::Commit(write) => Some(Event::Committed(self.commit(write).await)),
            Effect::EndSession => {
                if let Some(session) = self.session.take() {
                    session.abandon().await;
                }
                None
            }
            effect @ (Effect::OpenProducer
            | Effect::WriteBarrier { .. }
            | Effect::AwaitBarrier
            | Effect::ReadBatch { .. }
            | Effect::WriteState(_)
            | Effect::Send { .. }
            | Effect::SendLedger(_)
            | Effect::EndTxn
            | Effect::Abort
            | Effect::DropProducer
            | Effect::Reply(..)
            | Effect::Alert(_)) => self.perform_kafka(effect).await,
        }
    }

    async fn perform_kafka(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::OpenProducer => Some(Event::Opened(self.open().await)),
            Effect::WriteBarrier { nonce } => {
                Some(Event::BarrierWritten(self.write_barrier(nonce).await))
            }
            Effect::AwaitBarrier => Some(Event::BarrierSeen(self.await_barrier().await)),
            Effect::ReadBatch { offset } => Some(Event::BatchRead(self.read_batch(offset).await)),
            Effect::WriteState(state) => Some(Event::StateWritten(self.write_state(state).await)),
            Effect::Send { seq, token, operations } => {
                Some(Event::Sent(self.send(seq, token, &operations).await))
            }
            Effect::SendLedger(batch) => Some(Event::LedgerSent(self.send_batch(batch).await)),
            Effect::EndTxn => Some(Event::Ended(self.end().await)),
            Effect::Abort => Some(Event::Aborted(self.abort().await)),
            Effect::DropProducer => {
                self.barrier = None;
                if let Some(producer) = self.producer.take() {
                    producer.discard().await;
                }
                None
            }
            Effect::Alert(alert) => {
                self.alert(&alert);
                None
            }
            // The actor answers callers; the others are performed above.
            Effect::Reply(..)
            | Effect::AwaitTail { .. }
            | Effect::Ensure
            | Effect::Lock { .. }
            | Effect::LockLease
            | Effect::DrawToken
            | Effect::FindOperations(_)
            | Effect::Confirm
            | Effect::Commit(_)
            | Effect::EndSession => None,
        }
    }

    fn rest(&self) -> Duration {
        self.kafka_until.saturating_duration_since(Instant::now())
    }

    async fn await_tail(&mut self, past: Option<i64>) -> bool {
        if !self.deps.log.is_read(self.partition) {
            return false;
        }
        match past {
            None => true,
            Some(offset) => {
                let within = self.deps.settings.open;
                note(&self.lease, self.deps.log.passed(self.partition, offset, within).await)
                    .is_some()
            }
        }
    }

    async fn lock(&mut self, both: bool, operations: Vec<OperationId>) -> Event {
        let request = LockRequest { lease: self.lease.clone(), both, operations };
        let outcome = match note(&self.lease, self.deps.store.lock(request).await) {
            None => LockOutcome::Failed,
            Some(None) => LockOutcome::Absent,
            // Fixed at the first acquire; another count or hash would split the lease's ledger.
            Some(Some((_, locked))) if locked.fence.partition != self.partition => {
                let (stored, computed) = (locked.fence.partition.0, self.partition.0);
                tracing::error!(lease = %self.lease, stored, computed, "ledger partition");
                LockOutcome::Failed
            }
            Some(Some((session, locked))) => {
                self.session = Some(session);
                LockOutcome::Locked(Box::new(locked))
            }
        };
        hit("after_row_lock", self.lease.as_str());
        let glimpse = self.deps.log.glimpse(&self.lease, self.partition).top_token();
        let fresh = Nonce(uuid::Uuid::new_v4().into_bytes());
        Event::Locked { outcome, fresh, glimpse }
    }

    async fn commit(&mut self, write: Write) -> CommitOutcome {
        let Some(session) = self.session.take() else { return CommitOutcome::Failed };
        let outcome = match session.commit(write).await {
            Ok(committed) => CommitOutcome::Known(committed),
            Err(failure) => {
                tracing::warn!(lease = %self.lease, %failure, "commit not known to have succeeded");
                match failure {
                    Failure::Determinate { .. } => CommitOutcome::Failed,
                    Failure::Indeterminate { .. } | Failure::Fenced { .. } => {
                        CommitOutcome::Unknown
                    }
                }
            }
        };
        hit("after_postgres_commit", self.lease.as_str());
        outcome
    }

    async fn open(&mut self) -> Result<(), KafkaFailure> {
        let within = self.deps.settings.open;
        self.kafka_until = Instant::now().checked_add(within).unwrap_or_else(Instant::now);
        hit("before_init", self.lease.as_str());
        let producer = self.deps.log.open(&self.id, within).await;
        hit("after_init", self.lease.as_str());
        if let Err(Failure::Determinate { refused: Refused::Unavailable, .. }) = producer {
            return Err(KafkaFailure::Unreached);
        }
        self.producer = Some(self.kafka(producer)?);
        Ok(())
    }

    async fn write_barrier(&mut self, nonce: Nonce) -> Result<(i64, bool), KafkaFailure> {
        let record = LedgerRecord::Barrier { nonce, home: self.deps.settings.instance };
        // Asked for first: the generation is fixed before anything is sent.
        self.barrier = Some(self.deps.log.expect(&self.lease, self.partition, nonce));
        let key = LedgerKey::Barrier(self.lease.clone());
        let written = self.write_ledger(&key, &record).await;
        hit("after_barrier_end", self.lease.as_str());
        written
    }

    async fn write_state(&mut self, state: StateRecord) -> Result<bool, KafkaFailure> {
        let key = LedgerKey::Lease(self.lease.clone());
        hit("before_state", self.lease.as_str());
        let written = self.write_ledger(&key, &LedgerRecord::State(state)).await;
        hit("after_state_end", self.lease.as_str());
        written.map(|(_, clean)| clean)
    }

    /// One ledger record in a transaction of its own.
    async fn write_ledger(
        &mut self,
        key: &LedgerKey,
        record: &LedgerRecord,
    ) -> Result<(i64, bool), KafkaFailure> {
        let (within, partition) = (self.rest(), self.partition);
        let Some(producer) = &mut self.producer else { return Err(KafkaFailure::Doubt) };
        let sent = producer.send_ledger(key.encode(), record.encode(), partition, within).await;
        let offset = self.kafka(sent)?;
        Ok((offset, self.end().await?))
    }

    async fn await_barrier(&mut self) -> Option<crate::protocol::reconcile::Knowledge> {
        let within = self.rest();
        let seen = self.barrier.take()?.seen(within).await;
        hit("after_barrier_seen", self.lease.as_str());
        note(&self.lease, seen)
    }

    async fn read_batch(&mut self, offset: i64) -> Option<Batch> {
        let within = self.rest();
        let read = self.deps.log.read(&self.lease, self.partition, offset, within).await;
        match note(&self.lease, read)? {
            LedgerRecord::Batch(batch) => Some(batch),
            LedgerRecord::State(state) => state.last_batch,
            LedgerRecord::Barrier { .. } => None,
        }
    }

    async fn send(
        &mut self,
        seq: BatchSeq,
        token: FencingToken,
        operations: &[(OperationId, Arc<[Record]>)],
    ) -> Result<Vec<crate::protocol::operation::Placed>, KafkaFailure> {
        let within = self.deps.settings.batch;
        self.kafka_until = Instant::now().checked_add(within).unwrap_or_else(Instant::now);
        hit("after_check", self.lease.as_str());
        let mut outgoing: Vec<Outgoing> = Vec::new();
        for (id, records) in operations {
            let own = own_headers(&self.lease, token, id, seq);
            for record in records.iter() {
                let mut record = record.clone();
                record.headers.extend(
                    own.iter().map(|(name, v)| ((*name).into(), Some(v.as_bytes().into()))),
                );
                outgoing.push(record);
            }
        }
        let Some(producer) = &mut self.producer else { return Err(KafkaFailure::Doubt) };
        let sent = producer.send(outgoing, within).await;
        hit("after_last_send", self.lease.as_str());
        self.kafka(sent)
    }

    async fn send_batch(&mut self, batch: Batch) -> Result<(), KafkaFailure> {
        let key = LedgerKey::Lease(self.lease.clone()).encode();
        let value = LedgerRecord::Batch(batch).encode();
        let (within, partition) = (self.rest(), self.partition);
        let Some(producer) = &mut self.producer else { return Err(KafkaFailure::Doubt) };
        let sent = producer.send_ledger(key, value, partition, within).await;
        hit("after_ledger_send", self.lease.as_str());
        self.kafka(sent).map(|_| ())
    }

    /// True if the transaction's end was answered at its first attempt.
    async fn end(&mut self) -> Result<bool, KafkaFailure> {
        let within = self.rest();
        let Some(producer) = &mut self.producer else { return Err(KafkaFailure::Doubt) };
        hit("before_end", self.lease.as_str());
        let ended = producer.commit(within).await;
        hit("after_end", self.lease.as_str());
        self.kafka(ended).map(|end| end == EndTxn::Clean)
    }

    async fn abort(&mut self) -> bool {
        let within = self.rest().max(ABORT_MIN);
        match &mut self.producer {
            Some(producer) => note(&self.lease, producer.abort(within).await).is_some(),
            None => false,
        }
    }

    fn kafka<T>(&self, result: Result<T, Failure>) -> Result<T, KafkaFailure> {
        result.map_err(|failure| {
            tracing::warn!(lease = %self.lease, %failure, "kafka");
            match failure {
                Failure::Fenced { .. } => KafkaFailure::Fenced,
                Failure::Determinate { refused: Refused::Record { index, why }, .. } => {
                    KafkaFailure::Record { index, why }
                }
                Failure::Determinate { refused: Refused::Denied { resource }, .. } => {
                    KafkaFailure::Denied { resource }
                }
                Failure::Determinate { refused: Refused::Unavailable, .. }
                | Failure::Indeterminate { .. } => KafkaFailure::Doubt,
            }
        })
    }

    fn alert(&self, alert: &Alert) {
        let lease = self.lease.as_str();
        match alert {
            Alert::Retired => tracing::warn!(lease, "retired: its token was burnt"),
            Alert::FencedRepeatedly { .. }
            | Alert::SequenceBehind
            | Alert::CredentialAhead { .. }
            | Alert::Quarantined { .. }
            | Alert::Unexpected => tracing::error!(lease, ?alert, "operator needed"),
        }
    }
}

fn note<T>(lease: &LeaseName, result: Result<T, Failure>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(failure) => {
            tracing::warn!(lease = %lease, %failure, "store");
            None
        }
    }
}
