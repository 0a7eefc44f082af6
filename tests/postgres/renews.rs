//! Renew: never shorter, never added up, never without every check.

use super::support::Database;
use super::{credential, held, lease, view, write};
use fencepost::engine::ports::{FenceStore, RenewRequest, Renewed};
use fencepost::postgres::Postgres;
use fencepost::protocol::fence::{Credential, Write};
use fencepost::protocol::lease::{BatchSeq, FencingToken, Incarnation, LeaseName, Owner};

async fn renew(store: &Postgres, credential: Credential, ttl_ms: Option<u64>) -> Renewed {
    store.renew(RenewRequest { credential, ttl_ms }).await.unwrap()
}

async fn assert_refused(store: &Postgres, credential: Credential) {
    let before = view(store).await;
    let renewed = renew(store, credential, Some(600_000)).await;
    assert!(matches!(renewed, Renewed::Refused(_)), "{renewed:?}");
    assert_eq!(view(store).await.lease, before.lease, "the row is left alone");
}

#[tokio::test]
async fn a_renew_never_shortens_and_never_adds_up() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    let first = view(&store).await.lease.expires_at;
    let Renewed::Extended { lease, now } = renew(&store, credential(token), Some(1_000)).await
    else {
        panic!("refused")
    };
    assert_eq!((lease.expires_at, lease.ttl_ms), (first, 1_000));
    assert!(now < first);
    for ttl_ms in [Some(90_000), None, Some(90_000)] {
        let Renewed::Extended { lease, now } = renew(&store, credential(token), ttl_ms).await
        else {
            panic!("refused")
        };
        assert_eq!(lease.expires_at.0 - now.0, 90_000_000, "counted from the statement's clock");
        assert_eq!(lease, view(&store).await.lease);
    }
}

#[tokio::test]
async fn two_renews_at_once_leave_the_longer_one() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    for _ in 0..20 {
        let (long, short) = tokio::join!(
            renew(&store, credential(token), Some(300_000)),
            renew(&store, credential(token), Some(1_000)),
        );
        let Renewed::Extended { lease: long, .. } = long else { panic!("refused") };
        let Renewed::Extended { .. } = short else { panic!("refused") };
        assert!(view(&store).await.lease.expires_at >= long.expires_at);
    }
}

#[tokio::test]
async fn a_renew_after_expiry_or_release_leaves_the_row_alone() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    write(&store, Write::Expire).await;
    assert_refused(&store, credential(token)).await;
    let token = held(&store, 60_000).await;
    write(&store, Write::Release { nonce: None, seq: BatchSeq(0), redo: None }).await;
    assert_refused(&store, credential(token)).await;
}

#[tokio::test]
async fn a_credential_that_is_over_renews_nothing_though_its_lease_lives_on() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    let over = view(&store).await.now.seconds();
    assert_refused(&store, Credential { expires_s: over, ..credential(token) }).await;
    let living = Credential { expires_s: over + 60, ..credential(token) };
    assert!(matches!(renew(&store, living, None).await, Renewed::Extended { .. }));
}

#[tokio::test]
async fn a_credential_that_is_not_valid_yet_renews_nothing() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let token = held(&store, 60_000).await;
    let now = view(&store).await.now.seconds();
    let of = |issued_s| Credential { issued_s, ..credential(token) };
    assert_refused(&store, of(now + 60)).await;
    assert!(matches!(renew(&store, of(now), None).await, Renewed::Extended { .. }));
}

#[tokio::test]
async fn a_renew_needs_the_rows_own_token_owner_and_incarnation() {
    let database = Database::migrated().await;
    let store = database.store().await;
    let old = held(&store, 60_000).await;
    write(&store, Write::Expire).await;
    let token = held(&store, 60_000).await;
    assert_refused(&store, credential(old)).await;
    assert_refused(&store, credential(FencingToken(token.0 + 1))).await;
    let other = Owner::parse("worker-b").unwrap();
    assert_refused(&store, Credential { owner: other, ..credential(token) }).await;
    assert_refused(&store, Credential { incarnation: Incarnation(2), ..credential(token) }).await;
    let absent = LeaseName::parse("never.seen").unwrap();
    let renewed = renew(&store, Credential { lease: absent, ..credential(token) }, None).await;
    assert_eq!(renewed, Renewed::Absent);
    write(&store, Write::Quarantine { reason: "q".into() }).await;
    assert_refused(&store, credential(token)).await;
}

#[tokio::test]
async fn a_lease_that_nobody_ever_held_is_not_renewed() {
    let database = Database::migrated().await;
    let store = database.store().await;
    store.ensure(&lease()).await.unwrap();
    let nobody = Credential { owner: Owner::nobody(), ..credential(FencingToken(0)) };
    assert_refused(&store, Credential { incarnation: Incarnation(0), ..nobody }).await;
}
