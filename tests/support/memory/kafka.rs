//! The brokers: epochs, transactions, the ledger and the data, and what a reader sees of them.
//!
//! A reader of committed records stops at the first transaction that is still open, whoever's it
//! is. An EndTxn ends whatever its epoch has open by then: the hazard of this protocol version.

use fencepost::protocol::lease::{LeaseName, Nonce};
use fencepost::protocol::ledger::{LedgerKey, LedgerRecord};
use fencepost::protocol::machine::header;
use fencepost::protocol::operation::{Placed, Record};
use fencepost::protocol::reconcile::{Knowledge, LastBatch, Seen};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The broker aborts a transaction that is open for so long.
const TRANSACTION_TIMEOUT: Duration = Duration::from_millis(6_000);
const COMPACTION_LAG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Committed,
    Aborted,
}

#[derive(Default)]
struct Producer {
    epoch: u64,
    /// The transaction under way, by its number.
    open: Option<(usize, Instant)>,
}

struct LedgerEntry {
    offset: i64,
    transaction: usize,
    key: Vec<u8>,
    value: Vec<u8>,
    at: Instant,
}

/// A record that consumers see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Visible {
    pub(crate) operation: String,
    pub(crate) value: Vec<u8>,
    pub(crate) token: u64,
    pub(crate) seq: u64,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

struct DataEntry {
    lease: LeaseName,
    transaction: usize,
    record: Visible,
}

#[derive(Default)]
pub(super) struct Kafka {
    producers: BTreeMap<String, Producer>,
    fates: Vec<Fate>,
    ledger: BTreeMap<i32, Vec<LedgerEntry>>,
    ledger_end: BTreeMap<i32, i64>,
    data: Vec<DataEntry>,
    data_end: BTreeMap<i32, i64>,
    pub(super) generation: u64,
}

impl Kafka {
    /// A new epoch: what is open is aborted.
    pub(super) fn init(&mut self, id: &str) -> u64 {
        self.abort(id);
        let producer = self.producers.entry(id.to_owned()).or_default();
        producer.epoch += 1;
        producer.epoch
    }

    pub(super) fn abort(&mut self, id: &str) {
        if let Some((transaction, _)) = self.producers.get_mut(id).and_then(|p| p.open.take()) {
            self.fates[transaction] = Fate::Aborted;
        }
    }

    /// Ends what has been open for too long; the broker fences its producer.
    pub(super) fn sweep(&mut self, now: Instant) {
        let late = |p: &Producer| {
            p.open.is_some_and(|(_, at)| now.saturating_duration_since(at) > TRANSACTION_TIMEOUT)
        };
        let ids: Vec<String> =
            self.producers.iter().filter(|(_, p)| late(p)).map(|(id, _)| id.clone()).collect();
        for id in ids {
            self.init(&id);
        }
    }

    /// The transaction of an epoch, begun if need be; `None` if the epoch is fenced.
    pub(super) fn transaction(&mut self, id: &str, epoch: u64, now: Instant) -> Option<usize> {
        self.sweep(now);
        let producer = self.producers.get_mut(id).filter(|p| p.epoch == epoch)?;
        let next = self.fates.len();
        let (transaction, _) = *producer.open.get_or_insert((next, now));
        if transaction == next {
            self.fates.push(Fate::Open);
        }
        Some(transaction)
    }

    /// Ends whatever this epoch has open; `None` if the epoch is fenced.
    pub(super) fn end(&mut self, id: &str, epoch: u64, now: Instant) -> Option<Option<usize>> {
        self.sweep(now);
        let producer = self.producers.get_mut(id).filter(|p| p.epoch == epoch)?;
        let open = producer.open.take().map(|(transaction, _)| transaction);
        if let Some(transaction) = open {
            self.fates[transaction] = Fate::Committed;
        }
        Some(open)
    }

    pub(super) fn is_open(&self, lease: &LeaseName) -> bool {
        let ends = format!(":{lease}");
        self.producers.iter().any(|(id, p)| id.ends_with(&ends) && p.open.is_some())
    }

    /// Ledger entries up to the last stable offset.
    fn stable(&self, partition: i32) -> impl Iterator<Item = &LedgerEntry> {
        let entries = self.ledger.get(&partition).into_iter().flatten();
        entries.take_while(|e| self.fates[e.transaction] != Fate::Open)
    }

    fn committed(&self, partition: i32) -> impl Iterator<Item = &LedgerEntry> {
        self.stable(partition).filter(|e| self.fates[e.transaction] == Fate::Committed)
    }

