//! A gateway on memory stores, calls, and what every refusal has.

use crate::shared::memory::World;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use fencepost::engine::Engine;
use fencepost::engine::api::Granted;
use fencepost::http::credential::Signer;
use fencepost::http::identity::Worker;
use fencepost::http::pattern::Pattern;
use fencepost::http::records::Topics;
use fencepost::http::{About, BodyMemory, Gateway, Settings, data_router};
use fencepost::protocol::lease::{
    DbTime, FencingToken, Identity, Incarnation, InstanceId, LeaseName, Owner,
};
use fencepost::protocol::transactional_id::Installation;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt;

pub(crate) const WORKER: &str = "worker-token";
pub(crate) const OPERATOR: &str = "operator-token";
pub(crate) const GOOD: &str = r#"{"records":[{"topic":"demo.a","value":"v"}]}"#;
pub(crate) const BODY_MAX: usize = 64 * 1024;

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Call {
    pub(crate) fn new(method: &'static str, path: &str) -> Self {
        Self { method, path: path.to_owned(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn json(self, body: impl Into<Vec<u8>>) -> Self {
        let call = self.with("content-type", "application/json");
        Self { body: body.into(), ..call }
    }
}

pub(crate) fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The real engine on memory stores.
pub(crate) fn gateway() -> Arc<Gateway> {
    gateway_of(crate::shared::gateway::Gateway::new(&World::new(), 7).engine)
}

pub(crate) fn gateway_of(engine: Engine) -> Arc<Gateway> {
    gateway_with_memory(engine, 256 * 1024 * 1024)
}

/// All bodies together have so many bytes.
pub(crate) fn gateway_with_memory(engine: Engine, bytes: usize) -> Arc<Gateway> {
    let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Arc::new(Gateway {
        engine,
        signer: Signer::from_pkcs8(key.as_ref(), "fencepost", "fencepost").unwrap(),
        workers: vec![Worker {
            identity: Identity::new("worker-1"),
            token: hash(WORKER),
            leases: vec![Pattern::new("matter.*")],
            owners: vec![Pattern::new("indexer-*")],
        }],
        operators: vec![hash(OPERATOR)],
        topics: Topics {
            allowed: vec![Pattern::new("demo.*")],
            ledger: "fencepost.ledger".to_owned(),
        },
        settings: Settings {
            body_bytes_max: BODY_MAX,
            body_timeout: Duration::from_millis(200),
            ..Settings::default()
        },
        body_memory: BodyMemory::new(bytes),
        about: About {
            installation: Installation::parse("test").unwrap(),
            instance: InstanceId([7; 16]),
        },
    })
}

pub(crate) fn credential(gateway: &Gateway, lease: &str) -> String {
    let granted = Granted {
        lease: LeaseName::parse(lease).unwrap(),
        owner: Owner::parse("indexer-17").unwrap(),
        token: FencingToken(402),
        incarnation: Incarnation(1),
        ttl_ms: 30_000,
        expires_at: DbTime(1_700_000_030_000_000),
        now: DbTime(1_700_000_000_000_000),
    };
    gateway.signer.mint(&granted).unwrap()
}

pub(crate) async fn answer(router: axum::Router, call: Call) -> Answer {
    let mut request = Request::builder().method(call.method).uri(call.path);
    for (name, value) in call.headers {
        request = request.header(name, value);
    }
    let response = router.oneshot(request.body(Body::from(call.body)).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, BODY_MAX).await.unwrap();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    if !parts.status.is_success() && !parts.headers["content-type"].eq("application/json") {
        assert_problem(parts.status, &parts.headers, &body);
    }
    Answer { status: parts.status, headers: parts.headers, body }
}

/// What every refusal has.
pub(crate) fn assert_problem(status: StatusCode, headers: &HeaderMap, body: &Value) {
    assert_eq!(headers["content-type"], "application/problem+json", "{body}");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(body["status"], status.as_u16());
    assert_eq!(body["type"], format!("/problems/{}", body["code"].as_str().unwrap()));
    for name in ["title", "detail", "retry", "side_effect"] {
        assert!(body[name].is_string(), "{name} of {body}");
    }
}

pub(crate) async fn refused(gateway: &Arc<Gateway>, call: Call) -> (u16, String) {
    let answer = answer(data_router(Arc::clone(gateway)), call).await;
    (answer.status.as_u16(), answer.code().to_owned())
}

pub(crate) fn produce(gateway: &Gateway) -> Call {
    Call::new("POST", "/v1/leases/matter.7/records")
        .bearer(&credential(gateway, "matter.7"))
        .with("idempotency-key", "doc-1")
}

pub(crate) fn acquire() -> Call {
    Call::new("POST", "/v1/leases/matter.7/acquire").bearer(WORKER)
}

pub(crate) fn expect(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}
