//! Stopping: with work in flight, in a hurry, without a broker, as process 1.

use crate::chaos_proxy::Mode;
use crate::client::{Answer, Client, Holder};
use crate::gateway::Gateway;
use crate::operations::{by_operation, halves, places, records, told};
use crate::raw::{BODY, DEADLINES, HEAD, Heard, Line, MOMENT, Request};
use crate::world::{OPS, Options, World, wait_for};
use crate::{sessions, transactions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";
const LEASES: usize = 4;
const POSTERS: usize = 16;

/// What was posted: the lease's number, the id, and the answer if it was 200.
type Posted = (usize, String, Option<Value>);

/// Posts until the gateway takes nothing more; every answer must be a true one.
fn post_on(
    client: &Client,
    holder: &Holder,
    topic: &str,
    lease: usize,
    poster: usize,
) -> Vec<Posted> {
    let mut posted = Vec::new();
    loop {
        let id = format!("op-{poster}-{}", posted.len());
        let records = halves(topic, &id);
        let answer = client.records(holder, &id, &records);
        let last = match answer.status {
            200 => false,
            // Not connected any more.
            0 => true,
            503 => {
                assert_eq!(answer.code(), "shutting_down", "{answer:?}");
                true
            }
            _ => panic!("{answer:?}"),
        };
        posted.push((lease, id, (answer.status == 200).then_some(answer.body)));
        if last {
            return posted;
        }
    }
}

fn posted_by(
    client: Client,
    world: &World,
    holder: &Holder,
    id: &'static str,
) -> JoinHandle<Answer> {
    let (holder, records) = (holder.clone(), records(world, id));
    std::thread::spawn(move || client.records(&holder, id, &records))
}

fn rows(world: &World) -> String {
    world.sql(
        "SELECT json_agg(l ORDER BY lease) FROM (SELECT lease, l.owner, l.token, f.token AS fence, \
         expires_at, released FROM leases l JOIN fences f USING (lease)) l",
    )
}

/// A new connection is refused, or told so, or closed; it never hangs.
fn no_new_connection_is_served(gateway: &Gateway) {
    let get = format!("GET /v1/leases/{LEASE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPS}");
    wait_for("new connections are refused", Duration::from_secs(2), || {
        let Ok(mut line) = Line::to(gateway.port) else { return Some(()) };
        line.send(format!("{get}\r\n\r\n").as_bytes());
        match line.hear(Duration::from_secs(2)) {
            Heard::Answer(answer) => assert!([200, 503].contains(&answer.status), "{answer:?}"),
            Heard::Closed => {}
            Heard::Nothing => panic!("a new connection hangs"),
        }
        None
    });
}

fn nothing_stays_open(world: &World) {
    wait_for("no session is in a transaction", SOON, || {
        (sessions::count(world, "state <> 'idle'") == 0).then_some(())
    });
    let prefix = format!("fencepost:{}:", world.name);
    let open = transactions::open(&world.broker(), &prefix);
    assert!(open.is_empty(), "left open: {open:?}");
    world.read_topic(&world.ledger());
}

/// Every one of them gets a definite answer from the next gateway, and stands there once.
fn all_are_decided(world: &World, client: &Client, holders: &[Holder], posted: &[Posted]) {
    let before = by_operation(world, &[&world.topic]);
    for (lease, id, answer) in posted {
        let again = client.insist(&holders[*lease], id, &records(world, id), SOON).expect(200);
        assert_eq!(again["replayed"], before.contains_key(id), "{id}: {again}");
        if let Some(answer) = answer {
            assert_eq!(told(answer), places(&before[id]), "{id} was acknowledged");
            assert_eq!(again["offsets"], answer["offsets"], "{id}");
        }
    }
    let seen = by_operation(world, &[&world.topic]);
    assert_eq!(seen.len(), posted.len(), "something that nobody posted");
    for (_, id, _) in posted {
        assert_eq!(seen[id].len(), 2, "{id} is not there once and whole");
    }
    world.audit();
}

/// F36: SIGTERM at load.
#[test]
fn a_stop_under_load_answers_what_it_took_and_the_next_gateway_serves_on() {
    let options = Options { swaps: vec![DEADLINES], ..Options::default() };
    let world = World::with("stop-load", options);
    let (g1, g2) = (world.gateway("g1"), world.gateway("g2"));
    let holders: Vec<Holder> =
        (0..=LEASES).map(|lease| g1.client().hold(&format!("shard.{lease}"), "w", SOON)).collect();
    let posters: Vec<_> = (0..POSTERS)
        .map(|poster| {
            let lease = poster % LEASES;
            let (holder, topic) = (holders[lease].clone(), world.topic.clone());
            let client = g1.client();
            std::thread::spawn(move || post_on(&client, &holder, &topic, lease, poster))
        })
        .collect();
    wait_for("a hundred operations are accepted", SOON, || {
        let accepted: u32 = world.sql("SELECT count(*) FROM operations").parse().unwrap();
        (accepted >= 100).then_some(())
    });
    let mut idle = Line::to(g1.port).unwrap();
    let get = format!("GET /v1/leases/shard.0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPS}");
    idle.send(format!("{get}\r\n\r\n").as_bytes());
    assert_eq!(idle.hear(SOON).answer().status, 200);
    let held = &holders[LEASES];
    g1.pause("before_end", &held.lease, 900);
    let asked = posted_by(g1.client(), &world, held, "held");
    let mut half_head = Line::to(g1.port).unwrap();
    half_head.send(b"POST /v1/leases/shard.0/records HTTP/1.1\r\nHost:");
    let mut half_body = Line::to(g1.port).unwrap();
    let body = json!({ "records": records(&world, "half") });
    let half =
        Request::post("/v1/leases/shard.0/records", &holders[0].credential, Some("h"), &body);
    half_body.send(&half.bytes()[..half.head.len() + 9]);
    wait_for("one operation is held before its end", SOON, || {
        g1.log().contains("fail point hit").then_some(())
    });
    let before = rows(&world);

    g1.signal(Signal::SIGTERM);
    let stopped = Instant::now();
    let within = Duration::from_millis(500);
    wait_for("readiness is off at once", within, || (g1.ready().status == 503).then_some(()));
    let unready = stopped.elapsed();
    no_new_connection_is_served(&g1);
    assert!(matches!(idle.hear(within), Heard::Closed), "an idle connection is kept");
    assert!(!asked.is_finished(), "the held operation was to be held until here");
    assert!(matches!(half_head.hear(HEAD + MOMENT), Heard::Closed));
    half_body.hear(BODY + MOMENT).answer().expect_problem(408, "slow_body");
    let answer = asked.join().unwrap().expect(200);
    let code = g1.wait_exit(SOON);
    let ended = stopped.elapsed();
    assert_eq!(code, Some(0), "{}", g1.log());
    assert!(ended < HEAD.max(BODY) + 2 * MOMENT, "{ended:?}");

    assert_eq!(rows(&world), before, "a lease is not as it was");
    nothing_stays_open(&world);
    let mut posted: Vec<Posted> = posters.into_iter().flat_map(|p| p.join().unwrap()).collect();
    let acknowledged = posted.iter().filter(|p| p.2.is_some()).count();
    eprintln!(
        "{acknowledged} of {} acknowledged; unready after {unready:?}, ended after {ended:?}",
        posted.len()
    );
    assert!(acknowledged >= 100);
    posted.push((LEASES, "held".to_owned(), Some(answer)));
    all_are_decided(&world, &g2.client(), &holders, &posted);
}

/// F36: a second SIGTERM while an operation waits for a broker that is gone.
#[test]
fn a_second_signal_hastens_the_end() {
    let proxy = crate::proxies::kafka_proxy();
    let options = Options { bootstrap: Some(proxy.address()), ..Options::default() };
    let world = World::with("stop-twice", options);
    let g1 = world.gateway("g1");
    let holder = g1.client().hold(LEASE, "w", SOON);
    g1.client().records(&holder, "before", &records(&world, "before")).expect(200);
    // Now an operation waits for an open, up to the request deadline of 10 s.
    proxy.set_mode(Mode::Refuse);
    let asked = posted_by(g1.client(), &world, &holder, "held");
    wait_for("the operation is under way", SOON, || {
        (sessions::count(&world, "state = 'idle in transaction'") == 1).then_some(())
    });
    g1.signal(Signal::SIGTERM);
    no_new_connection_is_served(&g1);
    assert!(!asked.is_finished());
    g1.signal(Signal::SIGTERM);
    let hastened = Instant::now();
    let code = g1.wait_exit(SOON);
    let took = hastened.elapsed();
    eprintln!("ended {took:?} after the second signal");
    assert_eq!(code, Some(0), "{}", g1.log());
    assert!(took < Duration::from_millis(2_500), "{took:?}");
    let answer = asked.join().unwrap();
    assert!(matches!(answer.status, 0 | 503 | 504), "{answer:?}");
    proxy.set_mode(Mode::Pass);
    g1.restart();
    let posted = ["before", "held"].map(|id| (0, id.to_owned(), None));
    all_are_decided(&world, &g1.client(), &[holder], &posted);
}

/// F36: SIGTERM while the broker is gone, and while it is silent.
#[test]
fn a_stop_without_a_broker_ends_in_time_and_says_what_is_not_known() {
    let proxy = crate::proxies::kafka_proxy();
    let options = Options {
        bootstrap: Some(proxy.address()),
        swaps: vec![("request_ms = 10000", "request_ms = 4000\nshutdown_ms = 5000")],
        ..Options::default()
    };
    let world = World::with("stop-no-broker", options);
    let g1 = world.gateway("g1");
    let holder = g1.client().hold(LEASE, "w", SOON);
    let mut posted: Vec<Posted> = Vec::new();
    for (mode, id) in [(Mode::Refuse, "refused"), (Mode::Freeze, "silent")] {
        g1.client().insist(&holder, "before", &records(&world, "before"), SOON).expect(200);
        proxy.set_mode(mode);
        let asked = posted_by(g1.client(), &world, &holder, id);
        wait_for("the operation is under way", SOON, || {
            (sessions::count(&world, "state = 'idle in transaction'") == 1).then_some(())
        });
        g1.signal(Signal::SIGTERM);
        let stopped = Instant::now();
        let code = g1.wait_exit(SOON);
        let took = stopped.elapsed();
        let answer = asked.join().unwrap();
        eprintln!("{mode:?}: ended after {took:?}, answered {} {}", answer.status, answer.code());
        assert_eq!(code, Some(0), "{}", g1.log());
        assert!(took < Duration::from_millis(5_000) + MOMENT, "{took:?}");
        assert!(matches!(answer.status, 503 | 504), "{answer:?}");
        assert_eq!(answer.body["side_effect"], "maybe", "{answer:?}");
        proxy.set_mode(Mode::Pass);
        posted.push((0, id.to_owned(), None));
        g1.restart();
    }
    posted.push((0, "before".to_owned(), None));
    all_are_decided(&world, &g1.client(), &[holder], &posted);
}

/// F36: process 1 gets no signal that it has no handler for.
#[test]
fn process_one_of_a_container_ends_by_the_signal_too() {
    const CONTAINER: &[&str] = &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let world = World::new("stop-pid-1");
    let g1 = world.gateway_in("g1", CONTAINER);
    let holder = g1.client().hold(LEASE, "w", SOON);
    g1.client().records(&holder, "op", &records(&world, "op")).expect(200);
    let outer = g1.pid();
    let inner = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
    let inner = Pid::from_raw(inner.trim().parse().unwrap());
    let status = std::fs::read_to_string(format!("/proc/{inner}/status")).unwrap();
    let inside = status.lines().find(|line| line.starts_with("NSpid:")).unwrap();
    assert!(inside.ends_with("\t1"), "{inside}");
    kill(inner, Signal::SIGTERM).unwrap();
    let stopped = Instant::now();
    assert_eq!(g1.wait_exit(SOON), Some(0), "{}", g1.log());
    eprintln!("process 1 ended after {:?}", stopped.elapsed());
    assert!(stopped.elapsed() < 3 * MOMENT);
    assert!(g1.log().contains("\"stopped\""), "{}", g1.log());
}
