//! Partition counts of topics, from a cache, and what identifies the cluster.
//!
//! Owns a metadata client on a thread of its own, a bounded queue and one question at a time per
//! topic. Never creates a topic, never asks for a name that cannot be one, never waits past its
//! own deadline.

mod asking;

use crate::engine::ports::Failure;
use crate::kafka::KafkaOptions;
use crate::kafka::error::{answer, unavailable, unknown};
use asking::Question;
use std::collections::HashMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const STAGE: &str = "topics";
const QUEUE_MAX: usize = 256;
/// Most topics that are remembered; names come from callers.
const CACHE_MAX: usize = 10_000;
/// Most callers that wait for one topic's answer.
const WAITING_MAX: usize = 4_096;
/// Between the two looks that find a topic absent.
const SECOND_LOOK: Duration = Duration::from_millis(200);
const TOPIC_NAME_MAX: usize = 249;

type Count = Result<Option<i32>, Failure>;

/// What identifies the cluster and the ledger in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The cluster's id.
    pub cluster_id: String,
    /// The ledger topic's id in base64, where the client could be made to say it.
    pub ledger_topic_id: Option<String>,
    /// The ledger topic's partition count.
    pub ledger_partitions: i32,
}

enum Entry {
    Known { count: Option<i32>, until: Instant },
    Asked(Vec<oneshot::Sender<Count>>),
}

#[derive(Clone, Default)]
struct Cache(Arc<Mutex<HashMap<Arc<str>, Entry>>>);

/// The asking side; the thread ends when it is dropped.
pub(super) struct Topics {
    options: Arc<KafkaOptions>,
    asking: SyncSender<Question>,
    cache: Cache,
}

impl Topics {
    pub(super) fn start(options: Arc<KafkaOptions>) -> Result<Self, Failure> {
        let (asking, questions) = sync_channel(QUEUE_MAX);
        let cache = Cache::default();
        let (for_thread, its_cache) = (Arc::clone(&options), cache.clone());
        std::thread::Builder::new()
            .name("kafka-topics".to_owned())
            .spawn(move || asking::serve(&for_thread, &its_cache, &questions))
            .map_err(|_| unavailable(STAGE))?;
        Ok(Self { options, asking, cache })
    }

    /// Absent is only what is not found a second time: a topic that was made a moment ago is not
    /// known to every broker yet, and whoever made it has been told that it is there.
    pub(super) async fn partitions(&self, topic: &Arc<str>) -> Count {
        if !is_topic_name(topic) {
            return Ok(None);
        }
        let until = soon(self.options.topic_timeout);
        if let Some(known) = self.cache.known(topic) {
            return Ok(known);
        }
        if let Some(count) = self.look(topic, until, Duration::ZERO).await? {
            return Ok(Some(count));
        }
        tokio::time::sleep(SECOND_LOOK).await;
        self.look(topic, until, self.options.absent_topic_ttl).await
    }

    async fn look(&self, topic: &Arc<str>, until: Instant, absent_ttl: Duration) -> Count {
        let answer = match self.cache.look(topic)? {
            Looked::Known(count) => return Ok(count),
            Looked::Asked(answer) => answer,
            Looked::Ask(answer) => {
                let question = Question::Topic { topic: Arc::clone(topic), until, absent_ttl };
                if self.asking.try_send(question).is_err() {
                    self.cache.put(topic, Err(unavailable(STAGE)), Duration::ZERO);
                }
                answer
            }
        };
        wait(until.saturating_duration_since(Instant::now()), answer).await
    }

    /// Asks anew whether the ledger topic is there.
    pub(super) async fn probe(&self) -> Result<(), Failure> {
        let within = self.options.topic_timeout;
        let (reply, answer) = oneshot::channel();
        self.ask(Question::Probe { until: soon(within), reply })?;
        wait(within, answer).await
    }

    pub(super) async fn facts(&self, within: Duration) -> Result<Facts, Failure> {
        let (reply, answer) = oneshot::channel();
        self.ask(Question::Facts { until: soon(within), reply })?;
        wait(within, answer).await
    }

