//! The thread that asks for metadata.
//!
//! Owns its client, which it replaces after a failure to make one. A question that nobody waits
//! for any more is dropped unasked.

use super::{Cache, Facts, STAGE};
use crate::engine::ports::{Failure, Refused};
use crate::kafka::error::{answer, describe, unavailable, unknown};
use crate::kafka::{KafkaOptions, Quiet};
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How often a client works off its log lines.
const DRAIN_EVERY: Duration = Duration::from_secs(10);
/// How long it does so; a poll cannot tell the last line from one of many.
const DRAIN_FOR: Duration = Duration::from_millis(5);

/// What can be asked.
pub(super) enum Question {
    /// Partition count, for the cache.
    Topic {
        /// Of this topic.
        topic: Arc<str>,
        /// Nobody waits longer.
        until: Instant,
        /// How long its absence is believed.
        absent_ttl: Duration,
    },
    /// Whether the ledger topic can be seen.
    Probe {
        /// Nobody waits longer.
        until: Instant,
        /// Who asks.
        reply: oneshot::Sender<Result<(), Failure>>,
    },
    /// Cluster and ledger.
    Facts {
        /// Nobody waits longer.
        until: Instant,
        /// Who asks.
        reply: oneshot::Sender<Result<Facts, Failure>>,
    },
}

type Client = BaseConsumer<Quiet>;

/// Works questions off until the asking side is dropped.
pub(super) fn serve(options: &KafkaOptions, cache: &Cache, questions: &Receiver<Question>) {
    let mut client: Option<Client> = None;
    let mut drained = Instant::now();
    loop {
        match questions.recv_timeout(DRAIN_EVERY) {
            Ok(question) => {
                if client.is_none() {
                    client = options.asker(false, Quiet).map_err(|e| log(&e)).ok();
                }
                work(options, cache, client.as_ref(), question);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if let Some(client) = &client
            && drained.elapsed() >= DRAIN_EVERY
        {
            client.poll(DRAIN_FOR);
            drained = Instant::now();
        }
    }
}

fn log(error: &KafkaError) {
    tracing::error!(error = %describe(error), "no kafka client for metadata");
}

fn work(options: &KafkaOptions, cache: &Cache, client: Option<&Client>, question: Question) {
    let ledger = &options.ledger_topic;
    match question {
        Question::Topic { topic, until, absent_ttl } => {
            let count = count(client, &topic, until);
            let found = matches!(count, Ok(Some(_)));
            let ttl = if found { options.topic_ttl } else { absent_ttl };
            cache.put(&topic, count, ttl);
        }
        Question::Probe { until, reply } if !reply.is_closed() => {
            let found = count(client, ledger, until);
            let there = found.and_then(|n| n.map(|_| ()).ok_or_else(|| unavailable(STAGE)));
            answer(reply, there);
        }
        Question::Facts { until, reply } if !reply.is_closed() => {
            answer(reply, facts(options, ledger, until));
        }
        Question::Probe { .. } | Question::Facts { .. } => {}
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn count<C: ConsumerContext>(
    client: Option<&BaseConsumer<C>>,
    topic: &str,
    until: Instant,
) -> Result<Option<i32>, Failure> {
    let (Some(client), left) = (client, left(until)) else {
        return Err(unavailable(STAGE));
    };
    if left.is_zero() {
        return Err(unavailable(STAGE));
    }
    let metadata = client.fetch_metadata(Some(topic), left).map_err(|error| {
        tracing::debug!(error = %describe(&error), topic, "no metadata");
        unavailable(STAGE)
    })?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(None);
    };
    let partitions = i32::try_from(found.partitions().len()).unwrap_or(i32::MAX);
    match found.error().map(Code::from) {
        None if partitions > 0 => Ok(Some(partitions)),
        // Some partition has no leader just now; how many there are is known all the same.
        Some(Code::LeaderNotAvailable) if partitions > 0 => Ok(Some(partitions)),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::InvalidTopic) => Ok(None),
        Some(Code::TopicAuthorizationFailed) => {
            let resource = format!("DESCRIBE on topic {topic}");
            Err(Failure::Determinate { stage: STAGE, refused: Refused::Denied { resource } })
        }
        Some(code) => Err(unknown(STAGE, format!("{code:?}"))),
        None => Ok(None),
    }
}

/// By a client of its own, whose log lines tell the topic's id: the metadata of librdkafka's C
/// interface does not hold it.
fn facts(options: &KafkaOptions, ledger: &str, until: Instant) -> Result<Facts, Failure> {
    let ids = Ids { topic: ledger.to_owned(), id: Arc::default() };
    let id = Arc::clone(&ids.id);
    let client = options.asker(true, ids).map_err(|error| {
        log(&error);
        unavailable(STAGE)
    })?;
    let Some(ledger_partitions) = count(Some(&client), ledger, until)? else {
        return Err(unknown(STAGE, format!("there is no topic {ledger}")));
    };
    let Some(cluster_id) = client.client().fetch_cluster_id(left(until)) else {
        return Err(unknown(STAGE, "the cluster's id is not known"));
    };
    client.poll(DRAIN_FOR);
    let ledger_topic_id = id.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(Facts { cluster_id, ledger_topic_id, ledger_partitions })
}

/// Reads `Topic t changed id from AAAA... to hb/nsU...` off the log.
struct Ids {
    topic: String,
    id: Arc<Mutex<Option<String>>>,
}

impl ClientContext for Ids {
    fn log(&self, _: RDKafkaLogLevel, _: &str, line: &str) {
        let id = line
            .split_once(&format!("Topic {} changed id from ", self.topic))
            .and_then(|(_, rest)| rest.split_once(" to "));
        if let Some((_, id)) = id {
            let id = id.trim().to_owned();
            *self.id.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
        }
    }
}

impl ConsumerContext for Ids {}
