//! The fence row: lock it, advance it, mark it.
//!
//! Every write here is one statement of a session that holds the row's lock, and every one names
//! the token, the seq and the nonce that the session read under that lock (I3): should the lock not
//! be what it seemed, no row matches and nothing is written. Never draws a token, never commits.

use super::checkout::Session;
use super::operations::Columns;
use super::rows::big;
use crate::protocol::fence::{Committed, FenceRow};
use crate::protocol::lease::{BatchSeq, DbTime, FencingToken, LeaseName, Nonce};
use crate::protocol::ledger::Batch;
use crate::protocol::operation::Accepted;
use sqlx::types::Uuid;

/// The row as it was read under the lock: what a write expects to find.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) lease: LeaseName,
    pub(super) token: FencingToken,
    pub(super) seq: BatchSeq,
    pub(super) nonce: Option<Nonce>,
}

impl Seen {
    pub(super) fn of(lease: &LeaseName, fence: &FenceRow) -> Self {
        let lease = lease.clone();
        Self { lease, token: fence.token, seq: fence.seq, nonce: fence.nonce }
    }

    pub(super) fn nonce(&self) -> Option<Uuid> {
        self.nonce.map(|nonce| Uuid::from_bytes(nonce.0))
    }
}

/// Which gateway writes.
#[derive(Debug, Clone)]
pub(super) struct Home {
    pub(super) id: Uuid,
    pub(super) url: String,
}

/// What an open brings: its mark, the seq after the redo, and the batch that only Kafka knew.
pub(super) struct Opened {
    pub(super) nonce: Option<Uuid>,
    pub(super) seq: i64,
    /// How far the seq goes up: 1 with a redo, else 0.
    pub(super) step: i64,
    pub(super) redo: Columns,
    pub(super) redo_token: i64,
    pub(super) redo_incarnation: i64,
}

impl Opened {
    pub(super) fn of(nonce: Option<Nonce>, seq: BatchSeq, redo: Option<&Batch>) -> Self {
        Self {
            nonce: nonce.map(|nonce| Uuid::from_bytes(nonce.0)),
            seq: big(seq.0),
            step: i64::from(redo.is_some()),
            redo: redo.map(|batch| Columns::of(&batch.operations)).unwrap_or_default(),
            redo_token: redo.map_or(0, |batch| big(batch.token.0)),
            redo_incarnation: redo.map_or(0, |batch| big(batch.incarnation.0)),
        }
    }
}

/// What each writing statement returns, in microseconds since 1970.
pub(super) struct Written {
    pub(super) expires_us: i64,
    pub(super) now_us: i64,
}

impl Written {
    pub(super) fn committed(&self) -> Committed {
        Committed { expires_at: DbTime(self.expires_us), now: DbTime(self.now_us) }
    }
}

/// Locks the fence row; false if there is none.
///
/// A statement of its own: whatever reads the clock or another table does so in a later statement,
/// whose snapshot and clock are then later than the moment the lock was got.
pub(super) async fn lock(session: &mut Session, lease: &LeaseName) -> Result<bool, sqlx::Error> {
    sqlx::query!("SELECT 1 AS one FROM fences WHERE lease = $1 FOR UPDATE", lease.as_str())
        .fetch_optional(session.conn()?)
        .await
        .map(|row| row.is_some())
}

