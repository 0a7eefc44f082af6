//! The one statement that reads a lease: both rows, the clock, the incarnation, the operations.
//!
//! Used under the lock (in a statement after it) and without. Never locks, never writes.

use super::checkout::Session;
use super::error::Unreadable;
use super::operations::{StoredColumns, texts};
use crate::engine::ports::{LeasePage, LeaseView};
use crate::protocol::fence::{FenceRow, LeaseRow, Locked};
use crate::protocol::lease::{
    BatchSeq, DbTime, FencingToken, Identity, Incarnation, InstanceId, LeaseName, Nonce, Owner,
    RequestId,
};
use crate::protocol::ledger::LedgerPartition;
use crate::protocol::operation::OperationId;
use sqlx::types::Uuid;

/// All that the statement brings.
pub(super) struct Rows {
    pub(super) locked: Locked,
    pub(super) home_url: Option<String>,
}

impl Rows {
    pub(super) fn view(self, name: LeaseName) -> LeaseView {
        LeaseView {
            name,
            fence: self.locked.fence,
            lease: self.locked.lease,
            home_url: self.home_url,
            now: self.locked.now,
        }
    }
}

/// A number for a BIGINT. One that does not fit becomes the largest, which no guard lets pass.
pub(super) fn big(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// One row of the statement. Times are in microseconds since 1970.
struct Columns {
    name: String,
    token: i64,
    owner: String,
    incarnation: i64,
    batch_seq: i64,
    nonce: Option<Uuid>,
    home: Option<Uuid>,
    home_url: Option<String>,
    ledger_partition: i32,
    quarantine: Option<String>,
    lease_owner: String,
    identity: String,
    lease_token: i64,
    expires_us: i64,
    released: bool,
    ttl_ms: i64,
    request_id: Option<String>,
    now_us: i64,
    database_incarnation: Option<i64>,
    forgotten_us: Option<i64>,
    operation_id: Option<String>,
    fingerprint: Option<Vec<u8>>,
    operation_token: Option<i64>,
    operation_incarnation: Option<i64>,
    operation_seq: Option<i64>,
    runs: Option<Vec<u8>>,
}

impl Columns {
    fn fence(&self) -> FenceRow {
        FenceRow {
            // The tables' CHECKs keep all numbers at zero or above.
            token: FencingToken(self.token.unsigned_abs()),
            owner: Owner::stored(&self.owner),
            incarnation: Incarnation(self.incarnation.unsigned_abs()),
            seq: BatchSeq(self.batch_seq.unsigned_abs()),
            nonce: self.nonce.map(|id| Nonce(id.into_bytes())),
            home: self.home.map(|id| InstanceId(id.into_bytes())),
            partition: LedgerPartition(self.ledger_partition),
            quarantine: self.quarantine.clone(),
        }
    }

    fn lease(&self) -> LeaseRow {
        LeaseRow {
            owner: Owner::stored(&self.lease_owner),
            identity: Identity::new(&self.identity),
            token: FencingToken(self.lease_token.unsigned_abs()),
            expires_at: DbTime(self.expires_us),
            released: self.released,
            ttl_ms: self.ttl_ms.unsigned_abs(),
            request_id: self.request_id.as_deref().map(RequestId::stored),
        }
    }

    fn operation(&self) -> Option<StoredColumns> {
        Some(StoredColumns {
            id: self.operation_id.clone()?,
            fingerprint: self.fingerprint.clone()?,
            token: self.operation_token?,
            incarnation: self.operation_incarnation?,
            batch_seq: self.operation_seq?,
            runs: self.runs.clone()?,
        })
    }
}

/// Reads the leases of a page, by name in byte order: the order of their index.
///
/// One statement, so one snapshot and one clock. The prefix is a range of that index whatever the
/// plan is: both of its ends are parameters.
pub(super) async fn page(
    session: &mut Session,
    page: &LeasePage,
) -> Result<Vec<LeaseView>, sqlx::Error> {
    let after = page.after.as_ref().map_or("", LeaseName::as_str);
    // It comes after every byte that a lease name may have.
    let end = format!("{}{{", page.prefix);
    let rows = sqlx::query_as!(
        Columns,
        r#"WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
           SELECT f.lease AS name, f.token, f.owner, f.incarnation, f.batch_seq, f.nonce, f.home,
               f.home_url, f.ledger_partition, f.quarantine,
               l.owner AS lease_owner, l.identity, l.token AS lease_token, l.released, l.ttl_ms,
               l.request_id,
               (extract(epoch FROM l.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM clock.now) * 1000000)::bigint AS "now_us!",
               i.incarnation AS "database_incarnation?",
               (extract(epoch FROM i.forgotten_to) * 1000000)::bigint AS "forgotten_us?",
               NULL::text AS operation_id, NULL::bytea AS fingerprint,
               NULL::bigint AS operation_token, NULL::bigint AS operation_incarnation,
               NULL::bigint AS operation_seq, NULL::bytea AS runs
           FROM leases l
           JOIN fences f ON f.lease = l.lease
           CROSS JOIN clock
           LEFT JOIN installation i ON i.singleton
           WHERE l.lease COLLATE "C" > $1 AND l.lease COLLATE "C" >= $2
               AND l.lease COLLATE "C" < $3
           ORDER BY l.lease COLLATE "C" LIMIT $4"#,
        after,
        page.prefix,
        end,
        i64::from(page.limit),
    )
    .fetch_all(session.conn()?)
    .await?;
    let view = |row: Columns| {
        let name = LeaseName::parse(&row.name).map_err(|_| Unreadable("leases.lease"))?;
        let rows = gather(vec![row])?.ok_or(Unreadable("leases"))?;
        Ok(rows.view(name))
    };
    let views: Result<_, Unreadable> = rows.into_iter().map(view).collect();
    views.map_err(Unreadable::decode)
}

/// Reads a lease.
///
/// One statement, so one snapshot: no answer mixes two states. Run under the fence row's lock its
/// snapshot is taken after the lock was got, so it shows what the holder before left. The clock is
/// read once, by this statement, after its snapshot was taken: a lease it calls unexpired was so
/// then, because only holders of the fence row's lock ever end one early, and a renew that commits
/// meanwhile only makes it longer.
pub(super) async fn read(
    session: &mut Session,
    lease: &LeaseName,
    ids: &[OperationId],
) -> Result<Option<Rows>, sqlx::Error> {
    let rows = sqlx::query_as!(
        Columns,
        r#"WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
           SELECT f.lease AS name, f.token, f.owner, f.incarnation, f.batch_seq, f.nonce, f.home,
               f.home_url, f.ledger_partition, f.quarantine,
               l.owner AS lease_owner, l.identity, l.token AS lease_token, l.released, l.ttl_ms,
               l.request_id,
               (extract(epoch FROM l.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM clock.now) * 1000000)::bigint AS "now_us!",
               i.incarnation AS "database_incarnation?",
               (extract(epoch FROM i.forgotten_to) * 1000000)::bigint AS "forgotten_us?",
               o.operation_id AS "operation_id?", o.fingerprint AS "fingerprint?",
               o.token AS "operation_token?", o.incarnation AS "operation_incarnation?",
               o.batch_seq AS "operation_seq?", o.runs AS "runs?"
           FROM fences f
           JOIN leases l ON l.lease = f.lease
           CROSS JOIN clock
           LEFT JOIN installation i ON i.singleton
           LEFT JOIN operations o ON o.lease = f.lease AND o.operation_id = ANY ($2)
           WHERE f.lease = $1"#,
        lease.as_str(),
        &texts(ids),
    )
    .fetch_all(session.conn()?)
    .await?;
    gather(rows).map_err(Unreadable::decode)
}

/// One row comes back for every operation found, and one if none was: the lease's columns stand in
/// each of them.
fn gather(rows: Vec<Columns>) -> Result<Option<Rows>, Unreadable> {
    let mut found = Vec::new();
    let mut first = None;
    for row in rows {
        if let Some(stored) = row.operation() {
            found.push(stored.read()?);
        }
        first.get_or_insert(row);
    }
    let Some(row) = first else { return Ok(None) };
    let (Some(incarnation), Some(forgotten_us)) = (row.database_incarnation, row.forgotten_us)
    else {
        return Err(Unreadable("no installation row"));
    };
    let (fence, lease) = (row.fence(), row.lease());
    let locked = Locked {
        fence,
        lease,
        now: DbTime(row.now_us),
        incarnation: Incarnation(incarnation.unsigned_abs()),
        forgotten_to: DbTime(forgotten_us),
        found,
    };
    Ok(Some(Rows { locked, home_url: row.home_url }))
}
