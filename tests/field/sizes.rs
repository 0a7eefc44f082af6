//! F04: one record that is too large, and many small ones.

use crate::bench::{Bench, assert_problem, ends, records_of};
use crate::client::Raw;
use crate::world::Options;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const MIB: usize = 1_048_576;
const KB: usize = 1_000;

fn sized(topic: &str, name: &str, size: usize) -> Value {
    let value = format!("{name}{}", "x".repeat(size - name.len()));
    json!({ "topic": topic, "partition": 0, "value": value })
}

/// 1 KB, 1 KB, 2 MB, 1 KB.
fn with_a_large_one(topic: &str) -> Value {
    let record = |(k, size): (usize, usize)| sized(topic, &format!("{k}"), size);
    [KB, KB, 2 * KB * KB, KB].into_iter().enumerate().map(record).collect()
}

fn without_it(topic: &str) -> Value {
    let mut records = with_a_large_one(topic);
    records.as_array_mut().unwrap().remove(2);
    records
}

#[track_caller]
fn assert_too_large(raw: &Raw, index: usize) -> Value {
    let refused = assert_problem(raw, 413, "record_too_large");
    assert_eq!(refused["index"], index, "{refused}");
    assert_eq!(refused["retry"], "never", "{refused}");
    refused
}

/// (a) and (e): refused 200 times, 0 to 5 ms apart, and a good one after each.
fn refuse_two_hundred_times(bench: &Bench, topic: &str, limit: &Value, side_effect: &str) {
    for k in 0..200 {
        let raw = bench.post(&format!("large-{k}"), &with_a_large_one(topic));
        let refused = assert_too_large(&raw, 2);
        assert_eq!(
            (&refused["limit_bytes"], &refused["side_effect"]),
            (limit, &json!(side_effect))
        );
        // The pause is part of the case: an abort may still be under way.
        std::thread::sleep(Duration::from_millis(k % 6));
        bench.assert_good(&format!("good-{k}"));
    }
    assert_eq!(records_of(topic), []);
    assert_eq!(records_of(&bench.world.topic).len(), 200);
    // Mended, it is taken under the id that was refused.
    bench.post_new("large-199", &without_it(topic));
    let names: Vec<String> =
        records_of(topic).iter().map(|r| r.text().unwrap()[..1].to_owned()).collect();
    assert_eq!(names, ["0", "1", "3"]);
    bench.world.audit();
    bench.world.audit_topic(topic);
}

/// F04 (a) and (e), at the gateway's own limit: nothing is sent.
#[test]
fn a_record_over_the_gateways_limit_takes_its_neighbours_with_it_and_harms_nothing_else() {
    let bench = Bench::new("f04-own");
    let topic = bench.topic("a", 1, &[("max.message.bytes", "1048576")]);
    let before = (bench.row(), ends(&topic));
    assert_too_large(&bench.post("large", &with_a_large_one(&topic)), 2);
    assert_eq!((bench.row(), ends(&topic)), before);
    refuse_two_hundred_times(&bench, &topic, &json!(MIB), "maybe");
}

/// F04 (a) and (e), at the topic's limit: the broker refuses, the transaction is aborted.
#[test]
fn a_record_over_its_topics_limit_takes_its_neighbours_with_it_and_harms_nothing_else() {
    let extra = "[limits]\nrecord_bytes_max = 3000000".to_owned();
    let bench = Bench::with("f04-topic", Options { extra, ..Options::default() });
    let topic = bench.topic("a", 1, &[("max.message.bytes", "1048576")]);
    refuse_two_hundred_times(&bench, &topic, &Value::Null, "none");
}

/// F04 (b)
#[test]
fn two_thousand_small_records_stand_whole_and_in_order() {
    let bench = Bench::new("f04-many");
    let topic = bench.topic("a", 1, &[("max.message.bytes", "1048576")]);
    let spread = bench.topic("b", 4, &[("max.message.bytes", "1048576")]);
    let records: Vec<Value> = (0..2_000)
        .map(|k| match k % 2 {
            0 => sized(&topic, &format!("{k:04} "), KB),
            _ => {
                let mut record = sized(&spread, &format!("{k:04} "), KB);
                record["partition"] = json!(k / 2 % 4);
                record
            }
        })
        .collect();
    let answer = bench.post_new("mixed", &json!(records));
    assert_eq!(answer["offsets"].as_array().unwrap().len(), 2_000);
    let numbers = |topic: &str, partition: i32| -> Vec<usize> {
        let all = records_of(topic);
        let of = all.iter().filter(|record| record.partition == partition);
        of.map(|record| record.text().unwrap()[..4].parse().unwrap()).collect()
    };
    assert_eq!(numbers(&topic, 0), (0..2_000).step_by(2).collect::<Vec<_>>());
    for partition in 0..4 {
        let first = 2 * usize::try_from(partition).unwrap() + 1;
        assert_eq!(numbers(&spread, partition), (first..2_000).step_by(8).collect::<Vec<_>>());
    }
    let records: Vec<Value> = (0..2_000).map(|k| sized(&topic, &format!("{k:04} "), KB)).collect();
    bench.post_new("alone", &json!(records));
    let all = numbers(&topic, 0);
    assert_eq!(all[1_000..], (0..2_000).collect::<Vec<_>>());
    bench.assert_good("after");
    bench.world.audit_topic(&topic);
}

