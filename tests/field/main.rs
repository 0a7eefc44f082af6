//! Field cases: what went wrong for others, tried on the real thing. Gateways as child processes, a
//! real broker, a real Postgres. Needs `deploy/local/up --no-gateway` and the feature `failpoints`.
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
#[path = "../cluster/client.rs"]
mod client;
#[path = "../cluster/gateway.rs"]
mod gateway;
#[path = "../cluster/proxies.rs"]
mod proxies;
#[path = "../cluster/world.rs"]
mod world;

mod acquires;
mod bench;
mod bodies;
mod codes;
mod credentials;
mod hangups;
mod lease_rules;
mod names;
mod odd_text;
mod operations;
mod raw;
mod records;
mod recovery;
mod repeats;
mod rows;
mod sessions;
mod sizes;
mod slow_clients;
mod stopping;
mod topics;
mod transactions;
