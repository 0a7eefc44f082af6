//! The documented default, the environment, and every relation that is checked.

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

fn refused(change: impl FnOnce(&mut Config)) -> String {
    let mut config = complete();
    change(&mut config);
    config.check().unwrap_err().to_string()
}

#[test]
fn the_documented_default_is_the_default() {
    assert_eq!(Config::parse(DEFAULT_TOML).unwrap(), Config::default());
}

#[test]
fn the_default_starts_once_its_empty_values_are_set() {
    complete().check().unwrap();
    assert!(Config::default().check().is_err());
    for (change, key) in [
        (
            Box::new(|c: &mut Config| c.installation.clear()) as Box<dyn FnOnce(&mut Config)>,
            "installation",
        ),
        (Box::new(|c| c.postgres.url = Secret::default()), "postgres.url"),
        (Box::new(|c| c.kafka.bootstrap.clear()), "kafka.bootstrap"),
        (Box::new(|c| c.credentials.signing_key_file.clear()), "signing_key_file"),
        (Box::new(|c| c.credentials.issuer.clear()), "credentials.issuer"),
    ] {
        assert!(refused(change).contains(key), "{key}");
    }
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
fn timeouts_out_of_order_are_refused_with_both_numbers() {
    let text = refused(|c| c.timeouts.batch_ms = 3_000);
    assert_eq!(text, "timeouts.batch_ms (3000) must be less than timeouts.open_ms (3000)");
    let text = refused(|c| c.timeouts.delivery_ms = 2_600);
    assert!(text.contains("(2600)") && text.contains("(2500)"), "{text}");
    assert!(refused(|c| c.timeouts.transaction_ms = 10_000).contains("request_ms (10000)"));
    assert!(refused(|c| c.timeouts.ttl_max_ms = 4_999).contains("ttl_min_ms (5000)"));
    assert!(refused(|c| c.timeouts.shutdown_ms = 10_000).contains("request_ms (10000)"));
    assert!(refused(|c| c.timeouts.delivery_ms = 0).contains("above 0"));
}

#[test]
fn limits_that_do_not_fit_each_other_are_refused_with_both_numbers() {
    assert!(refused(|c| c.limits.record_bytes_max = 5_000_000).contains("(5000000)"));
    assert!(refused(|c| c.http.body_bytes_max = 5_000_000).contains("(5000000)"));
    assert!(refused(|c| c.limits.batch_records_max = 4_999).contains("(4999)"));
    assert!(refused(|c| c.limits.retention_s = 3_599).contains("(3599000)"));
    assert!(refused(|c| c.limits.leases_open_max = 0).contains("leases_open_max"));
    assert!(refused(|c| c.postgres.work_sessions = 0).contains("work_sessions"));
}

#[test]
fn the_admin_listener_opens_only_on_loopback() {
    assert!(
        refused(|c| c.http.admin_listen = "0.0.0.0:8081".parse().unwrap()).contains("loopback")
    );
}

#[test]
fn the_kafka_client_takes_no_setting_that_the_protocol_relies_on() {
    let with = |key: &str| {
        refused(|c| {
            c.kafka.client.insert(key.to_owned(), Secret::new("x".to_owned()));
        })
    };
    for key in ["acks", "transactional.id", "enable.idempotence", "debug"] {
        assert!(with(key).contains(key), "{key}");
    }
    let mut config = complete();
    config.kafka.client.insert("sasl.password".to_owned(), Secret::new("x".to_owned()));
    config.check().unwrap();
}

#[test]
fn two_identities_never_share_a_name_or_a_token() {
    assert!(refused(|c| c.workers = vec![worker("a", "1"), worker("a", "2")]).contains("twice"));
    assert!(refused(|c| c.workers = vec![worker("a", "1"), worker("b", "1")]).contains("else"));
    let as_operator = refused(|c| {
        c.workers = vec![worker("a", "1")];
        c.ops.token_sha256 = Some("1".repeat(64).try_into().unwrap());
    });
    assert!(as_operator.contains("else"));
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
