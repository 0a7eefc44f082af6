//! Every relation that is checked, each by a configuration that breaks it.

use super::*;
use crate::config::{Secret, Worker};
use std::path::PathBuf;

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

fn passes(change: impl FnOnce(&mut Config)) {
    let mut config = complete();
    change(&mut config);
    config.check().unwrap();
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

type Change = fn(&mut Config);

fn each_is_refused(cases: &[(Change, &str)]) {
    for (change, message) in cases {
        assert_eq!(refused(change), *message);
    }
}

#[test]
fn timeouts_out_of_order_are_refused_with_both_keys_and_both_numbers() {
    each_is_refused(&[
        (
            |c| c.timeouts.delivery_ms = 2_600,
            "timeouts.delivery_ms (2600) must be less than timeouts.batch_ms (2500)",
        ),
        (
            |c| c.timeouts.batch_ms = 3_000,
            "timeouts.batch_ms (3000) must be less than timeouts.open_ms (3000)",
        ),
        (
            |c| c.timeouts.open_ms = 3_500,
            "timeouts.open_ms (3500) must be less than timeouts.idle_in_transaction_ms (3500)",
        ),
        (
            |c| c.timeouts.idle_in_transaction_ms = 4_000,
            "timeouts.idle_in_transaction_ms (4000) must be less than timeouts.lock_ms (4000)",
        ),
        (
            |c| c.timeouts.lock_ms = 4_500,
            "timeouts.lock_ms (4500) must be less than timeouts.statement_ms (4500)",
        ),
        (
            |c| c.timeouts.statement_ms = 5_000,
            "timeouts.statement_ms (5000) must be less than timeouts.ttl_min_ms (5000)",
        ),
        (
            |c| c.timeouts.ttl_min_ms = 6_000,
            "timeouts.ttl_min_ms (6000) must be less than timeouts.transaction_ms (6000)",
        ),
        (
            |c| c.timeouts.transaction_ms = 10_000,
            "timeouts.transaction_ms (10000) must be less than timeouts.request_ms (10000)",
        ),
        (
            |c| c.timeouts.shutdown_ms = 10_000,
            "timeouts.request_ms (10000) must be less than timeouts.shutdown_ms (10000)",
        ),
        (
            |c| c.timeouts.ttl_max_ms = 4_999,
            "timeouts.ttl_min_ms (5000) must not be above timeouts.ttl_max_ms (4999)",
        ),
    ]);
}

#[test]
fn limits_that_do_not_fit_each_other_are_refused_with_both_keys_and_both_numbers() {
    each_is_refused(&[
        (
            |c| c.limits.record_bytes_max = 5_000_000,
            "limits.record_bytes_max (5000000) must not be above http.body_bytes_max (4194304)",
        ),
        (
            |c| c.limits.batch_bytes_max = 1_000_000,
            "limits.record_bytes_max (1048576) must not be above limits.batch_bytes_max (1000000)",
        ),
        (
            |c| c.http.body_bytes_max = 5_000_000,
            "http.body_bytes_max (5000000) must not be above limits.batch_bytes_max (4194304)",
        ),
        (
            |c| c.http.body_memory_bytes_max = 4_194_303,
            "http.body_bytes_max (4194304) must not be above http.body_memory_bytes_max (4194303)",
        ),
        (
            |c| c.http.connections_max = 255,
            "http.connections_per_peer_max (256) must not be above http.connections_max (255)",
        ),
        (
            |c| c.limits.batch_records_max = 4_999,
            "limits.batch_records_max (4999) must not be below the records that one request may \
             have (5000)",
        ),
    ]);
    let fits: [Change; 3] = [
        |c| c.http.body_memory_bytes_max = 4_194_304,
        |c| c.http.connections_max = 256,
        |c| c.limits.batch_records_max = RECORDS_MAX,
    ];
    fits.into_iter().for_each(passes);
}

#[test]
fn an_operation_is_remembered_for_as_long_as_it_may_be_repeated() {
    each_is_refused(&[
        (
            |c| c.limits.retention_s = 7_199,
            "timeouts.ttl_max_ms (3600000) and limits.replay_horizon_s (3600) together, 7200000 \
             ms, must not be above limits.retention_s (7199)",
        ),
        (
            |c| c.limits.replay_horizon_s = 604_800,
            "timeouts.ttl_max_ms (3600000) and limits.replay_horizon_s (604800) together, \
             608400000 ms, must not be above limits.retention_s (604800)",
        ),
        (
            |c| c.limits.retention_s = u64::MAX,
            "limits.retention_s (18446744073709551615) must be from 1 to 3153600000",
        ),
    ]);
    passes(|c| c.limits.retention_s = 7_200);
    passes(|c| {
        c.timeouts.ttl_max_ms = c.timeouts.ttl_min_ms;
        (c.limits.replay_horizon_s, c.limits.retention_s) = (0, 5);
    });
}

#[test]
fn every_number_has_a_range() {
    each_is_refused(&[
        (|c| c.timeouts.delivery_ms = 0, "timeouts.delivery_ms (0) must be from 1 to 2147483647"),
        (
            |c| c.timeouts.ttl_max_ms = 2_147_483_648,
            "timeouts.ttl_max_ms (2147483648) must be from 1 to 2147483647",
        ),
        (
            |c| c.timeouts.shutdown_ms = u64::MAX,
            "timeouts.shutdown_ms (18446744073709551615) must be from 1 to 2147483647",
        ),
        (|c| c.limits.idle_ms = 0, "limits.idle_ms (0) must be from 1 to 2147483647"),
        (|c| c.limits.purge_pause_ms = 0, "limits.purge_pause_ms (0) must be from 1 to 2147483647"),
        (|c| c.limits.purge_rows = 0, "limits.purge_rows (0) must be from 1 to 10000"),
        (|c| c.limits.purge_rows = 10_001, "limits.purge_rows (10001) must be from 1 to 10000"),
        (|c| c.limits.leases_open_max = 0, "limits.leases_open_max (0) must be from 1 to 1000000"),
        (
            |c| c.limits.queue_per_lease_max = usize::MAX,
            "limits.queue_per_lease_max (18446744073709551615) must be from 1 to 1000000",
        ),
        (|c| c.http.connections_max = 0, "http.connections_max (0) must be from 1 to 1000000"),
        (
            |c| c.http.connections_per_peer_max = 0,
            "http.connections_per_peer_max (0) must be from 1 to 1000000",
        ),
        (
            |c| c.http.body_memory_bytes_max = 4_294_967_296,
            "http.body_memory_bytes_max (4294967296) must be from 1 to 4294967295",
        ),
        (
            |c| c.limits.record_bytes_max = 0,
            "limits.record_bytes_max (0) must be from 1 to 900000000",
        ),
        (|c| c.postgres.work_sessions = 0, "postgres.work_sessions (0) must be from 1 to 10000"),
        (
            |c| c.postgres.reserve_sessions = 0,
            "postgres.reserve_sessions (0) must be from 1 to 10000",
        ),
    ]);
    let all_short = refused(|c| {
        let t = &mut c.timeouts;
        (t.delivery_ms, t.batch_ms, t.open_ms, t.idle_in_transaction_ms) = (1, 2, 3, 4);
        (t.lock_ms, t.statement_ms, t.ttl_min_ms, t.transaction_ms) = (5, 6, 7, 999);
    });
    assert_eq!(all_short, "timeouts.transaction_ms (999) must be from 1000 to 2147483647");
}

#[test]
fn the_admin_listener_opens_only_on_loopback_and_beside_the_data_listener() {
    let at = |data: &'static str, admin: &'static str| {
        move |c: &mut Config| {
            c.http.listen = data.parse().unwrap();
            c.http.admin_listen = admin.parse().unwrap();
        }
    };
    let text = refused(at("127.0.0.1:8080", "0.0.0.0:8081"));
    assert!(text.contains("http.admin_listen (0.0.0.0:8081)"), "{text}");
    assert!(text.contains("loopback"), "{text}");
    for data in ["127.0.0.1:8081", "0.0.0.0:8081", "[::]:8081"] {
        let text = refused(at(data, "127.0.0.1:8081"));
        assert!(text.contains(&format!("http.listen ({data})")), "{text}");
        assert!(text.contains("http.admin_listen (127.0.0.1:8081)"), "{text}");
    }
    for (data, admin) in [
        ("0.0.0.0:8080", "[::1]:8081"),
        ("10.0.0.1:8081", "127.0.0.1:8081"),
        ("127.0.0.1:0", "127.0.0.1:0"),
    ] {
        passes(at(data, admin));
    }
}

#[test]
fn an_address_that_nobody_could_use_is_refused_with_its_value() {
    each_is_refused(&[
        (
            |c| c.installation = "prod_eu".to_owned(),
            "installation (\"prod_eu\"): an installation name is 1 to 40 of A-Z a-z 0-9 -",
        ),
        (
            |c| c.http.advertised_url = "http://gw:8080/v1".to_owned(),
            "http.advertised_url (http://gw:8080/v1) must be http://host:port or \
             https://host:port, without user, path or query",
        ),
        (
            |c| c.kafka.bootstrap = "a:9092, b".to_owned(),
            "kafka.bootstrap: \"b\" must be host:port",
        ),
        (|c| c.kafka.bootstrap = "a:9092,".to_owned(), "kafka.bootstrap: \"\" must be host:port"),
        (|c| c.kafka.topics.push(String::new()), "kafka.topics: a pattern must not be empty"),
    ]);
    assert!(refused(|c| c.kafka.ledger_topic = "a b".to_owned()).contains("(\"a b\")"));
    passes(|c| c.kafka.bootstrap = "a:9092, [::1]:9092".to_owned());
    passes(|c| c.kafka.topics = vec!["a".to_owned(), "a".to_owned(), "*".to_owned()]);
    let text = refused(|c| c.postgres.url = Secret::new("mysql://u:hunter2@db/x".to_owned()));
    assert!(text.contains("postgres.url") && text.contains("postgres://"), "{text}");
    assert!(!text.contains("hunter2") && !text.contains("mysql"), "{text}");
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
fn a_worker_has_no_empty_pattern() {
    let text = refused(|c| {
        let leases = vec!["*".to_owned(), String::new()];
        c.workers = vec![Worker { leases, ..worker("a", "1") }];
    });
    assert_eq!(text, "workers: a pattern of \"a\" must not be empty");
}
