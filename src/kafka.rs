//! Kafka: the only place where clients are constructed, with every setting that matters spelled
//! out, and the [`TransactionLog`] that the engine is given.
//!
//! Owns options, client configuration and the composition of producer, tail, reader and topics.
//! Every blocking call runs on a thread of its own and every wait has a deadline. Never decides
//! anything: what a record means is protocol's, what a failure means is the engine's.

mod error;
mod ledger;
mod librdkafka;
mod reader;
pub mod scan;
mod topics;

use crate::engine::ports::{Answer, BarrierWait, Failure, TransactionLog, TransactionalProducer};
use crate::protocol::lease::{InstanceId, LeaseName, Nonce};
use crate::protocol::ledger::{LEDGER_RECORD_MAX, LedgerPartition, LedgerRecord};
use crate::protocol::reconcile::Knowledge;
use crate::protocol::transactional_id::TransactionalId;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::producer::BaseProducer;
use std::sync::Arc;
use std::time::Duration;

pub use topics::Facts;

/// How this gateway talks to Kafka.
#[derive(Clone)]
pub struct KafkaOptions {
    /// `bootstrap.servers`.
    pub bootstrap: String,
    /// Settings passed through as they are: security, client.rack. What is set here in code wins.
    pub extra: Vec<(String, String)>,
    /// The ledger topic.
    pub ledger_topic: Arc<str>,
    /// Which gateway process this is; part of the client ids.
    pub instance: InstanceId,
    /// How long a record may wait for its delivery report.
    pub delivery_timeout: Duration,
    /// When the coordinator aborts a transaction that nobody ends.
    pub transaction_timeout: Duration,
    /// How long one request may stay unanswered.
    pub request_timeout: Duration,
    /// How long a connection may take to come up (librdkafka takes no less than 1 s).
    pub connect_timeout: Duration,
    /// Least and most wait between attempts to reconnect and between repeats of a request. The
    /// library's own defaults (100 and 1,000 ms) make an initialisation take 500 ms.
    pub backoff: (Duration, Duration),
    /// Largest request, and so the largest record, in bytes.
    pub message_bytes_max: usize,
    /// Largest record batch, in bytes. The broker compares a topic's `max.message.bytes` with the
    /// batch, so this stays well below what topics are given.
    pub batch_bytes_max: usize,
    /// Largest memory of one producer's queue, in KiB.
    pub queue_kib_max: usize,
    /// `broker.address.family`: any, v4 or v6.
    pub address_family: String,
    /// How long a topic's partition count is believed.
    pub topic_ttl: Duration,
    /// How long a topic's absence is believed; never more than a second.
    pub absent_topic_ttl: Duration,
    /// How long a question for a topic may take.
    pub topic_timeout: Duration,
}

impl KafkaOptions {
    /// The defaults, for one cluster and one ledger topic.
    #[must_use]
    pub fn new(bootstrap: &str, ledger_topic: &str, instance: InstanceId) -> Self {
        Self {
            bootstrap: bootstrap.to_owned(),
            extra: Vec::new(),
            ledger_topic: ledger_topic.into(),
            instance,
            delivery_timeout: Duration::from_millis(2_000),
            transaction_timeout: Duration::from_millis(6_000),
            request_timeout: Duration::from_millis(2_500),
            connect_timeout: Duration::from_millis(1_000),
            backoff: (Duration::from_millis(5), Duration::from_millis(100)),
            message_bytes_max: 1_000_000,
            batch_bytes_max: 256 * 1_024,
            queue_kib_max: 64 * 1_024,
            address_family: "any".to_owned(),
            topic_ttl: Duration::from_secs(30),
            absent_topic_ttl: Duration::from_millis(1_000),
            topic_timeout: Duration::from_millis(800),
        }
    }

    /// What every client has in common. Ours is set last, so that nothing passed through can
    /// switch off what the safety rules rest on.
    fn client(&self, role: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (key, value) in &self.extra {
            config.set(key, value);
        }
        let (least, most) = self.backoff;
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("client.id", format!("fencepost-{role}-{:?}", self.instance))
            .set("broker.address.family", &self.address_family)
            .set("socket.nagle.disable", "true")
            .set("socket.keepalive.enable", "true")
            .set("socket.timeout.ms", millis(self.request_timeout))
            .set("socket.connection.setup.timeout.ms", millis(self.connect_timeout))
            .set("reconnect.backoff.ms", millis(least))
            .set("reconnect.backoff.max.ms", millis(most))
            .set("retry.backoff.ms", millis(least))
            .set("retry.backoff.max.ms", millis(most))
            .set("topic.metadata.propagation.max.ms", "500")
            // A producer's own default is true: it would bring back a topic that was just deleted.
            .set("allow.auto.create.topics", "false")
            .set("log.connection.close", "false")
            .set_log_level(RDKafkaLogLevel::Info);
        config
    }

    fn producer<C>(&self, id: &TransactionalId, context: C) -> KafkaResult<BaseProducer<C>>
    where
        C: rdkafka::producer::ProducerContext,
    {
        let mut config = self.client("producer");
        config
            .set("transactional.id", id.as_str())
            .set("transaction.timeout.ms", millis(self.transaction_timeout))
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("max.in.flight.requests.per.connection", "1")
            .set("message.timeout.ms", millis(self.delivery_timeout))
            .set("message.max.bytes", self.message_bytes_max.to_string())
            .set("batch.size", self.batch_bytes_max.to_string())
            .set("queue.buffering.max.kbytes", self.queue_kib_max.to_string())
            .set("queue.buffering.max.messages", "100000")
            .set("compression.type", "none")
            .set("linger.ms", "0")
            // As Java's default partitioner for keys; null keys are spread, one by one.
            .set("partitioner", "murmur2_random")
            .set("sticky.partitioning.linger.ms", "0")
            // The lines by which a repeated EndTxn is told from a clean one.
            .set("debug", "eos")
            .set_log_level(RDKafkaLogLevel::Debug);
        BaseProducer::from_config_and_context(&config, context)
    }

