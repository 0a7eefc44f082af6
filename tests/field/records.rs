//! F03 and F07: a record arrives byte for byte, or not at all; and where it arrives.

use crate::bench::{Bench, Full, assert_member, assert_problem, ends, records_of};
use rdkafka::message::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

type Bytes = Option<Vec<u8>>;

fn bytes(text: &str) -> Bytes {
    Some(text.as_bytes().to_vec())
}

fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Key and value, in the order of the offsets.
fn pairs(records: &[Full]) -> Vec<(Bytes, Bytes)> {
    records.iter().map(|record| (record.key.clone(), record.value.clone())).collect()
}

/// F03
#[test]
fn a_tombstone_an_empty_value_and_an_absent_one_are_three_things() {
    let bench = Bench::new("f03-null");
    let compacted = bench.topic("compacted", 1, &[("cleanup.policy", "compact")]);
    let plain = bench.topic("plain", 1, &[]);
    let record = |topic: &str, more: Value| {
        let mut record = json!({ "topic": topic });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record
    };
    let tombstone = |topic: &str| record(topic, json!({ "key": "k", "value": null }));
    let empty = |topic: &str| record(topic, json!({ "key": "k", "value": "" }));
    let absent = |topic: &str| record(topic, json!({ "key": "k" }));
    let null_key = |topic: &str| record(topic, json!({ "key": null, "value": "n" }));
    let no_key = |topic: &str| record(topic, json!({ "value": { "base64": "AP8=" } }));
    let empty_key = |topic: &str| record(topic, json!({ "key": "", "value": "e" }));

    // Absent is refused, with all that stands beside it.
    for topic in [&compacted, &plain] {
        let records = json!([
            tombstone(topic),
            empty(topic),
            absent(topic),
            null_key(topic),
            empty_key(topic)
        ]);
        let refused = assert_member(&bench.post("absent", &records), "/records/2/value");
        assert_eq!(refused["detail"], "is required");
        assert_eq!(ends(topic), [0]);
    }
    // A compacted topic takes no record without a key: the broker says so, of the whole batch.
    for keyless in [null_key(&compacted), no_key(&compacted)] {
        let records =
            json!([tombstone(&compacted), empty(&compacted), keyless, empty_key(&compacted)]);
        let refused = assert_member(&bench.post("keyless", &records), "/records/2");
        assert_eq!(refused["index"], 2, "{refused}");
        assert_eq!(records_of(&compacted), []);
    }
    bench.post_new(
        "keyless",
        &json!([tombstone(&compacted), empty(&compacted), empty_key(&compacted)]),
    );
    let expected = [(bytes("k"), None), (bytes("k"), bytes("")), (bytes(""), bytes("e"))];
    assert_eq!(pairs(&records_of(&compacted)), expected);

    bench.post_new(
        "plain",
        &json!([
            tombstone(&plain),
            empty(&plain),
            null_key(&plain),
            no_key(&plain),
            empty_key(&plain)
        ]),
    );
    let expected = [
        (bytes("k"), None),
        (bytes("k"), bytes("")),
        (None, bytes("n")),
        (None, Some(vec![0, 255])),
        (bytes(""), bytes("e")),
    ];
    assert_eq!(pairs(&records_of(&plain)), expected);
    bench.assert_good("after");
    bench.world.audit_topic(&plain);
}

