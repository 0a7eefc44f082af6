//! What the cases of requests and records share: a gateway with a lease held, an answer looked at
//! whole, records read back complete.

use crate::client::{Client, Holder, Raw};
use crate::gateway::Gateway;
use crate::world::{OPS, Options, World, stack, wait_for};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message, Timestamp};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

pub const SOON: Duration = Duration::from_secs(30);

/// One gateway and one lease, held for longer than the test. Dropped in this order.
pub struct Bench {
    pub client: Client,
    pub holder: Holder,
    pub gateway: Gateway,
    pub world: World,
}

impl Bench {
    pub fn new(test: &str) -> Self {
        Self::with(test, Options::default())
    }

    pub fn with(test: &str, options: Options) -> Self {
        let world = World::with(test, options);
        let gateway = world.gateway("g1");
        let client = gateway.client();
        let holder = client.hold("shard.7", "worker", SOON);
        Self { client, holder, gateway, world }
    }

    pub fn topic(&self, suffix: &str, partitions: i32, config: &[(&str, &str)]) -> String {
        let topic = format!("{}.{suffix}", self.world.topic);
        self.world.create_topic(&topic, partitions, config);
        // Created is not yet known to the broker that answers for it.
        wait_for("the topic is there", SOON, || partitions_of(&topic).filter(|n| *n == partitions));
        topic
    }

    /// A PRODUCE of exactly these bytes.
    pub fn send(&self, id: &str, body: &[u8]) -> Raw {
        self.send_as("application/json", id, body)
    }

    pub fn send_as(&self, kind: &str, id: &str, body: &[u8]) -> Raw {
        let bearer = format!("Bearer {}", self.holder.credential);
        let headers =
            [("Authorization", bearer.as_str()), ("Idempotency-Key", id), ("Content-Type", kind)];
        self.client.send("POST", &self.path("records"), &headers, body)
    }

    /// A PRODUCE of these records.
    pub fn post(&self, id: &str, records: &Value) -> Raw {
        self.send(id, json!({ "records": records }).to_string().as_bytes())
    }

    /// A PRODUCE that must be taken, and as a new one.
    #[track_caller]
    pub fn post_new(&self, id: &str, records: &Value) -> Value {
        let body = self.post(id, records).answer().expect(200);
        assert_eq!((&body["replayed"], &body["operation_id"]), (&json!(false), &json!(id)));
        body
    }

    /// After each case one plain good PRODUCE is 200.
    #[track_caller]
    pub fn assert_good(&self, id: &str) {
        self.post_new(id, &json!([{ "topic": self.world.topic, "key": "k", "value": "good" }]));
    }

    pub fn path(&self, call: &str) -> String {
        format!("/v1/leases/{}/{call}", self.holder.lease)
    }

    /// The fence row, every column. A re-open writes another nonce, a batch another seq.
    pub fn row(&self) -> String {
        let row = self
            .world
            .sql(&format!("SELECT fences::text FROM fences WHERE lease = '{}'", self.holder.lease));
        assert!(!row.is_empty());
        row
    }

    pub fn batch_seq(&self) -> u64 {
        let path = format!("/v1/leases/{}", self.holder.lease);
        self.client.get(&path, Some(OPS)).expect(200)["batch_seq"].as_u64().unwrap()
    }

    pub fn ledger(&self) -> String {
        format!("ledger.{}", self.world.name)
    }

    /// The process that was started still answers.
    pub fn assert_alive(&self) {
        assert_eq!(self.gateway.ready().status, 200);
    }
}

/// Words that no answer may hold: parsers, stores, hosts, source.
const LEAKS: &[&str] = &[
    "serde",
    "sqlx",
    "rdkafka",
    "panicked",
    "backtrace",
    "SELECT",
    "127.0.0.1",
    "postgres://",
    ".rs",
    "::",
    "<html",
];

