//! F17 and F19: an EndTxn whose connection was cut, repeated by the client, and the original
//! released inside the next transaction.

use crate::chaos_proxy::{Action, ChaosProxy, api};
use crate::proxies::kafka_proxy;
use crate::world::{Options, World};
use serde_json::{Value, json};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

fn world_behind(proxy: &ChaosProxy, test: &str) -> World {
    World::with(test, Options { bootstrap: Some(proxy.address()), ..Options::default() })
}

fn halves(world: &World) -> Value {
    json!([
        { "topic": world.topic, "partition": 0, "value": "first half" },
        { "topic": world.topic, "partition": 1, "value": "second half" },
    ])
}

fn assert_whole(world: &World, ids: &[&str]) {
    let seen = world.read();
    for id in ids {
        let copies = seen.iter().filter(|s| s.operation == *id).count();
        assert_eq!(copies, 2, "{id} is not there once and whole: {seen:?}");
    }
    world.audit();
}

#[test]
fn a_late_end_txn_released_inside_the_next_transaction_tears_nothing() {
    let proxy = kafka_proxy();
    let world = world_behind(&proxy, "late-end");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    client.records(&holder, "first", &halves(&world)).expect(200);
    for round in 0..5 {
        let applied = proxy.applied();
        // The commit of `cut` is held and its connection cut: the client repeats it by itself.
        proxy.next(api::END_TXN, Action::HoldAndCut);
        let cut = format!("cut-{round}");
        client.insist(&holder, &cut, &halves(&world), SOON).expect(200);
        assert!(proxy.wait_applied(applied + 1, SOON));
        // The next batch is stopped before its own EndTxn (behind those of barrier and state
        // record, since the producer was rebuilt); there the late one comes in.
        proxy.rule(api::END_TXN, 2, 1, Action::Hold);
        let next = format!("next-{round}");
        let asked = {
            let (client, holder, next) = (client.clone(), holder.clone(), next.clone());
            let records = halves(&world);
            std::thread::spawn(move || client.insist(&holder, &next, &records, SOON))
        };
        assert!(proxy.wait_applied(applied + 2, SOON), "{}", gateway.log());
        let answers = proxy.release_held();
        assert_eq!(answers.len(), 2);
        // Kafka's codes for an epoch or a state that is not the transaction's any more.
        assert!([47, 48, 90].contains(&answers[0]), "the late EndTxn was answered {answers:?}");
        asked.join().unwrap().expect(200);
        assert_whole(&world, &["first", &cut, &next]);
    }
}

#[test]
fn an_end_txn_whose_answer_is_lost_is_answered_once_and_truthfully() {
    let proxy = kafka_proxy();
    let world = world_behind(&proxy, "lost-end");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    for round in 0..5 {
        let applied = proxy.applied();
        proxy.next(api::END_TXN, Action::LoseReply);
        let id = format!("op-{round}");
        client.insist(&holder, &id, &halves(&world), SOON).expect(200);
        assert_eq!(proxy.applied(), applied + 1, "no answer was lost");
        let again = client.insist(&holder, &id, &halves(&world), SOON).expect(200);
        assert_eq!(again["replayed"], true);
        assert_whole(&world, &[&id]);
    }
}

#[test]
fn an_init_producer_id_released_after_the_next_open_costs_a_rebuild_and_nothing_else() {
    let proxy = kafka_proxy();
    let world = world_behind(&proxy, "late-init");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    proxy.next(api::INIT_PRODUCER_ID, Action::HoldAndCut);
    let holder = client.hold(LEASE, "w", SOON);
    client.records(&holder, "before", &halves(&world)).expect(200);
    let answers = proxy.release_held();
    assert_eq!(answers, [0], "the late InitProducerId was not taken");
    client.insist(&holder, "after", &halves(&world), SOON).expect(200);
    assert_whole(&world, &["before", "after"]);
}
