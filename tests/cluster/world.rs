//! A world of its own for each test: database, topics, configuration, gateways as child processes,
//! on the broker and the Postgres that `deploy/local/up --no-gateway` started.

#[path = "seen.rs"]
mod seen;

pub use seen::Seen;

use crate::gateway::{Env, Gateway, Launch};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The one wait of the suite: until something holds, or the test fails with what it waited for.
pub fn wait_for<T>(what: &str, within: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + within;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < until, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The stack's addresses: from the environment, else from `target/local/env`.
pub fn stack(key: &str) -> String {
    if let Ok(value) = std::env::var(key) {
        return value;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/local/env");
    let text = fs::read_to_string(&file)
        .unwrap_or_else(|e| panic!("run deploy/local/up --no-gateway first: {file:?}: {e}"));
    text.lines()
        .find_map(|line| line.strip_prefix(&format!("{key}=")))
        .unwrap_or_else(|| panic!("{key} is not in {file:?}"))
        .trim_matches('\'')
        .to_owned()
}

/// A port below the ephemeral range that nobody listens on.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 5_000).unwrap();
    for _ in 0..10_000 {
        let port = 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}

/// How a world differs from the usual one.
#[derive(Default)]
pub struct Options {
    /// Kafka as the gateways see it, where it is not the stack's listener.
    pub bootstrap: Option<String>,
    /// Host and port of Postgres as the gateways see it.
    pub postgres: Option<(String, u16)>,
    /// A broker of the test's own, with which the world makes and reads its topics.
    pub broker: Option<String>,
    /// Lines for the configuration's [kafka.client] table and others, as they are.
    pub extra: String,
    /// Texts of the configuration to put others in place of.
    pub swaps: Vec<(&'static str, &'static str)>,
}

pub struct World {
    pub name: String,
    pub topic: String,
    options: Options,
    dir: tempfile::TempDir,
    /// Topics that were made, to be deleted.
    made: std::sync::Mutex<Vec<String>>,
    gateway_url: String,
    pub owner_url: String,
}

pub const WORKER: &str = "cluster-test-worker-token";
pub const OPS: &str = "cluster-test-ops-token";

impl World {
    pub fn new(test: &str) -> Self {
        Self::with(test, Options::default())
    }

    pub fn with(test: &str, options: Options) -> Self {
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("{}-{}", &test[..test.len().min(20)], &unique[..8]);
        let database = name.replace(['-', '.'], "_");
        let owner = stack("DATABASE_OWNER_URL");
        let psql = |sql: &str| {
            let out = Command::new("psql").args([&owner, "-qXc", sql]).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        psql(&format!("CREATE DATABASE {database}"));
        let swap = |url: &str| format!("{}/{database}", url.rsplit_once('/').unwrap().0);
        let mut gateway_url = swap(&stack("DATABASE_URL"));
        if let Some((host, port)) = &options.postgres {
            let (user, _) = gateway_url.rsplit_once('@').unwrap();
            gateway_url = format!("{user}@{host}:{port}/{database}");
        }
        let world = Self {
            topic: format!("data.{name}"),
            owner_url: swap(&owner),
            name,
            options,
            dir: tempfile::tempdir().unwrap(),
            made: std::sync::Mutex::default(),
            gateway_url,
        };
        world.create_topic(&world.topic, 3, &[]);
        world.create_topic(
            &world.ledger(),
            4,
            &[
                ("cleanup.policy", "compact"),
                ("min.compaction.lag.ms", "60000"),
                ("max.message.bytes", "1048576"),
            ],
        );
        let key = world.key_file();
        world.run(&["keys", "generate", "--out", key.to_str().unwrap()]);
        let config = world.config("0", 0, 0);
        world.run(&["migrate", "--config", config.to_str().unwrap()]);
        world
    }

    /// Runs the gateway's binary to its end.
    pub fn run(&self, args: &[&str]) -> String {
        let out = Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .args(args)
            .env("DATABASE_OWNER_URL", &self.owner_url)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {text}\n{errors}");
        text
    }

    /// Where the tests themselves reach Kafka.
    pub fn broker(&self) -> String {
        self.options.broker.clone().unwrap_or_else(|| stack("KAFKA_BOOTSTRAP"))
    }

    pub fn ledger(&self) -> String {
        format!("ledger.{}", self.name)
    }

    /// The key that the gateways sign credentials with.
    pub fn key_file(&self) -> PathBuf {
        self.dir.path().join("credential.pem")
    }

    pub fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new().set("bootstrap.servers", self.broker()).create().unwrap()
    }

    pub fn create_topic(&self, topic: &str, partitions: i32, config: &[(&str, &str)]) {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        for (key, value) in config {
            new = new.set(key, value);
        }
        let done = block(self.admin().create_topics([&new], &AdminOptions::new()));
        done.unwrap().pop().unwrap().unwrap();
        self.made.lock().unwrap().push(topic.to_owned());
    }

    pub fn delete_topic(&self, topic: &str) {
        let done = block(self.admin().delete_topics(&[topic], &AdminOptions::new()));
        done.unwrap().pop().unwrap().unwrap();
    }

    fn config(&self, name: &str, port: u16, admin: u16) -> PathBuf {
        let bootstrap = self.options.bootstrap.clone().unwrap_or_else(|| self.broker());
        let hash = |token: &str| {
            use sha2::Digest;
            sha2::Sha256::digest(token).iter().fold(String::new(), |mut s, b| {
                write!(s, "{b:02x}").unwrap();
                s
            })
        };
        let mut text = format!(
            r#"installation = "{installation}"
[http]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin}"
advertised_url = "http://127.0.0.1:{port}"
[postgres]
url = "{url}"
[kafka]
bootstrap = "{bootstrap}"
topics = ["data.*"]
ledger_topic = "ledger.{world}"
[credentials]
signing_key_file = "{key}"
[[workers]]
name = "worker"
token_sha256 = "{worker}"
leases = ["*"]
owners = ["*"]
[ops]
token_sha256 = "{ops}"
[timeouts]
delivery_ms = 1000
batch_ms = 1200
open_ms = 1500
idle_in_transaction_ms = 1700
lock_ms = 1900
statement_ms = 2100
ttl_min_ms = 2500
transaction_ms = 3000
request_ms = 10000
{extra}
"#,
            installation = self.name,
            url = self.gateway_url,
            world = self.name,
            key = self.key_file().display(),
            worker = hash(WORKER),
            ops = hash(OPS),
            extra = self.options.extra,
        );
        for (old, new) in &self.options.swaps {
            assert!(text.contains(old), "{old} is not in the configuration");
            text = text.replacen(old, new, 1);
        }
        let path = self.dir.path().join(format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        path
    }

    pub fn gateway(&self, name: &str) -> Gateway {
        self.gateway_as(name, Launch::default())
    }

    /// A gateway that another program starts.
    pub fn gateway_in(&self, name: &str, program: &'static [&'static str]) -> Gateway {
        self.gateway_as(name, Launch { program, ..Launch::default() })
    }

    /// A gateway with variables of its own in its environment.
    pub fn gateway_with(&self, name: &str, env: Env) -> Gateway {
        self.gateway_as(name, Launch { env, ..Launch::default() })
    }

    fn gateway_as(&self, name: &str, launch: Launch) -> Gateway {
        let (port, admin) = (free_port(), free_port());
        let config = self.config(name, port, admin);
        let log = self.dir.path().join(format!("{name}.log"));
        let gateway = Gateway::start(&config, &log, port, admin, launch);
        gateway.wait_ready();
        gateway
    }

    /// Everything that a read_committed consumer gets of the data topic, to its end.
    pub fn read(&self) -> Vec<Seen> {
        self.read_topic(&self.topic)
    }

    pub fn read_topic(&self, topic: &str) -> Vec<Seen> {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.broker())
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("group.id", "cluster-test")
            .create()
            .unwrap();
        let meta = consumer.fetch_metadata(Some(topic), Duration::from_secs(10)).unwrap();
        assert!(!meta.topics()[0].partitions().is_empty(), "{topic} is not there");
        let mut list = TopicPartitionList::new();
        for partition in meta.topics()[0].partitions() {
            list.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
            // An open transaction would end the read early: wait until nothing is undecided.
            self.wait_decided(&consumer, topic, partition.id());
        }
        consumer.assign(&list).unwrap();
        let mut seen = Vec::new();
        let mut ended = BTreeSet::new();
        let until = Instant::now() + Duration::from_secs(20);
        while ended.len() < list.count() {
            assert!(Instant::now() < until, "the topic does not end");
            match consumer.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => seen.push(Seen::of(&message)),
                Some(Err(rdkafka::error::KafkaError::PartitionEOF(p))) => drop(ended.insert(p)),
                Some(Err(error)) => panic!("{error}"),
                None => {}
            }
        }
        seen
    }

    /// Waits until the last stable offset is the end: no transaction of this partition is open.
    fn wait_decided(&self, consumer: &BaseConsumer, topic: &str, partition: i32) {
        let plain: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.broker())
            .set("isolation.level", "read_uncommitted")
            .create()
            .unwrap();
        let end = |c: &BaseConsumer| {
            let mut list = TopicPartitionList::new();
            list.add_partition_offset(topic, partition, Offset::End).unwrap();
            let found = c.offsets_for_times(list, Duration::from_secs(10)).unwrap();
            found.elements()[0].offset()
        };
        wait_for("every transaction of the topic is decided", Duration::from_secs(20), || {
            (end(consumer) == end(&plain)).then_some(())
        });
    }

    /// The audit of the data topic against Postgres: panics with its text if it finds anything.
    pub fn audit(&self) {
        self.audit_topic(&self.topic);
    }

    pub fn audit_topic(&self, topic: &str) {
        let config = self.config("audit", 1, 2);
        let report = self.run(&["audit", "--config", config.to_str().unwrap(), "--topic", topic]);
        assert!(report.contains("of which 0 are not in Postgres"), "{report}");
    }

    pub fn sql(&self, sql: &str) -> String {
        let out = Command::new("psql").args([&self.owner_url, "-qXAtc", sql]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Kept for a look.
            return;
        }
        let database = self.owner_url.rsplit_once('/').unwrap().1.to_owned();
        let sql = format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)");
        let owner = stack("DATABASE_OWNER_URL");
        drop(Command::new("psql").args([owner.as_str(), "-qXc", &sql]).output());
        let made = self.made.lock().unwrap();
        let topics: Vec<&str> = made.iter().map(String::as_str).collect();
        drop(block(self.admin().delete_topics(&topics, &AdminOptions::new())));
    }
}

/// Runs one future of the admin client.
fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Offsets that an answer names, as (partition, offset).
pub fn offsets(body: &Value) -> Vec<(i64, i64)> {
    body["offsets"]
        .as_array()
        .unwrap_or_else(|| panic!("no offsets in {body}"))
        .iter()
        .map(|o| (o["partition"].as_i64().unwrap(), o["offset"].as_i64().unwrap()))
        .collect()
}