    /// A consumer that is given its partitions: the group is only a name that librdkafka wants, it
    /// is never joined and nothing is committed to it.
    fn consumer<C: ConsumerContext>(&self, role: &str, context: C) -> KafkaResult<BaseConsumer<C>> {
        let mut config = self.client(role);
        config
            .set("group.id", format!("fencepost-{role}"))
            .set("isolation.level", "read_committed")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "error")
            .set("enable.partition.eof", "true")
            .set("check.crcs", "true")
            .set("fetch.min.bytes", "1")
            .set("fetch.wait.max.ms", "250")
            .set("fetch.error.backoff.ms", "50");
        if role == ledger::ROLE {
            config
                .set("statistics.interval.ms", "500")
                .set("queued.max.messages.kbytes", "32768")
                .set("fetch.queue.backoff.ms", "20");
        } else if role == reader::ROLE {
            // One record is wanted: prefetch as little as can be.
            let bytes = LEDGER_RECORD_MAX.saturating_mul(2).to_string();
            config
                .set("queued.min.messages", "1")
                .set("fetch.queue.backoff.ms", "1")
                .set("queued.max.messages.kbytes", "1024")
                .set("fetch.message.max.bytes", &bytes);
        }
        BaseConsumer::from_config_and_context(&config, context)
    }

    /// A consumer that reads a topic once, as any read_committed consumer does.
    fn scanner(&self) -> KafkaResult<BaseConsumer<Quiet>> {
        self.consumer(scan::ROLE, Quiet)
    }

    /// A client that only asks for metadata. `debug` makes topic ids visible, in log lines.
    fn asker<C: ConsumerContext>(&self, debug: bool, context: C) -> KafkaResult<BaseConsumer<C>> {
        let mut config = self.client("topics");
        if debug {
            config.set("debug", "metadata").set_log_level(RDKafkaLogLevel::Debug);
        }
        BaseConsumer::from_config_and_context(&config, context)
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// Sends librdkafka's own warnings to the log, and nothing below.
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, line: &str) {
        error::log_line(level, fac, line);
    }

    fn error(&self, error: rdkafka::error::KafkaError, reason: &str) {
        tracing::debug!(error = %error::describe(&error), reason, "kafka client");
    }
}

impl ConsumerContext for Quiet {}

/// Kafka as the engine sees it, on librdkafka.
pub struct KafkaLog {
    options: Arc<KafkaOptions>,
    tail: ledger::Tail,
    reader: reader::Reader,
    topics: topics::Topics,
}

impl KafkaLog {
    /// Starts the threads. The broker need not be there yet: they go on trying.
    pub fn start(options: KafkaOptions) -> Result<Arc<Self>, Failure> {
        let options = Arc::new(options);
        Ok(Arc::new(Self {
            tail: ledger::Tail::start(Arc::clone(&options))?,
            reader: reader::Reader::start(Arc::clone(&options))?,
            topics: topics::Topics::start(Arc::clone(&options))?,
            options,
        }))
    }

    /// What identifies the cluster and the ledger topic, asked anew.
    pub async fn facts(&self, within: Duration) -> Result<Facts, Failure> {
        self.topics.facts(within).await
    }
}

impl TransactionLog for KafkaLog {
    fn open(
        &self,
        id: &TransactionalId,
        within: Duration,
    ) -> Answer<'_, Box<dyn TransactionalProducer>> {
        let (options, id) = (Arc::clone(&self.options), id.clone());
        Box::pin(async move {
            let producer = librdkafka::Producer::open(options, id, within).await?;
            let producer: Box<dyn TransactionalProducer> = Box::new(producer);
            Ok(producer)
        })
    }

    fn is_read(&self, partition: LedgerPartition) -> bool {
        self.tail.is_read(partition)
    }

    fn passed(&self, partition: LedgerPartition, offset: i64, within: Duration) -> Answer<'_, ()> {
        Box::pin(self.tail.passed(partition, offset, within))
    }

    fn expect(
        &self,
        lease: &LeaseName,
        partition: LedgerPartition,
        nonce: Nonce,
    ) -> Box<dyn BarrierWait> {
        Box::new(self.tail.expect(lease, partition, nonce))
    }

    fn glimpse(&self, lease: &LeaseName, partition: LedgerPartition) -> Knowledge {
        self.tail.glimpse(lease, partition)
    }

    fn read<'a>(
        &'a self,
        lease: &'a LeaseName,
        partition: LedgerPartition,
        offset: i64,
        within: Duration,
    ) -> Answer<'a, LedgerRecord> {
        Box::pin(self.reader.read(lease.clone(), partition, offset, within))
    }

    fn partitions<'a>(&'a self, topic: &'a Arc<str>) -> Answer<'a, Option<i32>> {
        Box::pin(self.topics.partitions(topic))
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(async {
            self.tail.running()?;
            self.topics.probe().await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_makes_topics_whatever_is_passed_through() {
        let mut options = KafkaOptions::new("localhost:9092", "ledger", InstanceId([0; 16]));
        options.extra.push(("allow.auto.create.topics".to_owned(), "true".to_owned()));
        assert_eq!(options.client("any").get("allow.auto.create.topics"), Some("false"));
    }
}
