//! What became of an operation, many leases, the history of one, and refusals that look first.

use crate::shared::gateway::Gateway as OnMemory;
use crate::shared::memory::{Fault, Ports, World};
use crate::support::{Answer, Call, GOOD, OPERATOR, WORKER, answer, gateway_of, produce, refused};
use axum::http::StatusCode;
use fencepost::http::{Gateway, data_router};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// One gateway on a world of its own, and the holder of one lease.
struct Case {
    world: World,
    ports: Ports,
    gateway: Arc<Gateway>,
    credential: String,
    token: String,
}

impl Case {
    async fn held() -> Self {
        Self::held_for(5_000).await
    }

    async fn held_for(ttl_ms: u64) -> Self {
        let world = World::new();
        let OnMemory { engine, ports } = OnMemory::new(&world, 7);
        let gateway = gateway_of(engine);
        let mut case =
            Self { world, ports, gateway, credential: String::new(), token: String::new() };
        case.acquire(ttl_ms).await;
        case
    }

    async fn acquire(&mut self, ttl_ms: u64) {
        let call = Call::new("POST", "/v1/leases/matter.7/acquire").bearer(WORKER);
        let body = json!({ "owner": "indexer-17", "ttl_ms": ttl_ms }).to_string();
        let answer = self.call(call.json(body)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        self.credential = answer.body["credential"].as_str().unwrap().to_owned();
        self.token = answer.body["token"].as_str().unwrap().to_owned();
    }

    async fn call(&self, call: Call) -> Answer {
        answer(data_router(Arc::clone(&self.gateway)), call).await
    }

    async fn post(&self, id: &str, body: &str) -> Answer {
        let call = Call::new("POST", "/v1/leases/matter.7/records");
        self.call(call.bearer(&self.credential).with("idempotency-key", id).json(body)).await
    }

    async fn release(&self) {
        let call = Call::new("POST", "/v1/leases/matter.7/release").bearer(&self.credential);
        assert_eq!(self.call(call).await.status, StatusCode::OK);
    }

    async fn ask(&self, id_and_query: &str, token: &str) -> Answer {
        let path = format!("/v1/leases/matter.7/operations/{id_and_query}");
        self.call(Call::new("GET", &path).bearer(token)).await
    }

    /// The state that is told, to the holder and to an operator alike.
    async fn state(&self, id_and_query: &str) -> Value {
        let told = self.ask(id_and_query, OPERATOR).await.body;
        assert_eq!(self.ask(id_and_query, &self.credential).await.body, told);
        told
    }

    /// An operation whose batch is in Kafka and not in Postgres, on a lease that has expired.
    async fn in_doubt_and_expired(&self) {
        self.world.fault("commit.record", 0, Fault::Fail);
        (0..200).for_each(|_| self.world.fault("init", 0, Fault::Fail));
        assert_eq!(self.post("doubt", GOOD).await.code(), "outcome_unknown");
        self.world.clear_faults();
        sleep(Duration::from_secs(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_committed_operation_is_told_with_its_stored_answer_and_others_are_unknown() {
    let case = Case::held().await;
    let posted = case.post("a/1", GOOD).await.body;
    let told = case.state("a%2F1").await;
    assert_eq!((&told["state"], &told["operation_id"]), (&json!("committed"), &json!("a/1")));
    assert_eq!(told["answer"]["offsets"], posted["offsets"]);
    assert_eq!((&told["answer"]["replayed"], &posted["replayed"]), (&json!(true), &json!(false)));
    let unknown = json!({"lease": "matter.7", "operation_id": "b", "state": "unknown"});
    assert_eq!(case.state("b").await, unknown);
    // A live lease is never opened for a question.
    let inits = case.world.hits("init");
    assert_eq!(case.state("b?settle=true").await, unknown);
    assert_eq!(case.world.hits("init"), inits);
}

#[tokio::test(start_paused = true)]
async fn an_operation_is_absent_only_after_a_release_or_a_settle() {
    let case = Case::held().await;
    sleep(Duration::from_secs(6)).await;
    assert_eq!(case.state("b").await["state"], "unknown", "expired is not decided");
    let absent = json!({
        "lease": "matter.7", "operation_id": "b", "state": "absent", "up_to_token": case.token,
    });
    assert_eq!(case.state("b?settle=true").await, absent);
    let inits = case.world.hits("init");
    assert_eq!(case.state("b?settle=true").await, absent, "and from the row from then on");
    assert_eq!(case.world.hits("init"), inits);

    let case = Case::held().await;
    case.release().await;
    assert_eq!(case.state("b").await["state"], "absent");
    assert_eq!(case.state("b").await["up_to_token"], case.token);
}

#[tokio::test(start_paused = true)]
async fn a_settle_finds_an_operation_that_only_kafka_knew() {
    let case = Case::held_for(20_000).await;
    case.in_doubt_and_expired().await;
    assert_eq!(case.state("doubt").await["state"], "unknown");
    assert_eq!(case.state("doubt?settle=true").await["state"], "committed");
    assert_eq!(case.state("doubt").await["state"], "committed");
    assert_eq!(case.world.data().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_is_answered_to_the_leases_holders_and_to_operators_only() {
    let mut case = Case::held().await;
    let answer = case.ask("a", WORKER).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (401, "credential_invalid"));
    for query in ["a?settle=1", "a?settle=true&settle=true", "a?settled=true", "a%00", "%FF"] {
        let answer = case.ask(query, OPERATOR).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (422, "invalid_member"), "{query}");
    }
    let nobody = Call::new("GET", "/v1/leases/matter.8/operations/a").bearer(OPERATOR);
    assert_eq!(refused(&case.gateway, nobody).await, (404, "lease_not_found".to_owned()));
    // Its lease over, a credential is what its holder asks with; a renewed one's is not.
    let old = case.credential.clone();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(case.ask("a", &old).await.body["state"], "unknown");
    case.acquire(5_000).await;
    assert_eq!(case.ask("a", &old).await.body["state"], "unknown", "an older token's");
    let first = case.credential.clone();
    let renew = Call::new("POST", "/v1/leases/matter.7/renew").bearer(&first);
    let renewed = case.call(renew.json(r#"{"ttl_ms":60000}"#)).await;
    assert_eq!(renewed.status, StatusCode::OK);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(case.ask("a", &first).await.code(), "credential_expired");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_needs_no_lock_looks_the_operation_up_first() {
    let case = Case::held().await;
    let accepted = case.post("a", GOOD).await;
    assert_eq!(accepted.status, StatusCode::OK);
    // Its operator has allowed other topics since.
    let mut limited = Arc::into_inner(case.gateway).unwrap();
    limited.topics.allowed.clear();
    let limited = Arc::new(limited);
    let call = |id: &str, body: &str| {
        let call = Call::new("POST", "/v1/leases/matter.7/records").bearer(&case.credential);
        answer(data_router(Arc::clone(&limited)), call.with("idempotency-key", id).json(body))
    };
    let replayed = call("a", GOOD).await;
    assert_eq!(replayed.body["replayed"], true, "{}", replayed.body);
    assert_eq!(replayed.body["offsets"], accepted.body["offsets"]);
    let changed = r#"{"records":[{"topic":"demo.a","value":"w"}]}"#;
    assert_eq!(call("a", changed).await.code(), "operation_conflict");
    let refused = call("b", GOOD).await;
    assert_eq!(
        (refused.code(), &refused.body["side_effect"]),
        ("topic_not_allowed", &json!("maybe"))
    );
    let release = Call::new("POST", "/v1/leases/matter.7/release").bearer(&case.credential);
    assert_eq!(answer(data_router(Arc::clone(&limited)), release).await.status, StatusCode::OK);
    let over = call("b", GOOD).await;
    assert_eq!((over.code(), &over.body["side_effect"]), ("lease_released", &json!("none")));
}

#[tokio::test(start_paused = true)]
async fn an_identical_operation_joins_the_one_under_way_and_gives_up_at_its_own_deadline() {
    let case = Case::held_for(60_000).await;
    let freeze = async {
        while case.world.hits("send") == 0 {
            sleep(Duration::from_micros(100)).await;
        }
        case.ports.freeze(Duration::from_secs(15));
    };
    let (first, second, ()) = tokio::join!(case.post("a", GOOD), case.post("a", GOOD), freeze);
    assert_eq!((first.status.as_u16(), first.code()), (504, "outcome_unknown"));
    assert_eq!((second.status.as_u16(), second.code()), (409, "operation_in_flight"));
    for answer in [&first, &second] {
        assert_eq!(
            (&answer.body["retry"], &answer.body["side_effect"]),
            (&json!("same_key"), &json!("maybe"))
        );
    }
    sleep(Duration::from_secs(5)).await;
    let (one, two) = tokio::join!(case.post("b", GOOD), case.post("b", GOOD));
    let replayed = [&one, &two].map(|a| a.body["replayed"].as_bool().unwrap());
    assert_eq!(replayed.iter().filter(|r| **r).count(), 1, "{:?} {:?}", one.body, two.body);
    assert_eq!(one.body["offsets"], two.body["offsets"]);
}

#[tokio::test(start_paused = true)]
async fn leases_and_their_history_are_listed_in_pages_for_operators_only() {
    let mut case = Case::held().await;
    case.release().await;
    case.acquire(5_000).await;
    for lease in ["matter.1", "matter.2"] {
        let call = Call::new("POST", &format!("/v1/leases/{lease}/acquire")).bearer(WORKER);
        let call = call.json(r#"{"owner":"indexer-17","ttl_ms":5000}"#);
        assert_eq!(case.call(call).await.status, StatusCode::OK);
    }
    let get = |path: &str| case.call(Call::new("GET", path).bearer(OPERATOR));
    let names = |body: &Value| -> Vec<String> {
        let items = body["items"].as_array().unwrap().iter();
        items.map(|i| i["lease"].as_str().unwrap().to_owned()).collect()
    };
    let first = get("/v1/leases?prefix=matter.&limit=2").await.body;
    assert_eq!(
        (names(&first), &first["next"]),
        (vec!["matter.1".to_owned(), "matter.2".to_owned()], &json!("matter.2"))
    );
    let rest = get("/v1/leases?prefix=matter.&limit=2&after=matter.2").await.body;
    assert_eq!((names(&rest), &rest["next"]), (vec!["matter.7".to_owned()], &Value::Null));
    assert_eq!(rest["items"][0]["state"], "held");
    let history = get("/v1/leases/matter.7/history?limit=2").await.body;
    let events: Vec<&str> =
        history["items"].as_array().unwrap().iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["install", "release"]);
    let next = get(&format!("/v1/leases/matter.7/history?after={}", history["next"])).await.body;
    assert_eq!((&next["items"][0]["event"], &next["next"]), (&json!("install"), &Value::Null));
    assert_eq!(get("/v1/leases/nobody/history").await.code(), "lease_not_found");
    for bad in [
        "?limit=0",
        "?limit=1001",
        "?after=a%2Fb",
        "?prefix=a%2F",
        "?x=1",
        "?limit=1&limit=2",
        "?prefix=%FF",
        "?prefix=.%00",
        "?prefix=...%2F",
    ] {
        let answer = get(&format!("/v1/leases{bad}")).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (422, "invalid_member"), "{bad}");
    }
    for good in [".", "..", "matter"] {
        assert_eq!(get(&format!("/v1/leases?prefix={good}")).await.status, StatusCode::OK);
    }
    for path in ["/v1/leases", "/v1/leases/matter.7/history"] {
        let ask = |call: Call| refused(&case.gateway, call);
        let new = || Call::new("GET", path);
        assert_eq!(ask(new()).await, (401, "credential_missing".to_owned()));
        assert_eq!(ask(new().bearer("x")).await, (401, "credential_invalid".to_owned()));
        assert_eq!(ask(new().bearer(WORKER)).await, (403, "not_allowed".to_owned()));
        assert_eq!(ask(new().bearer(&case.credential)).await, (403, "not_allowed".to_owned()));
    }
}

/// Kafka says so of a topic that it does not show; whether the worker may use it comes first.
#[tokio::test(start_paused = true)]
async fn a_topic_that_kafka_does_not_show_is_denied_only_to_one_who_may_use_it() {
    let case = Case::held().await;
    for (topic, status, code) in [("demo.a", 503, "kafka_denied"), ("x", 403, "topic_not_allowed")]
    {
        case.world.fault("metadata", 0, Fault::Refuse);
        let answer = case.post("a", &GOOD.replace("demo.a", topic)).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (status, code), "{topic}");
        assert_eq!(case.world.unused_faults(), 0);
    }
}

#[tokio::test]
async fn a_problems_page_stands_at_its_type() {
    let case = Case::held().await;
    let problem = case.call(produce(&case.gateway).json("x")).await;
    let path = problem.body["type"].as_str().unwrap();
    let page = case.call(Call::new("GET", path)).await;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.headers["content-type"], "text/plain; charset=utf-8");
    let absent = Call::new("GET", "/problems/no_such_code");
    assert_eq!(refused(&case.gateway, absent).await, (404, "path_not_found".to_owned()));
}
