//! A stale worker cannot write; of several reclaimers one wins.

use crate::client::Holder;
use crate::world::{World, offsets};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_stale_worker_is_refused_after_a_takeover_and_nothing_of_it_is_visible() {
    let world = World::new("takeover");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let (c1, c2) = (g1.client(), g2.client());
    let records = json!([{ "topic": world.topic, "key": "k", "value": "by 17" }]);
    let old = c1.take("shard.7", "indexer-17", SOON);
    c1.records(&old, "a", &records).expect(200);
    let new = c2.take("shard.7", "indexer-04", SOON);
    assert!(new.token > old.token);
    let first = c2.records(&new, "b", &records).expect(200);
    for client in [&c1, &c2] {
        let refused = client.records(&old, "c", &records).expect_problem(412, "stale_token");
        assert_eq!(refused["side_effect"], "none");
        assert_eq!(refused["retry"], "reacquire");
        client.renew(&old).expect_problem(412, "stale_token");
        client.release(&old).expect_problem(412, "stale_token");
        // What the old token had written is answered to whoever asks with its id.
        let replay = client.records(&old, "a", &records).expect(200);
        assert_eq!(replay["replayed"], true);
    }
    let again = c1.records(&new, "b", &records).expect(200);
    assert_eq!((again["replayed"].clone(), offsets(&again)), (json!(true), offsets(&first)));
    let seen = world.read();
    let ids: Vec<&str> = seen.iter().map(|s| s.operation.as_str()).collect();
    assert_eq!(ids.len(), 2, "{seen:?}");
    assert!(!ids.contains(&"c"));
    world.audit();
}

#[test]
fn of_two_simultaneous_reclaimers_over_two_gateways_one_wins() {
    let world = World::new("reclaim");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let mut tokens = BTreeSet::new();
    for round in 0..5 {
        let lease = format!("shard.{round}");
        let old = g1.client().take(&lease, "first", SOON);
        tokens.insert(old.token);
        // Free at one instant for both: the old holder gives it back while both wait.
        let barrier = Arc::new(Barrier::new(3));
        let racers: Vec<_> = [(&g1, "r1"), (&g2, "r2")]
            .into_iter()
            .map(|(gateway, owner)| {
                let (client, barrier, lease) =
                    (gateway.client(), Arc::clone(&barrier), lease.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    let answer = client.acquire(&lease, owner, json!({ "wait_ms": 1_200 }));
                    (owner, answer)
                })
            })
            .collect();
        barrier.wait();
        let released = g1.client().release(&old);
        assert_eq!(released.status, 200, "{released:?}");
        let answers: Vec<_> = racers.into_iter().map(|r| r.join().unwrap()).collect();
        let won: Vec<_> = answers.iter().filter(|(_, a)| a.status == 200).collect();
        assert_eq!(won.len(), 1, "{answers:?}");
        let lost = answers.iter().find(|(_, a)| a.status != 200).unwrap();
        assert_eq!((lost.1.status, lost.1.code()), (409, "lease_held"), "{lost:?}");
        assert_eq!(lost.1.body["holder"], won[0].0);
        let token: u64 = won[0].1.body["token"].as_str().unwrap().parse().unwrap();
        assert!(tokens.insert(token) && token > old.token);
        let holder = Holder {
            lease: lease.clone(),
            token,
            credential: won[0].1.body["credential"].as_str().unwrap().to_owned(),
        };
        let records = json!([{ "topic": world.topic, "value": "winner" }]);
        g2.client().insist(&holder, "w", &records, SOON).expect(200);
    }
    let installs = world
        .sql("SELECT count(*) = count(DISTINCT token) FROM fence_history WHERE event = 'install'");
    assert_eq!(installs, "t");
    world.audit();
}

#[test]
fn a_released_lease_takes_no_more_records_and_is_free_at_once() {
    let world = World::new("release");
    let g1 = world.gateway("g1");
    let client = g1.client();
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    let old = client.take("shard.1", "a", SOON);
    client.records(&old, "1", &records).expect(200);
    assert_eq!(client.release(&old).expect(200)["released"], true);
    assert_eq!(client.release(&old).expect(200)["released"], true);
    let refused = client.records(&old, "2", &records).expect_problem(412, "lease_released");
    assert_eq!(refused["side_effect"], "none");
    client.renew(&old).expect_problem(412, "lease_released");
    let new = client.acquire("shard.1", "b", json!({})).expect(200);
    assert!(new["token"].as_str().unwrap().parse::<u64>().unwrap() > old.token);
    let refused = client.release(&old).expect_problem(412, "stale_token");
    assert_eq!(refused["retry"], "reacquire");
    let ids: Vec<String> = world.read().into_iter().map(|s| s.operation).collect();
    assert_eq!(ids, ["1"]);
    world.audit();
}

#[test]
fn an_expired_lease_refuses_until_it_is_taken_and_the_answer_is_maybe() {
    let world = World::new("expiry");
    let g1 = world.gateway("g1");
    let client = g1.client();
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    let old = client.take("shard.1", "a", SOON);
    client.records(&old, "1", &records).expect(200);
    let mut k = 0;
    crate::world::wait_for("the lease is over", SOON, || {
        k += 1;
        let answer = client.records(&old, &format!("k{k}"), &records);
        (answer.code() == "lease_expired").then_some(())
    });
    let refused = client.records(&old, "later", &records).expect_problem(412, "lease_expired");
    assert_eq!(refused["side_effect"], "maybe");
    client.renew(&old).expect_problem(412, "lease_expired");
    let seen = world.read();
    let last = format!("k{k}");
    assert!(seen.iter().all(|s| s.operation != "later" && s.operation != last), "{seen:?}");
    world.audit();
}
