//! The engine: one handle that http calls; behind it one actor a lease.
//!
//! Owns admission, deadlines and the life of the actors. Never names a status code, a table or a
//! client setting. A call's work runs detached: a caller that hangs up cancels nothing half-way.

mod actor;
pub mod api;
mod perform;
pub mod ports;
mod reads;
mod registry;
pub mod sweep;

use crate::counts::Counts;
use crate::protocol::batch::{BatchLimits, Waiting};
use crate::protocol::bug::Bugs;
use crate::protocol::fence::{Credential, Standing, standing};
use crate::protocol::lease::{InstanceId, LeaseName};
use crate::protocol::ledger::LedgerPartition;
use crate::protocol::machine::{Acquire, Reply};
use crate::protocol::operation::{Fingerprint, OperationId};
use crate::protocol::refusal::Refusal;
use crate::protocol::transactional_id::{Installation, TransactionalId};
use crate::telemetry;
use actor::Command;
use api::{AcquireRequest, Granted, Post, Produced, Readiness};
use ports::{FenceStore, RenewRequest, Renewed, TransactionLog};
use registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use sweep::Pace;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// Longest sleep of a waiting acquire: another gateway's release is seen by looking again.
const WAIT_SLICE: Duration = Duration::from_secs(1);
/// Shortest sleep of a waiting acquire.
const WAIT_LEAST: Duration = Duration::from_millis(20);
/// Longest probe of one dependency.
const PROBE: Duration = Duration::from_secs(2);

/// Settings of the engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This deployment.
    pub installation: Installation,
    /// This process.
    pub instance: InstanceId,
    /// Partitions of the ledger topic, as stored at the first start.
    pub ledger_partitions: i32,
    /// Where a batch closes.
    pub limits: BatchLimits,
    /// How long an accepted operation is remembered, in seconds.
    pub retention_s: i64,
    /// Defects of a test build.
    pub bugs: Bugs,
    /// Operations that may wait for one lease.
    pub queue: usize,
    /// Leases with an actor at the same time.
    pub leases_open_max: usize,
    /// An actor with nothing to do for this long drops its producer and ends.
    pub idle: Duration,
    /// Budget of the Kafka part of a batch.
    pub batch: Duration,
    /// Budget of the Kafka part of an open.
    pub open: Duration,
    /// When a caller is answered at the latest.
    pub request: Duration,
}

/// The stores and settings that every actor shares.
pub(crate) struct Deps {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<dyn FenceStore>,
    pub(crate) log: Arc<dyn TransactionLog>,
}

