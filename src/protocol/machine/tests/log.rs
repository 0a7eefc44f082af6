//! Kafka's half of the world: epochs, the transaction under way, what becomes visible.

use super::world::{Entry, World};
use super::*;
use crate::protocol::ledger::Batch;
use crate::protocol::operation::Placed;
use crate::protocol::reconcile::{LastBatch, Seen};
use std::sync::Arc;

impl World {
    /// A new epoch: what is open is aborted, and what is late comes too late.
    pub(super) fn init(&mut self) {
        self.arrive();
        (self.open, self.late_end) = (None, false);
    }

    /// A late EndTxn ends whatever its epoch has open.
    pub(super) fn arrive(&mut self) {
        if self.late_end {
            self.land();
        }
    }

    pub(super) fn land(&mut self) {
        let entries = self.open.take().unwrap_or_default();
        let data = entries.iter().any(|e| matches!(e, Entry::Data(..)));
        let ledger = entries.iter().any(|e| matches!(e, Entry::Ledger(..)));
        assert!(!data || ledger, "data became visible without its batch record");
        for entry in entries {
            match entry {
                Entry::Data(token, id) => {
                    assert!(
                        token >= self.rows.fence.token,
                        "G1: {token} is visible after it ended"
                    );
                    self.data.push((token, id));
                }
                Entry::Ledger(token, owner, batch, is_state) => {
                    self.learn(token, owner, batch, is_state);
                }
            }
        }
    }

    fn learn(&mut self, token: FencingToken, owner: Owner, batch: Option<Batch>, is_state: bool) {
        self.ledger_end += 2;
        let offset = self.ledger_end;
        let last = batch.map(|batch| {
            let last = LastBatch { seq: batch.seq, token: batch.token, offset };
            self.batches.insert(offset, batch);
            last
        });
        let incarnation = Incarnation(1);
        self.known.learn(Seen { token, incarnation, owner, is_state, last });
    }

    pub(super) fn perform_kafka(&mut self, effect: &Effect, fault: Option<Fault>) -> Event {
        if fault == Some(Fault::Fenced) {
            self.init();
            self.fenced = true;
        }
        let no = fault.and_then(Self::failure);
        match effect {
            Effect::OpenProducer => match no {
                Some(no) => {
                    if fault == Some(Fault::Lost) {
                        self.init();
                    }
                    Event::Opened(Err(no))
                }
                None => {
                    self.init();
                    self.fenced = false;
                    Event::Opened(Ok(()))
                }
            },
            Effect::WriteBarrier { .. } => {
                self.ledger_end += 2;
                let end = self.end(fault);
                Event::BarrierWritten(end.map(|clean| (self.ledger_end, clean)))
            }
            Effect::AwaitBarrier => Event::BarrierSeen(fault.is_none().then(|| self.known.clone())),
            Effect::ReadBatch { offset } => {
                Event::BatchRead(self.batches.get(offset).filter(|_| fault.is_none()).cloned())
            }
            Effect::WriteState(state) => {
                self.put(Entry::Ledger(
                    state.token,
                    state.owner.clone(),
                    state.last_batch.clone(),
                    true,
                ));
                Event::StateWritten(self.end(fault))
            }
            Effect::Send { token, operations, .. } => {
                for (id, _) in operations {
                    self.put(Entry::Data(*token, id.clone()));
                }
                let placed = operations.iter().flat_map(|(_, records)| records.iter());
                let placed = placed.zip(0i64..).map(|(r, k)| Placed {
                    topic: Arc::clone(&r.topic),
                    partition: 0,
                    offset: 1_000 + k,
                });
                Event::Sent(self.still(no).map_or_else(|| Ok(placed.collect()), Err))
            }
            Effect::SendLedger(batch) => {
                self.put(Entry::Ledger(
                    batch.token,
                    batch.owner.clone(),
                    Some(batch.clone()),
                    false,
                ));
                Event::LedgerSent(self.still(no).map_or(Ok(()), Err))
            }
            Effect::EndTxn => Event::Ended(self.end(fault)),
            Effect::Abort => {
                let acknowledged = fault.is_none() && !self.fenced;
                if acknowledged {
                    self.open = None;
                }
                Event::Aborted(acknowledged)
            }
            other => panic!("nobody awaits {other:?}"),
        }
    }

    fn put(&mut self, entry: Entry) {
        if !self.fenced {
            self.open.get_or_insert_default().push(entry);
        }
    }

    fn still(&self, no: Option<KafkaFailure>) -> Option<KafkaFailure> {
        if self.fenced { Some(KafkaFailure::Fenced) } else { no }
    }

    fn failure(fault: Fault) -> Option<KafkaFailure> {
        match fault {
            Fault::Fail | Fault::Lost | Fault::Late | Fault::Absent => Some(KafkaFailure::Doubt),
            Fault::Dirty => None,
            Fault::Fenced => Some(KafkaFailure::Fenced),
            Fault::Record(index) => {
                let why = crate::protocol::refusal::RecordRefused::Invalid;
                Some(KafkaFailure::Record { index, why })
            }
            Fault::Denied => Some(KafkaFailure::Denied { resource: "r".to_owned() }),
        }
    }

    /// The end of the transaction that is open, of our epoch.
    fn end(&mut self, fault: Option<Fault>) -> Result<bool, KafkaFailure> {
        if self.fenced {
            return Err(KafkaFailure::Fenced);
        }
        match fault {
            None => {
                self.land();
                Ok(true)
            }
            Some(Fault::Dirty) => {
                self.land();
                self.late_end = true;
                Ok(false)
            }
            Some(Fault::Lost) => {
                self.land();
                self.late_end = true;
                Err(KafkaFailure::Doubt)
            }
            Some(Fault::Late) => {
                self.late_end = true;
                Err(KafkaFailure::Doubt)
            }
            Some(other) => Self::failure(other).map_or(Ok(true), Err),
        }
    }
}
