//! What each write leaves, and that one which does not fit leaves nothing.

use super::support::Database;
use super::{accepted, batch, held, id, install, lease, lock, view, write};
use fencepost::engine::ports::{Failure, FenceStore, LockRequest};
use fencepost::postgres::Postgres;
use fencepost::protocol::fence::Write;
use fencepost::protocol::lease::{BatchSeq, FencingToken, InstanceId, Nonce};
use fencepost::protocol::ledger::ledger_partition;
use fencepost::protocol::operation::{Accepted, Fingerprint};

fn record(seq: u64, ids: &[&str]) -> Write {
    Write::Record { seq: BatchSeq(seq), operations: ids.iter().map(|i| accepted(i)).collect() }
}

async fn refused(store: &Postgres, bad: Write) {
    let before = view(store).await;
    let answer = lock(store, true).await.0.commit(bad).await;
    assert!(answer.is_err(), "{answer:?}");
    let after = view(store).await;
    assert_eq!((before.fence, before.lease), (after.fence, after.lease));
}

async fn count(database: &Database, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    let mut conn = database.gateway().await;
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut conn).await.unwrap()
}

#[tokio::test]
async fn missing_rows_are_made_once_and_stay() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let name = lease();
    let request = LockRequest { lease: name.clone(), both: true, operations: Vec::new() };
    assert!(store.lock(request).await.unwrap().is_none());
    assert!(store.inspect(&name).await.unwrap().is_none());
    let both = tokio::join!(store.ensure(&name), store.ensure(&name));
    assert_eq!(both, (Ok(()), Ok(())));
    let rows = view(&store).await;
    assert_eq!((rows.fence.token, rows.fence.seq), (FencingToken(0), BatchSeq(0)));
    assert_eq!(rows.fence.partition, ledger_partition(&name, 16));
    assert!(!rows.lease.is_held(rows.now));
    held(&store, 60_000).await;
    let before = view(&store).await;
    store.ensure(&name).await.unwrap();
    assert_eq!(view(&store).await.fence, before.fence);
}

#[tokio::test]
async fn an_install_counts_its_time_from_its_own_clock_and_names_its_home() {
    let database = Database::migrated().await;
    let store = database.store().await;
    store.ensure(&lease()).await.unwrap();
    let (mut session, locked) = lock(&store, true).await;
    let token = session.draw_token().await.unwrap();
    let committed = session.commit(install(token, 60_000, 1, 0)).await.unwrap();
    assert!(committed.now > locked.now);
    assert_eq!(committed.expires_at.0 - committed.now.0, 60_000_000);
    let rows = view(&store).await;
    assert_eq!(rows.fence.home, Some(InstanceId([9; 16])));
    assert_eq!(rows.home_url.as_deref(), Some("http://gateway-1"));
    assert_eq!(rows.fence.nonce, Some(Nonce([1; 16])));
    assert_eq!((rows.fence.token, rows.lease.token), (token, token));
    assert_eq!(rows.lease.expires_at, committed.expires_at);
    assert!(rows.lease.is_held(rows.now));
}

#[tokio::test]
async fn an_install_over_a_held_lease_or_a_higher_token_writes_nothing() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    refused(&store, install(FencingToken(token.0 + 9), 60_000, 2, 0)).await;
    refused(&store, Write::Settle { nonce: Nonce([2; 16]), seq: BatchSeq(0), redo: None }).await;
    write(&store, Write::Expire).await;
    refused(&store, install(token, 60_000, 2, 0)).await;
    refused(&store, install(FencingToken(u64::MAX), 60_000, 2, 7)).await;
    write(&store, install(FencingToken(token.0 + 9), 60_000, 2, 0)).await;
}

#[tokio::test]
async fn a_batch_with_another_seq_writes_nothing() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    for seq in [0, 2, 3, u64::MAX] {
        refused(&store, record(seq, &["a"])).await;
    }
    assert_eq!(count(&database, "operations").await, 0);
    write(&store, record(1, &["a", "b"])).await;
    refused(&store, record(1, &["c"])).await;
    write(&store, record(2, &["c"])).await;
    assert_eq!(view(&store).await.fence.seq, BatchSeq(2));
    assert_eq!(count(&database, "operations").await, 3);
}

#[tokio::test]
async fn a_batch_with_an_id_that_is_there_already_writes_nothing_at_all() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    write(&store, record(1, &["a"])).await;
    for ids in [["b", "a"], ["c", "c"]] {
        let (session, _) = lock(&store, true).await;
        let answer = session.commit(record(2, &ids)).await;
        assert!(matches!(answer, Err(Failure::Determinate { .. })), "{answer:?}");
    }
    assert_eq!(view(&store).await.fence.seq, BatchSeq(1));
    assert_eq!(count(&database, "operations").await, 1);
}

#[tokio::test]
async fn an_accepted_operation_is_found_under_the_lock_and_without_it() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    write(&store, record(1, &["a", "b"])).await;
    let ids = vec![id("b"), id("nope"), id("a")];
    let request = LockRequest { lease: lease(), both: false, operations: ids.clone() };
    let (mut session, locked) = store.lock(request).await.unwrap().unwrap();
    let again = session.find(ids).await.unwrap();
    session.abandon().await;
    for mut found in [locked.found, again] {
        found.sort_by(|x, y| x.accepted.id.cmp(&y.accepted.id));
        let stored: Vec<_> = found.iter().map(|s| (&s.accepted, s.token, s.seq)).collect();
        let (a, b) = (accepted("a"), accepted("b"));
        assert_eq!(stored, [(&a, token, BatchSeq(1)), (&b, token, BatchSeq(1))]);
    }
    let rows = store.find(&lease(), &id("a")).await.unwrap().unwrap();
    assert_eq!((rows.fence.seq, &rows.found[0].accepted), (BatchSeq(1), &accepted("a")));
    let none = store.find(&lease(), &id("nope")).await.unwrap().unwrap();
    assert_eq!(none.found, []);
}

