//! What a producer's events tell: delivery reports, and the log lines that prove a clean end.
//!
//! Owns the batch that is under way and completes it in the very event that decides it, so that no
//! thread has to look. Carries the rule that a commit is clean only if exactly one `EndTxn` answer,
//! without an error, was logged for it: librdkafka repeats an `EndTxn` silently, and a late one
//! could end the next transaction of the same epoch. Whatever is not seen is dirty.

use crate::engine::ports::{EndTxn, Failure, Refused};
use crate::kafka::error::{answer, describe, is_fenced, log_line, record_refused, unknown};
use crate::protocol::operation::{Placed, Record, TopicName};
use crate::protocol::refusal::RecordRefused;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A timestamp is taken to lie in the future from here on: nobody sets a topic's limit as close.
const AHEAD_MS: i64 = 60_000;

/// What of a record helps to tell which of several was refused.
pub(super) struct Sent {
    topic: TopicName,
    bytes: usize,
    has_key: bool,
    timestamp_ms: Option<i64>,
}

/// Records under way.
pub(super) struct Batch {
    stage: &'static str,
    sent: Vec<Sent>,
    now_ms: i64,
    placed: Vec<Option<Placed>>,
    failed: Vec<(usize, Code)>,
    left: usize,
    reply: oneshot::Sender<Result<Vec<Placed>, Failure>>,
}

#[derive(Default)]
struct Seen {
    batch: Option<Batch>,
    /// Topics that the coordinator denied to this transaction.
    denied: Vec<String>,
    /// Another producer of this id was seen.
    fenced: bool,
    /// A broker refused a timestamp of the batch under way.
    bad_timestamp: bool,
    /// `EndTxn` answers of this transaction: without an error, and others.
    end_txn: (u32, u32),
    /// The line that says that the call to commit has returned.
    returned: bool,
}

/// The context of one producer.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<(Mutex<Seen>, Condvar)>);

impl Sent {
    pub(super) fn of(record: &Record) -> Self {
        Self {
            topic: Arc::clone(&record.topic),
            bytes: record.payload_bytes(),
            has_key: record.key.is_some(),
            timestamp_ms: record.timestamp_ms,
        }
    }
}

impl Batch {
    pub(super) fn new(
        stage: &'static str,
        records: &[Record],
        now_ms: i64,
        reply: oneshot::Sender<Result<Vec<Placed>, Failure>>,
    ) -> Self {
        let left = records.len();
        let sent = records.iter().map(Sent::of).collect();
        Self { stage, sent, now_ms, placed: vec![None; left], failed: Vec::new(), left, reply }
    }

    fn finish(self, fenced: bool, bad_timestamp: bool) {
        let verdict = if fenced || self.failed.iter().any(|(_, code)| is_fenced(*code)) {
            Err(Failure::Fenced { stage: self.stage })
        } else if self.failed.is_empty() {
            let placed: Option<Vec<Placed>> = self.placed.into_iter().collect();
            placed.ok_or_else(|| unknown(self.stage, "a delivery report is missing"))
        } else {
            Err(self.refused(bad_timestamp).unwrap_or_else(|| {
                let codes: Vec<Code> = self.failed.iter().map(|(_, code)| *code).take(3).collect();
                unknown(self.stage, format!("delivery failed: {codes:?}"))
            }))
        };
        answer(self.reply, verdict);
    }

    /// The first record that is certainly refused; of those that one answer refused together, the
    /// one that it was about.
    fn refused(&self, bad_timestamp: bool) -> Option<Failure> {
        let of = |(index, code): &(usize, Code)| {
            let sent = self.sent.get(*index)?;
            // Of several bad timestamps in one batch librdkafka tells which, but no longer why.
            let stamped = *code == Code::InvalidRecord && sent.timestamp_ms.is_some();
            let code = if bad_timestamp && stamped { Code::InvalidTimestamp } else { *code };
            record_refused(code, &sent.topic, None).map(|why| (*index, why))
        };
        let refused: Vec<(usize, RecordRefused)> = self.failed.iter().filter_map(of).collect();
        let stamped = refused.iter().filter(|(_, why)| *why == RecordRefused::Timestamp);
        let latest = stamped.filter_map(|(index, _)| self.sent.get(*index)?.timestamp_ms).max();
        let blame =
            |(index, why): &(usize, RecordRefused)| (self.innocence(*index, why, latest), *index);
        let (index, why) = refused.into_iter().min_by_key(blame)?;
        Some(Failure::Determinate { stage: self.stage, refused: Refused::Record { index, why } })
    }

    /// How unlikely it is that an answer for several records was about this one. librdkafka gives
    /// all records of a broker's batch the same error if the broker blamed one of them.
    fn innocence(&self, index: usize, why: &RecordRefused, latest: Option<i64>) -> u64 {
        let Some(sent) = self.sent.get(index) else { return u64::MAX };
        match why {
            // A broker refuses a whole batch for its size.
            RecordRefused::TooLarge { .. } => {
                u64::MAX.saturating_sub(u64::try_from(sent.bytes).unwrap_or(u64::MAX))
            }
            // Limits are on the distance from now, and the one into the future is the usual one.
            RecordRefused::Timestamp => match (sent.timestamp_ms, latest) {
                (Some(at), Some(latest)) if latest > self.now_ms.saturating_add(AHEAD_MS) => {
                    latest.abs_diff(at)
                }
                (Some(at), _) => at.unsigned_abs(),
                (None, _) => u64::MAX,
            },
            // What a compacted topic refuses.
            RecordRefused::Invalid => u64::from(sent.has_key),
            RecordRefused::TopicNotFound
            | RecordRefused::PartitionNotFound
            | RecordRefused::Denied { .. } => 0,
        }
    }

