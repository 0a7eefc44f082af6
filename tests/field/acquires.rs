//! Acquires that are repeated, that replace, and that wait.

use crate::sessions;
use crate::world::{World, wait_for};
use serde_json::json;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

#[test]
fn a_repeated_request_gets_the_same_lease_and_extends_nothing() {
    let world = World::new("request-id");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let (one, two) = (g1.client(), g2.client());
    let first = one.acquire(LEASE, "w", json!({ "ttl_ms": 60_000, "request_id": "r1" }));
    let first = first.expect(200);
    for client in [&one, &two] {
        let again = client.acquire(LEASE, "w", json!({ "ttl_ms": 600_000, "request_id": "r1" }));
        let again = again.expect(200);
        for same in ["token", "expires_at", "ttl_ms", "transactional_id"] {
            assert_eq!(again[same], first[same], "{same}: {again}");
        }
        assert!(again["expires_in_ms"].as_u64() <= first["expires_in_ms"].as_u64());
    }
    let another = one.acquire(LEASE, "x", json!({ "request_id": "r1" }));
    another.expect_problem(409, "lease_held");
    one.acquire(LEASE, "w", json!({ "request_id": "r2" })).expect_problem(409, "lease_held");
    // The request id comes first: a repeat that says `replace` does not end what it won.
    let again = one.acquire(LEASE, "w", json!({ "request_id": "r1", "replace": true })).expect(200);
    assert_eq!(again["token"], first["token"]);
    let other = json!({ "replace": true });
    one.acquire(LEASE, "x", other.clone()).expect_problem(409, "lease_held");
    let replaced = one.acquire(LEASE, "w", other).expect(200);
    let number = |body: &serde_json::Value| body["token"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(number(&replaced) > number(&first));
    one.release(&crate::client::Holder::of(&replaced)).expect(200);
    let late = one.acquire(LEASE, "w", json!({ "request_id": "r3" })).expect(200);
    one.release(&crate::client::Holder::of(&late)).expect(200);
    let late = one.acquire(LEASE, "w", json!({ "request_id": "r3" }));
    let late = late.expect_problem(412, "lease_released");
    assert_eq!(late["retry"], "reacquire");
}

#[test]
fn a_waiting_acquire_wakes_at_the_release_and_at_the_expiry_and_holds_no_session() {
    let world = World::new("waits");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let holder = g1.client().hold(LEASE, "w", SOON);
    let wait = json!({ "wait_ms": 20_000 });
    std::thread::scope(|scope| {
        let waiters = [&g1, &g2].map(|gateway| {
            let (client, wait) = (gateway.client(), wait.clone());
            scope.spawn(move || {
                let answer = client.acquire(LEASE, "x", wait);
                (answer, Instant::now())
            })
        });
        // They look again now and then; between two looks they have no session in a transaction.
        for _ in 0..5 {
            wait_for("no session is in a transaction", SOON, || {
                (sessions::count(&world, "state <> 'idle'") == 0).then_some(())
            });
        }
        let released = Instant::now();
        g1.client().release(&holder).expect(200);
        let mut woken: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap()).collect();
        woken.sort_by_key(|(_, at)| *at);
        // Of two that wait one gets it, and the other one at the expiry (2.5 s) of the first.
        let [(first, at), (second, then)] = woken.try_into().unwrap();
        let (first, second) = (first.expect(200), second.expect(200));
        assert_ne!(first["token"], second["token"]);
        assert!(at - released < Duration::from_secs(3), "{:?}", at - released);
        let expired = Duration::from_millis(2_400);
        assert!((expired..expired * 3).contains(&(then - at)), "{:?}", then - at);
    });
    let holder = g1.client().hold("other.7", "w", SOON);
    let from = Instant::now();
    let over = g2.client().acquire("other.7", "x", json!({ "wait_ms": 300 }));
    over.expect_problem(409, "lease_held");
    assert!(from.elapsed() >= Duration::from_millis(300));
    g1.client().release(&holder).expect(200);
}
