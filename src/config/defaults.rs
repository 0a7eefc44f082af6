//! The defaults. `deploy/fencepost.toml` says the same with reasons; a test compares them.

use super::{Credentials, Http, Kafka, Limits, Postgres, Secret, Timeouts};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

impl Default for Http {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            listen: loopback(8080),
            admin_listen: loopback(8081),
            advertised_url: "http://127.0.0.1:8080".to_owned(),
            body_bytes_max: 4 * 1024 * 1024,
            body_memory_bytes_max: 256 * 1024 * 1024,
            connections_max: 1_024,
            connections_per_peer_max: 256,
            header_timeout_ms: 5_000,
            body_timeout_ms: 10_000,
            idle_timeout_ms: 30_000,
        }
    }
}

impl Default for Postgres {
    fn default() -> Self {
        Self { url: Secret::default(), work_sessions: 32, reserve_sessions: 8 }
    }
}

impl Default for Kafka {
    fn default() -> Self {
        Self {
            bootstrap: String::new(),
            topics: Vec::new(),
            ledger_topic: "fencepost.ledger".to_owned(),
            client: BTreeMap::new(),
        }
    }
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            issuer: "fencepost".to_owned(),
            audience: "fencepost".to_owned(),
            signing_key_file: PathBuf::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_per_lease_max: 256,
            leases_open_max: 1_000,
            batch_records_max: 5_000,
            batch_bytes_max: 4 * 1024 * 1024,
            record_bytes_max: 1024 * 1024,
            idle_ms: 60_000,
            retention_s: 604_800,
            replay_horizon_s: 3_600,
            purge_rows: 500,
            purge_pause_ms: 100,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            delivery_ms: 2_000,
            batch_ms: 2_500,
            open_ms: 3_000,
            idle_in_transaction_ms: 3_500,
            lock_ms: 4_000,
            statement_ms: 4_500,
            ttl_min_ms: 5_000,
            transaction_ms: 6_000,
            request_ms: 10_000,
            ttl_max_ms: 3_600_000,
            shutdown_ms: 15_000,
        }
    }
}
