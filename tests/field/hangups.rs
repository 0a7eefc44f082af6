//! Clients that hang up at any moment leave nothing open, lost or doubled.

mod scene;

use crate::chaos_proxy::ChaosProxy;
use crate::client::Holder;
use crate::operations::{by_operation, places, told};
use crate::proxies::{kafka_proxy, postgres_proxy};
use crate::world::{Options, Seen, World, wait_for};
use crate::{sessions, transactions};
use scene::{LEASES, POSTERS, Random, SOON, Scene, TTL_MS, name};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SEED: u64 = 20_251_107;
const CLIENTS: usize = 500;
const THREADS: usize = 24;
/// Work sessions of the gateway's pool: few, so that a lost one is missed.
const SESSIONS: usize = 6;
/// With those of the reserve, those that draw tokens, those that list and the one that purges.
const SESSIONS_MAX: usize = SESSIONS + 4 + 2 + 2 + 1;

fn scene(kafka: &ChaosProxy, postgres: (String, u16)) -> Scene {
    let options = Options {
        bootstrap: Some(kafka.address()),
        postgres: Some(postgres),
        swaps: vec![("[kafka]", "work_sessions = 6\nreserve_sessions = 4\n[kafka]")],
        ..Options::default()
    };
    let world = World::with("hangups", options);
    let second = format!("data.second.{}", world.name);
    world.create_topic(&second, 1, &[]);
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let holders = (0..LEASES).map(|lease| {
        let more = json!({ "ttl_ms": 600_000 });
        let body = client.acquire(&name(lease), &format!("w{lease}"), more).expect(200);
        Mutex::new(Holder::of(&body))
    });
    let holders = holders.collect();
    let (posted, counts) = (Mutex::default(), Mutex::default());
    Scene { world, gateway, second, holders, posted, counts }
}

/// Uses every client that a gateway makes at its first use: among them the one that reads a batch
/// back before it is kept in a state record.
fn warm_up(scene: &Scene) {
    scene.for_each_lease(|client, lease| {
        let id = format!("stay-{lease}");
        let answer = client.insist(&scene.holder(lease), &id, &scene.records(&id), SOON);
        scene.keep(lease, id, true, Some(answer.expect(200)));
        if lease % 2 == 0 {
            // Short enough to run out in the middle of it all.
            scene.get_back(client, lease, TTL_MS);
        }
    });
}

/// All of them, and those who stay, at the same time.
fn come_and_go(scene: &Scene, seed: u64) {
    let (done, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let posters: Vec<_> = (0..POSTERS)
            .map(|poster| {
                scope.spawn({
                    let done = &done;
                    move || scene.post_until(done, poster)
                })
            })
            .collect();
        let leavers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= CLIENTS {
                            break;
                        }
                        scene.hang_up(n, &mut Random(seed ^ ((n as u64) << 32)));
                    }
                })
            })
            .collect();
        let left = leavers.into_iter().map(|l| l.join()).collect::<Vec<_>>();
        done.store(true, Ordering::Relaxed);
        let stayed = posters.into_iter().map(|p| p.join()).collect::<Vec<_>>();
        assert!(left.iter().chain(&stayed).all(Result::is_ok));
    });
}

/// Every session of the pool can be had at once: none is lost.
fn every_session_is_there(scene: &Scene) {
    let leases: Vec<String> = (0..SESSIONS).map(|l| format!("'{}'", name(l))).collect();
    let mut locker = Command::new("psql")
        .args([scene.world.owner_url.as_str(), "-qX"])
        .env("PGAPPNAME", "locker")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut orders = locker.stdin.take().unwrap();
    let sql = format!(
        "BEGIN; SELECT lease FROM fences WHERE lease IN ({}) FOR UPDATE;\n",
        leases.join(",")
    );
    orders.write_all(sql.as_bytes()).unwrap();
    wait_for("the rows are locked", SOON, || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'locker' \
                   AND datname = current_database() AND state = 'idle in transaction'";
        (scene.world.sql(sql) == "1").then_some(())
    });
    std::thread::scope(|scope| {
        for lease in 0..SESSIONS {
            scope.spawn(move || {
                let id = format!("stay-{lease}-session");
                let (client, holder) = (scene.gateway.client(), scene.holder(lease));
                client.insist(&holder, &id, &scene.records(&id), SOON).expect(200);
            });
        }
        wait_for("every session waits for a lock", SOON, || {
            (sessions::count(&scene.world, "wait_event_type = 'Lock'") == SESSIONS).then_some(())
        });
        drop(orders);
        locker.wait().unwrap();
    });
}

