//! F31: forged, foreign, expired and oversized credentials.

mod bound;
pub mod forge;
mod times;

use crate::chaos_proxy::Mode;
use crate::client::{Answer, Client, Holder, Raw};
use crate::proxies::postgres_proxy;
use crate::rows;
use crate::world::{Options, World};
use forge::Forge;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

/// The calls that take a credential, each with this one; the operation is `id`.
fn calls(
    client: &Client,
    world: &World,
    credential: &str,
    id: &str,
) -> Vec<(&'static str, Answer)> {
    let path = |call: &str| format!("/v1/leases/{LEASE}{call}");
    let body = json!({ "records": [{ "topic": world.topic, "value": "v" }] });
    let key = [("Idempotency-Key", id)];
    let bearer = Some(credential);
    vec![
        ("records", client.post(&path("/records"), bearer, &key, &body)),
        ("renew", client.post(&path("/renew"), bearer, &[], &json!({ "ttl_ms": 3_000_000 }))),
        ("inspect", client.get(&path(""), bearer)),
        ("release", client.post(&path("/release"), bearer, &[], &json!({}))),
    ]
}

/// Nothing of a credential: neither whole nor one of its parts.
fn assert_hidden(text: &str, credential: &str, what: &str) {
    for secret in credential.split('.').filter(|part| part.len() > 20) {
        assert!(!text.contains(secret), "{what}: {text}");
    }
}

/// F31.
#[test]
fn a_credential_that_is_not_ours_is_refused_on_every_call_and_shown_nowhere() {
    let world = World::new("forged");
    let gateway = world.gateway_with("g1", vec![("FENCEPOST_LOG", "debug".to_owned())]);
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    let forge = Forge::new(&world, &holder);
    let (before, bad) = (rows::of(&world, LEASE), forge.bad());
    for (what, credential) in &bad {
        for (call, answer) in calls(&client, &world, credential, "forged") {
            let shown = answer.body.to_string();
            let problem = answer.expect_problem(401, "credential_invalid");
            assert_eq!(problem["side_effect"], "maybe", "{what} {call}");
            assert_hidden(&shown, credential, what);
        }
    }
    assert_eq!(rows::of(&world, LEASE), before, "no row moved");
    // The same hand makes a good one: what is refused above is refused for its own fault.
    let again = Holder { credential: forge.claiming(json!({})), ..holder.clone() };
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    client.records(&again, "good", &records).expect(200);
    client.records(&holder, "also-good", &records).expect(200);
    let log = gateway.log();
    assert!(log.contains("DEBUG"), "the log says all it can");
    for (what, credential) in bad.iter().chain([&("good", again.credential)]) {
        assert_hidden(&log, credential, what);
    }
    let ids: Vec<String> = world.read().into_iter().map(|seen| seen.operation).collect();
    assert!(!ids.contains(&"forged".to_owned()), "{ids:?}");
}

/// F31.
#[test]
fn a_credential_elsewhere_than_in_its_header_or_far_too_long_is_refused() {
    let world = World::new("elsewhere");
    let gateway = world.gateway_with("g1", vec![("FENCEPOST_LOG", "debug".to_owned())]);
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    let own = &holder.credential;
    let body = json!({ "records": [{ "topic": world.topic, "value": "v" }] }).to_string();
    let post = |query: &str, more: &[(&str, &str)]| -> Raw {
        let path = format!("/v1/leases/{LEASE}/records{query}");
        let mut headers = vec![("Content-Type", "application/json"), ("Idempotency-Key", "op")];
        headers.extend_from_slice(more);
        client.send("POST", &path, &headers, body.as_bytes())
    };
    for name in ["access_token", "credential", "authorization", "token", "bearer"] {
        let raw = post(&format!("?{name}={own}"), &[]);
        assert_hidden(&String::from_utf8_lossy(&raw.body), own, name);
        raw.answer().expect_problem(401, "credential_missing");
    }
    let cookie = format!("access_token={own}");
    post("", &[("Cookie", &cookie)]).answer().expect_problem(401, "credential_missing");
    for scheme in ["Basic", "bearer", "DPoP", ""] {
        let value = format!("{scheme} {own}");
        post("", &[("Authorization", &value)]).answer().expect_problem(401, "credential_invalid");
    }
    for bytes in [5_000, 16 * 1024, 64 * 1024] {
        let long = format!("Bearer {own}{}", "a".repeat(bytes));
        let raw = post("", &[("Authorization", &long)]);
        assert_eq!(raw.header("content-type"), Some("application/problem+json"), "{raw:?}");
        raw.answer().expect_problem(401, "credential_invalid");
    }
    assert_hidden(&gateway.log(), own, "the log");
    assert!(world.read().is_empty(), "nothing was written");
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    client.records(&holder, "good", &records).expect(200);
}

