//! What may come of an awaited effect, and what each choice does.
//!
//! Owns the two faults that are everywhere: a request that its sender stops waiting for (it may
//! still be taken, at any time or never), and a COMMIT whose answer is lost.

use super::gateway::{Session, Waits, id, number};
use super::kafka::{Answer, Content, Request, Shared};
use super::rows::{Holder, LATER, NOW};
use super::scope::{Scope, Without, spend};
use super::world::State;
use fencepost::protocol::fence::{Committed, Write};
use fencepost::protocol::lease::{FencingToken, Nonce};
use fencepost::protocol::machine::{CommitOutcome, Effect, Event, KafkaFailure, LockOutcome};
use fencepost::protocol::operation::{OperationId, Placed};
use fencepost::protocol::refusal::RecordRefused;
use std::sync::Arc;

/// A choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Choice {
    /// It happens, and is answered.
    Done,
    /// The sender stops waiting; the request stays on its way. Of a COMMIT: it happens.
    Lost,
    /// An end that the client library has sent twice.
    Repeated,
    /// The record is refused for good.
    Refused,
    /// Kafka is not reached.
    Unreached,
    /// The tail does not show the barrier in time.
    Blind,
}

impl State {
    /// What may come of the effect that a gateway waits for.
    pub fn choices(&self, scope: &Scope, g: u8) -> Vec<Choice> {
        let gateway = &self.gateways[usize::from(g)];
        let Some(waits) = &gateway.waits else { return Vec::new() };
        let rows = &self.databases[usize::from(gateway.database)];
        let mine = |holder: Option<Holder>| holder.is_none_or(|h| h == Holder::Gateway(g));
        let when = |holds: bool| if holds { vec![Choice::Done] } else { Vec::new() };
        match &waits.effect {
            Effect::Lock { both, .. } => {
                let both = *both && !self.settles_without_lock(scope, g);
                when(rows.fence_lock.is_none() && (!both || mine(rows.lease_lock)))
            }
            Effect::LockLease => when(gateway.session == Session::Dead || mine(rows.lease_lock)),
            Effect::OpenProducer if self.left.inits == 0 => vec![Choice::Unreached],
            Effect::AwaitBarrier => {
                let mut choices = when(self.kafka.is_visible(self.barrier_of(g)));
                if self.left.blind > 0 {
                    choices.push(Choice::Blind);
                }
                choices
            }
            Effect::Commit(_) if gateway.session == Session::Live => {
                let again = waits.step == 1 && rows.fence_lock.is_some();
                match (again, self.left.lost) {
                    (true, _) => Vec::new(),
                    (false, 0) => vec![Choice::Done],
                    (false, _) => vec![Choice::Done, Choice::Lost],
                }
            }
            effect => match self.request(g, effect, waits.step) {
                Some(request) => {
                    let mut choices = Vec::new();
                    if self.kafka.takes(&request) {
                        choices.push(Choice::Done);
                    }
                    let repeats = matches!(request, Request::End { .. });
                    if repeats && self.left.repeats > 0 && self.kafka.takes(&request) {
                        choices.push(Choice::Repeated);
                    }
                    let data =
                        matches!(&request, Request::Produce { content: Content::Data { .. }, .. });
                    if data && self.left.refusals > 0 {
                        choices.push(Choice::Refused);
                    }
                    if self.left.lost > 0 {
                        choices.push(Choice::Lost);
                    }
                    choices
                }
                None => vec![Choice::Done],
            },
        }
    }

    fn settles_without_lock(&self, scope: &Scope, g: u8) -> bool {
        scope.lacks(Without::SettleLocksLease) && self.gateways[usize::from(g)].settles
    }

