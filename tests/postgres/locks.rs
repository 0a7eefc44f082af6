//! Locks, the clock after them, and sessions that end.

use super::support::Database;
use super::{credential, held, install, lease, lock, view, write};
use fencepost::engine::ports::{Failure, FenceStore, LockRequest, Refused, RenewRequest, Renewed};
use fencepost::postgres::Timeouts;
use fencepost::protocol::fence::Write;
use sqlx::PgConnection;
use std::time::{Duration, Instant};

const LOCK_LEASE: &str = "SELECT 1 FROM leases WHERE lease = 'matter.7' FOR UPDATE";
const LOCK_FENCE: &str = "SELECT 1 FROM fences WHERE lease = 'matter.7' FOR UPDATE";

/// Sessions of the gateway in this database for which the condition holds, but for the asking one.
async fn sessions(conn: &mut PgConnection, condition: &str) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
         AND usename = current_user AND pid <> pg_backend_pid() AND {condition}"
    );
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(conn).await.unwrap()
}

async fn until(conn: &mut PgConnection, condition: &str, wanted: i64) {
    let end = Instant::now() + Duration::from_secs(10);
    while sessions(conn, condition).await != wanted {
        assert!(Instant::now() < end, "never {wanted} sessions with {condition}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the database's clock to pass the lease's expiry.
async fn until_expired(conn: &mut PgConnection) {
    let sql =
        "SELECT pg_sleep(greatest(0, extract(epoch FROM expires_at - clock_timestamp()) + 0.05)
                   ::float8) FROM leases";
    sqlx::raw_sql(sql).execute(conn).await.unwrap();
}

#[tokio::test]
async fn a_renew_that_waited_until_the_lease_was_over_is_refused() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 700).await;
    let before = view(&store).await;
    let (mut other, mut watch) = (database.gateway().await, database.gateway().await);
    sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
    sqlx::raw_sql(LOCK_LEASE).execute(&mut other).await.unwrap();
    let request = RenewRequest { credential: credential(token), ttl_ms: Some(60_000) };
    let hold = async {
        until(&mut watch, "wait_event_type = 'Lock'", 1).await;
        assert!(view(&store).await.lease.is_held(view(&store).await.now), "it began in time");
        until_expired(&mut other).await;
        sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    };
    let (renewed, ()) = tokio::join!(store.renew(request), hold);
    let Renewed::Refused(rows) = renewed.unwrap() else { panic!("revived") };
    assert!(!rows.lease.is_held(rows.now));
    assert_eq!(view(&store).await.lease, before.lease);
}

#[tokio::test]
async fn a_lock_that_waited_reads_the_rows_and_the_clock_of_afterwards() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 700).await;
    let (mut other, mut watch) = (database.gateway().await, database.gateway().await);
    for both in [false, true] {
        sqlx::raw_sql("BEGIN").execute(&mut other).await.unwrap();
        // One waits for the fence row, the other for the lease row.
        let statement = if both { LOCK_LEASE } else { LOCK_FENCE };
        sqlx::raw_sql(statement).execute(&mut other).await.unwrap();
        let hold = async {
            until(&mut watch, "wait_event_type = 'Lock'", 1).await;
            let change = "UPDATE fences SET home_url = coalesce(home_url, '') || '+'";
            if !both {
                sqlx::raw_sql(change).execute(&mut other).await.unwrap();
            }
            sqlx::raw_sql("UPDATE leases SET identity = identity || '+'")
                .execute(&mut other)
                .await
                .unwrap();
            until_expired(&mut other).await;
            sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
        };
        let ((session, locked), ()) = tokio::join!(lock(&store, both), hold);
        assert!(!locked.lease.is_held(locked.now), "expired while it waited");
        let marks = if both { "ci++" } else { "ci+" };
        assert_eq!(locked.lease.identity.as_str(), marks, "the row is the newest");
        session.abandon().await;
    }
}

#[tokio::test]
async fn a_second_look_at_the_lease_row_sees_a_renew_that_came_between() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 2_000).await;
    let (mut session, locked) = lock(&store, false).await;
    let request = RenewRequest { credential: credential(token), ttl_ms: Some(60_000) };
    assert!(matches!(store.renew(request).await, Ok(Renewed::Extended { .. })));
    let (lease, now) = session.lock_lease().await.unwrap();
    assert!(lease.expires_at > locked.lease.expires_at && now > locked.now);
    session.confirm().await.unwrap();
    session.abandon().await;
}

