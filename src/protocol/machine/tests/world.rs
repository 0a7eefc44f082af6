//! The other side of the machine: one row, one transactional.id, one ledger, one topic.
//!
//! Just enough of Postgres and Kafka to give every effect the outcome that it would have there: an
//! epoch fences older ones, a lost answer is not a lost write, a late EndTxn ends whatever the
//! epoch has open by then.

use super::*;
use crate::protocol::fence::{Committed, FenceRow, LeaseRow, Locked};
use crate::protocol::lease::{BatchSeq, DbTime};
use crate::protocol::ledger::{Batch, LedgerPartition};
use crate::protocol::operation::Stored;
use crate::protocol::reconcile::Knowledge;

/// What a transaction holds until it ends.
#[derive(Debug, Clone)]
pub(super) enum Entry {
    Data(FencingToken, OperationId),
    Ledger(FencingToken, Owner, Option<Batch>, bool),
}

pub(super) struct World {
    pub(super) rows: Locked,
    pub(super) stored: Vec<Stored>,
    /// The next draw gives one above.
    pub(super) sequence: u64,
    pub(super) known: Knowledge,
    pub(super) batches: BTreeMap<i64, Batch>,
    pub(super) ledger_end: i64,
    pub(super) open: Option<Vec<Entry>>,
    /// An EndTxn of the current epoch is on its way.
    pub(super) late_end: bool,
    /// Somebody else has initialised the transactional.id after our producer.
    pub(super) fenced: bool,
    /// The database has ended our session.
    pub(super) session_dead: bool,
    session: bool,
    /// What `read_committed` consumers see, in order.
    pub(super) data: Vec<(FencingToken, OperationId)>,
    faults: Vec<(&'static str, Fault)>,
    nonces: u64,
    asked: BTreeMap<Ticket, (OperationId, FencingToken)>,
    /// Operations that a final "none" was said of, with the token it was said to.
    denied: Vec<(OperationId, FencingToken)>,
    acknowledged: BTreeSet<OperationId>,
    /// Chooses faults and foreign events, if this run is a random one.
    pub(super) chance: Option<super::random::Chance>,
}

impl World {
    pub(super) fn new() -> Self {
        let fence = FenceRow {
            token: FencingToken(0),
            owner: Owner::nobody(),
            incarnation: Incarnation(1),
            seq: BatchSeq(0),
            nonce: None,
            home: None,
            partition: LedgerPartition(0),
            quarantine: None,
        };
        let lease = LeaseRow {
            owner: Owner::nobody(),
            identity: Identity::new(""),
            token: FencingToken(0),
            expires_at: DbTime(0),
            released: false,
            ttl_ms: 0,
            request_id: None,
        };
        let now = DbTime(1_000_000_000);
        Self {
            rows: Locked {
                fence,
                lease,
                now,
                incarnation: Incarnation(1),
                forgotten_to: DbTime(0),
                found: Vec::new(),
            },
            stored: Vec::new(),
            sequence: 0,
            known: Knowledge::default(),
            batches: BTreeMap::new(),
            ledger_end: 0,
            open: None,
            late_end: false,
            fenced: false,
            session_dead: false,
            session: false,
            data: Vec::new(),
            faults: Vec::new(),
            nonces: 0,
            asked: BTreeMap::new(),
            denied: Vec::new(),
            acknowledged: BTreeSet::new(),
            chance: None,
        }
    }

    /// The next effect of this name goes wrong in this way.
    pub(super) fn fault(&mut self, name: &'static str, fault: Fault) {
        self.faults.push((name, fault));
    }

    pub(super) fn unused_faults(&self) -> usize {
        self.faults.len()
    }

    /// What the current holder holds.
    pub(super) fn credential(&self) -> Credential {
        Credential {
            lease: LeaseName::parse("l").unwrap(),
            owner: self.rows.fence.owner.clone(),
            token: self.rows.fence.token,
            incarnation: self.rows.fence.incarnation,
            expires_s: i64::MAX,
            issued_s: self.rows.now.seconds(),
        }
    }

    pub(super) fn expire(&mut self) {
        self.rows.now = DbTime(self.rows.lease.expires_at.0.max(self.rows.now.0));
    }

