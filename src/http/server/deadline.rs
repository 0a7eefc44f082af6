//! The deadlines of a request's head and of taking an answer, as a wrapper around a connection.
//!
//! Owns the difference between an idle connection, which may stay a while, and one in the middle of
//! a head, which may not. hyper's own timer cannot tell them apart and serves as the idle deadline.
//! Owns, too, how slowly a client may read what it asked for: hyper waits for it without end.

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

/// What a client that reads slowly must take in each stretch of time, in bytes. The kernel tells of
/// room only in larger steps: of a long answer more than this may be read and not be counted yet.
const STRETCH_BYTES: usize = 64 * 1024;

type Timer = Option<Pin<Box<Sleep>>>;

fn is_over(timer: &mut Timer, cx: &mut Context<'_>) -> bool {
    timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
}

/// A connection that fails to be read when a head takes too long, and to be written to when the
/// other side does not read.
pub(super) struct Deadlines<T> {
    io: T,
    phase: Arc<Phase>,
    head_limit: Duration,
    head: Timer,
    write_limit: Duration,
    /// Runs from the first write that has to wait to the one that finds all written before it.
    write: Timer,
    /// Written since it began to run.
    written: usize,
}

impl<T> Deadlines<T> {
    pub(super) fn new(
        io: T,
        phase: Arc<Phase>,
        head_limit: Duration,
        write_limit: Duration,
    ) -> Self {
        let head = Some(Box::pin(tokio::time::sleep(head_limit)));
        Self { io, phase, head_limit, head, write_limit, write: None, written: 0 }
    }

    /// One attempt to write, with what came of it.
    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        write: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match &write {
            Poll::Ready(Ok(n)) if self.write.is_some() => {
                self.written = self.written.saturating_add(*n);
                if self.written >= STRETCH_BYTES {
                    self.write = None;
                }
            }
            Poll::Ready(_) => {}
            Poll::Pending => {
                if self.write.is_none() {
                    self.write = Some(Box::pin(tokio::time::sleep(self.write_limit)));
                    self.written = 0;
                }
                if is_over(&mut self.write, cx) {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        write
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Deadlines<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        match this.phase.now() {
            HEAD if is_over(&mut this.head, cx) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            IDLE if buf.filled().len() > before => {
                this.phase.head();
                this.head = Some(Box::pin(tokio::time::sleep(this.head_limit)));
            }
            SERVING => this.head = None,
            _ => {}
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Deadlines<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = Pin::new(&mut this.io).poll_write(cx, buf);
        this.wrote(cx, write)
    }

    /// Asked for only when all was written.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.write = None;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let write = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.wrote(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
