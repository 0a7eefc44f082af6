//! One partition's worth of Kafka: a log, one transactional.id, and requests on their way.
//!
//! Data and ledger records stand in one list, so that a transaction's records can be compared; each
//! of the two has markers of its own.

use fencepost::protocol::lease::Nonce;
use fencepost::protocol::ledger::{Batch, StateRecord};
use fencepost::protocol::reconcile::{Knowledge, LastBatch, Seen};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Content {
    /// One record of an operation.
    Data {
        op: u8,
        token: u64,
        seq: u64,
    },
    Barrier(Nonce),
    State(Shared<StateRecord>),
    Batch(Shared<Batch>),
}

/// Shared, and ordered by where it is: only for a stable order within one state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shared<T>(pub Arc<T>);

impl<T: PartialEq + Eq + std::fmt::Debug> PartialOrd for Shared<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: PartialEq + Eq + std::fmt::Debug> Ord for Shared<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        if self.0 == other.0 {
            std::cmp::Ordering::Equal
        } else {
            format!("{:?}", self.0).cmp(&format!("{:?}", other.0))
        }
    }
}

impl Content {
    pub fn is_data(&self) -> bool {
        matches!(self, Self::Data { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    Open,
    Committed,
    Aborted,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub epoch: u8,
    pub content: Content,
    pub fate: Fate,
    /// Removed by compaction.
    pub gone: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    Init,
    Produce { epoch: u8, content: Content },
    End { epoch: u8, commit: bool },
}

/// A transaction whose end is decided; markers may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ending {
    pub commit: bool,
    pub data: bool,
    pub ledger: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Kafka {
    pub log: Vec<Entry>,
    pub epoch: u8,
    /// The epoch's transaction has records.
    pub ongoing: bool,
    pub ending: Option<Ending>,
    /// Requests whose senders do not wait for them any more.
    pub net: Vec<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Epoch(u8),
    Offset(i64),
    Ended,
    Fenced,
}

impl Kafka {
    /// A transaction that ends holds up the next request of the same id.
    pub fn takes(&self, request: &Request) -> bool {
        self.ending.is_none() || matches!(request, Request::Init)
    }

    /// Takes a request. `bump`: the epoch rises with every end (transactions v2). Whatever becomes
    /// visible by it is pushed to `seen`, in log order.
    pub fn take(&mut self, request: &Request, how: Ends, seen: &mut Vec<usize>) -> Answer {
        match request {
            Request::Init => {
                // Answered only when every marker of the old epoch is written.
                self.mark(true, seen);
                self.mark(false, seen);
                if self.ongoing {
                    self.end(false, Ends { apart: false, ..how }, seen);
                }
                self.epoch += 1;
                Answer::Epoch(self.epoch)
            }
            Request::Produce { epoch, .. } | Request::End { epoch, .. } if *epoch != self.epoch => {
                Answer::Fenced
            }
            Request::Produce { epoch, content } => {
                let (epoch, content) = (*epoch, content.clone());
                self.log.push(Entry { epoch, content, fate: Fate::Open, gone: false });
                self.ongoing = true;
                Answer::Offset(i64::try_from(self.log.len() - 1).unwrap())
            }
            Request::End { commit, .. } => {
                if self.ongoing {
                    self.end(*commit, how, seen);
                }
                if how.bump {
                    self.epoch += 1;
                }
                Answer::Ended
            }
        }
    }

    fn end(&mut self, commit: bool, how: Ends, seen: &mut Vec<usize>) {
        self.ongoing = false;
        self.ending = Some(Ending { commit, data: false, ledger: false });
        if !how.apart {
            self.mark(true, seen);
            self.mark(false, seen);
        }
    }

    /// Writes the marker of one of the two partitions.
    pub fn mark(&mut self, data: bool, seen: &mut Vec<usize>) {
        let Some(ending) = &mut self.ending else { return };
        let done = if data { &mut ending.data } else { &mut ending.ledger };
        if std::mem::replace(done, true) {
            return;
        }
        let ending = *ending;
        if ending.data && ending.ledger {
            self.ending = None;
        }
        let fate = if ending.commit { Fate::Committed } else { Fate::Aborted };
        for (offset, entry) in self.log.iter_mut().enumerate() {
            if entry.fate == Fate::Open && entry.content.is_data() == data {
                entry.fate = fate;
                if ending.commit {
                    seen.push(offset);
                }
            }
        }
    }

    /// Records of the transaction that is being ended: those that have no marker yet.
    pub fn open_entries(&self) -> impl Iterator<Item = &Entry> {
        self.log.iter().filter(|entry| entry.fate == Fate::Open)
    }

    pub fn is_visible(&self, offset: i64) -> bool {
        let entry = usize::try_from(offset).ok().and_then(|offset| self.log.get(offset));
        entry.is_some_and(|entry| entry.fate == Fate::Committed && !entry.gone)
    }

    /// What a read_committed reader of the ledger has learnt before an offset.
    pub fn knowledge(&self, before: i64) -> Knowledge {
        let mut known = Knowledge::default();
        for (offset, entry) in (0i64..).zip(&self.log) {
            if offset >= before || entry.fate != Fate::Committed || entry.gone {
                continue;
            }
            let last = |batch: &Batch| LastBatch { seq: batch.seq, token: batch.token, offset };
            match &entry.content {
                Content::State(state) => known.learn(Seen {
                    token: state.0.token,
                    incarnation: state.0.incarnation,
                    owner: state.0.owner.clone(),
                    is_state: true,
                    last: state.0.last_batch.as_ref().map(last),
                }),
                Content::Batch(batch) => known.learn(Seen {
                    token: batch.0.token,
                    incarnation: batch.0.incarnation,
                    owner: batch.0.owner.clone(),
                    is_state: false,
                    last: Some(last(&batch.0)),
                }),
                Content::Data { .. } | Content::Barrier(_) => {}
            }
        }
        known
    }

    pub fn batch_at(&self, offset: i64) -> Option<Batch> {
        let entry = usize::try_from(offset).ok().and_then(|offset| self.log.get(offset))?;
        match &entry.content {
            Content::Batch(batch) if !entry.gone => Some((*batch.0).clone()),
            Content::State(state) if !entry.gone => state.0.last_batch.clone(),
            _ => None,
        }
    }

    /// Compaction: only the last committed record of a key stays. `one_key`: barriers have the key
    /// of the lease, too.
    pub fn compact(&mut self, one_key: bool) {
        let mut later = [false, false];
        for entry in self.log.iter_mut().rev() {
            let key = match entry.content {
                Content::Data { .. } => continue,
                Content::Barrier(_) => usize::from(!one_key),
                Content::State(_) | Content::Batch(_) => 0,
            };
            if entry.fate == Fate::Committed {
                entry.gone |= later[key];
                later[key] = true;
            }
        }
    }

    pub fn put(&mut self, request: Request) {
        self.net.push(request);
        self.net.sort();
    }
}

/// How transactions end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Transactions v2: the epoch rises with every end.
    pub bump: bool,
    /// Markers are written apart from the decision, and one partition at a time.
    pub apart: bool,
}