    /// The request that an effect makes next.
    fn request(&self, g: u8, effect: &Effect, step: u8) -> Option<Request> {
        if matches!(effect, Effect::OpenProducer) {
            return Some(Request::Init);
        }
        // Without a producer nothing is sent; the machine never asks for it.
        let epoch = self.gateways[usize::from(g)].epoch?;
        let produce = |content| Some(Request::Produce { epoch, content });
        let end = |commit| Some(Request::End { epoch, commit });
        match (effect, step) {
            (Effect::WriteBarrier { nonce }, 0) => produce(Content::Barrier(*nonce)),
            (Effect::WriteState(state), 0) => {
                produce(Content::State(Shared(Arc::new(state.clone()))))
            }
            (Effect::WriteBarrier { .. } | Effect::WriteState(_) | Effect::EndTxn, _) => end(true),
            (Effect::Abort, _) => end(false),
            (Effect::Send { seq, token, operations }, step) => {
                let (name, _) = &operations[usize::from(step)];
                let (op, token, seq) = (number(name), token.0, seq.0);
                produce(Content::Data { op, token, seq })
            }
            (Effect::SendLedger(batch), _) => {
                produce(Content::Batch(Shared(Arc::new(batch.clone()))))
            }
            _ => None,
        }
    }

    /// Makes one choice come true.
    pub fn step(&mut self, scope: &Scope, g: u8, choice: Choice) {
        let Some(waits) = self.gateway(g).waits.take() else { return };
        if choice == Choice::Lost {
            spend(&mut self.left.lost);
        }
        if let Effect::Commit(write) = &waits.effect {
            return self.commit(scope, g, &waits, &write.clone(), choice);
        }
        if let Some(request) = self.request(g, &waits.effect, waits.step) {
            return self.send(scope, g, waits, request, choice);
        }
        let event = match &waits.effect {
            Effect::AwaitTail { .. } => Event::TailReady(true),
            Effect::Ensure => Event::Ensured(true),
            Effect::Lock { both, operations } => self.lock(scope, g, *both, operations),
            Effect::LockLease => self.lock_lease(g),
            Effect::DrawToken => Event::Drawn(self.alive(g).then(|| self.draw(g))),
            Effect::AwaitBarrier => {
                let before = self.barrier_of(g);
                let seen = choice == Choice::Done;
                if !seen {
                    self.left.blind -= 1;
                }
                Event::BarrierSeen(seen.then(|| self.known(scope, g, before)))
            }
            Effect::ReadBatch { offset } => Event::BatchRead(self.kafka.batch_at(*offset)),
            Effect::FindOperations(ids) => {
                let found = self.alive(g).then(|| self.rows(g).find(ids));
                Event::Found(found)
            }
            Effect::Confirm => {
                Event::Confirmed(self.alive(g) || scope.lacks(Without::ConfirmAfterAbort))
            }
            // A call on a producer that is not there.
            Effect::OpenProducer => Event::Opened(Err(KafkaFailure::Doubt)),
            Effect::WriteBarrier { .. } => Event::BarrierWritten(Err(KafkaFailure::Doubt)),
            Effect::WriteState(_) => Event::StateWritten(Err(KafkaFailure::Doubt)),
            Effect::Send { .. } => Event::Sent(Err(KafkaFailure::Doubt)),
            Effect::SendLedger(_) => Event::LedgerSent(Err(KafkaFailure::Doubt)),
            Effect::EndTxn => Event::Ended(Err(KafkaFailure::Doubt)),
            Effect::Abort => Event::Aborted(false),
            other => panic!("not awaited: {other:?}"),
        };
        self.feed(scope, g, event);
    }

    /// The awaited effect has one outcome, which nothing else can change: it is taken at once, so
    /// that the search has fewer orders to try.
    pub fn is_settled(&self, scope: &Scope, g: u8) -> bool {
        let gateway = &self.gateways[usize::from(g)];
        let Some(waits) = &gateway.waits else { return false };
        let log_stands = self.left.compactions == 0;
        match &waits.effect {
            Effect::AwaitTail { .. } | Effect::Ensure => true,
            Effect::AwaitBarrier => {
                log_stands && self.left.blind == 0 && self.choices(scope, g) == [Choice::Done]
            }
            Effect::ReadBatch { .. } => log_stands,
            _ => false,
        }
    }

    fn alive(&self, g: u8) -> bool {
        self.gateways[usize::from(g)].session == Session::Live
    }

    fn draw(&mut self, g: u8) -> FencingToken {
        let rows = self.rows(g);
        rows.sequence += 1;
        FencingToken(rows.sequence)
    }

