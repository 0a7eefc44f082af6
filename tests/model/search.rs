//! The search: which events are possible in a state, and what must hold in every one.

use super::gateway::{Grant, acquire, id};
use super::kafka::Request;
use super::rows::{Holder, LATER, NOW};
use super::scope::{Left, Scope, Without, spend};
use super::steps::Choice;
use super::world::State;
use fencepost::protocol::machine::{Event, StateName};
use stateright::{Model, Property};
use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    Acquire {
        g: u8,
        by: u8,
    },
    Post {
        g: u8,
        op: u8,
        grant: Grant,
    },
    Release {
        g: u8,
        grant: Grant,
    },
    Settle {
        g: u8,
    },
    /// Work on what waits.
    Go {
        g: u8,
    },
    /// An idle producer is closed.
    Rest {
        g: u8,
    },
    Step {
        g: u8,
        choice: Choice,
    },
    /// The server ends a session.
    Kill {
        g: u8,
    },
    Crash {
        g: u8,
    },
    /// A request that nobody waits for is taken.
    Late {
        request: Request,
    },
    Mark {
        data: bool,
    },
    Expire {
        database: u8,
    },
    RenewReads {
        database: u8,
    },
    RenewEnds {
        database: u8,
        commits: bool,
    },
    /// Somebody asks what became of an operation.
    Ask {
        database: u8,
        op: u8,
    },
    Compact,
    Deadline,
    /// The state of now is one that the database may go back to.
    Remember,
    Regress,
    Split,
    Raise {
        database: u8,
    },
    StepBack,
}

impl Scope {
    fn of_gateway(&self, state: &State, g: u8, actions: &mut Vec<Action>) {
        let gateway = &state.gateways[usize::from(g)];
        let (left, idle) = (&state.left, gateway.machine.is_idle());
        for choice in state.choices(self, g) {
            actions.push(Action::Step { g, choice });
        }
        for op in 0u8..2 {
            if left.posts[usize::from(op)] > 0 {
                let posts =
                    state.told.grants.iter().map(|grant| Action::Post { g, op, grant: *grant });
                actions.extend(posts);
            }
        }
        if left.kills > 0 && gateway.session == super::gateway::Session::Live {
            actions.push(Action::Kill { g });
        }
        let busy = gateway.waits.is_some() || gateway.machine.handle().is_some();
        if left.crashes > 0 && busy {
            actions.push(Action::Crash { g });
        }
        if !idle {
            return;
        }
        if gateway.machine.waiting() > 0 {
            actions.push(Action::Go { g });
        } else if gateway.machine.handle().is_some() {
            actions.push(Action::Rest { g });
        }
        if left.acquires > 0 {
            actions.extend([0, 1].map(|by| Action::Acquire { g, by }));
        }
        if left.releases > 0 {
            let releases =
                state.told.grants.iter().map(|grant| Action::Release { g, grant: *grant });
            actions.extend(releases);
        }
        if left.settles > 0 {
            actions.push(Action::Settle { g });
        }
    }

    fn of_database(&self, state: &State, database: u8, actions: &mut Vec<Action>) {
        let rows = &state.databases[usize::from(database)];
        let (left, told) = (&state.left, &state.told);
        if rows.is_held() {
            if left.expiries > 0 {
                actions.push(Action::Expire { database });
            }
            if left.renews > 0 && rows.lease_lock.is_none() {
                actions.push(Action::RenewReads { database });
            }
        }
        if rows.lease_lock == Some(Holder::Renew) {
            actions.extend([true, false].map(|commits| Action::RenewEnds { database, commits }));
        }
        if left.raises > 0 {
            actions.push(Action::Raise { database });
        }
        for op in 0u8..2 {
            let posted = state.told.tickets.iter().any(|asked| asked.op == Some(op));
            let news =
                !told.denied.iter().any(|(d, up_to)| *d == op && *up_to >= rows.fence.token.0);
            let may = rows.lease.released || self.lacks(Without::AbsentWhenDecided);
            if posted && news && may && !rows.operations.contains_key(id(op)) {
                actions.push(Action::Ask { database, op });
            }
        }
    }

