//! `FenceStore` and `FenceSession` on the rows in memory.

use super::rows::Row;
use super::{Fault, Gate, certain, unknown};
use fencepost::engine::ports::{
    Answer, Failure, FenceSession, FenceStore, HistoryEntry, HistoryPage, LeasePage, LeaseView,
    LockRequest, PurgeStep, Purged, RenewRequest, Renewed,
};
use fencepost::protocol::fence::{
    Committed, LeaseRow, Locked, PURGE_AFTER_S, Standing, Write, standing,
};
use fencepost::protocol::lease::{DbTime, FencingToken, InstanceId, LeaseName};
use fencepost::protocol::operation::{OperationId, Stored};
use fencepost::telemetry;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LOCK_TIMEOUT: Duration = Duration::from_millis(4_000);
/// How much later a COMMIT lands whose answer never comes.
const LATE: Duration = Duration::from_millis(40);

pub(super) struct MemoryStore {
    pub(super) gate: Arc<Gate>,
    pub(super) home: InstanceId,
}

struct MemorySession {
    gate: Arc<Gate>,
    home: InstanceId,
    lease: LeaseName,
    id: u64,
}

/// Waits for a row's lock: in the order of asking, at most as long as `lock_timeout`.
async fn take_row(gate: &Gate, lease: &LeaseName, row: Row, id: u64) -> Result<(), Failure> {
    let until = Instant::now() + LOCK_TIMEOUT;
    gate.shared.rows().enqueue(lease, row, id);
    loop {
        let now = Instant::now();
        if gate.shared.rows().try_lock(lease, row, id, now) {
            return Ok(());
        }
        if now >= until || !gate.shared.rows().touch(id, now) {
            gate.shared.rows().leave(lease, row, id);
            return Err(certain("lock_timeout"));
        }
        sleep(Duration::from_millis(1)).await;
    }
}

impl FenceStore for MemoryStore {
    fn ensure<'a>(&'a self, lease: &'a LeaseName) -> Answer<'a, ()> {
        Box::pin(async move {
            let fault = self.gate.pass("ensure").await;
            if !matches!(fault, Some(Fault::Fail | Fault::Refuse)) {
                self.gate.shared.rows().ensure(lease);
            }
            fault.map_or(Ok(()), |_| Err(unknown("ensure")))
        })
    }

