//! Figures of the adapter, printed: run with `--nocapture`.

use crate::world::{LONG, P0, World, bootstrap};
use crate::world::{barrier, barrier_key, figures, lease_key, ledger_batch, nonce, open};
use fencepost::engine::ports::{EndTxn, TransactionLog};
use fencepost::kafka::KafkaLog;
use fencepost::protocol::lease::LeaseName;
use fencepost::protocol::transactional_id::{Installation, TransactionalId};
use rdkafka::config::ClientConfig;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

const ROUNDS: usize = 100;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn figures_of_a_lone_lease() {
    let world = World::new("figures").await;
    let log = world.log();
    let lease = world.lease();

    opens(&log, &world).await;
    transactions(&log, &world, &lease).await;
    barriers(&log, &world, &lease).await;
    whole_opens(&log, &world, &lease).await;
    world.done().await;
}

async fn opens(log: &KafkaLog, world: &World) {
    let mut inits = Vec::new();
    for _ in 0..30 {
        let begun = Instant::now();
        let producer = open(log, world).await;
        inits.push(begun.elapsed());
        producer.discard().await;
    }
    println!("{}", figures("open, a fresh client each", &mut inits));

    let mut over_open = Vec::new();
    for _ in 0..15 {
        let mut old = open(log, world).await;
        old.send(vec![world.record(0, "x")], LONG).await.unwrap();
        let begun = Instant::now();
        let new = open(log, world).await;
        over_open.push(begun.elapsed());
        old.discard().await;
        new.discard().await;
    }
    println!("{}", figures("open over an open transaction", &mut over_open));
}

async fn transactions(log: &KafkaLog, world: &World, lease: &LeaseName) {
    let mut producer = open(log, world).await;
    let (mut whole, mut sends, mut ledgers, mut commits) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = Instant::now();
        producer.send(vec![world.record(0, "x")], LONG).await.unwrap();
        let sent = begun.elapsed();
        producer.send_ledger(lease_key(lease), ledger_batch(1).encode(), P0, LONG).await.unwrap();
        let booked = begun.elapsed();
        producer.commit(LONG).await.unwrap();
        whole.push(begun.elapsed());
        sends.push(sent);
        ledgers.push(booked - sent);
        commits.push(begun.elapsed() - booked);
    }
    println!("{}", figures("lone transaction", &mut whole));
    println!("{}", figures("  data acknowledged", &mut sends));
    println!("{}", figures("  ledger acknowledged", &mut ledgers));
    println!("{}", figures("  commit", &mut commits));
    let (data, ledger) = (world.data.to_string(), world.ledger.to_string());
    let mut raw = tokio::task::spawn_blocking(move || raw_loop(&data, &ledger)).await.unwrap();
    println!("{}", figures("raw loop on ThreadedProducer", &mut raw));

    producer.discard().await;
}

async fn barriers(log: &KafkaLog, world: &World, lease: &LeaseName) {
    let mut producer = open(log, world).await;
    let (mut writes, mut seens, mut reads) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let nonce = nonce();
        let expected = log.expect(lease, P0, nonce);
        let begun = Instant::now();
        let key = barrier_key(lease);
        producer.send_ledger(key, barrier(nonce), P0, LONG).await.unwrap();
        producer.commit(LONG).await.unwrap();
        let written = begun.elapsed();
        expected.seen(LONG).await.unwrap();
        writes.push(written);
        seens.push(begun.elapsed() - written);
        let begun = Instant::now();
        log.read(lease, P0, 0, LONG).await.unwrap();
        reads.push(begun.elapsed());
    }
    println!("{}", figures("barrier written", &mut writes));
    println!("{}", figures("  then seen", &mut seens));
    println!("{}", figures("read back", &mut reads));
    producer.discard().await;
}

