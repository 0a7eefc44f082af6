//! What must hold of a configuration before anything starts.
//!
//! Owns the order of the timeouts and the relations between limits; every
//! message names the keys and both values.

use super::{Config, ConfigError};
use crate::protocol::operation::RECORDS_MAX;
use crate::protocol::transactional_id::Installation;
use std::collections::BTreeSet;
use std::fmt::Display;

/// Beginnings of the Kafka client settings that may be passed on: none of them touches what the
/// protocol relies on.
const CLIENT_PREFIXES: &[&str] = &["security.", "sasl.", "ssl."];
/// Longest issuer and audience: a credential must stay below its limit.
const CLAIM_BYTES_MAX: usize = 200;
/// No process has more descriptors than this.
const CONNECTIONS_MAX: usize = 1_000_000;

impl Config {
    /// Refuses what must not start.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_given()?;
        self.check_listeners()?;
        self.check_timeouts()?;
        self.check_limits()?;
        self.check_kafka()?;
        self.check_workers()
    }

    fn check_given(&self) -> Result<(), ConfigError> {
        Installation::parse(&self.installation)
            .map_err(|rule| invalid(format!("installation: {rule}")))?;
        given("postgres.url", self.postgres.url.expose())?;
        given("kafka.bootstrap", &self.kafka.bootstrap)?;
        given("kafka.ledger_topic", &self.kafka.ledger_topic)?;
        given("http.advertised_url", &self.http.advertised_url)?;
        let key_file = self.credentials.signing_key_file.as_os_str();
        ensure(!key_file.is_empty(), || "credentials.signing_key_file must be set".to_owned())?;
        for (key, claim) in [
            ("credentials.issuer", &self.credentials.issuer),
            ("credentials.audience", &self.credentials.audience),
        ] {
            given(key, claim)?;
            at_most((key, claim.len()), ("the limit", CLAIM_BYTES_MAX))?;
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), ConfigError> {
        let admin = self.http.admin_listen;
        ensure(admin.ip().is_loopback(), || {
            format!("http.admin_listen ({admin}) asks for no credential: it must be on loopback")
        })
    }

    fn check_timeouts(&self) -> Result<(), ConfigError> {
        let t = &self.timeouts;
        let ascending = [
            ("timeouts.delivery_ms", t.delivery_ms),
            ("timeouts.batch_ms", t.batch_ms),
            ("timeouts.open_ms", t.open_ms),
            ("timeouts.idle_in_transaction_ms", t.idle_in_transaction_ms),
            ("timeouts.lock_ms", t.lock_ms),
            ("timeouts.statement_ms", t.statement_ms),
            ("timeouts.ttl_min_ms", t.ttl_min_ms),
            ("timeouts.transaction_ms", t.transaction_ms),
            ("timeouts.request_ms", t.request_ms),
        ];
        for (lesser, greater) in ascending.iter().zip(ascending.iter().skip(1)) {
            less(*lesser, *greater)?;
        }
        less(("timeouts.request_ms", t.request_ms), ("timeouts.shutdown_ms", t.shutdown_ms))?;
        at_most(("timeouts.ttl_min_ms", t.ttl_min_ms), ("timeouts.ttl_max_ms", t.ttl_max_ms))?;
        for (key, ms) in [
            ("timeouts.delivery_ms", t.delivery_ms),
            ("http.header_timeout_ms", self.http.header_timeout_ms),
            ("http.body_timeout_ms", self.http.body_timeout_ms),
            ("http.idle_timeout_ms", self.http.idle_timeout_ms),
            ("limits.idle_ms", self.limits.idle_ms),
        ] {
            ensure(ms > 0, || format!("{key} must be above 0"))?;
        }
        // Postgres and Kafka count milliseconds in 32 bits.
        at_most(
            ("timeouts.ttl_max_ms", t.ttl_max_ms),
            ("the limit", u64::from(i32::MAX.unsigned_abs())),
        )
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let (l, http) = (&self.limits, &self.http);
        let record = ("limits.record_bytes_max", l.record_bytes_max);
        at_most(record, ("http.body_bytes_max", http.body_bytes_max))?;
        at_most(record, ("limits.batch_bytes_max", l.batch_bytes_max))?;
        at_most(
            ("http.body_bytes_max", http.body_bytes_max),
            ("limits.batch_bytes_max", l.batch_bytes_max),
        )?;
        at_most(
            ("records of a request", RECORDS_MAX),
            ("limits.batch_records_max", l.batch_records_max),
        )?;
        // A credential may be used for as long as its lease lives, and its operations with it.
        at_most(
            ("timeouts.ttl_max_ms", self.timeouts.ttl_max_ms),
            ("limits.retention_s in ms", l.retention_s.saturating_mul(1_000)),
        )?;
        at_most(("http.connections_max", http.connections_max), ("the limit", CONNECTIONS_MAX))?;
        for (key, n) in [
            ("http.connections_max", http.connections_max),
            ("limits.queue_per_lease_max", l.queue_per_lease_max),
            ("limits.leases_open_max", l.leases_open_max),
            ("limits.record_bytes_max", l.record_bytes_max),
        ] {
            ensure(n > 0, || format!("{key} must be above 0"))?;
        }
        for (key, n) in [
            ("postgres.work_sessions", self.postgres.work_sessions),
            ("postgres.reserve_sessions", self.postgres.reserve_sessions),
        ] {
            ensure(n > 0, || format!("{key} must be above 0"))?;
        }
        Ok(())
    }

    fn check_kafka(&self) -> Result<(), ConfigError> {
        for key in self.kafka.client.keys() {
            ensure(CLIENT_PREFIXES.iter().any(|prefix| key.starts_with(prefix)), || {
                let allowed = CLIENT_PREFIXES.join(" ");
                format!("kafka.client.{key:?}: only keys that begin with {allowed} may be set")
            })?;
        }
        ensure(self.kafka.topics.iter().all(|pattern| !pattern.is_empty()), || {
            "kafka.topics: a pattern must not be empty".to_owned()
        })
    }

    fn check_workers(&self) -> Result<(), ConfigError> {
        let (mut names, mut tokens) = (BTreeSet::new(), BTreeSet::new());
        tokens.extend(self.ops.token_sha256.map(|hash| hash.0));
        for worker in &self.workers {
            let name = &worker.name;
            ensure(!name.is_empty() && !name.chars().any(char::is_control), || {
                "workers: a name must be printable text".to_owned()
            })?;
            ensure(names.insert(name), || format!("workers: {name:?} is there twice"))?;
            ensure(tokens.insert(worker.token_sha256.0), || {
                format!("workers: the token of {name:?} is somebody else's too")
            })?;
        }
        Ok(())
    }
}

fn invalid(message: String) -> ConfigError {
    ConfigError::Invalid(message)
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(invalid(message())) }
}

fn given(key: &str, value: &str) -> Result<(), ConfigError> {
    ensure(!value.is_empty(), || format!("{key} must be set"))
}

fn less<T: Ord + Display>(lesser: (&str, T), greater: (&str, T)) -> Result<(), ConfigError> {
    ensure(lesser.1 < greater.1, || {
        format!("{} ({}) must be less than {} ({})", lesser.0, lesser.1, greater.0, greater.1)
    })
}

fn at_most<T: Ord + Display>(lesser: (&str, T), greater: (&str, T)) -> Result<(), ConfigError> {
    ensure(lesser.1 <= greater.1, || {
        format!("{} ({}) must not be above {} ({})", lesser.0, lesser.1, greater.0, greater.1)
    })
}
