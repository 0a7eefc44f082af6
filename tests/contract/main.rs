//! The ports' contract: the same cases on the memory stores and on the real ones, so that what the
//! engine's tests rest on is what the gateway runs on. Needs `deploy/local/up --no-gateway`.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    unreachable_pub,
    reason = "a test that is wrong about a value fails, which is what it is for"
)]

mod fence_store;
mod transactional_log;

#[path = "../support"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod shared {
    pub(crate) mod memory;
    pub(crate) mod postgres;
}

#[path = "../support/chaos_proxy.rs"]
mod chaos_proxy;

#[path = "../kafka/world.rs"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod kafka_world;

/// Every case as a test on the memory stores (paused clock) and one on the real ones.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::in_memory(super::$name).await;
            })*
        }
        mod real {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::for_real(super::$name).await;
            })*
        }
    };
}
pub(crate) use on_both;
