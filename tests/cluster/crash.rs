//! kill -9 and SIGSTOP at every step of Open and Produce: the second gateway takes over, a wake-up
//! is harmless, a retry with the same key gives one copy.

use crate::client::{Answer, Client, Holder};
use crate::gateway::Gateway;
use crate::world::{Seen, World, wait_for};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::thread::JoinHandle;
use std::time::Duration;

/// G5 with the test's timeouts (transaction 3 s + sweep 1 s + open 1.5 s), on a busy machine.
const TAKEOVER: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

/// Steps of one batch, in order.
const PRODUCE: [&str; 12] = [
    "after_row_lock",
    "after_check",
    "after_begin",
    "after_first_send",
    "after_last_send",
    "after_ledger_send",
    "before_end",
    "after_end",
    "after_operations_insert",
    "after_postgres_commit",
    "before_reply",
    "after_auth",
];

/// Steps of one open, in order.
const OPEN: [&str; 9] = [
    "after_row_lock",
    "before_init",
    "after_init",
    "after_barrier_end",
    "after_barrier_seen",
    "before_state",
    "after_state_end",
    "after_operations_insert",
    "after_postgres_commit",
];

fn records(world: &World) -> Value {
    json!([
        { "topic": world.topic, "partition": 0, "value": "first half" },
        { "topic": world.topic, "partition": 1, "value": "second half" },
    ])
}

fn in_thread(work: impl FnOnce() -> Answer + Send + 'static) -> JoinHandle<Answer> {
    std::thread::spawn(work)
}

/// Every operation whole, each at most once, those named exactly once; tokens never go down.
fn check(world: &World, once: &[&str], never: &[&str]) -> Vec<Seen> {
    let seen = world.read();
    let count = |id: &str| seen.iter().filter(|s| s.operation == id).count();
    for id in once {
        assert_eq!(count(id), 2, "{id} is not there exactly once, whole: {seen:?}");
    }
    for id in never {
        assert_eq!(count(id), 0, "{id} must not be there: {seen:?}");
    }
    world.audit();
    seen
}

/// Takes the lease over at `client`, repeats `unknown` and goes on writing. It keeps the lease: on
/// a busy machine what follows takes longer than the one before it had.
fn go_on(world: &World, client: &Client, owner: &str, unknown: Option<&str>) -> Holder {
    let new = client.hold(LEASE, owner, TAKEOVER);
    if let Some(id) = unknown {
        client.insist(&new, id, &records(world), TAKEOVER).expect(200);
    }
    client.insist(&new, "next", &records(world), TAKEOVER).expect(200);
    new
}

fn killed_while_producing(step: &str) {
    let world = World::new("kill-produce");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let old = g1.client().take(LEASE, "w1", TAKEOVER);
    g1.client().records(&old, "before", &records(&world)).expect(200);
    g1.arm(step, LEASE, "kill", 0);
    let answer = g1.client().records(&old, "hit", &records(&world));
    assert_eq!(answer.status, 0, "{step} was not passed: {answer:?}");
    g1.wait_dead();
    go_on(&world, &g2.client(), "w2", Some("hit"));
    g2.client().records(&old, "stale", &records(&world)).expect_problem(412, "stale_token");
    check(&world, &["before", "hit", "next"], &["stale"]);
}

fn frozen_while_producing(step: &str) {
    let world = World::new("freeze-produce");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let old = g1.client().take(LEASE, "w1", TAKEOVER);
    g1.client().records(&old, "before", &records(&world)).expect(200);
    g1.arm(step, LEASE, "stop", 0);
    let asked = {
        let (client, old, records) = (g1.client(), old.clone(), records(&world));
        in_thread(move || client.records(&old, "hit", &records))
    };
    g1.wait_stopped();
    let new = go_on(&world, &g2.client(), "w2", Some("hit"));
    g1.signal(Signal::SIGCONT);
    let late = asked.join().unwrap();
    assert_harmless(&late);
    let client = g1.client();
    client.insist(&old, "stale", &records(&world), TAKEOVER).expect_problem(412, "stale_token");
    client.insist(&new, "after", &records(&world), TAKEOVER).expect(200);
    check(&world, &["before", "hit", "next", "after"], &["stale"]);
}

/// The woken gateway may know that it was in time, or that it was not, or not know.
#[track_caller]
fn assert_harmless(late: &Answer) {
    let fine =
        matches!((late.status, late.code()), (200, _) | (412, "stale_token") | (503 | 504, _));
    assert!(fine, "{late:?}");
}

fn killed_while_opening(step: &str) {
    let world = World::new("kill-open");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    g1.arm(step, LEASE, "kill", 0);
    let answer = g1.client().acquire(LEASE, "w1", json!({}));
    assert_eq!(answer.status, 0, "{step} was not passed: {answer:?}");
    g1.wait_dead();
    go_on(&world, &g2.client(), "w2", None);
    check(&world, &["next"], &[]);
}

fn frozen_while_opening(step: &str) {
    let world = World::new("freeze-open");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    g1.arm(step, LEASE, "stop", 0);
    let asked = {
        let client = g1.client();
        in_thread(move || client.acquire(LEASE, "w1", json!({})))
    };
    g1.wait_stopped();
    let new = go_on(&world, &g2.client(), "w2", None);
    g1.signal(Signal::SIGCONT);
    let late = asked.join().unwrap();
    if late.status == 200 {
        // It was installed before the freeze; it is history now.
        let token: u64 = late.body["token"].as_str().unwrap().parse().unwrap();
        assert!(token < new.token, "{late:?}");
        let credential = late.body["credential"].as_str().unwrap().to_owned();
        let old = Holder { lease: LEASE.to_owned(), token, credential };
        let stale = g1.client().insist(&old, "stale", &records(&world), TAKEOVER);
        stale.expect_problem(412, "stale_token");
    } else {
        assert!(matches!(late.status, 409 | 503 | 504), "{late:?}");
    }
    g1.client().insist(&new, "after", &records(&world), TAKEOVER).expect(200);
    check(&world, &["next", "after"], &["stale"]);
}

