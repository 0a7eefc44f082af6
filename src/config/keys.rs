//! Which keys there are, as the documented default says.
//!
//! Owns their order, the type of each and the name of its variable. Knows no key by name but the
//! secret ones, so that none can be forgotten.

use super::{ConfigError, DEFAULT_TOML};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What the name of every variable begins with.
pub(super) const PREFIX: &str = "FENCEPOST_";
/// What is behind a key, or its variable, that names a file with the value.
pub(super) const FILE_SUFFIX: &str = "_file";
/// Keys whose value may stand in a file. Those of `[kafka.client]` may as well.
const FROM_FILE: &[&str] = &["postgres.url", "ops.token_sha256"];

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Number,
    Switch,
    /// Texts with commas between them.
    List,
}

/// A key that has a default.
#[derive(Debug, Clone)]
pub(super) struct Key {
    /// Empty for a key before the first section.
    pub(super) section: String,
    pub(super) name: String,
    pub(super) kind: Kind,
}

impl Key {
    /// Section and name.
    pub(super) fn path(&self) -> String {
        path(&self.section, &self.name)
    }

    /// The variable that overrides it.
    pub(super) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.path().replace('.', "_").to_ascii_uppercase())
    }

    /// Whether its value may stand in a file.
    pub(super) fn may_be_in_a_file(&self) -> bool {
        FROM_FILE.contains(&self.path().as_str())
    }
}

/// A section and a key of it, as messages name it.
pub(super) fn path(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Every key of the documented default, in its order.
pub(super) fn all() -> Result<Vec<Key>, ConfigError> {
    let document = DeTable::parse(DEFAULT_TOML)
        .map_err(|error| ConfigError::parse(DEFAULT_TOML, &error))?
        .into_inner();
    let mut keys = Vec::new();
    for (name, value) in &document {
        match value.get_ref().as_table() {
            Some(section) => {
                keys.extend(
                    section.iter().filter_map(|(own, value)| key(name.get_ref(), own, value)),
                );
            }
            None => keys.extend(key("", name, value)),
        }
    }
    keys.sort_by_key(|(start, _)| *start);
    Ok(keys.into_iter().map(|(_, key)| key).collect())
}

/// A key and where it stands. A table in a section is none.
fn key(
    section: &str,
    name: &Spanned<impl ToString>,
    value: &Spanned<DeValue<'_>>,
) -> Option<(usize, Key)> {
    let kind = match value.get_ref() {
        DeValue::String(_) => Kind::Text,
        DeValue::Integer(_) => Kind::Number,
        DeValue::Boolean(_) => Kind::Switch,
        DeValue::Array(_) => Kind::List,
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => return None,
    };
    let key = Key { section: section.to_owned(), name: name.get_ref().to_string(), kind };
    Some((name.span().start, key))
}
