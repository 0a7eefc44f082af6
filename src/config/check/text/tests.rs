//! What is an address, a URL or a name, and what is none.

use super::*;

#[test]
fn an_advertised_url_is_scheme_host_and_port() {
    for url in ["http://127.0.0.1:8080", "https://gw.example", "http://[::1]:8080"] {
        assert_eq!(check_advertised_url(url), Ok(()), "{url}");
    }
    for url in [
        "gw:8080",
        "127.0.0.1:8080",
        "/v1",
        "*",
        "ftp://gw",
        "http://",
        "http://:8080",
        "http://gw/",
        "http://gw/v1",
        "http://gw?x",
        "http://gw#x",
        "http://u:p@gw",
        "http://gw:",
        "http://gw:0",
        "http://gw:65536",
        "http://gw:80x",
        " http://gw",
        "http://0.0.0.0:8080",
        "http://[::]:8080",
    ] {
        assert!(check_advertised_url(url).is_err(), "{url}");
    }
}

#[test]
fn a_broker_is_host_and_port() {
    for text in ["b:1", "kafka-0.kafka.svc:9092", "10.0.0.1:9092", "[::1]:9092"] {
        assert!(is_host_and_port(text), "{text}");
    }
    for text in [
        "",
        "b",
        "b:",
        ":9092",
        "b:0",
        "b:65536",
        "b:+1",
        "b c:1",
        "SSL://b:1",
        "::1:9092",
        "[b]:1",
        "[10.0.0.1]:1",
        "b:1;c:1",
    ] {
        assert!(!is_host_and_port(text), "{text}");
    }
}

#[test]
fn a_topic_has_kafkas_own_letters() {
    assert!(is_topic("fencepost.ledger") && is_topic(&"a".repeat(249)));
    for text in ["", ".", "..", "a b", "a/b", "ü", &"a".repeat(250)] {
        assert!(!is_topic(text), "{text}");
    }
}

#[test]
fn a_postgres_url_has_known_parameters_only() {
    for url in [
        "postgres://h/db",
        "postgres://h/db?",
        "postgresql://u:p@h/db?ssl-mode=a&application_name=x&options[search_path]=y",
    ] {
        assert!(check_postgres_url(url).is_ok(), "{url}");
    }
    for url in [
        "postgres://h/db?sslmod=x",
        "postgres://u:12?ss@h/db",
        "mysql://h/db",
        "postgres://h/db?x&sslmode=a",
    ] {
        assert!(check_postgres_url(url).is_err(), "{url}");
    }
}