#[tokio::test]
async fn a_lock_that_is_not_got_in_time_is_a_no_within_its_limit() {
    let database = Database::migrated().await;
    let mut options = database.options();
    options.timeouts.lock = Duration::from_millis(300);
    let store = database.store_with(options).await;
    held(&store, 60_000).await;
    let (session, _) = lock(&store, true).await;
    let mut watch = database.gateway().await;
    let began = Instant::now();
    let request = LockRequest { lease: lease(), both: true, operations: Vec::new() };
    let Err(failure) = store.lock(request).await else { panic!("two have the lock") };
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let no = Failure::Determinate { stage: "lock fence", refused: Refused::Unavailable };
    assert_eq!(failure, no);
    until(&mut watch, "state LIKE 'idle in transaction%'", 1).await;
    session.abandon().await;
    until(&mut watch, "state LIKE 'idle in transaction%'", 0).await;
    lock(&store, true).await.0.abandon().await;
}

#[tokio::test]
async fn a_lock_whose_caller_went_away_leaves_no_session_in_a_transaction() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let mut watch = database.gateway().await;
    // At every point of the way: from before the checkout to after the read.
    for step in 0..40u64 {
        let request = LockRequest { lease: lease(), both: true, operations: Vec::new() };
        let limit = Duration::from_micros(step * 50);
        drop(tokio::time::timeout(limit, store.lock(request)).await);
    }
    until(&mut watch, "state LIKE 'idle in transaction%'", 0).await;
    // And while it waits for the lock, which then nobody holds.
    let (session, _) = lock(&store, true).await;
    let request = LockRequest { lease: lease(), both: true, operations: Vec::new() };
    let waiting = tokio::time::timeout(Duration::from_millis(200), store.lock(request));
    assert!(waiting.await.is_err());
    until(&mut watch, "wait_event_type = 'Lock'", 0).await;
    drop(session);
    until(&mut watch, "state LIKE 'idle in transaction%'", 0).await;
    lock(&store, true).await.0.abandon().await;
}

#[tokio::test]
async fn a_dropped_session_writes_nothing_and_frees_the_lock() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    for _ in 0..8 {
        let (session, _) = lock(&store, true).await;
        let mut commit = session.commit(Write::Expire);
        // Polled once: the statement is on its way, and then nobody waits for it.
        let polled =
            std::future::poll_fn(|cx| std::task::Poll::Ready(commit.as_mut().poll(cx).is_ready()));
        assert!(!polled.await);
        drop(commit);
    }
    let (session, locked) = lock(&store, true).await;
    assert!(locked.lease.is_held(locked.now) && locked.lease.token == token);
    session.abandon().await;
}

#[tokio::test]
async fn sessions_that_the_server_ended_are_replaced_without_an_error() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let (first, second) = (lock(&store, true).await.0, store.probe().await);
    first.abandon().await;
    second.unwrap();
    let mut killer = database.gateway().await;
    until(&mut killer, "state = 'active'", 0).await;
    let kill = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()";
    sqlx::raw_sql(kill).execute(&mut killer).await.unwrap();
    lock(&store, true).await.0.abandon().await;
    store.probe().await.unwrap();
    view(&store).await;
}

#[tokio::test]
async fn a_frozen_lock_holder_loses_its_lock_and_its_write() {
    let database = Database::migrated().await;
    let mut options = database.options();
    options.timeouts =
        Timeouts { idle_in_transaction: Duration::from_millis(300), ..options.timeouts };
    let store = database.store_with(options).await;
    held(&store, 60_000).await;
    let (frozen, _) = lock(&store, true).await;
    // The next one waits until the server has ended the first.
    write(&store, Write::Expire).await;
    let late = frozen.commit(Write::Quarantine { reason: "late".into() }).await;
    assert!(matches!(late, Err(Failure::Determinate { .. })), "{late:?}");
    assert_eq!(view(&store).await.fence.quarantine, None);
}

#[tokio::test]
async fn a_token_is_never_drawn_twice_not_even_after_a_rollback() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let mut last = held(&store, 60_000).await;
    write(&store, Write::Expire).await;
    for _ in 0..3 {
        let (mut session, _) = lock(&store, true).await;
        let first = session.draw_token().await.unwrap();
        let second = session.draw_token().await.unwrap();
        assert!(last < first && first < second);
        last = second;
        session.abandon().await;
    }
    let (mut session, _) = lock(&store, true).await;
    let token = session.draw_token().await.unwrap();
    assert!(last < token);
    session.commit(install(token, 60_000, 2, 0)).await.unwrap();
    assert_eq!(view(&store).await.fence.token, token);
}
