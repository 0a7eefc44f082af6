//! Every code of the table, as a caller gets it: status, retry, side effect, page.

use crate::chaos_proxy::{Action, Mode, api};
use crate::client::{Answer, Client, Holder, Raw};
use crate::gateway::Gateway;
use crate::proxies::{kafka_proxy, postgres_proxy};
use crate::raw::{DEADLINES, Line, Request};
use crate::world::{OPS, Options, WORKER, World, wait_for};
use nix::sys::signal::Signal;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, Producer};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

const SOON: Duration = Duration::from_secs(20);
const LEASE: &str = "shard.7";

/// Status, code, retry, side effect: what DESIGN.md's table says, in one line.
type Row = (u16, &'static str, &'static str, &'static str);

#[track_caller]
fn is(answer: &Answer, row: Row) {
    let text = |name: &str| answer.body[name].as_str().unwrap_or_default().to_owned();
    let got = (answer.status, text("code"), text("retry"), text("side_effect"));
    assert_eq!(got, (row.0, row.1.to_owned(), row.2.to_owned(), row.3.to_owned()), "{answer:?}");
    assert_eq!(text("type"), format!("/problems/{}", row.1));
    let after = &answer.body["retry_after_ms"];
    assert_eq!(after.is_u64(), matches!(row.0, 429 | 503) || row.1 == "lease_held", "{answer:?}");
}

struct Scene {
    world: World,
    gateway: Gateway,
    client: Client,
}

impl Scene {
    fn new(test: &str, options: Options) -> Self {
        let world = World::with(test, options);
        let gateway = world.gateway("g1");
        let client = gateway.client();
        Self { world, gateway, client }
    }

    fn good(&self) -> Value {
        json!([{ "topic": self.world.topic, "value": "v" }])
    }

    /// A POST of exactly these bytes, with a key and a credential unless they are replaced.
    fn post(&self, holder: &Holder, changed: &[(&str, Option<&str>)], body: &[u8]) -> Answer {
        let bearer = format!("Bearer {}", holder.credential);
        let mut headers = vec![
            ("authorization", Some(bearer.as_str())),
            ("content-type", Some("application/json")),
            ("idempotency-key", Some("k")),
        ];
        for (name, value) in changed {
            headers.retain(|(n, _)| n != name);
            headers.push((name, *value));
        }
        let headers: Vec<_> = headers.into_iter().filter_map(|(n, v)| Some((n, v?))).collect();
        let raw: Raw = self.client.send("POST", &records_of(&holder.lease), &headers, body);
        assert_eq!(raw.header("content-type"), Some("application/problem+json"), "{raw:?}");
        assert_eq!(raw.header("retry-after").is_some(), raw.json()["retry_after_ms"].is_u64());
        raw.answer()
    }
}

fn records_of(lease: &str) -> String {
    format!("/v1/leases/{lease}/records")
}

/// A UUIDv7 made so many seconds ago.
fn v7(ago_s: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let at = now.as_secs().checked_add_signed(-ago_s).unwrap();
    uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, at, 0)).to_string()
}

