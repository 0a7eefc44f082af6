//! `fencepost print-config` as a user runs it: what is on which stream, and the exit code.
#![allow(clippy::unwrap_used, reason = "a test that cannot start its program fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

const COMPLETE: &str = "installation = 'test'\n\
    [postgres]\nurl = 'postgres://u:hunter2@db/x'\n\
    [kafka]\nbootstrap = 'b:9092'\n\
    [credentials]\nsigning_key_file = '/keys/x.pem'\n";

struct Answer {
    code: Option<i32>,
    out: String,
    err: String,
}

fn file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("fencepost.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn print(config: &Path, more: &[&str], variables: &[(&str, &str)]) -> Answer {
    let output = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .arg("print-config")
        .arg("--config")
        .arg(config)
        .args(more)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn a_configuration_that_may_start_is_printed_with_exit_code_0() {
    let dir = tempfile::tempdir().unwrap();
    let answer = print(&file(dir.path(), COMPLETE), &[], &[("FENCEPOST_HTTP_LISTEN", "[::1]:1")]);
    assert_eq!(answer.code, Some(0), "{}", answer.err);
    assert!(answer.out.contains("listen = \"[::1]:1\"  # env FENCEPOST_HTTP_LISTEN\n"));
    assert!(answer.out.contains("url = \"hidden\"  # file\n"), "{}", answer.out);
    assert!(answer.err.ends_with("fencepost.toml: the check passes\n"), "{}", answer.err);
    assert!(!answer.out.contains("hunter2") && !answer.err.contains("hunter2"));
}

#[test]
fn a_configuration_that_must_not_start_is_printed_with_exit_code_1_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), COMPLETE);
    let variables = [("FENCEPOST_TIMEOUTS_LOCK_MS", "4500")];
    let reason = "timeouts.lock_ms (4500) must be less than timeouts.statement_ms (4500)";
    let answer = print(&path, &[], &variables);
    assert_eq!(answer.code, Some(1));
    assert!(answer.out.contains("lock_ms = 4500  # env FENCEPOST_TIMEOUTS_LOCK_MS\n"));
    assert!(answer.err.ends_with(&format!("fencepost.toml: {reason}\n")), "{}", answer.err);
    let answer = print(&path, &["--json"], &variables);
    assert_eq!(answer.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(json["problem"], reason);
}

#[test]
fn a_configuration_that_cannot_be_read_is_not_printed_and_ends_with_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let unknown = file(dir.path(), "[http]\nlistn = '127.0.0.1:1'\n");
    let missing = dir.path().join("missing.toml");
    let typo = [("FENCEPOST_HTTP_LISTN", "127.0.0.1:1")];
    for (config, variables, reason) in [
        (&unknown, &[][..], "line 2: unknown field `listn`"),
        (&missing, &[], "missing.toml: cannot be read"),
        (&file(other.path(), COMPLETE), &typo, "FENCEPOST_HTTP_LISTN: no key has"),
    ] {
        let answer = print(config, &[], variables);
        assert_eq!((answer.code, answer.out.as_str()), (Some(2), ""), "{reason}");
        assert!(answer.err.contains(reason), "{}", answer.err);
    }
}
