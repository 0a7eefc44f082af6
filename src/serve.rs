//! The composition root: adapters, engine, listeners; the order of start and stop.
//!
//! Owns putting the parts together. Start: stores, who we are (the installation row), engine,
//! listeners. Stop: readiness off, requests that have begun end, actors finish and close their
//! producers, sessions close. Decides nothing about a lease.

pub mod audit;
pub mod http;
pub mod signing;

use crate::config::Config;
use crate::engine::ports::{FenceStore, TransactionLog};
use crate::engine::sweep::Pace;
use crate::engine::{Engine, Settings};
use crate::http::server::{Listeners, serve};
use crate::kafka::{Facts, KafkaLog, KafkaOptions};
use crate::postgres::{self, ClaimError, KafkaFacts, Postgres, PostgresOptions};
use crate::protocol::batch::BatchLimits;
use crate::protocol::bug::Bugs;
use crate::protocol::lease::InstanceId;
use crate::protocol::ledger::LEDGER_RECORD_MAX;
use crate::protocol::transactional_id::Installation;
use crate::telemetry;
use anyhow::Context as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

/// Between two attempts to reach a store at the start.
const START_RETRY: Duration = Duration::from_millis(500);
/// One question to Kafka at the start.
const FACTS: Duration = Duration::from_secs(5);
/// Least time for the actors to end, however long the drain took.
const STOP_LEAST: Duration = Duration::from_secs(1);
/// Room that our headers and the encoding take beside a record's own bytes.
const RECORD_OVERHEAD: usize = 64 * 1024;

/// Serves until the process is told to stop.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let signals = Signals::listen()?;
    let instance = InstanceId(uuid::Uuid::new_v4().into_bytes());
    let kafka = KafkaLog::start(kafka_options(&config, instance)).context("kafka")?;
    let starting = async {
        let partitions = ledger_partitions(&kafka).await;
        let options = postgres_options(&config, instance, partitions)?;
        let store = Arc::new(Postgres::connect(options).context("postgres")?);
        claim(&config, &kafka, &store).await?;
        anyhow::Ok((store, partitions))
    };
    let (store, partitions) = tokio::select! {
        biased;
        () = signals.came(1) => return Ok(()),
        started = starting => started?,
    };
    let settings = engine_settings(&config, instance, partitions)?;
    let fences: Arc<dyn FenceStore> = Arc::<Postgres>::clone(&store);
    let log: Arc<dyn TransactionLog> = kafka;
    let engine = Engine::new(settings, fences, log);
    let listeners = Listeners {
        data: TcpListener::bind(config.http.listen).await.context("http.listen")?,
        admin: TcpListener::bind(config.http.admin_listen).await.context("http.admin_listen")?,
    };
    let gateway = http::gateway(&config, engine.clone(), instance)?;
    engine.sweep(Pace {
        rows: u16::try_from(config.limits.purge_rows).unwrap_or(u16::MAX),
        pause: ms(config.limits.purge_pause_ms),
    });
    tracing::info!(listen = %config.http.listen, admin = %config.http.admin_listen, "serving");
    let draining = engine.clone();
    let mut stopped_at = None;
    let stop = async {
        signals.came(1).await;
        tracing::info!("stopping: no new work is taken");
        draining.stop_accepting();
        stopped_at = Some(Instant::now());
    };
    tokio::select! {
        () = serve(listeners, gateway, http::server_limits(&config), stop) => {}
        () = signals.came(2) => tracing::warn!("told again: requests under way are left"),
    }
    // What the drain of requests has left of the one deadline, and a moment in any case.
    let drained = stopped_at.map_or(Duration::ZERO, |at| at.elapsed());
    let grace = ms(config.timeouts.shutdown_ms).saturating_sub(drained).max(STOP_LEAST);
    let ended = tokio::select! {
        biased;
        ended = engine.shut_down(grace) => ended,
        () = signals.came(2) => false,
    };
    if !ended {
        tracing::warn!("stopped before every lease was closed; the next open decides what is left");
    }
    if timeout(Duration::from_secs(1), store.close()).await.is_err() {
        tracing::debug!("database sessions still open at the end");
    }
    tracing::info!("stopped");
    Ok(())
}

/// Brings the database's schema up to date, as its owner.
pub async fn migrate(database_url: &str) -> anyhow::Result<()> {
    postgres::migrate(database_url).await.context("migrate")?;
    tracing::info!("the schema is up to date");
    Ok(())
}

/// The ledger's partition count, however long Kafka takes to say it.
async fn ledger_partitions(kafka: &KafkaLog) -> i32 {
    loop {
        match kafka.facts(FACTS).await {
            Ok(facts) if facts.ledger_partitions > 0 => return facts.ledger_partitions,
            Ok(_) => tracing::warn!("waiting for the ledger topic"),
            Err(failure) => tracing::warn!(%failure, "waiting for kafka"),
        }
        sleep(START_RETRY).await;
    }
}

