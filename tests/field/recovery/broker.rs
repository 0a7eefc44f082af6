//! A broker of a test's own, for settings that nobody else could live with.

use crate::world::{free_port, stack, wait_for};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A cold start on a busy machine.
const START: Duration = Duration::from_secs(90);

pub struct Broker {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
    /// Bound by the broker, and advertised by it, where a proxy may stand.
    pub chaos: (u16, u16),
}

impl Broker {
    pub fn start(settings: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (port, controller, chaos) = (free_port(), free_port(), (free_port(), free_port()));
        let properties = dir.path().join("server.properties");
        fs::write(&properties, text(dir.path(), port, controller, chaos, settings)).unwrap();
        let properties = properties.to_str().unwrap();
        let format = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c"];
        let out = java(dir.path(), "128m").args(format).arg(properties).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let log = fs::File::create(dir.path().join("stdout.log")).unwrap();
        let child = java(dir.path(), "320m")
            .args(["kafka.Kafka", properties])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut broker = Self { child, dir, port, chaos };
        broker.wait_ready();
        broker
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn wait_ready(&mut self) {
        let asker: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", self.address()).create().unwrap();
        let log = self.dir.path().join("stdout.log");
        wait_for("the broker answers", START, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", fs::read_to_string(&log).unwrap());
            let known = asker.fetch_metadata(None, Duration::from_secs(1)).ok()?;
            (!known.brokers().is_empty()).then_some(())
        });
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// It dies with the thread that started it, should that not get to its end.
fn java(dir: &Path, heap: &str) -> Command {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kafka/log4j2.properties");
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", &stack("KAFKA_JAVA")])
        .arg(format!("-Xmx{heap}"))
        .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"])
        .arg(format!("-Dfencepost.kafka.dir={}", dir.display()))
        .arg(format!("-Dlog4j2.configurationFile={}", config.display()))
        .args(["-cp", &format!("{}/*", stack("KAFKA_JARS"))]);
    command
}

fn text(dir: &Path, port: u16, controller: u16, chaos: (u16, u16), settings: &str) -> String {
    let (bound, advertised) = chaos;
    let host = "127.0.0.1";
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
listeners=CLIENT://{host}:{port},CHAOS://{host}:{bound},CONTROLLER://{host}:{controller}
advertised.listeners=CLIENT://{host}:{port},CHAOS://{host}:{advertised}
listener.security.protocol.map=CLIENT:PLAINTEXT,CHAOS:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={dir}/data
auto.create.topics.enable=false
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
default.replication.factor=1
min.insync.replicas=1
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=16777216
{settings}
",
        dir = dir.display(),
    )
}
