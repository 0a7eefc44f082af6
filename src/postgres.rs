//! The fence store in Postgres: pools, sessions, the only BEGIN.
//!
//! Owns how sessions are made (limits set on every one), how long anything may take, and which pool
//! a call uses: locked sessions come from the work pool, all else from a reserve that they cannot
//! use up, and tokens are drawn on sessions of their own. Never decides anything about a lease: it
//! reads rows for `protocol` to judge and writes what it is told (I3, I6).

mod checkout;
mod error;
mod fences;
mod installation;
mod leases;
mod lists;
mod notice;
mod operations;
mod purge;
mod rows;
pub mod scan;
mod session;
mod tokens;

pub use installation::{ClaimError, KafkaFacts, MIGRATOR, Schema, migrate};

use crate::engine::ports::{
    Answer, Failure, FenceSession, FenceStore, HistoryEntry, HistoryPage, LeasePage, LeaseView,
    LockRequest, PurgeStep, Purged, RenewRequest, Renewed,
};
use crate::protocol::fence::Locked;
use crate::protocol::lease::{InstanceId, LeaseName};
use crate::protocol::ledger::ledger_partition;
use crate::protocol::operation::OperationId;
use crate::protocol::transactional_id::Installation;
use checkout::{Session, Shelf, commits, within};
use error::{Fault, is_dead_session};
use fences::{Home, Seen};
use session::LockedSession;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::types::Uuid;
use sqlx::{AssertSqlSafe, ConnectOptions, PgPool};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokens::Draws;

/// How long a call waits for an answer after the server should have given it an error.
const GRACE: Duration = Duration::from_millis(500);
/// Sessions on which tokens are drawn.
const DRAW_SESSIONS: u32 = 2;
/// Sessions for lists and histories.
const READ_SESSIONS: u32 = 2;

/// Limits, in the order that is asserted at the start: idle in transaction < lock < statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// `lock_timeout` of every session.
    pub lock: Duration,
    /// `statement_timeout` of every session.
    pub statement: Duration,
    /// `idle_in_transaction_session_timeout` of every session: frees a frozen gateway's locks.
    pub idle_in_transaction: Duration,
    /// For a session from a pool, a new connection included.
    pub checkout: Duration,
    /// For a COMMIT, which `statement` does not cover; below it.
    pub commit: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            lock: Duration::from_millis(4_000),
            statement: Duration::from_millis(4_500),
            idle_in_transaction: Duration::from_millis(3_500),
            checkout: Duration::from_millis(1_000),
            commit: Duration::from_millis(4_000),
        }
    }
}

impl Timeouts {
    /// For one statement: the server's own limit strikes first and leaves a reason.
    fn call(self) -> Duration {
        self.statement.saturating_add(GRACE)
    }
}

/// How to reach the database, and as whom.
#[derive(Clone)]
pub struct PostgresOptions {
    /// URL of the gateway role; holds a password.
    pub url: String,
    /// Most locked sessions at a time.
    pub work_sessions: u32,
    /// Sessions for renew, inspect, find, ensure and probe.
    pub reserve_sessions: u32,
    /// Which installation this is.
    pub installation: Installation,
    /// This process.
    pub instance: InstanceId,
    /// Where other gateways and people reach this process.
    pub home_url: String,
    /// Partitions of the ledger topic; compared with the installation row when it is claimed.
    pub ledger_partitions: i32,
    /// How long this gateway promises to know an accepted operation, in seconds.
    pub retention_s: i64,
    /// Limits.
    pub timeouts: Timeouts,
}

/// The fence store. Connects when it is first used, and again after any loss.
pub struct Postgres {
    work: Arc<Shelf>,
    reserve: PgPool,
    draws: Draws,
    /// For lists and histories, so that dashboards take none from a renew.
    readers: PgPool,
    /// One session, so that what removes old rows takes none from a request.
    purger: PgPool,
    home: Home,
    options: PostgresOptions,
}

impl Postgres {
    /// Prepares the pools without connecting: a gateway may start before its database. Must be
    /// called within a Tokio runtime. Fails only for a URL that cannot be read.
    pub fn connect(options: PostgresOptions) -> Result<Self, Failure> {
        let url = PgConnectOptions::from_str(&options.url)
            .map_err(|e| Fault::Sql(e).not_happened("read database url"))?
            .application_name(&format!("fencepost:{}", options.installation))
            // One line a statement would stand in the log for every request.
            .disable_statement_logging();
        let timeouts = options.timeouts;
        let pool = |size: u32, ping: bool| {
            PgPoolOptions::new()
                .max_connections(size)
                .acquire_timeout(timeouts.checkout)
                .test_before_acquire(ping)
                .after_connect(move |conn, _| Box::pin(prepare(conn, timeouts)))
                .connect_lazy_with(url.clone())
        };
        Ok(Self {
            // BEGIN finds a dead session out as well as a ping would.
            work: Shelf::new(pool(options.work_sessions, false)),
            reserve: pool(options.reserve_sessions, true),
            draws: Draws::new(pool(DRAW_SESSIONS, true), timeouts),
            readers: pool(READ_SESSIONS, true),
            purger: pool(1, true),
            home: Home { id: Uuid::from_bytes(options.instance.0), url: options.home_url.clone() },
            options,
        })
    }

