//! Field cases of request and record shape, as far as parsing decides them.

use super::*;
use serde_json::Value;

const LIMIT: usize = 1_048_576;

fn one(record: &str) -> Result<Record, Problem> {
    let body = format!("{{\"records\":[{record}]}}");
    decode(body.as_bytes()).map(|mut records| records.remove(0))
}

fn with(member: &str) -> Result<Record, Problem> {
    one(&format!("{{\"topic\":\"t\",{member}}}"))
}

/// Code and pointer of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, Problem>) -> (String, String) {
    let response = axum::response::IntoResponse::into_response(result.unwrap_err());
    let bytes = axum::body::to_bytes(response.into_body(), LIMIT);
    let bytes = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(bytes);
    let body: Value = serde_json::from_slice(&bytes.unwrap()).unwrap();
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    for leak in ["serde", "expected", "invalid type", "u64", "i32", "struct", "column 0"] {
        assert!(!text("detail").contains(leak), "{body}");
    }
    (text("code"), text("pointer"))
}

fn assert_member<T: std::fmt::Debug>(result: Result<T, Problem>, pointer: &str) {
    assert_eq!(refusal(result), ("invalid_member".to_owned(), pointer.to_owned()));
}

#[test]
fn a_body_without_records_is_refused_by_the_name_of_what_is_wrong() {
    let decode = |body: &str| decode(body.as_bytes());
    for (body, pointer) in [
        ("null", ""),
        ("[]", ""),
        ("{}", "/records"),
        (r#"{"records":null}"#, "/records"),
        (r#"{"records":[]}"#, "/records"),
        (r#"{"records":[{}]}"#, "/records/0/topic"),
        (r#"{"records":[null]}"#, "/records/0"),
        (r#"{"recods":[]}"#, "/recods"),
        (r#"{"operation_id":"e1","records":[]}"#, "/operation_id"),
        (r#"{"records":[],"records":[]}"#, "/records"),
        (r#"{"records":[{"topic":"t","value":"a","vlaue":"b"}]}"#, "/records/0/vlaue"),
        (r#"{"records":[{"topic":"t","value":"a","value":"a"}]}"#, "/records/0/value"),
        (r#"{"records":[{"topic":"t","value":"\ud800"}]}"#, "/records/0/value"),
        (r#"{"a/b":1}"#, "/a~1b"),
        ("{\"a\\u202eb\":1}", ""),
        ("{\"a\\u007f\":1}", ""),
    ] {
        assert_member(decode(body), pointer);
    }
}

#[test]
fn null_empty_and_absent_stay_apart() {
    let record = with(r#""key":"k","value":null"#).unwrap();
    assert_eq!((record.key.as_deref(), record.value.as_deref()), (Some(&b"k"[..]), None));
    let record = with(r#""key":"","value":"""#).unwrap();
    assert_eq!((record.key.as_deref(), record.value.as_deref()), (Some(&b""[..]), Some(&b""[..])));
    assert_eq!(with(r#""key":null,"value":"""#).unwrap().key, None);
    assert_eq!(with(r#""value":"""#).unwrap().key, None);
    assert_member(one(r#"{"topic":"t","key":"k"}"#), "/records/0/value");
}

#[test]
fn headers_keep_their_order_their_repeats_and_their_nulls() {
    let record = with(
        r#""value":"v","headers":[{"name":"h","value":"1"},{"name":"h","value":"2"},
           {"name":"g","value":null},{"name":"g","value":""},
           {"name":"b","value":{"base64":"AP8="}}]"#,
    );
    let headers: Vec<_> =
        record.unwrap().headers.iter().map(|(n, v)| (n.to_string(), v.clone())).collect();
    let header = |name: &str, value: Option<&[u8]>| (name.to_owned(), value.map(Payload::from));
    let expected = [
        header("h", Some(b"1")),
        header("h", Some(b"2")),
        header("g", None),
        header("g", Some(b"")),
        header("b", Some(b"\x00\xff")),
    ];
    assert_eq!(headers, expected);
}

#[test]
fn a_header_that_is_ours_or_no_name_is_refused() {
    let named =
        |name: &str| with(&format!(r#""value":"","headers":[{{"name":"{name}","value":""}}]"#));
    let long = "h".repeat(250);
    for bad in ["", "fencepost-lease", "Fencepost-X", "FENCEPOST-", "a\\u0000b", "a\\r\\nb", &long]
        .into_iter()
        .chain(["a\\u202eb", "a\\u200db", "a\\u2028b", "a ", " a"])
    {
        assert_member(named(bad), "/records/0/headers/0/name");
    }
    for good in ["fencepost", "é", "x-fencepost-lease"] {
        assert!(named(good).is_ok(), "{good}");
    }
    for (headers, pointer) in [
        ("null", ""),
        ("{}", ""),
        (r#"[{"name":"h"}]"#, "/0/value"),
        (r#"[{"value":"h"}]"#, "/0/name"),
        (r#"[{"name":"h","value":1}]"#, "/0/value"),
        (r#"[{"name":"h","value":"","x":1}]"#, "/0/x"),
    ] {
        let bad = with(&format!(r#""value":"","headers":{headers}"#));
        assert_member(bad, &format!("/records/0/headers{pointer}"));
    }
}

#[test]
fn only_a_timestamp_that_kafka_would_keep_is_taken() {
    let at = |timestamp: &str| with(&format!(r#""value":"","timestamp":{timestamp}"#));
    for good in [1, 1_700_000_000_000, i64::MAX] {
        assert_eq!(at(&good.to_string()).unwrap().timestamp_ms, Some(good));
    }
    assert_eq!(with(r#""value":"""#).unwrap().timestamp_ms, None);
    for bad in ["0", "-1", "-5", "1.5", "\"now\"", "null", "1e3", "9223372036854775808"] {
        assert_member(at(bad), "/records/0/timestamp");
    }
}

#[test]
fn a_partition_is_a_number_that_kafka_could_have() {
    let at = |partition: &str| with(&format!(r#""value":"","partition":{partition}"#));
    assert_eq!(at("0").unwrap().partition, Some(0));
    assert_eq!(at("2147483647").unwrap().partition, Some(i32::MAX));
    for bad in ["-1", "-2", "2147483648", "1.0", "\"1\"", "null", "true"] {
        assert_member(at(bad), "/records/0/partition");
    }
}

#[test]
fn a_payload_is_taken_byte_for_byte() {
    let value = |value: &str| with(&format!(r#""value":{value}"#)).unwrap().value.unwrap().to_vec();
    assert_eq!(value(r#""\u00e9\ud83d\ude00\u0000""#), "é😀\0".as_bytes());
    assert_eq!(value(r#"{"base64":"AP8="}"#), [0, 255]);
    assert_eq!(value(r#"{"base64":""}"#), b"");
    assert_eq!(
        value(r#"{"json": {"b" : 1.50, "a":[1e2], "b":"\u00e9"} }"#),
        br#"{"b" : 1.50, "a":[1e2], "b":"\u00e9"}"#
    );
    assert_eq!(value(r#"{"json":null}"#), b"null");
}

#[test]
fn a_payload_of_another_shape_is_refused() {
    let value = |value: &str| with(&format!(r#""value":{value}"#));
    for bad in ["1", "true", "[]", "{}", r#"{"base64":"","json":1}"#] {
        assert_member(value(bad), "/records/0/value");
    }
    for bad in ["AP8", "AP8=\\n", "A_8=", " AP8=", "AP9=", "=", "AAAA===="] {
        assert_member(value(&format!(r#"{{"base64":"{bad}"}}"#)), "/records/0/value/base64");
    }
    assert_member(value(r#"{"base64":1}"#), "/records/0/value/base64");
    assert_member(value(r#"{"hex":"00"}"#), "/records/0/value/hex");
}

#[test]
fn a_topic_that_kafka_could_not_have_is_refused() {
    let topic = |topic: &str| one(&format!(r#"{{"topic":"{topic}","value":""}}"#));
    let long = "t".repeat(250);
    for bad in ["", ".", "..", "a b", "a/b", "é", "a\\u0000b", "a\\r\\nb", long.as_str()] {
        assert_member(topic(bad), "/records/0/topic");
    }
    assert!(topic(&"t".repeat(249)).is_ok());
    assert_member(one(r#"{"topic":1,"value":""}"#), "/records/0/topic");
}

#[test]
fn internal_topics_and_the_ledger_are_never_written_to() {
    let topics = Topics { allowed: vec![Pattern::new("*")], ledger: "fencepost.ledger".to_owned() };
    let check = |topic: &str| topics.check_reserved(&[Record { topic: topic.into(), ..plain() }]);
    for bad in ["__transaction_state", "__consumer_offsets", "__x", "fencepost.ledger"] {
        assert_eq!(check(bad).unwrap_err().code(), Code::TopicNotAllowed, "{bad}");
    }
    assert!(check("demo.a").is_ok());
    let topics = Topics { allowed: vec![Pattern::new("demo.*")], ledger: String::new() };
    let records = ["demo.a", "other"].map(|topic| Record { topic: topic.into(), ..plain() });
    assert!(topics.check_allowed(&records[..1]).is_ok());
    assert_eq!(refusal(topics.check_allowed(&records)).0, "topic_not_allowed");
}

fn plain() -> Record {
    with(r#""value":"""#).unwrap()
}

#[test]
fn a_record_over_its_limit_is_refused_counting_key_value_and_headers() {
    let record = r#"{"topic":"t","key":"kk","value":"vvv","headers":[{"name":"h","value":"x"}]}"#;
    let body = format!(r#"{{"records":[{{"topic":"t","value":""}},{record}]}}"#);
    let records = decode(body.as_bytes()).unwrap();
    assert!(check_sizes(&records, 7).is_ok());
    assert_eq!(refusal(check_sizes(&records, 6)).0, "record_too_large");
}

#[test]
fn more_records_than_one_request_may_have_are_too_large() {
    let body = |n: usize| {
        let records = vec![r#"{"topic":"t","value":""}"#; n].join(",");
        decode(format!(r#"{{"records":[{records}]}}"#).as_bytes())
    };
    let records = body(RECORDS_MAX).unwrap();
    assert!(Arc::ptr_eq(&records[0].topic, &records[RECORDS_MAX - 1].topic));
    assert_eq!(refusal(body(RECORDS_MAX + 1)).0, "body_too_large");
}

#[test]
fn an_operation_that_its_ledger_record_could_not_hold_is_refused_before_it_is_sent() {
    let id = OperationId::parse("o").unwrap();
    let records = |n: usize, topic: &str| vec![Record { topic: topic.into(), ..plain() }; n];
    assert!(check_ledger_size(&id, &records(RECORDS_MAX, "short")).is_ok());
    let long = check_ledger_size(&id, &records(RECORDS_MAX, &"t".repeat(60)));
    assert_eq!(refusal(long).0, "body_too_large");
    assert!(check_ledger_size(&id, &records(900, &"t".repeat(249))).is_ok());
}