    fn denied(&self, topics: &[String]) -> Option<Failure> {
        let named = |sent: &Sent| topics.iter().any(|topic| **topic == *sent.topic);
        let index = self.sent.iter().position(named)?;
        let topic = &self.sent.get(index)?.topic;
        let why = record_refused(Code::TopicAuthorizationFailed, topic, None)?;
        Some(Failure::Determinate { stage: self.stage, refused: Refused::Record { index, why } })
    }
}

impl Watch {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new batch; one without records is done at once.
    pub(super) fn begin(&self, batch: Batch) {
        if batch.left == 0 {
            return batch.finish(false, false);
        }
        let mut seen = self.seen();
        seen.bad_timestamp = false;
        seen.batch = Some(batch);
    }

    /// Ends the batch under way with this failure, unless it has been answered.
    pub(super) fn fail(&self, failure: Failure) {
        let batch = self.seen().batch.take();
        if let Some(batch) = batch {
            answer(batch.reply, Err(failure));
        }
    }

    /// From here on `EndTxn` lines belong to the commit that follows.
    pub(super) fn arm(&self) {
        let mut seen = self.seen();
        seen.end_txn = (0, 0);
        seen.returned = false;
    }

    /// The verdict on a commit that was answered without an error. Its lines come by polling only.
    pub(super) fn end_txn(&self, within: Duration) -> EndTxn {
        let wait = self.0.1.wait_timeout_while(self.seen(), within, |seen| !seen.returned);
        let (seen, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if seen.returned && seen.end_txn == (1, 0) { EndTxn::Clean } else { EndTxn::Dirty }
    }

    fn report(&self, index: usize, result: Result<(i32, i64), Code>) {
        let mut seen = self.seen();
        let Some(batch) = seen.batch.as_mut() else { return };
        match result {
            // A repeat that the broker took for a duplicate has no offset to tell.
            Ok((_, offset)) if offset < 0 => {
                batch.failed.push((index, Code::DuplicateSequenceNumber))
            }
            Ok((partition, offset)) => {
                let place = batch.sent.get(index).zip(batch.placed.get_mut(index));
                if let Some((Sent { topic, .. }, place)) = place {
                    *place = Some(Placed { topic: Arc::clone(topic), partition, offset });
                }
            }
            Err(code) => batch.failed.push((index, code)),
        }
        batch.left = batch.left.saturating_sub(1);
        if batch.left == 0 {
            let (batch, fenced, stamps) = (seen.batch.take(), seen.fenced, seen.bad_timestamp);
            drop(seen);
            if let Some(batch) = batch {
                batch.finish(fenced, stamps);
            }
        }
    }

    /// An error of the whole transaction. Fatal, or of a partition that could not be added: then
    /// the records would otherwise lie in the queue until their delivery times out.
    fn transaction_error(&self, line: &str) {
        let mut seen = self.seen();
        let fatal = line.contains("Fatal transaction error");
        seen.fenced |= fatal && line.ends_with("(_FENCED)");
        seen.bad_timestamp |= line.ends_with("(INVALID_TIMESTAMP)");
        if !fatal && !line.contains("Failed to add partition(s)") {
            return;
        }
        let (batch, fenced) = (seen.batch.take(), seen.fenced);
        let Some(batch) = batch else { return };
        let failure = if fenced {
            Failure::Fenced { stage: batch.stage }
        } else {
            batch.denied(&seen.denied).unwrap_or_else(|| unknown(batch.stage, line))
        };
        drop(seen);
        answer(batch.reply, Err(failure));
    }
}

/// The topic of `Failed to add partition "t" [0] to transaction: Broker: Topic authorization ...`.
fn denied_topic(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("Failed to add partition \"")?;
    let (topic, rest) = rest.split_once('"')?;
    rest.contains("Topic authorization failed").then_some(topic)
}

impl ClientContext for Watch {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, line: &str) {
        log_line(level, fac, line);
        match fac {
            "ENDTXN" if line.contains("EndTxn returned ") => {
                let clean =
                    line.contains("EndTxn returned NO_ERROR in state CommittingTransaction");
                let mut seen = self.seen();
                let (good, other) = seen.end_txn;
                seen.end_txn = (
                    good.saturating_add(u32::from(clean)),
                    other.saturating_add(u32::from(!clean)),
                );
            }
            "TXNAPI" if line.contains("Transactional API commit_transaction return") => {
                self.seen().returned = true;
                self.0.1.notify_all();
            }
            "ADDPARTS" => {
                if let Some(topic) = denied_topic(line) {
                    self.seen().denied.push(topic.to_owned());
                }
            }
            "TXNERR" => self.transaction_error(line),
            _ => {}
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(error = %describe(&error), reason, "kafka producer");
    }
}

impl ProducerContext for Watch {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let result = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::Unknown)),
        };
        self.report(index, result);
    }
}

#[cfg(test)]
mod tests;