    fn lock(&self, request: LockRequest) -> Answer<'_, Option<(Box<dyn FenceSession>, Locked)>> {
        Box::pin(async move {
            if self.gate.pass("lock").await.is_some() {
                return Err(certain("lock"));
            }
            let shared = &self.gate.shared;
            if !shared.rows().exists(&request.lease) {
                return Ok(None);
            }
            let id = shared.rows().begin(Instant::now());
            let (gate, lease) = (Arc::clone(&self.gate), request.lease.clone());
            let session = MemorySession { gate, home: self.home, lease, id };
            take_row(&self.gate, &request.lease, Row::Fence, id).await?;
            if request.both {
                take_row(&self.gate, &request.lease, Row::Lease, id).await?;
            }
            let clock = shared.clock();
            let locked = shared.rows().read(&request.lease, &request.operations, clock);
            self.gate.thaw().await;
            Ok(Some((Box::new(session) as Box<dyn FenceSession>, locked)))
        })
    }

    fn renew(&self, request: RenewRequest) -> Answer<'_, Renewed> {
        Box::pin(async move {
            let (shared, lease) = (&self.gate.shared, request.credential.lease.clone());
            if self.gate.pass("renew").await.is_some() {
                return Err(certain("renew"));
            }
            if !shared.rows().exists(&lease) {
                return Ok(Renewed::Absent);
            }
            let id = shared.rows().begin(Instant::now());
            let (gate, home) = (Arc::clone(&self.gate), self.home);
            // Ends with this call, whatever happens.
            let session = MemorySession { gate, home, lease: lease.clone(), id };
            take_row(&self.gate, &lease, Row::Lease, id).await?;
            let clock = shared.clock();
            let rows = shared.rows().read(&lease, &[], clock);
            if standing(&rows, &request.credential, i64::MAX) != Standing::Live {
                return Ok(Renewed::Refused(Box::new(rows)));
            }
            let ttl_ms = request.ttl_ms.unwrap_or(rows.lease.ttl_ms);
            // The slow COMMIT of MODEL-2 H4: read, and written a moment later.
            let fault = self.gate.pass("commit.renew").await;
            session.statement()?;
            if matches!(fault, Some(Fault::Fail | Fault::Refuse)) {
                return Err(unknown("commit"));
            }
            let now = shared.clock();
            let lease = shared.rows().extend(&lease, ttl_ms, clock);
            drop(session);
            fault.map_or(Ok(Renewed::Extended { lease, now }), |_| Err(unknown("commit")))
        })
    }

    fn inspect<'a>(&'a self, lease: &'a LeaseName) -> Answer<'a, Option<LeaseView>> {
        Box::pin(async move {
            let found = self.look(lease, &[], "inspect").await?;
            Ok(found.map(|rows| view(lease, rows)))
        })
    }

    fn find<'a>(
        &'a self,
        lease: &'a LeaseName,
        id: &'a OperationId,
    ) -> Answer<'a, Option<Box<Locked>>> {
        Box::pin(async move {
            Ok(self.look(lease, std::slice::from_ref(id), "find").await?.map(Box::new))
        })
    }

    fn list(&self, page: LeasePage) -> Answer<'_, Vec<LeaseView>> {
        Box::pin(async move {
            if self.gate.pass("list").await.is_some() {
                return Err(unknown("list"));
            }
            let shared = &self.gate.shared;
            let now = shared.clock();
            let rows = shared.rows();
            let mut names = rows.names();
            names.retain(|n| {
                n.as_str().starts_with(&page.prefix) && page.after.as_ref().is_none_or(|a| n > a)
            });
            names.truncate(page.limit.into());
            Ok(names.into_iter().map(|n| view(&n, rows.read(&n, &[], now))).collect())
        })
    }

    fn history<'a>(
        &'a self,
        lease: &'a LeaseName,
        page: HistoryPage,
    ) -> Answer<'a, Option<Vec<HistoryEntry>>> {
        Box::pin(async move {
            if self.gate.pass("history").await.is_some() {
                return Err(unknown("history"));
            }
            let rows = self.gate.shared.rows();
            Ok(rows.exists(lease).then(|| {
                let entries = rows.history(lease).into_iter().filter(|e| e.id > page.after);
                entries.take(page.limit.into()).collect()
            }))
        })
    }

    fn purge(&self, step: PurgeStep) -> Answer<'_, Purged> {
        Box::pin(async move {
            if self.gate.pass("purge").await.is_some() {
                return Err(unknown("purge"));
            }
            let shared = &self.gate.shared;
            let now = shared.clock();
            let kept_s = step.retention_s.saturating_add(PURGE_AFTER_S);
            let before = DbTime(now.0.saturating_sub(kept_s.saturating_mul(1_000_000)));
            Ok(shared.rows().purge(step, before))
        })
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(
            async move { self.gate.pass("probe").await.map_or(Ok(()), |_| Err(unknown("probe"))) },
        )
    }
}

impl MemoryStore {
    async fn look(
        &self,
        lease: &LeaseName,
        ids: &[OperationId],
        point: &'static str,
    ) -> Result<Option<Locked>, Failure> {
        if self.gate.pass(point).await.is_some() {
            return Err(unknown(point));
        }
        let shared = &self.gate.shared;
        if !shared.rows().exists(lease) {
            return Ok(None);
        }
        let now = shared.clock();
        Ok(Some(shared.rows().read(lease, ids, now)))
    }
}

fn view(name: &LeaseName, rows: Locked) -> LeaseView {
    let Locked { fence, lease, now, .. } = rows;
    LeaseView { name: name.clone(), fence, lease, home_url: None, now }
}

