//! The ledger read back: held up by somebody else's transaction, cut, and slower than a deadline.

use super::{BOUND, Ends, LEASE, SOON, count, operations, records};
use crate::chaos_proxy::api;
use crate::client::{Answer, Client, Holder};
use crate::gateway::Gateway;
use crate::world::{OPS, Options, World, wait_for};
use fencepost::protocol::lease::LeaseName;
use fencepost::protocol::ledger::ledger_partition;
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::Offset;
use serde_json::json;
use std::time::{Duration, Instant};

fn partition_of(lease: &str) -> i32 {
    ledger_partition(&LeaseName::parse(lease).unwrap(), 4).0
}

/// Leaves a batch that Kafka has committed and Postgres does not know, and no gateway of it.
fn commit_and_die(world: &World, gateway: &Gateway, holder: &Holder) {
    gateway.arm("after_end", &holder.lease, "kill", 0);
    assert_eq!(gateway.client().records(holder, "hit", &records(world, "hit")).status, 0);
    gateway.wait_dead();
}

/// Bounded, and no answer that anything could be built on.
#[track_caller]
fn refused(answer: &Answer, from: Instant) {
    let took = from.elapsed();
    assert!(took < BOUND, "{took:?}: {answer:?}");
    assert!(matches!(answer.status, 503 | 504), "{answer:?}");
    assert_ne!(answer.code(), "quarantined", "{answer:?}");
}

/// Asks for the lease in every way while its ledger cannot be read.
fn no_way_in(world: &World, client: &Client, old: &Holder) {
    let from = Instant::now();
    refused(&client.records(old, "hit", &records(world, "hit")), from);
    for _ in 0..2 {
        let from = Instant::now();
        refused(
            &client.acquire(&old.lease, "w1", json!({ "replace": true, "ttl_ms": 600_000 })),
            from,
        );
    }
}

/// The batch is found and written down before anybody asks for it, and is there once.
fn found_again(world: &World, client: &Client, old: &Holder) {
    let before: u32 = operations(world).parse().unwrap();
    let body = wait_for("the lease can be opened", SOON, || {
        let more = json!({ "replace": true, "ttl_ms": 600_000 });
        let answer = client.acquire(&old.lease, "w1", more);
        (answer.status == 200).then_some(answer.body)
    });
    let new = Holder::of(&body);
    assert_eq!(operations(world), (before + 1).to_string());
    let answer = client.insist(&new, "hit", &records(world, "hit"), SOON).expect(200);
    assert_eq!(
        (&answer["replayed"], &answer["token"]),
        (&json!(true), &json!(old.token.to_string()))
    );
    client.insist(&new, "next", &records(world, "next"), SOON).expect(200);
    let seen = world.read();
    for id in ["before", "hit", "next"] {
        assert_eq!(count(&seen, id), 2, "{id} is not there once and whole: {seen:?}");
    }
    world.audit();
}

/// F26 (b): a foreign open transaction below the lease's newest ledger record.
#[test]
fn a_strangers_open_transaction_in_the_ledger_holds_an_open_up_and_hides_nothing() {
    let world = World::new("stranger");
    let (g1, g2, ends) = (world.gateway("g1"), world.gateway("g2"), Ends::new(&world));
    let old = g1.client().hold(LEASE, "w1", SOON);
    g1.client().records(&old, "before", &records(&world, "before")).expect(200);
    let stranger: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", world.broker())
        .set("transactional.id", format!("stranger-{}", world.name))
        .set("transaction.timeout.ms", "60000")
        .create()
        .unwrap();
    stranger.init_transactions(SOON).unwrap();
    stranger.begin_transaction().unwrap();
    let (ledger, partition) = (world.ledger(), partition_of(LEASE));
    let record = BaseRecord::to(&ledger).partition(partition).key("stranger").payload("x");
    stranger.send(record).map_err(|(error, _)| error).unwrap();
    stranger.flush(SOON).unwrap();
    assert!(ends.is_stuck(&ledger, partition), "the stranger's transaction is not open");
    commit_and_die(&world, &g1, &old);
    no_way_in(&world, &g2.client(), &old);
    assert_eq!(operations(&world), "1");
    assert_eq!(world.sql("SELECT token FROM fences"), old.token.to_string());
    assert!(ends.is_stuck(&ledger, partition), "the stranger's transaction did not last");
    stranger.abort_transaction(SOON).unwrap();
    found_again(&world, &g2.client(), &old);
}

