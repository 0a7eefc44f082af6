//! Fencepost: an exclusive produce gateway for Kafka.
//!
//! Layers, each importing only to the right (a test holds it):
//! `main -> cli -> serve` · `serve -> http, engine, postgres, kafka` · `http -> engine, protocol` ·
//! `postgres, kafka -> engine::ports, protocol` · `engine -> protocol` · `protocol -> nothing`.
#![cfg_attr(
    test,
    allow(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        clippy::let_underscore_must_use,
        reason = "a test that overflows or is wrong about a value fails, which is what it is for"
    )
)]

pub mod engine;
pub mod failpoint;
pub mod protocol;
pub mod telemetry;
