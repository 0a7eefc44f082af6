//! A configuration as it is shown: every key with its value and where that comes from.
//!
//! Owns the two formats. Never shows a secret: their types serialize as `hidden` or `unset`.

use super::keys;
use super::sources::{CLIENT, Effective};
use serde_json::{Value, json};

impl Effective {
    /// TOML with a comment behind each value, in the order of the documented default.
    pub fn to_toml(&self) -> Result<String, serde_json::Error> {
        let values = serde_json::to_value(&self.config)?;
        let mut lines = Vec::new();
        let mut section = "";
        for key in &self.keys {
            if key.section != section {
                section = &key.section;
                lines.extend([String::new(), format!("[{section}]")]);
            }
            let table = if section.is_empty() { Some(&values) } else { values.get(section) };
            let value = table.and_then(|table| table.get(&key.name)).unwrap_or(&Value::Null);
            lines.push(self.line(&key.name, value, &key.path()));
        }
        let client = values.pointer("/kafka/client").and_then(Value::as_object);
        if let Some(client) = client.filter(|client| !client.is_empty()) {
            lines.extend([String::new(), format!("[{CLIENT}]")]);
            for (name, value) in client {
                lines.push(self.line(&quoted(name), value, &keys::path(CLIENT, name)));
            }
        }
        let workers = values.get("workers").and_then(Value::as_array);
        for worker in workers.into_iter().flatten() {
            lines.extend([String::new(), "[[workers]]".to_owned()]);
            let mut members: Vec<(&String, &Value)> =
                worker.as_object().into_iter().flatten().collect();
            members.sort_by_key(|(name, _)| *name != "name");
            for (name, value) in members {
                lines.push(self.line(name, value, "workers"));
            }
        }
        if self.config.workers.is_empty() {
            lines.extend([
                String::new(),
                "# No [[workers]]: nobody may acquire a lease.".to_owned(),
            ]);
        }
        Ok(lines.join("\n"))
    }

    /// The values, the origin of each, and what the check says (null if it passes).
    pub fn to_json(&self, problem: Option<&str>) -> Result<String, serde_json::Error> {
        let keys = self.keys.iter().map(keys::Key::path);
        let client = self.config.kafka.client.keys().map(|name| keys::path(CLIENT, name));
        let origins: serde_json::Map<String, Value> = keys
            .chain(client)
            .chain(["workers".to_owned()])
            .map(|path| (path.clone(), Value::String(self.origin(&path).to_string())))
            .collect();
        let all = json!({ "config": self.config, "origins": origins, "problem": problem });
        serde_json::to_string_pretty(&all)
    }

    fn line(&self, name: &str, value: &Value, path: &str) -> String {
        format!("{name} = {}  # {}", toml_value(value), self.origin(path))
    }
}

fn toml_value(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(toml_value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// A TOML string on one line: JSON's, but for one character that only JSON takes as it is.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string().replace('\u{7f}', "\\u007f")
}

#[cfg(test)]
mod tests;
