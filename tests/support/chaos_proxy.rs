//! A TCP proxy that loses, holds, repeats and cuts what passes through it.
//!
//! Knows as much of Kafka's protocol as it takes to tell requests apart (length, api key); with
//! [`Framing::Raw`] it is a plain TCP proxy with the modes only. Threads, not tasks: a test that
//! freezes its runtime does not freeze the proxy.
#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Kafka's api keys that tests speak of.
pub mod api {
    pub const PRODUCE: i16 = 0;
    pub const FETCH: i16 = 1;
    pub const METADATA: i16 = 3;
    pub const FIND_COORDINATOR: i16 = 10;
    pub const INIT_PRODUCER_ID: i16 = 22;
    pub const ADD_PARTITIONS_TO_TXN: i16 = 24;
    pub const END_TXN: i16 = 26;
}

/// How the bytes of a connection are cut.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Requests of Kafka's protocol.
    Kafka,
    /// Whatever comes.
    Raw,
}

/// What happens to everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Passed on.
    Pass,
    /// Connections stay open and nothing passes, in neither direction.
    Freeze,
    /// Connections are cut, new ones at once.
    Refuse,
}

/// What happens to one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Kept back; the connection stays.
    Hold,
    /// Kept back, and the client's connection is cut, so that it repeats the request on another.
    HoldAndCut,
    /// Passed on; when the broker has answered, the connection is cut and the answer lost.
    LoseReply,
    /// Swallowed; the connection stays.
    Drop,
    /// The connection is cut and the request lost.
    Cut,
    /// Passed on, and once more on a connection of its own.
    Duplicate,
}

/// One rule: the request of this api that follows `skip` others since the rule was made.
struct Rule {
    api: i16,
    skip: usize,
    left: usize,
    action: Action,
}

struct State {
    mode: Mode,
    rules: Vec<Rule>,
    counts: HashMap<i16, usize>,
    held: Vec<Vec<u8>>,
    applied: usize,
    lag: Duration,
    /// What the next lag is drawn from.
    draws: u64,
    slow_replies: HashMap<i16, Duration>,
    connections: Vec<(TcpStream, TcpStream)>,
    closed: bool,
}

struct Shared {
    target: String,
    framing: Framing,
    state: Mutex<State>,
    changed: Condvar,
}

/// The proxy; dropping it cuts every connection and frees the port.
pub struct ChaosProxy {
    shared: Arc<Shared>,
    port: u16,
}

impl ChaosProxy {
    /// Listens on a port of the loopback (0: any) and passes on to `target`.
    pub fn start(port: u16, target: &str, framing: Framing) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let state = State {
            mode: Mode::Pass,
            rules: Vec::new(),
            counts: HashMap::new(),
            held: Vec::new(),
            applied: 0,
            lag: Duration::ZERO,
            draws: 0,
            slow_replies: HashMap::new(),
            connections: Vec::new(),
            closed: false,
        };
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            framing,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { shared, port })
    }

    /// Where clients connect to.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Changes what happens to everything from now on.
    pub fn set_mode(&self, mode: Mode) {
        let mut state = self.shared.state();
        state.mode = mode;
        if mode == Mode::Refuse {
            state.cut_all();
        }
        self.shared.changed.notify_all();
    }

    /// Whatever passes comes up to so much later, some of it more and some less.
    pub fn set_lag(&self, most: Duration) {
        self.shared.state().lag = most;
    }

    /// The answers to requests of this api come so much later.
    pub fn slow_replies(&self, api: i16, by: Duration) {
        self.shared.state().slow_replies.insert(api, by);
    }

    /// Applies an action to the next request of this api.
    pub fn next(&self, api: i16, action: Action) {
        self.rule(api, 0, 1, action);
    }

    /// Applies an action to `times` requests of this api, after the `skip` that come first.
    pub fn rule(&self, api: i16, skip: usize, times: usize, action: Action) {
        self.shared.state().rules.push(Rule { api, skip, left: times, action });
    }

    /// Requests of this api that have come so far.
    pub fn count(&self, api: i16) -> usize {
        self.shared.state().counts.get(&api).copied().unwrap_or(0)
    }

    /// How often a rule was applied so far.
    pub fn applied(&self) -> usize {
        self.shared.state().applied
    }

    /// Waits until rules were applied this often; false if that took too long.
    pub fn wait_applied(&self, times: usize, within: Duration) -> bool {
        let state = self.shared.state();
        let waited = self.shared.changed.wait_timeout_while(state, within, |s| s.applied < times);
        !waited.unwrap().1.timed_out()
    }

    /// Sends every held request on a connection of its own, and returns the error codes of Kafka's
    /// answers, as far as they stand where those of `EndTxn` and `InitProducerId` do.
    pub fn release_held(&self) -> Vec<i16> {
        let held = std::mem::take(&mut self.shared.state().held);
        held.iter().map(|frame| self.shared.send_alone(frame).unwrap_or(i16::MIN)).collect()
    }
}

