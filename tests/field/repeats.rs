//! F10, F11: one operation id, again: with the same records, with others, late, and too late.

use crate::chaos_proxy::Mode;
use crate::client::{Client, Holder};
use crate::gateway::Gateway;
use crate::proxies::kafka_proxy;
use crate::raw::{Line, Request};
use crate::world::{Options, World, wait_for};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

fn value(world: &World, value: &str) -> Value {
    json!([{ "topic": world.topic, "key": "k", "value": value }])
}

fn copies(world: &World, id: &str) -> usize {
    world.read().iter().filter(|seen| seen.operation == id).count()
}

/// F10.
#[test]
fn an_operation_id_answers_for_its_records_and_for_no_others() {
    let world = World::new("repeats");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    let v1 = value(&world, "v1");
    let first = client.records(&holder, "o1", &v1).expect(200);
    let again = client.records(&holder, "o1", &v1).expect(200);
    assert_eq!((&first["replayed"], &again["replayed"]), (&json!(false), &json!(true)));
    assert_eq!(again["offsets"], first["offsets"]);
    // The decoded records count, not how they were written.
    let bearer = format!("Bearer {}", holder.credential);
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", "o1"),
    ];
    let path = format!("/v1/leases/{LEASE}/records");
    let topic = &world.topic;
    let of = |more: &str| {
        format!(r#"{{"records":[{{"key":"k","value":"v1","topic":"{topic}"{more}}}]}}"#)
    };
    let escaped = r#""key":"\u006b","value":{"base64":"djE="}"#;
    for (layout, same) in [
        (format!(r#"{{ "records" : [ {{"value":"v1", "topic":"{topic}","key":"k"}} ] }}"#), true),
        (format!(r#"{{"records":[{{{escaped},"topic":"{topic}"}}]}}"#), true),
        (of(""), true),
        (of("").replace("v1", "v2"), false),
        (of(r#","partition":0"#), false),
        (of(r#","timestamp":1"#), false),
        (of(r#","headers":[{"name":"h","value":"x"}]"#), false),
        (of("").replace(topic, "data.other"), false),
    ] {
        let answer = client.send("POST", &path, &headers, layout.as_bytes()).answer();
        if same {
            assert_eq!(answer.expect(200)["offsets"], first["offsets"], "{layout}");
        } else {
            answer.expect_problem(422, "operation_conflict");
        }
    }
    // Another lease's is another operation.
    let other = client.hold("other.7", "w", SOON);
    assert_eq!(client.records(&other, "o1", &v1).expect(200)["replayed"], false);
    // The scope is the lease, not the token.
    client.release(&holder).expect(200);
    let next = client.hold(LEASE, "x", SOON);
    let replay = client.records(&next, "o1", &v1).expect(200);
    assert_eq!((&replay["replayed"], &replay["offsets"]), (&json!(true), &first["offsets"]));
    assert_eq!(replay["token"], holder.token.to_string(), "the token that it was accepted under");
    client.records(&next, "o1", &value(&world, "v2")).expect_problem(422, "operation_conflict");
    client.records(&next, "x", &v1).expect(200);
    client.records(&next, &"x".repeat(201), &v1).expect_problem(422, "invalid_member");
    assert_eq!(copies(&world, "o1"), 2, "one a lease");
    world.audit();
}

/// F10: fifty at once.
#[test]
fn identical_operations_at_once_are_written_once_and_all_told_where() {
    let world = World::new("repeats-at-once");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let (client, holder, world) = (&client, &holder, &world);
        let post = move || client.records(holder, "o2", &value(world, "v"));
        let posts: Vec<_> = (0..50).map(|_| scope.spawn(post)).collect();
        posts.into_iter().map(|post| post.join().unwrap().expect(200)).collect()
    });
    let fresh = answers.iter().filter(|answer| answer["replayed"] == false).count();
    assert_eq!(fresh, 1);
    assert!(answers.iter().all(|answer| answer["offsets"] == answers[0]["offsets"]));
    assert_eq!(copies(&world, "o2"), 1);
}

/// F10: with the broker silent for a while, once the same and once changed.
#[test]
fn a_changed_repeat_of_an_operation_in_flight_is_a_conflict_and_never_a_second_write() {
    let proxy = kafka_proxy();
    let options = Options { bootstrap: Some(proxy.address()), ..Options::default() };
    let world = World::with("repeats-in-flight", options);
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holder = client.hold(LEASE, "w", SOON);
    client.records(&holder, "warm", &value(&world, "v")).expect(200);
    proxy.set_mode(Mode::Freeze);
    let answers = std::thread::scope(|scope| {
        let post = |text: &'static str| {
            let (client, holder, world) = (&client, &holder, &world);
            scope.spawn(move || client.insist(holder, "o3", &value(world, text), SOON))
        };
        let posts = [post("v1"), post("v1"), post("v2")];
        // No condition can be waited for here: nothing passes for two seconds.
        std::thread::sleep(Duration::from_secs(2));
        proxy.set_mode(Mode::Pass);
        posts.map(|post| post.join().unwrap())
    });
    let [same, again, changed] = answers;
    // Whichever came first is the operation.
    match changed.status {
        200 => [same, again].map(|a| a.expect_problem(422, "operation_conflict")),
        _ => {
            changed.expect_problem(422, "operation_conflict");
            let [same, again] = [same, again].map(|a| a.expect(200));
            assert_eq!(same["offsets"], again["offsets"]);
            [same, again]
        }
    };
    assert_eq!(copies(&world, "o3"), 1);
    world.audit();
}

/// Sends a POST and goes away before the answer.
fn reply_lost(gateway: &Gateway, world: &World, holder: &Holder, id: &str) {
    let body = json!({ "records": value(world, id) });
    let path = format!("/v1/leases/{}/records", holder.lease);
    let request = Request::post(&path, &holder.credential, Some(id), &body);
    let mut line = Line::to(gateway.port).unwrap();
    assert!(line.send(&request.bytes()));
    let found = format!("SELECT count(*) FROM operations WHERE operation_id = '{id}'");
    wait_for("the operation is stored", SOON, || (world.sql(&found) == "1").then_some(()));
    line.reset();
}

/// F11: the reply is lost, and the retry comes later and later, by other ways.
#[test]
fn a_retry_after_a_lost_reply_gets_the_first_answer_by_every_way() {
    let world = World::new("lost-reply");
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let mut holder = g1.client().hold(LEASE, "w", SOON);
    reply_lost(&g1, &world, &holder, "r1");
    let retry = |client: &Client, holder: &Holder| {
        let answer = client.insist(holder, "r1", &value(&world, "r1"), SOON).expect(200);
        assert_eq!(answer["replayed"], true, "{answer}");
        answer["offsets"].clone()
    };
    let first = retry(&g1.client(), &holder);
    assert_eq!(retry(&g2.client(), &holder), first, "through another gateway");
    g1.signal(nix::sys::signal::Signal::SIGKILL);
    g1.wait_dead();
    g1.restart();
    assert_eq!(retry(&g1.client(), &holder), first, "after a restart");
    g1.client().release(&holder).expect(200);
    assert_eq!(retry(&g1.client(), &holder), first, "after the release");
    holder = g1.client().hold(LEASE, "w", SOON);
    assert_eq!(retry(&g1.client(), &holder), first, "under the next token");
    let state = format!("/v1/leases/{LEASE}/operations/r1");
    let state = g1.client().get(&state, Some(&holder.credential)).expect(200);
    assert_eq!((&state["state"], &state["answer"]["offsets"]), (&json!("committed"), &first));
    assert_eq!(copies(&world, "r1"), 1);
}

/// The shortest retention that a configuration takes.
const SHORT: &str = "ttl_max_ms = 2500\n[limits]\nretention_s = 3\nreplay_horizon_s = 0\n\
    purge_rows = 2000\npurge_pause_ms = 1\n";

/// F11: at the horizon.
#[test]
fn beyond_the_horizon_an_id_with_a_time_is_refused_and_never_written_twice() {
    let world = World::with("horizon", Options { extra: SHORT.to_owned(), ..Options::default() });
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let timed = uuid::Uuid::now_v7().to_string();
    let from = Instant::now();
    let posted: Vec<Value> = [timed.as_str(), "opaque"]
        .map(|id| {
            let holder = client.take(LEASE, "w", SOON);
            let answer = client.insist(&holder, id, &value(&world, id), SOON).expect(200);
            client.release(&holder).expect(200);
            answer["offsets"].clone()
        })
        .to_vec();
    // Past the retention, and still known: rows are kept for ten minutes more.
    let after = Duration::from_secs(5);
    wait_for("the retention is over", after * 2, || (from.elapsed() > after).then_some(()));
    let holder = client.take(LEASE, "w", SOON);
    for (id, offsets) in [timed.as_str(), "opaque"].into_iter().zip(&posted) {
        let again = client.insist(&holder, id, &value(&world, id), SOON).expect(200);
        assert_eq!((&again["replayed"], &again["offsets"]), (&json!(true), offsets), "{id}");
    }
    // What the purge does ten minutes later.
    world.sql("DELETE FROM operations");
    let holder = client.take(LEASE, "w", SOON);
    let gone = client.insist(&holder, &timed, &value(&world, &timed), SOON);
    gone.expect_problem(422, "operation_too_old");
    assert_eq!(copies(&world, &timed), 1, "written twice at the horizon");
    // A stated limit: without a time it counts as new.
    let fresh = client.insist(&holder, "opaque", &value(&world, "opaque"), SOON).expect(200);
    assert_eq!(fresh["replayed"], false);
    // A longer retention from now on, by another gateway or a restart: nothing comes back.
    let longer = vec![("FENCEPOST_LIMITS_RETENTION_S", "604800".to_owned())];
    let gateway = world.gateway_with("g2", longer);
    let client = gateway.client();
    let holder = client.take(LEASE, "w", SOON);
    let again = client.insist(&holder, &timed, &value(&world, &timed), SOON);
    again.expect_problem(422, "operation_too_old");
    client.release(&holder).expect(200);
    let path = format!("/v1/leases/{LEASE}/operations/{timed}");
    let asked = client.get(&path, Some(&holder.credential)).expect(200);
    assert_eq!(asked["state"], "unknown", "{asked}");
    assert_eq!(copies(&world, &timed), 1, "written twice under a longer retention");
}

/// F11: the purge runs while others write and retry.
#[test]
fn a_purge_of_many_operations_leaves_writers_and_their_retries_alone() {
    const OLD: u32 = 100_000;
    let world = World::with("purge", Options { extra: SHORT.to_owned(), ..Options::default() });
    world.sql(&format!(
        "INSERT INTO operations (lease, operation_id, fingerprint, token, incarnation, batch_seq,
             runs, accepted_at)
         SELECT 'old', k, repeat('x', 32)::bytea, 1, 1, 1, '', clock_timestamp() - interval '1 day'
         FROM generate_series(1, {OLD}) k"
    ));
    let old = || world.sql("SELECT count(*) FROM operations WHERE lease = 'old'");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let until = Instant::now() + Duration::from_secs(120);
    let mut posted = 0;
    while old() != "0" {
        assert!(Instant::now() < until, "{} are left", old());
        let holder = client.take(LEASE, "w", SOON);
        for _ in 0..10 {
            let id = format!("new-{posted}");
            let first = client.insist(&holder, &id, &value(&world, &id), SOON);
            if first.status != 200 {
                first.expect_problem(412, "lease_expired");
                break;
            }
            let again = client.records(&holder, &id, &value(&world, &id)).expect(200);
            assert_eq!(again["offsets"], first.body["offsets"]);
            posted += 1;
        }
        client.release(&holder);
    }
    assert!(posted > 0, "nothing was written meanwhile");
    let kept = "SELECT count(*) FROM operations WHERE lease <> 'old'";
    assert_eq!(world.sql(kept), posted.to_string());
    assert_eq!(world.read().len(), posted);
    world.audit();
}
