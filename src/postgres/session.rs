//! One transaction that holds a fence row's lock: reads under it, writes one decision, commits.
//!
//! Every call moves the database session out and puts it back only when it succeeded, so a failure,
//! a timeout or a dropped future ends it, and every call after that fails before it sends anything.
//! COMMIT is never sent after a failed statement: Postgres would answer it with a ROLLBACK and no
//! error. I6: success is only a COMMIT answered in time and without a warning.

use super::checkout::{Session, commits, within};
use super::error::Fault;
use super::fences::{Home, Opened, Seen, Written};
use super::leases::{End, Installed};
use super::{Draws, Timeouts, fences, leases, operations, rows};
use crate::engine::ports::{Answer, Failure, FenceSession};
use crate::failpoint::hit;
use crate::protocol::fence::{Committed, LeaseRow, Write};
use crate::protocol::lease::{DbTime, FencingToken};
use crate::protocol::operation::{OperationId, Stored};
use std::future::Future;
use std::pin::Pin;

/// The session behind [`FenceSession`].
pub(super) struct LockedSession {
    pub(super) session: Session,
    pub(super) seen: Seen,
    pub(super) home: Home,
    pub(super) timeouts: Timeouts,
    pub(super) draws: Draws,
}

impl LockedSession {
    async fn reread(&mut self) -> Result<(LeaseRow, DbTime), Failure> {
        const STAGE: &str = "lock lease";
        let mut session = self.session.take();
        let read = async {
            leases::lock(&mut session, &self.seen.lease).await?;
            rows::read(&mut session, &self.seen.lease, &[]).await
        };
        let rows = within(self.timeouts.call(), read).await.map_err(|f| f.not_happened(STAGE))?;
        let rows = rows.ok_or_else(|| Fault::Row("the rows are gone").not_happened(STAGE))?;
        self.session = session;
        Ok((rows.locked.lease, rows.locked.now))
    }

    async fn look_up(&mut self, ids: Vec<OperationId>) -> Result<Vec<Stored>, Failure> {
        let mut session = self.session.take();
        let found =
            within(self.timeouts.call(), operations::find(&mut session, &self.seen.lease, &ids))
                .await
                .map_err(|f| f.not_happened("find operations"))?;
        self.session = session;
        Ok(found)
    }

    async fn ask(&mut self) -> Result<(), Failure> {
        let mut session = self.session.take();
        let ask =
            async { sqlx::query!("SELECT 1 AS one").fetch_one(session.conn()?).await.map(drop) };
        within(self.timeouts.call(), ask).await.map_err(|f| f.not_happened("confirm lock"))?;
        self.session = session;
        Ok(())
    }

    async fn write_and_commit(mut self, write: Write) -> Result<Committed, Failure> {
        let stage = stage(&write);
        let mut session = self.session.take();
        // Until the COMMIT is sent every failure is a certain no: the session ends, and with it the
        // transaction.
        let statement = self.write(&mut session, &write);
        let written =
            within(self.timeouts.call(), statement).await.map_err(|f| f.not_happened(stage))?;
        let Some(written) = written else {
            // Under the lock this cannot be: either the caller wrote what it did not read, or the
            // lock was not one. Rolled back, but said as unknown: nothing may be built on it.
            return Err(Fault::Row("the row is not as it was locked").unknown(stage));
        };
        hit("after_operations_insert", self.seen.lease.as_str());
        // The limit is ours alone: statement_timeout covers neither deferred triggers nor the wait
        // for a synchronous standby (measured on 15), and a wait that somebody cancels is answered
        // as a success with a warning. The server gets no second chance: late is unknown.
        let commit = async { sqlx::raw_sql("COMMIT").execute(session.conn()?).await.map(drop) };
        commits(self.timeouts.commit, commit).await.map_err(|f| f.unknown("commit"))?;
        session.give_back();
        Ok(written.committed())
    }

    async fn write(
        &self,
        session: &mut Session,
        write: &Write,
    ) -> Result<Option<Written>, sqlx::Error> {
        let (seen, home) = (&self.seen, &self.home);
        match write {
            Write::Install {
                token,
                owner,
                identity,
                ttl_ms,
                request_id,
                incarnation,
                nonce,
                seq,
                redo,
            } => {
                let opened = Opened::of(Some(*nonce), *seq, redo.as_ref());
                let new = Installed {
                    token: *token,
                    owner,
                    identity,
                    ttl_ms: *ttl_ms,
                    request_id: request_id.as_ref(),
                    incarnation: *incarnation,
                };
                leases::install(session, seen, home, &new, &opened).await
            }
            Write::Reopen { nonce, seq, redo } => {
                let opened = Opened::of(Some(*nonce), *seq, redo.as_ref());
                fences::reopen(session, seen, home, &opened).await
            }
            Write::Record { seq, operations } => {
                fences::record(session, seen, *seq, operations).await
            }
            Write::Release { nonce, seq, redo } => {
                let opened = Opened::of(*nonce, *seq, redo.as_ref());
                leases::end(session, seen, home, End::Release, &opened).await
            }
            Write::Settle { nonce, seq, redo } => {
                let opened = Opened::of(Some(*nonce), *seq, redo.as_ref());
                leases::end(session, seen, home, End::Settle, &opened).await
            }
            Write::Retire { nonce, seq, redo } => {
                let opened = Opened::of(Some(*nonce), *seq, redo.as_ref());
                leases::end(session, seen, home, End::Retire, &opened).await
            }
            Write::Quarantine { reason } => fences::quarantine(session, seen, reason).await,
            Write::Expire => leases::expire(session, seen).await,
            Write::Nonce { nonce } => fences::mark(session, seen, home, *nonce).await,
        }
    }
}

impl FenceSession for LockedSession {
    fn lock_lease(&mut self) -> Answer<'_, (LeaseRow, DbTime)> {
        Box::pin(self.reread())
    }

    fn draw_token(&mut self) -> Answer<'_, FencingToken> {
        Box::pin(self.draws.draw())
    }

    fn find(&mut self, ids: Vec<OperationId>) -> Answer<'_, Vec<Stored>> {
        Box::pin(self.look_up(ids))
    }

    fn confirm(&mut self) -> Answer<'_, ()> {
        Box::pin(self.ask())
    }

    fn commit(self: Box<Self>, write: Write) -> Answer<'static, Committed> {
        Box::pin(self.write_and_commit(write))
    }

    fn abandon(mut self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let mut session = self.session.take();
            let back = async { sqlx::raw_sql("ROLLBACK").execute(session.conn()?).await.map(drop) };
            // Whatever went wrong, the session ends, and with it the lock.
            if within(self.timeouts.checkout, back).await.is_ok() {
                session.give_back();
            }
        })
    }
}

fn stage(write: &Write) -> &'static str {
    match write {
        Write::Install { .. } => "install token",
        Write::Reopen { .. } => "write reopen",
        Write::Record { .. } => "record batch",
        Write::Release { .. } => "write release",
        Write::Settle { .. } => "write settle",
        Write::Retire { .. } => "write retire",
        Write::Quarantine { .. } => "write quarantine",
        Write::Expire => "expire lease",
        Write::Nonce { .. } => "write nonce",
    }
}
