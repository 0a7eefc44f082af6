//! Hears the warnings that a statement brings with its success.
//!
//! A COMMIT whose wait for a synchronous standby was cancelled is answered as a success *with a
//! warning* ("might not have been replicated"), and the driver only passes a warning on as a
//! tracing event. So a statement whose success counts is polled with a subscriber of our own as
//! this thread's default: whatever the process has installed or filtered, the event ends up here.
//! Never judges a warning: any of them makes a success unknown.

use std::cell::RefCell;
use std::fmt::Debug;
use std::future::Future;
use std::sync::LazyLock;
use tracing::field::{Field, Visit};
use tracing::instrument::WithSubscriber;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// Where the driver puts notices.
const TARGET: &str = "sqlx::postgres::notice";

tokio::task_local! {
    static HEARD: RefCell<Option<String>>;
}

/// One for the process: tracing registers every new dispatcher with every call site.
static EAR: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Ear));

/// Runs a future and returns what it returned, with the warning that came on the way, if any.
pub(super) async fn heard<F: Future>(future: F) -> (F::Output, Option<String>) {
    let listening = async {
        let output = future.with_subscriber(EAR.clone()).await;
        (output, HEARD.with(RefCell::take))
    };
    HEARD.scope(RefCell::new(None), listening).await
}

struct Ear;

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET && *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // The hint counts for the whole process; more would slow every disabled event down.
        Some(LevelFilter::WARN)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if !self.enabled(event.metadata()) {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        // Outside `heard` there is nobody to tell.
        let _told = HEARD.try_with(|heard| heard.replace(Some(text.0)));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_warning_is_heard_whatever_the_process_subscribes_to() {
        let ((), none) = heard(async {}).await;
        assert_eq!(none, None);
        let ((), info) =
            heard(async { tracing::info!(target: "sqlx::postgres::notice", "a notice") }).await;
        assert_eq!(info, None);
        let warning = async {
            tokio::task::yield_now().await;
            tracing::warn!(target: "sqlx::postgres::notice", "the wait was cancelled");
            7
        };
        let quiet = tracing::subscriber::NoSubscriber::new();
        let (output, warning) = heard(warning).with_subscriber(quiet).await;
        assert_eq!((output, warning), (7, Some("the wait was cancelled".to_owned())));
    }

    #[tokio::test]
    async fn a_warning_reaches_only_the_statement_that_brought_it() {
        let loud = heard(async {
            tokio::task::yield_now().await;
            tracing::warn!(target: "sqlx::postgres::notice", "mine");
            tokio::task::yield_now().await;
        });
        let silent = heard(async {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        });
        let (loud, silent) = tokio::join!(loud, silent);
        assert_eq!((loud.1.as_deref(), silent.1), (Some("mine"), None));
    }
}
