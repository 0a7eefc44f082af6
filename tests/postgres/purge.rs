//! Operations past their retention go, and nothing younger, whoever asks.

use super::support::{Database, facts};
use super::{accepted, held, id, lease, write};
use fencepost::engine::ports::{FenceStore, PurgeStep, Purged};
use fencepost::postgres::Postgres;
use fencepost::protocol::fence::{PURGE_AFTER_S, Write};
use fencepost::protocol::lease::{BatchSeq, DbTime};
use sqlx::{AssertSqlSafe, PgConnection};

const RETENTION_S: i64 = 604_800;

async fn run(conn: &mut PgConnection, sql: &str) -> Result<u64, String> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await;
    done.map(|d| d.rows_affected())
        .map_err(|e| e.as_database_error().and_then(|e| e.code()).unwrap_or_default().into_owned())
}

/// Operations of other leases, accepted so many seconds ago: only the owner can write such rows.
async fn accepted_ago(owner: &mut PgConnection, ages_s: &[i64]) {
    for (k, age) in ages_s.iter().enumerate() {
        let sql = format!(
            "INSERT INTO operations (lease, operation_id, fingerprint, token, incarnation,
                 batch_seq, runs, accepted_at)
             VALUES ('old', 'op-{k}', repeat('x', 32)::bytea, 1, 1, 1, '',
                 clock_timestamp() - {age} * interval '1 s')"
        );
        run(owner, &sql).await.unwrap();
    }
}

/// What a verdict is told, read with the lease's rows.
async fn forgotten_to(store: &Postgres) -> DbTime {
    store.find(&lease(), &id("young")).await.unwrap().unwrap().forgotten_to
}

fn minute_after(at: DbTime) -> DbTime {
    const MINUTE_US: i64 = 60_000_000;
    DbTime((at.0.div_euclid(MINUTE_US) + 1) * MINUTE_US)
}

async fn left(owner: &mut PgConnection) -> Vec<String> {
    let sql = "SELECT operation_id FROM operations ORDER BY operation_id";
    sqlx::query_scalar(sql).fetch_all(owner).await.unwrap()
}

#[tokio::test]
async fn a_purge_goes_in_steps_from_the_oldest_and_stops_at_the_retention() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let young = Write::Record { seq: BatchSeq(1), operations: vec![accepted("young")] };
    write(&store, young).await;
    let mut owner = database.owner().await;
    let kept = RETENTION_S + PURGE_AFTER_S;
    accepted_ago(&mut owner, &[kept + 30, kept + 20, kept + 10, kept - 60, RETENTION_S - 60]).await;
    let step = |from| store.purge(PurgeStep { retention_s: RETENTION_S, rows: 2, from });
    assert_eq!(forgotten_to(&store).await, DbTime(0));
    let first = step(DbTime(0)).await.unwrap();
    assert_eq!(first.rows, 2);
    assert_eq!(forgotten_to(&store).await, minute_after(first.to));
    assert_eq!(left(&mut owner).await, ["op-2", "op-3", "op-4", "young"]);
    let second = step(first.to).await.unwrap();
    assert!(second.rows == 1 && second.to > first.to, "{second:?}");
    assert_eq!(step(second.to).await.unwrap(), Purged { rows: 0, to: second.to });
    assert_eq!(forgotten_to(&store).await, minute_after(second.to));
    assert_eq!(left(&mut owner).await, ["op-3", "op-4", "young"]);
    // A gateway with a shorter retention removes no more than the one with the longest allows.
    let short = PurgeStep { retention_s: 0, rows: 10, from: DbTime(0) };
    assert_eq!(store.purge(short).await.unwrap().rows, 0);
    let rows = store.find(&lease(), &id("young")).await.unwrap().unwrap();
    assert_eq!(rows.found.len(), 1);
}

#[tokio::test]
async fn of_two_purges_at_once_one_does_nothing() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let mut owner = database.owner().await;
    accepted_ago(&mut owner, &[RETENTION_S + PURGE_AFTER_S + 30]).await;
    let mut other = database.gateway().await;
    run(&mut other, "BEGIN").await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock(hashtext('fencepost purge'))";
    run(&mut other, lock).await.unwrap();
    let step = PurgeStep { retention_s: RETENTION_S, rows: 2, from: DbTime(0) };
    assert_eq!(store.purge(step).await.unwrap().rows, 0);
    run(&mut other, "ROLLBACK").await.unwrap();
    assert_eq!(store.purge(step).await.unwrap().rows, 1);
}

