//! Ratios of the gateway to what it stands on, measured in one run: `cargo test --release --test
//! load -- --ignored --nocapture`. Prints figures; judges nothing but that every answer was right.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::let_underscore_must_use,
    reason = "a measurement that is wrong about a value fails"
)]

#[path = "../cluster/client.rs"]
mod client;
#[path = "../cluster/gateway.rs"]
mod gateway;
mod purge;
mod raw;
#[path = "../cluster/world.rs"]
mod world;

use client::{Client, Holder};
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use world::World;

/// Settings from the environment, for a quicker look.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn run() -> Duration {
    Duration::from_secs(setting("LOAD_SECONDS", 8))
}

fn rounds() -> u64 {
    setting("LOAD_ROUNDS", 3)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median duration of a call, in ms.
fn p50_ms(times: usize, mut call: impl FnMut(usize)) -> f64 {
    for k in 0..50 {
        call(k);
    }
    let one = |k: usize, call: &mut dyn FnMut(usize)| {
        let from = Instant::now();
        call(k);
        from.elapsed().as_secs_f64() * 1_000.0
    };
    median((50..50 + times).map(|k| one(k, &mut call)).collect())
}

/// For longer than the run.
fn hold(client: &Client, lease: &str) -> Holder {
    client.hold(lease, "bench", Duration::from_secs(30))
}

/// Acknowledged operations a second of `posters` threads over the given leases.
fn posts_per_s(
    world: &World,
    client: &Client,
    holders: &[Holder],
    posters: usize,
    tag: &str,
) -> f64 {
    let records = json!([{ "topic": world.topic, "value": "x".repeat(100) }]);
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let from = Instant::now();
    std::thread::scope(|scope| {
        for poster in 0..posters {
            let holder = &holders[poster % holders.len()];
            let (done, stop, records) = (&done, &stop, &records);
            scope.spawn(move || {
                let mut k = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let id = format!("{tag}-{poster}-{k}");
                    client.records(holder, &id, records).expect(200);
                    done.fetch_add(1, Ordering::Relaxed);
                    k += 1;
                }
            });
        }
        std::thread::sleep(run());
        stop.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / from.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a measurement of minutes, not a check"]
fn ratios_of_the_gateway_to_raw_kafka_and_raw_postgres() {
    let world = World::new("load");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    // The raw producers write beside the gateway's topic, so that it can be audited at the end.
    let other = format!("data.raw.{}", world.name);
    world.create_topic(&other, 3, &[]);
    let ledger = format!("ledger.raw.{}", world.name);
    world.create_topic(&ledger, 4, &[("cleanup.policy", "compact")]);
    let records = json!([{ "topic": world.topic, "value": "x".repeat(100) }]);
    let lone = hold(&client, "lone");
    let (mut posts, mut kafkas, mut postgreses) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds() {
        let mut raw = raw::Producer::new(&format!("raw-{}-{round}", world.name), 0);
        kafkas.push(p50_ms(400, |_| raw.transaction(&other, &ledger)));
        let mut postgres = raw::Postgres::new(&world);
        postgreses.push(p50_ms(400, |k| postgres.transaction(&format!("{round}-{k}"))));
        posts.push(p50_ms(400, |k| {
            client.records(&lone, &format!("lone-{round}-{k}"), &records).expect(200);
        }));
    }
    let (post, kafka, postgres) = (median(posts), median(kafkas), median(postgreses));
    println!("lone POST p50            {post:8.2} ms");
    println!("raw Kafka transaction    {kafka:8.2} ms");
    println!("raw Postgres transaction {postgres:8.2} ms");
    println!(
        "lone POST / (Kafka + Postgres)        {:6.2}   (at most 1.6)",
        post / (kafka + postgres)
    );

    let many: Vec<Holder> = (0..32).map(|k| hold(&client, &format!("many.{k}"))).collect();
    let (mut ones, mut raws, mut leases, mut posters) = (vec![], vec![], vec![], vec![]);
    for round in 0..rounds() {
        let lone = std::slice::from_ref(&lone);
        ones.push(posts_per_s(&world, &client, lone, 1, &format!("one-{round}")));
        raws.push(raw::many(32, &world, &other, &ledger, round, run()));
        leases.push(posts_per_s(&world, &client, &many, 32, &format!("leases-{round}")));
        posters.push(posts_per_s(&world, &client, lone, 16, &format!("posters-{round}")));
    }
    let (one, raw, leases, posters) = (median(ones), median(raws), median(leases), median(posters));
    println!("one lease, one poster    {one:8.0} operations/s");
    println!("32 raw producers         {raw:8.0} transactions/s");
    println!("32 leases, one poster each {leases:6.0} operations/s");
    println!("one lease, 16 posters    {posters:8.0} operations/s");
    println!("32 leases / 32 raw producers          {:6.2}   (at least 0.5)", leases / raw);
    println!("32 leases / one poster                {:6.2}   (at least 3)", leases / one);
    println!("16 posters on one lease / one poster  {:6.2}   (at least 5)", posters / one);
    world.audit();
}
