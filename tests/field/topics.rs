//! F05: a topic or a partition that is not there.

use crate::bench::{
    Bench, SOON, assert_member, assert_problem, ends, partitions_of, records_of, topics,
};
use crate::world::wait_for;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// "under 1 s, never holding the fence lock"
const AT_ONCE: Duration = Duration::from_secs(1);

fn record(topic: &str) -> Value {
    json!({ "topic": topic, "value": "v" })
}

fn at(topic: &str, partition: i64) -> Value {
    json!({ "topic": topic, "partition": partition, "value": "v" })
}

/// F05
#[test]
fn what_is_not_there_is_refused_at_once_whole_and_by_its_index_and_never_made() {
    let bench = Bench::new("f05-absent");
    let there = bench.world.topic.clone();
    let foreign = format!("other.{}", bench.world.name);
    bench.world.create_topic(&foreign, 1, &[]);
    wait_for("the topic is there", SOON, || partitions_of(&foreign));
    let absent = format!("{there}.absent");
    let absent_foreign = format!("{foreign}.absent");
    let ledger = bench.ledger();
    bench.assert_good("before");
    let before = (bench.row(), ends(&there), ends(&ledger), ends(&foreign));
    let good = record(&there);
    let cases = [
        (json!([record(&absent)]), 0, 404, "topic_not_found"),
        (json!([record(&absent_foreign)]), 0, 404, "topic_not_found"),
        (json!([record(&foreign)]), 0, 403, "topic_not_allowed"),
        (json!([at(&there, 99)]), 0, 404, "partition_not_found"),
        (json!([at(&there, 3)]), 0, 404, "partition_not_found"),
        (json!([at(&there, 2_147_483_647)]), 0, 404, "partition_not_found"),
        (json!([good, at(&there, 99)]), 1, 404, "partition_not_found"),
        (json!([good, record(&absent), good]), 1, 404, "topic_not_found"),
        (json!([at(&there, 0), good, record(&foreign)]), 2, 403, "topic_not_allowed"),
        (json!([record("__transaction_state")]), 0, 403, "topic_not_allowed"),
        (json!([record("__consumer_offsets")]), 0, 403, "topic_not_allowed"),
        (json!([at("__consumer_offsets", 99)]), 0, 403, "topic_not_allowed"),
        (json!([record("__absent")]), 0, 403, "topic_not_allowed"),
        (json!([record(&ledger)]), 0, 403, "topic_not_allowed"),
        (json!([good, at(&ledger, 0)]), 1, 403, "topic_not_allowed"),
    ];
    for (records, index, status, code) in &cases {
        // The second time from memory.
        for _ in 0..2 {
            let from = Instant::now();
            let refused = assert_problem(&bench.post("refused", records), *status, code);
            assert!(from.elapsed() < AT_ONCE, "{:?}: {records}", from.elapsed());
            assert_eq!(refused["index"], *index, "{refused}");
            assert_eq!(refused["retry"], "never", "{refused}");
        }
    }
    let long = "t".repeat(250);
    let never_names = ["", ".", "..", "a b", &long, "a/b", "a\u{e9}", "a\0"];
    for name in never_names {
        assert_member(&bench.post("refused", &json!([record(name)])), "/records/0/topic");
        let second = json!([good, record(name)]);
        assert_member(&bench.post("refused", &second), "/records/1/topic");
    }
    for partition in [-1, -2, 2_147_483_648] {
        let raw = bench.post("refused", &json!([at(&there, partition)]));
        assert_member(&raw, "/records/0/partition");
    }
    assert_eq!((bench.row(), ends(&there), ends(&ledger), ends(&foreign)), before);
    let all = topics();
    for never in [absent.as_str(), absent_foreign.as_str(), "__absent"].iter().chain(&never_names) {
        assert!(!all.iter().any(|topic| topic == never), "{never}");
    }
    bench.post_new("refused", &json!([good]));
    assert_eq!(records_of(&there).len(), 2);
}

/// A session that has the fence row of a lease locked until it is dropped.
struct RowLock(Child);

