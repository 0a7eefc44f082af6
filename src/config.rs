//! Configuration: one TOML file, a few environment overrides, and the relations between limits.
//!
//! Owns the keys, their defaults and their checks. Never opens a connection, and never shows a
//! secret in a message or in debug output.

mod check;
mod defaults;
mod secret;

use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use secret::{Secret, Sha256Hex};

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
        name: &'static str,
        /// What is wrong.
        message: String,
    },
    /// Values that do not go together, or are missing.
    #[error("{0}")]
    Invalid(String),
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Data listener.
    pub listen: SocketAddr,
    /// Admin listener; loopback only.
    pub admin_listen: SocketAddr,
    /// Where others reach the data listener.
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kafka {
    /// Brokers to begin with.
    pub bootstrap: String,
    /// Patterns of topics that may be written to.
    pub topics: Vec<String>,
    /// The ledger.
    pub ledger_topic: String,
    /// Settings passed on to the client.
    pub client: BTreeMap<String, Secret>,
}

/// Section `[credentials]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credentials {
    /// Claim `iss`.
    pub issuer: String,
    /// Claim `aud`.
    pub audience: String,
    /// Ed25519 key in PKCS#8 PEM.
    pub signing_key_file: PathBuf,
}

/// One `[[workers]]`; no member has a default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ops {
    /// Hash of the operators' token.
    pub token_sha256: Option<Sha256Hex>,
}

/// Section `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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

impl Config {
    /// Reads a file and the environment, and checks what `serve` needs.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let config = Self::read(path)?;
        config.check()?;
        Ok(config)
    }

    /// Reads a file and the environment, unchecked: for commands that need a part of it.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(ConfigError::Read)?;
        let mut config = Self::parse(&text)?;
        config.override_from(|name| std::env::var(name).ok())?;
        Ok(config)
    }

    /// Reads TOML. A message names the line and never shows it: it may hold a secret.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count().saturating_add(1);
            ConfigError::Parse { line, message: error.message().to_owned() }
        })
    }

    /// Takes what the environment says; an empty variable says nothing.
    pub fn override_from(
        &mut self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(), ConfigError> {
        let given = |name: &'static str| variable(name).filter(|value| !value.is_empty());
        if let Some(url) = given("FENCEPOST_POSTGRES_URL") {
            self.postgres.url = Secret::new(url);
        }
        if let Some(bootstrap) = given("FENCEPOST_KAFKA_BOOTSTRAP") {
            self.kafka.bootstrap = bootstrap;
        }
        let address = |name: &'static str| match given(name) {
            None => Ok(None),
            Some(text) => text.parse::<SocketAddr>().map(Some).map_err(|_| {
                ConfigError::Environment { name, message: "must be address:port".to_owned() }
            }),
        };
        if let Some(listen) = address("FENCEPOST_HTTP_LISTEN")? {
            self.http.listen = listen;
        }
        if let Some(listen) = address("FENCEPOST_HTTP_ADMIN_LISTEN")? {
            self.http.admin_listen = listen;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
