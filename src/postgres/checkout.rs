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
use std::time::Duration;

/// One session; empty once it is taken.
pub(super) struct Session(Option<PoolConnection<sqlx::Postgres>>);

impl Session {
    pub(super) fn new(conn: PoolConnection<sqlx::Postgres>) -> Self {
        Self(Some(conn))
    }

    /// Moves the session out, so that it ends with whatever it was moved for unless it is put back.
    pub(super) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// The connection to run a statement on.
    pub(super) fn conn(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        let lost = || sqlx::Error::Protocol("the session was closed before".into());
        self.0.as_deref_mut().ok_or_else(lost)
    }

    /// Returns the session to its pool. Only for one that is outside any transaction.
    pub(super) fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(conn) = self.0.take() {
            // Closed at once and without a word: a polite goodbye would first send what is still
            // in the write buffer.
            drop(conn.detach());
        }
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
