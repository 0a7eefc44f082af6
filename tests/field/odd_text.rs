//! F09: marks, markup and look-alikes in every string that comes from outside.

use crate::bench::{Bench, SOON, assert_member, assert_problem, raw_request, records_of};
use crate::chaos_proxy::Mode;
use crate::client::Raw;
use crate::proxies::postgres_proxy;
use crate::world::{OPS, Options, WORKER, wait_for};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

const MARKUP: &str = "<img src=x onerror=alert(1)>";
const COMPOSED: &str = "caf\u{e9}";
const DECOMPOSED: &str = "cafe\u{301}";
/// What nobody may send where a text is printable.
const MARKS: &[&str] = &[
    "x\0y",
    "x\r\nSet-Cookie: a=b",
    "x\ny",
    "\u{1b}[2J",
    "x\u{7f}y",
    "\u{202e}x",
    "x\u{2028}y",
    "x\u{85}y",
    "x ",
    " x",
    "x\u{a0}",
    "x\u{200d}y",
    "x\u{feff}y",
    "x\u{e0041}y",
    "",
];
/// What nobody may send where a text is of a few letters, besides.
const LETTERS: &[&str] = &[MARKUP, COMPOSED, DECOMPOSED, "x y", "\u{430}", "a/b", "a:b"];
const ALPHABET: &str = "A-Z a-z 0-9 . _ -";
/// Nothing is waited for.
const AT_ONCE: Duration = Duration::from_secs(1);

fn narrow() -> impl Iterator<Item = &'static str> {
    MARKS.iter().chain(LETTERS).copied()
}

fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' => out.push(char::from(byte)),
            _ => write!(out, "%{byte:02X}").unwrap(),
        }
        out
    })
}

/// A refusal whose detail says what is allowed, and which shows nothing raw.
#[track_caller]
fn assert_refused(raw: &Raw, rule: &str) -> Value {
    let refused = assert_problem(raw, 422, "invalid_member");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains(rule), "{detail}");
    assert_eq!(refused["side_effect"], "none");
    assert!(!raw.body.iter().any(u8::is_ascii_control), "{:?}", raw.body);
    refused
}

/// Every line of the log is one event, and nothing in it acts on a terminal.
fn assert_log_is_whole(bench: &Bench) {
    let log = bench.gateway.log();
    assert!(!log.is_empty());
    for line in log.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(event["timestamp"].is_string() && event["level"].is_string(), "{line}");
    }
    let acts = |c: &char| *c != '\n' && (c.is_control() || "\u{202e}\u{2028}\u{200d}".contains(*c));
    assert_eq!(log.chars().find(acts), None);
    assert!(!log.contains("Set-Cookie") && !log.contains(MARKUP), "{log}");
}

fn lease_paths(bench: &Bench) {
    let bearer = |token: &str| format!("Bearer {token}");
    let acquire = json!({ "owner": "worker", "ttl_ms": 5_000 }).to_string();
    let calls = [
        ("POST", "/acquire", WORKER, acquire.as_str()),
        ("POST", "/renew", &bench.holder.credential, "{}"),
        ("POST", "/release", &bench.holder.credential, "{}"),
        ("POST", "/records", &bench.holder.credential, "{\"records\":[]}"),
        ("GET", "", OPS, ""),
    ];
    let names = narrow().chain([".", ".."]).map(percent);
    for name in names.chain(["%FF".to_owned(), "x%ED%A0%80".to_owned()]) {
        for (method, call, token, body) in calls {
            if name.is_empty() && method == "GET" {
                // No lease's path.
                continue;
            }
            let token = bearer(token);
            let headers = [
                ("Authorization", token.as_str()),
                ("Idempotency-Key", "o"),
                ("Content-Type", "application/json"),
            ];
            let path = format!("/v1/leases/{name}{call}");
            let raw = bench.client.send(method, &path, &headers, body.as_bytes());
            assert_eq!(assert_refused(&raw, ALPHABET)["parameter"], "lease", "{path}");
        }
    }
}

fn acquire(bench: &Bench, lease: &str, body: &Value) -> Raw {
    let token = format!("Bearer {WORKER}");
    let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
    let path = format!("/v1/leases/{lease}/acquire");
    bench.client.send("POST", &path, &headers, body.to_string().as_bytes())
}

fn owners_and_request_ids(bench: &Bench) {
    for owner in MARKS {
        let raw = acquire(bench, "shard.8", &json!({ "owner": owner, "ttl_ms": 5_000 }));
        assert_refused(&raw, "printable text");
        assert_member(&raw, "/owner");
    }
    for id in narrow().filter(|id| !matches!(*id, "a/b" | "a:b")) {
        let body = json!({ "owner": "worker", "ttl_ms": 5_000, "request_id": id });
        let raw = acquire(bench, "shard.8", &body);
        assert_refused(&raw, "visible ASCII");
        assert_member(&raw, "/request_id");
    }
}

