//! Which variables are judged, and what is said of a wrong one.

use super::*;
use crate::config::{ConfigError, Effective, keys};
use std::os::unix::ffi::OsStringExt as _;

fn read(variable: &str, value: &str) -> Result<Effective, ConfigError> {
    Effective::of("", [(variable.into(), value.into())])
}

fn message(variable: &str, value: &str) -> String {
    read(variable, value).unwrap_err().to_string()
}

#[test]
fn a_variable_of_a_section_that_names_no_key_is_refused() {
    for variable in [
        "FENCEPOST_HTTP_LISTN",
        "FENCEPOST_POSTGRES_",
        "FENCEPOST_POSTGRES_URL_FIL",
        "FENCEPOST_HTTP_LISTEN_FILE",
        "FENCEPOST_LIMITS_RETENTION",
        "FENCEPOST_TIMEOUTS_LOCK_S",
        "FENCEPOST_OPS_TOKEN",
        "FENCEPOST_CREDENTIALS_KEY",
        "FENCEPOST_KAFKA_CLIENT",
        "FENCEPOST_KAFKA_CLIENT_SASL_PASSWORD",
        "FENCEPOST_WORKERS",
        "FENCEPOST_WORKERS_0_NAME",
        "FENCEPOST_HTTP_PORT",
    ] {
        let message = message(variable, "hunter2");
        assert!(message.starts_with(&format!("{variable}: no key has")), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn variables_of_scripts_logs_and_services_do_not_stop_a_gateway() {
    for (variable, value) in [
        ("FENCEPOST_URL", "http://x"),
        ("FENCEPOST_ADMIN_URL_2", "http://x"),
        ("FENCEPOST_PID_FILE", "/x"),
        ("FENCEPOST_CONFIG", "/x"),
        ("FENCEPOST_PORT_BASE", "18080"),
        ("FENCEPOST_LOG", "debug"),
        ("HTTP_LISTN", "x"),
        // What Kubernetes says of the services fencepost, fencepost-http and fencepost-http-admin.
        ("FENCEPOST_SERVICE_HOST", "10.0.0.1"),
        ("FENCEPOST_PORT", "tcp://10.0.0.1:80"),
        ("FENCEPOST_HTTP_SERVICE_HOST", "10.0.0.1"),
        ("FENCEPOST_HTTP_SERVICE_PORT", "80"),
        ("FENCEPOST_HTTP_SERVICE_PORT_DATA", "80"),
        ("FENCEPOST_HTTP_PORT", "tcp://10.0.0.1:80"),
        ("FENCEPOST_HTTP_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("FENCEPOST_HTTP_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("FENCEPOST_HTTP_ADMIN_SERVICE_HOST", "10.0.0.1"),
    ] {
        let effective = read(variable, value).unwrap();
        assert_eq!(effective.config, crate::config::Config::default(), "{variable}");
    }
    for key in keys::all().unwrap() {
        let value = OsStr::new("tcp://10.0.0.1:80");
        assert!(!is_of_a_service(&key.variable(), value), "{}", key.variable());
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_variable_and_what_it_must_be() {
    for (variable, value, rule) in [
        ("FENCEPOST_HTTP_LISTEN", "localhost:8080", "must be an IP address and a port"),
        ("FENCEPOST_LIMITS_RETENTION_S", "7d", "must be a whole number"),
        ("FENCEPOST_LIMITS_RETENTION_S", "-1", "must be a whole number"),
        ("FENCEPOST_LIMITS_RETENTION_S", "1_000", "must be a whole number"),
        ("FENCEPOST_LIMITS_RETENTION_S", "007", "must be a whole number"),
        ("FENCEPOST_LIMITS_RETENTION_S", "1\nx = 2", "must be a whole number"),
        ("FENCEPOST_POSTGRES_WORK_SESSIONS", "4294967296", "is too large"),
        ("FENCEPOST_OPS_TOKEN_SHA256", "hunter2", "must be 64 hex digits"),
    ] {
        let message = message(variable, value);
        assert!(message.starts_with(&format!("{variable}: ")), "{message}");
        assert!(message.contains(rule) && !message.contains("hunter2"), "{message}");
    }
    let broken = OsString::from_vec(b"hunter2\xff".to_vec());
    let error = Effective::of("", [("FENCEPOST_POSTGRES_URL".into(), broken)]).unwrap_err();
    assert_eq!(error.to_string(), "FENCEPOST_POSTGRES_URL: must be UTF-8");
}
