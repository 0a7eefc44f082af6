//! Limits as a client on a socket meets them.

use crate::shared::gateway::Gateway as Memory;
use crate::shared::memory::World;
use crate::support::{BODY_MAX, WORKER, credential, gateway, gateway_with_memory};
use fencepost::http::server::{ServerLimits, listen};
use fencepost::http::{Gateway, data_router};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Sends raw bytes to a listener of its own and returns all that comes back.
async fn raw(gateway: &Arc<Gateway>, head: &str, body: &[u8]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = ServerLimits {
        connections_max: 4,
        connections_per_peer_max: 4,
        header_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(5),
    };
    let serving =
        listen(listener, data_router(Arc::clone(gateway)), limits, std::future::pending());
    let talking = async {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    tokio::select! {
        () = serving => unreachable!("it was not told to stop"),
        text = talking => text,
    }
}

fn head(gateway: &Gateway, token: Option<&str>, length: usize) -> String {
    let own = credential(gateway, "matter.7");
    let token = token.unwrap_or(&own);
    format!(
        "POST /v1/leases/matter.7/records HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Authorization: Bearer {token}\r\nIdempotency-Key: doc-1\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
}

#[tokio::test]
async fn a_body_over_its_limit_is_answered_and_not_cut_off() {
    let gateway = gateway();
    for length in [BODY_MAX + 1, 8 * 1024 * 1024] {
        let text = raw(&gateway, &head(&gateway, None, length), &vec![b' '; length]).await;
        assert!(text.starts_with("HTTP/1.1 413 "), "{text}");
    }
    let body = vec![b' '; 1024 * 1024];
    let text = raw(&gateway, &head(&gateway, Some("x"), body.len()), &body).await;
    assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
}

#[tokio::test]
async fn a_body_that_stops_coming_is_answered_in_time() {
    let gateway = gateway();
    let text = raw(&gateway, &head(&gateway, None, 1_000), b"{\"records\":").await;
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    assert!(text.contains("\"slow_body\"") && text.contains("\"maybe\""), "{text}");
}

fn acquire_in_chunks(lease: &str, body: &str) -> String {
    format!(
        "POST /v1/leases/{lease}/acquire HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Authorization: Bearer {WORKER}\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    )
}

/// They hold the memory of what they sent, not of what they might have, and not while they wait.
#[tokio::test]
async fn acquires_that_wait_take_no_memory_from_the_others() {
    let world = World::new();
    let gateway = gateway_with_memory(Memory::new(&world, 7).engine, BODY_MAX);
    let first = r#"{"owner":"indexer-17","ttl_ms":60000}"#;
    let text = raw(&gateway, &acquire_in_chunks("matter.7", first), b"").await;
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    // As long as a body may be, nearly all of it blank.
    let waits = r#"{"owner":"indexer-18","ttl_ms":60000,"wait_ms":30000}"#;
    let waits = format!("{waits}{}", " ".repeat(BODY_MAX - waits.len()));
    let waiting = acquire_in_chunks("matter.7", &waits);
    let before = world.hits("lock");
    let others = async {
        while world.hits("lock") == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let text = raw(&gateway, &acquire_in_chunks("matter.8", first), b"").await;
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    };
    tokio::select! {
        text = raw(&gateway, &waiting, b"") => panic!("it did not wait: {text}"),
        others = tokio::time::timeout(Duration::from_secs(10), others) => others.unwrap(),
    }
}

#[tokio::test]
async fn a_credential_as_long_as_a_file_is_answered_and_not_cut_off() {
    let gateway = gateway();
    let long = "a".repeat(64 * 1024);
    let text = raw(&gateway, &head(&gateway, Some(&long), 2), b"{}").await;
    assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
    assert!(text.contains("\"credential_invalid\"") && !text.contains("aaaa"), "{text}");
}
