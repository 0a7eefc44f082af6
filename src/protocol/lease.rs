//! Names and numbers of a lease, each a type of its own, checked where they enter.
//!
//! Owns what a lease, an owner, a token and their like may look like. Never talks to a store, never
//! reads a clock.

use std::fmt;
use std::sync::Arc;

/// Longest lease name, in bytes.
pub const LEASE_NAME_MAX: usize = 200;
/// Longest owner, in bytes.
pub const OWNER_MAX: usize = 200;
/// Longest installation name, in bytes.
pub const INSTALLATION_MAX: usize = 40;
/// Longest request id, in bytes.
pub const REQUEST_ID_MAX: usize = 200;

/// Why a name was refused. The text says the rule, so that a caller can mend its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not a lease name.
    #[error("a lease name is 1 to 200 of A-Z a-z 0-9 . _ - and neither \".\" nor \"..\"")]
    Lease,
    /// Not an owner.
    #[error(
        "an owner is 1 to 200 bytes of printable text: no control or invisible characters, no \
         space but the plain one, and none at either end"
    )]
    Owner,
    /// Not an installation name.
    #[error("an installation name is 1 to 40 of A-Z a-z 0-9 -")]
    Installation,
    /// Not a token.
    #[error("a token is a decimal number from 1 to 9223372036854775807, as a string")]
    Token,
    /// Not a request id.
    #[error("a request id is 1 to 200 visible ASCII characters")]
    RequestId,
}

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text as it was given.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}
pub(crate) use text_newtype;

text_newtype!(
    /// Name of a lease: canonical, so that equal means equal bytes.
    LeaseName
);
text_newtype!(
    /// Who holds a lease, as the worker named itself. Compared byte for byte.
    Owner
);
text_newtype!(
    /// Which configured worker identity asked.
    Identity
);
text_newtype!(
    /// A caller's id for one acquire, so that a repeat is a re-open.
    RequestId
);

impl LeaseName {
    /// Checks and takes a lease name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let sized = !text.is_empty() && text.len() <= LEASE_NAME_MAX;
        if sized && text.bytes().all(allowed) && text != "." && text != ".." {
            Ok(Self(text.into()))
        } else {
            Err(NameError::Lease)
        }
    }

    /// The part before the first dot.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.0.split('.').next().unwrap_or_default()
    }
}

impl Owner {
    /// Checks and takes an owner.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() || text.len() > OWNER_MAX || !is_printable(text) {
            Err(NameError::Owner)
        } else {
            Ok(Self(text.into()))
        }
    }

    /// The owner of a lease that nobody has held yet.
    #[must_use]
    pub fn nobody() -> Self {
        Self("".into())
    }

    /// Takes an owner that a store kept, which was checked when it was written.
    #[must_use]
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }
}

impl Identity {
    /// Takes the name of a configured identity.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }
}

impl RequestId {
    /// Checks and takes a request id.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty()
            || text.len() > REQUEST_ID_MAX
            || !text.bytes().all(|b| b.is_ascii_graphic())
        {
            Err(NameError::RequestId)
        } else {
            Ok(Self(text.into()))
        }
    }

    /// Takes a request id that a store kept.
    #[must_use]
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }
}

/// Whether whoever reads a text sees all of it: two that differ only in what nobody sees would be
/// taken for one, and a mark that turns or breaks lines could forge what stands around it. Letters
/// of any script are kept as they are: composed and decomposed ones are two texts.
#[must_use]
pub fn is_printable(text: &str) -> bool {
    !text.starts_with(' ') && !text.ends_with(' ') && !text.chars().any(is_unprintable)
}

/// Control characters, white space that is no plain space (line and paragraph separators among
/// it), marks of direction, and what Unicode says to draw as nothing
/// (`Default_Ignorable_Code_Point` and the marks of annotations).
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

