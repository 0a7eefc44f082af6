//! The machine driven by hand: every effect gets an outcome from a small world, or the fault that
//! a test asked for, and every step is held to the rules that no trace may break.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the outcomes that it is about")]

mod log;
mod open;
mod produce;
mod random;
mod refused;
mod release;
mod reopen;
mod takeover;
mod world;

use super::*;
use crate::protocol::batch::Ticket;
use crate::protocol::bug::Bugs;
use crate::protocol::fence::{Credential, Write};
use crate::protocol::lease::{
    FencingToken, Identity, Incarnation, LeaseName, Nonce, Owner, RequestId,
};
use crate::protocol::operation::{Fingerprint, OperationId, Record};
use crate::protocol::refusal::{Refusal, SideEffect};
use std::collections::{BTreeMap, BTreeSet};
use world::World;

/// How an effect goes wrong, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It did not happen, and that is all that is known.
    Fail,
    /// It happened, and the answer was lost.
    Lost,
    /// It may still happen: the request is on its way.
    Late,
    /// It happened; a repeat of the request may be on its way.
    Dirty,
    /// The epoch is not ours.
    Fenced,
    /// The record of this index is refused.
    Record(usize),
    /// A right is refused.
    Denied,
    /// There is no such row.
    Absent,
}

/// One machine, its world, and what it has asked for and answered so far.
struct Rig {
    machine: LeaseMachine,
    world: World,
    at: u64,
    tickets: u64,
    replies: BTreeMap<Ticket, Reply>,
    alerts: Vec<Alert>,
    /// A locked session lives, as far as the machine can know.
    session: bool,
    /// Ids that the session's lock looked up.
    looked_up: BTreeSet<OperationId>,
    producer: bool,
    /// A call on the producer failed or was dirty, and it has not been dropped since.
    poisoned: bool,
    /// The open under way was refused: nothing more may be sent under it.
    refused: bool,
}

impl Rig {
    fn new() -> Self {
        let setting = Setting {
            home: InstanceId([1; 16]),
            limits: BatchLimits::default(),
            retention_s: 3_600,
            bugs: Bugs::default(),
        };
        Self {
            machine: LeaseMachine::new(setting),
            world: World::new(),
            at: 1_000,
            tickets: 0,
            replies: BTreeMap::new(),
            alerts: Vec::new(),
            session: false,
            looked_up: BTreeSet::new(),
            producer: false,
            poisoned: false,
            refused: false,
        }
    }

    /// A rig whose machine has just acquired token 1.
    fn acquired() -> Self {
        let mut rig = Self::new();
        let (ticket, _) = rig.acquire(acquire("w"));
        assert!(matches!(rig.replies.get(&ticket), Some(Reply::Granted { .. })));
        rig
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        self.tickets
    }

    fn acquire(&mut self, acquire: Acquire) -> (Ticket, String) {
        let ticket = self.ticket();
        let trace = self.run(Event::Acquire(Acquire { ticket, ..acquire }));
        (ticket, trace)
    }

    fn release(&mut self) -> (Ticket, String) {
        let (ticket, credential) = (self.ticket(), self.world.credential());
        let trace = self.run(Event::Release(Release { ticket, credential, restarts: 0 }));
        (ticket, trace)
    }

    fn settle(&mut self) -> (Ticket, String) {
        let ticket = self.ticket();
        let trace = self.run(Event::Settle(ticket));
        (ticket, trace)
    }

    /// Queues an operation under the current token.
    fn queue(&mut self, id: &str) -> Ticket {
        let credential = self.world.credential();
        self.queue_as(id, credential)
    }

    fn queue_as(&mut self, id: &str, credential: Credential) -> Ticket {
        let ticket = self.ticket();
        let id = OperationId::parse(id).unwrap();
        self.world.note_asked(ticket, &id, credential.token);
        let records = [record(id.as_str())];
        let waiting = Waiting {
            ticket,
            credential,
            fingerprint: Fingerprint::of(&records),
            id,
            records: records.into(),
            deadline_ms: self.at + 10_000,
            in_doubt: false,
            alone: false,
        };
        assert!(self.feed(Event::Queue(waiting)).is_empty());
        ticket
    }

    /// Queues one operation and works until nothing is awaited.
    fn produce(&mut self, id: &str) -> (Ticket, String) {
        let ticket = self.queue(id);
        let trace = self.run(Event::Go);
        (ticket, trace)
    }

    /// Feeds one event and what follows from it; gives the names of the effects, in order.
    fn run(&mut self, event: Event) -> String {
        let mut names: Vec<String> = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next.take() {
            for effect in self.feed(event) {
                names.push(name(&effect));
                if is_awaited(&effect) {
                    next = Some(self.world.perform(&effect));
                }
            }
            assert!(names.len() < 2_000, "the machine never comes to rest");
        }
        names.join(" ")
    }

    /// One step, held to the rules of every trace.
    fn feed(&mut self, event: Event) -> Vec<Effect> {
        self.before(&event);
        let effects = self.machine.apply(event, self.at);
        let awaited = effects.iter().filter(|e| is_awaited(e)).count();
        assert!(awaited <= 1, "{effects:?}");
        assert!(awaited == 0 || effects.last().is_some_and(is_awaited), "{effects:?}");
        assert_eq!(awaited == 0, self.machine.is_idle() || effects.is_empty(), "{effects:?}");
        for effect in &effects {
            self.after(effect);
        }
        assert!(!(self.session && self.machine.is_idle()), "a lock outlives its use: {effects:?}");
        effects
    }

