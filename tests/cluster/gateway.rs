//! One gateway as a child process: armed, frozen, killed, started again.

use crate::client::{Answer, Client};
use crate::world::wait_for;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Gateway {
    child: std::sync::Mutex<Child>,
    pub port: u16,
    pub admin: u16,
    log: PathBuf,
    config: PathBuf,
    launch: Launch,
}

/// Variables that a gateway gets besides the test's own.
pub type Env = Vec<(&'static str, String)>;

/// How a gateway is started.
#[derive(Default)]
pub struct Launch {
    /// What starts it, if it is not started by itself.
    pub program: &'static [&'static str],
    pub env: Env,
}

impl Gateway {
    pub fn start(config: &Path, log: &Path, port: u16, admin: u16, launch: Launch) -> Self {
        let child = std::sync::Mutex::new(serve(config, log, &launch));
        Self { child, port, admin, log: log.to_owned(), config: config.to_owned(), launch }
    }

    pub fn client(&self) -> Client {
        Client::new(format!("http://127.0.0.1:{}", self.port))
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.lock().unwrap().id().try_into().unwrap())
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn admin_client(&self) -> Client {
        Client::new(format!("http://127.0.0.1:{}", self.admin))
    }

    pub fn ready(&self) -> Answer {
        self.admin_client().get("/readyz", None)
    }

    pub fn wait_ready(&self) {
        let within = Duration::from_secs(30);
        let until = Instant::now() + within;
        while self.ready().status != 200 {
            let exited = self.child.lock().unwrap().try_wait().unwrap();
            assert!(exited.is_none(), "gateway ended: {exited:?}\n{}", self.log());
            assert!(Instant::now() < until, "not ready within {within:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Arms a fail point of this process.
    pub fn arm(&self, name: &str, lease: &str, action: &str, skip: u32) {
        self.arm_with(json!({ "name": name, "lease": lease, "action": action, "skip": skip }));
    }

    /// Arms a fail point at which one caller waits.
    pub fn pause(&self, name: &str, lease: &str, ms: u64) {
        let pause = json!({ "name": name, "lease": lease, "action": "pause", "pause_ms": ms });
        self.arm_with(pause);
    }

    fn arm_with(&self, body: serde_json::Value) {
        let answer = self.admin_client().post("/failpoints", None, &[], &body);
        assert_eq!(answer.status, 204, "{answer:?}");
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub fn wait_stopped(&self) {
        let stat = format!("/proc/{}/stat", self.pid());
        wait_for("the gateway is frozen", Duration::from_secs(20), || {
            let stat = fs::read_to_string(&stat).ok()?;
            stat.rsplit(')').next()?.trim_start().starts_with('T').then_some(())
        });
    }

    pub fn wait_dead(&self) {
        self.wait_exit(Duration::from_secs(20));
    }

    /// Its exit code; `None` if a signal ended it.
    pub fn wait_exit(&self, within: Duration) -> Option<i32> {
        let ended = wait_for("the gateway is dead", within, || {
            self.child.lock().unwrap().try_wait().unwrap()
        });
        ended.code()
    }

    /// Starts the same gateway again after its death.
    pub fn restart(&self) {
        let child = serve(&self.config, &self.log, &self.launch);
        *self.child.lock().unwrap() = child;
        self.wait_ready();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            eprintln!("--- {}\n{}", self.log.display(), tail.join("\n"));
        }
        let mut child = self.child.lock().unwrap();
        drop(child.kill());
        drop(child.wait());
    }
}

fn serve(config: &Path, log: &Path, launch: &Launch) -> Child {
    let log = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    let gateway = [env!("CARGO_BIN_EXE_fencepost"), "serve", "--config", config.to_str().unwrap()];
    let words = [launch.program, &gateway].concat();
    Command::new(words[0])
        .args(&words[1..])
        .envs(launch.env.iter().map(|(name, value)| (name, value)))
        .stdout(log.try_clone().unwrap())
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap()
}