    /// Another gateway opens the lease: same token, or a takeover where the lease is over.
    pub(super) fn opened_elsewhere(&mut self) {
        assert!(!self.session, "the row is locked");
        self.init();
        let over = !self.rows.lease.is_held(self.rows.now);
        let kind = if over { "x" } else { self.rows.fence.owner.as_str() };
        let (owner, nonce) = (owner(kind), self.fresh());
        self.redo();
        let (fence, lease) = (&mut self.rows.fence, &mut self.rows.lease);
        (fence.nonce, fence.home) = (Some(nonce), Some(InstanceId([2; 16])));
        if over {
            self.sequence += 1;
            fence.token = FencingToken(self.sequence);
            fence.owner = owner.clone();
            (lease.token, lease.owner, lease.released) = (fence.token, owner, false);
            lease.request_id = None;
            lease.expires_at = DbTime(self.rows.now.0 + 30_000_000);
        }
        let token = self.rows.fence.token;
        let owner = self.rows.fence.owner.clone();
        self.open = Some(vec![Entry::Ledger(token, owner, self.last_batch(), true)]);
        self.land();
        self.fenced = true;
    }

    /// A takeover elsewhere that fails after its state record: its token is burnt.
    pub(super) fn burnt_elsewhere(&mut self) {
        self.init();
        self.sequence += 1;
        let token = FencingToken(self.sequence);
        self.open = Some(vec![Entry::Ledger(token, owner("x"), self.last_batch(), true)]);
        self.land();
        (self.fenced, self.rows.fence.nonce) = (true, Some(self.fresh()));
    }

    fn last_batch(&self) -> Option<Batch> {
        self.known.last.as_ref().and_then(|l| self.batches.get(&l.offset)).cloned()
    }

    fn redo(&mut self) {
        if let Some(batch) = self.last_batch().filter(|b| b.seq == self.rows.fence.seq.next()) {
            self.record(&batch);
        }
    }

    fn record(&mut self, batch: &Batch) {
        self.rows.fence.seq = batch.seq;
        let (token, incarnation, seq) = (batch.token, batch.incarnation, batch.seq);
        for accepted in batch.operations.iter().cloned() {
            if !self.stored.iter().any(|s| s.accepted.id == accepted.id) {
                self.stored.push(Stored { accepted, token, incarnation, seq });
            }
        }
    }

    /// The nonce that was given last.
    pub(super) fn last_nonce(&self) -> Nonce {
        Nonce(u128::from(self.nonces).to_be_bytes())
    }

    fn fresh(&mut self) -> Nonce {
        self.nonces += 1;
        self.last_nonce()
    }

    fn take_fault(&mut self, effect: &Effect) -> Option<Fault> {
        let name = name(effect);
        let at = self.faults.iter().position(|(n, _)| name == *n);
        let scripted = at.map(|at| self.faults.remove(at).1);
        scripted.or_else(|| self.chance.as_mut().and_then(|chance| chance.fault(&name)))
    }

    /// The outcome of an effect, as Postgres and Kafka would give it.
    pub(super) fn perform(&mut self, effect: &Effect) -> Event {
        super::random::foreign(self);
        let fault = self.take_fault(effect);
        let in_session = matches!(
            effect,
            Effect::LockLease | Effect::DrawToken | Effect::FindOperations(_) | Effect::Confirm
        );
        if in_session && fault.is_some() {
            self.kill_session();
        }
        let alive = !self.session_dead;
        match effect {
            Effect::AwaitTail { .. } => Event::TailReady(fault.is_none()),
            Effect::Ensure => Event::Ensured(fault.is_none()),
            Effect::Lock { operations, .. } => self.lock(operations, fault),
            Effect::LockLease => {
                let rows = || (self.rows.lease.clone(), self.rows.now);
                Event::LeaseLocked(alive.then(rows))
            }
            Effect::DrawToken => {
                self.sequence += 1;
                Event::Drawn(alive.then_some(FencingToken(self.sequence)))
            }
            Effect::FindOperations(ids) => Event::Found(alive.then(|| self.find(ids))),
            Effect::Confirm => Event::Confirmed(alive),
            Effect::Commit(write) => Event::Committed(self.commit(write, fault)),
            _ => self.perform_kafka(effect, fault),
        }
    }

    /// The database ends our session; the machine does not know yet.
    pub(super) fn kill_session(&mut self) {
        (self.session, self.session_dead) = (false, true);
    }

    fn find(&self, ids: &[OperationId]) -> Vec<Stored> {
        self.stored.iter().filter(|s| ids.contains(&s.accepted.id)).cloned().collect()
    }

    fn lock(&mut self, operations: &[OperationId], fault: Option<Fault>) -> Event {
        let fresh = self.fresh();
        let outcome = match fault {
            None => {
                (self.session, self.session_dead) = (true, false);
                let found = self.find(operations);
                LockOutcome::Locked(Box::new(Locked { found, ..self.rows.clone() }))
            }
            Some(Fault::Absent) => LockOutcome::Absent,
            Some(_) => LockOutcome::Failed,
        };
        Event::Locked { outcome, fresh, glimpse: self.known.top_token() }
    }

