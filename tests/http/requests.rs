//! What is read of a request, and what is refused of it.

use crate::support::{
    BODY_MAX, Call, GOOD, WORKER, acquire, answer, credential, expect, gateway, produce, refused,
};
use axum::http::StatusCode;
use fencepost::http::{admin_router, data_router};
use serde_json::json;
use std::sync::Arc;

#[tokio::test]
async fn an_unknown_path_and_a_wrong_method_are_problems_too() {
    let gateway = gateway();
    for path in ["/", "/v1", "/v1/leases/", "/v1/leases/a/b/acquire", "/livez"] {
        let call = Call::new("GET", path);
        assert_eq!(refused(&gateway, call).await, expect(404, "path_not_found"), "{path}");
    }
    let wrong = Call::new("GET", "/v1/leases/matter.7/acquire");
    let answer = answer(data_router(gateway), wrong).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (405, "method_not_allowed"));
    assert_eq!(answer.headers["allow"], "POST");
}

#[tokio::test]
async fn a_call_that_takes_no_parameters_refuses_any() {
    let gateway = gateway();
    let own = credential(&gateway, "matter.7");
    for (method, call) in [
        ("POST", "acquire"),
        ("POST", "renew"),
        ("POST", "release"),
        ("POST", "records"),
        ("GET", ""),
    ] {
        let path = format!("/v1/leases/matter.7/{call}");
        let path = path.trim_end_matches('/');
        let token = if call == "acquire" { WORKER } else { &own };
        let call = Call::new(method, &format!("{path}?wait_ms=5")).bearer(token);
        let call = call.with("idempotency-key", "a").json(if method == "GET" { "" } else { GOOD });
        let answer = answer(data_router(Arc::clone(&gateway)), call).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (422, "invalid_member"), "{path}");
        assert_eq!(
            (&answer.body["parameter"], &answer.body["lease"]),
            (&json!("query"), &json!("matter.7"))
        );
    }
}

