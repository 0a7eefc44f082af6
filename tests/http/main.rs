//! The routers in process: who is let in, what is read, and how a refusal looks.
#![allow(
    clippy::as_conversions,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that is wrong about a value fails, which is what it is for"
)]

mod identities;
mod limits;
mod operations;
#[path = "../support"]
#[allow(dead_code, reason = "this binary uses a part of it")]
mod shared {
    pub(crate) mod gateway;
    pub(crate) mod memory;
}
mod requests;
mod support;