    fn of_all(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        let mut late: Vec<&Request> =
            state.kafka.net.iter().filter(|request| state.kafka.takes(request)).collect();
        late.dedup();
        actions.extend(late.into_iter().map(|request| Action::Late { request: request.clone() }));
        if let Some(ending) = state.kafka.ending {
            let missing = [(true, ending.data), (false, ending.ledger)];
            let missing = missing.into_iter().filter(|(_, done)| !done);
            actions.extend(missing.map(|(data, _)| Action::Mark { data }));
        }
        if left.compactions > 0 {
            actions.push(Action::Compact);
        }
        if left.deadlines > 0 && state.at == 0 {
            actions.push(Action::Deadline);
        }
        if left.regresses > 0 {
            let remember = if state.earlier.is_some() { Action::Regress } else { Action::Remember };
            actions.push(remember);
        }
        if left.splits > 0 && state.databases.len() == 1 {
            actions.push(Action::Split);
        }
        if left.steps_back > 0 && state.databases[0].lease.expires_at == NOW {
            actions.push(Action::StepBack);
        }
    }

    fn take(&self, state: &mut State, action: Action) {
        match action {
            Action::Acquire { g, by } => {
                state.left.acquires -= 1;
                let ticket = state.ticket(None, u64::from(by));
                state.gateway(g).settles = false;
                state.feed(self, g, Event::Acquire(acquire(by, ticket, self.request_ids)));
            }
            Action::Post { g, op, grant } => {
                state.left.posts[usize::from(op)] -= 1;
                state.post(self, g, op, grant);
            }
            Action::Release { g, grant } => {
                state.left.releases -= 1;
                state.gateway(g).settles = false;
                state.release(self, g, grant);
            }
            Action::Settle { g } => {
                state.left.settles -= 1;
                let ticket = state.ticket(None, 0);
                state.gateway(g).settles = true;
                state.feed(self, g, Event::Settle(ticket));
            }
            Action::Go { g } => {
                state.gateway(g).settles = false;
                state.feed(self, g, Event::Go);
            }
            Action::Rest { g } => state.feed(self, g, Event::Idle),
            Action::Step { g, choice } => state.step(self, g, choice),
            Action::Kill { g } => {
                spend(&mut state.left.kills);
                state.end_session(g);
                state.gateway(g).session = super::gateway::Session::Dead;
            }
            Action::Crash { g } => {
                spend(&mut state.left.crashes);
                state.crash(self, g);
            }
            Action::Late { request } => {
                if let Some(at) = state.kafka.net.iter().position(|one| *one == request) {
                    state.kafka.net.remove(at);
                    state.take(self, &request);
                }
            }
            Action::Mark { data } => state.mark(data),
            Action::Ask { database, op } => state.ask(self, database, op),
            Action::Compact => {
                state.left.compactions -= 1;
                state.kafka.compact(self.lacks(Without::BarrierKey));
            }
            Action::Deadline => {
                state.left.deadlines -= 1;
                state.at = 1;
            }
            rows => self.take_of_rows(state, &rows),
        }
    }

