//! The thread that owns one librdkafka producer.
//!
//! Owns the client's life: made here, called here, destroyed here. A second thread polls while a
//! transaction is under way, because an event (a delivery report, a log line) is worked off the
//! moment it comes only by a thread that waits for it. Never calls `BaseProducer::flush` while a
//! message is in flight: it polls in slices of 100 ms.

use super::Reply;
use super::record::base_record;
use super::watch::{Batch, Watch};
use crate::engine::ports::{EndTxn, Failure, Refused};
use crate::failpoint::hit;
use crate::kafka::KafkaOptions;
use crate::kafka::error::{
    answer, call_failed, describe, init_failed, record_refused, unavailable, unknown,
};
use crate::protocol::operation::{Placed, Record};
use crate::protocol::transactional_id::TransactionalId;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Stack of a producer's threads; there are two for every open lease.
pub(super) const STACK_BYTES: usize = 512 * 1_024;
/// One poll of the polling thread lasts this long for every thread that polls, within limits.
/// Events wake it, so this bounds only how late it ends; but the wrapper spins through the last
/// millisecond of each, which many short ones would make dear.
const POLL_SLICE_EACH: Duration = Duration::from_millis(10);
const POLL_SLICE_MIN: Duration = Duration::from_millis(20);
const POLL_SLICE_MAX: Duration = Duration::from_millis(250);
/// Threads that poll at this moment.
static POLLING: AtomicU32 = AtomicU32::new(0);
/// How long an initialisation is waited for before it is asked what holds it up.
const INIT_SLICE: Duration = Duration::from_millis(5);
/// Pauses between two clients while an old transaction is being ended.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_LAST: Duration = Duration::from_millis(200);
/// How often an idle producer works off its log lines.
const IDLE_DRAIN: Duration = Duration::from_secs(10);
/// How long a commit waits for the line that says that it has returned.
const LINES_WAIT: Duration = Duration::from_millis(250);
/// Between two looks at whether librdkafka has let go of the last delivered message.
const LETTING_GO: Duration = Duration::from_micros(20);

/// What a producer is told to do.
pub(super) enum Command {
    /// Send these, and begin a transaction if none is under way.
    Send {
        /// Which call.
        stage: &'static str,
        /// In this order.
        records: Vec<Record>,
        /// Answered by the last delivery report.
        reply: Reply<Vec<Placed>>,
    },
    /// Commit.
    Commit {
        /// Bound of the call.
        deadline: Instant,
        /// Answered after the call.
        reply: Reply<EndTxn>,
    },
    /// Abort.
    Abort {
        /// Bound of the call.
        deadline: Instant,
        /// Answered after the call.
        reply: Reply<()>,
    },
}

/// The client and what is under way on it.
pub(super) struct Worker {
    producer: Arc<BaseProducer<Watch>>,
    watch: Watch,
    gate: Gate,
    in_transaction: bool,
    message_bytes_max: u64,
    /// For the fail points.
    lease: String,
}

impl Worker {
    /// Makes and initialises a client, says so, and serves until the other side is dropped.
    pub(super) fn run(
        options: &KafkaOptions,
        id: &TransactionalId,
        deadline: Instant,
        ready: Reply<()>,
        inbox: &Receiver<Command>,
    ) {
        let (mut worker, poller) = match Self::start(options, id, deadline) {
            Ok(started) => started,
            Err(failure) => return answer(ready, Err(failure)),
        };
        if ready.send(Ok(())).is_ok() {
            worker.serve(inbox);
        }
        worker.gate.set(Mode::Stop);
        if poller.join().is_err() {
            tracing::error!("a producer's polling thread panicked");
        }
    }