/// A re-open by the next use: the home was evicted, killed or fenced, the token is still current.
fn killed_while_reopening(step: &str) {
    let world = World::new("kill-reopen");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let old = g1.client().take(LEASE, "w1", TAKEOVER);
    g1.client().records(&old, "before", &records(&world)).expect(200);
    g2.arm(step, LEASE, "kill", 0);
    let answer = g2.client().records(&old, "hit", &records(&world));
    assert_eq!(answer.status, 0, "{step} was not passed: {answer:?}");
    g2.wait_dead();
    // The first gateway finds itself fenced or outdated and opens again, or the lease is over.
    let again = g1.client().insist(&old, "hit", &records(&world), TAKEOVER);
    assert!(matches!(again.status, 200 | 412), "{again:?}");
    go_on(&world, &g1.client(), "w2", Some("hit"));
    check(&world, &["before", "hit", "next"], &[]);
}

/// Runs one scenario for every step, a few at a time: they mostly wait.
fn at_every_step(steps: &'static [&'static str], scenario: fn(&str)) {
    let mut failed = Vec::new();
    for some in steps.chunks(4) {
        let running: Vec<_> =
            some.iter().copied().map(|s| (s, std::thread::spawn(move || scenario(s)))).collect();
        for (step, thread) in running {
            if thread.join().is_err() {
                failed.push(step);
            }
        }
    }
    assert!(failed.is_empty(), "failed at {failed:?}");
}

#[test]
fn killed_at_every_step_of_produce_and_a_retry_gives_one_copy() {
    at_every_step(&PRODUCE, killed_while_producing);
}

#[test]
fn frozen_at_every_step_of_produce_and_the_wake_up_is_harmless() {
    at_every_step(&PRODUCE, frozen_while_producing);
}

#[test]
fn killed_at_every_step_of_open_and_the_next_takes_over() {
    at_every_step(&OPEN, killed_while_opening);
}

#[test]
fn frozen_at_every_step_of_open_and_the_wake_up_is_harmless() {
    at_every_step(&OPEN, frozen_while_opening);
}

#[test]
fn killed_at_every_step_of_a_reopen_and_the_retry_gives_one_copy() {
    at_every_step(&OPEN, killed_while_reopening);
}

#[test]
fn killed_between_kafka_commit_and_postgres_commit_is_redone_from_the_ledger() {
    let world = World::new("redo");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let old = g1.client().take(LEASE, "w1", TAKEOVER);
    g1.arm("after_end", LEASE, "kill", 0);
    assert_eq!(g1.client().records(&old, "hit", &records(&world)).status, 0);
    g1.wait_dead();
    assert_eq!(world.sql("SELECT count(*) FROM operations"), "0");
    let new = g2.client().take(LEASE, "w2", TAKEOVER);
    // Before anybody asks for it, the takeover has written it down.
    assert_eq!(world.sql("SELECT count(*) FROM operations"), "1");
    let answer = g2.client().records(&new, "hit", &records(&world)).expect(200);
    assert_eq!(answer["replayed"], true);
    assert_eq!(answer["token"], old.token.to_string());
    let other = json!([{ "topic": world.topic, "value": "other" }]);
    g2.client().records(&new, "hit", &other).expect_problem(422, "operation_conflict");
    let seen = check(&world, &["hit"], &[]);
    let places: Vec<_> = seen.iter().map(|s| (i64::from(s.partition), s.offset)).collect();
    let mut told = crate::world::offsets(&answer);
    told.sort_unstable();
    let mut places = places;
    places.sort_unstable();
    assert_eq!(places, told);
}

#[test]
fn redo_survives_an_open_that_dies_after_it() {
    let world = World::new("redo-twice");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let old = g1.client().take(LEASE, "w1", TAKEOVER);
    g1.arm("after_end", LEASE, "kill", 0);
    assert_eq!(g1.client().records(&old, "hit", &records(&world)).status, 0);
    g1.wait_dead();
    g1.restart();
    // The open that redoes dies after its state record, before its COMMIT.
    g2.arm("after_state_end", LEASE, "kill", 0);
    wait_for("the open that redoes has died", TAKEOVER, || {
        let answer = g2.client().acquire(LEASE, "w2", json!({ "wait_ms": 2_000 }));
        (answer.status == 0).then_some(())
    });
    g2.wait_dead();
    assert_eq!(world.sql("SELECT count(*) FROM operations"), "0");
    go_on(&world, &g1.client(), "w3", Some("hit"));
    check(&world, &["hit", "next"], &[]);
}

#[test]
fn a_gateway_that_died_comes_back_and_its_worker_goes_on_under_the_same_token() {
    let world = World::new("restart");
    let g1: Gateway = world.gateway("g1");
    let old = g1.client().hold(LEASE, "w1", TAKEOVER);
    g1.client().records(&old, "before", &records(&world)).expect(200);
    g1.signal(Signal::SIGKILL);
    g1.wait_dead();
    g1.restart();
    g1.client().insist(&old, "after", &records(&world), TAKEOVER).expect(200);
    check(&world, &["before", "after"], &[]);
}
