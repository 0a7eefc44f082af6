//! What is printed: all of it, with its origin, and no secret.

use crate::config::{DEFAULT_TOML, Effective};
use std::fs;

const FILE: &str = "installation = \"a\\nb\"\n\
    [http]\nlisten = \"127.0.0.1:1\"\n\
    [kafka]\ntopics = [\"a.*\", \"b\\\"\"]\n\
    [kafka.client]\n\"sasl.password\" = \"hunter2\"\n\"sasl.username\" = \"\"\n\
    [[workers]]\nname = \"w\"\nleases = [\"x\"]\nowners = []\n\
    token_sha256 = \"1111111111111111111111111111111111111111111111111111111111111111\"\n";

fn effective(secret: &str) -> Effective {
    let variables = [("FENCEPOST_POSTGRES_URL_FILE", secret), ("FENCEPOST_LIMITS_PURGE_ROWS", "7")];
    Effective::of(FILE, variables.map(|(name, value)| (name.into(), value.into()))).unwrap()
}

fn with_secret<T>(then: impl FnOnce(Effective, &str) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("url");
    fs::write(&path, "postgres://u:hunter2@db/x\n").unwrap();
    let path = path.to_str().unwrap();
    then(effective(path), path)
}

#[test]
fn every_value_is_printed_with_its_origin_and_no_secret_is() {
    let (text, path) = with_secret(|e, path| (e.to_toml().unwrap(), path.to_owned()));
    for line in [
        "installation = \"a\\nb\"  # file",
        "listen = \"127.0.0.1:1\"  # file",
        "admin_listen = \"127.0.0.1:8081\"  # default",
        &format!("url = \"hidden\"  # secret file {path} (env FENCEPOST_POSTGRES_URL_FILE)"),
        "topics = [\"a.*\", \"b\\\"\"]  # file",
        "\"sasl.password\" = \"hidden\"  # file",
        "\"sasl.username\" = \"unset\"  # file",
        "token_sha256 = \"unset\"  # default",
        "purge_rows = 7  # env FENCEPOST_LIMITS_PURGE_ROWS",
        "[[workers]]",
        "name = \"w\"  # file",
        "token_sha256 = \"hidden\"  # file",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("hunter2") && !text.contains("1111"), "{text}");
}

#[test]
fn what_is_printed_is_the_configuration_as_toml() {
    let (text, json) = with_secret(|e, _| (e.to_toml().unwrap(), e.to_json(None).unwrap()));
    let printed: toml::Table = text.parse().unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_value(&printed).unwrap(), json["config"]);
}

#[test]
fn the_default_is_printed_in_the_documented_order() {
    let keys = |text: &str| -> Vec<String> {
        let names = text.lines().filter(|line| !line.starts_with('#'));
        let names = names.filter_map(|line| line.split(" =").next());
        let names = names.filter(|name| !name.is_empty() && *name != "[kafka.client]");
        names.map(str::to_owned).collect()
    };
    let text = Effective::of("", []).unwrap().to_toml().unwrap();
    assert_eq!(keys(&text), keys(DEFAULT_TOML));
    let values = text.lines().filter(|line| line.contains(" = "));
    assert!(
        values.clone().count() > 30 && values.clone().all(|line| line.ends_with("  # default"))
    );
}

#[test]
fn json_has_values_origins_and_the_problem() {
    let text = with_secret(|e, _| e.to_json(Some("no")).unwrap());
    assert!(!text.contains("hunter2") && !text.contains("1111"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["problem"], "no");
    assert_eq!(json["config"]["limits"]["purge_rows"], 7);
    assert_eq!(json["config"]["workers"][0]["token_sha256"], "hidden");
    assert_eq!(json["origins"]["limits.purge_rows"], "env FENCEPOST_LIMITS_PURGE_ROWS");
    assert_eq!(json["origins"]["kafka.client.sasl.password"], "file");
    assert_eq!(json["origins"]["workers"], "file");
    assert_eq!(json["origins"]["timeouts.lock_ms"], "default");
}

#[test]
fn the_largest_number_is_printed_as_well() {
    let most = u64::MAX.to_string();
    let variable = ("FENCEPOST_LIMITS_RETENTION_S".into(), most.clone().into());
    let text = Effective::of("", [variable]).unwrap().to_toml().unwrap();
    assert!(text.contains(&format!("retention_s = {most}  # env")), "{text}");
}