/// A refusal, looked at whole.
#[track_caller]
pub fn assert_problem(raw: &Raw, status: u16, code: &str) -> Value {
    let text = String::from_utf8_lossy(&raw.body);
    assert_eq!(raw.status, status, "{text}");
    assert_eq!(raw.header("content-type"), Some("application/problem+json"));
    assert_eq!(raw.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(raw.header("set-cookie"), None);
    let body = raw.json();
    assert_eq!(body["code"], code, "{text}");
    assert_eq!(body["status"], status, "{text}");
    assert_eq!(body["type"], format!("/problems/{code}"), "{text}");
    for member in ["title", "detail"] {
        assert!(body[member].as_str().is_some_and(|text| !text.is_empty()), "{text}");
    }
    let one_of = |member: &str, of: &[&str]| of.contains(&body[member].as_str().unwrap());
    assert!(one_of("retry", &["never", "same_key", "later", "reacquire"]), "{text}");
    assert!(one_of("side_effect", &["none", "committed", "maybe"]), "{text}");
    for leak in LEAKS {
        assert!(!text.contains(leak), "{leak}: {text}");
    }
    body
}

/// A refusal of one member of the body, which could never have been an operation.
#[track_caller]
pub fn assert_member(raw: &Raw, pointer: &str) -> Value {
    let body = assert_problem(raw, 422, "invalid_member");
    assert_eq!(body["pointer"], pointer, "{body}");
    assert_eq!((&body["side_effect"], &body["retry"]), (&json!("none"), &json!("never")));
    body
}

/// A request of exactly these bytes on a connection of its own, and all that came back.
pub fn raw_request(port: u16, bytes: &[u8]) -> Raw {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream.write_all(bytes).unwrap();
    read_answer(&mut stream)
}

/// Reads one answer off a connection that may stay open.
pub fn read_answer(stream: &mut TcpStream) -> Raw {
    let mut bytes = Vec::new();
    let end = b"\r\n\r\n";
    let head = loop {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "cut off: {bytes:?}");
        bytes.push(byte[0]);
        if bytes.ends_with(end) {
            break String::from_utf8(bytes).unwrap();
        }
    };
    let mut lines = head.trim_end().split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("{head:?}")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut raw = Raw { status, headers, body: Vec::new() };
    raw.body.resize(raw.header("content-length").unwrap().parse().unwrap(), 0);
    stream.read_exact(&mut raw.body).unwrap();
    raw
}

/// One record, complete.
#[derive(Debug, Clone, PartialEq)]
pub struct Full {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// The caller's, in their order; the gateway's own stand behind them.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub operation: String,
    pub timestamp: Timestamp,
}

/// Everything that a read_committed consumer gets of a topic, by partition and offset.
pub fn records_of(topic: &str) -> Vec<Full> {
    let consumer = consumer("read_committed");
    let uncommitted = ends(topic);
    wait_for("every transaction of the topic is decided", SOON, || {
        (ends_for(&consumer, topic) == uncommitted).then_some(())
    });
    let mut list = TopicPartitionList::new();
    for partition in 0..uncommitted.len() {
        let partition = i32::try_from(partition).unwrap();
        list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut found, mut ended) = (Vec::new(), BTreeSet::new());
    let until = Instant::now() + SOON;
    while ended.len() < uncommitted.len() {
        assert!(Instant::now() < until, "{topic} does not end");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => found.push(Full::of(&message)),
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(p))) => drop(ended.insert(p)),
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
    found.sort_by_key(|record| (record.partition, record.offset));
    found
}

/// Where every partition ends, decided or not. It moves with every record and with
/// every transaction that touched the partition, aborted or not.
pub fn ends(topic: &str) -> Vec<i64> {
    ends_for(&consumer("read_uncommitted"), topic)
}

fn ends_for(consumer: &BaseConsumer, topic: &str) -> Vec<i64> {
    let count = partitions_by(consumer, topic).unwrap_or_else(|| panic!("{topic} is not there"));
    let end = |partition| {
        // A broker may have been told to lead and not have begun to.
        wait_for("a partition tells its end", SOON, || {
            consumer.fetch_watermarks(topic, partition, SOON).ok().map(|(_, end)| end)
        })
    };
    (0..count).map(end).collect()
}

/// How many partitions a topic has, if it is there and each has a leader.
pub fn partitions_of(topic: &str) -> Option<i32> {
    partitions_by(&consumer("read_committed"), topic)
}

fn partitions_by(consumer: &BaseConsumer, topic: &str) -> Option<i32> {
    let metadata = consumer.fetch_metadata(Some(topic), SOON).unwrap();
    let partitions = metadata.topics()[0].partitions();
    let led = !partitions.is_empty() && partitions.iter().all(|p| p.leader() >= 0);
    led.then(|| i32::try_from(partitions.len()).unwrap())
}

fn consumer(isolation: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", stack("KAFKA_BOOTSTRAP"))
        .set("isolation.level", isolation)
        .set("group.id", "field-test")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap()
}

/// All topics of the cluster.
pub fn topics() -> Vec<String> {
    let metadata = consumer("read_committed").fetch_metadata(None, SOON).unwrap();
    metadata.topics().iter().map(|topic| topic.name().to_owned()).collect()
}

impl Full {
    fn of(message: &rdkafka::message::BorrowedMessage<'_>) -> Self {
        let mut headers: Vec<(String, Option<Vec<u8>>)> = Vec::new();
        let mut operation = String::new();
        for header in message.headers().expect("our headers").iter() {
            let own = header.key.starts_with("fencepost-");
            if header.key == "fencepost-operation" {
                operation = String::from_utf8(header.value.unwrap().to_vec()).unwrap();
            }
            if !own {
                headers.push((header.key.to_owned(), header.value.map(<[u8]>::to_vec)));
            }
        }
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
            operation,
            timestamp: message.timestamp(),
        }
    }

    pub fn text(&self) -> Option<String> {
        self.value.as_ref().map(|value| String::from_utf8(value.clone()).unwrap())
    }
}