fn topics_and_headers(bench: &Bench) {
    for topic in narrow() {
        let raw = bench.post("odd", &json!([{ "topic": topic, "value": "" }]));
        assert_refused(&raw, ALPHABET);
        assert_member(&raw, "/records/0/topic");
    }
    for name in MARKS {
        let headers = json!([{ "name": "h", "value": "" }, { "name": name, "value": "" }]);
        let records = json!([{ "topic": bench.world.topic, "value": "", "headers": headers }]);
        let raw = bench.post("odd", &records);
        assert_refused(&raw, "printable text");
        assert_member(&raw, "/records/0/headers/1/name");
    }
    // A member's name comes back only if all of it can be seen.
    for name in MARKS {
        let raw = bench.send("odd", json!({ *name: 1 }).to_string().as_bytes());
        assert_refused(&raw, "unknown member");
        assert_member(&raw, if name.is_empty() { "/" } else { "" });
    }
}

/// An operation id stands in a header: some of the marks cannot be in any.
fn operation_ids(bench: &Bench) {
    let request = |id: &[u8]| {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: 2\r\n\
             Content-Type: application/json\r\nIdempotency-Key: ",
            bench.path("records"),
            bench.holder.credential
        );
        raw_request(bench.gateway.port, &[head.as_bytes(), id, b"\r\n\r\n{}"].concat())
    };
    let long = "x".repeat(201);
    for id in [MARKUP, COMPOSED, DECOMPOSED, "x y", "\u{202e}x", "x\u{200d}y", "x\ty", "", &long] {
        let refused = assert_refused(&request(id.as_bytes()), "1 to 200 visible ASCII");
        assert_eq!(refused["parameter"], "Idempotency-Key", "{id:?}");
    }
    assert_refused(&request(b"\xff"), "1 to 200 visible ASCII");
    for id in ["x\0y", "\u{1b}[2J", "x\u{7f}y", "x\ry"] {
        // No request at all: the connection's own answer.
        let raw = request(id.as_bytes());
        assert_eq!((raw.status, raw.header("set-cookie")), (400, None), "{id:?}");
    }
    // White space around a header's value is not part of it, and a line of its own is a header of
    // its own, of the request.
    for id in ["x ", " x", "x\r\nSet-Cookie: a=b"] {
        assert_member(&request(id.as_bytes()), "/records");
    }
}

/// F09
#[test]
fn a_text_with_marks_in_it_is_refused_by_its_rule_and_postgres_is_never_asked() {
    let (proxy, address) = postgres_proxy();
    let postgres = Some(address);
    let bench = Bench::with("f09-marks", Options { postgres, ..Options::default() });
    bench.assert_good("before");
    // Whoever asked it would get no 422.
    proxy.set_mode(Mode::Refuse);
    for check in [lease_paths, owners_and_request_ids, topics_and_headers, operation_ids] {
        let from = Instant::now();
        check(&bench);
        assert!(from.elapsed() < 5 * AT_ONCE, "{:?}", from.elapsed());
    }
    let raw = bench.post("good", &json!([{ "topic": bench.world.topic, "value": "" }]));
    assert!(matches!(raw.status, 503 | 504), "{:?}", raw.json());
    proxy.set_mode(Mode::Pass);
    wait_for("Postgres is back", SOON, || {
        let raw = bench.post("good", &json!([{ "topic": bench.world.topic, "value": "" }]));
        (raw.status == 200).then_some(())
    });
    bench.assert_good("odd");
    assert_eq!(bench.world.sql("SELECT count(*) FROM fences"), "1");
    assert_eq!(records_of(&bench.world.topic).len(), 3);
    assert_log_is_whole(&bench);
}

/// F09
#[test]
fn owners_that_look_alike_are_two_owners_and_markup_is_only_text() {
    let bench = Bench::new("f09-owners");
    let lease = "shard.8";
    let ask = |owner: &str, more: Value| {
        let mut body = json!({ "owner": owner, "ttl_ms": 600_000 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        acquire(&bench, lease, &body)
    };
    for (id, holder, other) in
        [("r1", COMPOSED, DECOMPOSED), ("r2", DECOMPOSED, COMPOSED), ("r3", MARKUP, "<img>")]
    {
        let raw = ask(holder, json!({ "request_id": id }));
        assert_eq!(raw.header("content-type"), Some("application/json"), "{}", raw.json());
        assert_eq!(raw.header("x-content-type-options"), Some("nosniff"));
        let granted = raw.answer().expect(200);
        assert_eq!(granted["owner"], holder);
        // Not by the same request id, and not by replacing what is its own.
        for more in [json!({}), json!({ "request_id": id }), json!({ "replace": true })] {
            let held = assert_problem(&ask(other, more), 409, "lease_held");
            assert_eq!(held["holder"], holder);
        }
        let seen = bench.client.get(&format!("/v1/leases/{lease}"), Some(OPS)).expect(200);
        assert_eq!((&seen["owner"], &seen["token"]), (&granted["owner"], &granted["token"]));
        let again = ask(holder, json!({ "request_id": id })).answer().expect(200);
        assert_eq!(again["token"], granted["token"]);
        let held = crate::client::Holder {
            lease: lease.to_owned(),
            token: granted["token"].as_str().unwrap().parse().unwrap(),
            credential: granted["credential"].as_str().unwrap().to_owned(),
        };
        let records = json!([{ "topic": bench.world.topic, "value": holder }]);
        bench.client.records(&held, &format!("by-{}", held.token), &records).expect(200);
        bench.client.release(&held).expect(200);
    }
    bench.assert_good("after");
    assert_eq!(records_of(&bench.world.topic).len(), 4);
    assert_log_is_whole(&bench);
}
