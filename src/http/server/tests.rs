//! Slow, silent, oversized and surplus connections, over real sockets.

use super::*;
use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::Instant;

const SOON: Duration = Duration::from_millis(150);

struct Served {
    address: std::net::SocketAddr,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

fn limits() -> ServerLimits {
    ServerLimits {
        connections_max: 2,
        connections_per_peer_max: 2,
        header_timeout: SOON,
        idle_timeout: SOON * 10,
        drain_timeout: Duration::from_secs(5),
    }
}

async fn served(router: Router, limits: ServerLimits) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async { stopped.await.unwrap_or(()) };
    let task = telemetry::spawn("test", listen(listener, router, limits, stopped));
    Served { address, stop, task }
}

fn hello() -> Router {
    Router::new().route("/", get(|| async { "hello" })).route("/", post(|_: String| async {}))
}

/// All that comes until the other side closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let _closed_or_reset = stream.read_to_end(&mut text).await;
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_connection_that_sends_no_whole_head_is_closed() {
    let served = served(hello(), limits()).await;
    for start in ["", "GET / HTTP/1.1\r\nHost: x\r\n"] {
        let (mut stream, begun) =
            (TcpStream::connect(served.address).await.unwrap(), Instant::now());
        stream.write_all(start.as_bytes()).await.unwrap();
        let text = rest(&mut stream).await;
        assert!(!text.contains("hello"), "{text}");
        assert!(begun.elapsed() >= SOON && begun.elapsed() < SOON * 20);
    }
}

#[tokio::test]
async fn an_idle_connection_outlives_the_deadline_of_a_head() {
    let served = served(hello(), limits()).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let mut buffer = vec![0; 4_096];
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let n = stream.read(&mut buffer).await.unwrap();
        assert!(String::from_utf8_lossy(&buffer[..n]).ends_with("hello"));
        tokio::time::sleep(SOON * 2).await;
    }
    stream.write_all(b"GET / HT").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// Reads answers of so many bytes, with a pause in each.
async fn take(stream: &mut TcpStream, answers: usize, bytes: usize, pause: Duration) {
    let mut half = vec![0; bytes / 2];
    for _ in 0..answers {
        stream.read_exact(&mut half).await.unwrap();
        tokio::time::sleep(pause).await;
        stream.read_exact(&mut half).await.unwrap();
    }
}

#[tokio::test]
async fn a_client_that_never_reads_its_answers_is_cut_off_and_a_slow_one_is_not() {
    const LARGE: usize = 256 * 1024;
    // More than what the kernel's buffers of both sides hold.
    const MANY: usize = 128;
    let large = Router::new().route("/", get(|| async { vec![b'x'; LARGE] }));
    let one = ServerLimits {
        connections_max: 1,
        header_timeout: SOON * 100,
        idle_timeout: SOON,
        ..limits()
    };
    let served = served(large, one).await;
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    let begun = Instant::now();
    slow.write_all(&GET.repeat(MANY)).await.unwrap();
    take(&mut slow, MANY, LARGE, SOON / 20).await;
    assert!(begun.elapsed() > SOON * 5);
    drop(slow);
    let mut never = TcpStream::connect(served.address).await.unwrap();
    never.write_all(&GET.repeat(MANY)).await.unwrap();
    // Served only once the other's place is free.
    let mut next = TcpStream::connect(served.address).await.unwrap();
    let begun = Instant::now();
    next.write_all(GET).await.unwrap();
    let answer = take(&mut next, 1, LARGE, Duration::ZERO);
    tokio::time::timeout(SOON * 40, answer).await.expect("its place is still held");
    assert!(begun.elapsed() >= SOON / 2, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_stop_lets_a_request_that_has_begun_end() {
    let router = Router::new().route(
        "/",
        get(|| async {
            tokio::time::sleep(SOON * 2).await;
            "late"
        }),
    );
    let served = served(router, limits()).await;
    let mut idle = TcpStream::connect(served.address).await.unwrap();
    let mut busy = TcpStream::connect(served.address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(SOON / 3).await;
    served.stop.send(()).unwrap();
    assert!(rest(&mut busy).await.ends_with("late"));
    assert_eq!(rest(&mut idle).await, "");
    served.task.await.unwrap();
    assert!(TcpStream::connect(served.address).await.is_err());
}

#[tokio::test]
async fn a_surplus_connection_waits_for_its_turn() {
    let patient = ServerLimits { header_timeout: Duration::from_secs(30), ..limits() };
    let served = served(hello(), patient).await;
    let first = TcpStream::connect(served.address).await.unwrap();
    let second = TcpStream::connect(served.address).await.unwrap();
    let mut third = TcpStream::connect(served.address).await.unwrap();
    third.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let early = tokio::time::timeout(SOON / 3, third.readable()).await;
    assert!(early.is_err());
    drop((first, second));
    assert!(rest(&mut third).await.ends_with("hello"));
}
