//! Logs as JSON lines, and the one way to start a task.
//!
//! Owns the subscriber, the panic hook and `spawn`. Never writes to standard output, which belongs
//! to the commands' results.

use std::future::Future;
use tokio::task::JoinHandle;
use tracing::Instrument;
use tracing_subscriber::EnvFilter;

/// Environment variable with the log filter (`info` if it is not set).
pub const LOG_FILTER: &str = "FENCEPOST_LOG";

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not one.
    #[error("{LOG_FILTER} is not a log filter")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// It was set up before.
    #[error("a log subscriber is set up already")]
    Twice,
}

/// Sets the log up: JSON lines on standard error, panics among them.
pub fn init() -> Result<(), TelemetryError> {
    let filter = std::env::var(LOG_FILTER).unwrap_or_default();
    let filter = if filter.is_empty() { "info" } else { &filter };
    let filter = EnvFilter::try_new(filter).map_err(TelemetryError::Filter)?;
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init()
        .map_err(|_| TelemetryError::Twice)?;
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or_default();
        tracing::error!(location, message, "panic");
    }));
    Ok(())
}

/// Starts a task whose log lines carry its name.
#[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
pub fn spawn<F>(name: &'static str, future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(future.instrument(tracing::error_span!("task", task.name = name)))
}
