//! Bounds of the lease calls, and what their answers look like.

use super::*;
use crate::http::identity::Worker;
use crate::http::pattern::Pattern;
use crate::protocol::fence::{FenceRow, LeaseRow};
use crate::protocol::lease::{BatchSeq, FencingToken, Identity, Incarnation};
use crate::protocol::ledger::LedgerPartition;
use serde_json::json;

fn settings() -> Settings {
    Settings { ttl_min_ms: 5_000, ttl_max_ms: 3_600_000, ..Settings::default() }
}

fn acquire(body: &str) -> Result<AcquireRequest, String> {
    let worker = Worker {
        identity: Identity::new("worker-1"),
        token: [0; 32],
        leases: vec![Pattern::new("*")],
        owners: vec![Pattern::new("indexer-*")],
    };
    let lease = LeaseName::parse("matter.7").unwrap();
    decode_acquire(body.as_bytes(), &settings(), Applicant { lease, worker })
        .map_err(|problem| format!("{problem:?}"))
}

fn with(member: &str) -> Result<AcquireRequest, String> {
    acquire(&format!(r#"{{"owner":"indexer-17",{member}}}"#))
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T, String>, words: &[&str]) {
    let text = result.unwrap_err();
    for word in words {
        assert!(text.contains(word), "{text} lacks {word}");
    }
}

#[test]
fn an_acquire_is_read_whole() {
    let request =
        with(r#""ttl_ms":30000,"wait_ms":30000,"request_id":"r-1","replace":true"#).unwrap();
    assert_eq!((request.ttl_ms, request.wait), (30_000, Duration::from_secs(30)));
    assert_eq!(request.request_id.unwrap().as_str(), "r-1");
    assert!(request.replace);
    let plain = with(r#""ttl_ms":5000"#).unwrap();
    assert_eq!((plain.wait, plain.request_id, plain.replace), (Duration::ZERO, None, false));
}

#[test]
fn a_ttl_outside_its_limits_is_refused_naming_both() {
    let limits = ["InvalidMember", "/ttl_ms", "5000", "3600000"];
    for bad in [
        "0",
        "-1",
        "1",
        "\"30000\"",
        "30000.5",
        "null",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "4999",
        "3600001",
        "1e5",
    ] {
        assert_refused(with(&format!(r#""ttl_ms":{bad}"#)), &limits);
        let renew = decode_renew(format!(r#"{{"ttl_ms":{bad}}}"#).as_bytes(), &settings());
        assert_refused(renew.map_err(|p| format!("{p:?}")), &limits);
    }
    assert_refused(acquire(r#"{"owner":"indexer-17"}"#), &["/ttl_ms", "required"]);
    for good in ["5000", "3600000"] {
        assert!(with(&format!(r#""ttl_ms":{good}"#)).is_ok());
    }
}

#[test]
fn every_other_member_of_an_acquire_has_its_bounds() {
    for bad in ["-1", "30001", "\"0\"", "null", "0.5"] {
        let text = format!(r#""ttl_ms":5000,"wait_ms":{bad}"#);
        assert_refused(with(&text), &["/wait_ms", "30000"]);
    }
    for bad in ["null", "1", "\"\"", "\"a b\""] {
        let text = format!(r#""ttl_ms":5000,"request_id":{bad}"#);
        assert_refused(with(&text), &["/request_id"]);
    }
    for bad in ["null", "1", "\"true\""] {
        assert_refused(with(&format!(r#""ttl_ms":5000,"replace":{bad}"#)), &["/replace"]);
    }
    assert_refused(with(r#""ttl_ms":5000,"ttl_ms":5000"#), &["/ttl_ms", "more than once"]);
    assert_refused(with(r#""ttl_ms":5000,"x":1"#), &["/x", "unknown"]);
}

#[test]
fn an_owner_that_is_no_name_or_not_the_identitys_is_refused() {
    let owner = |owner: &str| acquire(&format!(r#"{{"owner":{owner},"ttl_ms":5000}}"#));
    for bad in [
        r#""""#,
        r#""x\u0000y""#,
        r#""x\r\nSet-Cookie: a=b""#,
        r#""\u001b[2J""#,
        r#""a\u202eb""#,
        r#""a\u200db""#,
        r#""\ud800""#,
        "null",
        "17",
    ] {
        assert_refused(owner(bad), &["InvalidMember", "/owner"]);
    }
    assert_refused(owner(r#""other""#), &["NotAllowed"]);
    assert_eq!(owner(r#""indexer-<img>""#).unwrap().owner.as_str(), "indexer-<img>");
}

#[test]
fn a_renew_and_a_release_may_have_no_body() {
    assert_eq!(decode_renew(b"", &settings()).unwrap(), None);
    assert_eq!(decode_renew(b"{}", &settings()).unwrap(), None);
    assert_eq!(decode_renew(br#"{"ttl_ms":6000}"#, &settings()).unwrap(), Some(6_000));
    assert!(decode_renew(b"null", &settings()).is_err());
    assert!(optional(b"").unwrap().is_none());
}

#[test]
fn an_expiry_is_written_in_utc_with_milliseconds_rounded_down() {
    assert_eq!(rfc3339(DbTime(1_700_000_000_123_999)), "2023-11-14T22:13:20.123Z");
    assert_eq!(rfc3339(DbTime(0)), "1970-01-01T00:00:00.000Z");
}

fn view(token: u64, released: bool, expires_at: i64, quarantine: Option<String>) -> LeaseView {
    let owner = || Owner::stored(if token == 0 { "" } else { "indexer-17" });
    LeaseView {
        name: LeaseName::parse("matter.7").unwrap(),
        fence: FenceRow {
            token: FencingToken(token),
            owner: owner(),
            incarnation: Incarnation(1),
            seq: BatchSeq(4),
            nonce: None,
            home: None,
            partition: LedgerPartition(0),
            quarantine,
        },
        lease: LeaseRow {
            owner: owner(),
            identity: Identity::new("worker-1"),
            token: FencingToken(token),
            expires_at: DbTime(expires_at),
            released,
            ttl_ms: 5_000,
            request_id: None,
        },
        home_url: Some("http://a".to_owned()),
        now: DbTime(1_000_000),
    }
}

#[test]
fn a_lease_has_exactly_one_state() {
    let body = |view| serde_json::to_value(lease_body(view)).unwrap();
    assert_eq!(
        body(view(402, false, 2_500_900, None)),
        json!({
            "lease": "matter.7", "owner": "indexer-17", "token": "402", "incarnation": 1,
            "state": "held", "expires_in_ms": 1_500, "home": "http://a", "batch_seq": 4,
        })
    );
    let state = |view| body(view)["state"].clone();
    assert_eq!(state(view(402, false, 1_000_000, None)), "expired");
    assert_eq!(state(view(402, true, 2_000_000, None)), "released");
    assert_eq!(state(view(402, false, 2_000_000, Some("x".to_owned()))), "quarantined");
    let free = body(view(0, false, 0, None));
    assert_eq!(
        (&free["state"], &free["token"], &free["owner"]),
        (&json!("free"), &json!(null), &json!(null))
    );
}

#[test]
fn a_credential_does_not_look_at_a_lease_before_or_after_its_time() {
    let credential = |issued_s, expires_s| Credential {
        lease: LeaseName::parse("matter.7").unwrap(),
        owner: Owner::stored("a"),
        token: FencingToken(1),
        incarnation: Incarnation(1),
        expires_s,
        issued_s,
    };
    let check = |credential, now| check_times(Some(&credential), DbTime(now)).map_err(|p| p.code());
    assert!(check_times(None, DbTime(5_000_000)).is_ok());
    assert_eq!(check(credential(5, 6), 5_000_000), Ok(()));
    assert_eq!(check(credential(5, 6), 5_999_999), Ok(()));
    assert_eq!(check(credential(5, 6), 6_000_000), Err(Code::CredentialExpired));
    assert_eq!(check(credential(5, 6), 4_999_999), Err(Code::CredentialInvalid));
}
