//! The engine's two stores in memory: Postgres's row locks and lost commits, Kafka's epochs and
//! late requests, on the runtime's (paused) clock.
//!
//! Owns the faults. A world is shared; each gateway has ports and a freeze of its own. What breaks
//! a promise is noted at the moment at which it becomes visible, and asserted at the end.

mod kafka;
mod log;
mod rows;
mod store;

use fencepost::engine::ports::{Failure, FenceStore, Refused, TransactionLog};
use fencepost::protocol::lease::{DbTime, InstanceId};
use kafka::Kafka;
pub(crate) use kafka::Visible;
use log::MemoryLog;
use rows::Rows;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use store::MemoryStore;
use tokio::time::{Instant, sleep, sleep_until};

/// Partitions of the ledger, and of every topic.
pub(crate) const PARTITIONS: i32 = 2;

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It did not happen; the caller cannot know.
    Fail,
    /// It certainly did not happen.
    Refuse,
    /// It happened; the answer is lost.
    Lost,
    /// It happens later, if it still can; the answer is lost.
    Late,
    /// It happened; a repeat is under way.
    Dirty,
    /// A stranger initialises the same transactional.id first.
    Fenced,
    /// One record is refused.
    Record,
}

/// A seeded source of choices.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % n.max(1)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

#[derive(Default)]
struct Faults {
    scripted: Vec<(&'static str, u32, Fault)>,
    /// With how many of 1,000 calls that go wrong by chance.
    random: Option<(Rng, u64)>,
    hits: BTreeMap<String, u32>,
}

/// Everything that the gateways share.
pub(crate) struct Shared {
    start: Instant,
    skew_us: Mutex<i64>,
    rows: Mutex<Rows>,
    kafka: Mutex<Kafka>,
    faults: Mutex<Faults>,
    /// What was called when, as a hash: the same for the same run.
    trace: Mutex<DefaultHasher>,
    violations: Mutex<Vec<String>>,
}

impl Shared {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap()
    }

    fn kafka(&self) -> MutexGuard<'_, Kafka> {
        self.kafka.lock().unwrap()
    }

    /// The brokers, after they have ended what was open for too long.
    fn swept(&self) -> MutexGuard<'_, Kafka> {
        let mut kafka = self.kafka();
        kafka.sweep(Instant::now());
        kafka
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }

    /// The database's clock.
    fn clock(&self) -> DbTime {
        let run = i64::try_from(self.start.elapsed().as_micros()).unwrap();
        DbTime(1_800_000_000_000_000 + run + *self.skew_us.lock().unwrap())
    }

    fn violation(&self, text: String) {
        self.violations.lock().unwrap().push(text);
    }
}

/// One gateway's way to the stores: it can freeze, and its calls can go wrong.
pub(crate) struct Gate {
    shared: Arc<Shared>,
    frozen_until: Mutex<Instant>,
}

impl Gate {
    /// Passes a named place: a moment, a freeze, perhaps a fault.
    async fn pass(&self, point: &str) -> Option<Fault> {
        let (fault, latency) = self.draw(point);
        sleep(latency).await;
        self.thaw().await;
        fault
    }

