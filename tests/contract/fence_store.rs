//! What the engine expects of a fence store.

use crate::on_both;
use crate::shared::memory::World;
use crate::shared::postgres::Database;
use fencepost::engine::ports::{
    FenceSession, FenceStore, HistoryPage, LeasePage, LockRequest, PurgeStep, Purged, RenewRequest,
    Renewed,
};
use fencepost::protocol::fence::{Credential, Locked, Write};
use fencepost::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Identity, Incarnation, InstanceId, LeaseName, Nonce, Owner,
};
use fencepost::protocol::ledger::Batch;
use fencepost::protocol::operation::{Accepted, Fingerprint, OperationId, Run};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

type Store = Arc<dyn FenceStore>;

async fn in_memory<F: Future<Output = ()>>(case: fn(Store) -> F) {
    let world = World::new();
    case(world.ports(InstanceId([9; 16])).store).await;
}

async fn for_real<F: Future<Output = ()>>(case: fn(Store) -> F) {
    let database = Database::migrated().await;
    case(Arc::new(database.store().await)).await;
}

fn lease() -> LeaseName {
    LeaseName::parse("matter.7").unwrap()
}

fn owner() -> Owner {
    Owner::parse("w").unwrap()
}

fn id(text: &str) -> OperationId {
    OperationId::parse(text).unwrap()
}

fn accepted(text: &str) -> Accepted {
    let run = Run { topic: "t".into(), partition: 0, first_offset: 10, count: 2 };
    Accepted { id: id(text), fingerprint: Fingerprint([3; 32]), runs: vec![run] }
}

fn install(token: FencingToken, nonce: u8, seq: u64, redo: Option<Batch>) -> Write {
    Write::Install {
        token,
        owner: owner(),
        identity: Identity::new("i"),
        ttl_ms: 60_000,
        request_id: None,
        incarnation: Incarnation(1),
        nonce: Nonce([nonce; 16]),
        seq: BatchSeq(seq),
        redo,
    }
}

async fn lock(store: &Store, ids: &[&str]) -> (Box<dyn FenceSession>, Locked) {
    let operations = ids.iter().map(|text| id(text)).collect();
    let request = LockRequest { lease: lease(), both: true, operations };
    store.lock(request).await.unwrap().expect("the lease has rows")
}

/// A lease held under a fresh token, with nonce 1 and seq 0.
async fn held(store: &Store) -> FencingToken {
    store.ensure(&lease()).await.unwrap();
    let (mut session, _) = lock(store, &[]).await;
    let token = session.draw_token().await.unwrap();
    session.commit(install(token, 1, 0, None)).await.unwrap();
    token
}

async fn write(store: &Store, write: Write) -> bool {
    lock(store, &[]).await.0.commit(write).await.is_ok()
}

fn credential(token: FencingToken) -> Credential {
    Credential {
        lease: lease(),
        owner: owner(),
        token,
        incarnation: Incarnation(1),
        expires_s: i64::MAX,
        issued_s: 0,
    }
}

async fn a_lease_without_rows_is_absent_and_ensure_makes_them_once(store: Store) {
    let request = LockRequest { lease: lease(), both: false, operations: Vec::new() };
    assert!(store.lock(request).await.unwrap().is_none());
    assert!(store.inspect(&lease()).await.unwrap().is_none());
    let token = held(&store).await;
    store.ensure(&lease()).await.unwrap();
    let (session, locked) = lock(&store, &[]).await;
    assert_eq!((locked.fence.token, locked.fence.seq), (token, BatchSeq(0)));
    session.abandon().await;
}

async fn an_install_is_read_back_with_its_expiry_from_the_stores_clock(store: Store) {
    let token = held(&store).await;
    let (session, locked) = lock(&store, &[]).await;
    session.abandon().await;
    assert_eq!(locked.fence.owner, owner());
    assert_eq!(locked.lease.token, token);
    assert_eq!(locked.fence.nonce, Some(Nonce([1; 16])));
    assert_eq!(locked.fence.home, Some(InstanceId([9; 16])));
    assert!(locked.lease.is_held(locked.now));
    assert!(locked.lease.expires_at.ms_after(locked.now) <= 60_000);
}

async fn a_held_lease_is_not_installed_over(store: Store) {
    let token = held(&store).await;
    assert!(!write(&store, install(FencingToken(token.0 + 5), 2, 0, None)).await);
    let (session, locked) = lock(&store, &[]).await;
    session.abandon().await;
    assert_eq!(locked.fence.token, token);
}

async fn tokens_rise_even_where_the_session_that_drew_one_ends_unwritten(store: Store) {
    held(&store).await;
    let mut last = FencingToken(0);
    for _ in 0..5 {
        let (mut session, _) = lock(&store, &[]).await;
        let token = session.draw_token().await.unwrap();
        assert!(token > last);
        last = token;
        drop(session);
    }
}

