//! `TransactionLog` and its producers on the brokers in memory.

use super::{Fault, Gate, PARTITIONS, certain, unknown};
use fencepost::engine::ports::{
    Answer, BarrierWait, EndTxn, Failure, Outgoing, Refused, TransactionLog, TransactionalProducer,
};
use fencepost::protocol::lease::{FencingToken, LeaseName, Nonce};
use fencepost::protocol::ledger::{LedgerPartition, LedgerRecord};
use fencepost::protocol::operation::Placed;
use fencepost::protocol::reconcile::Knowledge;
use fencepost::protocol::refusal::RecordRefused;
use fencepost::protocol::transactional_id::TransactionalId;
use fencepost::telemetry;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How much later a request lands whose answer never comes.
const LATE: Duration = Duration::from_millis(60);

pub(super) struct MemoryLog(pub(super) Arc<Gate>);

struct MemoryProducer {
    gate: Arc<Gate>,
    id: TransactionalId,
    epoch: u64,
    /// What the transaction under way is for, to name its end.
    holds: &'static str,
}

struct MemoryBarrier {
    gate: Arc<Gate>,
    lease: LeaseName,
    partition: i32,
    nonce: Nonce,
    generation: u64,
}

impl TransactionLog for MemoryLog {
    fn open(
        &self,
        id: &TransactionalId,
        _within: Duration,
    ) -> Answer<'_, Box<dyn TransactionalProducer>> {
        let id = id.clone();
        Box::pin(async move {
            let fault = self.0.pass("init").await;
            let shared = Arc::clone(&self.0.shared);
            match fault {
                None => {
                    let epoch = shared.kafka().init(id.as_str());
                    self.0.thaw().await;
                    let gate = Arc::clone(&self.0);
                    let producer = MemoryProducer { gate, id, epoch, holds: "nothing" };
                    Ok(Box::new(producer) as Box<dyn TransactionalProducer>)
                }
                Some(Fault::Lost) => {
                    shared.kafka().init(id.as_str());
                    Err(unknown("init"))
                }
                Some(Fault::Late) => {
                    // An orphan: it fences whoever is there when it arrives.
                    drop(telemetry::spawn("late-init", async move {
                        sleep(LATE).await;
                        shared.kafka().init(id.as_str());
                    }));
                    Err(unknown("init"))
                }
                Some(_) => Err(unknown("init")),
            }
        })
    }

    fn is_read(&self, _partition: LedgerPartition) -> bool {
        true
    }

    fn passed(&self, partition: LedgerPartition, offset: i64, within: Duration) -> Answer<'_, ()> {
        Box::pin(async move {
            self.0.pass("passed").await;
            let until = Instant::now() + within;
            while Instant::now() < until {
                if self.0.shared.swept().is_past(partition.0, offset) {
                    return Ok(());
                }
                sleep(Duration::from_millis(2)).await;
            }
            Err(unknown("passed"))
        })
    }

    fn expect(
        &self,
        lease: &LeaseName,
        partition: LedgerPartition,
        nonce: Nonce,
    ) -> Box<dyn BarrierWait> {
        let generation = self.0.shared.kafka().generation;
        let (gate, lease, partition) = (Arc::clone(&self.0), lease.clone(), partition.0);
        Box::new(MemoryBarrier { gate, lease, partition, nonce, generation })
    }

    fn glimpse(&self, lease: &LeaseName, partition: LedgerPartition) -> Knowledge {
        self.0.shared.kafka().knowledge(lease, partition.0, None).unwrap_or_default()
    }

    fn read<'a>(
        &'a self,
        lease: &'a LeaseName,
        partition: LedgerPartition,
        offset: i64,
        _within: Duration,
    ) -> Answer<'a, LedgerRecord> {
        Box::pin(async move {
            if self.0.pass("read").await.is_some() {
                return Err(unknown("read"));
            }
            let kafka = self.0.shared.kafka();
            let value =
                kafka.read(lease, partition.0, offset).ok_or_else(|| unknown("compacted"))?;
            Ok(LedgerRecord::decode(value).unwrap())
        })
    }

    fn partitions<'a>(&'a self, topic: &'a Arc<str>) -> Answer<'a, Option<i32>> {
        Box::pin(async move {
            if let Some(Fault::Refuse) = self.0.pass("metadata").await {
                let resource = format!("DESCRIBE on topic {topic}");
                let refused = Refused::Denied { resource };
                return Err(Failure::Determinate { stage: "metadata", refused });
            }
            Ok((**topic != *"no").then_some(PARTITIONS))
        })
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(
            async move { self.0.pass("probe").await.map_or(Ok(()), |_| Err(unknown("probe"))) },
        )
    }
}

impl BarrierWait for MemoryBarrier {
    fn seen(self: Box<Self>, within: Duration) -> Answer<'static, Knowledge> {
        Box::pin(async move {
            if self.gate.pass("barrier").await.is_some() {
                return Err(unknown("barrier"));
            }
            let until = Instant::now() + within;
            loop {
                if let Some(known) = self.look()? {
                    self.gate.thaw().await;
                    return Ok(known);
                }
                if Instant::now() >= until {
                    return Err(unknown("barrier"));
                }
                sleep(Duration::from_millis(1)).await;
            }
        })
    }
}