/// F20, F34, F36 and the promise of a detached unit of work: whoever leaves, and whenever, nothing
/// of the two stores stays open, and every operation can still be decided.
#[test]
fn five_hundred_clients_that_hang_up_leave_nothing_open_lost_or_doubled() {
    let seed = std::env::var("HANGUP_SEED").map_or(SEED, |seed| seed.parse().unwrap());
    eprintln!("HANGUP_SEED={seed}");
    let kafka = kafka_proxy();
    let (postgres, address) = postgres_proxy();
    let scene = scene(&kafka, address);
    warm_up(&scene);
    let before = scene.descriptors_and_threads();
    kafka.set_lag(Duration::from_millis(4));
    postgres.set_lag(Duration::from_millis(2));
    come_and_go(&scene, seed);
    let left = Instant::now();
    nothing_stays_open(&scene);
    let idle = left.elapsed();
    nobody_who_left_holds_a_lease(&scene, left);
    let free = left.elapsed();
    kafka.set_lag(Duration::ZERO);
    postgres.set_lag(Duration::ZERO);
    let seen = by_operation(&scene.world, &[&scene.world.topic, &scene.second]);
    scene.for_each_lease(|client, lease| scene.get_back(client, lease, 600_000));
    every_session_is_there(&scene);
    let committed = every_operation_is_decided(&scene, &seen);
    assert!(committed > 0, "nobody left between the request and its answer");
    nothing_stays_open(&scene);
    let mut after = (0, 0);
    wait_for("descriptors and threads are given back", SOON, || {
        after = scene.descriptors_and_threads();
        // The pools may have come up to their limits.
        (after.0 <= before.0 + SESSIONS_MAX && after.1 <= before.1 + 2).then_some(())
    });
    let counts = scene.counts.lock().unwrap();
    eprintln!(
        "{counts:?}; {} operations, {committed} committed although their client had left; idle \
         after {idle:?}, leases free after {free:?}; descriptors, threads {before:?} -> {after:?}",
        scene.posted.lock().unwrap().len(),
    );
}

fn nothing_stays_open(scene: &Scene) {
    wait_for("no session is in a transaction", SOON, || {
        (sessions::count(&scene.world, "state <> 'idle'") == 0).then_some(())
    });
    // One whose client has gone is there until the server notices.
    wait_for("the pools hold no more than they may", SOON, || {
        (sessions::count(&scene.world, "true") <= SESSIONS_MAX).then_some(())
    });
    let prefix = format!("fencepost:{}:", scene.world.name);
    wait_for("no transaction is open in Kafka", SOON, || {
        transactions::open(&scene.world.broker(), &prefix).is_empty().then_some(())
    });
    // And by its own account of what is undecided.
    scene.world.read_topic(&scene.world.ledger());
}

/// What such a call acquired is nobody's: it runs out by itself.
fn nobody_who_left_holds_a_lease(scene: &Scene, left: Instant) {
    let slack = Duration::from_millis(1_500 + 1_000);
    let within = (left + Duration::from_millis(TTL_MS) + slack) - Instant::now();
    wait_for("what they acquired has run out", within, || {
        let sql = "SELECT count(*) FROM leases WHERE owner LIKE 'gone-%' AND NOT released \
                   AND expires_at > clock_timestamp()";
        (scene.world.sql(sql) == "0").then_some(())
    });
    let granted = "SELECT count(*) FROM fence_history \
                   WHERE event = 'install' AND owner LIKE 'gone-%'";
    eprintln!("granted to somebody who might have left: {}", scene.world.sql(granted));
}

/// Repeats every operation under the current token. `seen` is what stood there before. Returns how
/// many had been committed for a client that did not hear of it.
fn every_operation_is_decided(scene: &Scene, seen: &HashMap<String, Vec<Seen>>) -> usize {
    let posted = scene.posted.lock().unwrap();
    let mut committed = 0;
    for op in posted.iter() {
        let there = seen.get(&op.id).map(|s| places(s)).unwrap_or_default();
        match &op.answer {
            Some(answer) => assert_eq!(told(answer), there, "{} was acknowledged", op.id),
            None if op.whole => {
                assert!([0, 3].contains(&there.len()), "{} is torn: {there:?}", op.id);
                committed += usize::from(!there.is_empty());
            }
            None => assert!(there.is_empty(), "half of {} was sent, and it is there", op.id),
        }
    }
    let answers: Mutex<HashMap<String, Value>> = Mutex::default();
    scene.for_each_lease(|client, lease| {
        let holder = scene.holder(lease);
        for op in posted.iter().filter(|op| op.lease == lease) {
            let body = client.insist(&holder, &op.id, &scene.records(&op.id), SOON).expect(200);
            assert_eq!(body["replayed"], seen.contains_key(&op.id), "{}: {body}", op.id);
            answers.lock().unwrap().insert(op.id.clone(), body);
        }
    });
    let (answers, seen) = (
        answers.into_inner().unwrap(),
        by_operation(&scene.world, &[&scene.world.topic, &scene.second]),
    );
    for op in posted.iter() {
        assert_eq!(places(&seen[&op.id]), told(&answers[&op.id]), "{}", op.id);
        assert_eq!(seen[&op.id].len(), 3, "{} is not there once and whole", op.id);
    }
    let sessions = SESSIONS;
    assert_eq!(seen.len(), posted.len() + sessions, "something that nobody posted");
    scene.world.audit();
    scene.world.audit_topic(&scene.second);
    committed
}
