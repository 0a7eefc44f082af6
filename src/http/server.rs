//! Serving both listeners: connections, their limits, and stopping.
//!
//! Owns accept loops and the life of a connection. A silent or slow client is cut off by the header
//! deadline, an idle one and one that does not read its answer by the idle deadline; a body has a
//! deadline of its own, where it is read.

mod deadline;
mod peers;

use crate::http::{Gateway, admin_router, data_router};
use crate::telemetry;
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use deadline::{Deadlines, Phase};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use peers::{Peers, Place};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tower::ServiceExt;

/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// Most bytes of a request's head. Above what is pasted into a header or a path by mistake (64 KB),
/// so that it is read whole and gets an answer: beyond this hyper cuts the connection.
const HEAD_BYTES_MAX: usize = 96 * 1024;
/// Connections of the admin listener: apart, so that workers cannot take its place.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// How long its requests may take after the data listener is empty: the one deadline of stopping is
/// that listener's.
const ADMIN_DRAIN: Duration = Duration::from_secs(1);
/// Wait after a failed accept (no descriptors left, for one).
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Both sockets, bound.
#[derive(Debug)]
pub struct Listeners {
    /// For workers.
    pub data: TcpListener,
    /// For operators.
    pub admin: TcpListener,
}

/// Bounds of connections.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connections of the data listener; more wait in the socket's backlog.
    pub connections_max: usize,
    /// Connections of one address; more are closed at once.
    pub connections_per_peer_max: usize,
    /// From the first byte of a request (or the start of a connection) to the end of its head.
    pub header_timeout: Duration,
    /// Between two requests of a connection, and for taking an answer (or 64 KiB of it).
    pub idle_timeout: Duration,
    /// How long requests that have begun may take after `stop`.
    pub drain_timeout: Duration,
}

/// Serves until `stop` is done, then lets the requests that have begun end. The admin listener
/// stays until the data listener is empty, so that readiness can be asked meanwhile.
pub async fn serve(
    listeners: Listeners,
    gateway: Arc<Gateway>,
    limits: ServerLimits,
    stop: impl Future<Output = ()> + Send,
) {
    let (admin_stop, admin_stopped) = watch::channel(false);
    let admin = telemetry::spawn("http_admin", {
        let router = admin_router(Arc::clone(&gateway));
        let limits = ServerLimits {
            connections_max: ADMIN_CONNECTIONS_MAX,
            connections_per_peer_max: ADMIN_CONNECTIONS_MAX,
            drain_timeout: limits.drain_timeout.min(ADMIN_DRAIN),
            ..limits
        };
        async move { listen(listeners.admin, router, limits, stopped(admin_stopped)).await }
    });
    listen(listeners.data, data_router(gateway), limits, stop).await;
    admin_stop.send_replace(true);
    if let Err(error) = admin.await {
        tracing::error!(%error, "admin listener ended");
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        tracing::debug!("stopped by the end of its owner");
    }
}

/// One accept loop and the end of its connections.
pub async fn listen(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    stop: impl Future<Output = ()> + Send,
) {
    let permits = Arc::new(Semaphore::new(limits.connections_max));
    let peers = Peers::new(limits.connections_per_peer_max);
    let (closing, closed) = watch::channel(false);
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            (permit, place, stream) = accept(&listener, &permits, &peers) => {
                let connection = connection(stream, router.clone(), limits, closed.clone());
                drop(telemetry::spawn("http_connection", async move {
                    connection.await;
                    drop((place, permit));
                }));
            }
        }
    }
    drop(listener);
    closing.send_replace(true);
    let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
    let drained = tokio::time::timeout(limits.drain_timeout, permits.acquire_many(all)).await;
    if drained.is_err() {
        tracing::warn!("connections still open at the end of the drain deadline");
    }
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    peers: &Peers,
) -> (Option<OwnedSemaphorePermit>, Place, TcpStream) {
    let permit = Arc::clone(permits).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match peers.enter(peer.ip()) {
                Some(place) => return (permit, place, stream),
                None => tracing::debug!(%peer, "closed: its address has too many connections"),
            },
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: ServerLimits,
    closing: watch::Receiver<bool>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection gone before it was served");
        return;
    }
    let phase = Arc::new(Phase::default());
    let (head, write) = (limits.header_timeout, limits.idle_timeout);
    let io = Deadlines::new(stream, Arc::clone(&phase), head, write);
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, phase) = (router.clone(), Arc::clone(&phase));
        phase.serving();
        async move {
            let response = router.oneshot(request.map(Body::new)).await;
            phase.idle();
            response
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stopped(closing) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

#[cfg(test)]
mod tests;
