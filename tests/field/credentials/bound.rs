//! F32: a right signature for the wrong lease, and tokens that no lease has.

use super::forge::{Forge, read};
use crate::client::{Answer, Client, Holder};
use crate::rows;
use crate::world::World;
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const A: &str = "matter.a";
const B: &str = "matter.b";

fn records(world: &World) -> Value {
    json!([{ "topic": world.topic, "value": "v" }])
}

/// A holder's calls with another credential, or on another lease's path.
fn calls(client: &Client, holder: &Holder, records: &Value) -> Vec<Answer> {
    vec![client.records(holder, "foreign", records), client.renew(holder), client.release(holder)]
}

/// What tokens are drawn from, and whether it has been touched.
fn sequence(world: &World) -> String {
    world.sql("SELECT last_value, is_called FROM fencing_tokens")
}

/// F32.
#[test]
fn a_credential_of_one_lease_does_nothing_to_another() {
    let world = World::new("bound");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let (a, b) = (client.hold(A, "w", SOON), client.hold(B, "w", SOON));
    let records = records(&world);
    let before = (rows::of(&world, A), rows::of(&world, B));
    let crossed = Holder { lease: B.to_owned(), ..a.clone() };
    for answer in calls(&client, &crossed, &records) {
        let problem = answer.expect_problem(403, "wrong_lease");
        assert_eq!((&problem["retry"], &problem["lease"]), (&json!("never"), &json!(B)));
    }
    let path = format!("/v1/leases/{B}");
    client.get(&path, Some(&a.credential)).expect_problem(403, "wrong_lease");
    // The path alone says which lease: a body can neither repeat nor contradict it.
    let bearer = Some(b.credential.as_str());
    let key = [("Idempotency-Key", "foreign")];
    for (call, body, pointer) in [
        ("records", json!({ "lease": A, "records": records }), "/lease"),
        ("records", json!({ "token": a.token.to_string(), "records": records }), "/token"),
        ("records", json!({ "owner": "v", "records": records }), "/owner"),
        ("renew", json!({ "lease": A }), "/lease"),
        ("renew", json!({ "owner": "v" }), "/owner"),
        ("renew", json!({ "owner": "w" }), "/owner"),
        ("renew", json!({ "token": "1", "ttl_ms": 60_000 }), "/token"),
        ("release", json!({ "lease": A }), "/lease"),
        ("release", json!({ "owner": "v" }), "/owner"),
    ] {
        let answer = client.post(&format!("{path}/{call}"), bearer, &key, &body);
        let problem = answer.expect_problem(422, "invalid_member");
        assert_eq!(problem["pointer"], pointer, "{call} {body}");
        assert!(problem["detail"].as_str().unwrap().contains("unknown member"), "{problem}");
    }
    let acquire = json!({ "owner": "w", "ttl_ms": 60_000, "lease": A });
    let answer = client.post(&format!("{path}/acquire"), Some(crate::world::WORKER), &[], &acquire);
    assert_eq!(answer.expect_problem(422, "invalid_member")["pointer"], "/lease");
    // Well signed for B, but for another owner or another history than the row's.
    let forge = Forge::new(&world, &b);
    for other in [json!({ "sub": "v" }), json!({ "inc": 7 })] {
        let other = Holder { credential: forge.claiming(other), ..b.clone() };
        for answer in calls(&client, &other, &records) {
            let problem = answer.expect_problem(412, "stale_token");
            assert_eq!(problem["side_effect"], "maybe");
        }
    }
    assert_eq!((rows::of(&world, A), rows::of(&world, B)), before, "no row moved");
    client.records(&a, "good", &records).expect(200);
    client.records(&b, "good", &records).expect(200);
    assert_eq!(world.read().len(), 2);
    world.audit();
}

