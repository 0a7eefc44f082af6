//! Which lease has an actor here.
//!
//! Owns the map, its cap, and the hand-over at both ends of an actor's life: a command is put into
//! a mailbox under the map's lock, and an actor may end only while its mailbox is empty under the
//! same lock, so that no command is lost between the two.

use crate::engine::Deps;
use crate::engine::actor::{Actor, Command, Mailbox};
use crate::protocol::lease::LeaseName;
use crate::protocol::refusal::Refusal;
use crate::telemetry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{broadcast, mpsc};

/// Takeovers and settles that may wait for one lease.
const FIRST_QUEUE: usize = 64;

struct Entry {
    first: mpsc::Sender<Command>,
    ordered: mpsc::Sender<Command>,
}

enum Put {
    Taken,
    Full,
    Closed(Box<Command>),
}

/// The actors of this gateway.
pub(super) struct Registry {
    deps: Arc<Deps>,
    actors: Mutex<HashMap<LeaseName, Entry>>,
    /// `None` once the gateway stops.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    releases: broadcast::Sender<LeaseName>,
}

impl Registry {
    /// A registry, and the end that closes when its last actor has gone.
    pub(super) fn new(deps: Arc<Deps>) -> (Arc<Self>, mpsc::Receiver<()>) {
        let (alive, gone) = mpsc::channel(1);
        let (releases, _) = broadcast::channel(256);
        let actors = Mutex::new(HashMap::new());
        (Arc::new(Self { deps, actors, alive: Mutex::new(Some(alive)), releases }), gone)
    }

    fn actors(&self) -> MutexGuard<'_, HashMap<LeaseName, Entry>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self) -> Option<mpsc::Sender<()>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts a command into a lease's mailbox, with a new actor if it has none.
    pub(super) fn submit(
        self: &Arc<Self>,
        lease: &LeaseName,
        command: Command,
    ) -> Result<(), Refusal> {
        let mut actors = self.actors();
        // Under the map's lock: after `close` nothing is put into it any more.
        let alive = self.alive().ok_or(Refusal::ShuttingDown)?;
        let mut command = command;
        if let Some(entry) = actors.get(lease) {
            match entry.put(command) {
                Put::Taken => return Ok(()),
                Put::Full => return Err(Refusal::Busy),
                // Its actor ended without having retired: a defect that must not spread.
                Put::Closed(back) => command = *back,
            }
        }
        if actors.len() >= self.deps.settings.leases_open_max && !actors.contains_key(lease) {
            return Err(Refusal::Busy);
        }
        let (first, first_end) = mpsc::channel(FIRST_QUEUE);
        let (ordered, ordered_end) = mpsc::channel(self.deps.settings.queue);
        let entry = Entry { first, ordered };
        let put = match entry.put(command) {
            Put::Taken => Ok(()),
            Put::Full | Put::Closed(_) => Err(Refusal::Busy),
        };
        actors.insert(lease.clone(), entry);
        drop(actors);
        let mailbox = Mailbox { first: first_end, ordered: ordered_end, alive };
        let deps = Arc::clone(&self.deps);
        let actor = Actor::new(lease.clone(), deps, Arc::clone(self), mailbox);
        drop(telemetry::spawn("lease-actor", actor.run()));
        put
    }

    /// Takes an actor out of the map if its mailbox is empty; then it may end.
    pub(super) fn retire(&self, lease: &LeaseName, empty: impl Fn() -> bool) -> bool {
        let mut actors = self.actors();
        let ends = empty();
        if ends {
            actors.remove(lease);
        }
        ends
    }

    /// Tells waiting acquires of this gateway that a lease is free.
    pub(super) fn announce_release(&self, lease: &LeaseName) {
        // Nobody may be listening.
        drop(self.releases.send(lease.clone()));
    }

    pub(super) fn watch_releases(&self) -> broadcast::Receiver<LeaseName> {
        self.releases.subscribe()
    }

    /// Leases with an actor.
    pub(super) fn len(&self) -> usize {
        self.actors().len()
    }

    /// Closes every mailbox: actors finish what they have and end.
    pub(super) fn close(&self) {
        let mut actors = self.actors();
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).take();
        actors.clear();
    }
}

impl Entry {
    fn put(&self, command: Command) -> Put {
        let put = match command {
            Command::Acquire(..) | Command::Settle(_) => self.first.try_send(command),
            Command::Produce(..) | Command::Release(..) => self.ordered.try_send(command),
        };
        match put {
            Ok(()) => Put::Taken,
            Err(mpsc::error::TrySendError::Full(_)) => Put::Full,
            Err(mpsc::error::TrySendError::Closed(back)) => Put::Closed(Box::new(back)),
        }
    }
}
