//! Configuration: one TOML file, the environment, secrets in files, and the relations of limits.
//!
//! Owns the keys, their defaults and their checks. Never opens a connection, and never shows a
//! secret in a message, in debug output or where a configuration is printed.

mod check;
mod defaults;
mod environment;
mod keys;
mod print;
mod secret;
mod secret_file;
mod shown;
mod sources;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

pub use check::check_postgres_url;
pub use secret::{Secret, Sha256Hex};
pub use secret_file::SecretFileError;
pub use sources::Effective;

/// The documented default, as it stands in `deploy/`.
pub const DEFAULT_TOML: &str = include_str!("../deploy/fencepost.toml");
/// Where the configuration is looked for.
pub const DEFAULT_PATH: &str = "/etc/fencepost/fencepost.toml";

/// Why there is no configuration to start with.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot be read")]
    Read(#[source] std::io::Error),
    /// Not TOML, an unknown key, or a value of another type.
    #[error("line {line}: {message}")]
    Parse {
        /// Line of the file.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// An environment variable that cannot be taken.
    #[error("{name}: {message}")]
    Environment {
        /// Which.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// A file that should hold a secret.
    #[error("{key} {}", shown::path(path))]
    SecretFile {
        /// The key or the variable that names it.
        key: String,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SecretFileError,
    },
    /// Values that do not go together, or are missing.
    #[error("{0}")]
    Invalid(String),
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Name of the deployment.
    pub installation: String,
    /// Listeners.
    pub http: Http,
    /// Database.
    pub postgres: Postgres,
    /// Brokers and topics.
    pub kafka: Kafka,
    /// Fencing credentials.
    pub credentials: Credentials,
    /// Worker identities.
    pub workers: Vec<Worker>,
    /// Operators.
    pub ops: Ops,
    /// Sizes.
    pub limits: Limits,
    /// Times.
    pub timeouts: Timeouts,
}

/// Section `[http]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Data listener.
    #[serde(deserialize_with = "address")]
    pub listen: SocketAddr,
    /// Admin listener; loopback only.
    #[serde(deserialize_with = "address")]
    pub admin_listen: SocketAddr,
    /// Where others reach the data listener.
    #[serde(serialize_with = "shown::serialize_address")]
    pub advertised_url: String,
    /// Largest body.
    pub body_bytes_max: usize,
    /// Most bytes of all bodies that are being read or wait together.
    pub body_memory_bytes_max: usize,
    /// Most connections of the data listener.
    pub connections_max: usize,
    /// Most of them from one address.
    pub connections_per_peer_max: usize,
    /// Deadline of a request's head.
    pub header_timeout_ms: u64,
    /// Deadline of a whole body.
    pub body_timeout_ms: u64,
    /// Longest pause between two requests of a connection.
    pub idle_timeout_ms: u64,
}

/// Section `[postgres]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Postgres {
    /// Connection URL of the gateway's role.
    pub url: Secret,
    /// Sessions for requests.
    pub work_sessions: u32,
    /// Sessions kept for what must go on when those are taken.
    pub reserve_sessions: u32,
}

/// Section `[kafka]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kafka {
    /// Brokers to begin with.
    #[serde(serialize_with = "shown::serialize_address")]
    pub bootstrap: String,
    /// Patterns of topics that may be written to.
    pub topics: Vec<String>,
    /// The ledger.
    pub ledger_topic: String,
    /// Settings passed on to the client.
    pub client: BTreeMap<String, Secret>,
}

/// Section `[credentials]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credentials {
    /// Claim `iss`.
    pub issuer: String,
    /// Claim `aud`.
    pub audience: String,
    /// Ed25519 key in PKCS#8 PEM.
    #[serde(serialize_with = "shown::serialize_key_path")]
    pub signing_key_file: PathBuf,
}

/// One `[[workers]]`; no member has a default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Name of the identity.
    pub name: String,
    /// Hash of its token.
    pub token_sha256: Sha256Hex,
    /// Patterns of leases that it may acquire.
    pub leases: Vec<String>,
    /// Patterns of owners that it may name.
    pub owners: Vec<String>,
}

/// Section `[ops]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ops {
    /// Hash of the operators' token.
    #[serde(with = "secret::optional_hash")]
    pub token_sha256: Option<Sha256Hex>,
}

/// Section `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Operations waiting for one lease.
    pub queue_per_lease_max: usize,
    /// Leases with an open producer.
    pub leases_open_max: usize,
    /// Records of one batch.
    pub batch_records_max: usize,
    /// Bytes of one batch.
    pub batch_bytes_max: usize,
    /// Bytes of one record.
    pub record_bytes_max: usize,
    /// When an unused producer is closed.
    pub idle_ms: u64,
    /// How long an operation id is remembered.
    pub retention_s: u64,
    /// How long a client may keep repeating an operation once its credential is over.
    pub replay_horizon_s: u64,
    /// Operations past retention that one step removes.
    pub purge_rows: u32,
    /// Pause between two such steps.
    pub purge_pause_ms: u64,
}

/// Section `[timeouts]`, in the order that is asserted.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Delivery reports.
    pub delivery_ms: u64,
    /// Kafka part of a batch.
    pub batch_ms: u64,
    /// An open.
    pub open_ms: u64,
    /// `idle_in_transaction_session_timeout`.
    pub idle_in_transaction_ms: u64,
    /// `lock_timeout`.
    pub lock_ms: u64,
    /// `statement_timeout`.
    pub statement_ms: u64,
    /// Shortest time to live of a lease.
    pub ttl_min_ms: u64,
    /// `transaction.timeout.ms`.
    pub transaction_ms: u64,
    /// A request.
    pub request_ms: u64,
    /// Longest time to live of a lease.
    pub ttl_max_ms: u64,
    /// Stopping.
    pub shutdown_ms: u64,
}

impl ConfigError {
    /// What a TOML error says. It names the line and never shows it nor a value: either may hold a
    /// secret.
    fn parse(text: &str, error: &toml::de::Error) -> Self {
        let message = shown::without_value(error.message());
        Self::Parse { line: line(text, error.span()), message }
    }
}

/// The number of the line at which something begins.
fn line(text: &str, span: Option<Range<usize>>) -> usize {
    let before = span.and_then(|span| text.get(..span.start)).unwrap_or_default();
    before.matches('\n').count().saturating_add(1)
}

fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    const RULE: &str = "must be an IP address and a port, such as \"127.0.0.1:8080\"";
    String::deserialize(deserializer)?.parse().map_err(|_| D::Error::custom(RULE))
}

#[cfg(test)]
mod tests;
