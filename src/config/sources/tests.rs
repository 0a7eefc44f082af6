//! What wins over what, what is refused, and what is remembered of it.

use super::*;
use crate::config::DEFAULT_TOML;
use std::collections::BTreeSet;
use std::fs;

const HASH: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

fn of(text: &str, variables: &[(&str, &str)]) -> Result<Effective, ConfigError> {
    let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    Effective::of(text, variables)
}

/// What the user reads: an error and its causes.
fn message(text: &str, variables: &[(&str, &str)]) -> String {
    format!("{:#}", anyhow::Error::from(of(text, variables).unwrap_err()))
}

/// A file with a secret in it, its path, and the directory that it lives in.
fn secret(content: impl AsRef<[u8]>) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn every_key_of_the_documented_default_has_its_variable() {
    let default: toml::Table = DEFAULT_TOML.parse().unwrap();
    let top = default.iter().map(|(name, value)| ("", name, value));
    let inner = default.iter().filter_map(|(section, value)| Some((section, value.as_table()?)));
    let inner = inner.flat_map(|(section, table)| {
        table.iter().map(move |(name, value)| (section.as_str(), name, value))
    });
    let mut seen = 0;
    for (section, name, default) in top.chain(inner).filter(|(_, _, value)| !value.is_table()) {
        let path = keys::path(section, name);
        let variable = format!("FENCEPOST_{}", path.replace('.', "_").to_uppercase());
        let other = match default {
            toml::Value::String(_) if name.ends_with("listen") => "127.0.0.9:9",
            toml::Value::String(_) if name.ends_with("sha256") => HASH,
            toml::Value::Integer(_) => "77",
            toml::Value::String(_) | toml::Value::Array(_) => "seventy-seven",
            toml::Value::Boolean(_) => "true",
            toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => {
                panic!("{path} is of a type that the environment cannot give")
            }
        };
        let effective = of("", &[(&variable, other)]).unwrap();
        assert_ne!(effective.config, Config::default(), "{variable} changes nothing");
        assert_eq!(effective.origin(&path), &Origin::Environment(variable));
        assert_eq!(effective.origins.len(), 1, "{path}");
        seen += 1;
    }
    assert!(seen > 30, "{seen} keys");
}

#[test]
fn no_two_keys_share_a_variable() {
    let keys = keys::all().unwrap();
    let files = keys.iter().filter(|key| key.may_be_in_a_file());
    let files: Vec<String> = files.map(|key| key.variable() + "_FILE").collect();
    assert_eq!(files, ["FENCEPOST_POSTGRES_URL_FILE", "FENCEPOST_OPS_TOKEN_SHA256_FILE"]);
    let all: BTreeSet<String> = keys.iter().map(Key::variable).chain(files).collect();
    assert_eq!(all.len(), keys.len() + 2);
}

#[test]
fn the_environment_wins_over_the_file_and_the_file_over_the_default() {
    let file = "installation = 'a'\n\
                [kafka]\nbootstrap = 'a:1'\ntopics = ['x']\n[limits]\nretention_s = 9\n";
    let effective = of(
        file,
        &[
            ("FENCEPOST_KAFKA_BOOTSTRAP", "b:1"),
            ("FENCEPOST_KAFKA_TOPICS", "orders.*, bills.*"),
            ("FENCEPOST_LIMITS_RETENTION_S", "86400"),
            ("FENCEPOST_HTTP_LISTEN", "[::1]:1"),
            // As good as none.
            ("FENCEPOST_INSTALLATION", ""),
            ("FENCEPOST_LIMITS_NO_SUCH_KEY", ""),
        ],
    )
    .unwrap();
    let config = &effective.config;
    assert_eq!(config.installation, "a");
    assert_eq!(config.kafka.bootstrap, "b:1");
    assert_eq!(config.kafka.topics, ["orders.*", "bills.*"]);
    assert_eq!(config.limits.retention_s, 86_400);
    assert_eq!(config.http.listen.to_string(), "[::1]:1");
    assert_eq!(config.timeouts, crate::config::Timeouts::default());
    assert_eq!(effective.origin("installation"), &Origin::File);
    assert_eq!(effective.origin("timeouts.lock_ms"), &Origin::Default);
    assert_eq!(effective.origin("kafka.topics").to_string(), "env FENCEPOST_KAFKA_TOPICS");
}

