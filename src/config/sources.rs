//! Where a configuration comes from: default, file, environment, secret files, in rising order.
//!
//! Owns how they are put together and what is remembered of it. The file keeps its spans, so that a
//! message names its line; what comes from elsewhere is tried by itself before it is put in.

use super::keys::{self, FILE_SUFFIX, Key};
use super::{Config, ConfigError, SecretFileError, environment, secret_file, shown};
use serde::Deserialize as _;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// The section whose keys are the Kafka client's.
pub(super) const CLIENT: &str = "kafka.client";

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Nobody said anything else.
    Default,
    /// The configuration file.
    File,
    /// A variable.
    Environment(String),
    /// A file of its own, named by the configuration file or by a variable.
    SecretFile { path: PathBuf, variable: Option<String> },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File => f.write_str("file"),
            Self::Environment(variable) => write!(f, "env {variable}"),
            Self::SecretFile { path, variable } => {
                // On one line, whatever the path holds.
                write!(f, "secret file {}", path.to_string_lossy().escape_debug())?;
                variable.iter().try_for_each(|variable| write!(f, " (env {variable})"))
            }
        }
    }
}

/// A configuration, unchecked, and where each of its values comes from.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The values.
    pub config: Config,
    pub(super) keys: Vec<Key>,
    pub(super) origins: BTreeMap<String, Origin>,
}

impl Effective {
    /// Reads a file and the process's environment.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(ConfigError::Read)?;
        Self::of(&text, std::env::vars_os())
    }

    /// Reads the process's environment; there is no file.
    pub fn without_file() -> Result<Self, ConfigError> {
        Self::of("", std::env::vars_os())
    }

    /// Puts a file's text and some variables together.
    pub fn of(
        text: &str,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        let keys = keys::all()?;
        let overrides = environment::overrides(&keys, variables)?;
        let parsed = DeTable::parse(text).map_err(|error| ConfigError::parse(text, &error))?;
        let mut draft = Draft::new(text, parsed);
        for one in &overrides {
            draft.override_by(one)?;
        }
        for key in keys.iter().filter(|key| key.may_be_in_a_file()) {
            draft.take_secret_file(&key.section, &key.name)?;
        }
        for name in draft.client_keys_in_files() {
            draft.take_secret_file(CLIENT, &name)?;
        }
        let Draft { document, span, origins, .. } = draft;
        let config =
            deserialize(document, span).map_err(|error| ConfigError::parse(text, &error))?;
        Ok(Self { config, keys, origins })
    }

    /// Where the value of a key comes from.
    pub(super) fn origin(&self, path: &str) -> &Origin {
        self.origins.get(path).unwrap_or(&Origin::Default)
    }
}

/// A file's tables on the way to a configuration.
struct Draft<'t> {
    text: &'t str,
    document: DeTable<'t>,
    span: Range<usize>,
    origins: BTreeMap<String, Origin>,
}

impl<'t> Draft<'t> {
    fn new(text: &'t str, parsed: Spanned<DeTable<'t>>) -> Self {
        let (span, document) = (parsed.span(), parsed.into_inner());
        let mut origins = BTreeMap::new();
        said("", &document, &mut origins);
        Self { text, document, span, origins }
    }

    /// What a variable says wins over the file, in whichever of the two ways the file says it.
    fn override_by(&mut self, one: &'t environment::Override<'_>) -> Result<(), ConfigError> {
        let (key, variable) = (one.key, one.variable.clone());
        let (value, origin) = if one.in_a_file {
            let path = PathBuf::from(&one.text);
            let value = read_secret(&variable, &path, key)?;
            (value, Origin::SecretFile { path, variable: Some(variable) })
        } else {
            let value = one.value()?;
            accepts(key, &value).map_err(|message| one.refused(message))?;
            (value, Origin::Environment(variable))
        };
        if let Some(table) = section_mut(&mut self.document, &key.section) {
            table.remove(file_key(&key.name).as_str());
        }
        self.put(&key.section, &key.name, value, origin);
        Ok(())
    }

