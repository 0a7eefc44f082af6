//! The rules of the source that no compiler checks: layers, sizes, where what may stand.
#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a file that cannot be read, or an index that overflows, is a failure"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file, at most.
const LINES_MAX: usize = 400;
/// Columns of a line, at most.
const COLUMNS_MAX: usize = 100;

/// What a layer may name of this crate besides itself. A path allows what is below it, too.
const LAYERS: &[(&str, &[&str])] = &[
    ("main", &["cli"]),
    ("cli", &["serve", "config", "telemetry"]),
    (
        "serve",
        &[
            "http",
            "engine",
            "postgres",
            "kafka",
            "config",
            "telemetry",
            "failpoint",
            "protocol",
            "audit",
        ],
    ),
    ("audit", &[]),
    ("http", &["engine", "protocol", "config", "telemetry", "failpoint", "counts"]),
    ("postgres", &["engine::ports", "protocol", "telemetry", "failpoint"]),
    ("kafka", &["engine::ports", "protocol", "telemetry", "failpoint"]),
    ("engine", &["protocol", "telemetry", "failpoint", "counts"]),
    ("config", &["protocol"]),
    ("telemetry", &["config"]),
    ("failpoint", &[]),
    ("counts", &[]),
    ("protocol", &[]),
];

/// Crates that the protocol may name; the last is for its tests.
const PROTOCOL_CRATES: &[&str] =
    &["std", "crate", "super", "self", "sha2", "thiserror", "proptest"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn walk(at: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(at) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default();
        let skip = name == "target" || name == ".git" || path.is_symlink();
        match path.is_dir() {
            true if !skip => walk(&path, found),
            false if !skip => found.push(path),
            _ => {}
        }
    }
}

/// Path from the root, and text, of every text file below some directory.
fn files(below: &str) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    walk(&root().join(below), &mut paths);
    paths.sort();
    let relative = |p: &Path| p.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    paths.iter().filter_map(|p| Some((relative(p), fs::read_to_string(p).ok()?))).collect()
}

fn rust_files() -> Vec<(String, String)> {
    let mut all = files("src");
    all.extend(files("tests"));
    all.retain(|(path, _)| path.ends_with(".rs"));
    assert!(all.len() > 30, "the walk finds nothing");
    all
}

fn source_files() -> Vec<(String, String)> {
    rust_files().into_iter().filter(|(path, _)| path.starts_with("src/")).collect()
}

