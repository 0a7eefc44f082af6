//! The clients of this test: those who leave, at random, and those who stay.

use crate::client::{Client, Holder};
use crate::gateway::Gateway;
use crate::raw::{Heard, Line, Request};
use crate::world::{WORKER, World, wait_for};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

pub const SOON: Duration = Duration::from_secs(20);
pub const POSTERS: usize = 8;
pub const LEASES: usize = 20;
/// Longest time that a client waits before it hangs up, in ms.
const PATIENCE_MS: u64 = 60;
/// Longest rest between two clients of one thread, in ms.
const REST_MS: u64 = 200;
pub const TTL_MS: u64 = 2_500;

pub struct Random(pub u64);

impl Random {
    /// One of 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// One operation that was posted.
pub struct Posted {
    pub lease: usize,
    pub id: String,
    /// Its request was sent to its end.
    pub whole: bool,
    pub answer: Option<Value>,
}

pub struct Scene {
    /// First, for it is dropped first: its sessions would keep the world's database.
    pub gateway: Gateway,
    pub world: World,
    pub second: String,
    pub holders: Vec<Mutex<Holder>>,
    pub posted: Mutex<Vec<Posted>>,
    pub counts: Mutex<HashMap<&'static str, usize>>,
}

pub fn name(lease: usize) -> String {
    format!("matter.{lease}")
}

impl Scene {
    pub fn records(&self, id: &str) -> Value {
        json!([
            { "topic": self.world.topic, "partition": 0, "value": format!("{id} first") },
            { "topic": self.second, "partition": 0, "key": id, "value": format!("{id} second") },
            { "topic": self.world.topic, "partition": 1, "value": format!("{id} third") },
        ])
    }

    pub fn holder(&self, lease: usize) -> Holder {
        self.holders[lease].lock().unwrap().clone()
    }

    pub fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    pub fn keep(&self, lease: usize, id: String, whole: bool, answer: Option<Value>) {
        self.posted.lock().unwrap().push(Posted { lease, id, whole, answer });
    }

    /// One client that says something, or a part of it, and leaves.
    pub fn hang_up(&self, n: usize, random: &mut Random) {
        let lease = usize::try_from(random.below(LEASES as u64)).unwrap();
        let holder = self.holder(lease);
        let path = |call: &str| format!("/v1/leases/{}/{call}", name(lease));
        let id = format!("gone-{n}");
        let (what, request) = match random.below(20) {
            0..=10 => {
                let body = json!({ "records": self.records(&id) });
                let request = Request::post(&path("records"), &holder.credential, Some(&id), &body);
                ("produce", request)
            }
            11..=14 => {
                let wait_ms = random.below(2) * 2_000;
                let body = json!({ "owner": id, "ttl_ms": TTL_MS, "wait_ms": wait_ms });
                ("acquire", Request::post(&path("acquire"), WORKER, None, &body))
            }
            15 => {
                let owner = format!("w{lease}");
                let body = json!({ "owner": owner, "ttl_ms": TTL_MS, "replace": true });
                ("replace", Request::post(&path("acquire"), WORKER, None, &body))
            }
            16..=18 => {
                let body = json!({ "ttl_ms": TTL_MS });
                ("renew", Request::post(&path("renew"), &holder.credential, None, &body))
            }
            _ => ("release", Request::post(&path("release"), &holder.credential, None, &json!({}))),
        };
        self.count(what);
        let mut bytes = request.bytes();
        let whole = random.below(5) > 0;
        if !whole {
            let length = u64::try_from(bytes.len()).unwrap();
            bytes.truncate(usize::try_from(random.below(length)).unwrap());
            self.count("cut short");
        }
        let patience = Duration::from_millis(random.below(PATIENCE_MS + 1));
        let mut line = Line::to(self.gateway.port).unwrap();
        line.send(&bytes);
        let answer = match line.hear(patience) {
            Heard::Answer(answer) => Some(answer),
            Heard::Closed | Heard::Nothing => None,
        };
        assert!(whole || answer.is_none(), "half a {what} was answered {answer:?}");
        self.count(if answer.is_some() { "heard the answer" } else { "left before it" });
        if what == "produce" {
            let accepted = answer.filter(|a| a.status == 200).map(|a| a.body);
            self.keep(lease, id, whole, accepted);
        }
        if random.below(2) == 0 {
            line.reset();
        }
        // The next client of this thread comes a moment later.
        std::thread::sleep(Duration::from_millis(random.below(REST_MS)));
    }

    /// A client that stays: posts on its leases in turns, and gets back what it lost.
    pub fn post_until(&self, done: &AtomicBool, poster: usize) {
        let client = self.gateway.client();
        let mine = || (0..LEASES).filter(|lease| lease % POSTERS == poster);
        let mut k = 0;
        while !done.load(Ordering::Relaxed) {
            for lease in mine() {
                k += 1;
                let id = format!("stay-{lease}-{k}");
                let answer = client.records(&self.holder(lease), &id, &self.records(&id));
                match answer.status {
                    200 => self.keep(lease, id, true, Some(answer.body)),
                    409 | 429 | 503 | 504 => self.keep(lease, id, true, None),
                    // Somebody renewed, released or replaced behind its back.
                    401 | 412 => {
                        self.keep(lease, id, true, None);
                        self.get_back(&client, lease, TTL_MS);
                    }
                    _ => panic!("{answer:?}"),
                }
            }
        }
    }

    pub fn get_back(&self, client: &Client, lease: usize, ttl_ms: u64) {
        let owner = format!("w{lease}");
        let body = wait_for("the lease is free of those who left", SOON, || {
            let more = json!({ "ttl_ms": ttl_ms, "wait_ms": 1_000, "replace": true });
            let answer = client.acquire(&name(lease), &owner, more);
            assert_ne!(answer.status, 0, "{answer:?}");
            (answer.status == 200).then_some(answer.body)
        });
        *self.holders[lease].lock().unwrap() = Holder::of(&body);
    }

    /// Does it for every lease, eight at a time.
    pub fn for_each_lease(&self, work: impl Fn(&Client, usize) + Sync) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let client = self.gateway.client();
                    loop {
                        let lease = next.fetch_add(1, Ordering::Relaxed);
                        if lease >= LEASES {
                            break;
                        }
                        work(&client, lease);
                    }
                });
            }
        });
    }

    pub fn descriptors_and_threads(&self) -> (usize, usize) {
        let count = |what: &str| {
            std::fs::read_dir(format!("/proc/{}/{what}", self.gateway.pid())).unwrap().count()
        };
        (count("fd"), count("task"))
    }
}
