//! The documented default, the environment, and that no secret is shown.

use super::*;

fn complete() -> Config {
    let mut config = Config { installation: "test".to_owned(), ..Config::default() };
    config.postgres.url = Secret::new("postgres://gateway:hunter2@db/fencepost".to_owned());
    config.kafka.bootstrap = "broker:9092".to_owned();
    config.credentials.signing_key_file = PathBuf::from("/keys/credential.pem");
    config
}

fn worker(name: &str, digit: &str) -> Worker {
    Worker {
        name: name.to_owned(),
        token_sha256: digit.repeat(64).try_into().unwrap(),
        leases: vec!["*".to_owned()],
        owners: vec!["*".to_owned()],
    }
}

#[test]
fn the_documented_default_is_the_default() {
    assert_eq!(Config::parse(DEFAULT_TOML).unwrap(), Config::default());
}

#[test]
fn an_unknown_key_is_refused_in_every_section() {
    for section in
        ["", "[http]", "[postgres]", "[kafka]", "[credentials]", "[ops]", "[limits]", "[timeouts]"]
    {
        let error = Config::parse(&format!("\n{section}\nenforec = 1\n")).unwrap_err().to_string();
        assert!(error.contains("enforec"), "{error}");
    }
    let worker = "[[workers]]\nname='a'\ntoken_sha256='x'\nleases=[]\nowners=[]\n";
    let error = Config::parse(worker).unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("64 hex digits"), "{error}");
    assert!(Config::parse("[[workers]]\nname='a'\n").is_err());
}

#[test]
fn the_environment_wins_over_the_file() {
    let mut config = complete();
    let variable = |name: &str| match name {
        "FENCEPOST_POSTGRES_URL" => Some("postgres://b".to_owned()),
        "FENCEPOST_KAFKA_BOOTSTRAP" => Some(String::new()),
        "FENCEPOST_HTTP_LISTEN" => Some("[::1]:1".to_owned()),
        "FENCEPOST_HTTP_ADMIN_LISTEN" => Some("127.0.0.1:2".to_owned()),
        _ => None,
    };
    config.override_from(variable).unwrap();
    assert_eq!(config.postgres.url.expose(), "postgres://b");
    assert_eq!(config.kafka.bootstrap, "broker:9092");
    assert_eq!(config.http.listen.to_string(), "[::1]:1");
    assert_eq!(config.http.admin_listen.port(), 2);
    let error = config.override_from(|_| Some("x".to_owned())).unwrap_err().to_string();
    assert!(error.contains("FENCEPOST_HTTP_LISTEN"), "{error}");
}

#[test]
fn no_secret_is_shown() {
    let mut config = complete();
    config.kafka.client.insert("sasl.password".to_owned(), Secret::new("hunter2".to_owned()));
    config.workers = vec![worker("a", "1")];
    let text = format!("{config:?}");
    assert!(!text.contains("hunter2") && !text.contains("1111"), "{text}");
    let error = Config::parse("[postgres]\nurl = \"hunter2\" x\n").unwrap_err().to_string();
    assert!(error.contains("line 2") && !error.contains("hunter2"), "{error}");
}

#[test]
fn a_hash_is_64_hex_digits() {
    let parse = |text: &str| Sha256Hex::try_from(text.to_owned());
    assert_eq!(parse(&"aF".repeat(32)).unwrap().0, [0xaf; 32]);
    for bad in [String::new(), "a".repeat(63), "a".repeat(65), "g".repeat(64), "a".repeat(66)] {
        assert!(parse(&bad).is_err(), "{bad}");
    }
}
