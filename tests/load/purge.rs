//! What a purge of many operations costs those who write meanwhile.

use crate::world::{Options, World};
use crate::{hold, setting};
use serde_json::json;
use std::time::Instant;

fn quantile(sorted: &[f64], q: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * q) as usize]
}

/// Two worlds of the same size side by side: in one the rows are past their retention and are
/// removed while its gateway is written to, in the other they are not.
#[test]
#[ignore = "a measurement of minutes, not a check"]
fn a_purge_against_the_same_table_at_rest() {
    let rows = setting("LOAD_ROWS", 1_000_000);
    let filled = |name: &str, age: &str| {
        let world = World::with(name, Options::default());
        world.sql(&format!(
            "INSERT INTO operations (lease, operation_id, fingerprint, token, incarnation,
                 batch_seq, runs, accepted_at)
             SELECT 'old', k, repeat('x', 32)::bytea, 1, 1, 1, repeat('x', 30)::bytea,
                 clock_timestamp() - interval '{age}'
             FROM generate_series(1, {rows}) k"
        ));
        world.sql("VACUUM ANALYZE operations");
        world
    };
    let worlds = [filled("purged", "8 days"), filled("resting", "1 hour")];
    let gateways = worlds.each_ref().map(|world| world.gateway("g1"));
    let clients = gateways.each_ref().map(|gateway| gateway.client());
    let holders = clients.each_ref().map(|client| hold(client, "lone"));
    let mut took = [Vec::new(), Vec::new()];
    let left = || -> u64 {
        let count = "SELECT count(*) FROM operations WHERE accepted_at < now() - interval '7 days'";
        worlds[0].sql(count).parse().unwrap()
    };
    let (from, mut round) = (Instant::now(), 0);
    let rounds = setting("LOAD_ROUNDS", 30);
    while round < rounds {
        for (k, client) in clients.iter().enumerate() {
            let records = json!([{ "topic": worlds[k].topic, "value": "x".repeat(100) }]);
            for n in 0..200 {
                let from = Instant::now();
                client.records(&holders[k], &format!("{round}-{n}"), &records).expect(200);
                took[k].push(from.elapsed().as_secs_f64() * 1_000.0);
            }
        }
        round += 1;
    }
    let (seconds, left) = (from.elapsed().as_secs_f64(), left());
    took.iter_mut().for_each(|t| t.sort_by(f64::total_cmp));
    println!("{} of {rows} rows removed in {seconds:.0} s", rows - left);
    for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
        let (purged, resting) = (quantile(&took[0], q), quantile(&took[1], q));
        let ratio = purged / resting;
        println!("POST {name} purging {purged:7.2} ms, at rest {resting:7.2} ms: {ratio:.2}");
    }
    assert!(left < rows, "no purge took place");
}
