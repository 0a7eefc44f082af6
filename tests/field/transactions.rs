//! Kafka's transactions as its coordinator lists them: the admin protocol, as far as it takes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// `ListTransactions`, version 0.
const API: i16 = 66;

/// Every transactional id that this broker coordinates and begins like this, and its state.
pub fn transactions(broker: &str, prefix: &str) -> Vec<(String, String)> {
    let mut request = Vec::new();
    request.extend(API.to_be_bytes());
    request.extend(0i16.to_be_bytes());
    request.extend(7i32.to_be_bytes());
    request.extend(4i16.to_be_bytes());
    request.extend(b"test");
    // No tags; no states and no producers to filter by; no tags.
    request.extend([0, 1, 1, 0]);
    let mut broker = TcpStream::connect(broker).unwrap();
    broker.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    broker.write_all(&i32::try_from(request.len()).unwrap().to_be_bytes()).unwrap();
    broker.write_all(&request).unwrap();
    let mut length = [0; 4];
    broker.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
    broker.read_exact(&mut answer).unwrap();
    let mut from = Bytes(&answer);
    // Correlation id, tags, throttle time.
    from.take(4 + 1 + 4);
    assert_eq!(from.take(2), [0, 0], "ListTransactions failed");
    for _ in 1..from.varint() {
        from.text();
    }
    let mut found = Vec::new();
    for _ in 1..from.varint() {
        let id = from.text();
        from.take(8);
        let state = from.text();
        assert_eq!(from.varint(), 0, "unknown tags");
        if id.starts_with(prefix) {
            found.push((id, state));
        }
    }
    found
}

/// Those that are neither committed nor aborted.
pub fn open(broker: &str, prefix: &str) -> Vec<(String, String)> {
    let mut all = transactions(broker, prefix);
    all.retain(|(_, s)| !matches!(s.as_str(), "Empty" | "CompleteCommit" | "CompleteAbort"));
    all
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        taken
    }

    fn varint(&mut self) -> usize {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.take(1)[0];
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    fn text(&mut self) -> String {
        let n = self.varint() - 1;
        String::from_utf8(self.take(n).to_vec()).unwrap()
    }
}