    /// Closes all idle sessions, and the others as they come back.
    pub async fn close(&self) {
        self.work.close().await;
        self.reserve.close().await;
        self.draws.close().await;
        self.readers.close().await;
        self.purger.close().await;
    }

    /// Begins a transaction: the only place that does.
    ///
    /// READ COMMITTED, said here whatever the role's default is: under REPEATABLE READ the read
    /// after the lock would show what was there before it. A session that turns out dead has done
    /// nothing, so the next one is tried, within the same limit.
    async fn begin(&self) -> Result<Session, Failure> {
        const STAGE: &str = "begin";
        let begin = async {
            loop {
                let mut session = self.work.take().await?;
                let statement = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";
                match sqlx::raw_sql(statement).execute(session.conn()?).await {
                    Ok(_) => return Ok(session),
                    Err(error) if is_dead_session(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        };
        within(self.options.timeouts.checkout, begin).await.map_err(|f| f.not_happened(STAGE))
    }

    /// A session outside any transaction.
    async fn reserve(&self, stage: &'static str) -> Result<Session, Failure> {
        checkout::from_pool(&self.reserve, self.options.timeouts.checkout, stage).await
    }

    /// A session for what dashboards ask.
    async fn reader(&self, stage: &'static str) -> Result<Session, Failure> {
        checkout::from_pool(&self.readers, self.options.timeouts.checkout, stage).await
    }

    async fn lock_rows(
        &self,
        request: LockRequest,
    ) -> Result<Option<(Box<dyn FenceSession>, Locked)>, Failure> {
        let mut session = self.begin().await?;
        let lease = &request.lease;
        // Fence, then lease, then the read: each in a statement of its own. The read's snapshot
        // and its clock are later than both locks.
        let read = async {
            if !fences::lock(&mut session, lease).await? {
                return Ok(None);
            }
            if request.both {
                leases::lock(&mut session, lease).await?;
            }
            rows::read(&mut session, lease, &request.operations).await
        };
        let read = within(self.options.timeouts.call(), read).await;
        let rows = read.map_err(|f| f.not_happened("lock fence"))?;
        let Some(rows) = rows else { return Ok(None) };
        let session: Box<dyn FenceSession> = Box::new(LockedSession {
            session,
            seen: Seen::of(lease, &rows.locked.fence),
            home: self.home.clone(),
            timeouts: self.options.timeouts,
            draws: self.draws.clone(),
        });
        Ok(Some((session, rows.locked)))
    }

    async fn ensure_rows(&self, lease: &LeaseName) -> Result<(), Failure> {
        const STAGE: &str = "ensure lease";
        let mut session = self.reserve(STAGE).await?;
        let partition = ledger_partition(lease, self.options.ledger_partitions);
        commits(self.options.timeouts.call(), leases::ensure(&mut session, lease, partition))
            .await
            .map_err(|f| f.of_statement(STAGE))?;
        session.give_back();
        Ok(())
    }

    async fn renew_lease(&self, request: RenewRequest) -> Result<Renewed, Failure> {
        const STAGE: &str = "renew lease";
        let mut session = self.reserve(STAGE).await?;
        let renewed = commits(self.options.timeouts.call(), leases::renew(&mut session, &request))
            .await
            .map_err(|f| f.of_statement(STAGE))?;
        if let Some((lease, now)) = renewed {
            session.give_back();
            return Ok(Renewed::Extended { lease, now });
        }
        // Refused and unchanged. Why is read in a later statement: it may show a state in which the
        // answer would be another, which the caller then says ("again").
        let rows = rows::read(&mut session, &request.credential.lease, &[]);
        let rows = within(self.options.timeouts.call(), rows)
            .await
            .map_err(|f| f.not_happened("read lease"))?;
        session.give_back();
        Ok(rows.map_or(Renewed::Absent, |rows| Renewed::Refused(Box::new(rows.locked))))
    }

    async fn read(
        &self,
        lease: &LeaseName,
        ids: &[OperationId],
    ) -> Result<Option<rows::Rows>, Failure> {
        const STAGE: &str = "read lease";
        let mut session = self.reserve(STAGE).await?;
        let rows = within(self.options.timeouts.call(), rows::read(&mut session, lease, ids))
            .await
            .map_err(|f| f.not_happened(STAGE))?;
        session.give_back();
        Ok(rows)
    }

    async fn probe_writable(&self) -> Result<(), Failure> {
        const STAGE: &str = "probe database";
        let mut session = self.reserve(STAGE).await?;
        let ask = async {
            sqlx::query_scalar!(
                r#"SELECT NOT pg_is_in_recovery()
                       AND current_setting('transaction_read_only') = 'off' AS "writable!""#
            )
            .fetch_one(session.conn()?)
            .await
        };
        let writable =
            within(self.options.timeouts.checkout, ask).await.map_err(|f| f.not_happened(STAGE))?;
        if !writable {
            // Not given back: the next session may reach the server that can be written to.
            return Err(Fault::Row("the database is read only").not_happened(STAGE));
        }
        session.give_back();
        Ok(())
    }
}

impl FenceStore for Postgres {
    fn ensure<'a>(&'a self, lease: &'a LeaseName) -> Answer<'a, ()> {
        Box::pin(self.ensure_rows(lease))
    }

    fn lock(&self, request: LockRequest) -> Answer<'_, Option<(Box<dyn FenceSession>, Locked)>> {
        Box::pin(self.lock_rows(request))
    }

    fn renew(&self, request: RenewRequest) -> Answer<'_, Renewed> {
        Box::pin(self.renew_lease(request))
    }

    fn inspect<'a>(&'a self, lease: &'a LeaseName) -> Answer<'a, Option<LeaseView>> {
        Box::pin(
            async move { Ok(self.read(lease, &[]).await?.map(|rows| rows.view(lease.clone()))) },
        )
    }

    fn find<'a>(
        &'a self,
        lease: &'a LeaseName,
        id: &'a OperationId,
    ) -> Answer<'a, Option<Box<Locked>>> {
        Box::pin(async move {
            let rows = self.read(lease, std::slice::from_ref(id)).await?;
            Ok(rows.map(|rows| Box::new(rows.locked)))
        })
    }

    fn list(&self, page: LeasePage) -> Answer<'_, Vec<LeaseView>> {
        Box::pin(self.list_leases(page))
    }

    fn history<'a>(
        &'a self,
        lease: &'a LeaseName,
        page: HistoryPage,
    ) -> Answer<'a, Option<Vec<HistoryEntry>>> {
        Box::pin(self.read_history(lease, page))
    }

    fn purge(&self, step: PurgeStep) -> Answer<'_, Purged> {
        Box::pin(self.purge_operations(step))
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(self.probe_writable())
    }
}