/// F04: the broker compares a topic's limit with what is sent at once, which is at most 256 KiB of
/// records, or one of them.
#[test]
fn many_small_records_are_no_large_one_to_a_topic_that_takes_what_is_sent_at_once() {
    let bench = Bench::new("f04-little");
    let topic = bench.topic("little", 1, &[("max.message.bytes", "262144")]);
    for (id, size) in [("a", 100), ("b", KB), ("c", 10 * KB), ("d", 200 * KB)] {
        let count = (2_000 * KB / size).min(2_000);
        let records: Vec<Value> =
            (0..count).map(|k| sized(&topic, &format!("{id}{k} "), size)).collect();
        bench.post_new(id, &json!(records));
        let found = records_of(&topic);
        let found: Vec<_> = found.iter().filter(|record| record.operation == id).collect();
        assert_eq!(found.len(), count);
    }
    bench.assert_good("after");
}

/// Bytes of a number as Kafka writes it: zigzag, seven bits a byte.
fn varint(number: usize) -> usize {
    let bits = 64 - ((2 * number as u64) | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Bytes of a batch of one record, as a broker counts them.
fn batch_bytes(key: &str, value: usize, headers: &[(&str, &str)]) -> usize {
    let text = |length: usize| varint(length) + length;
    let headers: usize = varint(headers.len())
        + headers.iter().map(|(n, v)| text(n.len()) + text(v.len())).sum::<usize>();
    // Attributes, timestamp delta and offset delta are a byte each.
    let record = 3 + text(key.len()) + text(value) + headers;
    61 + varint(record) + record
}

/// F04 (c)
#[test]
fn a_record_exactly_at_a_limit_is_taken_and_one_byte_more_is_not() {
    let bench = Bench::new("f04-exact");
    let wide = bench.topic("wide", 1, &[("max.message.bytes", "2000000")]);
    let record = |topic: &str, value: usize, more: &str| {
        json!([{
            "topic": topic,
            "key": "key",
            "value": "x".repeat(value),
            "headers": [{ "name": "h\u{e9}", "value": more }, { "name": "null", "value": null }],
        }])
    };
    // Ours counts the bytes of key, value, and names and values of headers.
    let value = MIB - "key".len() - "h\u{e9}".len() - "null".len();
    bench.post_new("own-limit", &record(&wide, value, ""));
    bench.post_new("own-limit-header", &record(&wide, value - 1, "1"));
    for (value, more) in [(value + 1, ""), (value, "1")] {
        let before = (bench.row(), ends(&wide));
        let refused = assert_too_large(&bench.post("over", &record(&wide, value, more)), 0);
        assert_eq!(refused["limit_bytes"], MIB);
        assert_eq!((bench.row(), ends(&wide)), before);
    }
    // A topic's counts all that is written, our own headers among it.
    let narrow = bench.topic("narrow", 1, &[("max.message.bytes", "20000")]);
    let written = |value: usize, more: &str, id: &str| {
        let (token, batch) = (bench.holder.token.to_string(), (bench.batch_seq() + 1).to_string());
        let headers = [
            ("h\u{e9}", more),
            // A null value has a length of -1, in one byte as an empty one's.
            ("null", ""),
            ("fencepost-lease", &bench.holder.lease),
            ("fencepost-token", &token),
            ("fencepost-operation", id),
            ("fencepost-batch", &batch),
        ];
        batch_bytes("key", value, &headers)
    };
    let mut value = 19_000;
    value += 20_000 - written(value, "", "narrow-0");
    assert_eq!(written(value, "", "narrow-0"), 20_000);
    bench.post_new("narrow-0", &record(&narrow, value, ""));
    assert_eq!(written(value, "", "narrow-1"), 20_000, "the batch's number grew by a digit");
    for (value, more) in [(value + 1, ""), (value, "1")] {
        assert_too_large(&bench.post("narrow-1", &record(&narrow, value, more)), 0);
    }
    assert_eq!(records_of(&narrow).len(), 1);
    bench.post_new("narrow-1", &record(&narrow, value, ""));
    assert_eq!(records_of(&wide).len(), 2);
    assert_eq!(records_of(&narrow).len(), 2);
    bench.assert_good("after");
    bench.world.audit_topic(&wide);
}

/// F04: a default topic takes a little more than 1 MiB, and what is written is a little more than
/// the record.
#[test]
fn a_record_at_the_gateways_limit_is_answered_soon_where_the_topic_takes_less() {
    let bench = Bench::new("f04-default");
    let records = json!([sized(&bench.world.topic, "0", KB), sized(&bench.world.topic, "1", MIB),]);
    let from = Instant::now();
    assert_too_large(&bench.post("at-the-limit", &records), 1);
    assert!(from.elapsed() < Duration::from_secs(11));
    assert_eq!(records_of(&bench.world.topic), []);
    bench.assert_good("after");
}
