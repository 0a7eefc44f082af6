//! Draws fencing tokens: each at most once, also across a crash of the database.

use super::Timeouts;
use super::checkout::{commits, from_pool};
use crate::engine::ports::Failure;
use crate::protocol::lease::FencingToken;
use sqlx::PgPool;

/// Draws tokens on sessions of its own.
///
/// A sequence is never rolled back, but what it handed out is on disk only after a later flush: a
/// token drawn by a transaction that is then rolled back could be drawn again after a crash, and
/// the ledger may have seen it. So a token is drawn by a statement that commits by itself, and
/// leaves only when that COMMIT is known. (The locked session cannot do that: it would lose its
/// lock.)
#[derive(Clone)]
pub(super) struct Draws {
    pool: PgPool,
    timeouts: Timeouts,
}

impl Draws {
    pub(super) fn new(pool: PgPool, timeouts: Timeouts) -> Self {
        Self { pool, timeouts }
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }

    /// Draws one token.
    ///
    /// The message puts something of this transaction's own into the WAL, behind whatever the
    /// sequence wrote for this or an earlier token, so that the COMMIT flushes both; without it a
    /// COMMIT that wrote nothing flushes nothing (the sequence writes ahead, once for 32 tokens).
    /// Any failure burns the token, which harms nobody. No clock.
    pub(super) async fn draw(&self) -> Result<FencingToken, Failure> {
        const STAGE: &str = "draw token";
        let mut session = from_pool(&self.pool, self.timeouts.checkout, STAGE).await?;
        let draw = async {
            sqlx::query!(
                r#"SELECT nextval('fencing_tokens') AS "token!",
                       pg_logical_emit_message(true, 'fencepost', '')::text AS flushed"#
            )
            .fetch_one(session.conn()?)
            .await
        };
        let drawn =
            commits(self.timeouts.call(), draw).await.map_err(|fault| fault.not_happened(STAGE))?;
        session.give_back();
        Ok(FencingToken(drawn.token.unsigned_abs()))
    }
}