macro_rules! number_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The number that follows.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_newtype!(
    /// A fencing token. 0 stands in a row that no acquire has installed a token in yet.
    FencingToken
);
number_newtype!(
    /// Which history of the database this is; raised by the owner role after a failover.
    Incarnation
);
number_newtype!(
    /// Number of a lease's batch; the first is 1, and 0 means none.
    BatchSeq
);

impl FencingToken {
    /// Reads a token from its decimal text: no sign, no leading zero, within BIGINT.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let plain = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        match text.parse::<i64>() {
            Ok(n) if plain && n > 0 => Ok(Self(n.unsigned_abs())),
            Ok(_) | Err(_) => Err(NameError::Token),
        }
    }
}

/// A random mark of one open, in the barrier, in the state record and in the row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub [u8; 16]);

/// Which gateway process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub [u8; 16]);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A reading of the database's clock, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DbTime(pub i64);

impl DbTime {
    /// Whole milliseconds from `now` to this instant, rounded down, 0 when it has passed.
    #[must_use]
    pub fn ms_after(self, now: Self) -> u64 {
        let rest = self.0.saturating_sub(now.0).max(0);
        rest.unsigned_abs() / 1_000
    }

    /// Whole seconds since 1970, rounded down.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_lease_name_outside_the_alphabet_is_refused() {
        let long = "a".repeat(LEASE_NAME_MAX + 1);
        for bad in ["", ".", "..", "a/b", "a b", "a%2Fb", "é", "a\0b", "a:b", long.as_str()] {
            assert_eq!(LeaseName::parse(bad), Err(NameError::Lease), "{bad:?}");
        }
        assert_eq!(
            LeaseName::parse("matter.7-b_C").map(|n| n.tenant().to_owned()),
            Ok("matter".to_owned())
        );
    }

    #[test]
    fn an_owner_that_could_split_a_line_or_hide_text_is_refused() {
        let marks = "\0\n\r\t\u{1b}\u{7f}\u{85}\u{a0}\u{ad}\u{34f}\u{61c}\u{180e}\u{2003}\
                     \u{200b}\u{200d}\u{200e}\u{2028}\u{2029}\u{202e}\u{2060}\u{2066}\u{206a}\
                     \u{3000}\u{3164}\u{fe0f}\u{feff}\u{fff9}\u{e0041}";
        for mark in marks.chars() {
            assert_eq!(Owner::parse(&format!("a{mark}b")), Err(NameError::Owner), "{mark:?}");
        }
        let long = "a".repeat(OWNER_MAX + 1);
        for bad in ["", " ", " a", "a ", long.as_str()] {
            assert_eq!(Owner::parse(bad), Err(NameError::Owner), "{bad:?}");
        }
        for good in ["indexer-17 (é)", "<img src=x onerror=alert(1)>", "cafe\u{301}", "\u{1f600}"]
        {
            assert_eq!(Owner::parse(good).map(|o| o.to_string()), Ok(good.to_owned()));
        }
        assert_ne!(Owner::parse("caf\u{e9}"), Owner::parse("cafe\u{301}"));
    }

    #[test]
    fn a_token_is_read_only_in_its_one_plain_form() {
        for bad in ["", "0", "-1", "+1", "01", "1.0", " 1", "9223372036854775808", "1e3"] {
            assert_eq!(FencingToken::parse(bad), Err(NameError::Token), "{bad:?}");
        }
        assert_eq!(
            FencingToken::parse("9223372036854775807"),
            Ok(FencingToken(9_223_372_036_854_775_807))
        );
    }

    proptest! {
        #[test]
        fn the_rest_of_a_lease_is_never_rounded_up(now in 0i64..1 << 52, rest in 0i64..1 << 40) {
            let ms = DbTime(now + rest).ms_after(DbTime(now));
            prop_assert!(i64::try_from(ms).unwrap() * 1_000 <= rest);
            prop_assert_eq!(DbTime(now).ms_after(DbTime(now + rest)), 0);
        }
    }
}