/// Advances the fence by one accepted batch and keeps its operations.
///
/// Atomic: the operations are inserted from the row that the update changed, so with no such row
/// nothing is. An id that is there already breaks the primary key and with it the transaction: the
/// caller looked it up under this lock. No clock decides anything here (a batch that was checked
/// unexpired may be recorded after expiry); the one returned is this statement's.
pub(super) async fn record(
    session: &mut Session,
    seen: &Seen,
    seq: BatchSeq,
    operations: &[Accepted],
) -> Result<Option<Written>, sqlx::Error> {
    let given = Columns::of(operations);
    sqlx::query_as!(
        Written,
        r#"WITH fence AS (
               UPDATE fences SET batch_seq = $2::bigint, updated_at = clock_timestamp()
               WHERE lease = $1 AND batch_seq = $2::bigint - 1 AND batch_seq = $3 AND token = $4
                   AND nonce IS NOT DISTINCT FROM $5 AND token > 0 AND quarantine IS NULL
               RETURNING lease, token, incarnation, batch_seq
           ), kept AS (
               INSERT INTO operations
                   (lease, operation_id, fingerprint, token, incarnation, batch_seq, runs)
               SELECT fence.lease, given.id, given.fingerprint, fence.token, fence.incarnation,
                   fence.batch_seq, given.runs
               FROM fence, UNNEST($6::text[], $7::bytea[], $8::bytea[])
                   AS given (id, fingerprint, runs)
           )
           SELECT (extract(epoch FROM l.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS "now_us!"
           FROM fence JOIN leases l ON l.lease = fence.lease"#,
        seen.lease.as_str(),
        big(seq.0),
        big(seen.seq.0),
        big(seen.token.0),
        seen.nonce(),
        &given.ids,
        &given.fingerprints,
        &given.runs,
    )
    .fetch_optional(session.conn()?)
    .await
}

/// Marks the fence with a re-open of its token.
///
/// Atomic as in [`record`]: redo and history hang on the row that the update changed. The redo may
/// have been written before, so an operation that is there already is left alone. The lease row is
/// read and never written: a re-open changes neither expiry nor `released`.
pub(super) async fn reopen(
    session: &mut Session,
    seen: &Seen,
    home: &Home,
    opened: &Opened,
) -> Result<Option<Written>, sqlx::Error> {
    sqlx::query_as!(
        Written,
        r#"WITH fence AS (
               UPDATE fences
               SET batch_seq = $2::bigint, nonce = $3, home = $4, home_url = $5,
                   updated_at = clock_timestamp()
               WHERE lease = $1 AND batch_seq = $6 AND token = $7 AND nonce IS NOT DISTINCT FROM $8
                   AND batch_seq = $2::bigint - $9::bigint AND token > 0 AND quarantine IS NULL
               RETURNING lease, token, owner, incarnation, batch_seq, home
           ), redone AS (
               INSERT INTO operations
                   (lease, operation_id, fingerprint, token, incarnation, batch_seq, runs)
               SELECT fence.lease, given.id, given.fingerprint, $10, $11, fence.batch_seq,
                   given.runs
               FROM fence, UNNEST($12::text[], $13::bytea[], $14::bytea[])
                   AS given (id, fingerprint, runs)
               ON CONFLICT (lease, operation_id) DO NOTHING
           ), history AS (
               INSERT INTO fence_history
                   (lease, event, token, owner, incarnation, batch_seq, home, note)
               SELECT lease, 'reopen', token, owner, incarnation, batch_seq, home,
                   CASE WHEN $9 > 0 THEN 'with a redo' END
               FROM fence
           )
           SELECT (extract(epoch FROM l.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS "now_us!"
           FROM fence JOIN leases l ON l.lease = fence.lease"#,
        seen.lease.as_str(),
        opened.seq,
        opened.nonce,
        home.id,
        home.url.as_str(),
        big(seen.seq.0),
        big(seen.token.0),
        seen.nonce(),
        opened.step,
        opened.redo_token,
        opened.redo_incarnation,
        &opened.redo.ids,
        &opened.redo.fingerprints,
        &opened.redo.runs,
    )
    .fetch_optional(session.conn()?)
    .await
}

/// Leaves the mark of an open that failed, so that no handle from before it matches any more.
/// One update of the locked row; no clock decides. A quarantined row may be marked too.
pub(super) async fn mark(
    session: &mut Session,
    seen: &Seen,
    home: &Home,
    nonce: Nonce,
) -> Result<Option<Written>, sqlx::Error> {
    sqlx::query_as!(
        Written,
        r#"WITH fence AS (
               UPDATE fences
               SET nonce = $2, home = $3, home_url = $4, updated_at = clock_timestamp()
               WHERE lease = $1 AND batch_seq = $5 AND token = $6 AND nonce IS NOT DISTINCT FROM $7
               RETURNING lease
           )
           SELECT (extract(epoch FROM l.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS "now_us!"
           FROM fence JOIN leases l ON l.lease = fence.lease"#,
        seen.lease.as_str(),
        Uuid::from_bytes(nonce.0),
        home.id,
        home.url.as_str(),
        big(seen.seq.0),
        big(seen.token.0),
        seen.nonce(),
    )
    .fetch_optional(session.conn()?)
    .await
}

/// Quarantines the lease. The first reason stays: a later one is told by the history only, and a
/// trigger keeps the gateway from lifting it. No clock decides.
pub(super) async fn quarantine(
    session: &mut Session,
    seen: &Seen,
    reason: &str,
) -> Result<Option<Written>, sqlx::Error> {
    sqlx::query_as!(
        Written,
        r#"WITH fence AS (
               UPDATE fences
               SET quarantine = COALESCE(quarantine, NULLIF($2::text, ''), 'no reason given'),
                   updated_at = clock_timestamp()
               WHERE lease = $1 AND batch_seq = $3 AND token = $4 AND nonce IS NOT DISTINCT FROM $5
               RETURNING lease, token, owner, incarnation, batch_seq, home
           ), history AS (
               INSERT INTO fence_history
                   (lease, event, token, owner, incarnation, batch_seq, home, note)
               SELECT lease, 'quarantine', token, owner, incarnation, batch_seq, home, $2::text
               FROM fence
           )
           SELECT (extract(epoch FROM l.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS "now_us!"
           FROM fence JOIN leases l ON l.lease = fence.lease"#,
        seen.lease.as_str(),
        reason,
        big(seen.seq.0),
        big(seen.token.0),
        seen.nonce(),
    )
    .fetch_optional(session.conn()?)
    .await
}