/// The text without its comment lines.
fn code(text: &str) -> String {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

/// Which layer a file of `src` belongs to.
fn layer(path: &str) -> Option<&str> {
    let below = path.strip_prefix("src/")?;
    let first = below.split('/').next()?.trim_end_matches(".rs");
    Some(if first == "bin" { "main" } else { first })
}

/// Paths of this crate that a text names, as far as the layers care: `engine::ports`.
fn references(text: &str) -> Vec<String> {
    let code = code(text);
    let mut found = Vec::new();
    for prefix in ["crate::", "fencepost::"] {
        for (at, _) in code.match_indices(prefix) {
            let before = code.get(..at).unwrap().chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let rest = code.get(at + prefix.len()..).unwrap();
            found.extend(expand(rest));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The first segments of a path, or of each path of a group in braces.
fn expand(path: &str) -> Vec<String> {
    if let Some(group) = path.strip_prefix('{') {
        return split_group(group).into_iter().flat_map(|one| expand(one.trim())).collect();
    }
    let word = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        text.split_at(end).0.to_owned()
    };
    let first = word(path);
    if first.is_empty() {
        return Vec::new();
    }
    match path.strip_prefix(&format!("{first}::")) {
        Some(rest) if rest.starts_with('{') => {
            expand(rest).into_iter().map(|second| format!("{first}::{second}")).collect()
        }
        Some(rest) => vec![format!("{first}::{}", word(rest))],
        None => vec![first],
    }
}

/// Parts of a group at its own depth, up to its closing brace.
fn split_group(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0u32, 0usize, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                parts.extend(group.get(start..at));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    parts
}

fn allows(layer: &str, reference: &str) -> bool {
    let top = reference.split("::").next().unwrap_or_default();
    let own = LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, allowed)| *allowed);
    // What is no layer is an item of the crate's root or of a dependency of the same name.
    let is_layer = LAYERS.iter().any(|(name, _)| *name == top);
    let below =
        |allowed: &str| reference == allowed || reference.starts_with(&format!("{allowed}::"));
    top == layer || !is_layer || own.is_some_and(|allowed| allowed.iter().any(|a| below(a)))
}

fn assert_none(broken: &[String]) {
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// Every line of the code of some files that holds one of the words.
fn lines_with(words: &[&str], may: impl Fn(&str) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in source_files() {
        if may(&path) {
            continue;
        }
        for line in code(&text).lines() {
            if words.iter().any(|word| line.contains(word)) {
                broken.push(format!("{path}: {}", line.trim()));
            }
        }
    }
    broken
}

#[test]
fn the_reader_of_imports_sees_through_groups_and_past_comments() {
    let text = "use crate::engine::{ports::{A, B}, api};\n// crate::kafka::x\n\
                fn f() -> crate::protocol::lease::X { crate::{http::y, serve}; mycrate::z }\n";
    let seen = references(text);
    let expected = [
        "engine::api",
        "engine::ports::A",
        "engine::ports::B",
        "http::y",
        "protocol::lease",
        "serve",
    ];
    assert_eq!(seen, expected);
    assert!(allows("kafka", "engine::ports") && !allows("kafka", "engine::api"));
    assert!(!allows("kafka", "engine") && !allows("protocol", "engine::ports"));
    assert!(allows("http", "engine::api") && !allows("engine", "http"));
}

#[test]
fn every_layer_imports_only_what_it_may() {
    let mut broken = Vec::new();
    for (path, text) in source_files() {
        let layer = layer(&path).unwrap();
        if layer == "lib" {
            continue;
        }
        if !LAYERS.iter().any(|(name, _)| *name == layer) {
            broken.push(format!("{path}: {layer} stands in no layer of tests/tidy.rs"));
        }
        for reference in references(&text) {
            if !allows(layer, &reference) {
                broken.push(format!("{path}: {layer} may not name {reference}"));
            }
        }
        // A file right below `src` could leave its layer by `super`.
        for (other, _) in LAYERS.iter().filter(|(other, _)| *other != layer) {
            if path.matches('/').count() == 1 && code(&text).contains(&format!("super::{other}::"))
            {
                broken.push(format!("{path}: {layer} may not name super::{other}"));
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn the_protocol_is_pure() {
    let mut broken = lines_with(
        &[
            "SystemTime",
            "Instant",
            ".await;",
            ".await?",
            "async fn",
            "async move",
            "HashMap",
            "HashSet",
            "rand::",
            "uuid::",
            "tokio",
            "std::env",
            "std::fs",
            "std::net",
            "std::thread",
            "Mutex",
        ],
        |path| layer(path) != Some("protocol"),
    );
    for (path, text) in source_files() {
        if layer(&path) != Some("protocol") {
            continue;
        }
        for line in code(&text).lines() {
            let line = line.trim_start().trim_start_matches("pub ");
            let Some(import) = line.strip_prefix("use ") else { continue };
            let first = import.split([':', ';', ' ']).next().unwrap_or_default();
            let local = text.contains(&format!("mod {first};"));
            if !PROTOCOL_CRATES.contains(&first) && !local {
                broken.push(format!("{path}: {line}"));
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn no_file_and_no_line_is_too_long() {
    let mut broken = Vec::new();
    for (path, text) in rust_files() {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            broken.push(format!("{path}: {lines} lines"));
        }
        for (number, line) in (1..).zip(text.lines()) {
            if line.chars().count() > COLUMNS_MAX {
                broken.push(format!("{path}:{number}: {} columns", line.chars().count()));
            }
        }
    }
    assert_none(&broken);
}

#[test]
fn every_file_says_first_what_it_owns() {
    let silent = |(path, text): (String, String)| (!text.starts_with("//! ")).then_some(path);
    assert_none(&rust_files().into_iter().filter_map(silent).collect::<Vec<_>>());
}

#[test]
fn no_module_hides_in_a_mod_rs_and_no_test_is_called_a_test() {
    let mut broken = Vec::new();
    let prefix = concat!("fn te", "st_");
    for (path, text) in rust_files() {
        if path.ends_with("/mod.rs") {
            broken.push(path.clone());
        }
        if code(&text).contains(prefix) {
            broken.push(format!("{path}: a test's name is a sentence of its promise"));
        }
    }
    assert_none(&broken);
}

#[test]
fn sql_stands_only_under_postgres() {
    let words = ["sqlx::query", "SELECT ", "INSERT INTO", "DELETE FROM", "FOR UPDATE"];
    assert_none(&lines_with(&words, |path| layer(path) == Some("postgres")));
}

#[test]
fn a_kafka_client_is_configured_in_one_place() {
    assert_none(&lines_with(&["ClientConfig::new"], |path| path == "src/kafka.rs"));
}

#[test]
fn a_status_code_is_chosen_in_one_place() {
    assert_none(&lines_with(&["StatusCode"], |path| path == "src/http/problem.rs"));
}

#[test]
fn every_task_has_a_name() {
    let words = ["tokio::spawn", "task::spawn(", "task::spawn;"];
    assert_none(&lines_with(&words, |path| path == "src/telemetry.rs"));
}

/// Nothing of the machine that it was written on, and no package source but the public one.
#[test]
fn the_repository_names_no_machine_and_no_private_registry() {
    let words = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("artif", "actory"),
        concat!("jf", "rog"),
        concat!(".inter", "nal/"),
        concat!("codeartif", "act"),
    ];
    let mut broken = Vec::new();
    for (path, text) in files("") {
        for (number, line) in (1..).zip(text.lines()) {
            if words.iter().any(|word| line.contains(word)) {
                broken.push(format!("{path}:{number}: {}", line.trim()));
            }
            let foreign = line.starts_with("source = \"") && !line.contains("crates.io-index");
            if path == "Cargo.lock" && foreign {
                broken.push(format!("{path}:{number}: {line}"));
            }
        }
    }
    assert_none(&broken);
}

/// The table above has no cycle: a layer never reaches itself through what it may name.
#[test]
fn the_layers_have_no_cycle() {
    let table: BTreeMap<&str, &[&str]> = LAYERS.iter().copied().collect();
    for (start, _) in LAYERS {
        let mut reach: Vec<&str> = vec![start];
        let mut at = 0;
        while let Some(layer) = reach.get(at).copied() {
            for next in table.get(layer).copied().unwrap_or_default() {
                let top = next.split("::").next().unwrap_or_default();
                assert_ne!(top, *start, "{start} reaches itself through {layer}");
                if !reach.contains(&top) {
                    reach.push(top);
                }
            }
            at += 1;
        }
    }
}