/// F26 (d): ledger reads slower than the time that an open has.
#[test]
fn a_ledger_read_that_is_too_slow_is_a_failure_and_not_the_end_of_the_log() {
    let proxy = crate::proxies::kafka_proxy();
    let options = Options { bootstrap: Some(proxy.address()), ..Options::default() };
    let world = World::with("slow-ledger", options);
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let old = g1.client().hold(LEASE, "w1", SOON);
    g1.client().records(&old, "before", &records(&world, "before")).expect(200);
    proxy.slow_replies(api::FETCH, Duration::from_secs(3));
    commit_and_die(&world, &g1, &old);
    no_way_in(&world, &g2.client(), &old);
    // One that has read nothing yet says so until it has.
    g1.restart();
    let from = Instant::now();
    let more = json!({ "replace": true, "ttl_ms": 600_000 });
    refused(&g1.client().acquire(LEASE, "w1", more), from);
    assert_eq!(operations(&world), "1");
    assert_eq!(world.sql("SELECT token FROM fences"), old.token.to_string());
    proxy.slow_replies(api::FETCH, Duration::ZERO);
    found_again(&world, &g2.client(), &old);
}

/// Deletes every record of the ledger; what is left is an empty log that begins above 0.
fn empty_the_ledger(world: &World, ends: &Ends) {
    let (admin, ledger) = (world.admin(), world.ledger());
    // A log that is only compacted may not be cut.
    let policy = AlterConfig::new(ResourceSpecifier::Topic(&ledger))
        .set("cleanup.policy", "compact,delete")
        .set("retention.ms", "-1");
    let options = AdminOptions::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(admin.alter_configs([&policy], &options)).unwrap().pop().unwrap().unwrap();
    let mut all = TopicPartitionList::new();
    for partition in 0..4 {
        all.add_partition_offset(&ledger, partition, Offset::End).unwrap();
    }
    let cut = runtime.block_on(admin.delete_records(&all, &options)).unwrap();
    assert!(cut.elements().iter().all(|p| p.error().is_ok()), "{cut:?}");
    for lease in ["used.1", "lost.2"] {
        let at = partition_of(lease);
        let (low, high) = ends.plain.fetch_watermarks(&ledger, at, SOON).unwrap();
        assert!(low > 0 && low == high, "{lease}: {low}..{high}");
    }
}

#[track_caller]
fn state_of(client: &Client, lease: &str) -> String {
    let view = client.get(&format!("/v1/leases/{lease}"), Some(OPS)).expect(200);
    view["state"].as_str().unwrap().to_owned()
}

/// F26 (c): a ledger that ends in a marker, and one that was emptied, its low watermark above 0.
#[test]
fn a_ledger_that_lost_its_history_is_never_taken_for_one_that_had_none() {
    let world = World::new("emptied");
    let (g1, g2, ends) = (world.gateway("g1"), world.gateway("g2"), Ends::new(&world));
    let ledger = world.ledger();
    let used = g1.client().take("used.1", "w1", SOON);
    g1.client().records(&used, "before", &records(&world, "before")).expect(200);
    let lost = g1.client().take("lost.2", "w1", SOON);
    commit_and_die(&world, &g1, &lost);
    let at = partition_of("used.1");
    let last =
        world.read_topic(&ledger).iter().filter(|s| s.partition == at).map(|s| s.offset).max();
    let end = ends.of(&ledger, at).1;
    assert!(last.unwrap() < end - 1, "the ledger does not end in a marker");
    let held = g2.client().take("used.1", "w2", SOON);
    g2.client().insist(&held, "next", &records(&world, "next"), SOON).expect(200);
    empty_the_ledger(&world, &ends);
    // This one remembers that there is something to redo, and cannot read it any more.
    wait_expired(&world);
    for lease in ["lost.2", "used.1"] {
        let from = Instant::now();
        refused(&g2.client().acquire(lease, "w3", json!({})), from);
    }
    // This one has read nothing but what is left.
    g1.restart();
    let client = g1.client();
    for lease in ["used.1", "lost.2"] {
        for _ in 0..2 {
            let from = Instant::now();
            client.acquire(lease, "w3", json!({})).expect_problem(503, "quarantined");
            assert!(from.elapsed() < BOUND);
        }
        assert_eq!(state_of(&client, lease), "quarantined");
    }
    client.records(&held, "stale", &records(&world, "stale")).expect_problem(503, "quarantined");
    // A lease that never had a history is like any other.
    let new = client.take("new.3", "w1", SOON);
    client.insist(&new, "good", &records(&world, "good"), SOON).expect(200);
    let seen = world.read();
    for id in ["before", "next", "hit", "good"] {
        assert_eq!(count(&seen, id), 2, "{id} is not there once and whole: {seen:?}");
    }
    assert_eq!(count(&seen, "stale"), 0);
}

fn wait_expired(world: &World) {
    wait_for("every lease is over", SOON, || {
        let sql = "SELECT count(*) FROM leases WHERE expires_at > clock_timestamp()";
        (world.sql(sql) == "0").then_some(())
    });
}
