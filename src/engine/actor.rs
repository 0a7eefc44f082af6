//! One actor a lease: mailbox, machine, effects, replies.
//!
//! Owns the order in which commands reach the machine (a takeover ahead of operations, a release
//! behind those that came before it) and the callers that wait. Its work never depends on a
//! caller's connection: a reply that nobody takes is dropped.

use crate::engine::Deps;
use crate::engine::api::Kept;
use crate::engine::perform::Performer;
use crate::engine::registry::Registry;
use crate::protocol::batch::{Ticket, Waiting};
use crate::protocol::fence::Credential;
use crate::protocol::lease::{LeaseName, Nonce};
use crate::protocol::machine::{
    Acquire, Effect, Event, LeaseMachine, Release, Reply, Setting, StateName,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Something for an actor to do, and where to answer.
#[derive(Debug)]
pub(super) enum Command {
    Acquire(Acquire, oneshot::Sender<Reply>),
    Settle(oneshot::Sender<Reply>),
    /// With the instant at which its caller stops waiting.
    Produce(Waiting, Instant, oneshot::Sender<Reply>, Kept),
    Release(Credential, oneshot::Sender<Reply>),
}

/// The two ends of an actor's mailbox.
pub(super) struct Mailbox {
    /// Takeovers and settles: ahead of everything.
    pub(super) first: mpsc::Receiver<Command>,
    /// Operations and releases, in order.
    pub(super) ordered: mpsc::Receiver<Command>,
    /// Held while the actor lives; shutdown waits until all are gone.
    #[expect(dead_code, reason = "its drop is its use")]
    pub(super) alive: mpsc::Sender<()>,
}

/// One lease's actor.
pub(super) struct Actor {
    deps: Arc<Deps>,
    registry: Arc<Registry>,
    machine: LeaseMachine,
    performer: Performer,
    mailbox: Mailbox,
    /// A release waits until the operations ahead of it are answered.
    held: Option<(Credential, oneshot::Sender<Reply>)>,
    replies: HashMap<Ticket, (oneshot::Sender<Reply>, Kept)>,
    ticket: Ticket,
    /// The last command came from the first mailbox: the other one's turn.
    served_first: bool,
    started: Instant,
}

/// What the actor does next while the machine is idle.
enum Next {
    Feed(Event),
    Rest,
    Stop,
}

impl Actor {
    pub(super) fn new(
        lease: LeaseName,
        deps: Arc<Deps>,
        registry: Arc<Registry>,
        mailbox: Mailbox,
    ) -> Self {
        let setting = Setting {
            home: deps.settings.instance,
            limits: deps.settings.limits,
            retention_s: deps.settings.retention_s,
            bugs: deps.settings.bugs,
        };
        Self {
            performer: Performer::new(lease, Arc::clone(&deps)),
            machine: LeaseMachine::new(setting),
            deps,
            registry,
            mailbox,
            held: None,
            replies: HashMap::new(),
            ticket: 0,
            served_first: false,
            started: Instant::now(),
        }
    }

    /// Runs until nothing came for a while, or until the mailbox closes and is empty.
    pub(super) async fn run(mut self) {
        tracing::debug!(lease = %self.performer.lease, "actor starts");
        loop {
            match self.next().await {
                Next::Feed(event) => self.feed(event).await,
                Next::Rest => {
                    self.feed(Event::Idle).await;
                    let empty = || self.mailbox.first.is_empty() && self.mailbox.ordered.is_empty();
                    if self.machine.waiting() == 0
                        && self.registry.retire(&self.performer.lease, empty)
                    {
                        break;
                    }
                }
                Next::Stop => {
                    self.feed(Event::Idle).await;
                    break;
                }
            }
        }
        tracing::debug!(lease = %self.performer.lease, "actor ends");
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Steps the machine until no effect is awaited any more.
    async fn feed(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let before = self.machine.state();
            let opened = self.machine.handle().map(|h| h.nonce);
            let effects = self.machine.apply(event, self.now_ms());
            self.log_change(before, opened);
            for effect in effects {
                if let Effect::Reply(ticket, reply) = effect {
                    self.reply(ticket, reply);
                    continue;
                }
                let (stage, from) = (effect.stage(), Instant::now());
                if let Some(event) = self.performer.perform(effect).await {
                    next = Some(event);
                }
                let micros = u64::try_from(from.elapsed().as_micros()).unwrap_or(u64::MAX);
                tracing::trace!(lease = %self.performer.lease, stage, micros, "stage");
            }
        }
    }

    fn log_change(&self, before: StateName, nonce: Option<Nonce>) {
        let after = self.machine.state();
        let lease = self.performer.lease.as_str();
        if let Some(handle) = self.machine.handle().filter(|h| Some(h.nonce) != nonce) {
            tracing::info!(lease, token = handle.token.0, batch_seq = handle.seq.0, "open");
        }
        if before != after
            && matches!(after, StateName::InDoubt | StateName::Fenced | StateName::Quarantined)
        {
            tracing::warn!(lease, ?before, ?after, "state");
        }
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        if matches!(reply, Reply::Released) {
            self.registry.announce_release(&self.performer.lease);
        }
        if let Some((caller, kept)) = self.replies.remove(&ticket) {
            drop(kept);
            if caller.send(reply).is_err() {
                tracing::debug!(lease = %self.performer.lease, "caller left before the answer");
            }
        }
    }

    async fn next(&mut self) -> Next {
        loop {
            // Ahead of what waits in order, but in turns with it: callers that ask again and again
            // for a held lease must not keep its holder from writing or giving it back.
            if !std::mem::take(&mut self.served_first)
                && let Some(event) = self.take_first()
            {
                self.served_first = true;
                return Next::Feed(event);
            }
            self.take_ordered();
            let now = self.now_ms();
            let resume = self.machine.resume_at();
            match resume {
                Some(at) if at <= now => return Next::Feed(Event::Go),
                Some(_) => {}
                None => {
                    if let Some((credential, caller)) = self.held.take() {
                        let ticket = self.enlist(caller);
                        let release = Release { ticket, credential, restarts: 0 };
                        return Next::Feed(Event::Release(release));
                    }
                }
            }
            if let Some(next) = self.wait(resume, now).await {
                return next;
            }
        }
    }

    /// Sleeps until a command comes or something is due.
    async fn wait(&mut self, resume: Option<u64>, now: u64) -> Option<Next> {
        let due = resume.map(|at| Duration::from_millis(at.saturating_sub(now)));
        let due = due.unwrap_or(self.deps.settings.idle);
        // What the machine holds is bounded, too; the mailbox behind it says that it is full.
        let takes_ordered =
            self.held.is_none() && self.machine.waiting() < self.deps.settings.queue;
        let mailbox = &self.mailbox;
        let closed = mailbox.first.is_closed() && mailbox.ordered.is_closed();
        let empty = mailbox.first.is_empty() && mailbox.ordered.is_empty();
        if closed && empty && resume.is_none() && self.held.is_none() {
            return Some(Next::Stop);
        }
        tokio::select! {
            biased;
            command = self.mailbox.first.recv(), if !self.mailbox.first.is_closed() => {
                command.and_then(|command| self.admit(command)).map(Next::Feed)
            }
            command = self.mailbox.ordered.recv(),
                if takes_ordered && !self.mailbox.ordered.is_closed() => {
                command.and_then(|command| self.hold(command))
            }
            () = tokio::time::sleep(due) => match resume {
                Some(_) => None,
                None => Some(Next::Rest),
            },
        }
    }

    /// Takes what waits in order, up to a release or to what one batch can hold.
    fn take_ordered(&mut self) {
        while self.held.is_none() && self.machine.waiting() < self.deps.settings.queue {
            let Ok(command) = self.mailbox.ordered.try_recv() else { return };
            if let Some(Next::Feed(event)) = self.hold(command) {
                self.queue(event);
            }
        }
    }

    /// Queues an operation at once (it does nothing by itself); keeps a release for later.
    fn hold(&mut self, command: Command) -> Option<Next> {
        match command {
            Command::Release(credential, caller) => {
                self.held = Some((credential, caller));
                None
            }
            command @ (Command::Produce(..) | Command::Acquire(..) | Command::Settle(_)) => {
                if let Some(event) = self.admit(command) {
                    self.queue(event);
                }
                None
            }
        }
    }

    fn queue(&mut self, event: Event) {
        // Queueing asks for nothing.
        drop(self.machine.apply(event, self.now_ms()));
    }

    fn enlist(&mut self, caller: oneshot::Sender<Reply>) -> Ticket {
        self.enlist_with(caller, Kept::default())
    }

    fn enlist_with(&mut self, caller: oneshot::Sender<Reply>, kept: Kept) -> Ticket {
        self.ticket = self.ticket.saturating_add(1);
        self.replies.insert(self.ticket, (caller, kept));
        self.ticket
    }

    fn take_first(&mut self) -> Option<Event> {
        while let Ok(command) = self.mailbox.first.try_recv() {
            if let Some(event) = self.admit(command) {
                return Some(event);
            }
        }
        None
    }

    /// `None` for a takeover whose caller has left while it waited here: a lease that nobody knows
    /// to be his would only keep others out.
    fn admit(&mut self, command: Command) -> Option<Event> {
        Some(match command {
            Command::Acquire(_, caller) | Command::Settle(caller) if caller.is_closed() => {
                return None;
            }
            Command::Acquire(mut acquire, caller) => {
                acquire.ticket = self.enlist(caller);
                Event::Acquire(acquire)
            }
            Command::Settle(caller) => Event::Settle(self.enlist(caller)),
            Command::Produce(mut waiting, deadline, caller, kept) => {
                waiting.ticket = self.enlist_with(caller, kept);
                let until = deadline.saturating_duration_since(self.started).as_millis();
                waiting.deadline_ms = u64::try_from(until).unwrap_or(u64::MAX);
                Event::Queue(waiting)
            }
            Command::Release(credential, caller) => {
                let ticket = self.enlist(caller);
                Event::Release(Release { ticket, credential, restarts: 0 })
            }
        })
    }
}