    /// What a reader knows of a lease at a barrier, or at the end of what is stable.
    pub(super) fn knowledge(
        &self,
        lease: &LeaseName,
        partition: i32,
        at: Option<Nonce>,
    ) -> Option<Knowledge> {
        let (mut known, mut reached) = (Knowledge::default(), at.is_none());
        let keys = [LedgerKey::Lease(lease.clone()), LedgerKey::Barrier(lease.clone())];
        for entry in self.committed(partition) {
            if !keys.iter().any(|key| key.encode() == entry.key) {
                continue;
            }
            let record = LedgerRecord::decode(&entry.value).unwrap();
            if let LedgerRecord::Barrier { nonce, .. } = &record {
                if Some(*nonce) == at {
                    reached = true;
                    break;
                }
                continue;
            }
            known.learn(seen(record, entry.offset));
        }
        reached.then_some(known)
    }

    pub(super) fn compact(&mut self, now: Instant) {
        let fates = self.fates.clone();
        for entries in self.ledger.values_mut() {
            let mut newest: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
            for entry in entries.iter().filter(|e| fates[e.transaction] == Fate::Committed) {
                newest.insert(entry.key.clone(), entry.offset);
            }
            entries.retain(|e| {
                let young = now.saturating_duration_since(e.at) < COMPACTION_LAG;
                let last = newest.get(&e.key).is_none_or(|offset| *offset <= e.offset);
                young || last || fates[e.transaction] == Fate::Open
            });
        }
    }

    /// Appends a record to its partition within a transaction.
    pub(super) fn append(
        &mut self,
        lease: &LeaseName,
        transaction: usize,
        record: &Record,
    ) -> Placed {
        let partition = record.partition.unwrap_or(0);
        let end = self.data_end.entry(partition).or_default();
        let offset = *end;
        *end += 1;
        let text = |name: &str| {
            let of = |(n, v): &(Arc<str>, Option<Arc<[u8]>>)| {
                (**n == *name).then(|| String::from_utf8(v.clone().unwrap().to_vec()).unwrap())
            };
            record.headers.iter().find_map(of).unwrap()
        };
        let seen = Visible {
            operation: text(header::OPERATION),
            value: record.value.clone().unwrap().to_vec(),
            token: text(header::TOKEN).parse().unwrap(),
            seq: text(header::BATCH).parse().unwrap(),
            partition,
            offset,
        };
        self.data.push(DataEntry { lease: lease.clone(), transaction, record: seen });
        Placed { topic: Arc::clone(&record.topic), partition, offset }
    }

    /// Appends a ledger record; markers take offsets, too.
    pub(super) fn append_ledger(
        &mut self,
        partition: i32,
        transaction: usize,
        (key, value): (Vec<u8>, Vec<u8>),
    ) -> i64 {
        let end = self.ledger_end.entry(partition).or_default();
        *end += 2;
        let offset = *end;
        let entry = LedgerEntry { offset, transaction, key, value, at: Instant::now() };
        self.ledger.entry(partition).or_default().push(entry);
        offset
    }

    /// The value of a lease's committed ledger record at an offset.
    pub(super) fn read(&self, lease: &LeaseName, partition: i32, offset: i64) -> Option<&[u8]> {
        let key = LedgerKey::Lease(lease.clone()).encode();
        let found = self.committed(partition).find(|e| e.offset == offset && e.key == key);
        found.map(|e| &*e.value)
    }

    /// True if a reader has passed an offset.
    pub(super) fn is_past(&self, partition: i32, offset: i64) -> bool {
        let entries = self.ledger.get(&partition).into_iter().flatten();
        let mut open = entries.filter(|e| self.fates[e.transaction] == Fate::Open);
        open.all(|e| e.offset > offset)
    }

    pub(super) fn epoch(&self, id: &str) -> u64 {
        self.producers.get(id).map_or(0, |p| p.epoch)
    }

    /// What a transaction made visible, and whether with a ledger record.
    pub(super) fn holds(&self, transaction: Option<usize>) -> (Vec<(LeaseName, u64)>, bool) {
        let of = |t: usize| Some(t) == transaction;
        let data = self.data.iter().filter(|e| of(e.transaction));
        let data = data.map(|e| (e.lease.clone(), e.record.token)).collect();
        (data, self.ledger.values().flatten().any(|e| of(e.transaction)))
    }

    pub(super) fn visible(&self) -> Vec<Visible> {
        let seen = |e: &&DataEntry| self.fates[e.transaction] == Fate::Committed;
        self.data.iter().filter(seen).map(|e| e.record.clone()).collect()
    }
}

fn seen(record: LedgerRecord, offset: i64) -> Seen {
    let last = |seq, token| LastBatch { seq, token, offset };
    match record {
        LedgerRecord::Batch(batch) => Seen {
            token: batch.token,
            incarnation: batch.incarnation,
            owner: batch.owner,
            is_state: false,
            last: Some(last(batch.seq, batch.token)),
        },
        LedgerRecord::State(state) => Seen {
            token: state.token,
            incarnation: state.incarnation,
            owner: state.owner,
            is_state: true,
            last: state.last_batch.map(|b| last(b.seq, b.token)),
        },
        LedgerRecord::Barrier { .. } => panic!("a barrier is no knowledge"),
    }
}
