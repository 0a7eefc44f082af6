//! Values that are never shown, and hashes of such values.
//!
//! Owns their types. Never prints them, in debug output either.

use serde::Deserialize;
use std::fmt;

/// Text that debug output hides.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes it.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Shows it, to whom it is meant for.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "unset" } else { "hidden" })
    }
}

/// A SHA-256 hash, written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Sha256Hex(pub [u8; 32]);

impl fmt::Debug for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
}

impl TryFrom<String> for Sha256Hex {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const RULE: &str = "must be 64 hex digits";
        let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let digits: Vec<u8> = text.as_bytes().iter().map_while(digit).collect();
        let (pairs, rest) = digits.as_chunks::<2>();
        if digits.len() != text.len() || !rest.is_empty() {
            return Err(RULE);
        }
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| (high << 4) | low).collect();
        bytes.try_into().map(Self).map_err(|_| RULE)
    }
}