    fn lock_lease(&mut self, g: u8) -> Event {
        if !self.alive(g) {
            return Event::LeaseLocked(None);
        }
        let rows = self.rows(g);
        rows.lease_lock = Some(Holder::Gateway(g));
        Event::LeaseLocked(Some((rows.lease.clone(), NOW)))
    }

    fn lock(&mut self, scope: &Scope, g: u8, both: bool, ids: &[OperationId]) -> Event {
        let both = both && !self.settles_without_lock(scope, g);
        self.gateway(g).session = Session::Live;
        let rows = self.rows(g);
        rows.fence_lock = Some(g);
        if both {
            rows.lease_lock = Some(Holder::Gateway(g));
        }
        let mut locked = rows.read(ids);
        self.show_rows(scope, g, both, &mut locked);
        let glimpse = self.kafka.knowledge(i64::MAX).top_token();
        let fresh = self.fresh(g);
        Event::Locked { outcome: LockOutcome::Locked(Box::new(locked)), fresh, glimpse }
    }

    /// Different from the row's and from those in the log: all that a nonce has to be.
    fn fresh(&self, g: u8) -> Nonce {
        let inits = u8::try_from(self.kafka.log.len()).unwrap_or(u8::MAX);
        let mut nonce = [0; 16];
        (nonce[0], nonce[1], nonce[2]) = (g + 1, self.kafka.epoch, inits);
        let rows = &self.databases[usize::from(self.gateways[usize::from(g)].database)];
        while rows.fence.nonce == Some(Nonce(nonce)) {
            nonce[3] += 1;
        }
        Nonce(nonce)
    }

    /// Offset of the barrier that a gateway has written last.
    fn barrier_of(&self, g: u8) -> i64 {
        self.gateways[usize::from(g)].barrier
    }

    fn send(&mut self, scope: &Scope, g: u8, waits: Waits, request: Request, choice: Choice) {
        if request == Request::Init {
            self.left.inits = self.left.inits.saturating_sub(1);
        }
        let answer = match choice {
            Choice::Lost => {
                self.kafka.put(request);
                return self.failed(scope, g, &waits.effect, KafkaFailure::Doubt);
            }
            Choice::Unreached => {
                return self.failed(scope, g, &waits.effect, KafkaFailure::Unreached);
            }
            Choice::Refused => {
                self.left.refusals -= 1;
                let (index, why) = (usize::from(waits.step), RecordRefused::Invalid);
                return self.failed(scope, g, &waits.effect, KafkaFailure::Record { index, why });
            }
            Choice::Done | Choice::Repeated | Choice::Blind => self.take(scope, &request),
        };
        let repeated = choice == Choice::Repeated;
        if repeated {
            self.left.repeats -= 1;
            self.kafka.put(request.clone());
        }
        match answer {
            Answer::Fenced => self.failed(scope, g, &waits.effect, KafkaFailure::Fenced),
            Answer::Epoch(epoch) => {
                self.gateway(g).epoch = Some(epoch);
                self.feed(scope, g, Event::Opened(Ok(())));
            }
            Answer::Offset(offset) => self.appended(scope, g, waits, offset),
            Answer::Ended => {
                if scope.ends.bump {
                    let epoch = self.kafka.epoch;
                    self.gateway(g).epoch = Some(epoch);
                }
                let clean = |rule| !repeated || scope.lacks(rule);
                let event = match waits.effect {
                    Effect::WriteBarrier { .. } => {
                        self.gateway(g).barrier = waits.offset;
                        let clean = clean(Without::RebuildAfterDirtyOpen);
                        Event::BarrierWritten(Ok((waits.offset, clean)))
                    }
                    Effect::WriteState(_) => {
                        Event::StateWritten(Ok(clean(Without::RebuildAfterDirtyOpen)))
                    }
                    Effect::EndTxn => Event::Ended(Ok(clean(Without::RebuildAfterDirtyBatch))),
                    _ => Event::Aborted(true),
                };
                self.feed(scope, g, event);
            }
        }
    }

