//! Holds the catalogue against README's table, and a refusal's answer against its promises.

use super::*;
use crate::protocol::lease::Owner;
use crate::protocol::refusal::RecordRefused;
use serde_json::Value;

/// Status, code, retry: README's table, and the three codes that any HTTP server needs.
const TABLE: &[(u16, &str, &str)] = &[
    (400, "malformed_body", "never"),
    (400, "missing_idempotency_key", "never"),
    (401, "credential_missing", "never"),
    (401, "credential_invalid", "never"),
    (401, "credential_expired", "reacquire"),
    (403, "wrong_lease", "never"),
    (403, "topic_not_allowed", "never"),
    (403, "not_allowed", "never"),
    (404, "lease_not_found", "never"),
    (404, "topic_not_found", "never"),
    (404, "partition_not_found", "never"),
    (408, "slow_body", "same_key"),
    (413, "body_too_large", "never"),
    (413, "record_too_large", "never"),
    (415, "unsupported_media_type", "never"),
    (409, "lease_held", "later"),
    (409, "operation_in_flight", "same_key"),
    (412, "stale_token", "reacquire"),
    (412, "lease_expired", "reacquire"),
    (412, "lease_released", "reacquire"),
    (421, "homed_elsewhere", "same_key"),
    (422, "operation_conflict", "never"),
    (422, "operation_too_old", "never"),
    (422, "invalid_member", "never"),
    (429, "busy", "same_key"),
    (503, "postgres_unavailable", "same_key"),
    (503, "kafka_unavailable", "same_key"),
    (503, "producer_fenced", "same_key"),
    (503, "shutting_down", "same_key"),
    (503, "quarantined", "later"),
    (503, "kafka_denied", "never"),
    (504, "outcome_unknown", "same_key"),
    (404, "path_not_found", "never"),
    (405, "method_not_allowed", "never"),
    (500, "internal_error", "same_key"),
];

fn body(problem: &Problem) -> Value {
    serde_json::from_slice(&problem.document()).unwrap()
}

fn every_refusal() -> Vec<(Refusal, &'static str)> {
    use Refusal as R;
    let (current, side_effect) = (FencingToken(7), SideEffect::Maybe);
    let record = |why| R::Record { index: 2, why, side_effect: SideEffect::None };
    let resource = || "topic demo: write".to_owned();
    vec![
        (R::LeaseNotFound, "lease_not_found"),
        (R::LeaseHeld { holder: Owner::parse("a").unwrap(), expires_in_ms: 1 }, "lease_held"),
        (R::StaleToken { current, side_effect }, "stale_token"),
        (R::LeaseExpired { current, side_effect }, "lease_expired"),
        (R::LeaseReleased { current, side_effect }, "lease_released"),
        (R::CredentialExpired, "credential_expired"),
        (R::CredentialNotYet, "credential_invalid"),
        (R::OperationConflict, "operation_conflict"),
        (R::OperationTooOld, "operation_too_old"),
        (R::OperationAhead, "invalid_member"),
        (R::OperationInFlight, "operation_in_flight"),
        (record(RecordRefused::TooLarge { limit_bytes: Some(9) }), "record_too_large"),
        (record(RecordRefused::TopicNotFound), "topic_not_found"),
        (record(RecordRefused::PartitionNotFound), "partition_not_found"),
        (record(RecordRefused::Denied { resource: resource() }), "kafka_denied"),
        (record(RecordRefused::Timestamp), "invalid_member"),
        (record(RecordRefused::Invalid), "invalid_member"),
        (R::Quarantined, "quarantined"),
        (R::PostgresUnavailable, "postgres_unavailable"),
        (R::KafkaUnavailable, "kafka_unavailable"),
        (R::KafkaDenied { resource: resource() }, "kafka_denied"),
        (R::ProducerFenced { retry_after_ms: 1_001 }, "producer_fenced"),
        (R::OutcomeUnknown, "outcome_unknown"),
        (R::Busy, "busy"),
        (R::ShuttingDown, "shutting_down"),
    ]
}

#[test]
fn every_code_has_the_status_and_the_retry_of_the_table() {
    assert_eq!(Code::ALL.len(), TABLE.len());
    for code in Code::ALL {
        let row = (code.status().as_u16(), code.as_str(), code.retry().as_str());
        assert!(TABLE.contains(&row), "{row:?}");
    }
}