async fn a_second_lock_waits_for_the_first_and_sees_what_it_wrote(store: Store) {
    held(&store).await;
    let (session, _) = lock(&store, &[]).await;
    let other = Arc::clone(&store);
    let second = lock(&other, &["a"]);
    let mut second = std::pin::pin!(second);
    let early = timeout(Duration::from_millis(200), second.as_mut()).await;
    assert!(early.is_err(), "two sessions hold one lock");
    let record = Write::Record { seq: BatchSeq(1), operations: vec![accepted("a")] };
    session.commit(record).await.unwrap();
    let (session, locked) = second.await;
    assert_eq!(locked.fence.seq, BatchSeq(1));
    assert_eq!(locked.found.len(), 1, "found by the read after the lock");
    session.abandon().await;
}

async fn a_dropped_session_writes_nothing_and_frees_the_lock(store: Store) {
    let token = held(&store).await;
    drop(lock(&store, &[]).await);
    let (session, locked) = lock(&store, &[]).await;
    session.abandon().await;
    assert_eq!((locked.fence.token, locked.fence.seq), (token, BatchSeq(0)));
}

async fn a_batch_is_recorded_once_and_only_under_the_next_seq(store: Store) {
    let token = held(&store).await;
    let record = |seq| Write::Record { seq: BatchSeq(seq), operations: vec![accepted("a")] };
    assert!(!write(&store, record(2)).await, "a gap was written");
    assert!(write(&store, record(1)).await);
    let (mut session, locked) = lock(&store, &["a", "b"]).await;
    assert_eq!(locked.found.len(), 1);
    let stored = &locked.found[0];
    assert_eq!((&stored.accepted, stored.token, stored.seq), (&accepted("a"), token, BatchSeq(1)));
    assert_eq!(session.find(vec![id("a")]).await.unwrap(), locked.found);
    assert_eq!(session.find(vec![id("b")]).await.unwrap(), Vec::new());
    session.confirm().await.unwrap();
    session.abandon().await;
    let rows = store.find(&lease(), &id("a")).await.unwrap().unwrap();
    assert_eq!(rows.found.first(), Some(stored));
}

async fn a_redo_is_part_of_the_same_commit(store: Store) {
    let old = held(&store).await;
    assert!(write(&store, Write::Expire).await);
    let (mut session, _) = lock(&store, &[]).await;
    let token = session.draw_token().await.unwrap();
    let batch = Batch {
        token: old,
        owner: owner(),
        incarnation: Incarnation(1),
        seq: BatchSeq(1),
        operations: vec![accepted("a")],
    };
    session.commit(install(token, 2, 1, Some(batch))).await.unwrap();
    let (session, locked) = lock(&store, &["a"]).await;
    session.abandon().await;
    assert_eq!((locked.fence.token, locked.fence.seq), (token, BatchSeq(1)));
    assert_eq!((locked.found[0].token, locked.found[0].seq), (old, BatchSeq(1)));
}

async fn a_reopen_moves_neither_expiry_nor_token(store: Store) {
    let token = held(&store).await;
    let before = store.inspect(&lease()).await.unwrap().unwrap().lease;
    let (nonce, seq) = (Nonce([5; 16]), BatchSeq(0));
    assert!(write(&store, Write::Reopen { nonce, seq, redo: None }).await);
    let after = store.inspect(&lease()).await.unwrap().unwrap();
    assert_eq!(after.lease, before);
    assert_eq!((after.fence.token, after.fence.nonce), (token, Some(nonce)));
}

async fn a_release_a_settle_and_a_retire_end_the_lease(store: Store) {
    held(&store).await;
    let (nonce, seq) = (Nonce([6; 16]), BatchSeq(0));
    assert!(!write(&store, Write::Settle { nonce, seq, redo: None }).await, "settled alive");
    assert!(write(&store, Write::Release { nonce: None, seq, redo: None }).await);
    let view = store.inspect(&lease()).await.unwrap().unwrap();
    assert!(view.lease.released && !view.lease.is_held(view.now));
    let token = held(&store).await;
    assert!(write(&store, Write::Retire { nonce, seq, redo: None }).await);
    let view = store.inspect(&lease()).await.unwrap().unwrap();
    assert!(!view.lease.is_held(view.now) && !view.lease.released);
    assert_eq!(view.fence.token, token);
    assert!(write(&store, Write::Settle { nonce: Nonce([7; 16]), seq, redo: None }).await);
    assert!(store.inspect(&lease()).await.unwrap().unwrap().lease.released);
}

async fn a_quarantined_lease_takes_no_batch(store: Store) {
    held(&store).await;
    assert!(write(&store, Write::Quarantine { reason: "first".to_owned() }).await);
    let record = Write::Record { seq: BatchSeq(1), operations: vec![accepted("a")] };
    assert!(!write(&store, record).await);
    let view = store.inspect(&lease()).await.unwrap().unwrap();
    assert_eq!(view.fence.quarantine.as_deref(), Some("first"));
}

