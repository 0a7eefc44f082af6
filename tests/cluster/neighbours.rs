//! Operations that share a batch: one that fails alone does not fail its neighbours.

use crate::client::{Answer, Client, Holder};
use crate::world::World;
use serde_json::{Value, json};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

/// Posts all at one instant, so that all but the first wait together.
fn at_once(client: &Client, holder: &Holder, posts: Vec<(String, Value)>) -> Vec<(String, Answer)> {
    let barrier = Arc::new(Barrier::new(posts.len()));
    let threads: Vec<_> = posts
        .into_iter()
        .map(|(id, records)| {
            let (client, holder, barrier) = (client.clone(), holder.clone(), Arc::clone(&barrier));
            std::thread::spawn(move || {
                barrier.wait();
                let answer = client.records(&holder, &id, &records);
                (id, answer)
            })
        })
        .collect();
    threads.into_iter().map(|t| t.join().unwrap()).collect()
}

/// Rounds of one guilty operation among fifteen good ones.
fn guilty_among_good(world: &World, guilty: &Value, status: u16, code: &str) {
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    for round in 0..5 {
        let good = json!([{ "topic": world.topic, "value": "good" }]);
        let mut posts: Vec<(String, Value)> =
            (0..15).map(|k| (format!("good-{round}-{k}"), good.clone())).collect();
        posts.insert(7, (format!("guilty-{round}"), guilty.clone()));
        for (id, answer) in at_once(&client, &holder, posts) {
            if id.starts_with("good") {
                assert_eq!(answer.status, 200, "{id}: {answer:?}\n{}", gateway.log());
            } else {
                assert_eq!((answer.status, answer.code()), (status, code), "{id}: {answer:?}");
                assert_eq!(answer.body["side_effect"], "none", "{answer:?}");
            }
        }
    }
    let seen = world.read();
    assert_eq!(seen.iter().filter(|s| s.operation.starts_with("good")).count(), 75);
    assert_eq!(seen.iter().filter(|s| s.operation.starts_with("guilty")).count(), 0);
    world.audit();
}

#[test]
fn a_record_that_the_broker_refuses_does_not_fail_its_neighbours() {
    let world = World::new("too-large");
    let small = format!("data.small.{}", world.name);
    world.create_topic(&small, 1, &[("max.message.bytes", "2000")]);
    let guilty = json!([
        { "topic": world.topic, "value": "its own good record" },
        { "topic": small, "value": "x".repeat(10_000) },
    ]);
    guilty_among_good(&world, &guilty, 413, "record_too_large");
}

#[test]
fn a_topic_found_missing_late_does_not_fail_the_neighbours() {
    let world = World::new("late-topic");
    let gone = format!("data.gone.{}", world.name);
    world.create_topic(&gone, 1, &[]);
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    // The gateway has seen the topic, and then it goes.
    let guilty = json!([{ "topic": gone, "value": "v" }]);
    client.records(&holder, "seen", &guilty).expect(200);
    world.delete_topic(&gone);
    let good = json!([{ "topic": world.topic, "value": "good" }]);
    let mut posts: Vec<(String, Value)> =
        (0..15).map(|k| (format!("good-{k}"), good.clone())).collect();
    posts.insert(7, ("guilty".to_owned(), guilty));
    for (id, answer) in at_once(&client, &holder, posts) {
        if id == "guilty" {
            assert!(matches!(answer.status, 404 | 503 | 504), "{answer:?}");
        } else {
            assert_eq!(answer.status, 200, "{id}: {answer:?}\n{}", gateway.log());
        }
    }
    let seen = world.read();
    assert_eq!(seen.iter().filter(|s| s.operation.starts_with("good")).count(), 15);
    assert_eq!(seen.iter().filter(|s| s.operation == "guilty").count(), 0);
    world.audit();
}

#[test]
fn many_identical_posts_at_once_are_one_operation() {
    let world = World::new("identical");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    let other = json!([{ "topic": world.topic, "value": "other" }]);
    let mut posts: Vec<(String, Value)> =
        (0..20).map(|_| ("same".to_owned(), records.clone())).collect();
    posts.push(("same".to_owned(), other));
    let answers = at_once(&client, &holder, posts);
    let ok: Vec<_> = answers.iter().filter(|(_, a)| a.status == 200).collect();
    let conflicts: Vec<_> =
        answers.iter().filter(|(_, a)| a.code() == "operation_conflict").collect();
    assert_eq!(ok.len() + conflicts.len(), 21, "{answers:?}");
    // Whichever payload came first is the operation; the other one is the conflict.
    assert!(conflicts.len() == 1 || conflicts.len() == 20, "{answers:?}");
    let first = crate::world::offsets(&ok[0].1.body);
    assert!(ok.iter().all(|(_, a)| crate::world::offsets(&a.body) == first));
    assert_eq!(world.read().len(), 1);
    world.audit();
}
