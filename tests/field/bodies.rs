//! F01, and the body's limit of F04: bodies that are no operation.

use crate::bench::{
    Bench, assert_member, assert_problem, ends, raw_request, read_answer, records_of,
};
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// `http.body_bytes_max`
const BODY_MAX: usize = 4_194_304;
/// The request deadline (10 s) and a second.
const BOUND: Duration = Duration::from_secs(11);

/// What must be as it was after requests that are none.
struct Untouched {
    row: String,
    data: Vec<i64>,
    ledger: Vec<i64>,
}

impl Untouched {
    fn of(bench: &Bench) -> Self {
        Self { row: bench.row(), data: ends(&bench.world.topic), ledger: ends(&bench.ledger()) }
    }

    #[track_caller]
    fn check(&self, bench: &Bench) {
        // The nonce in it: the producer, and so its epoch, is the one of before.
        assert_eq!(bench.row(), self.row);
        // An aborted transaction would have left its marks here.
        assert_eq!(ends(&bench.world.topic), self.data);
        assert_eq!(ends(&bench.ledger()), self.ledger);
        bench.assert_alive();
    }
}

/// F01
#[test]
fn a_body_that_is_not_one_json_document_is_refused_and_leaves_no_trace() {
    let bench = Bench::new("f01-documents");
    let record = json!({ "topic": bench.world.topic, "value": "v" });
    let good = json!({ "records": [record] }).to_string();
    bench.assert_good("before");
    let before = Untouched::of(&bench);
    let utf16: Vec<u8> =
        [0xfeff].into_iter().chain(good.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    let nested =
        format!("{{\"records\":[{{\"topic\":\"t\",\"value\":{{\"json\":{}", "[".repeat(10_000));
    let malformed: Vec<Vec<u8>> = vec![
        Vec::new(),
        b" ".to_vec(),
        format!("{good}{good}").into(),
        format!("{good}\n{good}").into(),
        format!("{good}x").into(),
        format!("{good},").into(),
        "[".repeat(10_000).into(),
        nested.into(),
        utf16.clone(),
        // A lone surrogate as bytes, and other bytes that are no UTF-8.
        b"{\"records\":[{\"topic\":\"t\",\"value\":\"\xed\xa0\x80\"}]}".to_vec(),
        b"\xff".to_vec(),
        good.as_bytes()[..good.len() - 1].to_vec(),
    ];
    for (k, body) in malformed.iter().enumerate() {
        let raw = bench.send(&format!("malformed-{k}"), body);
        let body = assert_problem(&raw, 400, "malformed_body");
        assert_eq!((&body["side_effect"], &body["retry"]), (&json!("none"), &json!("never")));
    }
    for kind in ["text/plain", "application/json; charset=utf-16", "application/xml", ""] {
        let raw = bench.send_as(kind, "kind", good.as_bytes());
        assert_problem(&raw, 415, "unsupported_media_type");
    }
    assert_problem(
        &bench.send_as("application/json; charset=utf-16", "kind", &utf16),
        415,
        "unsupported_media_type",
    );
    before.check(&bench);
    // No id was burnt.
    for k in 0..malformed.len() {
        bench.assert_good(&format!("malformed-{k}"));
    }
    bench.assert_good("kind");
    bench.world.audit();
}

/// F01
#[test]
fn a_document_that_is_no_operation_is_refused_by_the_name_of_what_is_wrong() {
    let bench = Bench::new("f01-members");
    let topic = &bench.world.topic;
    bench.assert_good("before");
    let before = Untouched::of(&bench);
    let record = |more: &str| format!(r#"{{"records":[{{"topic":"{topic}",{more}}}]}}"#);
    let cases: &[(&str, &str)] = &[
        ("null", ""),
        ("[]", ""),
        ("1", ""),
        ("\"records\"", ""),
        ("{}", "/records"),
        (r#"{"operation_id":"e1","records":null}"#, "/operation_id"),
        (r#"{"records":null}"#, "/records"),
        (r#"{"operation_id":"e2","records":[]}"#, "/operation_id"),
        (r#"{"operation_id":"e3","records":[{}]}"#, "/operation_id"),
        (r#"{"records":[{}]}"#, "/records/0/topic"),
        (r#"{"records":[null]}"#, "/records/0"),
        (r#"{"records":{}}"#, "/records"),
        (r#"{"recods":[]}"#, "/recods"),
        (&record("\"vlaue\":\"v\""), "/records/0/vlaue"),
        (&record("\"value\":\"v\",\"value\":\"w\""), "/records/0/value"),
        (&record(r#""value":"\ud800""#), "/records/0/value"),
        (&record(r#""value":"\udc00\ud800""#), "/records/0/value"),
        (&record(r#""value":"v","key":"\ud800""#), "/records/0/key"),
        (
            &record(r#""value":"v","headers":[{"name":"\ud800","value":""}]"#),
            "/records/0/headers/0/name",
        ),
        (r#"{"records":[{"topic":"\ud800","value":"v"}]}"#, "/records/0/topic"),
    ];
    for (k, (body, pointer)) in cases.iter().enumerate() {
        let from = Instant::now();
        let refused = assert_member(&bench.send(&format!("e-{k}"), body.as_bytes()), pointer);
        assert!(from.elapsed() < BOUND);
        assert_eq!(refused["lease"], bench.holder.lease);
    }
    for _ in 0..100 {
        assert_member(&bench.send("empty", br#"{"records":[]}"#), "/records");
    }
    before.check(&bench);
    for k in 0..cases.len() {
        bench.assert_good(&format!("e-{k}"));
    }
    bench.assert_good("empty");
    assert_eq!(records_of(topic).len(), 2 + cases.len());
    bench.world.audit();
}

/// F04 (d)
#[test]
fn a_body_one_byte_over_its_limit_is_answered_and_its_connection_lives_on() {
    let bench = Bench::new("f04-body");
    let good = json!({ "records": [{ "topic": bench.world.topic, "value": "v" }] }).to_string();
    let padded = |length: usize| format!("{good}{}", " ".repeat(length - good.len()));
    bench.send("at-the-limit", padded(BODY_MAX).as_bytes()).answer().expect(200);
    let over = padded(BODY_MAX + 1);
    let refused = assert_problem(&bench.send("over", over.as_bytes()), 413, "body_too_large");
    assert_eq!(refused["limit_bytes"], BODY_MAX);
    let head = |id: &str, more: &str| {
        format!(
            "POST {} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nIdempotency-Key: {id}\r\n\
             Content-Type: application/json\r\n{more}\r\n\r\n",
            bench.path("records"),
            bench.holder.credential
        )
    };
    // Without a length that would tell beforehand.
    let chunked = format!(
        "{}{:x}\r\n{over}\r\n0\r\n\r\n",
        head("over", "Transfer-Encoding: chunked"),
        over.len()
    );
    let raw = raw_request(bench.gateway.port, chunked.as_bytes());
    assert_problem(&raw, 413, "body_too_large");
    // On one connection: too large, then good.
    let mut stream = TcpStream::connect(("127.0.0.1", bench.gateway.port)).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    for (body, status) in [(over.as_str(), 413), (good.as_str(), 200)] {
        let head = head("over", &format!("Content-Length: {}", body.len()));
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let raw = read_answer(&mut stream);
        assert_eq!(raw.status, status, "{:?}", raw.json());
    }
    bench.assert_good("after");
    assert_eq!(records_of(&bench.world.topic).len(), 3);
}
