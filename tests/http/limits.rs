//! Limits as a client on a socket meets them.

use crate::support::{BODY_MAX, credential, gateway};
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

#[tokio::test]
async fn a_credential_as_long_as_a_file_is_answered_and_not_cut_off() {
    let gateway = gateway();
    let long = "a".repeat(64 * 1024);
    let text = raw(&gateway, &head(&gateway, Some(&long), 2), b"{}").await;
    assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
    assert!(text.contains("\"credential_invalid\"") && !text.contains("aaaa"), "{text}");
}
