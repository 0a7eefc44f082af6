//! What a failed statement means: did it happen or not.
//!
//! Owns the allow-list of SQLSTATEs after which a statement that committed by itself certainly left
//! nothing. Everything that it does not name is unknown. Never converts by itself: every site says
//! its stage and which of the three readings is right there.

use crate::engine::ports::{Failure, Refused};
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use std::borrow::Cow;

/// Why a call to the database brought no plain success.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The driver's error.
    #[error("the statement failed")]
    Sql(#[source] sqlx::Error),
    /// No answer within the time allowed.
    #[error("no answer in time")]
    Late,
    /// A success with a warning.
    #[error("succeeded with a warning: {0}")]
    Warned(String),
    /// The row is not as the lock holder left it, or cannot be read.
    #[error("{0}")]
    Row(&'static str),
}

/// A row that a sound database never holds.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("unreadable row: {0}")]
pub(super) struct Unreadable(pub(super) &'static str);

impl Unreadable {
    /// As the driver's own decoding error.
    pub(super) fn decode(self) -> sqlx::Error {
        sqlx::Error::Decode(Box::new(self))
    }
}

impl Fault {
    /// For what writes nothing, and for a write before its COMMIT was sent: nothing happened.
    pub(super) fn not_happened(&self, stage: &'static str) -> Failure {
        // A determinate failure carries no text, so this line is the only place where it is told.
        tracing::warn!(stage, cause = %self.chain(), "postgres call failed");
        Failure::Determinate { stage, refused: Refused::Unavailable }
    }

    /// For a COMMIT: whatever it answered, it may have happened.
    pub(super) fn unknown(&self, stage: &'static str) -> Failure {
        Failure::Indeterminate { stage, detail: self.chain() }
    }

    /// For a statement that commits by itself.
    pub(super) fn of_statement(&self, stage: &'static str) -> Failure {
        match self {
            Self::Sql(sqlx::Error::Database(error)) => {
                let severe = error
                    .try_downcast_ref::<PgDatabaseError>()
                    .is_none_or(|e| e.severity() != PgSeverity::Error);
                if !severe && error.code().is_some_and(|code| leaves_nothing(&code)) {
                    self.not_happened(stage)
                } else {
                    self.unknown(stage)
                }
            }
            Self::Sql(_) | Self::Late | Self::Warned(_) | Self::Row(_) => self.unknown(stage),
        }
    }

    /// The error and its causes in one line, for the log only.
    fn chain(&self) -> String {
        let mut text = match self {
            Self::Sql(sqlx::Error::Database(error)) => {
                format!("sqlstate {}", error.code().unwrap_or(Cow::Borrowed("none")))
            }
            Self::Sql(_) | Self::Late | Self::Warned(_) | Self::Row(_) => self.to_string(),
        };
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        text
    }
}

/// True if a session was dead before it was asked to do anything.
pub(super) fn is_dead_session(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default();
    // Ended by an administrator, a shutdown or a limit on idle sessions.
    let ended = code.starts_with("57P") || code == "25P03";
    ended || matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_))
}

/// After an ERROR of one of these a statement that commits by itself was rolled back. Not in it:
/// all that end a session (57P.., 08...) and internal errors (XX...), during or after its commit.
fn leaves_nothing(sqlstate: &str) -> bool {
    // Cancelled by statement_timeout or by hand; a *commit's* wait that is cancelled is a warning.
    const ALONE: [&str; 2] = ["57014", "P0001"];
    // Data, constraint, transaction state (read only), rollback, rights and syntax, resources,
    // limits, object state (lock timeout).
    const CLASSES: [&str; 8] = ["22", "23", "25", "40", "42", "53", "54", "55"];
    ALONE.contains(&sqlstate) || sqlstate.get(..2).is_some_and(|class| CLASSES.contains(&class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_that_rolls_back_for_certain_is_a_no() {
        for no in ["55P03", "25006", "57014", "40P01", "42501", "53300", "23505", "22003"] {
            assert!(leaves_nothing(no), "{no}");
        }
        for unknown in ["57P01", "57P02", "57P03", "08006", "08003", "XX000", "58030", "", "F0000"]
        {
            assert!(!leaves_nothing(unknown), "{unknown}");
        }
    }

    #[test]
    fn silence_a_lost_session_and_a_warning_are_unknown_after_a_write() {
        let io = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        for fault in [Fault::Sql(io()), Fault::Late, Fault::Warned("w".into()), Fault::Row("r")] {
            let unknown = matches!(fault.of_statement("s"), Failure::Indeterminate { .. });
            assert!(unknown, "{fault}");
            assert!(matches!(fault.unknown("s"), Failure::Indeterminate { .. }));
        }
        let before = Fault::Sql(io()).not_happened("s");
        assert_eq!(before, Failure::Determinate { stage: "s", refused: Refused::Unavailable });
    }

    #[test]
    fn a_cause_is_told_with_its_source() {
        let fault = Fault::Sql(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()));
        assert!(fault.chain().contains("connection reset"), "{}", fault.chain());
    }
}