impl Drop for ChaosProxy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closed = true;
        state.cut_all();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the accepting thread, which then lets go of the port.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl State {
    fn cut_all(&mut self) {
        for (client, broker) in self.connections.drain(..) {
            drop(client.shutdown(Shutdown::Both));
            drop(broker.shutdown(Shutdown::Both));
        }
    }

    fn verdict(&mut self, api: i16) -> Option<Action> {
        *self.counts.entry(api).or_default() += 1;
        let rule = self.rules.iter_mut().find(|rule| rule.api == api && rule.left > 0)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.left -= 1;
        let action = rule.action;
        self.applied += 1;
        Some(action)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            if self.state().closed {
                return;
            }
            if self.state().mode == Mode::Refuse {
                continue;
            }
            let Ok(broker) = TcpStream::connect(&self.target) else { continue };
            drop((client.set_nodelay(true), broker.set_nodelay(true)));
            let copies = (client.try_clone(), broker.try_clone());
            let (Ok(client_2), Ok(broker_2)) = copies else { continue };
            let copies = (client.try_clone(), broker.try_clone());
            let (Ok(client_3), Ok(broker_3)) = copies else { continue };
            self.state().connections.push((client_3, broker_3));
            let muted = Arc::new(Mutex::new(Muted::default()));
            let (up, mute_up) = (Arc::clone(self), Arc::clone(&muted));
            std::thread::spawn(move || {
                drop(up.requests(&client, &broker, &mute_up));
                drop(client.shutdown(Shutdown::Both));
                drop(broker.shutdown(Shutdown::Both));
            });
            let down = Arc::clone(self);
            std::thread::spawn(move || {
                drop(down.replies(&broker_2, &client_2, &muted));
                drop(client_2.shutdown(Shutdown::Both));
                drop(broker_2.shutdown(Shutdown::Both));
            });
        }
    }

    /// Waits for a lag, and while frozen.
    fn gate(&self) -> io::Result<()> {
        let mut state = self.state();
        if !state.lag.is_zero() {
            state.draws = state.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let lag = state.lag.mul_f64((state.draws >> 40) as f64 / (1 << 24) as f64);
            drop(state);
            std::thread::sleep(lag);
            state = self.state();
        }
        let frozen = |s: &mut State| s.mode == Mode::Freeze && !s.closed;
        let state = self.changed.wait_while(state, frozen).unwrap();
        if state.closed || state.mode == Mode::Refuse {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    fn requests(
        &self,
        mut client: &TcpStream,
        mut broker: &TcpStream,
        muted: &Mutex<Muted>,
    ) -> io::Result<()> {
        if self.framing == Framing::Raw {
            return self.raw(client, broker);
        }
        loop {
            let frame = read_frame(&mut client)?;
            self.gate()?;
            let api = frame.get(4..6).map_or(-1, |b| i16::from_be_bytes([b[0], b[1]]));
            muted.lock().unwrap().asked.insert(frame.get(8..12).map(<[u8]>::to_vec), api);
            let action = self.state().verdict(api);
            match action {
                None => broker.write_all(&frame)?,
                Some(Action::Hold) => self.state().held.push(frame),
                Some(Action::HoldAndCut) => {
                    self.state().held.push(frame);
                    self.changed.notify_all();
                    return Ok(());
                }
                Some(Action::LoseReply) => {
                    muted.lock().unwrap().on = true;
                    broker.write_all(&frame)?;
                    let until = Instant::now() + Duration::from_secs(5);
                    while !muted.lock().unwrap().swallowed && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    self.changed.notify_all();
                    return Ok(());
                }
                Some(Action::Drop) => {}
                Some(Action::Cut) => return Ok(()),
                Some(Action::Duplicate) => {
                    broker.write_all(&frame)?;
                    drop(self.send_alone(&frame));
                }
            }
            if action.is_some() {
                self.changed.notify_all();
            }
        }
    }

    fn replies(
        &self,
        mut broker: &TcpStream,
        mut client: &TcpStream,
        muted: &Mutex<Muted>,
    ) -> io::Result<()> {
        if self.framing == Framing::Raw {
            return self.raw(broker, client);
        }
        loop {
            let frame = read_frame(&mut broker)?;
            self.gate()?;
            let mut muted = muted.lock().unwrap();
            let asked = muted.asked.remove(&frame.get(4..8).map(<[u8]>::to_vec));
            let late = asked.and_then(|api| self.state().slow_replies.get(&api).copied());
            if let Some(late) = late {
                drop(muted);
                std::thread::sleep(late);
                client.write_all(&frame)?;
            } else if muted.on {
                muted.swallowed = true;
            } else {
                drop(muted);
                client.write_all(&frame)?;
            }
        }
    }

    fn raw(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut bytes = [0; 16 * 1024];
        loop {
            let n = from.read(&mut bytes)?;
            self.gate()?;
            if n == 0 {
                return Ok(());
            }
            to.write_all(&bytes[..n])?;
        }
    }

    /// Answers of `EndTxn` and `InitProducerId`: correlation id, throttle time, error code; the
    /// flexible versions have one byte of tags after the correlation id.
    fn send_alone(&self, frame: &[u8]) -> io::Result<i16> {
        let mut broker = TcpStream::connect(&self.target)?;
        broker.set_read_timeout(Some(Duration::from_secs(5)))?;
        broker.write_all(frame)?;
        let reply = read_frame(&mut &broker)?;
        let version = frame.get(6..8).map_or(0, |b| i16::from_be_bytes([b[0], b[1]]));
        let api = frame.get(4..6).map_or(-1, |b| i16::from_be_bytes([b[0], b[1]]));
        let flexible = match api {
            api::END_TXN => version >= 3,
            api::INIT_PRODUCER_ID => version >= 2,
            _ => false,
        };
        let at = 4 + 4 + usize::from(flexible) + 4;
        let code = reply.get(at..at + 2).map(|b| i16::from_be_bytes([b[0], b[1]]));
        code.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

#[derive(Default)]
struct Muted {
    on: bool,
    swallowed: bool,
    /// Which api the answer to a correlation id belongs to.
    asked: HashMap<Option<Vec<u8>>, i16>,
}

/// A frame with its length in front.
fn read_frame(from: &mut &TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let n = usize::try_from(i32::from_be_bytes(length)).map_err(|_| io::ErrorKind::InvalidData)?;
    let mut frame = vec![0; n + 4];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(frame)
}
