//! A Kafka that forgets a transactional id, and a ledger that it compacts meanwhile.

use super::broker::Broker;
use super::{BOUND, SOON, count, operations, records};
use crate::chaos_proxy::{ChaosProxy, Framing, api};
use crate::client::{Client, Holder};
use crate::gateway::Gateway;
use crate::transactions::transactions;
use crate::world::{Options, World, wait_for};
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// So long must Kafka remember an id and a producer, and it looks every second.
const FORGETFUL: &str = "transactional.id.expiration.ms=10000
transaction.remove.expired.transaction.cleanup.interval.ms=1000
producer.id.expiration.ms=10000
producer.id.expiration.check.interval.ms=1000
log.cleaner.backoff.ms=200";

struct Scene {
    /// First, for they are dropped first; the broker goes last.
    g1: Gateway,
    g2: Gateway,
    world: World,
    proxy: ChaosProxy,
    broker: Broker,
}

impl Scene {
    fn new() -> Self {
        let broker = Broker::start(FORGETFUL);
        let (bound, advertised) = broker.chaos;
        let target = format!("127.0.0.1:{bound}");
        let proxy = ChaosProxy::start(advertised, &target, Framing::Kafka).unwrap();
        let options = Options {
            bootstrap: Some(proxy.address()),
            broker: Some(broker.address()),
            ..Options::default()
        };
        let world = World::with("forgotten", options);
        compact_at_once(&world);
        Self { g1: world.gateway("g1"), g2: world.gateway("g2"), world, proxy, broker }
    }

    fn records(&self, id: &str) -> Value {
        records(&self.world, id)
    }

    /// An operation after the idle time: 200, after at most one 503.
    fn goes_on(&self, client: &Client, holder: &Holder, id: &str) {
        let mut refusals = 0;
        loop {
            let from = Instant::now();
            let answer = client.records(holder, id, &self.records(id));
            assert!(from.elapsed() < BOUND);
            if answer.status == 200 {
                break;
            }
            refusals += 1;
            assert_eq!(answer.status, 503, "{answer:?}");
            assert_ne!(answer.code(), "producer_fenced", "{answer:?}");
            assert!(refusals < 2, "{answer:?}");
        }
        eprintln!("{}: {id} after {refusals} refusals", holder.lease);
    }
}

/// Every record of the ledger but a lease's last may go, as soon as it is in a closed segment.
fn compact_at_once(world: &World) {
    let ledger = world.ledger();
    let config = AlterConfig::new(ResourceSpecifier::Topic(&ledger))
        .set("cleanup.policy", "compact")
        .set("min.compaction.lag.ms", "0")
        .set("min.cleanable.dirty.ratio", "0.01")
        .set("segment.ms", "1000")
        .set("delete.retention.ms", "100");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done = world.admin();
    let done = done.alter_configs([&config], &AdminOptions::new());
    runtime.block_on(done).unwrap().pop().unwrap().unwrap();
}

/// Posts on one lease, and only renews the others, until Kafka knows none of theirs any more and
/// the ledger has lost most of what the one wrote. Returns how often it wrote.
fn idle(scene: &Scene, busy: &Holder, others: &[(&Gateway, &Holder)]) -> usize {
    let ids: Vec<String> = others.iter().map(|(_, h)| transactional_id(scene, h)).collect();
    let prefix = format!("fencepost:{}:", scene.world.name);
    let known = || transactions(&scene.broker.address(), &prefix);
    let all = known();
    assert!(ids.iter().all(|id| all.iter().any(|(known, _)| known == id)), "{all:?}");
    let (client, mut written) = (scene.g1.client(), 0);
    let from = Instant::now();
    wait_for("kafka has forgotten them", Duration::from_secs(60), || {
        written += 1;
        let id = format!("busy-{written}");
        client.insist(busy, &id, &scene.records(&id), SOON).expect(200);
        for (gateway, holder) in others {
            gateway.client().renew(holder).expect(200);
        }
        let known = known();
        let forgotten = ids.iter().all(|id| known.iter().all(|(known, _)| known != id));
        let kept = scene.world.read_topic(&scene.world.ledger()).len();
        (forgotten && kept < written).then_some(())
    });
    eprintln!("forgotten after {:?}; {written} batches compacted", from.elapsed());
    written
}

fn transactional_id(scene: &Scene, holder: &Holder) -> String {
    format!("fencepost:{}:{}", scene.world.name, holder.lease)
}

/// F25 (a) and (b), and F26 (c) with a compacted ledger, in one life of a broker.
#[test]
fn a_lease_that_kafka_forgot_goes_on_and_its_zombie_does_not_and_compaction_hides_nothing() {
    let scene = Scene::new();
    let (c1, c2) = (scene.g1.client(), scene.g2.client());
    let quiet = c1.hold("quiet.a", "w", SOON);
    c1.records(&quiet, "a-1", &scene.records("a-1")).expect(200);
    let old = c1.take("zombie.b", "w1", SOON);
    c1.records(&old, "b-1", &scene.records("b-1")).expect(200);
    let new = c2.hold("zombie.b", "w2", SOON);
    c2.records(&new, "b-2", &scene.records("b-2")).expect(200);
    let busy = c1.hold("busy.c", "w", SOON);
    let written = idle(&scene, &busy, &[(&scene.g1, &quiet), (&scene.g2, &new)]);

    // (b) The row refuses the zombie; its producer is not initialised again.
    let inits = scene.proxy.count(api::INIT_PRODUCER_ID);
    let stale = c1.records(&old, "stale", &scene.records("stale"));
    stale.expect_problem(412, "stale_token");
    assert_eq!(scene.proxy.count(api::INIT_PRODUCER_ID), inits);
    scene.goes_on(&c2, &new, "b-3");
    // (a)
    scene.goes_on(&c1, &quiet, "a-2");

    // A batch that only the compacted ledger knows, read by one who has read nothing else.
    scene.g1.arm("after_end", "busy.c", "kill", 0);
    assert_eq!(c1.records(&busy, "hit", &scene.records("hit")).status, 0);
    scene.g1.wait_dead();
    let before: usize = operations(&scene.world).parse().unwrap();
    scene.g1.restart();
    let answer = c1.acquire("busy.c", "w", json!({ "replace": true, "ttl_ms": 600_000 }));
    let body = answer.expect(200);
    assert_eq!(operations(&scene.world), (before + 1).to_string());
    let next = Holder::of(&body);
    let answer = c1.insist(&next, "hit", &scene.records("hit"), SOON).expect(200);
    assert_eq!(answer["replayed"], true);
    let seen = scene.world.read();
    let busy: Vec<String> = (1..=written).map(|n| format!("busy-{n}")).collect();
    let others = ["a-1", "a-2", "b-1", "b-2", "b-3", "hit"];
    for id in others.into_iter().chain(busy.iter().map(String::as_str)) {
        assert_eq!(count(&seen, id), 2, "{id} is not there once and whole");
    }
    assert_eq!(count(&seen, "stale"), 0);
    scene.world.audit();
}
