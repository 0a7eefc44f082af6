//! The promise on the real thing: gateways as child processes, a real broker, a real Postgres,
//! frozen and killed where it hurts. Needs `deploy/local/up --no-gateway` and the feature
//! `failpoints`.
#![cfg(feature = "failpoints")]
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::let_underscore_must_use,
    reason = "a test that is wrong about a value fails, which is what it is for"
)]

#[path = "../support/chaos_proxy.rs"]
mod chaos_proxy;
mod client;
mod crash;
mod gateway;
mod late_end;
mod neighbours;
mod outage;
mod proxies;
mod takeover;
mod world;