#[tokio::test]
async fn no_role_removes_an_operation_within_the_retention() {
    let database = Database::migrated().await;
    let store = database.store().await;
    assert!(store.claim_installation(&facts()).await.is_ok());
    let (mut owner, mut gateway) = (database.owner().await, database.gateway().await);
    accepted_ago(&mut owner, &[RETENTION_S - 60, RETENTION_S + 60]).await;
    let one = |k: u8| format!("DELETE FROM operations WHERE operation_id = 'op-{k}'");
    for conn in [&mut owner, &mut gateway] {
        assert_eq!(run(conn, &one(0)).await, Err("23001".to_owned()));
    }
    // A table of that name in the session's own schema does not mislead the trigger.
    run(&mut gateway, "CREATE TEMPORARY TABLE installation (retention_s bigint)").await.unwrap();
    run(&mut gateway, "INSERT INTO installation VALUES (0)").await.unwrap();
    assert_eq!(run(&mut gateway, &one(0)).await, Err("23001".to_owned()));
    assert_eq!(run(&mut gateway, &one(1)).await, Ok(1));
}

#[tokio::test]
async fn a_gateway_raises_the_retention_and_only_the_owner_lowers_it() {
    let database = Database::migrated().await;
    drop(database.store().await);
    let stored = async |conn: &mut PgConnection| -> i64 {
        let sql = "SELECT retention_s FROM installation";
        sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
    };
    let mut gateway = database.gateway().await;
    assert_eq!(stored(&mut gateway).await, RETENTION_S);
    let lower = "UPDATE installation SET retention_s = 1";
    assert_eq!(run(&mut gateway, lower).await, Err("42501".to_owned()));
    for (retention_s, expected) in [(3_600, RETENTION_S), (RETENTION_S + 1, RETENTION_S + 1)] {
        let mut options = database.options();
        options.retention_s = retention_s;
        drop(database.store_with(options).await);
        assert_eq!(stored(&mut gateway).await, expected);
    }
    assert_eq!(run(&mut database.owner().await, lower).await, Ok(1));
}

/// A gateway of another version, or a person with psql.
#[tokio::test]
async fn whoever_removes_operations_the_database_remembers_up_to_when_and_never_less() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let (mut owner, mut gateway) = (database.owner().await, database.gateway().await);
    accepted_ago(&mut owner, &[RETENTION_S + 900, RETENTION_S + 600, RETENTION_S + 300]).await;
    let at = async |owner: &mut PgConnection, k: u8| -> DbTime {
        let sql = format!(
            "SELECT (extract(epoch FROM accepted_at) * 1000000)::bigint FROM operations
             WHERE operation_id = 'op-{k}'"
        );
        DbTime(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(owner).await.unwrap())
    };
    let one = |k: u8| format!("DELETE FROM operations WHERE operation_id = 'op-{k}'");
    let middle = minute_after(at(&mut owner, 1).await);
    assert_eq!(run(&mut gateway, &one(1)).await, Ok(1));
    assert_eq!(forgotten_to(&store).await, middle);
    // An older one goes after it, and a statement finds none.
    assert_eq!(run(&mut gateway, &one(0)).await, Ok(1));
    assert_eq!(run(&mut gateway, &one(0)).await, Ok(0));
    assert_eq!(forgotten_to(&store).await, middle);
    // A removal that is taken back has removed nothing.
    run(&mut gateway, "BEGIN").await.unwrap();
    assert_eq!(run(&mut gateway, &one(2)).await, Ok(1));
    run(&mut gateway, "ROLLBACK").await.unwrap();
    assert_eq!(forgotten_to(&store).await, middle);
    let last = minute_after(at(&mut owner, 2).await);
    assert_eq!(run(&mut owner, &one(2)).await, Ok(1));
    assert_eq!(forgotten_to(&store).await, last);
    let lower = "UPDATE installation SET forgotten_to = 'epoch'";
    assert_eq!(run(&mut gateway, lower).await, Err("42501".to_owned()));
    assert_eq!(run(&mut owner, lower).await, Err("23001".to_owned()));
}

/// A database of the version before: what its purge has left tells how far it came.
#[tokio::test]
async fn the_migration_counts_as_forgotten_whatever_an_earlier_retention_may_have_let_go() {
    const DAY_S: i64 = 86_400;
    const BACK: &str = "DROP TRIGGER operations_forgotten ON operations;
        DROP FUNCTION operations_forget();
        DROP TRIGGER installation_forgotten ON installation;
        DROP FUNCTION installation_keep_forgotten();
        ALTER TABLE installation DROP COLUMN forgotten_to";
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let mut owner = database.owner().await;
    // The retention is seven days now and was one day once.
    for (ages_s, expected_s) in [(&[DAY_S, 60][..], DAY_S), (&[], PURGE_AFTER_S)] {
        run(&mut owner, "ALTER TABLE operations DISABLE TRIGGER ALL").await.unwrap();
        run(&mut owner, "DELETE FROM operations").await.unwrap();
        run(&mut owner, "ALTER TABLE operations ENABLE TRIGGER ALL").await.unwrap();
        accepted_ago(&mut owner, ages_s).await;
        run(&mut owner, BACK).await.unwrap();
        run(&mut owner, include_str!("../../migrations/0009_forgotten.sql")).await.unwrap();
        let rows = store.find(&lease(), &id("young")).await.unwrap().unwrap();
        let since_s = rows.now.seconds() - rows.forgotten_to.seconds();
        assert!((expected_s..expected_s + 60).contains(&since_s), "{since_s} s, {expected_s} s");
    }
}
