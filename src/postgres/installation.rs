//! Which installation a database belongs to, and whether its schema is the one built in.
//!
//! Owns the `installation` row's first insert and its comparison at every start, and the
//! migrations. Never raises the incarnation: that is the owner role's, by hand.

use super::Postgres;
use super::checkout::{commits, within};
use super::error::Fault;
use crate::engine::ports::Failure;
use crate::protocol::lease::Incarnation;
use sqlx::migrate::Migrator;
use sqlx::{Connection, PgConnection};

/// The migrations, compiled in.
pub static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// What a migration may wait for a lock: behind a waiting ALTER TABLE every gateway waits too.
const MIGRATION_LOCK_TIMEOUT: &str = "SET lock_timeout = 5000";

/// What Kafka says of the cluster and the ledger that this gateway was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaFacts {
    /// Id of the Kafka cluster.
    pub cluster_id: String,
    /// Name of the ledger topic.
    pub ledger_topic: String,
    /// Id that Kafka gave the ledger topic: another one after the topic was deleted and made again.
    pub ledger_topic_id: String,
}

/// Why this gateway may not serve this database.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The database belongs to something else; the text names both values.
    #[error("{0}")]
    Mismatch(String),
    /// Not known: the database did not answer.
    #[error("the installation row could not be read")]
    Failed(#[source] Failure),
}

/// What is wrong with the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schema {
    /// All migrations of this build are applied, as they are compiled in.
    Current,
    /// It is not; the text says what is missing or different.
    Behind(String),
}

struct Claimed {
    name: String,
    incarnation: i64,
    kafka_cluster_id: String,
    ledger_topic: String,
    ledger_topic_id: String,
    ledger_partitions: i32,
}

impl Postgres {
    /// Writes the installation row if there is none and compares it otherwise.
    ///
    /// The insert commits by itself, and of two gateways that start at once one inserts and both
    /// compare, in a later statement that sees whichever row won. No clock.
    pub async fn claim_installation(&self, facts: &KafkaFacts) -> Result<Incarnation, ClaimError> {
        const STAGE: &str = "claim installation";
        let mut session = self.reserve(STAGE).await.map_err(ClaimError::Failed)?;
        let insert = async {
            sqlx::query!(
                r#"INSERT INTO installation
                       (name, kafka_cluster_id, ledger_topic, ledger_topic_id, ledger_partitions)
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (singleton) DO NOTHING"#,
                self.options.installation.as_str(),
                facts.cluster_id,
                facts.ledger_topic,
                facts.ledger_topic_id,
                self.options.ledger_partitions,
            )
            .execute(session.conn()?)
            .await
        };
        commits(self.options.timeouts.call(), insert)
            .await
            .map_err(|f| ClaimError::Failed(f.of_statement(STAGE)))?;
        // The longest of all gateways counts: what one must still know, none may remove.
        let raise = async {
            sqlx::query!(
                "UPDATE installation SET retention_s = $1 WHERE retention_s < $1",
                self.options.retention_s,
            )
            .execute(session.conn()?)
            .await
        };
        commits(self.options.timeouts.call(), raise)
            .await
            .map_err(|f| ClaimError::Failed(f.of_statement(STAGE)))?;
        let read = async {
            sqlx::query_as!(
                Claimed,
                r#"SELECT name, incarnation, kafka_cluster_id, ledger_topic, ledger_topic_id,
                       ledger_partitions
                   FROM installation"#
            )
            .fetch_one(session.conn()?)
            .await
        };
        let row = within(self.options.timeouts.call(), read)
            .await
            .map_err(|f| ClaimError::Failed(f.not_happened(STAGE)))?;
        session.give_back();
        self.compare(facts, &row)
    }

    fn compare(&self, facts: &KafkaFacts, row: &Claimed) -> Result<Incarnation, ClaimError> {
        let (name, partitions) =
            (self.options.installation.as_str(), self.options.ledger_partitions);
        let pairs = [
            ("installation", row.name.as_str(), name),
            ("kafka cluster id", &row.kafka_cluster_id, &facts.cluster_id),
            ("ledger topic", &row.ledger_topic, &facts.ledger_topic),
            ("ledger topic id", &row.ledger_topic_id, &facts.ledger_topic_id),
            ("ledger partition count", &row.ledger_partitions.to_string(), &partitions.to_string()),
        ];
        let different: Vec<String> = pairs
            .iter()
            .filter(|(_, stored, given)| stored != given)
            .map(|(what, stored, given)| {
                format!("{what}: the database has {stored:?}, this gateway {given:?}")
            })
            .collect();
        if different.is_empty() {
            Ok(Incarnation(row.incarnation.unsigned_abs()))
        } else {
            Err(ClaimError::Mismatch(different.join("; ")))
        }
    }

    /// Compares the applied migrations with those compiled in. Newer ones are no fault: the schema
    /// is expanded before the gateways are replaced.
    pub async fn schema_current(&self) -> Result<Schema, Failure> {
        const STAGE: &str = "read schema version";
        let mut session = self.reserve(STAGE).await?;
        // Not a checked query: the table is the migration tool's own and not in our migrations.
        let read = async {
            sqlx::query_as::<_, (i64, bool, Vec<u8>)>(
                "SELECT version, success, checksum FROM _sqlx_migrations",
            )
            .fetch_all(session.conn()?)
            .await
        };
        let applied = match within(self.options.timeouts.call(), read).await {
            Ok(applied) => applied,
            Err(Fault::Sql(sqlx::Error::Database(e))) if e.code().as_deref() == Some("42P01") => {
                return Ok(Schema::Behind("no migration was ever applied".into()));
            }
            Err(fault) => return Err(fault.not_happened(STAGE)),
        };
        session.give_back();
        for wanted in MIGRATOR.iter() {
            let sound = applied.iter().any(|(version, success, checksum)| {
                *version == wanted.version && *success && *checksum == *wanted.checksum
            });
            if !sound {
                let (version, description) = (wanted.version, &wanted.description);
                let text = format!("migration {version} ({description}) is missing or different");
                return Ok(Schema::Behind(text));
            }
        }
        Ok(Schema::Current)
    }
}

/// Applies the missing migrations; run as the owner role.
pub async fn migrate(owner_url: &str) -> Result<(), sqlx::migrate::MigrateError> {
    let mut conn = PgConnection::connect(owner_url).await?;
    sqlx::raw_sql(MIGRATION_LOCK_TIMEOUT).execute(&mut conn).await?;
    MIGRATOR.run_direct(None, &mut conn, false).await?;
    conn.close().await?;
    Ok(())
}
