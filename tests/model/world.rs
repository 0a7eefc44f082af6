//! All gateways, the database, Kafka and what callers were told, as one state.
//!
//! Owns what follows an event: effects are kept until one of their outcomes is chosen, and every
//! write that takes effect is held to the promise at once.

use super::gateway::{Gateway, Grant, Session, Waits, credential, id, number, waiting};
use super::kafka::{Answer, Content, Entry, Fate, Kafka, Request};
use super::rows::Rows;
use super::scope::{Left, Scope, Without};
use super::steps::Choice;
use fencepost::protocol::fence::Write;
use fencepost::protocol::machine::{Alert, Effect, Event, Reply};
use fencepost::protocol::outcome::{Outcome, outcome};
use fencepost::protocol::refusal::{Refusal, SideEffect};
use std::sync::Arc;

pub const RETENTION_S: i64 = 3_600;

/// What a ticket was given for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Asked {
    /// `None` for what is no POST.
    pub op: Option<u8>,
    pub token: u64,
}

/// What callers were told and what became visible: what the promise is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Told {
    pub grants: Vec<Grant>,
    pub tickets: Vec<Asked>,
    pub acknowledged: [bool; 2],
    /// Operations that a final "none" was said of, up to a token.
    pub denied: Vec<(u8, u64)>,
    /// Up to this token everything was said to be over.
    pub over: u64,
    /// Tokens that were installed.
    pub installed: Vec<u64>,
    /// Postgres went back or apart, or its clock did: some promises are bounded by that.
    pub bounded: bool,
    pub split: bool,
    pub broken: Option<&'static str>,
}

impl Told {
    pub fn breaks(&mut self, promise: &'static str) {
        self.broken.get_or_insert(promise);
    }

    fn deny(&mut self, op: u8, token: u64) {
        if !self.denied.contains(&(op, token)) {
            self.denied.push((op, token));
            self.denied.sort_unstable();
        }
    }

