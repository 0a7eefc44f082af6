//! The sweep that removes operations past their retention.
//!
//! Owns its pace: small steps with a pause after each that is at least as long as three times the
//! step itself took, so that it never has more than a quarter of one database session's time. Ends
//! when the gateway stops. Never decides what is old enough: the store does, by its clock.

use crate::engine::Deps;
use crate::engine::ports::PurgeStep;
use crate::protocol::lease::DbTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two looks for old operations when there were none.
const REST: Duration = Duration::from_secs(60);
/// A step's share of the time, as a divisor.
const SHARE: u32 = 3;

/// How fast the sweep goes.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Rows a step, at most.
    pub rows: u16,
    /// Pause between two steps, at least.
    pub pause: Duration,
}

/// Runs until the gateway stops: a pause ends with the process.
pub(super) async fn run(deps: Arc<Deps>, accepting: Arc<AtomicBool>, pace: Pace) {
    let mut from = DbTime(0);
    while accepting.load(Ordering::Acquire) {
        let began = Instant::now();
        let rest = match step(&deps, pace, from).await {
            Some(to) => {
                from = to;
                pace.pause.max(began.elapsed().saturating_mul(SHARE))
            }
            // From the start again: a clock that was set back may have left older ones behind.
            None => {
                from = DbTime(0);
                REST
            }
        };
        sleep(rest).await;
    }
}

/// One step; where it ended, if there may be more. `None` too if it failed.
async fn step(deps: &Deps, pace: Pace, from: DbTime) -> Option<DbTime> {
    let step = PurgeStep { retention_s: deps.settings.retention_s, rows: pace.rows, from };
    let purged = deps.store.purge(step).await;
    let purged = purged.inspect_err(|failure| tracing::warn!(%failure, "purge")).ok()?;
    if purged.rows > 0 {
        tracing::debug!(rows = purged.rows, "operations past their retention removed");
    }
    (purged.rows >= u64::from(pace.rows)).then_some(purged.to)
}
