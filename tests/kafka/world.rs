//! What the Kafka tests share: the broker, topics of one test, reading back, the chaos listeners.

use crate::chaos_proxy::{ChaosProxy, Framing};
use fencepost::engine::ports::{Outgoing, TransactionLog, TransactionalProducer};
use fencepost::kafka::{KafkaLog, KafkaOptions};
use fencepost::protocol::lease::{
    BatchSeq, FencingToken, Incarnation, InstanceId, LeaseName, Nonce, Owner,
};
use fencepost::protocol::ledger::{Batch, LedgerKey, LedgerPartition, LedgerRecord};
use fencepost::protocol::transactional_id::{Installation, TransactionalId};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Long enough for a busy machine; nothing waits for it to pass.
pub const LONG: Duration = Duration::from_secs(20);

/// A variable of the environment, else of the local stack.
pub fn setting(name: &str) -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/target/local/env");
    let from_file = || {
        let text = std::fs::read_to_string(file).ok()?;
        let prefix = format!("{name}=");
        text.lines().find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
    };
    std::env::var(name).ok().or_else(from_file).unwrap_or_else(|| {
        panic!("{name} is set neither in the environment nor by deploy/local/up")
    })
}

pub fn bootstrap() -> String {
    setting("KAFKA_BOOTSTRAP")
}

fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
    u64::try_from(now).unwrap() * 64 + NEXT.fetch_add(1, Ordering::Relaxed) % 64
}

pub fn nonce() -> Nonce {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&unique().to_be_bytes());
    Nonce(bytes)
}

pub fn barrier(nonce: Nonce) -> Vec<u8> {
    LedgerRecord::Barrier { nonce, home: InstanceId([1; 16]) }.encode()
}

pub fn lease_key(lease: &LeaseName) -> Vec<u8> {
    LedgerKey::Lease(lease.clone()).encode()
}

pub fn barrier_key(lease: &LeaseName) -> Vec<u8> {
    LedgerKey::Barrier(lease.clone()).encode()
}

pub fn ledger_batch(seq: u64) -> LedgerRecord {
    LedgerRecord::Batch(Batch {
        token: FencingToken(7),
        owner: Owner::stored("o"),
        incarnation: Incarnation(1),
        seq: BatchSeq(seq),
        operations: Vec::new(),
    })
}

/// The topics and names of one test.
pub struct World {
    admin: AdminClient<DefaultClientContext>,
    pub mark: String,
    pub data: Arc<str>,
    pub ledger: Arc<str>,
}

pub const LEDGER_PARTITIONS: i32 = 4;
pub const P0: LedgerPartition = LedgerPartition(0);

impl World {
    pub async fn new(name: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap());
        let admin: AdminClient<_> = config.create().unwrap();
        let mark = format!("{name}-{}", unique());
        let data = format!("test.{mark}.data");
        let ledger = format!("test.{mark}.ledger");
        let topics = [
            NewTopic::new(&data, 3, TopicReplication::Fixed(1)).set("max.message.bytes", "200000"),
            NewTopic::new(&ledger, LEDGER_PARTITIONS, TopicReplication::Fixed(1)),
        ];
        let options = AdminOptions::new().operation_timeout(Some(LONG)).request_timeout(Some(LONG));
        for made in admin.create_topics(&topics, &options).await.expect("a broker") {
            made.unwrap();
        }
        Self { admin, mark, data: data.into(), ledger: ledger.into() }
    }

    pub async fn done(self) {
        let topics = [&*self.data, &*self.ledger];
        for gone in self.admin.delete_topics(&topics, &AdminOptions::new()).await.unwrap() {
            gone.unwrap();
        }
    }

    /// Deletes a ledger partition's records below an offset.
    pub async fn delete_below(&self, partition: i32, offset: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.ledger, partition, Offset::Offset(offset)).unwrap();
        self.admin.delete_records(&list, &AdminOptions::new()).await.unwrap();
    }

    pub fn options(&self, bootstrap: &str) -> KafkaOptions {
        KafkaOptions::new(bootstrap, &self.ledger, InstanceId([1; 16]))
    }

    pub fn log(&self) -> Arc<KafkaLog> {
        KafkaLog::start(self.options(&bootstrap())).unwrap()
    }

    pub fn log_through(&self, proxy: &ChaosProxy) -> Arc<KafkaLog> {
        KafkaLog::start(self.options(&proxy.address())).unwrap()
    }

    pub fn lease(&self) -> LeaseName {
        LeaseName::parse(&self.mark).unwrap()
    }

    pub fn id(&self) -> TransactionalId {
        TransactionalId::of(&Installation::parse("test").unwrap(), &self.lease())
    }

    pub fn record(&self, partition: i32, value: &str) -> Outgoing {
        Outgoing {
            topic: Arc::clone(&self.data),
            partition: Some(partition),
            key: None,
            value: Some(value.as_bytes().into()),
            headers: Vec::new(),
            timestamp_ms: None,
        }
    }

    /// All that a `read_committed` consumer gets of the data topic, in the order of each partition.
    pub fn read_data(&self) -> Vec<Read> {
        read_committed(&self.data, 3)
    }

    pub fn values(&self) -> Vec<String> {
        let text = |read: Read| String::from_utf8(read.value.unwrap_or_default()).unwrap();
        self.read_data().into_iter().map(text).collect()
    }
}

/// A record as a consumer gets it.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub timestamp: Option<i64>,
}

fn read_committed(topic: &str, partitions: i32) -> Vec<Read> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap())
        .set("group.id", "test-read-back")
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut read, mut ends) = (Vec::new(), 0);
    let until = Instant::now() + LONG;
    while ends < partitions {
        assert!(Instant::now() < until, "no end of {topic}");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(m)) => read.push(Read {
                partition: m.partition(),
                offset: m.offset(),
                key: m.key().map(<[u8]>::to_vec),
                value: m.payload().map(<[u8]>::to_vec),
                headers: m.headers().map_or_else(Vec::new, |headers| {
                    let own = |v: &[u8]| v.to_vec();
                    headers.iter().map(|h| (h.key.to_owned(), h.value.map(own))).collect()
                }),
                timestamp: m.timestamp().to_millis(),
            }),
            Some(Err(KafkaError::PartitionEOF(_))) => ends += 1,
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
    read.sort_by_key(|r| (r.partition, r.offset));
    read
}

/// A proxy on one of the broker's chaos listeners; the port itself says who has it.
pub async fn chaos() -> ChaosProxy {
    let pairs = setting("KAFKA_CHAOS");
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        for pair in pairs.split(',') {
            let (bound, advertised) = pair.split_once(':').unwrap();
            let target = format!("127.0.0.1:{bound}");
            let started = ChaosProxy::start(advertised.parse().unwrap(), &target, Framing::Kafka);
            if let Ok(proxy) = started {
                return proxy;
            }
        }
        assert!(Instant::now() < until, "every chaos listener is taken");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for something that has no event of its own.
pub async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + LONG;
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn open(log: &KafkaLog, world: &World) -> Box<dyn TransactionalProducer> {
    log.open(&world.id(), LONG).await.unwrap()
}

/// Percentiles, in milliseconds.
pub fn figures(name: &str, times: &mut [Duration]) -> String {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1_000.0;
    let n = times.len();
    format!(
        "{name}: n={n} p50 {:.1} p90 {:.1} p99 {:.1} max {:.1} ms",
        at(50),
        at(90),
        at(99),
        at(100)
    )
}
