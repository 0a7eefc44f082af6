//! A checked-out database session that is closed unless it is given back.
//!
//! A session on which a statement failed, ran late or was dropped half-way may be in a transaction
//! or have an answer on its way (a future dropped during BEGIN would poison a pooled session). So
//! the only way back into the pool is [`Session::give_back`]; every other end closes the socket,
//! upon which the server rolls back and frees the locks.

use super::error::Fault;
use super::notice::heard;
use crate::engine::ports::Failure;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One session; empty once it is taken.
pub(super) struct Session {
    conn: Option<PoolConnection<sqlx::Postgres>>,
    /// Where it goes back to, if not to its pool.
    shelf: Option<(Arc<Shelf>, OwnedSemaphorePermit)>,
}

impl Session {
    pub(super) fn new(conn: PoolConnection<sqlx::Postgres>) -> Self {
        Self { conn: Some(conn), shelf: None }
    }

    /// Moves the session out, so that it ends with whatever it was moved for unless it is put back.
    pub(super) fn take(&mut self) -> Self {
        Self { conn: self.conn.take(), shelf: self.shelf.take() }
    }

    /// The connection to run a statement on.
    pub(super) fn conn(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        let lost = || sqlx::Error::Protocol("the session was closed before".into());
        self.conn.as_deref_mut().ok_or_else(lost)
    }

    /// Returns the session to its pool. Only for one that is outside any transaction.
    pub(super) fn give_back(mut self) {
        let (conn, shelf) = (self.conn.take(), self.shelf.take());
        match (conn, shelf) {
            (Some(conn), Some((shelf, permit))) => shelf.put(conn, permit),
            (conn, _) => drop(conn),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            // Closed at once and without a word: a polite goodbye would first send what is still
            // in the write buffer.
            drop(conn.detach());
        }
    }
}

/// The work sessions between two uses: the last one used is the next one used.
///
/// The pool behind it makes the sessions and knows their number; but it pings each one that comes
/// back and hands out the one that rested longest. That is a round trip more for every batch, and a
/// cold server process (a lone POST was 10 % slower). A session on the shelf counts as taken from
/// the pool, so whoever holds one of the permits finds a session here or may have a new one there.
pub(super) struct Shelf {
    pool: PgPool,
    permits: Arc<Semaphore>,
    rested: Mutex<Vec<PoolConnection<sqlx::Postgres>>>,
}

impl Shelf {
    pub(super) fn new(pool: PgPool) -> Arc<Self> {
        let size = usize::try_from(pool.options().get_max_connections()).unwrap_or(usize::MAX);
        let permits = Arc::new(Semaphore::new(size.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self { pool, permits, rested: Mutex::new(Vec::new()) })
    }

    fn rested(&self) -> MutexGuard<'_, Vec<PoolConnection<sqlx::Postgres>>> {
        self.rested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session that may have died while it rested: its first statement tells.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Session, sqlx::Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
        let rested = self.rested().pop();
        let conn = match rested {
            Some(conn) => conn,
            // Boxed: with its retries and its TLS the driver's future is 17 kB.
            None => Box::pin(self.pool.acquire()).await?,
        };
        Ok(Session { conn: Some(conn), shelf: Some((Arc::clone(self), permit)) })
    }

    /// The session first, then the permit: whoever gets it finds the session.
    fn put(&self, conn: PoolConnection<sqlx::Postgres>, permit: OwnedSemaphorePermit) {
        self.rested().push(conn);
        drop(permit);
    }

    pub(super) async fn close(&self) {
        self.permits.close();
        let rested = std::mem::take(&mut *self.rested());
        drop(rested);
        self.pool.close().await;
    }
}

/// Takes a session out of a pool, within a limit.
pub(super) async fn from_pool(
    pool: &PgPool,
    limit: Duration,
    stage: &'static str,
) -> Result<Session, Failure> {
    // Boxed: with its retries and its TLS the driver's future is 17 kB.
    let conn =
        within(limit, Box::pin(pool.acquire())).await.map_err(|fault| fault.not_happened(stage))?;
    Ok(Session::new(conn))
}

/// Runs a statement within a limit.
pub(super) async fn within<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    tokio::time::timeout(limit, statement).await.map_err(|_| Fault::Late)?.map_err(Fault::Sql)
}

/// Runs a statement that commits, within a limit; a success with a warning is a fault.
pub(super) async fn commits<T>(
    limit: Duration,
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Fault> {
    match heard(within(limit, statement)).await {
        (Ok(_), Some(warning)) => Err(Fault::Warned(warning)),
        (result, _) => result,
    }
}
