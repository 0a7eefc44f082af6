//! The database: rows, row locks with their queues, sessions, and what each write does.

use fencepost::engine::ports::{HistoryEntry, PurgeStep, Purged};
use fencepost::protocol::fence::{FenceRow, LeaseRow, Locked, Write};
use fencepost::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Identity, Incarnation, InstanceId, LeaseName, Owner,
};
use fencepost::protocol::ledger::{Batch, ledger_partition};
use fencepost::protocol::operation::{OperationId, Stored};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// A session that does nothing for so long is ended.
const IDLE_IN_TRANSACTION: Duration = Duration::from_millis(3_500);

/// Which row of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    Fence,
    Lease,
}

#[derive(Default)]
struct RowLock {
    holder: Option<u64>,
    queue: VecDeque<u64>,
}

struct Entry {
    fence: FenceRow,
    lease: LeaseRow,
    operations: BTreeMap<OperationId, (Stored, DbTime)>,
    history: Vec<HistoryEntry>,
    fence_lock: RowLock,
    lease_lock: RowLock,
}

#[derive(Default)]
pub(super) struct Rows {
    leases: BTreeMap<LeaseName, Entry>,
    sequence: u64,
    session: u64,
    /// Live sessions, with the time of their last statement.
    live: BTreeMap<u64, Instant>,
    forgotten_to: Option<DbTime>,
}

impl Rows {
    pub(super) fn ensure(&mut self, name: &LeaseName) {
        let partition = ledger_partition(name, super::PARTITIONS);
        self.leases.entry(name.clone()).or_insert_with(|| Entry {
            fence: FenceRow {
                token: FencingToken(0),
                owner: Owner::nobody(),
                incarnation: Incarnation(1),
                seq: BatchSeq(0),
                nonce: None,
                home: None,
                partition,
                quarantine: None,
            },
            lease: LeaseRow {
                owner: Owner::nobody(),
                identity: Identity::new(""),
                token: FencingToken(0),
                expires_at: DbTime(0),
                released: false,
                ttl_ms: 0,
                request_id: None,
            },
            operations: BTreeMap::new(),
            history: Vec::new(),
            fence_lock: RowLock::default(),
            lease_lock: RowLock::default(),
        });
    }

    pub(super) fn exists(&self, name: &LeaseName) -> bool {
        self.leases.contains_key(name)
    }

    pub(super) fn begin(&mut self, now: Instant) -> u64 {
        self.session += 1;
        self.live.insert(self.session, now);
        self.session
    }

    pub(super) fn draw(&mut self) -> FencingToken {
        self.sequence += 1;
        FencingToken(self.sequence)
    }

    /// False if the session has been ended; else it is in use again.
    pub(super) fn touch(&mut self, session: u64, now: Instant) -> bool {
        self.reap(now);
        match self.live.get_mut(&session) {
            Some(used) => {
                *used = now;
                true
            }
            None => false,
        }
    }

    fn reap(&mut self, now: Instant) {
        self.live.retain(|_, used| now.saturating_duration_since(*used) <= IDLE_IN_TRANSACTION);
    }

    pub(super) fn end(&mut self, session: u64) {
        self.live.remove(&session);
    }

    pub(super) fn kill_all(&mut self) {
        self.live.clear();
    }

    fn lock_of(&mut self, name: &LeaseName, row: Row) -> &mut RowLock {
        let entry = self.leases.get_mut(name).unwrap();
        match row {
            Row::Fence => &mut entry.fence_lock,
            Row::Lease => &mut entry.lease_lock,
        }
    }

    pub(super) fn enqueue(&mut self, name: &LeaseName, row: Row, session: u64) {
        self.lock_of(name, row).queue.push_back(session);
    }