/// F03
#[test]
fn headers_arrive_in_their_order_with_repeats_and_nulls_and_bytes_kept() {
    let bench = Bench::new("f03-headers");
    let topic = bench.topic("headers", 1, &[("cleanup.policy", "compact")]);
    let binary: Vec<u8> = (0..=255).collect();
    let all = json!({ "base64": base64_of(&binary) });
    bench.post_new(
        "headers",
        &json!([
            { "topic": topic, "key": all, "value": all, "headers": [
                { "name": "h", "value": "1" },
                { "name": "h", "value": "2" },
                { "name": "g", "value": null },
                { "name": "g", "value": "" },
                { "name": "b", "value": { "base64": "AP8=" } },
                { "name": "h", "value": "1" },
                { "name": "\u{e9} \"x\"", "value": "\u{0}\r\n\u{1f600}" },
            ]},
            { "topic": topic, "key": "none", "value": "v" },
            { "topic": topic, "key": "none", "value": "v", "headers": [] },
        ]),
    );
    let records = records_of(&topic);
    assert_eq!((&records[0].key, &records[0].value), (&Some(binary.clone()), &Some(binary)));
    let header = |name: &str, value: Bytes| (name.to_owned(), value);
    let expected = [
        header("h", bytes("1")),
        header("h", bytes("2")),
        header("g", None),
        header("g", bytes("")),
        header("b", Some(vec![0, 255])),
        header("h", bytes("1")),
        header("\u{e9} \"x\"", bytes("\u{0}\r\n\u{1f600}")),
    ];
    assert_eq!(records[0].headers, expected);
    assert_eq!(records[1].headers, []);
    assert_eq!(records[2].headers, []);
    bench.assert_good("after");
}

