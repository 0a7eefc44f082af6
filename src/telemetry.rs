//! stub
use std::future::Future;
/// spawn
#[expect(clippy::disallowed_methods, reason = "the one place")]
pub fn spawn<F>(_name: &'static str, f: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    tokio::spawn(f)
}
