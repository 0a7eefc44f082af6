//! A database for one test: made from a migrated template, dropped at its end.
//!
//! Needs the owner and the gateway role of a running server: `DATABASE_OWNER_URL` and
//! `DATABASE_URL` from the environment, else from `target/local/env` (deploy/local/up). Fails where
//! there is none.

use fencepost::postgres::{KafkaFacts, MIGRATOR, Postgres, PostgresOptions, Timeouts, migrate};
use fencepost::protocol::lease::InstanceId;
use fencepost::protocol::transactional_id::Installation;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::OnceCell;

static TEMPLATE: OnceCell<String> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Any number, the same for all who make a template.
const TEMPLATE_LOCK: i64 = 7_305_805_131;

/// One database.
pub struct Database {
    name: String,
    /// URL of the owner role.
    pub owner_url: String,
    /// URL of the gateway role.
    pub gateway_url: String,
}

impl Database {
    /// A migrated database.
    pub async fn migrated() -> Self {
        let template = TEMPLATE.get_or_init(template).await;
        Self::create(&format!("TEMPLATE {template}")).await
    }

    /// A database without any table.
    pub async fn empty() -> Self {
        Self::create("").await
    }

    async fn create(from: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fencepost_test_{}_{number}", std::process::id());
        execute(&server("DATABASE_OWNER_URL"), &format!("CREATE DATABASE {name} {from}")).await;
        Self {
            owner_url: within(&server("DATABASE_OWNER_URL"), &name),
            gateway_url: within(&server("DATABASE_URL"), &name),
            name,
        }
    }

    /// A session of the owner role.
    pub async fn owner(&self) -> PgConnection {
        PgConnection::connect(&self.owner_url).await.unwrap()
    }

    /// A session of the gateway role, not one of a store's.
    pub async fn gateway(&self) -> PgConnection {
        PgConnection::connect(&self.gateway_url).await.unwrap()
    }

    /// Options of a store with short limits.
    pub fn options(&self) -> PostgresOptions {
        PostgresOptions {
            url: self.gateway_url.clone(),
            work_sessions: 4,
            reserve_sessions: 4,
            installation: Installation::parse("test").unwrap(),
            instance: InstanceId([9; 16]),
            home_url: "http://gateway-1".into(),
            ledger_partitions: 16,
            retention_s: 604_800,
            timeouts: Timeouts {
                lock: Duration::from_millis(2_000),
                statement: Duration::from_millis(2_500),
                idle_in_transaction: Duration::from_millis(30_000),
                checkout: Duration::from_millis(5_000),
                commit: Duration::from_millis(2_000),
            },
        }
    }

    /// A store that has claimed this database.
    pub async fn store(&self) -> Postgres {
        self.store_with(self.options()).await
    }

    /// The same with other options.
    pub async fn store_with(&self, options: PostgresOptions) -> Postgres {
        let store = Postgres::connect(options).unwrap();
        store.claim_installation(&facts()).await.unwrap();
        store
    }
}

/// What Kafka says of itself in these tests.
pub fn facts() -> KafkaFacts {
    KafkaFacts {
        cluster_id: "cluster-1".into(),
        ledger_topic: "fencepost.ledger".into(),
        ledger_topic_id: "topic-1".into(),
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let name = self.name.clone();
        // A thread of its own, because the test's runtime cannot be waited for from within it, and
        // so that a test that failed cleans up too.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                // Only the gateway role may end the gateway's sessions, and only the owner drops.
                let end = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                           WHERE usename = current_user AND datname = ";
                execute(&server("DATABASE_URL"), &format!("{end}'{name}'")).await;
                let drop = format!("DROP DATABASE {name} WITH (FORCE)");
                execute(&server("DATABASE_OWNER_URL"), &drop).await;
            });
        });
        assert!(dropped.join().is_ok() || std::thread::panicking(), "database not dropped");
    }
}

/// Makes the template if no run before has: its name holds the migrations' checksums.
async fn template() -> String {
    let mut hash = 0u32;
    for byte in MIGRATOR.iter().flat_map(|m| m.checksum.iter()) {
        hash = hash.wrapping_mul(16_777_619) ^ u32::from(*byte);
    }
    let name = format!("fencepost_template_{hash:08x}");
    let owner_url = server("DATABASE_OWNER_URL");
    let mut owner = PgConnection::connect(&owner_url).await.expect("deploy/local/up is running");
    // Other test programs may be at it too.
    let lock = "SELECT pg_advisory_lock($1)";
    sqlx::query(lock).bind(TEMPLATE_LOCK).execute(&mut owner).await.unwrap();
    let there = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    if !sqlx::query_scalar::<_, bool>(there).bind(&name).fetch_one(&mut owner).await.unwrap() {
        let half = format!("{name}_half");
        execute(&owner_url, &format!("DROP DATABASE IF EXISTS {half} WITH (FORCE)")).await;
        execute(&owner_url, &format!("CREATE DATABASE {half}")).await;
        migrate(&within(&owner_url, &half)).await.unwrap();
        // Renamed last, so that half a template is never taken for one.
        execute(&owner_url, &format!("ALTER DATABASE {half} RENAME TO {name}")).await;
    }
    owner.close().await.unwrap();
    name
}

/// Runs one statement in a session of its own. Repeated for a while where a session that is just
/// ending stands in its way.
pub async fn execute(url: &str, sql: &str) {
    let mut conn = PgConnection::connect(url).await.expect("deploy/local/up is running");
    for _ in 0..50 {
        match sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut conn).await {
            Ok(_) => return conn.close().await.unwrap(),
            // In use; or an autovacuum worker is at it, which only a superuser may end.
            Err(sqlx::Error::Database(e))
                if matches!(e.code().as_deref(), Some("55006" | "42501"))
                    && sql.starts_with("DROP") =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(e) => panic!("{sql}: {e}"),
        }
    }
    panic!("{sql}: the database stays in use");
}

fn within(url: &str, database: &str) -> String {
    format!("{}/{database}", url.rsplit_once('/').unwrap().0)
}

fn server(variable: &str) -> String {
    if let Ok(url) = std::env::var(variable) {
        return url;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/local/env");
    let text = std::fs::read_to_string(&path).expect("no DATABASE_URL: run deploy/local/up");
    let prefix = format!("{variable}=");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.expect("target/local/env names the database").to_owned()
}