fn base64_of(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// F03
#[test]
fn a_given_timestamp_is_kept_an_absent_one_is_now_and_a_bad_one_refuses_the_batch() {
    let bench = Bench::new("f03-timestamps");
    let no_limit = i64::MAX.to_string();
    let topic = bench.topic("stamped", 1, &[("message.timestamp.after.max.ms", &no_limit)]);
    let batch = |timestamp: &Value| {
        json!([
            { "topic": topic, "partition": 0, "value": "beside" },
            { "topic": topic, "partition": 0, "value": "v", "timestamp": timestamp },
        ])
    };
    let before = (bench.row(), ends(&topic));
    for bad in ["0", "-1", "-5", "1.5", "\"now\"", "\"1\"", "null", "1e3", "9223372036854775808"] {
        let text = batch(&json!("BAD")).to_string().replace("\"BAD\"", bad);
        let raw = bench.send("bad", format!("{{\"records\":{text}}}").as_bytes());
        assert_member(&raw, "/records/1/timestamp");
    }
    assert_eq!((bench.row(), ends(&topic)), before);
    let from = now_ms();
    for timestamp in [1, 1_700_000_000_000, i64::MAX] {
        bench.post_new(&format!("at-{timestamp}"), &batch(&json!(timestamp)));
    }
    let until = now_ms();
    let records = records_of(&topic);
    assert_eq!(records.len(), 6);
    for (record, expected) in
        records.iter().skip(1).step_by(2).zip([1, 1_700_000_000_000, i64::MAX])
    {
        assert_eq!(record.timestamp, Timestamp::CreateTime(expected));
    }
    for record in records.iter().step_by(2) {
        let Timestamp::CreateTime(at) = record.timestamp else { panic!("{record:?}") };
        assert!((from..=until).contains(&at), "{from} {at} {until}");
    }
    bench.assert_good("bad");
}

/// F03
#[test]
fn a_timestamp_that_the_broker_refuses_is_a_422_of_the_whole_batch_and_no_503() {
    let bench = Bench::new("f03-future");
    let future = bench.topic("future", 1, &[("message.timestamp.after.max.ms", "3600000")]);
    let past = bench.topic("past", 1, &[("message.timestamp.before.max.ms", "3600000")]);
    let ten_years = 10 * 365 * 24 * 3_600_000;
    let other = &bench.world.topic;
    for (topic, timestamp) in [
        (&future, now_ms() + ten_years),
        (&future, i64::MAX),
        (&past, now_ms() - ten_years),
        (&past, 1),
    ] {
        let batch = |timestamp: i64| {
            json!([
                { "topic": other, "value": "another topic" },
                { "topic": topic, "value": "beside" },
                { "topic": topic, "value": "v", "timestamp": timestamp },
                { "topic": topic, "value": "behind" },
            ])
        };
        let id = format!("refused-{timestamp}");
        let raw = bench.post(&id, &batch(timestamp));
        let refused = assert_member(&raw, "/records/2/timestamp");
        assert_eq!(refused["index"], 2, "{refused}");
        assert!(records_of(topic).iter().all(|record| record.operation != id));
        // Two of them, with a good one given between.
        let two = json!([
            { "topic": topic, "value": "v" },
            { "topic": topic, "value": "v", "timestamp": timestamp },
            { "topic": topic, "value": "v", "timestamp": now_ms() },
            { "topic": topic, "value": "v", "timestamp": timestamp },
        ]);
        assert_member(&bench.post(&id, &two), "/records/1/timestamp");
        // Alone, too.
        let alone = json!([{ "topic": topic, "value": "v", "timestamp": timestamp }]);
        assert_member(&bench.post(&id, &alone), "/records/0/timestamp");
        // Mended, it is taken under the same id.
        bench.post_new(&id, &batch(now_ms()));
        assert_eq!(records_of(topic).iter().filter(|record| record.operation == id).count(), 3);
    }
    assert_eq!(records_of(other).len(), 4);
    bench.assert_good("after");
    bench.world.audit();
}

/// F07
#[test]
fn a_key_goes_where_javas_default_partitioner_puts_it() {
    let bench = Bench::new("f07-keys");
    for (key, partitions, expected) in [
        ("fd7af248-ce5c-46a5-93d7-1c0c9005b99d", 32, 26),
        ("TT0124", 15, 10),
        ("354afe16-939a-4ea8-8e17-8bb0840b6886", 10, 4),
    ] {
        let topic = bench.topic(&format!("of-{partitions}"), partitions, &[]);
        for id in ["first", "second"] {
            let records = json!([{ "topic": topic, "key": key, "value": "v" }]);
            let answer = bench.post_new(&format!("{id}-{partitions}"), &records);
            assert_eq!(answer["offsets"][0]["partition"], expected, "{answer}");
        }
        let seen: Vec<i32> = records_of(&topic).iter().map(|r| r.partition).collect();
        assert_eq!(seen, [expected, expected]);
    }
    bench.assert_good("after");
}

/// F07
#[test]
fn an_empty_key_has_one_partition_and_a_null_key_is_spread() {
    let bench = Bench::new("f07-empty");
    let topic = bench.topic("of-10", 10, &[]);
    // In one POST, and each in a POST of its own.
    let empty = json!({ "topic": topic, "key": "", "value": "" });
    let null = json!({ "topic": topic, "key": null, "value": "" });
    let absent = json!({ "topic": topic, "value": "" });
    for (name, record) in [("empty", &empty), ("null", &null), ("absent", &absent)] {
        bench.post_new(&format!("{name}-at-once"), &json!(vec![record; 50]));
        for k in 0..50 {
            bench.post_new(&format!("{name}-{k}"), &json!([record]));
        }
    }
    let records = records_of(&topic);
    assert_eq!(records.len(), 300);
    let partitions = |keep: &dyn Fn(&&Full) -> bool| -> BTreeSet<i32> {
        records.iter().filter(keep).map(|record| record.partition).collect()
    };
    // murmur2 of nothing is 275646681.
    assert_eq!(partitions(&|r| r.key.is_some()), BTreeSet::from([1]));
    for (once, each) in [("null-at-once", "null-"), ("absent-at-once", "absent-")] {
        let at_once = partitions(&|r| r.operation == once);
        let alone = partitions(&|r| r.operation.starts_with(each) && r.operation != once);
        // 50 draws that miss 5 of 10 partitions: not in 10^12 runs.
        assert!(at_once.len() > 5, "{once}: {at_once:?}");
        assert!(alone.len() > 5, "{each}: {alone:?}");
    }
    bench.assert_good("after");
    bench.world.audit_topic(&topic);
}

/// F07
#[test]
fn a_given_partition_wins_over_the_key() {
    let bench = Bench::new("f07-given");
    let topic = bench.topic("of-10", 10, &[]);
    for partition in [0, 9] {
        let record = json!({ "topic": topic, "partition": partition, "key": "", "value": "" });
        let answer = bench.post_new(&format!("at-{partition}"), &json!([record]));
        assert_eq!(answer["offsets"][0]["partition"], partition);
    }
    let raw = bench.post("at-10", &json!([{ "topic": topic, "partition": 10, "value": "" }]));
    assert_problem(&raw, 404, "partition_not_found");
    assert_eq!(records_of(&topic).iter().map(|r| r.partition).collect::<Vec<_>>(), [0, 9]);
    bench.assert_good("after");
}