    fn start(
        options: &KafkaOptions,
        id: &TransactionalId,
        deadline: Instant,
    ) -> Result<(Self, JoinHandle<()>), Failure> {
        let stage = "open";
        let mut pause = PAUSE_FIRST;
        let (producer, watch) = loop {
            if let Some(initialised) = initialise(options, id, deadline)? {
                break initialised;
            }
            std::thread::sleep(pause.min(left(deadline)));
            pause = pause.saturating_mul(2).min(PAUSE_LAST);
        };
        let producer = Arc::new(producer);
        let gate = Gate::default();
        let poller = {
            let (producer, gate) = (Arc::clone(&producer), gate.clone());
            std::thread::Builder::new()
                .name("kafka-txn-poll".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    while gate.busy() {
                        let polling = POLLING.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                        let slice = POLL_SLICE_EACH.saturating_mul(polling);
                        producer.poll(slice.clamp(POLL_SLICE_MIN, POLL_SLICE_MAX));
                        POLLING.fetch_sub(1, Ordering::Relaxed);
                    }
                })
                .map_err(|_| unknown(stage, "no thread"))?
        };
        let message_bytes_max = u64::try_from(options.message_bytes_max).unwrap_or(u64::MAX);
        let lease = id.decode().map(|(_, lease)| lease.to_string()).unwrap_or_default();
        Ok((
            Self { producer, watch, gate, in_transaction: false, message_bytes_max, lease },
            poller,
        ))
    }

    fn serve(&mut self, inbox: &Receiver<Command>) {
        loop {
            match inbox.recv_timeout(IDLE_DRAIN) {
                Ok(command) => {
                    self.gate.set(Mode::Busy);
                    self.perform(command);
                    if !self.in_transaction {
                        self.gate.set(Mode::Idle);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    while !self.in_transaction && self.producer.in_flight_count() > 0 {
                        self.producer.poll(Duration::ZERO);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Send { stage, records, reply } => self.send(stage, &records, reply),
            Command::Commit { deadline, reply } => answer(reply, self.commit(deadline)),
            Command::Abort { deadline, reply } => answer(reply, self.abort(deadline)),
        }
    }

    /// Answered by the delivery reports, on the polling thread.
    fn send(&mut self, stage: &'static str, records: &[Record], reply: Reply<Vec<Placed>>) {
        if !self.in_transaction && !records.is_empty() {
            if let Err(error) = self.producer.begin_transaction() {
                return answer(reply, Err(self.failed(stage, &error)));
            }
            self.in_transaction = true;
            hit("after_begin", &self.lease);
        }
        self.watch.begin(Batch::new(stage, records, now_ms(), reply));
        for (index, record) in records.iter().enumerate() {
            if let Err((error, _)) = self.producer.send(base_record(record, index)) {
                self.watch.fail(self.refused(stage, record, index, &error));
                return;
            }
            if index == 0 {
                hit("after_first_send", &self.lease);
            }
        }
    }

    /// librdkafka took no such record into its queue.
    fn refused(
        &self,
        stage: &'static str,
        record: &Record,
        index: usize,
        error: &KafkaError,
    ) -> Failure {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        match record_refused(code, &record.topic, Some(self.message_bytes_max)) {
            Some(why) => Failure::Determinate { stage, refused: Refused::Record { index, why } },
            None => self.failed(stage, error),
        }
    }

    fn commit(&mut self, deadline: Instant) -> Result<EndTxn, Failure> {
        let stage = "commit";
        if !self.in_transaction {
            return Err(unknown(stage, "no transaction is under way"));
        }
        // The last report is answered a moment before its message counts as gone, and until then
        // the flush inside the commit would wait its 100 ms.
        while self.producer.in_flight_count() > 0 {
            if left(deadline).is_zero() {
                return Err(unknown(stage, "messages are still in flight"));
            }
            std::thread::sleep(LETTING_GO);
        }
        self.watch.arm();
        let committed = self.producer.commit_transaction(left(deadline));
        committed.map_err(|error| self.failed(stage, &error))?;
        self.in_transaction = false;
        Ok(self.watch.end_txn(LINES_WAIT))
    }

    fn abort(&mut self, deadline: Instant) -> Result<(), Failure> {
        if !self.in_transaction {
            return Ok(());
        }
        let aborted = self.producer.abort_transaction(left(deadline));
        aborted.map_err(|error| self.failed("abort", &error))?;
        self.in_transaction = false;
        Ok(())
    }

    fn failed(&self, stage: &'static str, error: &KafkaError) -> Failure {
        let fatal = self.producer.client().fatal_error().map(|(code, _)| code);
        call_failed(stage, error, fatal)
    }
}

/// A client that is initialised; `None` if the old owner's transaction was still being ended.
/// Then librdkafka would ask again only 500 ms later, on a timer of its own; a new client asks at
/// once. The one dropped has had its answer, so that nothing of it is on its way any more.
fn initialise(
    options: &KafkaOptions,
    id: &TransactionalId,
    deadline: Instant,
) -> Result<Option<(BaseProducer<Watch>, Watch)>, Failure> {
    let stage = "open";
    let watch = Watch::default();
    let producer = options.producer(id, watch.clone()).map_err(|error| {
        tracing::error!(error = %describe(&error), "no kafka producer");
        unavailable(stage)
    })?;
    // Metadata first: with no broker known and up, librdkafka asks for the coordinator again only
    // 500 ms later. Nothing has been asked of the coordinator until this has come.
    let asked = producer.client().fetch_metadata(Some(&options.ledger_topic), left(deadline));
    if let Err(error) = asked {
        tracing::debug!(error = %describe(&error), "no metadata for a new producer");
        return Err(unavailable(stage));
    }
    loop {
        let left = left(deadline);
        let Err(error) = producer.init_transactions(left.min(INIT_SLICE)) else {
            return Ok(Some((producer, watch)));
        };
        let KafkaError::Transaction(why) = &error else {
            return Err(init_failed(&error, None, id.as_str()));
        };
        if !why.is_retriable() || left.is_zero() {
            let fatal = producer.client().fatal_error().map(|(code, _)| code);
            return Err(init_failed(&error, fatal, id.as_str()));
        }
        if why.code() == Code::ConcurrentTransactions {
            return Ok(None);
        }
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Mode {
    #[default]
    Idle,
    Busy,
    Stop,
}

/// Tells the polling thread when there is something to wait for: idle, it costs nothing.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<Mode>, Condvar)>);

impl Gate {
    fn set(&self, mode: Mode) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.0.1.notify_all();
    }

    /// Waits while idle; false when it is time to stop.
    fn busy(&self) -> bool {
        let mode = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.0.1.wait_while(mode, |mode| *mode == Mode::Idle);
        *wait.unwrap_or_else(PoisonError::into_inner) == Mode::Busy
    }
}
