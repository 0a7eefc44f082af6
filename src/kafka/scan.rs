//! Reads a whole topic once, read_committed, in offset order of each partition: for the audit.
//!
//! Owns where the reading ends: not before the last stable offset that each partition had when it
//! began.
//! Blocks its thread; every wait is bounded.

use super::KafkaOptions;
use super::error;
use crate::engine::ports::Failure;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers, Message};
use rdkafka::{Offset, TopicPartitionList};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Name of its client.
pub(super) const ROLE: &str = "audit";
const STAGE: &str = "scan topic";
const METADATA: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);
/// Longest pause without any record before the scan gives up.
const SILENCE: Duration = Duration::from_secs(30);

/// One record, as far as an audit needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Headers in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// Gives every record of a topic to `take`; returns the last stable offset that
/// each partition had when the reading began.
pub fn topic(
    options: &KafkaOptions,
    topic: &str,
    mut take: impl FnMut(Scanned),
) -> Result<BTreeMap<i32, i64>, Failure> {
    let failed = |e: KafkaError| error::unknown(STAGE, error::describe(&e));
    let consumer = options.scanner().map_err(failed)?;
    let found = consumer.fetch_metadata(Some(topic), METADATA).map_err(failed)?;
    let mut list = TopicPartitionList::new();
    let partitions = found.topics().iter().filter(|t| t.error().is_none());
    for partition in partitions.flat_map(|t| t.partitions()) {
        list.add_partition_offset(topic, partition.id(), Offset::Beginning).map_err(failed)?;
    }
    if list.count() == 0 {
        let detail = "the topic is not there".to_owned();
        return Err(Failure::Indeterminate { stage: STAGE, detail });
    }
    let mut latest = TopicPartitionList::new();
    for partition in list.elements() {
        let end = Offset::End;
        latest.add_partition_offset(topic, partition.partition(), end).map_err(failed)?;
    }
    // The last stable offsets: this consumer is read_committed. What stands below one of them and
    // is not read is not there.
    let latest = consumer.offsets_for_times(latest, METADATA).map_err(failed)?;
    let mut stood: BTreeMap<i32, i64> = BTreeMap::new();
    for partition in latest.elements() {
        let Offset::Offset(end) = partition.offset() else {
            let detail = "the end of a partition is not known".to_owned();
            return Err(Failure::Indeterminate { stage: STAGE, detail });
        };
        stood.insert(partition.partition(), end);
    }
    consumer.assign(&list).map_err(failed)?;
    let mut ended: BTreeSet<i32> = BTreeSet::new();
    let mut heard = Instant::now();
    while ended.len() < list.count() {
        match consumer.poll(POLL) {
            Some(Ok(message)) => {
                heard = Instant::now();
                take(scanned(&message));
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                heard = Instant::now();
                ended.insert(partition);
            }
            Some(Err(error)) => return Err(failed(error)),
            None if heard.elapsed() > SILENCE => {
                let detail = "no record and no end of a partition came".to_owned();
                return Err(Failure::Indeterminate { stage: STAGE, detail });
            }
            None => {}
        }
    }
    Ok(stood)
}

fn scanned(message: &rdkafka::message::BorrowedMessage<'_>) -> Scanned {
    let headers = message.headers().map(|headers| {
        headers.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect()
    });
    Scanned {
        partition: message.partition(),
        offset: message.offset(),
        headers: headers.unwrap_or_default(),
    }
}