/// Once in a process: that a warning reaches `notice`, with the driver and the features built in.
static HEARS_WARNINGS: AtomicBool = AtomicBool::new(false);

/// Sets a new session's limits, in one round trip.
async fn prepare(conn: &mut sqlx::PgConnection, timeouts: Timeouts) -> Result<(), sqlx::Error> {
    let settings = format!(
        "SET lock_timeout = {};
         SET statement_timeout = {};
         SET idle_in_transaction_session_timeout = {};
         -- A server process that waits for a lock looks whether its client is still there.
         SET client_connection_check_interval = 1000;
         SET tcp_keepalives_idle = 10;
         SET tcp_keepalives_interval = 5;
         SET tcp_keepalives_count = 3;
         SET tcp_user_timeout = 10000;
         SET default_transaction_isolation = 'read committed';
         SET search_path = public, pg_temp;
         -- Every statement is planned once a session: the array of operation ids would have the one
         -- that reads a lease planned anew each time (a fifth of the throughput of 32 leases).
         -- Rows are found by primary key whatever the parameters; autovacuum's analyze replans.
         SET plan_cache_mode = force_generic_plan;
         -- A COMMIT's warning must reach the client.
         SET client_min_messages = warning;
         -- Off would answer a COMMIT before it is on disk; any other value is the operator's.
         SELECT set_config('synchronous_commit', 'on', false)
         WHERE current_setting('synchronous_commit') = 'off'",
        timeouts.lock.as_millis(),
        timeouts.statement.as_millis(),
        timeouts.idle_in_transaction.as_millis(),
    );
    sqlx::raw_sql(AssertSqlSafe(settings)).execute(&mut *conn).await?;
    if !HEARS_WARNINGS.load(Ordering::Relaxed) {
        let warn = "DO $$ BEGIN RAISE WARNING 'fencepost tests that it hears warnings'; END $$";
        let (result, heard) = notice::heard(sqlx::raw_sql(warn).execute(conn)).await;
        result?;
        if heard.is_none() {
            let why = "a warning does not reach the client, so no COMMIT could be trusted";
            return Err(sqlx::Error::Configuration(why.into()));
        }
        HEARS_WARNINGS.store(true, Ordering::Relaxed);
    }
    Ok(())
}