    fn take_of_rows(&self, state: &mut State, action: &Action) {
        let at = |database: &u8| usize::from(*database);
        match action {
            Action::Expire { database } => {
                state.left.expiries -= 1;
                state.databases[at(database)].lease.expires_at = NOW;
            }
            Action::RenewReads { database } => {
                state.left.renews -= 1;
                state.databases[at(database)].lease_lock = Some(Holder::Renew);
            }
            Action::RenewEnds { database, commits } => {
                let rows = &mut state.databases[at(database)];
                rows.lease_lock = None;
                if *commits {
                    rows.lease.expires_at = LATER;
                }
            }
            Action::Remember => state.earlier = Some(Box::new(state.databases[0].clone())),
            Action::Regress => {
                state.left.regresses -= 1;
                state.told.bounded = true;
                for g in 0..self.gateways {
                    if state.gateways[usize::from(g)].session == super::gateway::Session::Live {
                        state.gateway(g).session = super::gateway::Session::Dead;
                    }
                }
                if let Some(earlier) = state.earlier.take() {
                    state.databases[0] = *earlier;
                    state.databases[0].fence_lock = None;
                    state.databases[0].lease_lock = None;
                }
            }
            Action::Split => {
                state.left.splits -= 1;
                (state.told.bounded, state.told.split) = (true, true);
                let mut other = state.databases[0].clone();
                (other.fence_lock, other.lease_lock) = (None, None);
                state.databases.push(other);
                let last = self.gateways - 1;
                if state.gateways[usize::from(last)].session == super::gateway::Session::Live {
                    state.end_session(last);
                    state.gateway(last).session = super::gateway::Session::Dead;
                }
                state.gateway(last).database = 1;
            }
            Action::Raise { database } => {
                state.left.raises -= 1;
                state.databases[at(database)].incarnation.0 += 1;
            }
            Action::StepBack => {
                state.left.steps_back -= 1;
                state.told.bounded = true;
                state.databases[0].lease.expires_at = LATER;
            }
            _ => {}
        }
    }

    /// From any state: all that is on its way arrives, the lease ends, and one undisturbed gateway
    /// takes over, writes every operation again and agrees with both stores.
    pub fn comes_to_rest(&self, state: &State) -> bool {
        let mut state = state.clone();
        state.quiet(self);
        let rows = &mut state.databases[0];
        (rows.fence_lock, rows.lease_lock) = (None, None);
        if rows.is_held() {
            rows.lease.expires_at = NOW;
        }
        if rows.fence.quarantine.is_some() || state.told.split {
            return state.told.bounded;
        }
        state.left = Left { inits: 9, ..Left::NOTHING };
        let before = state.told.grants.clone();
        let ticket = state.ticket(None, 0);
        state.feed(self, 0, Event::Acquire(acquire(0, ticket, false)));
        self.run(&mut state);
        let Some(grant) = state.told.grants.iter().find(|g| !before.contains(g)).copied() else {
            let quarantined = state.databases[0].fence.quarantine.is_some();
            return quarantined && state.told.bounded;
        };
        state.told.acknowledged = [false; 2];
        for op in 0..2 {
            state.post(self, 0, op, grant);
            state.feed(self, 0, Event::Go);
            self.run(&mut state);
        }
        let done = state.told.acknowledged == [true; 2] && state.stores(0) && state.stores(1);
        done && state.told.broken.is_none()
            && state.is_in_step()
            && state.gateways[0].machine.state() == StateName::Active
    }

    fn run(&self, state: &mut State) {
        for _ in 0..200 {
            let first = |g: u8| state.choices(self, g).first().map(|choice| (g, *choice));
            let Some((g, choice)) = (0..self.gateways).find_map(first) else { return };
            state.step(self, g, choice);
        }
    }
}

impl Model for Scope {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What is broken is reported where it broke.
        if state.told.broken.is_some() {
            return;
        }
        (0..self.gateways).for_each(|g| self.of_gateway(state, g, actions));
        let databases = u8::try_from(state.databases.len()).unwrap();
        (0..databases).for_each(|database| self.of_database(state, database, actions));
        self.of_all(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the promise holds", |_, state: &State| state.told.broken.is_none()),
            Property::always("the stores are in step", |_, state: &State| state.is_in_step()),
            Property::always("every state comes to rest", |scope: &Scope, state: &State| {
                let mut hasher = DefaultHasher::new();
                state.hash(&mut hasher);
                let is_one = |n: u64| hasher.finish().checked_rem(n) == Some(0);
                !is_one(scope.heal) || scope.comes_to_rest(state)
            }),
            Property::sometimes("an operation is acknowledged", |_, state: &State| {
                state.told.acknowledged.contains(&true)
            }),
        ]
    }
}
