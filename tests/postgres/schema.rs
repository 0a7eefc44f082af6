//! What no role may do, what the gateway may not, and which database is whose.

use super::support::{Database, facts};
use super::{held, lease, view, write};
use fencepost::engine::ports::FenceStore;
use fencepost::postgres::{ClaimError, KafkaFacts, MIGRATOR, Postgres, Schema};
use fencepost::protocol::fence::Write;
use fencepost::protocol::lease::Incarnation;
use fencepost::protocol::transactional_id::Installation;
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, PgConnection};

/// Runs statements that must all be refused with this SQLSTATE.
async fn refused(conn: &mut PgConnection, sqlstate: &str, statements: &[&str]) {
    for sql in statements {
        let result = sqlx::raw_sql(AssertSqlSafe((*sql).to_owned())).execute(&mut *conn).await;
        let error = result.expect_err(sql);
        let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default();
        assert_eq!(code, sqlstate, "{sql}: {error}");
    }
}

#[tokio::test]
async fn a_token_never_goes_down_and_no_row_goes_away_not_even_by_the_owner() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let before = view(&store).await;
    let statements = [
        "UPDATE fences SET token = token - 1, owner = '', incarnation = 0",
        "UPDATE fences SET batch_seq = -1",
        "UPDATE fences SET ledger_partition = ledger_partition + 1",
        "UPDATE fences SET lease = 'another'",
        "UPDATE leases SET token = token - 1, owner = ''",
        "UPDATE leases SET lease = 'another'",
        "DELETE FROM fences",
        "DELETE FROM leases",
        "DELETE FROM fence_history",
        "DELETE FROM installation",
        "TRUNCATE fences",
        "TRUNCATE leases",
        "TRUNCATE fence_history",
        "TRUNCATE operations",
        "UPDATE fence_history SET token = 0",
        "UPDATE operations SET batch_seq = 1",
        "UPDATE installation SET incarnation = incarnation - 1",
    ];
    refused(&mut database.owner().await, "23001", &statements).await;
    let after = view(&store).await;
    assert_eq!((before.fence, before.lease), (after.fence, after.lease));
}

#[tokio::test]
async fn the_gateway_can_neither_set_the_sequence_nor_remove_nor_rewrite() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let statements = [
        "SELECT setval('fencing_tokens', 1)",
        "ALTER SEQUENCE fencing_tokens RESTART",
        "DELETE FROM leases",
        "DELETE FROM fences",
        "DELETE FROM fence_history",
        "DELETE FROM installation",
        "TRUNCATE leases",
        "TRUNCATE fences",
        "TRUNCATE fence_history",
        "TRUNCATE operations",
        "UPDATE fence_history SET note = ''",
        "UPDATE operations SET runs = ''",
        "UPDATE installation SET incarnation = 2",
        "UPDATE fences SET ledger_partition = 0",
        "UPDATE fences SET lease = 'x'",
        "UPDATE leases SET lease = 'x'",
        "INSERT INTO fences (lease, ledger_partition, token) VALUES ('x', 0, 9)",
        "INSERT INTO leases (lease, token) VALUES ('x', 9)",
        "INSERT INTO operations (lease, operation_id, fingerprint, token, incarnation, batch_seq,
             runs, accepted_at) VALUES ('x', 'x', '', 1, 1, 1, '', 'epoch')",
        "CREATE TABLE another ()",
        "ALTER TABLE fences DISABLE TRIGGER ALL",
    ];
    refused(&mut database.gateway().await, "42501", &statements).await;
}

#[tokio::test]
async fn a_quarantine_is_lifted_by_the_owner_only() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    write(&store, Write::Quarantine { reason: "first".into() }).await;
    write(&store, Write::Quarantine { reason: "second".into() }).await;
    let lift = ["UPDATE fences SET quarantine = NULL", "UPDATE fences SET quarantine = 'harmless'"];
    let mut gateway = database.gateway().await;
    refused(&mut gateway, "42501", &lift).await;
    // A table of that name in the session's own schema does not mislead the trigger.
    let fake = "CREATE TEMPORARY TABLE pg_class AS SELECT c.oid, 'fencepost_gateway'::regrole AS
        relowner FROM pg_catalog.pg_class c";
    sqlx::raw_sql(fake).execute(&mut gateway).await.unwrap();
    refused(&mut gateway, "42501", &lift).await;
    assert_eq!(view(&store).await.fence.quarantine.as_deref(), Some("first"));
    sqlx::raw_sql(lift[0]).execute(&mut database.owner().await).await.unwrap();
    assert_eq!(view(&store).await.fence.quarantine, None);
}

#[tokio::test]
async fn another_installation_is_refused_with_both_values() {
    let database = Database::migrated().await;
    let store = database.store().await;
    assert_eq!(store.claim_installation(&facts()).await.unwrap(), Incarnation(1));
    sqlx::raw_sql("UPDATE installation SET incarnation = 3")
        .execute(&mut database.owner().await)
        .await
        .unwrap();
    assert_eq!(store.claim_installation(&facts()).await.unwrap(), Incarnation(3));
    let mut other = database.options();
    other.installation = Installation::parse("other").unwrap();
    other.ledger_partitions = 17;
    let other = Postgres::connect(other).unwrap();
    let facts = KafkaFacts {
        cluster_id: "cluster-2".into(),
        ledger_topic_id: "topic-2".into(),
        ledger_topic: "ledger-2".into(),
    };
    let refused = other.claim_installation(&facts).await;
    let Err(ClaimError::Mismatch(text)) = refused else { panic!("{refused:?}") };
    let pairs = [
        ["\"test\"", "\"other\""],
        ["\"cluster-1\"", "\"cluster-2\""],
        ["\"fencepost.ledger\"", "\"ledger-2\""],
        ["\"topic-1\"", "\"topic-2\""],
        ["\"16\"", "\"17\""],
    ];
    for value in pairs.iter().flatten() {
        assert!(text.contains(value), "{value} in {text}");
    }
}

#[tokio::test]
async fn a_database_that_nobody_claimed_answers_no() {
    let database = Database::migrated().await;
    let store = Postgres::connect(database.options()).unwrap();
    store.ensure(&lease()).await.unwrap();
    assert!(store.inspect(&lease()).await.is_err());
}

#[tokio::test]
async fn a_missing_or_changed_migration_is_noticed() {
    let database = Database::migrated().await;
    let store = database.store().await;
    assert_eq!(store.schema_current().await.unwrap(), Schema::Current);
    sqlx::raw_sql("UPDATE _sqlx_migrations SET checksum = 'x' WHERE version = 3")
        .execute(&mut database.owner().await)
        .await
        .unwrap();
    let changed = store.schema_current().await.unwrap();
    assert!(matches!(&changed, Schema::Behind(text) if text.contains('3')), "{changed:?}");
    let empty = Database::empty().await;
    let store = Postgres::connect(empty.options()).unwrap();
    assert!(matches!(store.schema_current().await.unwrap(), Schema::Behind(_)));
}

#[tokio::test]
async fn the_compiled_migrations_are_the_files() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
    let files = Migrator::new(std::path::Path::new(path)).await.unwrap();
    let of = |m: &Migrator| m.iter().map(|m| (m.version, m.checksum.clone())).collect::<Vec<_>>();
    assert_eq!(of(&files), of(&MIGRATOR));
}
