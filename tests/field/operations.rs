//! Operations in the topics, and what answers say of them.

use crate::world::{Seen, World};
use serde_json::{Value, json};
use std::collections::HashMap;

/// An operation in two partitions: half of it there would be seen.
pub fn records(world: &World, id: &str) -> Value {
    halves(&world.topic, id)
}

/// The same where the world is not at hand.
pub fn halves(topic: &str, id: &str) -> Value {
    json!([
        { "topic": topic, "partition": 0, "value": format!("{id} first") },
        { "topic": topic, "partition": 1, "value": format!("{id} second") },
    ])
}

/// Where an answer says that the records stand.
pub fn told(answer: &Value) -> Vec<(String, i64, i64)> {
    let offsets = answer["offsets"].as_array().unwrap();
    let place = |o: &Value| {
        let topic = o["topic"].as_str().unwrap().to_owned();
        (topic, o["partition"].as_i64().unwrap(), o["offset"].as_i64().unwrap())
    };
    let mut places: Vec<_> = offsets.iter().map(place).collect();
    places.sort();
    places
}

/// Where they stand.
pub fn places(seen: &[Seen]) -> Vec<(String, i64, i64)> {
    let place = |s: &Seen| (s.topic.clone(), i64::from(s.partition), s.offset);
    let mut places: Vec<_> = seen.iter().map(place).collect();
    places.sort();
    places
}

/// What read_committed consumers get of these topics, by operation.
pub fn by_operation(world: &World, topics: &[&str]) -> HashMap<String, Vec<Seen>> {
    let mut all: HashMap<String, Vec<Seen>> = HashMap::new();
    for seen in topics.iter().flat_map(|topic| world.read_topic(topic)) {
        all.entry(seen.operation.clone()).or_default().push(seen);
    }
    all
}
