//! The deadline of a request's head, as a wrapper around a connection.
//!
//! Owns the difference between an idle connection, which may stay a while, and one in the middle of
//! a head, which may not. hyper's own timer cannot tell them apart and serves as the idle deadline.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

const HEAD: u8 = 0;
const SERVING: u8 = 1;
const IDLE: u8 = 2;

/// Where a connection is; a new one is expected to send a head at once.
#[derive(Debug, Default)]
pub(super) struct Phase(AtomicU8);

impl Phase {
    pub(super) fn serving(&self) {
        self.0.store(SERVING, Ordering::Relaxed);
    }

    pub(super) fn idle(&self) {
        self.0.store(IDLE, Ordering::Relaxed);
    }

    fn head(&self) {
        self.0.store(HEAD, Ordering::Relaxed);
    }

    fn now(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that fails to be read when a head takes too long.
pub(super) struct HeadDeadline<T> {
    io: T,
    phase: Arc<Phase>,
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<T> HeadDeadline<T> {
    pub(super) fn new(io: T, phase: Arc<Phase>, limit: Duration) -> Self {
        Self { io, phase, limit, timer: Some(Box::pin(tokio::time::sleep(limit))) }
    }

    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadDeadline<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        match this.phase.now() {
            HEAD if this.is_over(cx) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            IDLE if buf.filled().len() > before => {
                this.phase.head();
                this.timer = Some(Box::pin(tokio::time::sleep(this.limit)));
            }
            SERVING => this.timer = None,
            _ => {}
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for HeadDeadline<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