/// The handle.
#[derive(Clone)]
pub struct Engine {
    deps: Arc<Deps>,
    registry: Arc<Registry>,
    /// Callers that wait for an operation. It decides nothing: it only tells one that gave up
    /// waiting whether it had waited for somebody else's request.
    in_flight: Arc<Counts<(LeaseName, OperationId)>>,
    jitter: Arc<Jitter>,
    accepting: Arc<AtomicBool>,
    gone: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Engine {
    /// An engine over two stores; must be called inside a runtime.
    #[must_use]
    pub fn new(
        settings: Settings,
        store: Arc<dyn FenceStore>,
        log: Arc<dyn TransactionLog>,
    ) -> Self {
        let jitter = Arc::new(Jitter::new(settings.instance));
        let deps = Arc::new(Deps { settings, store, log });
        let (registry, gone) = Registry::new(Arc::clone(&deps));
        let accepting = Arc::new(AtomicBool::new(true));
        let in_flight = Arc::default();
        let gone = Arc::new(Mutex::new(gone));
        Self { deps, registry, in_flight, jitter, accepting, gone }
    }

    /// Begins to remove operations past their retention, until the gateway stops.
    pub fn sweep(&self, pace: Pace) {
        let (deps, accepting) = (Arc::clone(&self.deps), Arc::clone(&self.accepting));
        drop(telemetry::spawn("purge", sweep::run(deps, accepting, pace)));
    }

    /// Acquires a lease; waits up to `wait` while it is held by somebody else.
    pub async fn acquire(&self, request: AcquireRequest) -> Result<Granted, Refusal> {
        let until = Instant::now().checked_add(request.wait).unwrap_or_else(Instant::now);
        let mut releases = self.registry.watch_releases();
        loop {
            match self.acquire_once(&request).await {
                Err(Refusal::LeaseHeld { holder, expires_in_ms }) => {
                    let now = Instant::now();
                    if now >= until {
                        return Err(Refusal::LeaseHeld { holder, expires_in_ms });
                    }
                    let jitter = self.jitter.next_ms();
                    let rest = Duration::from_millis(expires_in_ms.saturating_add(jitter));
                    let slice = now.checked_add(rest.clamp(WAIT_LEAST, WAIT_SLICE)).unwrap_or(now);
                    let released = async {
                        loop {
                            match releases.recv().await {
                                Ok(lease) if lease != request.lease => {}
                                Ok(_) | Err(_) => return,
                            }
                        }
                    };
                    // Either way the next attempt decides.
                    drop(timeout_at(slice.min(until), released).await);
                }
                answer => return answer,
            }
        }
    }

    async fn acquire_once(&self, request: &AcquireRequest) -> Result<Granted, Refusal> {
        let acquire = Acquire {
            ticket: 0,
            identity: request.identity.clone(),
            owner: request.owner.clone(),
            ttl_ms: request.ttl_ms,
            request_id: request.request_id.clone(),
            replace: request.replace,
            drew: None,
            restarts: 0,
        };
        let reply = self.ask(&request.lease, |caller| Command::Acquire(acquire, caller)).await?;
        let Reply::Granted { token, incarnation, ttl_ms, expires_at, now } = reply else {
            return Err(refused(reply));
        };
        let (lease, owner) = (request.lease.clone(), request.owner.clone());
        Ok(Granted { lease, owner, token, incarnation, ttl_ms, expires_at, now })
    }

    /// Extends a held lease; never shortens it.
    pub async fn renew(
        &self,
        credential: Credential,
        ttl_ms: Option<u64>,
    ) -> Result<Granted, Refusal> {
        let (deps, accepting) = (Arc::clone(&self.deps), self.is_accepting());
        let renew = async move {
            if !accepting {
                return Err(Refusal::ShuttingDown);
            }
            let request = RenewRequest { credential: credential.clone(), ttl_ms };
            match deps.store.renew(request).await {
                Ok(Renewed::Extended { lease, now }) => Ok(Granted {
                    lease: credential.lease,
                    owner: credential.owner,
                    token: credential.token,
                    incarnation: credential.incarnation,
                    ttl_ms: lease.ttl_ms,
                    expires_at: lease.expires_at,
                    now,
                }),
                Ok(Renewed::Absent) => Err(Refusal::LeaseNotFound),
                Ok(Renewed::Refused(rows)) => {
                    match standing(&rows, &credential, deps.settings.retention_s) {
                        Standing::Over(refusal) => Err(refusal),
                        Standing::Ahead => Err(Refusal::Quarantined),
                        // Refused, yet live when looked at: the rows moved in between.
                        Standing::Live => Err(Refusal::PostgresUnavailable),
                    }
                }
                Err(failure) => {
                    tracing::warn!(lease = %credential.lease, %failure, "renew");
                    Err(Refusal::PostgresUnavailable)
                }
            }
        };
        self.detached("renew", renew).await
    }

    /// Gives a lease back; a second time as well.
    pub async fn release(&self, credential: Credential) -> Result<(), Refusal> {
        let lease = credential.lease.clone();
        let reply = self.ask(&lease, |caller| Command::Release(credential, caller)).await?;
        if reply == Reply::Released { Ok(()) } else { Err(refused(reply)) }
    }

    /// Decides what became of an expired or released lease's unknown operations.
    pub async fn settle(&self, lease: &LeaseName) -> Result<(), Refusal> {
        let reply = self.ask(lease, Command::Settle).await?;
        if reply == Reply::Settled { Ok(()) } else { Err(refused(reply)) }
    }

    /// Writes one operation, or says why not.
    pub async fn produce(&self, post: Post) -> Result<Produced, Refusal> {
        let lease = post.credential.lease.clone();
        let until = Instant::now().checked_add(self.deps.settings.request);
        let until = until.unwrap_or_else(Instant::now);
        let waiting = Waiting {
            ticket: 0,
            fingerprint: Fingerprint::of(&post.records),
            credential: post.credential,
            id: post.id.clone(),
            records: post.records.into(),
            deadline_ms: 0,
            in_doubt: false,
            alone: false,
        };
        let waits = self.in_flight.enter((lease.clone(), post.id));
        let produce = |caller| Command::Produce(waiting, until, caller, post.kept);
        let reply = self.ask(&lease, produce).await;
        crate::failpoint::hit("before_reply", lease.as_str());
        let refusal = match reply {
            Ok(Reply::Produced { stored, replayed }) => return Ok(Produced::of(stored, replayed)),
            Ok(other) => refused(other),
            Err(refusal) => refusal,
        };
        // It waited for another request's operation, and that one is not decided yet.
        let joined = waits.before > 0 && refusal == Refusal::OutcomeUnknown;
        Err(if joined { Refusal::OperationInFlight } else { refusal })
    }

    /// Probes the dependencies.
    pub async fn readiness(&self) -> Readiness {
        let deps = Arc::clone(&self.deps);
        let accepting = self.is_accepting();
        let probe = async move {
            let (postgres, kafka) =
                tokio::join!(timeout(PROBE, deps.store.probe()), timeout(PROBE, deps.log.probe()));
            let partitions = 0..deps.settings.ledger_partitions;
            let ledger = partitions.into_iter().all(|p| deps.log.is_read(LedgerPartition(p)));
            let postgres = matches!(postgres, Ok(Ok(())));
            let kafka = matches!(kafka, Ok(Ok(())));
            Ok(Readiness { postgres, kafka, ledger, accepting })
        };
        let none = Readiness { postgres: false, kafka: false, ledger: false, accepting };
        self.detached("readiness", probe).await.unwrap_or(none)
    }

    /// The Kafka transactional.id of a lease.
    #[must_use]
    pub fn transactional_id(&self, lease: &LeaseName) -> TransactionalId {
        TransactionalId::of(&self.deps.settings.installation, lease)
    }

    /// Leases that have an actor here.
    #[must_use]
    pub fn leases_open(&self) -> usize {
        self.registry.len()
    }

    fn is_accepting(&self) -> bool {
        self.accepting.load(Ordering::Acquire)
    }

    /// Refuses new work from now on; what was accepted goes on.
    pub fn stop_accepting(&self) {
        self.accepting.store(false, Ordering::Release);
    }

    /// Lets the actors finish and closes their producers; false if the time was too short.
    pub async fn shut_down(&self, within: Duration) -> bool {
        self.stop_accepting();
        self.registry.close();
        let mut gone = self.gone.lock().await;
        // Closes, without a message, when the last actor has dropped its end.
        timeout(within, gone.recv()).await.is_ok()
    }

    /// Asks a lease's actor and waits for the reply, at most as long as a request may take.
    async fn ask(
        &self,
        lease: &LeaseName,
        command: impl FnOnce(oneshot::Sender<Reply>) -> Command,
    ) -> Result<Reply, Refusal> {
        if !self.is_accepting() {
            return Err(Refusal::ShuttingDown);
        }
        let (caller, reply) = oneshot::channel();
        self.registry.submit(lease, command(caller))?;
        match timeout(self.deps.settings.request, reply).await {
            Ok(Ok(reply)) => Ok(reply),
            // An actor that ended with a caller waiting: nothing is known of the operation.
            Ok(Err(_)) | Err(_) => Err(Refusal::OutcomeUnknown),
        }
    }

    /// Runs a call to a store in a task of its own: a caller that leaves cancels nothing half-way.
    async fn detached<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let task = telemetry::spawn(name, work);
        match timeout(self.deps.settings.request, task).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Refusal::OutcomeUnknown),
        }
    }
}

/// Spreads those that wait for the same instant. Another sequence in each process, and the same one
/// again for the same instance, so that a simulated run can be repeated.
struct Jitter(AtomicU64);

impl Jitter {
    const MOST_MS: u64 = 50;

    fn new(instance: InstanceId) -> Self {
        let (seed, _) = instance.0.as_chunks::<8>();
        Self(AtomicU64::new(seed.first().map_or(0, |bytes| u64::from_be_bytes(*bytes))))
    }

    fn next_ms(&self) -> u64 {
        // A Weyl sequence: its high bits are spread evenly.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let at = self.0.fetch_add(STEP, Ordering::Relaxed);
        (at >> 32) % Self::MOST_MS
    }
}

fn refused(reply: Reply) -> Refusal {
    match reply {
        Reply::Refused(refusal) => refusal,
        Reply::Granted { .. } | Reply::Released | Reply::Settled | Reply::Produced { .. } => {
            Refusal::OutcomeUnknown
        }
    }
}