async fn whole_opens(log: &KafkaLog, world: &World, lease: &LeaseName) {
    let (mut opens, mut threads) = (vec![], vec![]);
    for n in 0..20 {
        let nonce = nonce();
        let begun = Instant::now();
        let mut producer = open(log, world).await;
        let expected = log.expect(lease, P0, nonce);
        producer.send_ledger(barrier_key(lease), barrier(nonce), P0, LONG).await.unwrap();
        producer.commit(LONG).await.unwrap();
        let last = expected.seen(LONG).await.unwrap().last.unwrap();
        log.read(lease, P0, last.offset, LONG).await.unwrap();
        let state = ledger_batch(n).encode();
        producer.send_ledger(lease_key(lease), state, P0, LONG).await.unwrap();
        producer.commit(LONG).await.unwrap();
        opens.push(begun.elapsed());
        // Without discard: dropping it must end its threads as well.
        drop(producer);
        tokio::time::sleep(Duration::from_millis(100)).await;
        threads.push(producer_threads());
    }
    println!("{}", figures("init, barrier, seen, read back, state", &mut opens));
    assert_eq!(threads.last(), Some(&0), "{threads:?}");
}

/// Several leases at once: every commit is clean here as well.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures"]
async fn figures_of_many_leases() {
    let world = World::new("many").await;
    let log = world.log();
    for leases in [8, 32] {
        let begun = Instant::now();
        let lease = |n: usize| {
            let log = Arc::clone(&log);
            let record = world.record(i32::try_from(n % 3).unwrap(), "x");
            let name = LeaseName::parse(&format!("{}-{n}", world.mark)).unwrap();
            let id = TransactionalId::of(&Installation::parse("test").unwrap(), &name);
            async move {
                let mut producer = log.open(&id, LONG).await.unwrap();
                let mut times = Vec::new();
                for seq in 0..ROUNDS {
                    let begun = Instant::now();
                    producer.send(vec![record.clone()], LONG).await.unwrap();
                    let value = ledger_batch(u64::try_from(seq).unwrap()).encode();
                    producer.send_ledger(lease_key(&name), value, P0, LONG).await.unwrap();
                    assert_eq!(producer.commit(LONG).await.unwrap(), EndTxn::Clean);
                    times.push(begun.elapsed());
                }
                producer.discard().await;
                times
            }
        };
        let running: tokio::task::JoinSet<_> = (0..leases).map(lease).collect();
        let mut times = running.join_all().await.concat();
        let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
        println!("{} ({rate:.0}/s)", figures(&format!("{leases} leases"), &mut times));
    }
    world.done().await;
}

fn producer_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| name(task.ok()?).ok()).filter(|n| n.starts_with("kafka-txn")).count()
}

struct Acks(SyncSender<()>);

impl rdkafka::client::ClientContext for Acks {}

impl ProducerContext for Acks {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        assert!(result.is_ok());
        self.0.send(()).unwrap();
    }
}

/// The same transaction with nothing around it.
fn raw_loop(data: &str, ledger: &str) -> Vec<Duration> {
    let (acks, acked) = sync_channel(10);
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap())
        .set("transactional.id", format!("raw-{data}"))
        .set("linger.ms", "0")
        .set("socket.nagle.disable", "true")
        .set("retry.backoff.ms", "5");
    let producer: ThreadedProducer<Acks> = config.create_with_context(Acks(acks)).unwrap();
    producer.client().fetch_metadata(Some(data), LONG).unwrap();
    producer.init_transactions(LONG).unwrap();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        std::thread::sleep(Duration::from_millis(20));
        let begun = Instant::now();
        producer.begin_transaction().unwrap();
        for topic in [data, ledger] {
            let record = BaseRecord::<[u8], [u8]>::to(topic).partition(0).key(b"k").payload(b"x");
            producer.send(record).map_err(|(error, _)| error).unwrap();
            acked.recv().unwrap();
        }
        while producer.in_flight_count() > 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
        producer.commit_transaction(LONG).unwrap();
        times.push(begun.elapsed());
    }
    times
}
