//! The sweep that removes operations past their retention.
//!
//! Owns its pace: small steps with a pause after each that is at least as long as three times the
//! step itself took, so that it never has more than a quarter of one database session's time. Ends
//! when the gateway stops. Never decides what is old enough: the store does, by its clock.

use crate::engine::Deps;
use crate::engine::ports::{FenceStore, PurgeStep};
use crate::protocol::lease::DbTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two looks for old operations when there were none.
const REST: Duration = Duration::from_secs(60);
/// A step's share of the time, as a divisor.
const SHARE: u32 = 3;
/// Longest sleep in one piece, so that a stop is seen.
const SLICE: Duration = Duration::from_secs(1);

/// How fast the sweep goes.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Rows a step, at most.
    pub rows: u16,
    /// Pause between two steps, at least.
    pub pause: Duration,
}

/// Runs until the gateway stops.
pub(super) async fn run(deps: Arc<Deps>, accepting: Arc<AtomicBool>, pace: Pace) {
    let mut from = DbTime(0);
    while accepting.load(Ordering::Acquire) {
        let began = Instant::now();
        let rest = match step(deps.store.as_ref(), &deps, pace, from).await {
            Some((full, to)) if full => {
                from = to;
                pace.pause.max(began.elapsed().saturating_mul(SHARE))
            }
            // From the start again: a clock that was set back may have left older ones behind.
            Some(_) | None => {
                from = DbTime(0);
                REST
            }
        };
        pause(rest, &accepting).await;
    }
}

/// One step; whether there may be more, and where it ended. `None` if it failed.
async fn step(
    store: &dyn FenceStore,
    deps: &Deps,
    pace: Pace,
    from: DbTime,
) -> Option<(bool, DbTime)> {
    let step = PurgeStep { retention_s: deps.settings.retention_s, rows: pace.rows, from };
    match store.purge(step).await {
        Ok(purged) => {
            if purged.rows > 0 {
                tracing::debug!(rows = purged.rows, "operations past their retention removed");
            }
            Some((purged.rows >= u64::from(pace.rows), purged.to))
        }
        Err(failure) => {
            tracing::warn!(%failure, "purge");
            None
        }
    }
}

async fn pause(rest: Duration, accepting: &AtomicBool) {
    let until = Instant::now().checked_add(rest);
    while accepting.load(Ordering::Acquire) {
        let left = until.map_or(SLICE, |t| t.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return;
        }
        sleep(left.min(SLICE)).await;
    }
}
