//! What the environment says.
//!
//! Owns which variables are ours and what their values must look like. Never shows a value, which
//! may be a secret.

use super::ConfigError;
use super::keys::{FILE_SUFFIX, Key, Kind, PREFIX};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use toml::Spanned;
use toml::de::{DeArray, DeString, DeValue};

/// Beginnings of keys that have no variable.
const ONLY_IN_THE_FILE: &[&str] = &["WORKERS", "KAFKA_CLIENT"];

/// A variable that overrides a key.
#[derive(Debug)]
pub(super) struct Override<'k> {
    pub(super) key: &'k Key,
    pub(super) variable: String,
    /// The text is the path of a file with the value.
    pub(super) in_a_file: bool,
    pub(super) text: String,
}

/// The overrides among some variables. An empty variable is as good as none.
pub(super) fn overrides(
    keys: &[Key],
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<Override<'_>>, ConfigError> {
    let named: BTreeMap<String, (&Key, bool)> = keys
        .iter()
        .flat_map(|key| {
            let of_a_file = key.variable() + &FILE_SUFFIX.to_ascii_uppercase();
            let file = key.may_be_in_a_file().then_some((of_a_file, (key, true)));
            [(key.variable(), (key, false))].into_iter().chain(file)
        })
        .collect();
    let sections: BTreeSet<String> = keys
        .iter()
        .filter(|key| !key.section.is_empty())
        .map(|key| format!("{}_", key.section.to_ascii_uppercase()))
        .collect();
    // In order, so that of two mistakes the same one is told each time.
    let variables: BTreeMap<OsString, OsString> = variables.into_iter().collect();
    let mut found: Vec<Override<'_>> = Vec::new();
    for (variable, value) in variables {
        let Ok(variable) = variable.into_string() else { continue };
        let Some(rest) = variable.strip_prefix(PREFIX).filter(|_| !value.is_empty()) else {
            continue;
        };
        let Some((key, in_a_file)) = named.get(&variable).copied() else {
            let judged = sections.iter().any(|section| rest.starts_with(section))
                || ONLY_IN_THE_FILE.iter().any(|only| rest.starts_with(only));
            if judged && !is_of_a_service(&variable, &value) {
                return Err(unknown(variable));
            }
            continue;
        };
        let Ok(text) = value.into_string() else {
            return Err(refused(variable, "must be UTF-8".to_owned()));
        };
        if let Some(other) = found.iter().find(|other| other.key.path() == key.path()) {
            let message = format!("{} is set as well: set one of them", other.variable);
            return Err(refused(variable, message));
        }
        found.push(Override { key, variable, in_a_file, text });
    }
    Ok(found)
}

/// Kubernetes tells every container of the services around it: of one called fencepost-http, for
/// example, by `FENCEPOST_HTTP_SERVICE_HOST`, `..._SERVICE_PORT*`, `..._PORT` (a URL) and
/// `..._PORT_8080_TCP*`. A service's name must not stop a gateway; no key of ours looks like this.
fn is_of_a_service(variable: &str, value: &OsStr) -> bool {
    let a_port = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    variable.ends_with("_SERVICE_HOST")
        || variable.contains("_SERVICE_PORT")
        || variable.split("_PORT_").skip(1).any(a_port)
        || (variable.ends_with("_PORT") && value.to_string_lossy().contains("://"))
}

fn unknown(variable: String) -> ConfigError {
    let message = "no key has this variable: it is FENCEPOST_, section, _ and key in upper case; \
                   [[workers]] and [kafka.client] are set only in the file";
    refused(variable, message.to_owned())
}

impl Override<'_> {
    /// Why the key does not take the value. Of a number serde's words name a type of Rust's.
    pub(super) fn refused(&self, message: String) -> ConfigError {
        let is_number = self.key.kind == Kind::Number;
        let message = if is_number { "is too large".to_owned() } else { message };
        refused(self.variable.clone(), message)
    }

    /// The value as the key's type wants it.
    pub(super) fn value(&self) -> Result<DeValue<'_>, ConfigError> {
        let refused = |rule: &str| refused(self.variable.clone(), format!("must be {rule}"));
        match self.key.kind {
            Kind::Text => Ok(DeValue::String(DeString::Borrowed(&self.text))),
            Kind::List => {
                let items = self.text.split(',').map(|item| {
                    Spanned::new(0..0, DeValue::String(DeString::Borrowed(item.trim())))
                });
                Ok(DeValue::Array(items.collect::<DeArray<'_>>()))
            }
            Kind::Switch => match self.text.as_str() {
                "true" => Ok(DeValue::Boolean(true)),
                "false" => Ok(DeValue::Boolean(false)),
                _ => Err(refused("true or false")),
            },
            Kind::Number => {
                let rule = || refused("a whole number, 0 or more, in digits only");
                self.text.parse::<u64>().map_err(|_| rule())?;
                DeValue::parse(&self.text).map(Spanned::into_inner).map_err(|_| rule())
            }
        }
    }
}

/// A variable and why it is not taken.
fn refused(name: String, message: String) -> ConfigError {
    ConfigError::Environment { name, message }
}

#[cfg(test)]
mod tests;