/// F31.
#[test]
fn what_is_no_credential_is_refused_before_postgres_is_asked() {
    let (proxy, address) = postgres_proxy();
    let postgres = Some(address);
    let world = World::with("unasked", Options { postgres, ..Options::default() });
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    let forge = Forge::new(&world, &holder);
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    proxy.set_mode(Mode::Freeze);
    let from = Instant::now();
    for (what, credential) in forge.bad() {
        for (call, answer) in calls(&client, &world, &credential, "forged") {
            assert_eq!(
                (answer.status, answer.code()),
                (401, "credential_invalid"),
                "{what} {call}"
            );
        }
    }
    let acquire = format!("/v1/leases/{LEASE}/acquire");
    let body = json!({ "owner": "w", "ttl_ms": 60_000 });
    for (bearer, code) in [(Some("x"), "credential_invalid"), (None, "credential_missing")] {
        client.post(&acquire, bearer, &[], &body).expect_problem(401, code);
    }
    // A silent Postgres costs a call its whole lock or checkout budget, above a second each.
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
    let asked = client.records(&holder, "asked", &records);
    assert!(matches!(asked.status, 503 | 504), "a good one needs Postgres: {asked:?}");
    proxy.set_mode(Mode::Pass);
    client.insist(&holder, "asked", &records, SOON).expect(200);
}

/// F31. How many good ones fit beside 5,000 refusals says how fast the machine is. So both have
/// their number to do, and neither stops before the other has done it.
#[test]
fn a_flood_of_unknown_keys_does_not_keep_a_good_client_waiting() {
    const SENDERS: usize = 4;
    const REFUSED: usize = 5_000;
    const GOOD: usize = 50;
    let world = World::new("flood");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    let forge = Forge::new(&world, &holder);
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    let before = rows::of(&world, LEASE);
    let (refused, good) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let until = Instant::now() + Duration::from_secs(60);
    let goes_on = || {
        let done = |count: &AtomicUsize, all| count.load(Ordering::Relaxed) >= all;
        Instant::now() < until && !(done(&refused, REFUSED) && done(&good, GOOD))
    };
    let slowest = std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (forge, client, refused) = (&forge, gateway.client(), &refused);
            scope.spawn(move || {
                let path = format!("/v1/leases/{LEASE}");
                for n in 0usize.. {
                    if !goes_on() {
                        return;
                    }
                    let kid = format!("{sender:08x}{n:08x}");
                    let credential = forge.headed(json!({ "kid": kid }));
                    let answer = client.get(&path, Some(&credential));
                    answer.expect_problem(401, "credential_invalid");
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut slowest = Duration::ZERO;
        while goes_on() {
            let (id, from) = (format!("good-{}", good.load(Ordering::Relaxed)), Instant::now());
            client.records(&holder, &id, &records).expect(200);
            slowest = slowest.max(from.elapsed());
            good.fetch_add(1, Ordering::Relaxed);
        }
        slowest
    });
    let (refused, good) = (refused.into_inner(), good.into_inner());
    assert!(refused >= REFUSED && good >= GOOD, "{refused} refused, {good} good in time");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert_ne!(rows::of(&world, LEASE), before, "the good ones wrote");
    assert_eq!(world.read().len(), good);
    world.audit();
}