impl MemorySession {
    fn statement(&self) -> Result<(), Failure> {
        let lives = self.gate.shared.rows().touch(self.id, Instant::now());
        if lives { Ok(()) } else { Err(unknown("session ended")) }
    }

    /// One statement; a fault ends the session, as a broken connection would.
    async fn pass(&self, point: &str) -> Result<(), Failure> {
        let fault = self.gate.pass(point).await;
        self.statement()?;
        if fault.is_some() {
            self.gate.shared.rows().end(self.id);
            return Err(unknown("statement"));
        }
        Ok(())
    }

    /// The COMMIT as the database performs it: all or nothing, and then the session is over.
    fn write(&self, write: Write) -> Result<Committed, Failure> {
        self.statement()?;
        let shared = &self.gate.shared;
        let now = shared.clock();
        let installs = matches!(write, Write::Install { .. });
        if !shared.rows().takes(&self.lease, &write, now) {
            // As in Postgres: no row matched, rolled back, and nothing is built on it.
            shared.rows().end(self.id);
            return Err(unknown("the row is not as it was locked"));
        }
        let written = shared.rows().write(&self.lease, write, self.home, now);
        if installs {
            let open = shared.kafka().is_open(&self.lease);
            if open {
                shared.violation("installed over an open transaction".to_owned());
            }
        }
        shared.rows().end(self.id);
        match written {
            Ok(expires_at) => Ok(Committed { expires_at, now }),
            Err(violation) => {
                shared.violation(violation);
                Err(unknown("violation"))
            }
        }
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.gate.shared.rows().end(self.id);
    }
}

fn commit_point(write: &Write) -> &'static str {
    match write {
        Write::Install { .. } => "commit.install",
        Write::Reopen { .. } => "commit.reopen",
        Write::Record { .. } => "commit.record",
        Write::Release { .. } => "commit.release",
        Write::Settle { .. } => "commit.settle",
        Write::Retire { .. } => "commit.retire",
        Write::Quarantine { .. } => "commit.quarantine",
        Write::Expire => "commit.expire",
        Write::Nonce { .. } => "commit.nonce",
    }
}

impl FenceSession for MemorySession {
    fn lock_lease(&mut self) -> Answer<'_, (LeaseRow, DbTime)> {
        Box::pin(async move {
            self.pass("lock_lease").await?;
            take_row(&self.gate, &self.lease, Row::Lease, self.id).await?;
            let now = self.gate.shared.clock();
            Ok((self.gate.shared.rows().read(&self.lease, &[], now).lease, now))
        })
    }

    fn draw_token(&mut self) -> Answer<'_, FencingToken> {
        Box::pin(async move {
            self.pass("draw").await?;
            Ok(self.gate.shared.rows().draw())
        })
    }

    fn find(&mut self, ids: Vec<OperationId>) -> Answer<'_, Vec<Stored>> {
        Box::pin(async move {
            self.pass("find").await?;
            let now = self.gate.shared.clock();
            Ok(self.gate.shared.rows().read(&self.lease, &ids, now).found)
        })
    }

    fn confirm(&mut self) -> Answer<'_, ()> {
        Box::pin(async move { self.pass("confirm").await })
    }

    fn commit(self: Box<Self>, write: Write) -> Answer<'static, Committed> {
        Box::pin(async move {
            let answer = match self.gate.pass(commit_point(&write)).await {
                None => self.write(write),
                Some(Fault::Refuse) => Err(certain("commit")),
                Some(Fault::Lost) => self.write(write).and_then(|_| Err(unknown("commit"))),
                Some(Fault::Late) => {
                    // The lock stays until it lands.
                    let gate = Arc::clone(&self.gate);
                    drop(telemetry::spawn("late-commit", async move {
                        sleep(LATE).await;
                        drop(self.write(write));
                    }));
                    gate.thaw().await;
                    return Err(unknown("commit"));
                }
                Some(_) => Err(unknown("commit")),
            };
            self.gate.thaw().await;
            answer
        })
    }

    fn abandon(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { drop(self) })
    }
}
