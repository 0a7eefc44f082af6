//! What must hold of a configuration before anything starts.
//!
//! Owns the order of the timeouts and the relations between limits; every message names the keys
//! and both values. Never opens a file and never resolves a name.

mod text;

pub use text::check_postgres_url;

use super::{Config, ConfigError, shown};
use crate::protocol::operation::RECORDS_MAX;
use crate::protocol::transactional_id::Installation;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// Beginnings of the Kafka client settings that may be passed on: none of them touches what the
/// protocol relies on.
const CLIENT_PREFIXES: &[&str] = &["security.", "sasl.", "ssl."];
/// Longest issuer and audience: a credential must stay below its limit.
const CLAIM_BYTES_MAX: usize = 200;
/// No process has more descriptors than this, nor more of what waits in its memory.
const COUNT_MAX: usize = 1_000_000;
/// More than any Postgres server takes.
const SESSIONS_MAX: u32 = 10_000;
/// Postgres and Kafka count milliseconds in 32 bits.
const MS_MAX: u64 = 2_147_483_647;
/// The least that the Kafka client takes.
const TRANSACTION_MS_MIN: u64 = 1_000;
/// The Kafka client takes messages up to 1,000,000,000 bytes, what we add to a record included.
const RECORD_BYTES_MAX: usize = 900_000_000;
/// The permits for bodies are counted in 32 bits.
const BODY_MEMORY_BYTES_MAX: usize = 4_294_967_295;
/// A hundred years: no sum of it and a time overflows.
const SECONDS_MAX: u64 = 3_153_600_000;
/// Rows that one step may keep locked.
const PURGE_ROWS: RangeInclusive<u32> = 1..=10_000;