    fn before(&mut self, event: &Event) {
        let failed = match event {
            Event::Locked { outcome, .. } => {
                assert!(!self.session, "locked twice");
                self.session = matches!(outcome, LockOutcome::Locked(_));
                false
            }
            Event::Opened(outcome) => outcome.is_err(),
            Event::BarrierWritten(outcome) => !matches!(outcome, Ok((_, true))),
            Event::BarrierSeen(outcome) => outcome.is_none(),
            Event::StateWritten(outcome) => !matches!(outcome, Ok(true)),
            Event::Sent(outcome) => outcome.is_err(),
            Event::LedgerSent(outcome) => outcome.is_err(),
            Event::Ended(outcome) => outcome.is_err(),
            Event::Aborted(_) => true,
            _ => false,
        };
        self.poisoned |= failed && self.producer;
    }

    fn after(&mut self, effect: &Effect) {
        match effect {
            Effect::Lock { operations, .. } => {
                assert!(!self.session, "a second lock while the first is held");
                self.looked_up = operations.iter().cloned().collect();
                self.refused = false;
            }
            Effect::OpenProducer => {
                assert!(self.session && !self.producer, "an init without the lock, or a second");
                self.producer = true;
            }
            Effect::DropProducer => {
                assert!(self.producer, "there is nothing to drop");
                (self.producer, self.poisoned) = (false, false);
            }
            Effect::Commit(write) => {
                assert!(self.session && !self.poisoned, "{write:?}");
                self.session = false;
                let refuses = matches!(write, Write::Quarantine { .. } | Write::Retire { .. });
                self.refused |= refuses;
            }
            Effect::EndSession => {
                assert!(!self.poisoned, "the lock goes before the producer");
                self.session = false;
                self.world.end_session();
            }
            Effect::WriteBarrier { .. } | Effect::WriteState(_) | Effect::SendLedger(_) => {
                assert!(self.session && self.producer && !self.poisoned && !self.refused);
            }
            Effect::Send { operations, .. } => {
                assert!(self.session && self.producer && !self.poisoned && !self.refused);
                let known = |(id, _): &(OperationId, _)| self.looked_up.contains(id);
                assert!(operations.iter().all(known), "sent without having been looked up");
            }
            Effect::EndTxn => assert!(self.session && self.producer && !self.poisoned),
            Effect::Abort => assert!(self.session && self.producer),
            Effect::Confirm | Effect::LockLease | Effect::DrawToken | Effect::FindOperations(_) => {
                assert!(self.session)
            }
            Effect::Reply(ticket, reply) => {
                self.world.note_reply(*ticket, reply, &self.looked_up);
                let first = self.replies.insert(*ticket, reply.clone());
                assert_eq!(first, None, "answered twice");
            }
            Effect::Alert(alert) => {
                assert_ne!(*alert, Alert::Unexpected);
                self.alerts.push(alert.clone());
            }
            Effect::AwaitTail { .. } => assert!(!self.session, "waits for the tail with a lock"),
            Effect::Ensure | Effect::AwaitBarrier | Effect::ReadBatch { .. } => {}
        }
    }

    fn refusal(&self, ticket: Ticket) -> &Refusal {
        match &self.replies[&ticket] {
            Reply::Refused(refusal) => refusal,
            other => panic!("{other:?}"),
        }
    }

    fn assert_produced(&self, ticket: Ticket, replayed: bool) {
        match &self.replies[&ticket] {
            Reply::Produced { replayed: said, .. } => assert_eq!(*said, replayed),
            other => panic!("{other:?}"),
        }
    }

    fn assert_granted(&self, ticket: Ticket, expected: u64) {
        match &self.replies[&ticket] {
            Reply::Granted { token, .. } => assert_eq!(*token, FencingToken(expected)),
            other => panic!("{other:?}"),
        }
    }
}

fn record(value: &str) -> Record {
    Record {
        topic: "t".into(),
        partition: None,
        key: None,
        value: Some(value.as_bytes().into()),
        headers: Vec::new(),
        timestamp_ms: None,
    }
}

fn owner(name: &str) -> Owner {
    Owner::parse(name).unwrap()
}

fn acquire(name: &str) -> Acquire {
    Acquire {
        ticket: 0,
        identity: Identity::new("i"),
        owner: owner(name),
        ttl_ms: 30_000,
        request_id: None,
        replace: false,
        drew: None,
        restarts: 0,
    }
}

fn asking(name: &str, request_id: &str) -> Acquire {
    Acquire { request_id: Some(RequestId::parse(request_id).unwrap()), ..acquire(name) }
}

fn is_awaited(effect: &Effect) -> bool {
    !matches!(
        effect,
        Effect::Reply(..) | Effect::DropProducer | Effect::EndSession | Effect::Alert(_)
    )
}

/// The effect's name; a COMMIT with what it writes.
fn name(effect: &Effect) -> String {
    let word = |text: String| {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text.len());
        text[..end].to_owned()
    };
    match effect {
        Effect::Commit(write) => format!("Commit:{}", word(format!("{write:?}"))),
        Effect::Reply(_, Reply::Refused(no)) => format!("Reply:{}", word(format!("{no:?}"))),
        Effect::Reply(_, reply) => format!("Reply:{}", word(format!("{reply:?}"))),
        other => word(format!("{other:?}")),
    }
}