    /// True if the session has the row's lock now; it must keep trying, first come first served.
    pub(super) fn try_lock(
        &mut self,
        name: &LeaseName,
        row: Row,
        session: u64,
        now: Instant,
    ) -> bool {
        // A statement that waits for a lock is not idle.
        self.touch(session, now);
        let live = self.live.clone();
        let lock = self.lock_of(name, row);
        lock.holder = lock.holder.filter(|holder| live.contains_key(holder));
        lock.queue.retain(|waiter| live.contains_key(waiter));
        let free = lock.holder.is_none() || lock.holder == Some(session);
        let mine = free && lock.queue.front() == Some(&session);
        if mine {
            lock.queue.pop_front();
            lock.holder = Some(session);
        }
        mine
    }

    pub(super) fn leave(&mut self, name: &LeaseName, row: Row, session: u64) {
        self.lock_of(name, row).queue.retain(|waiter| *waiter != session);
    }

    pub(super) fn read(&self, name: &LeaseName, ids: &[OperationId], now: DbTime) -> Locked {
        let entry = &self.leases[name];
        let found = ids.iter().filter_map(|id| entry.operations.get(id));
        let found = found.map(|(stored, _)| stored.clone()).collect();
        let (fence, lease) = (entry.fence.clone(), entry.lease.clone());
        let forgotten_to = self.forgotten_to.unwrap_or(DbTime(0));
        Locked { fence, lease, now, incarnation: Incarnation(1), forgotten_to, found }
    }

    pub(super) fn token(&self, name: &LeaseName) -> FencingToken {
        self.leases.get(name).map_or(FencingToken(0), |entry| entry.fence.token)
    }

    pub(super) fn extend(&mut self, name: &LeaseName, ttl_ms: u64, now: DbTime) -> LeaseRow {
        let lease = &mut self.leases.get_mut(name).unwrap().lease;
        let until = now.0 + 1_000 * i64::try_from(ttl_ms).unwrap();
        lease.expires_at = lease.expires_at.max(DbTime(until));
        lease.ttl_ms = ttl_ms;
        lease.clone()
    }

    pub(super) fn names(&self) -> Vec<LeaseName> {
        self.leases.keys().cloned().collect()
    }

    pub(super) fn history(&self, name: &LeaseName) -> Vec<HistoryEntry> {
        self.leases[name].history.clone()
    }

    pub(super) fn purge(&mut self, step: PurgeStep, before: DbTime) -> Purged {
        let mut old: Vec<(DbTime, LeaseName, OperationId)> = Vec::new();
        for (name, entry) in &self.leases {
            for (id, (_, at)) in &entry.operations {
                if *at >= step.from && *at < before {
                    old.push((*at, name.clone(), id.clone()));
                }
            }
        }
        old.sort();
        old.truncate(step.rows.into());
        for (_, name, id) in &old {
            self.leases.get_mut(name).unwrap().operations.remove(id);
        }
        let last = old.last().map(|(at, ..)| *at);
        self.forgotten_to = self.forgotten_to.max(last);
        let to = last.unwrap_or(step.from);
        Purged { rows: old.len().try_into().unwrap(), to }
    }

    pub(super) fn quarantines(&self) -> Vec<String> {
        self.leases.values().filter_map(|entry| entry.fence.quarantine.clone()).collect()
    }

    /// The guards of the real store's statements: a write that they refuse changes nothing.
    pub(super) fn takes(&self, name: &LeaseName, write: &Write, now: DbTime) -> bool {
        let entry = &self.leases[name];
        let (fence, held) = (&entry.fence, entry.lease.is_held(now));
        let free = fence.quarantine.is_none();
        match write {
            Write::Install { .. } => free && !held,
            Write::Settle { .. } => free && !held,
            Write::Record { seq, .. } => free && *seq == fence.seq.next(),
            Write::Reopen { .. } | Write::Release { .. } | Write::Retire { .. } => free,
            Write::Quarantine { .. } | Write::Expire | Write::Nonce { .. } => true,
        }
    }