    /// A record has its place: the effect's next request, or its answer.
    fn appended(&mut self, scope: &Scope, g: u8, mut waits: Waits, offset: i64) {
        if waits.step == 0 {
            waits.offset = offset;
        }
        waits.step += 1;
        let event = match &waits.effect {
            Effect::Send { operations, .. } if usize::from(waits.step) == operations.len() => {
                let placed = (waits.offset..=offset).map(|offset| Placed {
                    topic: "t".into(),
                    partition: 0,
                    offset,
                });
                Event::Sent(Ok(placed.collect()))
            }
            Effect::SendLedger(_) => Event::LedgerSent(Ok(())),
            _ => return self.gateway(g).waits = Some(waits),
        };
        self.feed(scope, g, event);
    }

    fn failed(&mut self, scope: &Scope, g: u8, effect: &Effect, failure: KafkaFailure) {
        let event = match effect {
            Effect::OpenProducer => Event::Opened(Err(failure)),
            Effect::WriteBarrier { .. } => Event::BarrierWritten(Err(failure)),
            Effect::WriteState(_) => Event::StateWritten(Err(failure)),
            Effect::Send { .. } => Event::Sent(Err(failure)),
            Effect::SendLedger(_) => Event::LedgerSent(Err(failure)),
            Effect::EndTxn => Event::Ended(Err(failure)),
            _ => Event::Aborted(false),
        };
        self.feed(scope, g, event);
    }

    fn commit(&mut self, scope: &Scope, g: u8, waits: &Waits, write: &Write, choice: Choice) {
        let opens = matches!(write, Write::Install { .. } | Write::Reopen { .. });
        let in_two = scope.lacks(Without::OneCommitOfRelease)
            && matches!(write, Write::Release { nonce: Some(_), .. });
        if in_two && waits.step == 0 && self.alive(g) {
            return self.first_half(scope, g, waits, write);
        }
        let written = if waits.step == 1 {
            self.rows(g).lease.released = true;
            true
        } else {
            self.alive(g) && self.write(scope, g, write)
        };
        let reopens = matches!(write, Write::Reopen { .. });
        if written && reopens && scope.lacks(Without::ReopenLeavesTheLease) {
            let rows = self.rows(g);
            (rows.lease.released, rows.lease.expires_at) = (false, LATER);
        }
        let committed = Committed { expires_at: self.rows(g).lease.expires_at, now: NOW };
        self.end_session(g);
        let known = written && choice == Choice::Done;
        let outcome = if known || (opens && scope.lacks(Without::KnownCommit)) {
            CommitOutcome::Known(committed)
        } else {
            CommitOutcome::Unknown
        };
        self.feed(scope, g, Event::Committed(outcome));
    }

    /// A release as two transactions: what was found first, `released` later.
    fn first_half(&mut self, scope: &Scope, g: u8, waits: &Waits, write: &Write) {
        if let Write::Release { nonce: Some(nonce), seq, redo } = write.clone() {
            let home = self.rows(g).fence.home;
            self.write(scope, g, &Write::Reopen { nonce, seq, redo: redo.clone() });
            self.rows(g).fence.home = home;
            let second = Write::Release { nonce: None, seq, redo: None };
            let effect = Effect::Commit(second);
            self.rows(g).free(g);
            self.gateway(g).waits = Some(Waits { effect, step: 1, ..waits.clone() });
        }
    }

    /// Everything that is on its way arrives, or never does; every gateway starts anew.
    pub fn quiet(&mut self, scope: &Scope) {
        for g in 0..scope.gateways {
            self.crash(scope, g);
        }
        while let Some(request) = self.kafka.net.pop() {
            self.mark(true);
            self.mark(false);
            self.take(scope, &request);
        }
        self.mark(true);
        self.mark(false);
    }

    /// The process ends; what it has sent stays on its way.
    pub fn crash(&mut self, scope: &Scope, g: u8) {
        let waits = self.gateway(g).waits.take();
        let request = waits.and_then(|waits| self.request(g, &waits.effect, waits.step));
        if let Some(request) = request {
            self.kafka.put(request);
        }
        self.end_session(g);
        let database = self.gateway(g).database;
        *self.gateway(g) = super::gateway::Gateway::new(g, scope.bugs);
        self.gateway(g).database = database;
    }

    /// True if the operation is in the database.
    pub fn stores(&self, op: u8) -> bool {
        self.databases[0].operations.contains_key(id(op))
    }
}