#[test]
fn a_secret_comes_from_a_file_without_its_line_end() {
    for (content, expected) in [
        ("hunter2", "hunter2"),
        ("hunter2\n", "hunter2"),
        ("hunter2\r\n", "hunter2"),
        ("hunter2\n\n", "hunter2\n"),
        (" hunter2 ", " hunter2 "),
    ] {
        let (_dir, path) = secret(content);
        let file = format!(
            "[postgres]\nurl = ''\nurl_file = '{path}'\n\
             [kafka.client]\n'sasl.username' = 'me'\n'sasl.password_file' = '{path}'\n"
        );
        let effective = of(&file, &[]).unwrap();
        assert_eq!(effective.config.postgres.url.expose(), expected);
        let client: Vec<(&str, &str)> = effective
            .config
            .kafka
            .client
            .iter()
            .map(|(key, value)| (key.as_str(), value.expose()))
            .collect();
        assert_eq!(client, [("sasl.password", expected), ("sasl.username", "me")]);
        for key in ["postgres.url", "kafka.client.sasl.password"] {
            assert_eq!(effective.origin(key).to_string(), format!("secret file {path}"));
        }
        let variable = "FENCEPOST_POSTGRES_URL_FILE";
        let effective = of("", &[(variable, &path)]).unwrap();
        assert_eq!(effective.config.postgres.url.expose(), expected);
        let origin = effective.origin("postgres.url").to_string();
        assert_eq!(origin, format!("secret file {path} (env {variable})"));
    }
    let (_dir, path) = secret(format!("{HASH}\n"));
    for effective in [
        of(&format!("[ops]\ntoken_sha256_file = '{path}'\n"), &[]),
        of("", &[("FENCEPOST_OPS_TOKEN_SHA256_FILE", &path)]),
    ] {
        assert_eq!(effective.unwrap().config.ops.token_sha256.unwrap().0, [0xaa; 32]);
    }
}

#[test]
fn the_environment_wins_over_the_file_in_either_way_to_give_a_secret() {
    let (_dir, path) = secret("postgres://env-file\n");
    let direct = "[postgres]\nurl = 'postgres://file'\n";
    let by_file = "[postgres]\nurl_file = '/nowhere'\n";
    for file in [direct, by_file, ""] {
        let url = |name, value| {
            of(file, &[(name, value)]).unwrap().config.postgres.url.expose().to_owned()
        };
        assert_eq!(url("FENCEPOST_POSTGRES_URL_FILE", &path), "postgres://env-file");
        assert_eq!(url("FENCEPOST_POSTGRES_URL", "postgres://env"), "postgres://env");
    }
}

#[test]
fn a_secret_given_twice_in_one_place_is_refused() {
    let (_dir, path) = secret("hunter2");
    let error = message(&format!("[postgres]\nurl = 'hunter2'\nurl_file = '{path}'\n"), &[]);
    assert_eq!(error, "line 3: postgres.url and postgres.url_file are both set");
    let error = message(
        &format!("[kafka.client]\n'sasl.password' = 'hunter2'\n'sasl.password_file' = '{path}'\n"),
        &[],
    );
    assert!(error.contains("kafka.client.sasl.password_file are both set"), "{error}");
    let error = message(
        "",
        &[("FENCEPOST_POSTGRES_URL", "hunter2"), ("FENCEPOST_POSTGRES_URL_FILE", &path)],
    );
    assert!(error.starts_with("FENCEPOST_POSTGRES_URL_FILE: FENCEPOST_POSTGRES_URL is"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_file_that_holds_no_secret_is_refused_with_key_and_path_but_without_its_content() {
    let mut large = b"hunter2".repeat(9_363);
    assert!(large.len() > 65_536);
    for (content, rule) in [
        (&b""[..], "is empty"),
        (b"\n", "is empty"),
        (b"\r\n", "is empty"),
        (b"hunter2\xff", "is not UTF-8"),
        (&large, "is larger than 65536 bytes"),
    ] {
        let (_dir, path) = secret(content);
        for (key, file, variables) in [
            ("postgres.url_file", format!("[postgres]\nurl_file = '{path}'\n"), vec![]),
            (
                "kafka.client.ssl.key.pem_file",
                format!("[kafka.client]\n'ssl.key.pem_file' = '{path}'\n"),
                vec![],
            ),
            (
                "FENCEPOST_POSTGRES_URL_FILE",
                String::new(),
                vec![("FENCEPOST_POSTGRES_URL_FILE", path.as_str())],
            ),
        ] {
            assert_eq!(message(&file, &variables), format!("{key} {path}: {rule}"));
        }
    }
    large.truncate(65_536);
    let (dir, path) = secret(&large);
    of("", &[("FENCEPOST_POSTGRES_URL_FILE", &path)]).unwrap();
    let missing = dir.path().join("missing");
    for path in [dir.path(), &missing] {
        let path = path.to_str().unwrap();
        let error = message(&format!("[postgres]\nurl_file = '{path}'\n"), &[]);
        let named = format!("postgres.url_file {path}: cannot be read: ");
        assert!(error.starts_with(&named), "{error}");
    }
    let (_dir, path) = secret("hunter2");
    let error = message(&format!("[ops]\ntoken_sha256_file = '{path}'\n"), &[]);
    assert_eq!(error, format!("ops.token_sha256_file {path}: must be 64 hex digits"));
    let error = message("\n[postgres]\nurl_file = 5\n", &[]);
    assert_eq!(error, "line 3: postgres.url_file must be the path of a file");
}

#[test]
fn a_mistake_in_the_file_names_its_line_whatever_the_environment_says() {
    let url = ("FENCEPOST_POSTGRES_URL", "postgres://x");
    assert!(message("[limits]\n\nidle_ms = 'x'\n", &[url]).starts_with("line 3: "));
    assert!(message("postgres = 5\n", &[url]).starts_with("line 1: "));
    assert!(message("[postgres]\nurl = \n", &[url]).starts_with("line 2: "));
    assert!(message("[kafka]\nclient = 5\n", &[]).starts_with("line 2: "));
}
