//! What the gateway stands on, without the gateway: a transactional producer and a Postgres
//! transaction of the same shape.

use crate::world::{World, stack};
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

struct Reports(SyncSender<()>);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        assert!(result.is_ok(), "{result:?}");
        self.0.send(()).unwrap();
    }
}

/// Data acknowledged, then a ledger record, then commit: as fast as this client does it. Reports
/// come by a thread that polls, and the commit begins when nothing is in flight (otherwise the
/// flush in it waits 100 ms). The same settings as the gateway's, but for its log lines.
pub struct Producer {
    producer: ThreadedProducer<Reports>,
    reports: Receiver<()>,
    /// Of the ledger.
    partition: i32,
}

impl Producer {
    pub fn new(id: &str, partition: i32) -> Self {
        let (to, reports) = sync_channel(16);
        let producer: ThreadedProducer<Reports> = ClientConfig::new()
            .set("bootstrap.servers", stack("KAFKA_BOOTSTRAP"))
            .set("transactional.id", id)
            .set("acks", "all")
            .set("max.in.flight.requests.per.connection", "1")
            .set("linger.ms", "0")
            .set("socket.nagle.disable", "true")
            .set("sticky.partitioning.linger.ms", "0")
            .set("retry.backoff.ms", "5")
            .set("retry.backoff.max.ms", "100")
            .create_with_context(Reports(to))
            .unwrap();
        producer.init_transactions(Duration::from_secs(30)).unwrap();
        Self { producer, reports, partition }
    }

    fn send(&mut self, record: BaseRecord<'_, str, str>) {
        self.producer.send(record).map_err(|(e, _)| e).unwrap();
        self.reports.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    pub fn transaction(&mut self, topic: &str, ledger: &str) {
        let value = "x".repeat(100);
        self.producer.begin_transaction().unwrap();
        self.send(BaseRecord::to(topic).payload(value.as_str()));
        self.send(
            BaseRecord::to(ledger).key("raw").payload(value.as_str()).partition(self.partition),
        );
        while self.producer.in_flight_count() > 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        self.producer.commit_transaction(Duration::from_secs(10)).unwrap();
    }
}

/// Transactions a second of several raw producers side by side.
pub fn many(
    count: usize,
    world: &World,
    topic: &str,
    ledger: &str,
    round: u64,
    run: Duration,
) -> f64 {
    let producers: Vec<Producer> = (0..count)
        .map(|k| {
            let partition = i32::try_from(k % 4).unwrap();
            let mut one = Producer::new(&format!("many-{}-{round}-{k}", world.name), partition);
            // Warm, as the gateway's are.
            one.transaction(topic, ledger);
            one
        })
        .collect();
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let from = Instant::now();
    std::thread::scope(|scope| {
        for mut producer in producers {
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    producer.transaction(topic, ledger);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(run);
        stop.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / from.elapsed().as_secs_f64()
}

/// Begin, select for update, insert, update, commit.
pub struct Postgres {
    runtime: tokio::runtime::Runtime,
    session: sqlx::PgConnection,
}

impl Postgres {
    pub fn new(world: &World) -> Self {
        use sqlx::{Connection, Executor};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let session = runtime.block_on(async {
            let mut session = sqlx::PgConnection::connect(&world.owner_url).await.unwrap();
            for sql in [
                "CREATE TABLE IF NOT EXISTS raw_fence (k int PRIMARY KEY, seq bigint)",
                "CREATE TABLE IF NOT EXISTS raw_op (id text PRIMARY KEY, body bytea)",
                "INSERT INTO raw_fence VALUES (1, 0) ON CONFLICT DO NOTHING",
            ] {
                session.execute(sql).await.unwrap();
            }
            session
        });
        Self { runtime, session }
    }

    pub fn transaction(&mut self, id: &str) {
        let session = &mut self.session;
        self.runtime.block_on(async {
            sqlx::query("BEGIN").execute(&mut *session).await.unwrap();
            sqlx::query("SELECT seq FROM raw_fence WHERE k = 1 FOR UPDATE")
                .fetch_one(&mut *session)
                .await
                .unwrap();
            sqlx::query("INSERT INTO raw_op VALUES ($1, $2)")
                .bind(id)
                .bind(vec![0u8; 100])
                .execute(&mut *session)
                .await
                .unwrap();
            sqlx::query("UPDATE raw_fence SET seq = seq + 1 WHERE k = 1")
                .execute(&mut *session)
                .await
                .unwrap();
            sqlx::query("COMMIT").execute(&mut *session).await.unwrap();
        });
    }
}