impl RowLock {
    fn of(bench: &Bench) -> Self {
        let mut psql = Command::new("psql")
            .args([&bench.world.owner_url, "-qXAt"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let sql = format!(
            "SET lock_timeout = '5s'; BEGIN;\n\
             SELECT 'locked' FROM fences WHERE lease = '{}' FOR UPDATE;\n",
            bench.holder.lease
        );
        psql.stdin.as_mut().unwrap().write_all(sql.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(psql.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "locked");
        Self(psql)
    }
}

impl Drop for RowLock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

/// F05
#[test]
fn a_missing_topic_is_found_missing_without_the_rows_lock_and_delays_nobody() {
    let bench = Bench::new("f05-lock");
    let topic = &bench.world.topic;
    bench.assert_good("before");
    let lock = RowLock::of(&bench);
    for k in 0..5 {
        let absent = json!([record(&format!("{topic}.absent-{k}"))]);
        let from = Instant::now();
        assert_problem(&bench.post("absent", &absent), 404, "topic_not_found");
        let nowhere = json!([record(topic), at(topic, 99)]);
        assert_problem(&bench.post("nowhere", &nowhere), 404, "partition_not_found");
        assert!(from.elapsed() < AT_ONCE, "{:?}", from.elapsed());
    }
    drop(lock);
    // While another client asks for one absent topic after the other.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut asked = 0;
            while !done.load(Ordering::Relaxed) {
                let absent = json!([record(&format!("{topic}.gone-{asked}"))]);
                let raw = bench.post(&format!("gone-{asked}"), &absent);
                assert_problem(&raw, 404, "topic_not_found");
                asked += 1;
            }
            asked
        });
        for k in 0..50 {
            let from = Instant::now();
            bench.assert_good(&format!("good-{k}"));
            assert!(from.elapsed() < AT_ONCE, "{:?}", from.elapsed());
        }
        done.store(true, Ordering::Relaxed);
        assert!(asking.join().unwrap() > 0);
    });
    assert_eq!(records_of(topic).len(), 51);
    bench.world.audit();
}

/// F05
#[test]
fn a_fresh_topic_is_taken_at_once_and_a_missing_one_is_not_remembered_for_long() {
    let bench = Bench::new("f05-fresh");
    // At once, and 100 ms after it was made, as the case has it.
    let cases = [(false, 0), (false, 100), (true, 100)];
    for (k, (asked_before, pause_ms)) in cases.iter().cycle().take(9).enumerate() {
        let topic = format!("{}.fresh-{k}", bench.world.topic);
        let records = json!([record(&topic)]);
        if *asked_before {
            assert_problem(&bench.post("too-early", &records), 404, "topic_not_found");
        }
        bench.world.create_topic(&topic, 1, &[]);
        let made = Instant::now();
        std::thread::sleep(Duration::from_millis(*pause_ms));
        wait_for("the topic is taken", Duration::from_secs(5), || {
            let asked = made.elapsed();
            let raw = bench.post(&format!("fresh-{k}"), &records);
            match raw.status {
                200 => Some(()),
                404 => {
                    // Only by what was found before it was there.
                    let remembered = *asked_before && asked < AT_ONCE;
                    assert!(remembered, "{k} after {asked:?}: {}", raw.json());
                    None
                }
                503 => {
                    let refused = assert_problem(&raw, 503, "kafka_unavailable");
                    assert_eq!(refused["retry"], "same_key");
                    None
                }
                status => panic!("{k}: {status}: {}", raw.json()),
            }
        });
        assert_eq!(records_of(&topic).len(), 1);
    }
    bench.assert_good("after");
}

/// F05
#[test]
fn a_topic_that_was_deleted_is_missing_soon_and_does_not_come_back() {
    let bench = Bench::new("f05-deleted");
    let topic = bench.topic("deleted", 1, &[]);
    bench.post_new("there", &json!([record(&topic)]));
    bench.world.delete_topic(&topic);
    wait_for("it is gone", SOON, || partitions_of(&topic).is_none().then_some(()));
    let refused = wait_for("it is missing", SOON, || {
        let raw = bench.post("gone", &json!([record(&topic)]));
        // It would where the broker makes topics that clients ask for.
        assert!(!topics().contains(&topic), "it came back");
        match raw.status {
            404 => Some(raw),
            503 | 504 => None,
            status => panic!("{status}: {}", raw.json()),
        }
    });
    assert_problem(&refused, 404, "topic_not_found");
    bench.assert_good("after");
}