impl Config {
    /// Refuses what must not start.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_given()?;
        self.check_listeners()?;
        self.check_order_of_timeouts()?;
        self.check_times()?;
        self.check_sizes()?;
        self.check_counts()?;
        self.check_retention()?;
        self.check_kafka()?;
        self.check_workers()
    }

    fn check_given(&self) -> Result<(), ConfigError> {
        given("installation", &self.installation)?;
        Installation::parse(&self.installation)
            .map_err(|rule| invalid(format!("installation ({:?}): {rule}", self.installation)))?;
        given("postgres.url", self.postgres.url.expose())?;
        check_postgres_url(self.postgres.url.expose())
            .map_err(|rule| invalid(format!("postgres.url {rule}")))?;
        given("kafka.bootstrap", &self.kafka.bootstrap)?;
        given("kafka.ledger_topic", &self.kafka.ledger_topic)?;
        given("http.advertised_url", &self.http.advertised_url)?;
        let key_file = self.credentials.signing_key_file.as_os_str();
        ensure(!key_file.is_empty(), || "credentials.signing_key_file must be set".to_owned())?;
        ensure(!shown::is_key(&key_file.to_string_lossy()), || {
            "credentials.signing_key_file must be the path of the key, not the key".to_owned()
        })?;
        for (key, claim) in [
            ("credentials.issuer", &self.credentials.issuer),
            ("credentials.audience", &self.credentials.audience),
        ] {
            given(key, claim)?;
            let (bytes, most) = (claim.len(), CLAIM_BYTES_MAX);
            ensure(bytes <= most, || format!("{key} has {bytes} bytes, at most {most} may be"))?;
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), ConfigError> {
        let (data, admin) = (self.http.listen, self.http.admin_listen);
        ensure(admin.ip().is_loopback(), || {
            format!("http.admin_listen ({admin}) asks for no credential: it must be on loopback")
        })?;
        // Port 0 is any free one.
        let both = data.port() == admin.port() && data.port() != 0;
        ensure(!both || (data.ip() != admin.ip() && !data.ip().is_unspecified()), || {
            format!("http.listen ({data}) and http.admin_listen ({admin}) must not be the same")
        })?;
        let url = &self.http.advertised_url;
        text::check_advertised_url(url).map_err(|rule| {
            invalid(format!("http.advertised_url ({}) {rule}", shown::address(url)))
        })
    }

    fn check_order_of_timeouts(&self) -> Result<(), ConfigError> {
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
            ("timeouts.shutdown_ms", t.shutdown_ms),
        ];
        for (lesser, greater) in ascending.iter().zip(ascending.iter().skip(1)) {
            less(*lesser, *greater)?;
        }
        at_most(("timeouts.ttl_min_ms", t.ttl_min_ms), ("timeouts.ttl_max_ms", t.ttl_max_ms))
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        let (t, http, limits) = (&self.timeouts, &self.http, &self.limits);
        for (key, ms) in [
            // The least and the greatest of those in order stand for the others.
            ("timeouts.delivery_ms", t.delivery_ms),
            ("timeouts.shutdown_ms", t.shutdown_ms),
            ("timeouts.ttl_max_ms", t.ttl_max_ms),
            ("http.header_timeout_ms", http.header_timeout_ms),
            ("http.body_timeout_ms", http.body_timeout_ms),
            ("http.idle_timeout_ms", http.idle_timeout_ms),
            ("limits.idle_ms", limits.idle_ms),
            ("limits.purge_pause_ms", limits.purge_pause_ms),
        ] {
            between(key, ms, &(1..=MS_MAX))?;
        }
        between("timeouts.transaction_ms", t.transaction_ms, &(TRANSACTION_MS_MIN..=MS_MAX))
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        let (l, http) = (&self.limits, &self.http);
        let record = ("limits.record_bytes_max", l.record_bytes_max);
        let body = ("http.body_bytes_max", http.body_bytes_max);
        let memory = ("http.body_memory_bytes_max", http.body_memory_bytes_max);
        between(record.0, record.1, &(1..=RECORD_BYTES_MAX))?;
        between(memory.0, memory.1, &(1..=BODY_MEMORY_BYTES_MAX))?;
        at_most(record, body)?;
        at_most(record, ("limits.batch_bytes_max", l.batch_bytes_max))?;
        at_most(body, ("limits.batch_bytes_max", l.batch_bytes_max))?;
        at_most(body, memory)
    }

    fn check_counts(&self) -> Result<(), ConfigError> {
        let (l, http) = (&self.limits, &self.http);
        let connections = ("http.connections_max", http.connections_max);
        let of_a_peer = ("http.connections_per_peer_max", http.connections_per_peer_max);
        for (key, n) in [
            connections,
            of_a_peer,
            ("limits.queue_per_lease_max", l.queue_per_lease_max),
            ("limits.leases_open_max", l.leases_open_max),
        ] {
            between(key, n, &(1..=COUNT_MAX))?;
        }
        at_most(of_a_peer, connections)?;
        for (key, n) in [
            ("postgres.work_sessions", self.postgres.work_sessions),
            ("postgres.reserve_sessions", self.postgres.reserve_sessions),
        ] {
            between(key, n, &(1..=SESSIONS_MAX))?;
        }
        between("limits.purge_rows", l.purge_rows, &PURGE_ROWS)?;
        let records = l.batch_records_max;
        ensure(records >= RECORDS_MAX, || {
            format!(
                "limits.batch_records_max ({records}) must not be below the records that one \
                 request may have ({RECORDS_MAX})"
            )
        })
    }

    /// A repeat must find its operation: a credential may be as old as a lease may live, and its
    /// operations may be repeated for a while after.
    fn check_retention(&self) -> Result<(), ConfigError> {
        let (l, ttl_ms) = (&self.limits, self.timeouts.ttl_max_ms);
        let (retention, horizon) = (l.retention_s, l.replay_horizon_s);
        between("limits.retention_s", retention, &(1..=SECONDS_MAX))?;
        between("limits.replay_horizon_s", horizon, &(0..=SECONDS_MAX))?;
        let least_ms = horizon.saturating_mul(1_000).saturating_add(ttl_ms);
        ensure(least_ms <= retention.saturating_mul(1_000), || {
            format!(
                "timeouts.ttl_max_ms ({ttl_ms}) and limits.replay_horizon_s ({horizon}) together, \
                 {least_ms} ms, must not be above limits.retention_s ({retention})"
            )
        })
    }

    fn check_kafka(&self) -> Result<(), ConfigError> {
        let bootstrap = &self.kafka.bootstrap;
        ensure(!bootstrap.contains('@'), || {
            let rule = "must be host:port, without user; see [kafka.client]";
            format!("kafka.bootstrap ({}) {rule}", shown::address(bootstrap))
        })?;
        for entry in bootstrap.split(',').map(str::trim) {
            ensure(text::is_host_and_port(entry), || {
                format!("kafka.bootstrap: {entry:?} must be host:port")
            })?;
        }
        let ledger = &self.kafka.ledger_topic;
        ensure(text::is_topic(ledger), || {
            format!(
                "kafka.ledger_topic ({ledger:?}) must be 1 to 249 of A-Z a-z 0-9 . _ - and \
                 neither \".\" nor \"..\""
            )
        })?;
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
            let mut patterns = worker.leases.iter().chain(&worker.owners);
            ensure(patterns.all(|pattern| !pattern.is_empty()), || {
                format!("workers: a pattern of {name:?} must not be empty")
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

fn between<T: Ord + Display>(
    key: &str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), ConfigError> {
    ensure(range.contains(&value), || {
        format!("{key} ({value}) must be from {} to {}", range.start(), range.end())
    })
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

#[cfg(test)]
mod tests;
