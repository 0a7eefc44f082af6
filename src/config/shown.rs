//! How values that are no secrets are shown where a secret may have slipped into them.
//!
//! Owns what is left out: a user and a password in an address, a key where its path belongs. Never
//! hides what is merely wrong.

use serde::Serializer;
use std::path::Path;

/// An address or several, without what may be a user and a password: up to the last `@`, since a
/// password may have any character in it.
pub(super) fn address(text: &str) -> String {
    let Some((before, host)) = text.rsplit_once('@') else { return text.to_owned() };
    let scheme = ["http://", "https://"].into_iter().find(|scheme| before.starts_with(scheme));
    format!("{}hidden@{host}", scheme.unwrap_or_default())
}

/// A path, if it looks like one: the contents of the file may stand there by mistake.
pub(super) fn path(path: &Path) -> String {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty() && dir.parent().is_some());
    if path.exists() || parent.is_some_and(Path::is_dir) {
        path.display().to_string()
    } else {
        "(not shown: no directory here has it)".to_owned()
    }
}

/// A path that may not be there yet. A key has lines.
pub(super) fn key_path(path: &Path) -> String {
    let text = path.to_string_lossy();
    if is_key(&text) { "hidden".to_owned() } else { text.into_owned() }
}

/// A key where its path belongs: PEM, or the beginning of an Ed25519 key in PKCS#8 and base64
/// (RFC 8410).
pub(super) fn is_key(text: &str) -> bool {
    const BODIES: [&str; 3] = ["MC4CAQ", "MFECAQ", "MFMCAQ"];
    let body = BODIES.iter().any(|begin| text.starts_with(begin));
    body || text.contains("-----") || text.chars().any(char::is_control)
}

pub(super) fn serialize_address<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&address(text))
}

pub(super) fn serialize_key_path<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&key_path(path))
}

/// What serde says of a value of another type, without the value.
pub(super) fn without_value(message: &str) -> String {
    let kind = ["invalid type", "invalid value", "unknown variant"]
        .into_iter()
        .find(|kind| message.starts_with(kind));
    match (kind, message.rsplit_once(", expected ")) {
        (Some(kind), Some((_, expected))) => format!("{kind}, expected {expected}"),
        (Some(kind), None) => kind.to_owned(),
        (None, _) => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_user_and_password() {
        for (given, shown) in [
            ("http://gw:8080", "http://gw:8080"),
            ("http://u:pw@gw:8080", "http://hidden@gw:8080"),
            ("https://u:p@w/x@gw", "https://hidden@gw"),
            ("b1:9092,b2:9092", "b1:9092,b2:9092"),
            ("u:pw@b1:9092,b2:9092", "hidden@b1:9092,b2:9092"),
            ("b1:9092,u:p,w@b2:9092", "hidden@b2:9092"),
            ("pw@", "hidden@"),
            ("u:pw://x@b1:9092", "hidden@b1:9092"),
        ] {
            assert_eq!(address(given), shown);
        }
    }

    #[test]
    fn what_stands_in_the_place_of_a_path_is_shown_only_if_it_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert_eq!(path(&missing), missing.display().to_string());
        for slip in ["postgres://u:hunter2@h/db", "hunter2", "/hunter2", "a/hunter2"] {
            assert!(!path(Path::new(slip)).contains("hunter2"), "{slip}");
        }
        assert_eq!(key_path(Path::new("/nowhere/key.pem")), "/nowhere/key.pem");
        for key in ["-----BEGIN PRIVATE KEY-----\nAAAA", "MC4CAQAwBQYDK2VwBCIEIAAA"] {
            assert_eq!(key_path(Path::new(key)), "hidden");
        }
    }
}