async fn a_renew_extends_and_never_shortens_and_is_the_holders_alone(store: Store) {
    let token = held(&store).await;
    let renew = |credential: Credential, ttl_ms| {
        let store = Arc::clone(&store);
        async move { store.renew(RenewRequest { credential, ttl_ms: Some(ttl_ms) }).await.unwrap() }
    };
    let before = store.inspect(&lease()).await.unwrap().unwrap().lease.expires_at;
    let Renewed::Extended { lease: longer, .. } = renew(credential(token), 120_000).await else {
        panic!("refused")
    };
    assert!(longer.expires_at > before);
    let Renewed::Extended { lease: same, .. } = renew(credential(token), 10_000).await else {
        panic!("refused")
    };
    assert_eq!(same.expires_at, longer.expires_at);
    let stranger = Credential { owner: Owner::parse("x").unwrap(), ..credential(token) };
    assert!(matches!(renew(stranger, 300_000).await, Renewed::Refused(_)));
    let over = Credential { expires_s: 0, ..credential(token) };
    assert!(matches!(renew(over, 300_000).await, Renewed::Refused(_)));
    assert!(write(&store, Write::Expire).await);
    assert!(matches!(renew(credential(token), 300_000).await, Renewed::Refused(_)));
}

async fn leases_are_listed_by_name_in_pages_and_by_prefix(store: Store) {
    let name = |text: &str| LeaseName::parse(text).unwrap();
    for text in ["b.1", "a.2", "a-x", "a.10", "B.1", "a"] {
        store.ensure(&name(text)).await.unwrap();
    }
    let page = |prefix: &str, after: Option<&str>, limit| {
        let (store, after) = (Arc::clone(&store), after.map(name));
        let page = LeasePage { prefix: prefix.to_owned(), after, limit };
        async move {
            let views = store.list(page).await.unwrap();
            views.iter().map(|v| v.name.as_str().to_owned()).collect::<Vec<_>>()
        }
    };
    // In byte order, whatever the database's collation.
    assert_eq!(page("", None, 10).await, ["B.1", "a", "a-x", "a.10", "a.2", "b.1"]);
    assert_eq!(page("a.", None, 10).await, ["a.10", "a.2"]);
    assert_eq!(page("a", None, 2).await, ["a", "a-x"]);
    assert_eq!(page("a", Some("a-x"), 2).await, ["a.10", "a.2"]);
    assert_eq!(page("a", Some("a.2"), 2).await, Vec::<String>::new());
    assert_eq!(page("c", None, 2).await, Vec::<String>::new());
}

async fn the_history_tells_what_happened_oldest_first(store: Store) {
    let read = |after, limit| {
        let store = Arc::clone(&store);
        async move { store.history(&lease(), HistoryPage { after, limit }).await.unwrap() }
    };
    assert_eq!(read(0, 10).await, None, "no such lease");
    let token = held(&store).await;
    assert!(write(&store, Write::Expire).await);
    let settle = Write::Settle { nonce: Nonce([8; 16]), seq: BatchSeq(0), redo: None };
    assert!(write(&store, settle).await);
    let all = read(0, 10).await.unwrap();
    let events: Vec<&str> = all.iter().map(|e| e.event.as_str()).collect();
    assert_eq!(events, ["install", "expire", "settle"]);
    assert!(all.iter().all(|e| e.token == token && e.owner == "w" && e.seq == BatchSeq(0)));
    assert!(all.is_sorted_by_key(|e| (e.id, e.at)), "{all:?}");
    assert_eq!(read(0, 2).await.unwrap(), all[..2]);
    assert_eq!(read(all[1].id, 2).await.unwrap(), all[2..]);
}

async fn a_purge_leaves_what_is_younger_than_the_retention(store: Store) {
    held(&store).await;
    let record = |seq, name| {
        write(&store, Write::Record { seq: BatchSeq(seq), operations: vec![accepted(name)] })
    };
    assert!(record(1, "a").await && record(2, "b").await);
    let step = PurgeStep { retention_s: 3_600, rows: 10, from: DbTime(0) };
    assert_eq!(store.purge(step).await.unwrap(), Purged { rows: 0, to: DbTime(0) });
    // Ten minutes are kept in any case.
    let none = PurgeStep { retention_s: 0, ..step };
    assert_eq!(store.purge(none).await.unwrap().rows, 0);
    let rows = store.find(&lease(), &id("a")).await.unwrap().unwrap();
    assert_eq!(rows.found.len(), 1);
}

on_both!(
    leases_are_listed_by_name_in_pages_and_by_prefix,
    the_history_tells_what_happened_oldest_first,
    a_purge_leaves_what_is_younger_than_the_retention,
    a_lease_without_rows_is_absent_and_ensure_makes_them_once,
    an_install_is_read_back_with_its_expiry_from_the_stores_clock,
    a_held_lease_is_not_installed_over,
    tokens_rise_even_where_the_session_that_drew_one_ends_unwritten,
    a_second_lock_waits_for_the_first_and_sees_what_it_wrote,
    a_dropped_session_writes_nothing_and_frees_the_lock,
    a_batch_is_recorded_once_and_only_under_the_next_seq,
    a_redo_is_part_of_the_same_commit,
    a_reopen_moves_neither_expiry_nor_token,
    a_release_a_settle_and_a_retire_end_the_lease,
    a_quarantined_lease_takes_no_batch,
    a_renew_extends_and_never_shortens_and_is_the_holders_alone,
);