    fn commit(&mut self, write: &Write, fault: Option<Fault>) -> CommitOutcome {
        self.session = false;
        if self.session_dead || matches!(fault, Some(Fault::Fail | Fault::Late)) {
            return CommitOutcome::Unknown;
        }
        if fault == Some(Fault::Denied) {
            return CommitOutcome::Failed;
        }
        self.write(write);
        if fault.is_some() {
            return CommitOutcome::Unknown;
        }
        let (expires_at, now) = (self.rows.lease.expires_at, self.rows.now);
        CommitOutcome::Known(Committed { expires_at, now })
    }

    fn write(&mut self, write: &Write) {
        let now = self.rows.now;
        let (fence, lease) = (&mut self.rows.fence, &mut self.rows.lease);
        fence.home = Some(InstanceId([1; 16]));
        let (nonce, redo) = match write.clone() {
            Write::Install { token, owner, identity, ttl_ms, request_id, nonce, redo, .. } => {
                assert!(token > fence.token, "G4");
                assert!(self.open.is_none(), "installed over an open transaction");
                (fence.token, fence.owner) = (token, owner.clone());
                *lease = LeaseRow {
                    owner,
                    identity,
                    token,
                    expires_at: DbTime(now.0 + 1_000 * i64::try_from(ttl_ms).unwrap()),
                    released: false,
                    ttl_ms,
                    request_id,
                };
                (Some(nonce), redo)
            }
            Write::Reopen { nonce, redo, .. } => (Some(nonce), redo),
            Write::Record { seq, operations } => {
                assert_eq!(seq, fence.seq.next());
                let (token, incarnation) = (fence.token, fence.incarnation);
                let owner = fence.owner.clone();
                self.record(&Batch { token, owner, incarnation, seq, operations });
                return;
            }
            Write::Release { nonce, redo, .. } => {
                lease.released = true;
                (nonce, redo)
            }
            Write::Settle { nonce, redo, .. } => {
                lease.released = true;
                (Some(nonce), redo)
            }
            Write::Retire { nonce, redo, .. } => {
                lease.expires_at = now.min(lease.expires_at);
                (Some(nonce), redo)
            }
            Write::Quarantine { reason } => {
                fence.quarantine = Some(reason);
                return;
            }
            Write::Expire => {
                lease.expires_at = now.min(lease.expires_at);
                return;
            }
            Write::Nonce { nonce } => (Some(nonce), None),
        };
        fence.nonce = nonce.or(fence.nonce);
        if let Some(batch) = redo {
            assert_eq!(batch.seq, fence.seq.next());
            self.record(&batch);
        }
    }

    pub(super) fn end_session(&mut self) {
        self.session = false;
    }

    pub(super) fn is_locked(&self) -> bool {
        self.session
    }

    pub(super) fn note_asked(&mut self, ticket: Ticket, id: &OperationId, token: FencingToken) {
        self.asked.insert(ticket, (id.clone(), token));
    }

    /// Holds what is said of an operation to what is there.
    pub(super) fn note_reply(
        &mut self,
        ticket: Ticket,
        reply: &Reply,
        looked_up: &BTreeSet<OperationId>,
    ) {
        let Some((id, token)) = self.asked.remove(&ticket) else { return };
        let there = self.data.iter().any(|(_, seen)| *seen == id);
        match reply {
            Reply::Produced { .. } => {
                assert!(there, "{id} is acknowledged and not there");
                self.acknowledged.insert(id);
            }
            Reply::Refused(no) if no.side_effect() == SideEffect::None => {
                // "none" speaks of the caller's token and those below it.
                let own = self.data.iter().any(|(under, seen)| *seen == id && *under <= token);
                assert!(!own, "{id} is there, and {no:?} says that it is not");
                if matches!(no, Refusal::StaleToken { .. } | Refusal::LeaseReleased { .. }) {
                    assert!(looked_up.contains(&id), "{no:?} without having looked {id} up");
                    self.denied.push((id, token));
                }
            }
            _ => {}
        }
    }

    /// G1 (tokens never go down) and G2 at the end of a run.
    pub(super) fn assert_promises(&self) {
        assert!(self.data.is_sorted_by_key(|(token, _)| *token), "{:?}", self.data);
        let times = |id: &OperationId| self.data.iter().filter(|(_, seen)| seen == id).count();
        assert!(self.data.iter().all(|(_, id)| times(id) == 1), "{:?}", self.data);
        assert!(self.acknowledged.iter().all(|id| times(id) == 1));
        for (id, token) in &self.denied {
            let broken = self.data.iter().any(|(under, seen)| seen == id && under <= token);
            assert!(!broken, "{id} came after a final none");
        }
    }
}