    fn ask(&self, question: Question) -> Result<(), Failure> {
        self.asking.try_send(question).map_err(|_| unavailable(STAGE))
    }
}

fn soon(within: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(within).unwrap_or(now)
}

async fn wait<T>(
    within: Duration,
    answer: oneshot::Receiver<Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(within, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(unknown(STAGE, "the asking thread is gone")),
        // Nothing was to be changed, so nothing can have been.
        Err(_) => Err(unavailable(STAGE)),
    }
}

enum Looked {
    Known(Option<i32>),
    /// Somebody else has asked.
    Asked(oneshot::Receiver<Count>),
    /// This caller is to ask.
    Ask(oneshot::Receiver<Count>),
}

impl Cache {
    fn entries(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered and still believed.
    fn known(&self, topic: &Arc<str>) -> Option<Option<i32>> {
        match self.entries().get(topic) {
            Some(Entry::Known { count, until }) if Instant::now() < *until => Some(*count),
            Some(Entry::Known { .. } | Entry::Asked(_)) | None => None,
        }
    }

    fn look(&self, topic: &Arc<str>) -> Result<Looked, Failure> {
        let now = Instant::now();
        let mut entries = self.entries();
        let (reply, answer) = oneshot::channel();
        match entries.get_mut(topic) {
            Some(Entry::Known { count, until }) if now < *until => Ok(Looked::Known(*count)),
            Some(Entry::Asked(waiting)) if waiting.len() < WAITING_MAX => {
                waiting.push(reply);
                Ok(Looked::Asked(answer))
            }
            Some(Entry::Asked(_)) => Err(unavailable(STAGE)),
            Some(Entry::Known { .. }) | None => {
                if entries.len() >= CACHE_MAX {
                    let asked = |entry: &mut Entry| matches!(entry, Entry::Asked(_));
                    entries.retain(|_, entry| asked(entry));
                }
                entries.insert(Arc::clone(topic), Entry::Asked(vec![reply]));
                Ok(Looked::Ask(answer))
            }
        }
    }

    /// Answers everybody who waits, and remembers an answer (a failure is not remembered).
    fn put(&self, topic: &Arc<str>, count: Count, ttl: Duration) {
        let mut entries = self.entries();
        let before = match &count {
            Ok(count) => {
                let known = Entry::Known { count: *count, until: soon(ttl) };
                entries.insert(Arc::clone(topic), known)
            }
            Err(_) => entries.remove(topic),
        };
        drop(entries);
        if let Some(Entry::Asked(waiting)) = before {
            for reply in waiting {
                answer(reply, count.clone());
            }
        }
    }
}

/// What Kafka takes as a topic name.
fn is_topic_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let sized = !name.is_empty() && name.len() <= TOPIC_NAME_MAX;
    sized && name.bytes().all(allowed) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_a_topic_is_never_asked_for() {
        let long = "a".repeat(TOPIC_NAME_MAX + 1);
        for bad in ["", ".", "..", "a b", "a\0b", "a/b", "é", long.as_str()] {
            assert!(!is_topic_name(bad), "{bad:?}");
        }
        assert!(is_topic_name("demo.records_1-A"));
    }

    #[test]
    fn one_question_is_asked_for_all_who_wait_and_a_failure_is_not_remembered() {
        let cache = Cache::default();
        let topic: Arc<str> = "t".into();
        let Ok(Looked::Ask(mut first)) = cache.look(&topic) else { panic!() };
        let Ok(Looked::Asked(mut second)) = cache.look(&topic) else { panic!() };
        cache.put(&topic, Err(unavailable(STAGE)), Duration::ZERO);
        assert!(first.try_recv().unwrap().is_err());
        assert!(second.try_recv().unwrap().is_err());
        let Ok(Looked::Ask(mut third)) = cache.look(&topic) else { panic!() };
        cache.put(&topic, Ok(Some(3)), Duration::from_secs(30));
        assert_eq!(third.try_recv().unwrap(), Ok(Some(3)));
        assert!(matches!(cache.look(&topic), Ok(Looked::Known(Some(3)))));
    }
}
