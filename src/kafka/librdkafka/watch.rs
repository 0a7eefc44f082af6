//! What a producer's events tell: delivery reports, and the log lines that prove a clean end.
//!
//! Owns the batch that is under way and completes it in the very event that decides it, so that no
//! thread has to look. Carries the rule that a commit is clean only if exactly one `EndTxn` answer,
//! without an error, was logged for it: librdkafka repeats an `EndTxn` silently, and a late one
//! could end the next transaction of the same epoch. Whatever is not seen is dirty.

use crate::engine::ports::{EndTxn, Failure, Refused};
use crate::kafka::error::{answer, describe, is_fenced, log_line, record_refused, unknown};
use crate::protocol::operation::{Placed, TopicName};
use crate::protocol::refusal::RecordRefused;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Records under way.
pub(super) struct Batch {
    stage: &'static str,
    topics: Vec<TopicName>,
    sizes: Vec<usize>,
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
    /// `EndTxn` answers of this transaction: without an error, and others.
    end_txn: (u32, u32),
    /// The line that says that the call to commit has returned.
    returned: bool,
}

/// The context of one producer.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<(Mutex<Seen>, Condvar)>);

impl Batch {
    pub(super) fn new(
        stage: &'static str,
        records: impl Iterator<Item = (TopicName, usize)>,
        reply: oneshot::Sender<Result<Vec<Placed>, Failure>>,
    ) -> Self {
        let (topics, sizes): (Vec<_>, Vec<_>) = records.unzip();
        let left = topics.len();
        Self { stage, topics, sizes, placed: vec![None; left], failed: Vec::new(), left, reply }
    }

    fn finish(self, fenced: bool) {
        let verdict = if fenced || self.failed.iter().any(|(_, code)| is_fenced(*code)) {
            Err(Failure::Fenced { stage: self.stage })
        } else if self.failed.is_empty() {
            let placed: Option<Vec<Placed>> = self.placed.into_iter().collect();
            placed.ok_or_else(|| unknown(self.stage, "a delivery report is missing"))
        } else {
            Err(self.refused().unwrap_or_else(|| {
                let codes: Vec<Code> = self.failed.iter().map(|(_, code)| *code).take(3).collect();
                unknown(self.stage, format!("delivery failed: {codes:?}"))
            }))
        };
        answer(self.reply, verdict);
    }

    /// The first record that is certainly refused. A broker refuses a whole batch for its size, so
    /// of several the largest is named.
    fn refused(&self) -> Option<Failure> {
        let size = |index: &usize| self.sizes.get(*index).copied().unwrap_or(0);
        let of = |(index, code): &(usize, Code)| {
            let topic = self.topics.get(*index)?;
            record_refused(*code, topic, None).map(|why| (*index, why))
        };
        let (index, why) = self.failed.iter().filter_map(of).min_by_key(|(index, why)| {
            let large = matches!(why, RecordRefused::TooLarge { .. });
            let rank = if large { usize::MAX.saturating_sub(size(index)) } else { 0 };
            (rank, *index)
        })?;
        Some(Failure::Determinate { stage: self.stage, refused: Refused::Record { index, why } })
    }

    fn denied(&self, topics: &[String]) -> Option<Failure> {
        let index = self.topics.iter().position(|t| topics.iter().any(|d| **d == **t))?;
        let topic = self.topics.get(index)?;
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
            return batch.finish(false);
        }
        self.seen().batch = Some(batch);
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
                let place = batch.topics.get(index).zip(batch.placed.get_mut(index));
                if let Some((topic, place)) = place {
                    *place = Some(Placed { topic: Arc::clone(topic), partition, offset });
                }
            }
            Err(code) => batch.failed.push((index, code)),
        }
        batch.left = batch.left.saturating_sub(1);
        if batch.left == 0 {
            let (batch, fenced) = (seen.batch.take(), seen.fenced);
            drop(seen);
            if let Some(batch) = batch {
                batch.finish(fenced);
            }
        }
    }

    /// An error of the whole transaction. Fatal, or of a partition that could not be added: then
    /// the records would otherwise lie in the queue until their delivery times out.
    fn transaction_error(&self, line: &str) {
        let mut seen = self.seen();
        let fatal = line.contains("Fatal transaction error");
        seen.fenced |= fatal && line.ends_with("(_FENCED)");
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