/// Compares who we are with the installation row; a difference refuses to serve.
async fn claim(config: &Config, kafka: &KafkaLog, store: &Postgres) -> anyhow::Result<()> {
    loop {
        let (cluster_id, ledger_topic_id) = match kafka.facts(FACTS).await {
            Ok(Facts { cluster_id, ledger_topic_id: Some(id), .. }) => (cluster_id, id),
            // It comes by a line of the client's, which may come late.
            Ok(Facts { ledger_topic_id: None, .. }) => {
                tracing::warn!("waiting for the ledger topic's id");
                sleep(START_RETRY).await;
                continue;
            }
            Err(failure) => {
                tracing::warn!(%failure, "waiting for kafka");
                sleep(START_RETRY).await;
                continue;
            }
        };
        let ledger_topic = config.kafka.ledger_topic.clone();
        let facts = KafkaFacts { cluster_id, ledger_topic, ledger_topic_id };
        match store.claim_installation(&facts).await {
            Ok(incarnation) => {
                tracing::info!(incarnation = incarnation.0, "installation claimed");
                return Ok(());
            }
            Err(ClaimError::Failed(failure)) => tracing::warn!(%failure, "waiting for postgres"),
            Err(mismatch @ ClaimError::Mismatch(_)) => return Err(mismatch.into()),
        }
        sleep(START_RETRY).await;
    }
}

fn retention_s(config: &Config) -> i64 {
    i64::try_from(config.limits.retention_s).unwrap_or(i64::MAX)
}

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

pub(crate) fn kafka_options(config: &Config, instance: InstanceId) -> KafkaOptions {
    let mut options =
        KafkaOptions::new(&config.kafka.bootstrap, &config.kafka.ledger_topic, instance);
    let pass = config.kafka.client.iter();
    options.extra = pass.map(|(key, value)| (key.clone(), value.expose().to_owned())).collect();
    options.delivery_timeout = ms(config.timeouts.delivery_ms);
    options.transaction_timeout = ms(config.timeouts.transaction_ms);
    // A ledger record must fit whatever the records' own limit is.
    let ledger = LEDGER_RECORD_MAX.saturating_mul(2);
    let record = config.limits.record_bytes_max.saturating_add(RECORD_OVERHEAD);
    options.message_bytes_max = record.max(ledger);
    options
}

fn postgres_options(
    config: &Config,
    instance: InstanceId,
    ledger_partitions: i32,
) -> anyhow::Result<PostgresOptions> {
    let times = &config.timeouts;
    Ok(PostgresOptions {
        url: config.postgres.url.expose().to_owned(),
        work_sessions: config.postgres.work_sessions,
        reserve_sessions: config.postgres.reserve_sessions,
        installation: Installation::parse(&config.installation)?,
        instance,
        home_url: config.http.advertised_url.clone(),
        ledger_partitions,
        retention_s: retention_s(config),
        timeouts: postgres::Timeouts {
            lock: ms(times.lock_ms),
            statement: ms(times.statement_ms),
            idle_in_transaction: ms(times.idle_in_transaction_ms),
            // A COMMIT that is cancelled by statement_timeout ends with a warning; ours ends first.
            commit: ms(times.lock_ms),
            ..postgres::Timeouts::default()
        },
    })
}

fn engine_settings(
    config: &Config,
    instance: InstanceId,
    ledger_partitions: i32,
) -> anyhow::Result<Settings> {
    let limits = &config.limits;
    Ok(Settings {
        installation: Installation::parse(&config.installation)?,
        instance,
        ledger_partitions,
        limits: BatchLimits { records: limits.batch_records_max, bytes: limits.batch_bytes_max },
        retention_s: retention_s(config),
        bugs: bugs()?,
        queue: limits.queue_per_lease_max,
        leases_open_max: limits.leases_open_max,
        idle: ms(limits.idle_ms),
        batch: ms(config.timeouts.batch_ms),
        open: ms(config.timeouts.open_ms),
        request: ms(config.timeouts.request_ms),
    })
}

/// The defect that a test has asked for.
#[cfg(feature = "seeded-bugs")]
fn bugs() -> anyhow::Result<Bugs> {
    let Some(name) = std::env::var_os("FENCEPOST_BUG") else { return Ok(Bugs::default()) };
    let bugs = name.to_str().and_then(Bugs::of_name).context("FENCEPOST_BUG names no bug")?;
    tracing::error!(mark = "fencepost_seeded_bug", ?bugs, "this process is made to fail");
    Ok(bugs)
}

/// There is none in a release.
#[cfg(not(feature = "seeded-bugs"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
fn bugs() -> anyhow::Result<Bugs> {
    Ok(Bugs::default())
}

/// SIGTERM and SIGINT: the first one begins the stop, a second one hastens it, at whatever it is.
struct Signals(watch::Receiver<u32>);

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let mut term = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut int = signal(SignalKind::interrupt()).context("SIGINT")?;
        let (count, counted) = watch::channel(0u32);
        drop(telemetry::spawn("signals", async move {
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => {}
                }
                count.send_modify(|n| *n = n.saturating_add(1));
            }
        }));
        Ok(Self(counted))
    }

    /// So many have come.
    async fn came(&self, least: u32) {
        if self.0.clone().wait_for(|n| *n >= least).await.is_err() {
            tracing::error!("signals are not heard any more");
        }
    }
}
