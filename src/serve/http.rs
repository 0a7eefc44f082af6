//! From the configuration to what http is given.
//!
//! Owns the translation, so that http knows no configuration file and the configuration no http.

use crate::config::{Config, Sha256Hex};
use crate::engine::Engine;
use crate::http::identity::Worker;
use crate::http::openapi::document;
use crate::http::pattern::Pattern;
use crate::http::records::Topics;
use crate::http::server::ServerLimits;
use crate::http::{About, BodyMemory, Gateway, Settings};
use crate::protocol::lease::{Identity, InstanceId};
use crate::protocol::transactional_id::Installation;
use crate::serve::signing;
use std::sync::Arc;
use std::time::Duration;

/// What the handlers need. Reads the signing key's file.
pub fn gateway(
    config: &Config,
    engine: Engine,
    instance: InstanceId,
) -> anyhow::Result<Arc<Gateway>> {
    Ok(Arc::new(Gateway {
        engine,
        signer: signing::load(&config.credentials)?,
        workers: config.workers.iter().map(worker).collect(),
        operators: config.ops.token_sha256.iter().map(|Sha256Hex(hash)| *hash).collect(),
        topics: Topics {
            allowed: patterns(&config.kafka.topics),
            ledger: config.kafka.ledger_topic.clone(),
        },
        settings: Settings {
            ttl_min_ms: config.timeouts.ttl_min_ms,
            ttl_max_ms: config.timeouts.ttl_max_ms,
            body_bytes_max: config.http.body_bytes_max,
            body_timeout: Duration::from_millis(config.http.body_timeout_ms),
            record_bytes_max: config.limits.record_bytes_max,
        },
        body_memory: BodyMemory::new(config.http.body_memory_bytes_max),
        about: About { installation: Installation::parse(&config.installation)?, instance },
    }))
}

/// The OpenAPI document, as it is committed.
#[must_use]
pub fn openapi() -> String {
    format!("{:#}", document())
}

/// Bounds of connections.
#[must_use]
pub fn server_limits(config: &Config) -> ServerLimits {
    ServerLimits {
        connections_max: config.http.connections_max,
        connections_per_peer_max: config.http.connections_per_peer_max,
        header_timeout: Duration::from_millis(config.http.header_timeout_ms),
        idle_timeout: Duration::from_millis(config.http.idle_timeout_ms),
        drain_timeout: Duration::from_millis(config.timeouts.shutdown_ms),
    }
}

fn worker(worker: &crate::config::Worker) -> Worker {
    Worker {
        identity: Identity::new(&worker.name),
        token: worker.token_sha256.0,
        leases: patterns(&worker.leases),
        owners: patterns(&worker.owners),
    }
}

fn patterns(texts: &[String]) -> Vec<Pattern> {
    texts.iter().map(|text| Pattern::new(text)).collect()
}