#[test]
fn every_problem_document_has_the_same_members() {
    for code in Code::ALL {
        let problem = Problem::new(*code, "why");
        let body = body(&problem);
        assert_eq!(body["type"], format!("/problems/{}", code.as_str()));
        assert_eq!(body["status"], code.status().as_u16());
        assert_eq!(body["code"], code.as_str());
        assert_eq!(body["title"], code.title());
        assert_eq!(body["detail"], "why");
        assert_eq!(body["retry"], code.retry().as_str());
        assert!(body["side_effect"].is_string());
        let response = problem.into_response();
        assert_eq!(response.status(), code.status());
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers().contains_key(WWW_AUTHENTICATE), response.status() == 401);
    }
}

#[test]
fn every_refusal_keeps_what_it_says_of_the_side_effect() {
    for (refusal, code) in every_refusal() {
        let expected = match refusal.side_effect() {
            SideEffect::None => "none",
            SideEffect::Committed => "committed",
            SideEffect::Maybe => "maybe",
        };
        let body = body(&Problem::from(refusal));
        assert_eq!((&body["code"], &body["side_effect"]), (&code.into(), &expected.into()));
    }
}

#[test]
fn whoever_may_come_again_is_told_when_in_whole_seconds_rounded_up() {
    for (refusal, code) in every_refusal() {
        let problem = Problem::from(refusal);
        let status = problem.code().status().as_u16();
        let ms = body(&problem)["retry_after_ms"].as_u64();
        let expected = code == "lease_held" || status == 429 || status == 503;
        assert_eq!(ms.is_some(), expected, "{code}");
        let response = problem.into_response();
        let header = response.headers().get(RETRY_AFTER);
        let seconds = header.map(|h| h.to_str().unwrap().parse::<u64>().unwrap());
        assert_eq!(seconds, ms.map(|ms| ms.div_ceil(1_000).max(1)), "{code}");
    }
    let fenced = Problem::from(Refusal::ProducerFenced { retry_after_ms: 1_001 });
    assert_eq!(fenced.into_response().headers()[RETRY_AFTER], "2");
}

#[test]
fn a_held_lease_names_its_holder_and_a_lost_one_the_current_token() {
    let holder = Owner::parse("indexer-04").unwrap();
    let held = body(&Problem::from(Refusal::LeaseHeld { holder, expires_in_ms: 1_200 }));
    assert_eq!((&held["holder"], &held["expires_in_ms"]), (&"indexer-04".into(), &1_200.into()));
    let (current, side_effect) = (FencingToken(9_007_199_254_740_993), SideEffect::None);
    let stale = body(&Problem::from(Refusal::StaleToken { current, side_effect }));
    assert_eq!(stale["current_token"], "9007199254740993");
}

#[test]
fn a_refused_record_is_named_by_its_index() {
    let of = |why| {
        let side_effect = SideEffect::None;
        body(&Problem::from(Refusal::Record { index: 3, why, side_effect }))
    };
    let large = of(RecordRefused::TooLarge { limit_bytes: Some(1_048_576) });
    assert_eq!((&large["index"], &large["limit_bytes"]), (&3.into(), &1_048_576.into()));
    assert_eq!(of(RecordRefused::Timestamp)["pointer"], "/records/3/timestamp");
    assert_eq!(of(RecordRefused::TopicNotFound)["index"], 3);
}

#[test]
fn every_code_has_a_page_with_its_status_its_retry_and_three_answers() {
    for code in Code::ALL {
        let page = code.page();
        let first = format!(
            "# {}\n\n{} \u{b7} retry: {} \u{b7} {}\n",
            code.as_str(),
            code.status().as_u16(),
            code.retry().as_str(),
            code.title()
        );
        assert!(page.starts_with(&first), "{}: {first}", code.as_str());
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with("## ")).collect();
        let expected =
            ["## What it means", "## What the caller does next", "## What the operator does next"];
        assert_eq!(headings, expected, "{}", code.as_str());
    }
    let pages = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/problems"));
    assert_eq!(pages.unwrap().count(), Code::ALL.len(), "a page of no code");
}
