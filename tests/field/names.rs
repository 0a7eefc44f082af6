//! F08: names and the transactional ids that are made of them.

use crate::client::{Client, Holder};
use crate::world::{WORKER, World, stack};
use fencepost::protocol::transactional_id::Installation;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// A name as one segment of a path: everything but plain letters and digits is escaped.
fn escaped(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    name.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// The name that a cleaned `a/b` with a short hash would get.
fn cleaned_with_hash() -> String {
    let hash = Sha256::digest("a/b");
    let short: String = hash.iter().take(4).map(|b| format!("{b:02x}")).collect();
    format!("a-b-{short}")
}

/// Names that are easily taken for one another, and names as long as they may be.
fn accepted() -> Vec<String> {
    let mut names: Vec<String> = [
        "a_b", "a-b", "a.b", "A.b", "a.B", "A-b", "a", "A", "a.", ".a", "a..b", "a.b.c", "a.b-c",
        "a-b.c", "a_b.c", "ab.c", "a-", "-", "_", "...", "0",
    ]
    .map(str::to_owned)
    .into();
    names.push(cleaned_with_hash());
    // All but their last byte is the same: a cut would make them one.
    names.extend(["x", "y"].map(|end| format!("{}{end}", "n".repeat(199))));
    names
}

/// Names that are refused, as they stand in the path.
fn refused() -> Vec<String> {
    let mut paths: Vec<String> =
        ["a/b", "a%2Fb", "A/b", "a.b:c", "a:b.c", "a:b", "", " ", ".", "..", "a b", "a\nb", "a\0b"]
            .iter()
            .map(|name| escaped(name))
            .collect();
    paths.extend(["%2E", "%2e%2e", "%20", "a%00", "%ff"].map(str::to_owned));
    for length in [201, 249, 250, 1_024, 32_768] {
        paths.push("n".repeat(length));
    }
    paths.push(escaped(&"\u{1f980}".repeat(200)));
    paths
}

/// All transactional ids of an installation, asked of the broker with Kafka's own tool.
fn listed(installation: &str) -> BTreeSet<String> {
    let script = ". deploy/local/lib.sh && . deploy/local/kafka.sh && \
                  java_tool 128m org.apache.kafka.tools.TransactionsCommand \"$@\"";
    let pattern = format!("fencepost:{installation}:.*");
    let bootstrap = stack("KAFKA_BOOTSTRAP");
    let out = Command::new("bash")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .args(["-c", script, "kafka-transactions", "--bootstrap-server", &bootstrap, "list"])
        .args(["--transactional-id-pattern", &pattern])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    let ids = text.lines().filter(|line| line.starts_with("fencepost:"));
    ids.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn acquire(client: &Client, name: &str, more: Value) -> (Holder, String) {
    let mut body = json!({ "ttl_ms": 600_000 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let body = client.acquire(name, "w", body).expect(200);
    let text = |member: &str| body[member].as_str().unwrap().to_owned();
    let token = text("token").parse().unwrap();
    let holder = Holder { lease: name.to_owned(), token, credential: text("credential") };
    assert_eq!(text("lease"), name);
    (holder, text("transactional_id"))
}

/// Reads the name back out of an id, as anybody could who has only the id.
fn decoded(id: &str) -> (&str, &str) {
    let parts: Vec<&str> = id.split(':').collect();
    let ["fencepost", installation, name] = parts[..] else { panic!("{id}") };
    (installation, name)
}

/// F08.
#[test]
fn every_lease_has_a_transactional_id_of_its_own_that_outlives_a_restart() {
    let world = World::new("names");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    let mut ids = BTreeMap::new();
    let mut holders = Vec::new();
    for name in accepted() {
        let (holder, id) = acquire(&client, &name, json!({}));
        assert_eq!(id, format!("fencepost:{}:{name}", world.name));
        assert_eq!(decoded(&id), (world.name.as_str(), name.as_str()));
        assert_eq!(ids.insert(id, name), None);
        holders.push(holder);
    }
    // Nobody fences anybody: each goes on with the producer that its acquire made.
    let opens = "SELECT string_agg(lease || nonce || home, ' ' ORDER BY lease) FROM fences";
    let before = world.sql(opens);
    for round in 0..2 {
        for holder in &holders {
            client.records(holder, &format!("op-{round}"), &records).expect(200);
        }
    }
    assert_eq!(world.sql(opens), before, "a producer was opened again");
    gateway.signal(nix::sys::signal::Signal::SIGKILL);
    gateway.wait_dead();
    gateway.restart();
    for holder in &holders {
        let (holder, id) = acquire(&client, &holder.lease, json!({ "replace": true }));
        assert_eq!(ids.get(&id), Some(&holder.lease), "after a restart");
        client.insist(&holder, "op-2", &records, SOON).expect(200);
    }
    assert_eq!(listed(&world.name), ids.keys().cloned().collect(), "as the broker has them");
    assert_eq!(world.read().len(), holders.len() * 3);
    world.audit();
}

/// F08.
#[test]
fn a_tenants_prefix_of_transactional_ids_matches_no_other_tenant() {
    // Neither part can hold what stands between the parts.
    for bad in ["a:b", "a.b", "a_b", "", &"a".repeat(41)] {
        assert!(Installation::parse(bad).is_err(), "{bad:?}");
    }
    let world = World::new("tenants");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let names = ["a.b", "a.b.c", "A.b", "a-b.c", "a_b.c", "ab.c", "a", "a..b", ".a", "a-b"];
    let ids: Vec<(&str, String)> =
        names.iter().map(|name| (*name, acquire(&client, name, json!({})).1)).collect();
    for (one, id) in &ids {
        let tenant = one.split('.').next().unwrap();
        let prefix = format!("fencepost:{}:{tenant}.", world.name);
        assert_eq!(id.starts_with(&prefix), one.contains('.'), "{id}");
        for (other, id) in &ids {
            let same = other.split('.').next() == Some(tenant);
            assert!(same || !id.starts_with(&prefix), "{prefix} matches {id}");
        }
    }
}

/// F08.
#[test]
fn a_name_outside_the_alphabet_or_too_long_is_refused_at_acquire_and_never_cut() {
    let world = World::new("bad-names");
    let gateway = world.gateway("g1");
    let client = gateway.client();
    let authorization = format!("Bearer {WORKER}");
    let headers = [("Authorization", authorization.as_str()), ("Content-Type", "application/json")];
    let acquire = |path: &str| {
        let path = format!("/v1/leases/{path}/acquire");
        client.send("POST", &path, &headers, br#"{"owner":"w","ttl_ms":60000}"#)
    };
    for path in refused() {
        let shown = &path[..path.len().min(60)];
        let raw = acquire(&path);
        assert_eq!(
            raw.header("content-type"),
            Some("application/problem+json"),
            "{shown}: {raw:?}"
        );
        let problem = raw.answer().expect_problem(422, "invalid_member");
        assert_eq!(problem["parameter"], "lease", "{shown}");
        assert!(problem["detail"].as_str().unwrap().contains("1 to 200"), "{shown}: {problem}");
    }
    // More or fewer segments than a lease has are another path, not another lease.
    for path in ["a/b", "A/b", "a/", "/a"] {
        acquire(path).answer().expect_problem(404, "path_not_found");
    }
    assert_eq!(world.sql("SELECT count(*) FROM fences"), "0", "no row was made for any");
    let holder = client.hold("a.b", "w", SOON);
    let records = json!([{ "topic": world.topic, "value": "v" }]);
    client.records(&holder, "op", &records).expect(200);
}
