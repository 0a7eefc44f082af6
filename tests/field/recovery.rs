//! Recovery: frozen and killed gateways, a Kafka that forgot, a ledger held up, cut or slow.
//!
//! Beside `tests/cluster/crash.rs`, which freezes and kills at every step and checks what comes of
//! it: here it is how long that takes and what stands in Kafka at which moment.

mod broker;
mod forgotten;
mod ledger;

use crate::client::{Answer, Client, Holder};
use crate::operations::{by_operation, records};
use crate::world::{Seen, World, wait_for};
use nix::sys::signal::Signal;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
/// The request deadline and a second.
const BOUND: Duration = Duration::from_secs(11);
/// What the tests' configuration says.
const IDLE_IN_TRANSACTION: Duration = Duration::from_millis(1_700);
const TRANSACTION: Duration = Duration::from_secs(3);
/// The broker's sweep for transactions that ran out.
const SWEEP: Duration = Duration::from_secs(1);
const LEASE: &str = "shard.7";

fn posted_by(client: Client, world: &World, old: &Holder, id: &'static str) -> JoinHandle<Answer> {
    let (old, records) = (old.clone(), records(world, id));
    std::thread::spawn(move || client.records(&old, id, &records))
}

fn count(seen: &[Seen], id: &str) -> usize {
    seen.iter().filter(|s| s.operation == id).count()
}

fn operations(world: &World) -> String {
    world.sql("SELECT count(*) FROM operations")
}

/// The last stable offset and the end of a partition.
struct Ends {
    committed: BaseConsumer,
    plain: BaseConsumer,
}

impl Ends {
    fn new(world: &World) -> Self {
        let consumer = |isolation: &str| {
            ClientConfig::new()
                .set("bootstrap.servers", world.broker())
                .set("isolation.level", isolation)
                .create()
                .unwrap()
        };
        Self { committed: consumer("read_committed"), plain: consumer("read_uncommitted") }
    }

    fn of(&self, topic: &str, partition: i32) -> (i64, i64) {
        let end = |c: &BaseConsumer| c.fetch_watermarks(topic, partition, SOON).unwrap().1;
        (end(&self.committed), end(&self.plain))
    }

    fn is_stuck(&self, topic: &str, partition: i32) -> bool {
        let (stable, end) = self.of(topic, partition);
        stable < end
    }
}

fn frozen_at(step: &str) {
    let world = World::new("frozen");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let old = g1.client().take(LEASE, "w1", SOON);
    g1.client().records(&old, "before", &records(&world, "before")).expect(200);
    g1.arm(step, LEASE, "stop", 0);
    let asked = posted_by(g1.client(), &world, &old, "hit");
    g1.wait_stopped();
    let frozen = Instant::now();
    let new = g2.client().hold(LEASE, "w2", SOON);
    let took = frozen.elapsed();
    eprintln!("{step}: taken over {took:?} after the freeze");
    assert!(took < IDLE_IN_TRANSACTION + BOUND, "{took:?}");
    let row = world.sql("SELECT token FROM fences");
    assert_eq!(row, new.token.to_string());
    // What the row's new token finds of the old one in Kafka is all that there will ever be.
    let of_old = || -> Vec<Seen> {
        let mut seen = world.read();
        seen.retain(|s| s.token == old.token);
        seen.sort_by_key(|s| (s.partition, s.offset));
        seen
    };
    let found = of_old();
    let in_time = count(&found, "hit") > 0;
    g2.client().insist(&new, "next", &records(&world, "next"), SOON).expect(200);
    g1.signal(Signal::SIGCONT);
    let late = asked.join().unwrap();
    match late.status {
        200 => assert!(in_time, "{step}: {late:?}"),
        412 => assert_eq!(late.code(), "stale_token", "{late:?}"),
        503 | 504 => {}
        _ => panic!("{step}: {late:?}"),
    }
    let stale = records(&world, "stale");
    g1.client().insist(&old, "stale", &stale, SOON).expect_problem(412, "stale_token");
    let again = g2.client().insist(&new, "hit", &records(&world, "hit"), SOON).expect(200);
    assert_eq!(again["replayed"], in_time, "{step}");
    let by = if in_time { old.token } else { new.token };
    assert_eq!(again["token"], by.to_string(), "{step}");
    // The woken gateway's own producer is of no use any more; it opens another.
    g1.client().insist(&new, "after", &records(&world, "after"), SOON).expect(200);
    assert_eq!(of_old(), found, "{step}: something of the old token came after the new one");
    let seen = world.read();
    for id in ["before", "hit", "next", "after"] {
        assert_eq!(count(&seen, id), 2, "{step}: {id} is not there once and whole: {seen:?}");
    }
    world.audit();
}

