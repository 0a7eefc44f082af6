//! HTTP by hand, for clients that no library would be: cut off, slow, gone before the answer.

use crate::client::Answer;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The deadlines of a head and of a body in tests that swap them into the configuration.
pub const HEAD: Duration = Duration::from_millis(1_500);
pub const BODY: Duration = Duration::from_millis(2_000);
pub const DEADLINES: (&str, &str) =
    ("[postgres]", "header_timeout_ms = 1500\nbody_timeout_ms = 2000\n[postgres]");
/// What anything takes on a busy machine.
pub const MOMENT: Duration = Duration::from_secs(1);

/// A request in its two parts.
pub struct Request {
    pub head: String,
    pub body: String,
}

impl Request {
    pub fn post(path: &str, token: &str, key: Option<&str>, body: &Value) -> Self {
        let body = body.to_string();
        let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{key}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        Self { head, body }
    }

    pub fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), self.body.as_bytes()].concat()
    }
}

/// A connection to a gateway's listener.
pub struct Line(pub TcpStream);

/// What came back.
#[derive(Debug)]
pub enum Heard {
    Answer(Answer),
    /// The other side closed without a whole answer.
    Closed,
    /// Nothing, or not all of it, in the given time.
    Nothing,
}

impl Heard {
    #[track_caller]
    pub fn answer(self) -> Answer {
        match self {
            Self::Answer(answer) => answer,
            other => panic!("no answer: {other:?}"),
        }
    }
}

impl Line {
    pub fn to(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Sends; what cannot be sent any more is not sent.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    /// Listens until an answer is whole, the other side closes, or the time is over.
    pub fn hear(&mut self, within: Duration) -> Heard {
        let until = Instant::now() + within;
        let (mut text, mut some) = (Vec::new(), [0; 8 * 1024]);
        loop {
            if let Some(answer) = parse(&text) {
                return Heard::Answer(answer);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Heard::Nothing;
            }
            self.0.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
            match self.0.read(&mut some) {
                Ok(0) => return Heard::Closed,
                Ok(n) => text.extend_from_slice(&some[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return Heard::Closed,
            }
        }
    }

    /// Closes with a reset instead of a goodbye.
    pub fn reset(self) {
        socket2::SockRef::from(&self.0).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

fn parse(text: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    let body = body.get(..length)?;
    Some(Answer { status, body: serde_json::from_str(body).unwrap_or(Value::Null) })
}
