//! Postgres or Kafka gone or silent: 503 or 504 in bounded time, and recovery without a restart.

use crate::chaos_proxy::{ChaosProxy, Mode};
use crate::client::Client;
use crate::gateway::Gateway;
use crate::proxies::{kafka_proxy, postgres_proxy};
use crate::world::{Options, World, wait_for};
use serde_json::json;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
/// The request deadline (10 s) and a second.
const BOUND: Duration = Duration::from_secs(11);
const LEASE: &str = "shard.7";

/// Breaks one store in one way while records are posted, and mends it.
fn outage(world: &World, gateway: &Gateway, proxy: &ChaosProxy, mode: Mode, codes: &[&str]) {
    let client: Client = gateway.client();
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    let holder = client.hold(LEASE, "w", SOON);
    client.records(&holder, "before", &records).expect(200);
    proxy.set_mode(mode);
    for k in 0..2 {
        let from = Instant::now();
        let answer = client.records(&holder, &format!("during-{k}"), &records);
        let took = from.elapsed();
        assert!(took < BOUND, "{mode:?}: {took:?}");
        assert!(matches!(answer.status, 503 | 504), "{mode:?}: {answer:?}");
        assert!(codes.contains(&answer.code()), "{mode:?}: {answer:?}");
        assert_eq!(answer.body["side_effect"], "maybe", "{answer:?}");
        assert_eq!(answer.body["retry"], "same_key", "{answer:?}");
    }
    wait_for("readiness is off", SOON, || (gateway.ready().status == 503).then_some(()));
    proxy.set_mode(Mode::Pass);
    for id in ["during-0", "during-1", "after"] {
        client.insist(&holder, id, &records, SOON).expect(200);
    }
    wait_for("readiness is back", SOON, || (gateway.ready().status == 200).then_some(()));
    let seen = world.read();
    for id in ["before", "during-0", "during-1", "after"] {
        assert_eq!(seen.iter().filter(|s| s.operation == id).count(), 1, "{id}: {seen:?}");
    }
    world.audit();
}

fn kafka_outage(test: &str, mode: Mode) {
    let proxy = kafka_proxy();
    let options = Options { bootstrap: Some(proxy.address()), ..Options::default() };
    let world = World::with(test, options);
    let gateway = world.gateway("g1");
    outage(&world, &gateway, &proxy, mode, &["kafka_unavailable", "outcome_unknown"]);
}

fn postgres_outage(test: &str, mode: Mode) {
    let (proxy, address) = postgres_proxy();
    let postgres = Some(address);
    let world = World::with(test, Options { postgres, ..Options::default() });
    let gateway = world.gateway("g1");
    outage(&world, &gateway, &proxy, mode, &["postgres_unavailable", "outcome_unknown"]);
}

#[test]
fn kafka_down_is_503_or_504_in_bounded_time_and_heals_without_a_restart() {
    kafka_outage("kafka-down", Mode::Refuse);
}

#[test]
fn kafka_silent_is_503_or_504_in_bounded_time_and_heals_without_a_restart() {
    kafka_outage("kafka-silent", Mode::Freeze);
}

#[test]
fn postgres_down_is_503_or_504_in_bounded_time_and_heals_without_a_restart() {
    postgres_outage("postgres-down", Mode::Refuse);
}

#[test]
fn postgres_silent_is_503_or_504_in_bounded_time_and_heals_without_a_restart() {
    postgres_outage("postgres-silent", Mode::Freeze);
}
