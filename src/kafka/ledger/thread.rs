//! The thread that reads the ledger.
//!
//! Owns the consumer and the generations. Every generation has a consumer of its own, so that
//! nothing fetched for an older one can be delivered into it. A consumer error ends the generation,
//! unless it says only that a connection went: then the position stays and the library goes on.

use super::{ROLE, Shared};
use crate::kafka::KafkaOptions;
use crate::kafka::error::{describe, keeps_position, log_line};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::time::Duration;

/// One poll; a record ends it at once, so this bounds only how late a stop is noticed.
const POLL_SLICE: Duration = Duration::from_millis(250);
/// One question for metadata or for a partition's last stable offset.
const ASK_WAIT: Duration = Duration::from_millis(1_000);
/// Between two attempts to begin a generation.
const RETRY_WAIT: Duration = Duration::from_millis(200);

type Reading = BaseConsumer<Positions>;

/// Reads until it is told to stop, one generation after the other.
pub(super) fn run(options: &KafkaOptions, shared: &Shared) {
    let mut why = "the tail begins".to_owned();
    while !shared.stopping() {
        let generation = shared.start_again(&why);
        match begin(options, shared, generation) {
            Ok(consumer) => {
                tracing::info!(generation, "the ledger tail reads from the log start");
                why = read(&consumer, shared);
                tracing::warn!(generation, why, "the ledger tail starts again");
                dismiss(consumer);
            }
            Err(reason) => {
                tracing::warn!(generation, reason, "the ledger tail cannot begin");
                why = reason;
            }
        }
        std::thread::sleep(RETRY_WAIT);
    }
}

/// Closing a consumer may take as long as a broker is silent; the next generation does not wait.
fn dismiss(consumer: Reading) {
    let closing = std::thread::Builder::new().name("kafka-closing".to_owned());
    if closing.spawn(move || drop(consumer)).is_err() {
        tracing::warn!("no thread to close a consumer on; closed in place");
    }
}

fn begin(options: &KafkaOptions, shared: &Shared, generation: u64) -> Result<Reading, String> {
    let topic: &str = &options.ledger_topic;
    let context = Positions { generation, shared: shared.clone() };
    let consumer = options.consumer(ROLE, context).map_err(|error| describe(&error))?;
    let partitions = match partitions(&consumer, topic) {
        Ok(partitions) => partitions,
        Err(reason) => {
            dismiss(consumer);
            return Err(reason);
        }
    };
    let mut assignment = TopicPartitionList::new();
    let (mut begun, mut answering) = (Vec::new(), true);
    for partition in partitions {
        let placed = assignment.add_partition_offset(topic, partition, Offset::Beginning);
        placed.map_err(|error| describe(&error))?;
        // Under read_committed the high watermark asked for is the last stable offset. Where it is
        // not told, the end of the partition will do.
        let stable = if answering {
            consumer.fetch_watermarks(topic, partition, ASK_WAIT).ok().map(|(_, stable)| stable)
        } else {
            None
        };
        answering = stable.is_some();
        begun.push((partition, stable));
    }
    shared.begin(begun);
    consumer.assign(&assignment).map_err(|error| describe(&error))?;
    Ok(consumer)
}

fn partitions(consumer: &Reading, topic: &str) -> Result<Vec<i32>, String> {
    let metadata = consumer.fetch_metadata(Some(topic), ASK_WAIT).map_err(|e| describe(&e))?;
    let partitions: Vec<i32> = metadata
        .topics()
        .iter()
        .filter(|found| found.name() == topic)
        .flat_map(|found| found.partitions().iter().map(|p| p.id()))
        .collect();
    if partitions.is_empty() {
        return Err(format!("there is no ledger topic {topic}"));
    }
    Ok(partitions)
}

/// Reads until an error; says which.
fn read(consumer: &Reading, shared: &Shared) -> String {
    loop {
        match consumer.poll(POLL_SLICE) {
            Some(Ok(message)) => {
                shared.take(message.partition(), message.offset(), message.key(), message.payload())
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => shared.reached_end(partition),
            Some(Err(error)) if keeps_position(&error) => {
                tracing::debug!(error = %describe(&error), "ledger tail");
            }
            Some(Err(error)) => return describe(&error),
            None if shared.stopping() => return "stopping".to_owned(),
            None => {}
        }
    }
}

/// The consumer's own account of how far it has fetched: past control and aborted records, which
/// are never delivered.
struct Positions {
    generation: u64,
    shared: Shared,
}

impl ClientContext for Positions {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, line: &str) {
        log_line(level, fac, line);
    }

    fn stats(&self, statistics: Statistics) {
        for topic in statistics.topics.values() {
            for (partition, stats) in &topic.partitions {
                // What is fetched but not yet polled counts as not passed.
                if stats.fetchq_cnt == 0 && stats.next_offset > 0 {
                    self.shared.reached(self.generation, *partition, stats.next_offset);
                }
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(error = %describe(&error), reason, "ledger tail");
    }
}

impl ConsumerContext for Positions {}
