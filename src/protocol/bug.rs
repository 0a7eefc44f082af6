//! Defects that a test build can be given, one at a time: what the suites are there to catch.
//!
//! Owns their list; each is named at the place where it does its harm. Without the feature
//! `seeded-bugs` none can be switched on: `Bugs` is empty and [`Bugs::has`] is `false`, so nothing
//! of them is left in a release (`deploy/local/test` looks for their mark).

/// A defect, by its number in `tests/README.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// B1: an operation's own token is not compared with the row's (MODEL-2 H1).
    NoTokenCheck,
    /// B4: an end that may be repeated counts as clean (MODEL C4, C5).
    DirtyEndIgnored,
    /// B6: an operation that is found is sent again.
    NoDedup,
    /// B7: answered before the transaction's end is known.
    EarlyAnswer,
    /// B8: what only Kafka knows is not redone (MODEL C6).
    NoRedo,
    /// B13: a lost answer of an end counts as a definite no.
    DoubtIsNo,
    /// B14: a contradiction between row and ledger is passed over (MODEL C10, C12).
    RegressIgnored,
}

/// Which of them this process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bugs {
    #[cfg(feature = "seeded-bugs")]
    one: Option<Bug>,
}

impl Bugs {
    /// True if the process has this one: never in a release.
    #[cfg(not(feature = "seeded-bugs"))]
    #[must_use]
    pub const fn has(self, _: Bug) -> bool {
        false
    }

    /// True if the process has this one.
    #[cfg(feature = "seeded-bugs")]
    #[must_use]
    pub fn has(self, bug: Bug) -> bool {
        self.one == Some(bug)
    }

    /// A process with one of them.
    #[cfg(feature = "seeded-bugs")]
    #[must_use]
    pub const fn with(bug: Bug) -> Self {
        Self { one: Some(bug) }
    }

    /// By its number, as a test names it.
    #[cfg(feature = "seeded-bugs")]
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let bug = match name {
            "B1" => Bug::NoTokenCheck,
            "B4" => Bug::DirtyEndIgnored,
            "B6" => Bug::NoDedup,
            "B7" => Bug::EarlyAnswer,
            "B8" => Bug::NoRedo,
            "B13" => Bug::DoubtIsNo,
            "B14" => Bug::RegressIgnored,
            _ => return None,
        };
        Some(Self::with(bug))
    }
}
