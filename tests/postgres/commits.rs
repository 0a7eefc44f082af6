//! A COMMIT that is not known to have succeeded is not a success.

use super::support::{Database, execute};
use super::{held, lock, view, write};
use fencepost::engine::ports::{Failure, FenceStore};
use fencepost::protocol::fence::Write;
use std::time::Duration;

/// Makes every transaction that writes a fence row run this at its COMMIT.
async fn at_commit(database: &Database, body: &str) {
    let sql = format!(
        "CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN {body}; RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON fences
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_commit();"
    );
    execute(&database.owner_url, &sql).await;
}

#[tokio::test]
async fn a_write_whose_session_was_killed_before_is_a_no() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let (session, _) = lock(&store, true).await;
    let kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()";
    execute(&database.gateway_url, kill).await;
    let killed = session.commit(Write::Quarantine { reason: "q".into() }).await;
    assert!(matches!(killed, Err(Failure::Determinate { .. })), "{killed:?}");
    assert_eq!(view(&store).await.fence.quarantine, None);
}

#[tokio::test]
async fn a_commit_whose_session_was_killed_is_unknown() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    at_commit(&database, "PERFORM pg_sleep(20)").await;
    let (session, _) = lock(&store, true).await;
    let kill = async {
        let kill = "SELECT coalesce(bool_or(pg_terminate_backend(pid, 5000)), false)
            FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event = 'PgSleep'
            AND datname = current_database() AND pid <> pg_backend_pid()";
        let mut killer = database.gateway().await;
        while !sqlx::query_scalar::<_, bool>(kill).fetch_one(&mut killer).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let write = session.commit(Write::Quarantine { reason: "q".into() });
    let (killed, ()) = tokio::join!(write, kill);
    assert!(matches!(killed, Err(Failure::Indeterminate { stage: "commit", .. })), "{killed:?}");
}

#[tokio::test]
async fn a_commit_that_is_not_answered_in_time_is_unknown() {
    let database = Database::migrated().await;
    let mut options = database.options();
    options.timeouts.commit = Duration::from_millis(200);
    let store = database.store_with(options).await;
    held(&store, 60_000).await;
    // Shorter than the interval at which the server looks whether its client is still there.
    at_commit(&database, "PERFORM pg_sleep(0.6)").await;
    let (session, _) = lock(&store, true).await;
    let late = session.commit(Write::Quarantine { reason: "q".into() }).await;
    assert!(matches!(late, Err(Failure::Indeterminate { stage: "commit", .. })), "{late:?}");
    // Unknown it was: the next lock waits for it and sees what became of it.
    let (session, locked) = lock(&store, true).await;
    assert_eq!(locked.fence.quarantine.as_deref(), Some("q"));
    session.abandon().await;
}

#[tokio::test]
async fn a_commit_that_brought_a_warning_is_unknown() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    at_commit(&database, "RAISE WARNING 'the wait for the standby was cancelled'").await;
    let (session, _) = lock(&store, true).await;
    let warned = session.commit(Write::Quarantine { reason: "q".into() }).await;
    let Err(Failure::Indeterminate { detail, .. }) = warned else { panic!("{warned:?}") };
    assert!(detail.contains("the wait for the standby was cancelled"), "{detail}");
    // An open transaction's own warnings say nothing about its COMMIT, and other sessions' neither.
    execute(&database.owner_url, "DROP TRIGGER at_commit ON fences").await;
    write(&store, Write::Expire).await;
}

#[tokio::test]
async fn a_commit_that_failed_is_never_a_success() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    at_commit(&database, "RAISE EXCEPTION 'no'").await;
    let (session, _) = lock(&store, true).await;
    let failed = session.commit(Write::Quarantine { reason: "q".into() }).await;
    assert!(matches!(failed, Err(Failure::Indeterminate { .. })), "{failed:?}");
    assert_eq!(view(&store).await.fence.quarantine, None);
}

#[tokio::test]
async fn a_database_that_is_not_there_is_a_no_in_bounded_time() {
    let database = Database::migrated().await;
    let mut options = database.options();
    options.url = "postgres://fencepost_gateway:x@127.0.0.1:1/none".into();
    options.timeouts.checkout = Duration::from_millis(300);
    let store = fencepost::postgres::Postgres::connect(options).unwrap();
    let began = std::time::Instant::now();
    let answers = [
        store.probe().await.err(),
        store.ensure(&super::lease()).await.err(),
        store.inspect(&super::lease()).await.err(),
    ];
    assert!(answers.iter().all(|a| matches!(a, Some(Failure::Determinate { .. }))), "{answers:?}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_database_that_only_reads_is_not_ready() {
    let database = Database::migrated().await;
    let store = database.store().await;
    store.probe().await.unwrap();
    store.close().await;
    let store = fencepost::postgres::Postgres::connect(database.options()).unwrap();
    let (_, name) = database.owner_url.rsplit_once('/').unwrap();
    let sql = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    execute(&database.owner_url, &sql).await;
    assert!(matches!(store.probe().await, Err(Failure::Determinate { .. })));
    let ensured = store.ensure(&super::lease()).await;
    assert!(matches!(ensured, Err(Failure::Determinate { .. })), "{ensured:?}");
}