    /// Waits while this gateway is frozen.
    async fn thaw(&self) {
        loop {
            let until = *self.frozen_until.lock().unwrap();
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }

    fn draw(&self, point: &str) -> (Option<Fault>, Duration) {
        let mut faults = self.shared.faults();
        let at = self.shared.start.elapsed();
        (point, at).hash(&mut *self.shared.trace.lock().unwrap());
        *faults.hits.entry(point.to_owned()).or_default() += 1;
        if let Some(at) = faults.scripted.iter().position(|(name, _, _)| *name == point) {
            if faults.scripted[at].1 == 0 {
                return (Some(faults.scripted.remove(at).2), Duration::from_millis(1));
            }
            faults.scripted[at].1 -= 1;
        }
        let Some((rng, per_mille)) = &mut faults.random else {
            return (None, Duration::from_millis(1));
        };
        let latency = Duration::from_micros(200 + rng.below(3_000));
        if rng.below(1_000) >= *per_mille {
            return (None, latency);
        }
        let kinds: &[Fault] = match point.split('.').next().unwrap_or_default() {
            "commit" => &[Fault::Fail, Fault::Refuse, Fault::Lost, Fault::Late],
            "init" => &[Fault::Fail, Fault::Lost, Fault::Late],
            "send" => &[Fault::Fail, Fault::Record, Fault::Fenced],
            "end" => &[Fault::Fail, Fault::Lost, Fault::Late, Fault::Dirty, Fault::Fenced],
            "ensure" | "lock" => &[Fault::Refuse, Fault::Fail],
            _ => &[Fault::Fail],
        };
        (Some(*rng.pick(kinds)), latency)
    }
}

/// The shared world, as a test sees it.
#[derive(Clone)]
pub(crate) struct World(Arc<Shared>);

/// The ports of one gateway.
pub(crate) struct Ports {
    pub(crate) store: Arc<dyn FenceStore>,
    pub(crate) log: Arc<dyn TransactionLog>,
    gate: Arc<Gate>,
}

impl Ports {
    /// Stops the gateway's every call for a while.
    pub(crate) fn freeze(&self, time: Duration) {
        *self.gate.frozen_until.lock().unwrap() = Instant::now() + time;
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            start: Instant::now(),
            skew_us: Mutex::new(0),
            rows: Mutex::new(Rows::default()),
            kafka: Mutex::new(Kafka::default()),
            faults: Mutex::new(Faults::default()),
            trace: Mutex::new(DefaultHasher::new()),
            violations: Mutex::new(Vec::new()),
        }))
    }

    /// Everything that was called, and when.
    pub(crate) fn trace(&self) -> u64 {
        self.0.trace.lock().unwrap().finish()
    }

    /// The ports of a new gateway.
    pub(crate) fn ports(&self, home: InstanceId) -> Ports {
        let frozen_until = Mutex::new(Instant::now());
        let gate = Arc::new(Gate { shared: Arc::clone(&self.0), frozen_until });
        Ports {
            store: Arc::new(MemoryStore { gate: Arc::clone(&gate), home }),
            log: Arc::new(MemoryLog(Arc::clone(&gate))),
            gate,
        }
    }

    /// The call at this point, after `skip` others, goes wrong once.
    pub(crate) fn fault(&self, point: &'static str, skip: u32, fault: Fault) {
        self.0.faults().scripted.push((point, skip, fault));
    }

    /// Scripted faults that nobody has met.
    pub(crate) fn unused_faults(&self) -> usize {
        self.0.faults().scripted.len()
    }

    /// No scripted fault is left.
    pub(crate) fn clear_faults(&self) {
        self.0.faults().scripted.clear();
    }

    /// From now on so many of 1,000 calls go wrong; 0 turns it off, the latencies stay.
    pub(crate) fn chance(&self, seed: u64, per_mille: u64) {
        self.0.faults().random = Some((Rng::new(seed), per_mille));
    }

    /// How often a point was passed.
    pub(crate) fn hits(&self, point: &str) -> u32 {
        self.0.faults().hits.get(point).copied().unwrap_or(0)
    }

    /// Moves the database's clock against everybody else's.
    pub(crate) fn skew(&self, by_ms: i64) {
        *self.0.skew_us.lock().unwrap() += 1_000 * by_ms;
    }

    /// The database ends every session that holds a lock.
    pub(crate) fn kill_sessions(&self) {
        self.0.rows().kill_all();
    }

    /// The tail of every gateway starts again.
    pub(crate) fn restart_tails(&self) {
        self.0.kafka().generation += 1;
    }

    /// Kafka removes what newer records of the same key have replaced.
    pub(crate) fn compact(&self) {
        self.0.kafka().compact(Instant::now());
    }

    pub(crate) fn now(&self) -> DbTime {
        self.0.clock()
    }

    /// What broke a promise so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.0.violations.lock().unwrap().clone()
    }

    /// Leases that were quarantined, and why.
    pub(crate) fn quarantines(&self) -> Vec<String> {
        self.0.rows().quarantines()
    }

    /// Committed records in log order: operation, record number, token, batch seq, place.
    pub(crate) fn data(&self) -> Vec<Visible> {
        self.0.kafka().visible()
    }
}

fn unknown(stage: &'static str) -> Failure {
    Failure::Indeterminate { stage, detail: "memory".to_owned() }
}

fn certain(stage: &'static str) -> Failure {
    Failure::Determinate { stage, refused: Refused::Unavailable }
}
