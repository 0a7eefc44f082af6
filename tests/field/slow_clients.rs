//! Slow clients: told so or cut off, and nobody else waits for them.

use crate::client::Holder;
use crate::operations::by_operation;
use crate::raw::{DEADLINES, HEAD, Heard, Line, MOMENT, Request};
use crate::sessions;
use crate::world::{Options, World};
use serde_json::{Value, json};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

fn records(world: &World, id: &str) -> Value {
    json!([{ "topic": world.topic, "value": id }])
}

/// Sends a body at one byte a second until something is answered.
fn trickle(mut line: Line, request: &Request) -> Heard {
    line.send(request.head.as_bytes());
    for byte in request.body.as_bytes() {
        line.send(&[*byte]);
        match line.hear(Duration::from_secs(1)) {
            Heard::Nothing => {}
            heard => return heard,
        }
    }
    Heard::Nothing
}

fn slow_post(world: &World, holder: &Holder, id: &str) -> Request {
    let path = format!("/v1/leases/{}/records", holder.lease);
    let body = json!({ "records": records(world, id) });
    Request::post(&path, &holder.credential, Some(id), &body)
}

/// F34: slow clients. No row lock and no database session before a body is complete.
#[test]
fn a_slow_body_is_told_so_and_takes_neither_a_lock_nor_a_session_meanwhile() {
    let world = World::with("slow", Options { swaps: vec![DEADLINES], ..Options::default() });
    let g1 = world.gateway("g1");
    let holder = g1.client().hold(LEASE, "w", SOON);
    g1.client().records(&holder, "before", &records(&world, "before")).expect(200);
    // Whatever any session of the gateway does changes this.
    let activity = || {
        let sql = "SELECT string_agg(concat(pid, ' ', state, ' ', state_change), ',' ORDER BY pid) \
                   FROM pg_stat_activity WHERE application_name LIKE 'fencepost:%' \
                   AND datname = current_database()";
        sessions::ask(&world, sql)
    };
    let at_rest = activity();
    assert!(at_rest.contains("idle"), "{at_rest}");
    let slow = {
        let (line, request) = (Line::to(g1.port).unwrap(), slow_post(&world, &holder, "slow"));
        std::thread::spawn(move || trickle(line, &request))
    };
    let mut looked = 0;
    while !slow.is_finished() {
        assert_eq!(activity(), at_rest, "a session was used for half a body");
        world.sql("SELECT lease FROM fences FOR UPDATE NOWAIT");
        world.sql("SELECT lease FROM leases FOR UPDATE NOWAIT");
        looked += 1;
    }
    assert!(looked >= 3, "looked only {looked} times");
    let problem = slow.join().unwrap().answer().expect_problem(408, "slow_body");
    assert_eq!(problem["retry"], "same_key", "{problem}");
    // Nothing came of it, so that the same id is still good.
    let answer = g1.client().records(&holder, "slow", &records(&world, "slow")).expect(200);
    assert_eq!(answer["replayed"], false);
}

/// F34: silent sockets, heads and bodies at one byte a second, on a busy lease.
#[test]
fn slow_clients_are_cut_off_and_the_others_on_their_lease_are_served() {
    let world = World::with("slow-crowd", Options { swaps: vec![DEADLINES], ..Options::default() });
    let g1 = world.gateway("g1");
    let client = g1.client();
    let holder = client.hold(LEASE, "w", SOON);
    let silent = (0..100).map(|_| (Line::to(g1.port).unwrap(), Instant::now()));
    let silent: Vec<_> = silent.collect();
    let bodies = (0..50).map(|n| {
        let request = slow_post(&world, &holder, &format!("slow-{n}"));
        let line = Line::to(g1.port).unwrap();
        std::thread::spawn(move || trickle(line, &request))
    });
    let bodies: Vec<_> = bodies.collect();
    let heads = (0..50).map(|_| {
        let get = format!("GET /v1/leases/{LEASE} HTTP/1.1\r\nHost: x\r\n\r\n");
        let (request, line) = (Request { head: String::new(), body: get }, Line::to(g1.port));
        std::thread::spawn(move || {
            let from = Instant::now();
            (trickle(line.unwrap(), &request), from.elapsed())
        })
    });
    let heads: Vec<_> = heads.collect();
    let (mut served, mut worst) = (0, Duration::ZERO);
    while !bodies.iter().all(JoinHandle::is_finished) {
        let from = Instant::now();
        let id = format!("quick-{served}");
        client.records(&holder, &id, &records(&world, &id)).expect(200);
        worst = worst.max(from.elapsed());
        served += 1;
    }
    eprintln!("{served} operations beside 200 slow clients, the slowest took {worst:?}");
    assert!(served > 10 && worst < MOMENT, "{served} {worst:?}");
    for slow in bodies {
        let problem = slow.join().unwrap().answer().expect_problem(408, "slow_body");
        assert_eq!(problem["retry"], "same_key", "{problem}");
    }
    for slow in heads {
        let (heard, took) = slow.join().unwrap();
        assert!(matches!(heard, Heard::Closed), "{heard:?}");
        // The gateway may have begun to count before this thread did.
        assert!(took + MOMENT / 10 >= HEAD && took < HEAD + 2 * MOMENT, "{took:?}");
    }
    for (mut line, from) in silent {
        assert!(matches!(line.hear(HEAD + MOMENT), Heard::Closed), "a silent socket is kept");
        assert!(from.elapsed() + MOMENT / 10 >= HEAD);
    }
    let seen = by_operation(&world, &[&world.topic]);
    assert_eq!(seen.len(), served);
    world.audit();
}
