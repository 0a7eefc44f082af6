//! Values that are never shown, and hashes of such values.
//!
//! Owns their types. Never prints them: not in debug output, not when a configuration is printed
//! and not in a message about a value of another type.

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Text that debug output hides, and serialization as well.
#[derive(Clone, PartialEq, Eq, Default)]
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

    fn shown(&self) -> &'static str {
        if self.0.is_empty() { "unset" } else { "hidden" }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shown())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.shown())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SecretVisitor)
    }
}

/// Takes text. Of anything else serde's own message would show the value.
struct SecretVisitor;

const NOT_TEXT: &str = "must be text in quotes";

impl<'de> Visitor<'de> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Secret, A::Error> {
        Err(A::Error::custom("must be text in quotes; a key with dots in it needs quotes as well"))
    }
}

/// A SHA-256 hash, written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256Hex(pub [u8; 32]);

impl fmt::Debug for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
}

impl Serialize for Sha256Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("hidden")
    }
}

impl<'de> Deserialize<'de> for Sha256Hex {
    /// By way of a secret: what is no hash may be the token itself.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Secret::deserialize(deserializer)?.0).map_err(D::Error::custom)
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

/// A hash that need not be there: written as empty text.
pub(super) mod optional_hash {
    use super::{Secret, Sha256Hex};
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Sha256Hex>, D::Error> {
        match Secret::deserialize(deserializer)?.0 {
            text if text.is_empty() => Ok(None),
            text => Sha256Hex::try_from(text).map(Some).map_err(D::Error::custom),
        }
    }

    pub(in super::super) fn serialize<S: Serializer>(
        hash: &Option<Sha256Hex>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match hash {
            Some(hash) => hash.serialize(serializer),
            None => Secret::default().serialize(serializer),
        }
    }
}
