//! HTTP: both routers on one page, and the layers around them in order.
//!
//! Owns what is served where. A handler is: extractors, one engine call, an answer. Nothing here
//! names a table or a Kafka client, and only `problem` maps a refusal to a status.

mod body;
pub mod credential;
pub mod identity;
mod json;
mod leases;
pub mod openapi;
mod operations;
mod ops;
pub mod pattern;
pub mod problem;
mod produce;
mod query;
pub mod records;
pub mod server;

use crate::engine::Engine;
use crate::protocol::lease::InstanceId;
use crate::protocol::transactional_id::Installation;
pub use body::BodyMemory;

use axum::Router;
use axum::http::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::middleware;
use axum::response::Response;
use axum::routing::{get, post};
use credential::Signer;
use identity::{TokenHash, Worker};
use problem::{Code, Problem};
use records::Topics;
use std::sync::Arc;
use std::time::Duration;
use tower_http::catch_panic::CatchPanicLayer;

/// Bounds of requests.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Shortest time to live of a lease.
    pub ttl_min_ms: u64,
    /// Longest time to live of a lease.
    pub ttl_max_ms: u64,
    /// Largest body.
    pub body_bytes_max: usize,
    /// Longest time that a whole body may take.
    pub body_timeout: Duration,
    /// Largest record: key, value and headers.
    pub record_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl_min_ms: 5_000,
            ttl_max_ms: 3_600_000,
            body_bytes_max: 4 * 1024 * 1024,
            body_timeout: Duration::from_secs(10),
            record_bytes_max: 1024 * 1024,
        }
    }
}

/// Which gateway this is.
#[derive(Debug, Clone)]
pub struct About {
    /// The deployment.
    pub installation: Installation,
    /// This process.
    pub instance: InstanceId,
}

/// All that the handlers need, put together by `serve`.
pub struct Gateway {
    /// The engine.
    pub engine: Engine,
    /// Makes and verifies fencing credentials.
    pub signer: Signer,
    /// Worker identities.
    pub workers: Vec<Worker>,
    /// Hashes of the operators' tokens.
    pub operators: Vec<TokenHash>,
    /// Which topics may be written to.
    pub topics: Topics,
    /// Bounds of requests.
    pub settings: Settings,
    /// The memory that their bodies share.
    pub body_memory: BodyMemory,
    /// Which gateway this is.
    pub about: About,
}

/// What workers call.
pub fn data_router(gateway: Arc<Gateway>) -> Router {
    let routes = Router::new()
        .route("/openapi.json", get(openapi::serve))
        .route("/v1/leases", get(operations::list))
        .route("/v1/leases/{lease}", get(leases::inspect))
        .route("/v1/leases/{lease}/history", get(operations::history))
        .route("/v1/leases/{lease}/operations/{id}", get(operations::operation))
        .route("/v1/leases/{lease}/acquire", post(leases::acquire))
        .route("/v1/leases/{lease}/renew", post(leases::renew))
        .route("/v1/leases/{lease}/release", post(leases::release))
        .route("/v1/leases/{lease}/records", post(produce::produce));
    layered(routes, gateway)
}

/// What operators and their tools call; open only on loopback.
pub fn admin_router(gateway: Arc<Gateway>) -> Router {
    let routes = Router::new()
        .route("/livez", get(ops::live))
        .route("/readyz", get(ops::ready))
        .route("/version", get(ops::version));
    #[cfg(feature = "failpoints")]
    let routes = routes.route("/failpoints", post(ops::arm));
    layered(routes, gateway)
}

fn layered(routes: Router<Arc<Gateway>>, gateway: Arc<Gateway>) -> Router {
    let routes = routes.route("/problems/{code}", get(problem::page));
    let routes = routes.fallback(path_not_found).method_not_allowed_fallback(method_not_allowed);
    layers(routes.with_state(gateway))
}

/// The layers, innermost first.
fn layers(routes: Router) -> Router {
    routes
        .layer(CatchPanicLayer::custom(problem::panicked))
        .layer(middleware::from_fn(body::drain_unread))
        .layer(middleware::map_response(with_headers))
}

async fn path_not_found() -> Problem {
    Problem::new(Code::PathNotFound, "see the table of calls")
}

async fn method_not_allowed() -> Problem {
    Problem::new(Code::MethodNotAllowed, "the Allow header has those that it takes")
}

/// Answers hold credentials and change from one moment to the next: nobody may keep or guess them.
async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt;

    async fn broken() -> Response {
        panic!("secret at 10.0.0.1")
    }

    #[tokio::test]
    async fn a_panic_in_a_handler_tells_the_caller_nothing() {
        let router = layers(Router::new().route("/", get(broken)));
        let response = router.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status().as_u16(), 500);
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        let text = to_bytes(response.into_body(), 4_096).await.unwrap();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains("internal_error") && !text.contains("secret"), "{text}");
    }
}
