//! Fencepost: an exclusive produce gateway for Kafka.
//!
//! Layers, each importing only to the right (a test holds it):
//! `main -> cli -> serve` · `serve -> http, engine, postgres, kafka` · `http -> engine, protocol` ·
//! `postgres, kafka -> engine::ports, protocol` · `engine -> protocol` · `protocol -> nothing`.
#![doc = include_str!("ARCHITECTURE.md")]
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::let_underscore_must_use,
        reason = "a test that overflows or is wrong about a value fails, which is what it is for"
    )
)]

pub mod audit;
pub mod cli;
pub mod config;
pub mod counts;
pub mod engine;
pub mod failpoint;
pub mod http;
pub mod kafka;
pub mod postgres;
pub mod protocol;
pub mod serve;
pub mod telemetry;