#[test]
fn what_is_wrong_with_a_request_has_a_code_of_its_own() {
    let scene = Scene::new("codes-bad", Options::default());
    let holder = scene.client.hold(LEASE, "w", SOON);
    let good = json!({ "records": scene.good() }).to_string();
    let post = |changed: &[_], body: &str| scene.post(&holder, changed, body.as_bytes());
    is(&post(&[], "{"), (400, "malformed_body", "never", "none"));
    let missing = post(&[("idempotency-key", None)], &good);
    is(&missing, (400, "missing_idempotency_key", "never", "none"));
    let anonymous = post(&[("authorization", None)], &good);
    is(&anonymous, (401, "credential_missing", "never", "maybe"));
    let forged = post(&[("authorization", Some("Bearer x.y.z"))], &good);
    is(&forged, (401, "credential_invalid", "never", "maybe"));
    let elsewhere = Holder { lease: "other.7".to_owned(), ..holder.clone() };
    let elsewhere = scene.client.records(&elsewhere, "k", &scene.good());
    is(&elsewhere, (403, "wrong_lease", "never", "maybe"));
    let text = post(&[("content-type", Some("text/plain"))], &good);
    is(&text, (415, "unsupported_media_type", "never", "none"));
    let misspelt = post(&[], r#"{"recods":[]}"#);
    is(&misspelt, (422, "invalid_member", "never", "none"));
    assert_eq!(misspelt.body["pointer"], "/recods");
    let large = vec![b' '; 4 * 1024 * 1024 + 1];
    is(&scene.post(&holder, &[], &large), (413, "body_too_large", "never", "maybe"));

    let of = |record: Value| scene.client.records(&holder, "k", &json!([record]));
    let topic = scene.world.topic.as_str();
    let absent = of(json!({ "topic": "data.absent", "value": "v" }));
    is(&absent, (404, "topic_not_found", "never", "maybe"));
    let partition = of(json!({ "topic": topic, "partition": 99, "value": "v" }));
    is(&partition, (404, "partition_not_found", "never", "maybe"));
    let ledger = of(json!({ "topic": scene.world.ledger(), "value": "v" }));
    is(&ledger, (403, "topic_not_allowed", "never", "maybe"));
    let huge = of(json!({ "topic": topic, "value": "x".repeat(1024 * 1024 + 1) }));
    is(&huge, (413, "record_too_large", "never", "maybe"));
    assert_eq!((&huge.body["index"], &huge.body["limit_bytes"]), (&json!(0), &json!(1_048_576)));

    let too_old = scene.client.records(&holder, &v7(8 * 24 * 3_600), &scene.good());
    is(&too_old, (422, "operation_too_old", "never", "maybe"));
    let ahead = scene.client.records(&holder, &v7(-600), &scene.good());
    is(&ahead, (422, "invalid_member", "never", "maybe"));
    assert_eq!(ahead.body["parameter"], "Idempotency-Key");
    scene.client.records(&holder, &v7(0), &scene.good()).expect(200);
    scene.client.records(&holder, "k", &scene.good()).expect(200);
    let changed = json!([{ "topic": topic, "value": "w" }]);
    let conflict = scene.client.records(&holder, "k", &changed);
    is(&conflict, (422, "operation_conflict", "never", "committed"));

    let path = scene.client.get("/v2", None);
    is(&path, (404, "path_not_found", "never", "none"));
    let method = scene.client.get(&records_of(LEASE), None);
    is(&method, (405, "method_not_allowed", "never", "none"));
    let not_yours = scene.client.get("/v1/leases", Some(WORKER));
    is(&not_yours, (403, "not_allowed", "never", "maybe"));
    assert_eq!(scene.world.read().len(), 2, "and nothing of all that was refused");
}

#[test]
fn how_a_lease_stands_has_a_code_of_its_own() {
    let scene = Scene::new("codes-lease", Options::default());
    let (client, good) = (&scene.client, scene.good());
    let nobody = client.get("/v1/leases/nobody.7", Some(OPS));
    is(&nobody, (404, "lease_not_found", "never", "maybe"));
    let first = client.hold(LEASE, "w", SOON);
    let held = client.acquire(LEASE, "x", json!({}));
    is(&held, (409, "lease_held", "later", "none"));
    assert_eq!(held.body["holder"], "w");
    assert!(held.body["expires_in_ms"].as_u64().unwrap() <= 600_000);
    client.records(&first, "a", &good).expect(200);
    client.release(&first).expect(200);
    let released = client.records(&first, "b", &good);
    is(&released, (412, "lease_released", "reacquire", "none"));
    let second = client.take(LEASE, "w", SOON);
    let stale = client.records(&first, "b", &good);
    is(&stale, (412, "stale_token", "reacquire", "none"));
    assert_eq!(stale.body["current_token"], second.token.to_string());
    assert_eq!(client.records(&first, "a", &good).expect(200)["replayed"], true);
    let expired = wait_for("the lease expires", SOON, || {
        let answer = client.records(&second, &uuid::Uuid::new_v4().to_string(), &good);
        // The credential ends up to a second before its lease.
        (!matches!(answer.status, 200 | 401)).then_some(answer)
    });
    is(&expired, (412, "lease_expired", "reacquire", "maybe"));
    // Renewed for longer, the credential of before is over while its lease lives.
    let old = client.take("other.7", "w", SOON);
    let renew = "/v1/leases/other.7/renew";
    client.post(renew, Some(&old.credential), &[], &json!({ "ttl_ms": 600_000 })).expect(200);
    let over = wait_for("the old credential expires", SOON, || {
        let answer = client.records(&old, &uuid::Uuid::new_v4().to_string(), &good);
        (answer.status != 200).then_some(answer)
    });
    is(&over, (401, "credential_expired", "reacquire", "maybe"));
    let third = client.hold("third.7", "w", SOON);
    scene.world.sql("UPDATE fences SET quarantine = 'by hand' WHERE lease = 'third.7'");
    let quarantined = client.records(&third, "a", &good);
    is(&quarantined, (503, "quarantined", "later", "maybe"));
}

#[test]
fn a_full_queue_a_slow_body_and_a_stop_have_codes_of_their_own() {
    let extra = "[limits]\nqueue_per_lease_max = 1\n".to_owned();
    let options = Options { swaps: vec![DEADLINES], extra, ..Options::default() };
    let scene = Scene::new("codes-busy", options);
    let (client, good) = (&scene.client, scene.good());
    let holder = client.hold(LEASE, "w", SOON);
    client.records(&holder, "warm", &good).expect(200);
    scene.gateway.pause("after_check", LEASE, 1_000);
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let posts = (0..6).map(|k| {
            let (holder, good) = (&holder, &good);
            scope.spawn(move || client.records(holder, &format!("b-{k}"), good))
        });
        let posts: Vec<_> = posts.collect();
        posts.into_iter().map(|post| post.join().unwrap()).collect()
    });
    let busy: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(!busy.is_empty() && busy.len() < 6, "{answers:?}");
    busy.iter().for_each(|answer| is(answer, (429, "busy", "same_key", "maybe")));

    let request = |key: &str| {
        let body = json!({ "records": good });
        Request::post(&records_of(LEASE), &holder.credential, Some(key), &body)
    };
    let mut slow = Line::to(scene.gateway.port).unwrap();
    slow.send(request("slow").head.as_bytes());
    is(&slow.hear(SOON).answer(), (408, "slow_body", "same_key", "maybe"));
    // Begun before the signal and whole only after it.
    let last = request("last");
    let mut line = Line::to(scene.gateway.port).unwrap();
    line.send(last.head.as_bytes());
    client.records(&holder, "read-by-then", &good).expect(200);
    scene.gateway.signal(Signal::SIGTERM);
    wait_for("readiness is off", SOON, || (scene.gateway.ready().status == 503).then_some(()));
    line.send(last.body.as_bytes());
    is(&line.hear(SOON).answer(), (503, "shutting_down", "same_key", "maybe"));
    assert_eq!(scene.gateway.wait_exit(SOON), Some(0));
}