/// F22: frozen gateway, session killed.
#[test]
fn nothing_of_a_frozen_gateways_token_appears_once_the_row_has_the_next_one() {
    let steps = ["after_row_lock", "after_last_send", "before_end", "after_end"];
    let all: Vec<_> = steps.map(|s| (s, std::thread::spawn(move || frozen_at(s)))).into();
    let failed: Vec<_> = all.into_iter().filter_map(|(s, t)| t.join().err().map(|_| s)).collect();
    assert!(failed.is_empty(), "failed at {failed:?}");
}

/// F26 (a): kill -9 between send and `EndTxn`, and nobody comes for the lease.
#[test]
fn readers_wait_for_a_killed_gateways_transaction_no_longer_than_its_timeout_and_the_sweep() {
    let world = World::new("orphan");
    let (g1, ends) = (world.gateway("g1"), Ends::new(&world));
    let old = g1.client().hold(LEASE, "w1", SOON);
    g1.client().records(&old, "before", &records(&world, "before")).expect(200);
    g1.arm("after_ledger_send", LEASE, "kill", 0);
    assert_eq!(g1.client().records(&old, "hit", &records(&world, "hit")).status, 0);
    g1.wait_dead();
    let killed = Instant::now();
    assert!(ends.is_stuck(&world.topic, 0), "the transaction was not open");
    let within = TRANSACTION + SWEEP + Duration::from_secs(2);
    wait_for("readers go on", within, || (!ends.is_stuck(&world.topic, 0)).then_some(()));
    eprintln!("readers go on {:?} after the kill", killed.elapsed());
    assert_eq!(count(&world.read(), "hit"), 0);
    g1.restart();
    g1.client().insist(&old, "hit", &records(&world, "hit"), SOON).expect(200);
    assert_eq!(count(&world.read(), "hit"), 2);
    world.audit();
}

/// F26 (a): kill -9 between send and `EndTxn`, and the next gateway opens the lease.
#[test]
fn readers_go_on_as_soon_as_the_next_gateway_opens_a_killed_ones_lease() {
    let world = World::new("reopened");
    let (g1, g2, ends) = (world.gateway("g1"), world.gateway("g2"), Ends::new(&world));
    let old = g1.client().hold(LEASE, "w1", SOON);
    g1.client().records(&old, "before", &records(&world, "before")).expect(200);
    g1.arm("after_ledger_send", LEASE, "kill", 0);
    assert_eq!(g1.client().records(&old, "hit", &records(&world, "hit")).status, 0);
    g1.wait_dead();
    let killed = Instant::now();
    assert!(ends.is_stuck(&world.topic, 0), "the transaction was not open");
    let answer = g2.client().records(&old, "hit", &records(&world, "hit")).expect(200);
    let took = killed.elapsed();
    wait_for("readers go on", SWEEP, || (!ends.is_stuck(&world.topic, 0)).then_some(()));
    eprintln!("answered {took:?} after the kill, readers go on after {:?}", killed.elapsed());
    assert_eq!(answer["replayed"], false);
    assert!(took < TRANSACTION, "it waited for the timeout: {took:?}");
    let seen = by_operation(&world, &[&world.topic]);
    assert_eq!(seen["hit"].len(), 2);
    world.audit();
}
