//! F13: odd times to live, and clocks that disagree.

mod ends;

use crate::client::{Client, Holder};
use crate::gateway::{Env, Gateway};
use crate::rows;
use crate::world::{WORKER, World, wait_for};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";
/// The limits of the world's configuration.
const TTL_MIN_MS: u64 = 2_500;
const TTL_MAX_MS: u64 = 3_600_000;

fn instant_ms(rfc3339: &Value) -> i64 {
    let instant = OffsetDateTime::parse(rfc3339.as_str().unwrap(), &Rfc3339).unwrap();
    i64::try_from(instant.unix_timestamp_nanos() / 1_000_000).unwrap()
}

/// When a grant's credential is over, in seconds.
fn credential_ends_s(granted: &Value) -> i64 {
    let credential = granted["credential"].as_str().unwrap();
    let claims = URL_SAFE_NO_PAD.decode(credential.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice::<Value>(&claims).unwrap()["exp"].as_i64().unwrap()
}

fn holder(granted: &Value) -> Holder {
    Holder {
        lease: granted["lease"].as_str().unwrap().to_owned(),
        token: granted["token"].as_str().unwrap().parse().unwrap(),
        credential: granted["credential"].as_str().unwrap().to_owned(),
    }
}

/// Sends this text as the body of a lease's call.
fn call(
    client: &Client,
    lease: &str,
    call: &str,
    bearer: &str,
    body: &str,
) -> crate::client::Answer {
    let authorization = format!("Bearer {bearer}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    client.send("POST", &format!("/v1/leases/{lease}/{call}"), &headers, body.as_bytes()).answer()
}

/// F13.
#[test]
fn a_time_to_live_outside_the_limits_is_refused_with_both_and_changes_nothing() {
    let world = World::new("ttl");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let held = client.hold(LEASE, "w", SOON);
    let before = rows::of(&world, LEASE);
    let limits = format!("a whole number from {TTL_MIN_MS} to {TTL_MAX_MS}");
    for ttl in [
        "0",
        "-1",
        "1",
        "\"30000\"",
        "30000.5",
        "null",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "-0",
        "-30000",
        "1e400",
        "30000.0",
        "3e4",
        "true",
        "[]",
        "{}",
        "\"\"",
        "2499",
        "3600001",
        "1e999999999",
    ] {
        for (lease, name, bearer, body) in [
            ("shard.new", "acquire", WORKER, format!(r#"{{"owner":"w","ttl_ms":{ttl}}}"#)),
            (LEASE, "renew", &held.credential, format!(r#"{{"ttl_ms":{ttl}}}"#)),
        ] {
            let answer = call(&client, lease, name, bearer, &body);
            let problem = answer.expect_problem(422, "invalid_member");
            assert_eq!(problem["pointer"], "/ttl_ms", "{name} {ttl}");
            assert!(problem["detail"].as_str().unwrap().contains(&limits), "{name} {problem}");
        }
    }
    let absent = call(&client, "shard.new", "acquire", WORKER, r#"{"owner":"w"}"#);
    assert_eq!(absent.expect_problem(422, "invalid_member")["pointer"], "/ttl_ms");
    assert_eq!(rows::of(&world, LEASE), before, "a refused renew changed the row");
    assert_eq!(world.sql("SELECT count(*) FROM leases"), "1", "a refused acquire left a row");
    // The limits themselves are within, and a renew that names none keeps the last one.
    for ttl_ms in [TTL_MIN_MS, TTL_MAX_MS] {
        let body = json!({ "ttl_ms": ttl_ms });
        let granted = client.acquire(&format!("shard.{ttl_ms}"), "w", body.clone()).expect(200);
        assert_eq!(granted["ttl_ms"], ttl_ms);
        let path = format!("shard.{ttl_ms}");
        let own = holder(&granted).credential;
        assert_eq!(call(&client, &path, "renew", &own, "").expect(200)["ttl_ms"], ttl_ms);
        let renewed = call(&client, LEASE, "renew", &held.credential, &body.to_string());
        assert_eq!(renewed.expect(200)["ttl_ms"], ttl_ms);
    }
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    client.records(&held, "good", &records).expect(200);
}

/// F13.
#[test]
fn renewals_never_add_up_and_no_answer_promises_more_than_the_row() {
    let world = World::new("renewals");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    // A grant as its holder must read it: the rest counts from before the request was sent.
    let check = |sent_ms: i64, granted: &Value| {
        let rest = granted["expires_in_ms"].as_i64().unwrap();
        let expires = rows::expires_ms(&world, LEASE);
        assert!(rest <= 30_000, "{granted}");
        assert!(sent_ms + rest <= expires, "{sent_ms} + {rest} > {expires}");
        assert_eq!(instant_ms(&granted["expires_at"]), expires);
        assert!(credential_ends_s(granted) * 1_000 <= expires, "{granted}");
        assert!(expires <= rows::now_ms(&world) + 30_000);
    };
    let sent = rows::now_ms(&world);
    let mut granted = client.acquire(LEASE, "w", json!({ "ttl_ms": 30_000 })).expect(200);
    check(sent, &granted);
    let first = rows::expires_ms(&world, LEASE);
    let body = r#"{"ttl_ms":30000}"#;
    for _ in 0..10 {
        let sent = rows::now_ms(&world);
        let own = holder(&granted).credential;
        granted = call(&client, LEASE, "renew", &own, body).expect(200);
        check(sent, &granted);
    }
    assert!(rows::expires_ms(&world, LEASE) > first);
    // Ten at once, from ten hands.
    let own = holder(&granted).credential;
    std::thread::scope(|scope| {
        let (client, own) = (&client, &own);
        let renew = move || call(client, LEASE, "renew", own, body).expect(200);
        let all: Vec<_> = (0..10).map(|_| scope.spawn(renew)).collect();
        all.into_iter().for_each(|one| drop(one.join().unwrap()));
    });
    assert!(rows::expires_ms(&world, LEASE) <= rows::now_ms(&world) + 30_000);
    // A shorter one shortens nothing.
    let before = rows::expires_ms(&world, LEASE);
    call(&client, LEASE, "renew", &own, r#"{"ttl_ms":2500}"#).expect(200);
    assert_eq!(rows::expires_ms(&world, LEASE), before);
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    client.records(&holder(&granted), "good", &records).expect(200);
}

/// Makes a gateway's wall clock wrong by this, and leaves its monotonic clock right.
fn clock(offset_s: i64) -> Env {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wall_clock.so");
        let made = library.with_extension(std::process::id().to_string());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/wall_clock.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&made).arg(source);
        let out = cc.output().expect("a C compiler, which deploy/local/install installs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        fs::rename(&made, &library).unwrap();
        library
    });
    vec![
        ("LD_PRELOAD", BUILT.to_str().unwrap().to_owned()),
        ("WALL_CLOCK_OFFSET_S", offset_s.to_string()),
    ]
}

/// How far a gateway's own wall clock is ahead of ours, in seconds: by the first line of its log.
fn ahead_s(gateway: &Gateway, started_s: i64) -> i64 {
    let log = gateway.log();
    let first: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    instant_ms(&first["timestamp"]) / 1_000 - started_s
}

/// F13.
#[test]
fn only_the_databases_clock_says_when_a_lease_is_over() {
    let world = World::new("clocks");
    let started = rows::now_s(&world);
    let g1 = world.gateway_with("g1", clock(180));
    let g2 = world.gateway_with("g2", clock(-180));
    let (c1, c2) = (g1.client(), g2.client());
    for (gateway, offset) in [(&g1, 180), (&g2, -180)] {
        let ahead = ahead_s(gateway, started);
        assert!((ahead - offset).abs() < 60, "the clock of the gateway is not faked: {ahead}");
    }
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    let sent = rows::now_ms(&world);
    let granted = c1.acquire(LEASE, "w", json!({ "ttl_ms": 10_000 })).expect(200);
    let own = holder(&granted);
    let expires = rows::expires_ms(&world, LEASE);
    assert!(granted["expires_in_ms"].as_i64().unwrap() <= 10_000);
    assert!((sent + 10_000..=rows::now_ms(&world) + 10_000).contains(&expires));
    assert!(credential_ends_s(&granted) * 1_000 <= expires);
    rows::wait_left(&world, LEASE, 5_000);
    for (client, id) in [(&c2, "by-g2"), (&c1, "by-g1")] {
        let held = client.acquire(LEASE, "other", json!({})).expect_problem(409, "lease_held");
        assert!(held["expires_in_ms"].as_i64().unwrap() <= 5_000, "{held}");
        client.records(&own, id, &records).expect(200);
        let seen = client.get(&format!("/v1/leases/{LEASE}"), Some(&own.credential)).expect(200);
        assert_eq!(seen["state"], "held");
        let renewed = call(client, LEASE, "renew", &own.credential, r#"{"ttl_ms":2500}"#);
        let renewed = instant_ms(&renewed.expect(200)["expires_at"]);
        assert!(renewed <= expires.max(rows::now_ms(&world) + 2_500), "{renewed} by {id}");
    }
    // Over is over for both, too, at the same instant.
    rows::wait_left(&world, LEASE, 0);
    for client in [&c1, &c2] {
        client.renew(&own).expect_problem(412, "lease_expired");
        client.records(&own, "late", &records).expect_problem(412, "lease_expired");
    }
    let new = c2.acquire(LEASE, "other", json!({ "ttl_ms": 60_000 })).expect(200);
    let new = holder(&new);
    for (client, id) in [(&c1, "new-by-g1"), (&c2, "new-by-g2")] {
        client.records(&own, "late", &records).expect_problem(412, "stale_token");
        wait_for("the new holder writes", SOON, || {
            let answer = client.records(&new, id, &records);
            (answer.status == 200).then_some(())
        });
    }
    assert_eq!(world.read().len(), 4);
    world.audit();
}