#[tokio::test]
async fn a_lease_name_outside_the_alphabet_is_refused_before_anything_else() {
    let gateway = gateway();
    for name in [
        "",
        "a%2Fb",
        "a%20b",
        "caf%C3%A9",
        "cafe%CC%81",
        "x%00y",
        "x%0D%0ASet-Cookie:%20a=b",
        "%E2%80%AE",
        "%FF",
        "a:b",
        "%20",
        &"a".repeat(201),
    ] {
        let call = Call::new("POST", &format!("/v1/leases/{name}/acquire")).bearer(WORKER);
        let answer = answer(data_router(Arc::clone(&gateway)), call).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (422, "invalid_member"), "{name}");
        assert_eq!(answer.body["parameter"], "lease");
        assert!(!answer.headers.contains_key("set-cookie"));
    }
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused_and_reaches_no_engine() {
    let gateway = gateway();
    let deep = "[".repeat(10_000);
    let twice = format!("{GOOD}{GOOD}");
    let more = format!("{GOOD}x");
    let malformed =
        [&b""[..], deep.as_bytes(), b"\xff\xfe{\0}\0", twice.as_bytes(), more.as_bytes()];
    for body in malformed {
        let call = produce(&gateway).json(body);
        assert_eq!(refused(&gateway, call).await, expect(400, "malformed_body"));
    }
    for (body, pointer) in [
        ("null", ""),
        ("[]", ""),
        ("{}", "/records"),
        (r#"{"operation_id":"e1","records":null}"#, "/operation_id"),
        (r#"{"records":[]}"#, "/records"),
        (r#"{"records":[{}]}"#, "/records/0/topic"),
        (r#"{"records":[{"topic":"t","value":"\ud800"}]}"#, "/records/0/value"),
        (r#"{"recods":[]}"#, "/recods"),
    ] {
        let answer = answer(data_router(Arc::clone(&gateway)), produce(&gateway).json(body)).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (422, "invalid_member"), "{body}");
        assert_eq!(answer.body["pointer"], pointer);
        assert_eq!(answer.body["side_effect"], "none");
        assert_eq!(answer.body["lease"], "matter.7");
    }
}

#[tokio::test]
async fn only_plain_json_is_read() {
    let gateway = gateway();
    let unsupported = expect(415, "unsupported_media_type");
    for kind in ["text/plain", "application/json; charset=utf-16", ""] {
        let mut call = produce(&gateway).with("content-type", kind);
        call.body = GOOD.into();
        assert_eq!(refused(&gateway, call).await, unsupported, "{kind}");
    }
    let mut without = produce(&gateway);
    without.body = GOOD.into();
    assert_eq!(refused(&gateway, without).await, unsupported);
    let twice = produce(&gateway).json(GOOD).with("content-type", "application/json");
    assert_eq!(refused(&gateway, twice).await, unsupported);
    let packed = produce(&gateway).json(GOOD).with("content-encoding", "gzip");
    assert_eq!(refused(&gateway, packed).await, unsupported);
    let large = produce(&gateway).json(vec![b' '; BODY_MAX + 1]);
    assert_eq!(refused(&gateway, large).await, expect(413, "body_too_large"));
}

#[tokio::test]
async fn every_post_of_records_carries_one_durable_id() {
    let gateway = gateway();
    let plain = || {
        let call = Call::new("POST", "/v1/leases/matter.7/records");
        call.bearer(&credential(&gateway, "matter.7")).json(GOOD)
    };
    let missing = expect(400, "missing_idempotency_key");
    assert_eq!(refused(&gateway, plain()).await, missing);
    let twice = plain().with("idempotency-key", "a").with("idempotency-key", "a");
    assert_eq!(refused(&gateway, twice).await, missing);
    let long = "a".repeat(201);
    for bad in ["", "a b", "é", long.as_str()] {
        let call = plain().with("idempotency-key", bad);
        assert_eq!(refused(&gateway, call).await, expect(422, "invalid_member"), "{bad:?}");
    }
}

#[tokio::test]
async fn a_topic_that_is_ours_or_not_served_is_refused() {
    let gateway = gateway();
    for topic in ["__transaction_state", "__consumer_offsets", "fencepost.ledger", "other"] {
        let records = json!({"records": [
            {"topic": "demo.a", "value": "v"},
            {"topic": topic, "value": "v"},
        ]});
        let call = produce(&gateway).json(records.to_string());
        let answer = answer(data_router(Arc::clone(&gateway)), call).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (403, "topic_not_allowed"), "{topic}");
        assert_eq!(answer.body["index"], 1);
    }
}

/// Sends one call of a holder and expects 200.
async fn good(gateway: &Arc<fencepost::http::Gateway>, call: Call) -> serde_json::Value {
    let answer = answer(data_router(Arc::clone(gateway)), call).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    answer.body
}

#[tokio::test]
async fn a_lease_is_taken_used_renewed_and_given_back() {
    let gateway = gateway();
    let granted = good(&gateway, acquire().json(r#"{"owner":"indexer-17","ttl_ms":30000}"#)).await;
    assert_eq!(granted["transactional_id"], "fencepost:test:matter.7");
    assert!(granted["expires_in_ms"].as_u64().unwrap() <= 30_000);
    let own = granted["credential"].as_str().unwrap().to_owned();
    let on = |path: &str| Call::new("POST", &format!("/v1/leases/matter.7/{path}")).bearer(&own);
    let post = || on("records").with("idempotency-key", "op-1").json(GOOD);
    let first = good(&gateway, post()).await;
    assert_eq!((&first["replayed"], &first["batch_seq"]), (&json!(false), &json!(1)));
    let again = good(&gateway, post()).await;
    assert_eq!((&again["replayed"], &again["offsets"]), (&json!(true), &first["offsets"]));
    let renewed = good(&gateway, on("renew").json(r#"{"ttl_ms":60000}"#)).await;
    assert_eq!((&renewed["token"], &renewed["ttl_ms"]), (&granted["token"], &json!(60_000)));
    let seen = good(&gateway, Call::new("GET", "/v1/leases/matter.7").bearer(&own)).await;
    assert_eq!((&seen["state"], &seen["batch_seq"]), (&json!("held"), &json!(1)));
    for _ in 0..2 {
        assert_eq!(good(&gateway, on("release")).await["released"], true);
    }
    let late = on("records").with("idempotency-key", "op-2").json(GOOD);
    let late = answer(data_router(Arc::clone(&gateway)), late).await;
    assert_eq!((late.status.as_u16(), late.code()), (412, "lease_released"));
    assert_eq!(late.body["side_effect"], "none");
}

#[tokio::test]
async fn a_gateway_that_stops_says_so_and_names_when_to_come_back() {
    let gateway = gateway();
    gateway.engine.stop_accepting();
    let call = produce(&gateway).json(GOOD);
    let answer = answer(data_router(Arc::clone(&gateway)), call).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (503, "shutting_down"));
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.body["side_effect"], "maybe");
}

#[tokio::test]
async fn readiness_names_each_dependency() {
    let gateway = gateway();
    gateway.engine.stop_accepting();
    let router = admin_router(gateway);
    let ready = answer(router.clone(), Call::new("GET", "/readyz")).await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    let expected = json!({
        "ready": false, "postgres": true, "kafka": true, "ledger": true, "accepting": false,
    });
    assert_eq!(ready.body, expected);
    let live = answer(router.clone(), Call::new("GET", "/livez")).await;
    assert_eq!(live.body, json!({"live": true}));
    let version = answer(router.clone(), Call::new("GET", "/version")).await.body;
    assert_eq!((&version["name"], &version["installation"]), (&json!("fencepost"), &json!("test")));
    assert_eq!(version["instance"], "07070707-0707-0707-0707-070707070707");
    let data = answer(router, Call::new("GET", "/v1/leases/matter.7")).await;
    assert_eq!(data.code(), "path_not_found");
}