#[tokio::test]
async fn a_redo_is_idempotent_and_keeps_the_token_that_it_was_accepted_under() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    // One of its operations is there already, which the redo leaves as it is.
    let other = Accepted { fingerprint: Fingerprint([8; 32]), ..accepted("a") };
    write(&store, Write::Record { seq: BatchSeq(1), operations: vec![other.clone()] }).await;
    let redo = Some(batch(token, 2, &["a", "b"]));
    refused(&store, Write::Reopen { nonce: Nonce([2; 16]), seq: BatchSeq(1), redo: redo.clone() })
        .await;
    refused(&store, Write::Reopen { nonce: Nonce([2; 16]), seq: BatchSeq(2), redo: None }).await;
    write(&store, Write::Expire).await;
    let expired = view(&store).await;
    write(&store, Write::Reopen { nonce: Nonce([2; 16]), seq: BatchSeq(2), redo }).await;
    let reopened = view(&store).await;
    assert_eq!(reopened.lease, expired.lease, "a re-open revives nothing");
    assert_eq!(reopened.fence.nonce, Some(Nonce([2; 16])));
    let a = store.find(&lease(), &id("a")).await.unwrap().unwrap();
    assert_eq!(a.found[0].accepted, other);
    let Write::Install { owner, identity, ttl_ms, request_id, incarnation, nonce, seq, .. } =
        install(FencingToken(token.0 + 1), 60_000, 3, 3)
    else {
        unreachable!()
    };
    let redo = Some(batch(token, 3, &["c"]));
    let token_above = FencingToken(token.0 + 1);
    write(
        &store,
        Write::Install {
            token: token_above,
            owner,
            identity,
            ttl_ms,
            request_id,
            incarnation,
            nonce,
            seq,
            redo,
        },
    )
    .await;
    for (text, seq) in [("b", 2), ("c", 3)] {
        let rows = store.find(&lease(), &id(text)).await.unwrap().unwrap();
        let stored = &rows.found[0];
        assert_eq!((stored.token, stored.seq), (token, BatchSeq(seq)), "{text}");
    }
}

#[tokio::test]
async fn a_lease_ends_as_it_was_told_to() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    let live = view(&store).await;
    write(&store, Write::Release { nonce: None, seq: BatchSeq(0), redo: None }).await;
    let released = view(&store).await;
    assert!(released.lease.released && released.lease.expires_at == live.lease.expires_at);
    assert_eq!(released.fence, live.fence, "no producer was made, so no mark");
    write(
        &store,
        Write::Settle {
            nonce: Nonce([4; 16]),
            seq: BatchSeq(1),
            redo: Some(batch(token, 1, &["a"])),
        },
    )
    .await;
    let settled = view(&store).await;
    assert!(settled.lease.released);
    assert_eq!((settled.fence.nonce, settled.fence.seq), (Some(Nonce([4; 16])), BatchSeq(1)));
    write(&store, install(FencingToken(token.0 + 1), 60_000, 5, 1)).await;
    assert!(!view(&store).await.lease.released);
    let retire = Write::Retire { nonce: Nonce([6; 16]), seq: BatchSeq(1), redo: None };
    let committed = write(&store, retire).await;
    let retired = view(&store).await;
    assert!(!retired.lease.is_held(committed.now) && !retired.lease.released);
    assert_eq!(committed.expires_at, committed.now);
    let again = write(&store, Write::Expire).await;
    assert_eq!(again.expires_at, committed.expires_at, "an end is never put off");
}

#[tokio::test]
async fn a_mark_changes_the_nonce_alone_and_every_event_is_in_the_history() {
    let database = Database::migrated().await;
    let store = database.store().await;
    held(&store, 60_000).await;
    let before = view(&store).await;
    write(&store, Write::Nonce { nonce: Nonce([7; 16]) }).await;
    let mut marked = view(&store).await;
    assert_eq!(marked.lease, before.lease);
    assert_eq!(marked.fence.nonce.replace(Nonce([1; 16])), Some(Nonce([7; 16])));
    assert_eq!(marked.fence, before.fence);
    write(&store, record(1, &["a"])).await;
    write(&store, Write::Reopen { nonce: Nonce([8; 16]), seq: BatchSeq(1), redo: None }).await;
    write(&store, Write::Expire).await;
    write(&store, Write::Settle { nonce: Nonce([9; 16]), seq: BatchSeq(1), redo: None }).await;
    write(&store, Write::Quarantine { reason: "because".into() }).await;
    refused(&store, record(2, &["b"])).await;
    write(&store, Write::Nonce { nonce: Nonce([10; 16]) }).await;
    let mut conn = database.gateway().await;
    let sql = "SELECT event, note FROM fence_history WHERE lease = 'matter.7' ORDER BY id";
    let events: Vec<(String, Option<String>)> =
        sqlx::query_as(sql).fetch_all(&mut conn).await.unwrap();
    let names: Vec<&str> = events.iter().map(|(event, _)| event.as_str()).collect();
    assert_eq!(names, ["install", "reopen", "expire", "settle", "quarantine"]);
    assert_eq!(events[4].1.as_deref(), Some("because"));
}