    /// Writes one decision; gives the expiry, or what the write would have broken.
    pub(super) fn write(
        &mut self,
        name: &LeaseName,
        write: Write,
        home: InstanceId,
        now: DbTime,
    ) -> Result<DbTime, String> {
        let entry = self.leases.get_mut(name).unwrap();
        let (fence, lease) = (&mut entry.fence, &mut entry.lease);
        let opens = matches!(write, Write::Install { .. } | Write::Reopen { .. });
        let event = event(&write);
        let (nonce, seq, redo) = match write {
            Write::Install {
                token, owner, identity, ttl_ms, request_id, nonce, seq, redo, ..
            } => {
                if token <= fence.token {
                    return Err(format!("G4: {token} installed after {}", fence.token));
                }
                (fence.token, fence.owner) = (token, owner.clone());
                let expires_at = DbTime(now.0 + 1_000 * i64::try_from(ttl_ms).unwrap());
                let released = false;
                *lease =
                    LeaseRow { owner, identity, token, expires_at, released, ttl_ms, request_id };
                (Some(nonce), seq, redo)
            }
            Write::Reopen { nonce, seq, redo } => (Some(nonce), seq, redo),
            Write::Record { seq, operations } => {
                if seq != fence.seq.next() {
                    return Err(format!("batch {seq} recorded after {}", fence.seq));
                }
                let (token, incarnation, owner) =
                    (fence.token, fence.incarnation, fence.owner.clone());
                (None, seq, Some(Batch { token, owner, incarnation, seq, operations }))
            }
            Write::Release { nonce, seq, redo } => {
                lease.released = true;
                (nonce, seq, redo)
            }
            Write::Settle { nonce, seq, redo } => {
                lease.released = true;
                (Some(nonce), seq, redo)
            }
            Write::Retire { nonce, seq, redo } => {
                lease.expires_at = lease.expires_at.min(now);
                (Some(nonce), seq, redo)
            }
            Write::Quarantine { reason } => {
                fence.quarantine = Some(reason);
                (None, fence.seq, None)
            }
            Write::Expire => {
                lease.expires_at = lease.expires_at.min(now);
                (None, fence.seq, None)
            }
            Write::Nonce { nonce } => (Some(nonce), fence.seq, None),
        };
        fence.nonce = nonce.or(fence.nonce);
        if opens {
            fence.home = Some(home);
        }
        if seq < fence.seq || (seq > fence.seq && redo.is_none()) {
            return Err(format!("seq went from {} to {seq}", fence.seq));
        }
        fence.seq = seq;
        let expires_at = lease.expires_at;
        if let Some(batch) = redo {
            entry.keep(&batch, now)?;
        }
        if let Some(event) = event {
            entry.note(event, now);
        }
        Ok(expires_at)
    }
}

impl Entry {
    /// Remembers a batch's operations.
    fn keep(&mut self, batch: &Batch, now: DbTime) -> Result<(), String> {
        let (token, incarnation, seq) = (batch.token, batch.incarnation, batch.seq);
        for accepted in &batch.operations {
            let stored = Stored { accepted: accepted.clone(), token, incarnation, seq };
            let fresh = || (stored.clone(), now);
            let (kept, _) = self.operations.entry(accepted.id.clone()).or_insert_with(fresh);
            if *kept != stored {
                return Err(format!("{} is stored twice", accepted.id));
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &str, now: DbTime) {
        self.history.push(HistoryEntry {
            id: i64::try_from(self.history.len()).unwrap() + 1,
            at: now,
            event: event.to_owned(),
            token: self.fence.token,
            owner: self.fence.owner.as_str().to_owned(),
            incarnation: self.fence.incarnation,
            seq: self.fence.seq,
            home: self.fence.home,
            note: None,
        });
    }
}

/// As it stands in the history; a batch and a failed open leave no entry.
fn event(write: &Write) -> Option<&'static str> {
    match write {
        Write::Install { .. } => Some("install"),
        Write::Reopen { .. } => Some("reopen"),
        Write::Release { .. } => Some("release"),
        Write::Settle { .. } => Some("settle"),
        Write::Retire { .. } => Some("retire"),
        Write::Quarantine { .. } => Some("quarantine"),
        Write::Expire => Some("expire"),
        Write::Record { .. } | Write::Nonce { .. } => None,
    }
}
