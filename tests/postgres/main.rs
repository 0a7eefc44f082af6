//! The fence store against a real Postgres: rights and triggers, locks and clocks, writes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::large_futures,
    unreachable_pub,
    reason = "a test that is wrong about a value fails, which is what it is for"
)]

mod commits;
mod locks;
mod purge;
mod renews;
mod schema;
#[path = "../support/postgres.rs"]
mod support;
mod writes;

use fencepost::engine::ports::{FenceSession, FenceStore, LeaseView, LockRequest};
use fencepost::postgres::Postgres;
use fencepost::protocol::fence::{Committed, Credential, Locked, Write};
use fencepost::protocol::lease::{
    BatchSeq, FencingToken, Identity, Incarnation, LeaseName, Nonce, Owner,
};
use fencepost::protocol::ledger::Batch;
use fencepost::protocol::operation::{Accepted, Fingerprint, OperationId, Run};

const INCARNATION: Incarnation = Incarnation(1);

fn lease() -> LeaseName {
    LeaseName::parse("matter.7").unwrap()
}

fn owner() -> Owner {
    Owner::parse("worker-a").unwrap()
}

fn id(text: &str) -> OperationId {
    OperationId::parse(text).unwrap()
}

fn accepted(text: &str) -> Accepted {
    let run = Run { topic: "records".into(), partition: 2, first_offset: 10, count: 3 };
    Accepted { id: id(text), fingerprint: Fingerprint([5; 32]), runs: vec![run] }
}

fn batch(token: FencingToken, seq: u64, ids: &[&str]) -> Batch {
    let operations = ids.iter().map(|text| accepted(text)).collect();
    Batch { token, owner: owner(), incarnation: INCARNATION, seq: BatchSeq(seq), operations }
}

fn install(token: FencingToken, ttl_ms: u64, nonce: u8, seq: u64) -> Write {
    Write::Install {
        token,
        owner: owner(),
        identity: Identity::new("ci"),
        ttl_ms,
        request_id: None,
        incarnation: INCARNATION,
        nonce: Nonce([nonce; 16]),
        seq: BatchSeq(seq),
        redo: None,
    }
}

fn credential(token: FencingToken) -> Credential {
    Credential {
        lease: lease(),
        owner: owner(),
        token,
        incarnation: INCARNATION,
        expires_s: i64::MAX,
        issued_s: 0,
    }
}

async fn lock(store: &Postgres, both: bool) -> (Box<dyn FenceSession>, Locked) {
    let request = LockRequest { lease: lease(), both, operations: Vec::new() };
    store.lock(request).await.unwrap().expect("the lease has rows")
}

async fn write(store: &Postgres, write: Write) -> Committed {
    lock(store, true).await.0.commit(write).await.unwrap()
}

/// A lease that is held under a fresh token, with nonce 1 and seq 0.
async fn held(store: &Postgres, ttl_ms: u64) -> FencingToken {
    store.ensure(&lease()).await.unwrap();
    let (mut session, _) = lock(store, true).await;
    let token = session.draw_token().await.unwrap();
    session.commit(install(token, ttl_ms, 1, 0)).await.unwrap();
    token
}

async fn view(store: &Postgres) -> LeaseView {
    store.inspect(&lease()).await.unwrap().expect("the lease has rows")
}