#[test]
fn an_unknown_outcome_and_one_that_joined_it_have_codes_of_their_own() {
    let proxy = kafka_proxy();
    let options = Options { bootstrap: Some(proxy.address()), ..Options::default() };
    let scene = Scene::new("codes-doubt", options);
    let (client, good) = (&scene.client, scene.good());
    let holder = client.hold(LEASE, "w", SOON);
    client.records(&holder, "warm", &good).expect(200);
    proxy.next(api::END_TXN, Action::LoseReply);
    let applied = proxy.applied();
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| client.records(&holder, "a", &good));
        assert!(proxy.wait_applied(applied + 1, SOON));
        proxy.set_mode(Mode::Freeze);
        let second = client.records(&holder, "a", &good);
        (first.join().unwrap(), second)
    });
    is(&first, (504, "outcome_unknown", "same_key", "maybe"));
    is(&second, (409, "operation_in_flight", "same_key", "maybe"));
    let other = client.records(&holder, "b", &good);
    is(&other, (503, "kafka_unavailable", "same_key", "maybe"));
    proxy.set_mode(Mode::Pass);
    client.insist(&holder, "a", &good, SOON).expect(200);
    client.insist(&holder, "b", &good, SOON).expect(200);
    assert_eq!(scene.world.read().len(), 3);
    scene.world.audit();
}

#[test]
fn a_database_that_is_gone_and_a_strangers_producer_have_codes_of_their_own() {
    let (proxy, address) = postgres_proxy();
    let postgres = Some(address);
    let scene = Scene::new("codes-gone", Options { postgres, ..Options::default() });
    let (client, good) = (&scene.client, scene.good());
    let holder = client.hold(LEASE, "w", SOON);
    client.records(&holder, "warm", &good).expect(200);
    let stranger: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", scene.world.broker())
        .set("transactional.id", format!("fencepost:{}:{LEASE}", scene.world.name))
        .create()
        .unwrap();
    stranger.init_transactions(SOON).unwrap();
    let fenced = client.records(&holder, "a", &good);
    is(&fenced, (503, "producer_fenced", "same_key", "maybe"));
    client.insist(&holder, "a", &good, SOON).expect(200);
    proxy.set_mode(Mode::Refuse);
    let gone = client.records(&holder, "b", &good);
    is(&gone, (503, "postgres_unavailable", "same_key", "maybe"));
    proxy.set_mode(Mode::Pass);
    client.insist(&holder, "b", &good, SOON).expect(200);
    assert_eq!(scene.world.read().len(), 3);
}