/// F32.
#[test]
fn a_well_signed_token_that_was_never_installed_moves_no_row_and_is_alerted() {
    let world = World::new("ahead");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let client = g1.client();
    let (a, b) = (client.hold(A, "w", SOON), client.hold(B, "w", SOON));
    let (records, forge) = (records(&world), Forge::new(&world, &a));
    let before = (rows::of(&world, A), rows::of(&world, B), sequence(&world));
    let next = b.token.max(a.token) + 1;
    // One that stands in B's row, the next one to be drawn, and the last there can be.
    for token in [b.token, next, 9_007_199_254_740_993, 9_223_372_036_854_775_807] {
        assert!(token > a.token);
        let credential = forge.claiming(json!({ "token": token.to_string() }));
        let ahead = Holder { credential, ..a.clone() };
        // G1 has the lease open, G2 has not.
        for client in [&client, &g2.client()] {
            for answer in calls(client, &ahead, &records) {
                let problem = answer.expect_problem(503, "quarantined");
                assert_eq!(
                    (&problem["retry"], &problem["side_effect"]),
                    (&json!("later"), &json!("maybe"))
                );
            }
        }
    }
    for log in [g1.log(), g2.log()] {
        let told = log.lines().filter(|l| l.contains("9223372036854775807"));
        let told: Vec<&str> = told.collect();
        assert!(told.iter().any(|l| l.contains(r#""level":"ERROR""#)), "an alert: {told:?}");
    }
    for token in [
        json!("0"),
        json!("-1"),
        json!("9223372036854775808"),
        json!("18446744073709551617"),
        json!(format!("0{}", a.token)),
        json!(format!("+{}", a.token)),
        json!(format!("{}.0", a.token)),
        json!(format!(" {}", a.token)),
        json!(a.token),
        json!(0),
        json!(-1),
        json!(9_223_372_036_854_775_807u64),
        json!(""),
        json!([]),
    ] {
        let credential = forge.claiming(json!({ "token": token }));
        let unread = Holder { credential, ..a.clone() };
        for answer in calls(&client, &unread, &records) {
            let shown = format!("{token}: {answer:?}");
            assert_eq!((answer.status, answer.code()), (401, "credential_invalid"), "{shown}");
        }
    }
    let after = (rows::of(&world, A), rows::of(&world, B), sequence(&world));
    assert_eq!(after, before, "no row moved and no token was drawn");
    client.records(&a, "good", &records).expect(200);
    client.records(&b, "good", &records).expect(200);
    assert_eq!(world.read().len(), 2);
    // The number that was claimed too early is drawn and installed like any other.
    let c = client.hold("matter.c", "w", SOON);
    assert_eq!(c.token, next);
    client.records(&c, "good", &records).expect(200);
    world.audit();
}

/// Reads a body as a JavaScript client would: every member that is text, as it comes out, and
/// whether every number survived.
fn in_javascript(body: &[u8]) -> Value {
    const SCRIPT: &str = r"
        const body = JSON.parse(require('fs').readFileSync(0, 'utf8'));
        const numbers = Object.values(body).filter((v) => typeof v === 'number');
        const claims = body.credential
            ? JSON.parse(Buffer.from(body.credential.split('.')[1], 'base64url'))
            : {};
        console.log(JSON.stringify({
            token: String(body.token),
            current: String(body.current_token),
            claimed: String(claims.token),
            plus: body.token + 0,
            safe: numbers.every(Number.isSafeInteger),
        }));";
    let mut node = Command::new("node")
        .args(["-e", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node, which deploy/local/install installs");
    node.stdin.take().unwrap().write_all(body).unwrap();
    let out = node.wait_with_output().unwrap();
    assert!(out.status.success());
    serde_json::from_slice(&out.stdout).unwrap()
}

/// F32.
#[test]
fn a_token_above_what_javascript_counts_to_survives_every_reader() {
    let world = World::new("large");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let records = records(&world);
    world.sql("SELECT setval('fencing_tokens', 9007199254740992)");
    let authorization = format!("Bearer {}", crate::world::WORKER);
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    let acquire = |lease: &str| {
        let path = format!("/v1/leases/{lease}/acquire");
        let raw = client.send("POST", &path, &headers, br#"{"owner":"w","ttl_ms":60000}"#);
        assert_eq!(raw.status, 200, "{raw:?}");
        raw
    };
    let mut held = Vec::new();
    for (lease, token) in [(A, 9_007_199_254_740_993u64), (B, 9_007_199_254_740_994)] {
        let raw = acquire(lease);
        let text = token.to_string();
        let expected = json!({
            "token": text, "claimed": text, "current": "undefined", "plus": format!("{text}0"),
            "safe": true,
        });
        assert_eq!(in_javascript(&raw.body), expected, "{:?}", raw.json());
        let row = world.sql(&format!("SELECT token FROM fences WHERE lease = '{lease}'"));
        assert_eq!(row, text);
        let credential = raw.json()["credential"].as_str().unwrap().to_owned();
        assert_eq!(read(&credential, 1)["token"], text);
        let holder = Holder { lease: lease.to_owned(), token, credential };
        let written = client.records(&holder, "op", &records).expect(200);
        assert_eq!(written["token"], text);
        held.push(holder);
    }
    let seen = world.read();
    let tokens: Vec<u64> = seen.iter().map(|s| s.token).collect();
    assert!(held.iter().all(|h| tokens.contains(&h.token)), "in the records' headers: {tokens:?}");
    // The neighbour in numbers is no neighbour in rights, also where both round to one.
    rows::expire(&world, A);
    let new = client.hold(A, "successor", SOON);
    assert_eq!(new.token, 9_007_199_254_740_995);
    let stale = client.records(&held[0], "late", &records).expect_problem(412, "stale_token");
    let read = in_javascript(stale.to_string().as_bytes());
    assert_eq!(read["current"], "9007199254740995");
    client.records(&new, "good", &records).expect(200);
    world.audit();
}

/// F32. There are no notices at all: G2 learns of the takeover from the row, or not at all.
#[test]
fn a_gateway_that_was_told_nothing_refuses_the_old_credential_at_its_first_request() {
    let world = World::new("unnoticed");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let (c1, c2) = (g1.client(), g2.client());
    let records = records(&world);
    // On A, G2 has the old holder's producer open; on B it has never heard of the lease.
    let (old_a, old_b) = (c2.hold(A, "old", SOON), c1.hold(B, "old", SOON));
    c2.records(&old_a, "first", &records).expect(200);
    c1.records(&old_b, "first", &records).expect(200);
    for (lease, old) in [(A, old_a), (B, old_b)] {
        rows::expire(&world, lease);
        let new = c1.hold(lease, "new", SOON);
        let before = rows::of(&world, lease);
        let problem = c2.records(&old, "late", &records).expect_problem(412, "stale_token");
        assert_eq!(problem["side_effect"], "none");
        assert_eq!(problem["current_token"], new.token.to_string());
        c2.renew(&old).expect_problem(412, "stale_token");
        c2.release(&old).expect_problem(412, "stale_token");
        assert_eq!(rows::of(&world, lease), before, "{lease}: no row moved");
        c1.records(&new, "good-1", &records).expect(200);
        c2.records(&new, "good-2", &records).expect(200);
    }
    let seen = world.read();
    assert!(seen.iter().all(|s| s.operation != "late"), "{seen:?}");
    world.audit();
}
