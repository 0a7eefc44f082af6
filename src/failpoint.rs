//! Fail points: places where a test build kills or freezes its own process, or waits a while.
//!
//! Owns their names and the armed list. Without the feature `failpoints` a hit is nothing at all,
//! and the binary does not hold this module's mark (`deploy/local/test` looks for it).

#[cfg(feature = "failpoints")]
mod armed {
    use nix::sys::signal::{Signal, raise};
    use std::sync::Mutex;
    use std::time::Duration;

    /// Longest pause: one that a test forgets ends by itself.
    const PAUSE_MS_MAX: u64 = 10_000;

    /// What a hit does.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Action {
        /// SIGKILL to the own process.
        Kill,
        /// SIGSTOP to the own process; SIGCONT lets it go on.
        Stop,
        /// Waits there for `pause_ms`; everything else goes on.
        Pause,
    }

    /// One armed fail point; it fires once.
    #[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Armed {
        /// Name of the place.
        pub name: String,
        /// Only for this lease.
        pub lease: String,
        /// What to do.
        pub action: Action,
        /// How many hits to let pass first.
        #[serde(default)]
        pub skip: u32,
        /// How long a pause takes.
        #[serde(default)]
        pub pause_ms: u64,
    }

    static ARMED: Mutex<Vec<Armed>> = Mutex::new(Vec::new());

    /// Arms a fail point.
    pub fn arm(point: Armed) {
        if let Ok(mut armed) = ARMED.lock() {
            armed.push(point);
        }
    }

    /// Passes a place; does what is armed for it.
    pub fn hit(name: &str, lease: &str) {
        let Ok(mut armed) = ARMED.lock() else { return };
        let Some(at) = armed.iter().position(|a| a.name == name && a.lease == lease) else {
            return;
        };
        if let Some(point) = armed.get_mut(at).filter(|p| p.skip > 0) {
            point.skip = point.skip.saturating_sub(1);
            return;
        }
        let point = armed.remove(at);
        drop(armed);
        tracing::warn!(mark = "fencepost_failpoint", name, lease, "fail point hit");
        let signal = match point.action {
            Action::Kill => Signal::SIGKILL,
            Action::Stop => Signal::SIGSTOP,
            Action::Pause => return pause(Duration::from_millis(point.pause_ms.min(PAUSE_MS_MAX))),
        };
        if let Err(error) = raise(signal) {
            tracing::error!(%error, "fail point could not raise its signal");
        }
    }

    /// On a thread of the runtime the tasks that wait for it are handed to another one first.
    fn pause(how_long: Duration) {
        tokio::task::block_in_place(|| std::thread::sleep(how_long));
    }
}

#[cfg(feature = "failpoints")]
pub use armed::{Action, Armed, arm, hit};

/// Passes a place; nothing in a build without fail points.
#[cfg(not(feature = "failpoints"))]
#[inline]
pub fn hit(_name: &str, _lease: &str) {}