    /// Replaces `x_file` by `x`.
    fn take_secret_file(&mut self, section: &str, name: &str) -> Result<(), ConfigError> {
        let Some(table) = section_mut(&mut self.document, section) else { return Ok(()) };
        let Some((own, value)) = table.remove_entry(file_key(name).as_str()) else { return Ok(()) };
        let path_key = keys::path(section, own.get_ref());
        self.origins.remove(&path_key);
        let DeValue::String(file) = value.get_ref() else {
            return Err(self.refused(&own, format!("{path_key} must be the path of a file")));
        };
        if file.is_empty() {
            return Ok(());
        }
        let given = table.get(name).is_some_and(|value| value.get_ref().as_str() != Some(""));
        if given {
            let key = keys::path(section, name);
            return Err(self.refused(&own, format!("{key} and {path_key} are both set")));
        }
        let path = PathBuf::from(file.as_ref());
        let key =
            Key { section: section.to_owned(), name: name.to_owned(), kind: keys::Kind::Text };
        let value = read_secret(&path_key, &path, &key)?;
        self.put(section, name, value, Origin::SecretFile { path, variable: None });
        Ok(())
    }

    /// Keys of the Kafka client whose value is in a file.
    fn client_keys_in_files(&mut self) -> Vec<String> {
        let Some(client) = section_mut(&mut self.document, CLIENT) else { return Vec::new() };
        let names = client.keys().filter_map(|key| key.get_ref().strip_suffix(FILE_SUFFIX));
        names.map(str::to_owned).collect()
    }

    fn put(&mut self, section: &str, name: &str, value: DeValue<'t>, origin: Origin) {
        put(&mut self.document, section, name, value);
        self.origins.insert(keys::path(section, name), origin);
    }

    fn refused(&self, at: &Spanned<DeString<'_>>, message: String) -> ConfigError {
        ConfigError::Parse { line: super::line(self.text, Some(at.span())), message }
    }
}

/// Notes every key that a file has.
fn said(section: &str, table: &DeTable<'_>, origins: &mut BTreeMap<String, Origin>) {
    for (name, value) in table {
        let path = keys::path(section, name.get_ref());
        match value.get_ref().as_table() {
            Some(inner) => said(&path, inner, origins),
            None => drop(origins.insert(path, Origin::File)),
        }
    }
}

fn file_key(name: &str) -> String {
    format!("{name}{FILE_SUFFIX}")
}

fn read_secret(named_by: &str, path: &Path, key: &Key) -> Result<DeValue<'static>, ConfigError> {
    let error = |source: SecretFileError| ConfigError::SecretFile {
        key: named_by.to_owned(),
        path: path.to_owned(),
        source,
    };
    let text = secret_file::read(path).map_err(error)?;
    let value = DeValue::String(DeString::Owned(text));
    accepts(key, &value).map_err(|message| error(SecretFileError::Refused(message)))?;
    Ok(value)
}

/// Whether a key takes a value: tried alone, so that the message is about nothing else.
fn accepts(key: &Key, value: &DeValue<'_>) -> Result<(), String> {
    let mut document = DeTable::new();
    put(&mut document, &key.section, &key.name, value.clone());
    deserialize(document, 0..0).map(drop).map_err(|error| shown::without_value(error.message()))
}

fn deserialize(document: DeTable<'_>, span: Range<usize>) -> Result<Config, toml::de::Error> {
    Config::deserialize(toml::Deserializer::from(Spanned::new(span, document)))
}

/// The table of a section, if there is one; the outermost for no name.
fn section_mut<'d, 't>(
    document: &'d mut DeTable<'t>,
    section: &str,
) -> Option<&'d mut DeTable<'t>> {
    section.split('.').filter(|part| !part.is_empty()).try_fold(document, |table, part| {
        let value = table.get_mut(part)?.get_mut();
        if let DeValue::Table(inner) = value { Some(inner) } else { None }
    })
}

/// Sets a key. A section that is no table stays: its message will name its line.
fn put<'t>(document: &mut DeTable<'t>, section: &str, name: &str, value: DeValue<'t>) {
    let spanned = |text: &str| Spanned::new(0..0, DeString::Owned(text.to_owned()));
    if !section.is_empty() && !document.contains_key(section) && !section.contains('.') {
        document.insert(spanned(section), Spanned::new(0..0, DeValue::Table(DeTable::new())));
    }
    if let Some(table) = section_mut(document, section) {
        table.insert(spanned(name), Spanned::new(0..0, value));
    }
}

#[cfg(test)]
mod tests;
