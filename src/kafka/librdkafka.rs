//! The transaction engine on librdkafka: the async side of one producer.
//!
//! Owns the deadline of every call. The client itself lives on a thread of its own (`worker`),
//! which takes commands from a bounded queue; a call that did not answer `Ok` in time leaves a
//! producer that is finished: it sends and commits nothing more. Never repeats a call, never
//! revives a client.

mod record;
mod watch;
mod worker;

use crate::engine::ports::{Answer, EndTxn, Failure, Outgoing, TransactionalProducer};
use crate::kafka::KafkaOptions;
use crate::kafka::error::{unavailable, unknown};
use crate::protocol::ledger::LedgerPartition;
use crate::protocol::operation::{Placed, Record};
use crate::protocol::transactional_id::TransactionalId;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use worker::{Command, STACK_BYTES, Worker};

/// How long an end waits for the client to be gone; past it the thread goes on alone.
const DISCARD_WAIT: Duration = Duration::from_millis(500);
/// How long before the caller's deadline the thread's own is over.
const HEARD_BEFORE: Duration = Duration::from_millis(50);
/// One caller, one call at a time; the rest is room for what a late call left behind.
const COMMANDS_MAX: usize = 4;

type Reply<T> = oneshot::Sender<Result<T, Failure>>;

/// One initialised producer.
pub(super) struct Producer {
    commands: SyncSender<Command>,
    /// Resolves when the thread has let go of the client.
    gone: oneshot::Receiver<()>,
    ledger_topic: Arc<str>,
    /// Set while a call is under way, and for good once one has failed.
    finished: bool,
}

impl Producer {
    pub(super) async fn open(
        options: Arc<KafkaOptions>,
        id: TransactionalId,
        within: Duration,
    ) -> Result<Self, Failure> {
        let stage = "open";
        let (ready, answer) = oneshot::channel();
        let (commands, inbox) = sync_channel(COMMANDS_MAX);
        let (leaving, gone) = oneshot::channel();
        let ledger_topic = Arc::clone(&options.ledger_topic);
        let deadline = deadline(within);
        std::thread::Builder::new()
            .name("kafka-txn".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                Worker::run(&options, &id, deadline, ready, &inbox);
                drop(leaving);
            })
            .map_err(|_| unavailable(stage))?;
        within_deadline(stage, within, answer).await?;
        Ok(Self { commands, gone, ledger_topic, finished: false })
    }

    /// Runs one call. `finished` is set first, so that a caller that is dropped half-way leaves a
    /// finished producer behind.
    async fn call<T>(
        &mut self,
        stage: &'static str,
        within: Duration,
        command: impl FnOnce(Instant, Reply<T>) -> Command,
    ) -> Result<T, Failure> {
        if std::mem::replace(&mut self.finished, true) {
            return Err(unknown(stage, "this producer is finished"));
        }
        let done = self.ask(stage, within, command).await;
        self.finished = done.is_err();
        done
    }

    async fn ask<T>(
        &self,
        stage: &'static str,
        within: Duration,
        command: impl FnOnce(Instant, Reply<T>) -> Command,
    ) -> Result<T, Failure> {
        let (reply, answer) = oneshot::channel();
        if self.commands.try_send(command(deadline(within), reply)).is_err() {
            return Err(unknown(stage, "the producer's thread takes no more commands"));
        }
        within_deadline(stage, within, answer).await
    }

    async fn send_all(
        &mut self,
        stage: &'static str,
        records: Vec<Record>,
        within: Duration,
    ) -> Result<Vec<Placed>, Failure> {
        self.call(stage, within, |_, reply| Command::Send { stage, records, reply }).await
    }
}

/// The thread's deadline: a little before the caller's, so that what it then knows is still heard.
fn deadline(within: Duration) -> Instant {
    let now = Instant::now();
    let heard = within.saturating_sub(HEARD_BEFORE.min(within.div_f32(10.0)));
    now.checked_add(heard).unwrap_or(now)
}

async fn within_deadline<T>(
    stage: &'static str,
    within: Duration,
    answer: oneshot::Receiver<Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(within, answer).await {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err(unknown(stage, "the producer's thread is gone")),
        Err(_) => Err(unknown(stage, "the deadline passed")),
    }
}

impl TransactionalProducer for Producer {
    fn send(&mut self, records: Vec<Outgoing>, within: Duration) -> Answer<'_, Vec<Placed>> {
        Box::pin(self.send_all("send", records, within))
    }

    fn send_ledger(
        &mut self,
        key: Vec<u8>,
        value: Vec<u8>,
        partition: LedgerPartition,
        within: Duration,
    ) -> Answer<'_, i64> {
        let record = Record {
            topic: Arc::clone(&self.ledger_topic),
            partition: Some(partition.0),
            key: Some(key.into()),
            value: Some(value.into()),
            headers: Vec::new(),
            timestamp_ms: None,
        };
        Box::pin(async move {
            let stage = "send_ledger";
            let placed = self.send_all(stage, vec![record], within).await;
            match placed.map_err(record::ledger_failure)?.first() {
                Some(placed) => Ok(placed.offset),
                None => Err(unknown(stage, "no delivery report")),
            }
        })
    }

    fn commit(&mut self, within: Duration) -> Answer<'_, EndTxn> {
        Box::pin(self.call("commit", within, |deadline, reply| Command::Commit { deadline, reply }))
    }

    /// Also after a failure: an acknowledged abort is what makes a refusal certain.
    fn abort(&mut self, within: Duration) -> Answer<'_, ()> {
        self.finished = true;
        Box::pin(async move {
            let end = |deadline, reply| Command::Abort { deadline, reply };
            self.ask("abort", within, end).await
        })
    }

    fn discard(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Self { commands, gone, .. } = *self;
        drop(commands);
        Box::pin(async move {
            if tokio::time::timeout(DISCARD_WAIT, gone).await.is_err() {
                tracing::warn!("a discarded producer's client is not gone yet; left to its thread");
            }
        })
    }
}
