//! What the gateway stands on, without the gateway: a transactional producer and a Postgres
//! transaction of the same shape.

use crate::world::{World, stack};
use rdkafka::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Reports(AtomicU64);

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        assert!(result.is_ok(), "{result:?}");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Data acknowledged, then a ledger record, then commit.
pub struct Producer {
    producer: BaseProducer<Reports>,
    sent: u64,
}

impl Producer {
    pub fn new(id: &str) -> Self {
        let producer: BaseProducer<Reports> = ClientConfig::new()
            .set("bootstrap.servers", stack("KAFKA_BOOTSTRAP"))
            .set("transactional.id", id)
            .set("acks", "all")
            .set("max.in.flight.requests.per.connection", "1")
            .set("linger.ms", "0")
            .set("socket.nagle.disable", "true")
            .set("sticky.partitioning.linger.ms", "0")
            .create_with_context(Reports::default())
            .unwrap();
        producer.init_transactions(Duration::from_secs(30)).unwrap();
        Self { producer, sent: 0 }
    }

    fn send(&mut self, record: BaseRecord<'_, str, str>) {
        self.producer.send(record).map_err(|(e, _)| e).unwrap();
        self.sent += 1;
        while self.producer.context().0.load(Ordering::Relaxed) < self.sent {
            self.producer.poll(Duration::from_millis(10));
        }
    }

    pub fn transaction(&mut self, topic: &str, ledger: &str) {
        let value = "x".repeat(100);
        self.producer.begin_transaction().unwrap();
        self.send(BaseRecord::to(topic).payload(value.as_str()));
        self.send(BaseRecord::to(ledger).key("raw").payload(value.as_str()).partition(0));
        self.producer.commit_transaction(Duration::from_secs(10)).unwrap();
    }
}

/// Transactions a second of several raw producers side by side.
pub fn many(count: usize, world: &World, ledger: &str, round: usize, run: Duration) -> f64 {
    let producers: Vec<Producer> =
        (0..count).map(|k| Producer::new(&format!("many-{}-{round}-{k}", world.name))).collect();
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let from = Instant::now();
    std::thread::scope(|scope| {
        for mut producer in producers {
            let (done, stop) = (Arc::clone(&done), Arc::clone(&stop));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    producer.transaction(&world.topic, ledger);
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
