//! The admin listener's calls: alive, ready, version.
//!
//! Owns their answers. Never asks a dependency itself: readiness is the engine's probe.

use crate::engine::api::Readiness;
use crate::http::{Gateway, problem};
use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use serde::Serialize;
use std::sync::Arc;

#[derive(Serialize)]
pub(super) struct LiveBody {
    live: bool,
}

#[derive(Serialize)]
pub(super) struct ReadyBody {
    ready: bool,
    postgres: bool,
    kafka: bool,
    ledger: bool,
    accepting: bool,
}

#[derive(Serialize)]
pub(super) struct VersionBody {
    name: &'static str,
    version: &'static str,
    installation: String,
    instance: String,
    kafka_engine: &'static str,
}

/// GET /livez: the process answers.
pub(super) async fn live() -> Json<LiveBody> {
    Json(LiveBody { live: true })
}

/// GET /readyz: every dependency, probed.
pub(super) async fn ready(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    let readiness = gateway.engine.readiness().await;
    let ready = readiness.is_ready();
    let Readiness { postgres, kafka, ledger, accepting } = readiness;
    (problem::status_of(ready), Json(ReadyBody { ready, postgres, kafka, ledger, accepting }))
}

/// GET /version
pub(super) async fn version(State(gateway): State<Arc<Gateway>>) -> Json<VersionBody> {
    Json(VersionBody {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        installation: gateway.about.installation.as_str().to_owned(),
        instance: uuid::Uuid::from_bytes(gateway.about.instance.0).to_string(),
        kafka_engine: "rdkafka",
    })
}

/// Arms a fail point: test builds only.
#[cfg(feature = "failpoints")]
pub(super) async fn arm(
    axum::Json(point): axum::Json<crate::failpoint::Armed>,
) -> axum::response::NoContent {
    crate::failpoint::arm(point);
    axum::response::NoContent
}
