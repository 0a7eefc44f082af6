//! Reads one ledger record back: the last batch of a lease, before it is redone or kept.
//!
//! Owns a consumer on a thread of its own and a bounded queue of questions. Never believes an
//! offset: what is read must stand exactly there, under the lease's key, and be readable.

use crate::engine::ports::Failure;
use crate::kafka::error::{answer, describe, keeps_position, unavailable, unknown};
use crate::kafka::{KafkaOptions, Quiet};
use crate::protocol::lease::LeaseName;
use crate::protocol::ledger::{LedgerKey, LedgerPartition, LedgerRecord};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Name of its client.
pub(super) const ROLE: &str = "read";
const STAGE: &str = "read";
const QUEUE_MAX: usize = 64;

struct Question {
    lease: LeaseName,
    partition: i32,
    offset: i64,
    deadline: Instant,
    reply: oneshot::Sender<Result<LedgerRecord, Failure>>,
}

/// The asking side; the thread ends when it is dropped.
pub(super) struct Reader(SyncSender<Question>);

impl Reader {
    pub(super) fn start(options: Arc<KafkaOptions>) -> Result<Self, Failure> {
        let (asking, questions) = sync_channel(QUEUE_MAX);
        std::thread::Builder::new()
            .name("kafka-read".to_owned())
            .spawn(move || serve(&options, &questions))
            .map_err(|_| unavailable(STAGE))?;
        Ok(Self(asking))
    }

    pub(super) async fn read(
        &self,
        lease: LeaseName,
        partition: LedgerPartition,
        offset: i64,
        within: Duration,
    ) -> Result<LedgerRecord, Failure> {
        let (reply, read) = oneshot::channel();
        let now = Instant::now();
        let deadline = now.checked_add(within).unwrap_or(now);
        let question = Question { lease, partition: partition.0, offset, deadline, reply };
        if self.0.try_send(question).is_err() {
            return Err(unavailable(STAGE));
        }
        match tokio::time::timeout(within, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err(unknown(STAGE, "the reading thread is gone")),
            Err(_) => Err(unknown(STAGE, "the deadline passed")),
        }
    }
}

fn serve(options: &KafkaOptions, questions: &Receiver<Question>) {
    let mut consumer = None;
    while let Ok(question) = questions.recv() {
        if question.reply.is_closed() {
            continue;
        }
        let reader = match consumer.take() {
            Some(reader) => Ok(reader),
            None => options.consumer(ROLE, Quiet).map_err(|error| describe(&error)),
        };
        let read = match reader {
            Ok(reader) => {
                let read = read_one(&reader, &options.ledger_topic, &question);
                // Nothing is fetched on between two questions; a doubtful consumer is replaced.
                if read.is_ok() && reader.unassign().is_ok() {
                    consumer = Some(reader);
                }
                read
            }
            Err(error) => Err(unknown(STAGE, error)),
        };
        answer(question.reply, read);
    }
}

fn read_one(
    consumer: &BaseConsumer<Quiet>,
    topic: &str,
    question: &Question,
) -> Result<LedgerRecord, Failure> {
    let mut place = TopicPartitionList::new();
    let at = Offset::Offset(question.offset);
    place
        .add_partition_offset(topic, question.partition, at)
        .and_then(|()| consumer.assign(&place))
        .map_err(|error| unknown(STAGE, describe(&error)))?;
    loop {
        let left = question.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(unknown(STAGE, "the deadline passed"));
        }
        match consumer.poll(left) {
            Some(Ok(message)) => {
                let at = (message.partition(), message.offset());
                if at.0 == question.partition && at.1 == question.offset {
                    return check(&message, &question.lease);
                }
                if at.0 == question.partition && at.1 > question.offset {
                    return Err(unknown(STAGE, "the record is not there any more"));
                }
            }
            // Not stable yet; it will be delivered when it is.
            Some(Err(KafkaError::PartitionEOF(_))) | None => {}
            Some(Err(error)) if keeps_position(&error) => {}
            Some(Err(error)) => return Err(unknown(STAGE, describe(&error))),
        }
    }
}

fn check(message: &BorrowedMessage<'_>, lease: &LeaseName) -> Result<LedgerRecord, Failure> {
    let key = message.key().and_then(LedgerKey::decode);
    if key != Some(LedgerKey::Lease(lease.clone())) {
        return Err(unknown(STAGE, "the record there is another lease's"));
    }
    match message.payload().map(LedgerRecord::decode) {
        Some(Ok(record @ (LedgerRecord::Batch(_) | LedgerRecord::State(_)))) => Ok(record),
        Some(Ok(LedgerRecord::Barrier { .. }) | Err(_)) | None => {
            Err(unknown(STAGE, "the record there cannot be read"))
        }
    }
}