    pub fn top(&self) -> u64 {
        self.installed.iter().copied().max().unwrap_or(0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub databases: Vec<Rows>,
    /// A state that the database may go back to.
    pub earlier: Option<Box<Rows>>,
    pub kafka: Kafka,
    pub gateways: Vec<Gateway>,
    /// Deadlines have passed once.
    pub at: u64,
    pub left: Left,
    pub told: Told,
}

impl State {
    pub fn new(scope: &Scope) -> Self {
        Self {
            databases: vec![Rows::new()],
            earlier: None,
            kafka: Kafka::default(),
            gateways: (0..scope.gateways).map(|g| Gateway::new(g, scope.bugs)).collect(),
            at: 0,
            left: scope.left,
            told: Told::default(),
        }
    }

    pub fn gateway(&mut self, g: u8) -> &mut Gateway {
        &mut self.gateways[usize::from(g)]
    }

    pub fn rows(&mut self, g: u8) -> &mut Rows {
        let database = self.gateways[usize::from(g)].database;
        &mut self.databases[usize::from(database)]
    }

    pub fn ticket(&mut self, op: Option<u8>, token: u64) -> u64 {
        self.told.tickets.push(Asked { op, token });
        u64::try_from(self.told.tickets.len() - 1).unwrap()
    }

    pub fn post(&mut self, scope: &Scope, g: u8, op: u8, grant: Grant) {
        let ticket = self.ticket(Some(op), grant.token);
        let deadline_ms = if self.at == 0 && scope.left.deadlines > 0 { 1 } else { u64::MAX };
        let known = self.rows(g).operations.contains_key(id(op));
        let gateway = self.gateway(g);
        gateway.looked[usize::from(op)] = known;
        gateway.asked[usize::from(op)] = grant.token;
        self.feed(scope, g, Event::Queue(waiting(op, grant, ticket, deadline_ms)));
    }

    /// One step of a gateway's machine, and all of its effects that are done at once.
    pub fn feed(&mut self, scope: &Scope, g: u8, event: Event) {
        let at = self.at;
        let gateway = self.gateway(g);
        let machine = &mut gateway.machine;
        let effects = machine.apply(event, at);
        machine.forget_times();
        for effect in effects {
            match effect {
                Effect::Reply(ticket, reply) => self.replied(scope, g, ticket, &reply),
                Effect::DropProducer => self.gateway(g).epoch = None,
                Effect::EndSession => self.end_session(g),
                Effect::Alert(alert) => self.alerted(&alert),
                effect => {
                    self.check_sender(&effect);
                    self.gateway(g).waits = Some(Waits { effect, step: 0, offset: 0 });
                }
            }
        }
        if self.is_settled(scope, g) {
            self.step(scope, g, Choice::Done);
        }
    }

    /// What is sent under a token was asked for under that token.
    fn check_sender(&mut self, effect: &Effect) {
        let Effect::Send { token, operations, .. } = effect else { return };
        let asked =
            |op: u8| self.told.tickets.iter().any(|a| a.op == Some(op) && a.token == token.0);
        if !operations.iter().all(|(name, _)| asked(number(name))) {
            self.told.breaks("G1: sent under another token than it was asked for with");
        }
    }

    pub fn end_session(&mut self, g: u8) {
        self.gateway(g).session = Session::None;
        self.rows(g).free(g);
    }

    fn alerted(&mut self, alert: &Alert) {
        match alert {
            Alert::Unexpected => self.told.breaks("an outcome that nobody waited for"),
            Alert::Retired
            | Alert::FencedRepeatedly { .. }
            | Alert::SequenceBehind
            | Alert::CredentialAhead { .. }
            | Alert::Quarantined { .. } => {}
        }
    }

    fn replied(&mut self, scope: &Scope, g: u8, ticket: u64, reply: &Reply) {
        let asked = self.told.tickets[usize::try_from(ticket).unwrap()];
        match (reply, asked.op) {
            (Reply::Granted { token, incarnation, .. }, _) => {
                let by = u8::from(asked.token == 1);
                let grant = Grant { token: token.0, incarnation: incarnation.0, owner: by };
                if !self.told.grants.contains(&grant) {
                    self.told.grants.push(grant);
                    self.told.grants.sort_unstable();
                }
            }
            (Reply::Released, _) => self.told.over = self.told.over.max(asked.token),
            (Reply::Settled, _) => {
                let rows = self.rows(g);
                let token = rows.fence.token.0;
                if rows.lease.released || scope.lacks(Without::SettleEndsTheToken) {
                    self.told.over = self.told.over.max(token);
                }
            }
            (Reply::Produced { stored, .. }, Some(op)) => {
                let there = self.kafka.log.iter().filter(|entry| {
                    let comes = self.kafka.ending.is_some_and(|ending| ending.commit);
                    let stays =
                        entry.fate == Fate::Committed || (entry.fate == Fate::Open && comes);
                    let (token, seq) = (stored.token.0, stored.seq.0);
                    stays && entry.content == Content::Data { op, token, seq }
                });
                if there.count() != 1 {
                    self.told.breaks("G2: acknowledged, and not there once");
                }
                self.told.acknowledged[usize::from(op)] = true;
            }
            (Reply::Refused(refusal), Some(op)) => self.refused(scope, g, op, asked.token, refusal),
            (Reply::Refused(_), None) | (Reply::Produced { .. }, None) => {}
        }
    }

    fn refused(&mut self, scope: &Scope, g: u8, op: u8, token: u64, refusal: &Refusal) {
        let row = self.rows(g).fence.token.0;
        if matches!(refusal, Refusal::Record { side_effect: SideEffect::None, .. }) {
            let there = |entry: &&Entry| {
                let is_op = matches!(entry.content, Content::Data { op: other, .. } if other == op);
                is_op && entry.fate == Fate::Committed
            };
            if self.kafka.log.iter().any(|entry| there(&entry)) {
                self.told.breaks("G2: there when none was said");
            }
        }
        let is_final = match refusal {
            Refusal::StaleToken { .. } | Refusal::LeaseReleased { .. } => {
                refusal.side_effect() == SideEffect::None
            }
            Refusal::Record { side_effect: SideEffect::None, .. } => {
                scope.lacks(Without::NoneIsFinalOnlyWhenOver)
            }
            Refusal::LeaseExpired { .. } => scope.lacks(Without::MaybeAfterExpiry),
            Refusal::Quarantined => scope.lacks(Without::MaybeAboveTheRow) && token > row,
            _ => false,
        };
        if is_final {
            self.told.deny(op, token);
            self.check_denied();
        }
    }

    /// A "none" is wrong, too, where the operation is there already.
    fn check_denied(&mut self) {
        let wrong = |(op, up_to): &(u8, u64)| {
            self.kafka.log.iter().any(|entry| match entry.content {
                Content::Data { op: written, token, .. } => {
                    entry.fate == Fate::Committed && written == *op && token <= *up_to
                }
                _ => false,
            })
        };
        if self.told.denied.iter().any(wrong) {
            self.told.breaks("G2: there after a final none");
        }
    }

    /// Somebody asks what became of an operation.
    pub fn ask(&mut self, scope: &Scope, database: u8, op: u8) {
        let rows = &self.databases[usize::from(database)];
        let told = outcome(&rows.read(std::slice::from_ref(id(op))), id(op), None, RETENTION_S);
        let by_a_handle = || {
            let matches = |gateway: &Gateway| {
                let handle = gateway.machine.handle();
                handle.is_some_and(|handle| {
                    handle.seq == rows.fence.seq && handle.token == rows.fence.token
                })
            };
            rows.is_held() && self.gateways.iter().any(matches)
        };
        let up_to = match told {
            Outcome::Absent { up_to } => Some(up_to.0),
            Outcome::Unknown { .. } if scope.lacks(Without::AbsentWhenDecided) => {
                by_a_handle().then_some(rows.fence.token.0)
            }
            Outcome::Unknown { .. } | Outcome::Committed(_) | Outcome::Refused(_) => None,
        };
        if let Some(up_to) = up_to {
            self.told.deny(op, up_to);
            self.check_denied();
        }
    }

    /// Kafka takes a request; what it makes visible is held to the promise.
    pub fn take(&mut self, scope: &Scope, request: &Request) -> Answer {
        let decides = match request {
            Request::End { epoch, commit } => *commit && *epoch == self.kafka.epoch,
            Request::Init | Request::Produce { .. } => false,
        };
        if decides && self.kafka.ongoing {
            self.decided();
        }
        let mut seen = Vec::new();
        let answer = self.kafka.take(request, scope.ends, &mut seen);
        self.visible(&seen);
        answer
    }

    pub fn mark(&mut self, data: bool) {
        let mut seen = Vec::new();
        self.kafka.mark(data, &mut seen);
        self.visible(&seen);
    }

    /// A transaction is about to be committed: is it whole, and in its place?
    fn decided(&mut self) {
        let (mut data, mut batch) = (Vec::new(), None);
        let mut batches = 0;
        for entry in self.kafka.open_entries() {
            match &entry.content {
                Content::Data { op, token, seq } => data.push((*op, *token, *seq)),
                Content::Batch(one) => {
                    batch = Some(Arc::clone(&one.0));
                    batches += 1;
                }
                Content::Barrier(_) | Content::State(_) => {}
            }
        }
        if data.is_empty() && batches == 0 {
            return;
        }
        let Some(batch) = batch.filter(|_| batches == 1) else {
            return self.told.breaks("a batch is torn from its ledger record");
        };
        let (token, seq) = (batch.token.0, batch.seq.0);
        let mut promised: Vec<(u8, u64, u64)> =
            batch.operations.iter().map(|a| (number(&a.id), token, seq)).collect();
        promised.sort_unstable();
        data.sort_unstable();
        if data != promised {
            self.told.breaks("a batch is torn from its ledger record");
        }
        if token <= self.told.over {
            self.told.breaks("a batch commits after its token was over");
        }
        let last = self.kafka.knowledge(i64::MAX).last;
        let follows = last.is_none_or(|l| seq == l.seq.0 + 1 && token >= l.token.0);
        if !follows && !self.told.bounded {
            self.told.breaks("G3: a batch out of its order");
        }
    }

    fn visible(&mut self, offsets: &[usize]) {
        for offset in offsets {
            let Content::Data { op, token, .. } = self.kafka.log[*offset].content else { continue };
            let copies = self.kafka.log.iter().filter(|entry| {
                entry.fate == Fate::Committed
                    && matches!(entry.content, Content::Data { op: other, .. } if other == op)
            });
            if copies.count() > 1 {
                self.told.breaks("G2: an operation is there twice");
            }
            if token < self.told.top() {
                self.told.breaks("G1: a lower token becomes visible");
            }
        }
        self.check_denied();
    }

    /// A COMMIT takes effect.
    pub fn write(&mut self, scope: &Scope, g: u8, write: &Write) -> bool {
        let over_a_live_lease =
            scope.lacks(Without::TakeoverOfAnEndedLease) && matches!(write, Write::Install { .. });
        let rows = self.rows(g);
        if !rows.takes(write) && !over_a_live_lease {
            return false;
        }
        let (released, held) = (rows.lease.released, rows.is_held());
        let once = rows.write(write, Gateway::home(g));
        if scope.lacks(Without::SettleEndsTheToken) && matches!(write, Write::Settle { .. }) {
            rows.lease.released = released;
        }
        if !once {
            self.told.breaks("an operation is stored twice");
        }
        match write {
            Write::Install { token, .. } => {
                let above = token.0 > self.told.top();
                let again = self.told.installed.contains(&token.0);
                if again || !(above || self.told.split) {
                    self.told.breaks("G4: a token is installed again or goes down");
                }
                self.told.installed.push(token.0);
            }
            Write::Retire { .. } if held && !self.told.bounded => {
                self.told.breaks("the holder of a live lease is retired");
            }
            Write::Quarantine { .. } if !self.told.bounded => {
                self.told.breaks("a healthy lease is quarantined");
            }
            _ => {}
        }
        true
    }

    /// The ledger is never behind Postgres and at most one batch ahead, unless Postgres went back.
    pub fn is_in_step(&self) -> bool {
        let last = self.kafka.knowledge(i64::MAX).last.map_or(0, |last| last.seq.0);
        let row = self.databases[0].fence.seq.0;
        let marked = self.kafka.ending.is_none();
        self.told.bounded || !marked || last == row || last == row + 1
    }

    pub fn release(&mut self, scope: &Scope, g: u8, grant: Grant) {
        let ticket = self.ticket(None, grant.token);
        let credential = credential(grant);
        let release = fencepost::protocol::machine::Release { ticket, credential, restarts: 0 };
        self.feed(scope, g, Event::Release(release));
    }
}