impl MemoryBarrier {
    fn look(&self) -> Result<Option<Knowledge>, Failure> {
        let kafka = self.gate.shared.swept();
        if kafka.generation != self.generation {
            return Err(unknown("generation"));
        }
        Ok(kafka.knowledge(&self.lease, self.partition, Some(self.nonce)))
    }
}

impl MemoryProducer {
    /// G1, and whole batches only: looked at when a transaction becomes visible.
    fn committed(gate: &Gate, transaction: Option<usize>) {
        let (data, ledger) = gate.shared.kafka().holds(transaction);
        if !data.is_empty() && !ledger {
            gate.shared.violation("G2: data became visible without its batch record".to_owned());
        }
        for (lease, token) in data {
            let installed = gate.shared.rows().token(&lease);
            if FencingToken(token) < installed {
                gate.shared.violation(format!("G1: {token} is visible after {installed}"));
            }
        }
    }

    fn put(&self, records: &[Outgoing]) -> Result<Vec<Placed>, Failure> {
        let mut kafka = self.gate.shared.kafka();
        let transaction = kafka.transaction(self.id.as_str(), self.epoch, Instant::now());
        let transaction = transaction.ok_or(Failure::Fenced { stage: "send" })?;
        let (_, lease) = self.id.decode().unwrap();
        Ok(records.iter().map(|record| kafka.append(&lease, transaction, record)).collect())
    }

    fn end(&self) -> Result<(), Failure> {
        let ended = self.gate.shared.kafka().end(self.id.as_str(), self.epoch, Instant::now());
        let transaction = ended.ok_or(Failure::Fenced { stage: "end" })?;
        Self::committed(&self.gate, transaction);
        Ok(())
    }

    /// The same request once more, some time later.
    fn end_later(&self) {
        let (gate, id, epoch) = (Arc::clone(&self.gate), self.id.clone(), self.epoch);
        drop(telemetry::spawn("late-end", async move {
            sleep(LATE).await;
            let ended = gate.shared.kafka().end(id.as_str(), epoch, Instant::now());
            if let Some(transaction) = ended {
                Self::committed(&gate, transaction);
            }
        }));
    }
}

impl TransactionalProducer for MemoryProducer {
    fn send(&mut self, records: Vec<Outgoing>, _within: Duration) -> Answer<'_, Vec<Placed>> {
        Box::pin(async move {
            self.holds = "batch";
            let refused = match self.gate.pass("send").await {
                None => return self.put(&records),
                Some(Fault::Record) => {
                    let refused = Refused::Record { index: 0, why: RecordRefused::Invalid };
                    Failure::Determinate { stage: "send", refused }
                }
                Some(Fault::Fenced) => {
                    self.gate.shared.kafka().init(self.id.as_str());
                    return Err(Failure::Fenced { stage: "send" });
                }
                Some(_) => unknown("send"),
            };
            // All but one of them got there.
            self.put(&records[1..])?;
            Err(refused)
        })
    }

    fn send_ledger(
        &mut self,
        key: Vec<u8>,
        value: Vec<u8>,
        partition: LedgerPartition,
        _within: Duration,
    ) -> Answer<'_, i64> {
        Box::pin(async move {
            self.holds = match LedgerRecord::decode(&value).unwrap() {
                LedgerRecord::Batch(_) => "batch",
                LedgerRecord::State(_) => "state",
                LedgerRecord::Barrier { .. } => "barrier",
            };
            if self.gate.pass(&format!("ledger.{}", self.holds)).await.is_some() {
                return Err(unknown("ledger"));
            }
            let (id, now) = (self.id.as_str(), Instant::now());
            let mut kafka = self.gate.shared.kafka();
            let transaction = kafka.transaction(id, self.epoch, now);
            let transaction = transaction.ok_or(Failure::Fenced { stage: "ledger" })?;
            Ok(kafka.append_ledger(partition.0, transaction, (key, value)))
        })
    }

    fn commit(&mut self, _within: Duration) -> Answer<'_, EndTxn> {
        Box::pin(async move {
            let answer = match self.gate.pass(&format!("end.{}", self.holds)).await {
                None => self.end().map(|()| EndTxn::Clean),
                Some(Fault::Dirty) => self.end().map(|()| {
                    self.end_later();
                    EndTxn::Dirty
                }),
                Some(Fault::Lost) => {
                    let lost = self.end();
                    self.end_later();
                    lost.and_then(|()| Err(unknown("end")))
                }
                Some(Fault::Late) => {
                    self.end_later();
                    Err(unknown("end"))
                }
                Some(Fault::Fenced) => {
                    self.gate.shared.kafka().init(self.id.as_str());
                    Err(Failure::Fenced { stage: "end" })
                }
                Some(_) => Err(unknown("end")),
            };
            self.gate.thaw().await;
            answer
        })
    }

    fn abort(&mut self, _within: Duration) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.gate.pass("abort").await.is_some() {
                return Err(certain("abort"));
            }
            let mut kafka = self.gate.shared.swept();
            if kafka.epoch(self.id.as_str()) != self.epoch {
                return Err(Failure::Fenced { stage: "abort" });
            }
            kafka.abort(self.id.as_str());
            Ok(())
        })
    }

    fn discard(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        // Dropping a producer aborts nothing.
        Box::pin(async move { drop(self) })
    }
}
