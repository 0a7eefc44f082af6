//! The lease row: make it, lock it, hold it, renew it, end it.
//!
//! A lease is held iff the database's clock, read after the row's lock was got, is below
//! `expires_at` (and it was not released). Writes of a session that holds the fence row's lock
//! carry the same guards as in `fences`. Lock order: fence, then lease; a renew locks the lease row
//! only.

use super::checkout::Session;
use super::fences::{Home, Opened, Seen, Written};
use super::rows::big;
use crate::engine::ports::RenewRequest;
use crate::protocol::fence::LeaseRow;
use crate::protocol::lease::{DbTime, FencingToken, LeaseName};
use crate::protocol::lease::{Identity, Incarnation, Owner, RequestId};
use crate::protocol::ledger::LedgerPartition;

/// The columns that an install writes.
pub(super) struct Installed<'a> {
    pub(super) token: FencingToken,
    pub(super) owner: &'a Owner,
    pub(super) identity: &'a Identity,
    pub(super) ttl_ms: u64,
    pub(super) request_id: Option<&'a RequestId>,
    pub(super) incarnation: Incarnation,
}

/// How a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Given back by its holder.
    Release,
    /// Over, and its unknown operations are decided.
    Settle,
    /// Over because its token was burnt.
    Retire,
}

impl End {
    pub(super) fn event(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Settle => "settle",
            Self::Retire => "retire",
        }
    }
}

/// Inserts the missing rows of a lease.
///
/// One statement that commits by itself, so there is never one row without the other. Of two at
/// once the second waits for the first and then does nothing. No clock: an empty row has token 0,
/// which nobody holds.
pub(super) async fn ensure(
    session: &mut Session,
    lease: &LeaseName,
    partition: LedgerPartition,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"WITH fence AS (
               INSERT INTO fences (lease, ledger_partition) VALUES ($1, $2)
               ON CONFLICT (lease) DO NOTHING
           )
           INSERT INTO leases (lease) VALUES ($1) ON CONFLICT (lease) DO NOTHING"#,
        lease.as_str(),
        partition.0,
    )
    .execute(session.conn()?)
    .await
    .map(drop)
}

/// Locks the lease row; false if there is none. A statement of its own, as in `fences::lock`.
pub(super) async fn lock(session: &mut Session, lease: &LeaseName) -> Result<bool, sqlx::Error> {
    sqlx::query!("SELECT 1 AS one FROM leases WHERE lease = $1 FOR UPDATE", lease.as_str())
        .fetch_optional(session.conn()?)
        .await
        .map(|row| row.is_some())
}

/// Renews a lease under its own row's lock, in one statement that commits by itself.
///
/// Which clock: `held` waits for the row's lock and hands on its newest version; `judged` reads the
/// clock for a row that `held` has handed on, so after the lock was got. Both are MATERIALIZED: the
/// planner may not merge them and move the clock in front of the wait. (A plain `UPDATE ... WHERE
/// clock_timestamp() < expires_at` reads it before it waits: it revives a lease that ended
/// meanwhile.)
///
/// Atomic: between that clock and the commit nobody else can change the row, which is locked. The
/// update's own target may be a version older than the locked one (the statement's snapshot is from
/// before the wait); Postgres then takes the newest version, which is the one that we hold, and
/// checks again with the same `judged`. GREATEST: never shorter, and two renews never add up.
///
/// A credential that is over renews nothing, by the same clock: an old one left behind by a renew
/// would keep a lease alive that its holder has lost sight of. One that does not hold yet renews
/// nothing either.
///
/// The fence row is read unlocked in that older snapshot. That is enough: its token, owner and
/// incarnation must be the credential's, and an install of another token also changes the lease
/// row, whose newest version is compared too. A quarantine that commits meanwhile may be missed: it
/// forbids writing, which every batch checks under the fence row's lock, not holding.
pub(super) async fn renew(
    session: &mut Session,
    request: &RenewRequest,
) -> Result<Option<(LeaseRow, DbTime)>, sqlx::Error> {
    let credential = &request.credential;
    let renewed = sqlx::query!(
        r#"WITH held AS MATERIALIZED (
               SELECT lease, token, owner, expires_at, released, ttl_ms
               FROM leases WHERE lease = $1 FOR UPDATE
           ), judged AS MATERIALIZED (
               SELECT held.*, COALESCE($5::bigint, held.ttl_ms) AS new_ttl_ms,
                   clock_timestamp() AS now
               FROM held
           )
           UPDATE leases
           SET expires_at = GREATEST(
                   leases.expires_at, judged.now + judged.new_ttl_ms * interval '1 millisecond'),
               ttl_ms = judged.new_ttl_ms, updated_at = judged.now
           FROM judged JOIN fences ON fences.lease = judged.lease
           WHERE leases.lease = judged.lease
               AND judged.token = $2 AND judged.owner = $3 AND judged.token > 0
               AND NOT judged.released AND judged.now < judged.expires_at
               AND extract(epoch FROM judged.now) < $6::bigint
               AND extract(epoch FROM judged.now) >= $7::bigint
               AND fences.token = $2 AND fences.owner = $3 AND fences.incarnation = $4
               AND fences.quarantine IS NULL
           RETURNING leases.identity, leases.ttl_ms, leases.request_id,
               (extract(epoch FROM leases.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM judged.now) * 1000000)::bigint AS "now_us!""#,
        credential.lease.as_str(),
        big(credential.token.0),
        credential.owner.as_str(),
        big(credential.incarnation.0),
        request.ttl_ms.map(big),
        credential.expires_s,
        credential.issued_s,
    )
    .fetch_optional(session.conn()?)
    .await?;
    Ok(renewed.map(|row| {
        let lease = LeaseRow {
            owner: credential.owner.clone(),
            identity: Identity::new(&row.identity),
            token: credential.token,
            expires_at: DbTime(row.expires_us),
            released: false,
            ttl_ms: row.ttl_ms.unsigned_abs(),
            request_id: row.request_id.as_deref().map(RequestId::stored),
        };
        (lease, DbTime(row.now_us))
    }))
}

/// Installs a token: both rows, redo and history.
///
/// Atomic: lease row, redo and history hang on the fence row that the update changed, and the
/// result on both rows. The new token must be above the one seen (and a trigger holds that too),
/// and a lease that is still held yields no row. The clock is this statement's: expiry is counted
/// from the step that installs, not from when the acquire began. Both rows are locked already, so
/// nothing here waits after the clock was read.
pub(super) async fn install(
    session: &mut Session,
    seen: &Seen,
    home: &Home,
    new: &Installed<'_>,
    opened: &Opened,
) -> Result<Option<Written>, sqlx::Error> {
    sqlx::query_as!(
        Written,
        r#"WITH clock AS MATERIALIZED (
               SELECT clock_timestamp() AS now
           ), fence AS (
               UPDATE fences
               SET token = $2, owner = $3, incarnation = $4, batch_seq = $5, nonce = $6, home = $7,
                   home_url = $8, updated_at = clock.now
               FROM clock
               WHERE lease = $1 AND batch_seq = $9 AND token = $10
                   AND nonce IS NOT DISTINCT FROM $11
                   AND token < $2 AND batch_seq = $5::bigint - $12::bigint AND quarantine IS NULL
               RETURNING lease, token, owner, incarnation, batch_seq, home, clock.now
           ), held AS (
               UPDATE leases
               SET token = fence.token, owner = fence.owner, identity = $13,
                   expires_at = fence.now + $14::bigint * interval '1 millisecond',
                   released = false, ttl_ms = $14, request_id = $15, updated_at = fence.now
               FROM fence
               WHERE leases.lease = fence.lease
                   AND (leases.token = 0 OR leases.released OR leases.expires_at <= fence.now)
               RETURNING leases.lease, leases.expires_at
           ), redone AS (
               INSERT INTO operations
                   (lease, operation_id, fingerprint, token, incarnation, batch_seq, runs)
               SELECT fence.lease, given.id, given.fingerprint, $16, $17, fence.batch_seq,
                   given.runs
               FROM fence, UNNEST($18::text[], $19::bytea[], $20::bytea[])
                   AS given (id, fingerprint, runs)
               ON CONFLICT (lease, operation_id) DO NOTHING
           ), history AS (
               INSERT INTO fence_history
                   (lease, event, token, owner, incarnation, batch_seq, home, note)
               SELECT lease, 'install', token, owner, incarnation, batch_seq, home,
                   CASE WHEN $12 > 0 THEN 'with a redo' END
               FROM fence
           )
           SELECT (extract(epoch FROM held.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM fence.now) * 1000000)::bigint AS "now_us!"
           FROM fence JOIN held ON held.lease = fence.lease"#,
        seen.lease.as_str(),
        big(new.token.0),
        new.owner.as_str(),
        big(new.incarnation.0),
        opened.seq,
        opened.nonce,
        home.id,
        home.url.as_str(),
        big(seen.seq.0),
        big(seen.token.0),
        seen.nonce(),
        opened.step,
        new.identity.as_str(),
        big(new.ttl_ms),
        new.request_id.map(RequestId::as_str),
        opened.redo_token,
        opened.redo_incarnation,
        &opened.redo.ids,
        &opened.redo.fingerprints,
        &opened.redo.runs,
    )
    .fetch_optional(session.conn()?)
    .await
}

/// Ends a lease: released, settled or retired.
///
/// Atomic as [`install`] is. Without a nonce no producer was initialised, so mark and home stay. A
/// lease that is still held is not settled. The clock is this statement's; LEAST, because an end
/// never makes a lease longer, and because a lease is over at `expires_at` itself it is over for
/// every later clock.
pub(super) async fn end(
    session: &mut Session,
    seen: &Seen,
    home: &Home,
    how: End,
    opened: &Opened,
) -> Result<Option<Written>, sqlx::Error> {
    sqlx::query_as!(
        Written,
        r#"WITH clock AS MATERIALIZED (
               SELECT clock_timestamp() AS now
           ), fence AS (
               UPDATE fences
               SET batch_seq = $2::bigint, nonce = COALESCE($3, nonce), updated_at = clock.now,
                   home = CASE WHEN $3::uuid IS NULL THEN home ELSE $4 END,
                   home_url = CASE WHEN $3::uuid IS NULL THEN home_url ELSE $5 END
               FROM clock
               WHERE lease = $1 AND batch_seq = $6 AND token = $7 AND nonce IS NOT DISTINCT FROM $8
                   AND batch_seq = $2::bigint - $9::bigint AND quarantine IS NULL
               RETURNING lease, token, owner, incarnation, batch_seq, home, clock.now
           ), ended AS (
               UPDATE leases
               SET released = released OR $10 IN ('release', 'settle'), updated_at = fence.now,
                   expires_at = CASE WHEN $10 = 'retire' THEN LEAST(expires_at, fence.now)
                       ELSE expires_at END
               FROM fence
               WHERE leases.lease = fence.lease
                   AND ($10 <> 'settle' OR leases.released OR leases.expires_at <= fence.now)
               RETURNING leases.lease, leases.expires_at
           ), redone AS (
               INSERT INTO operations
                   (lease, operation_id, fingerprint, token, incarnation, batch_seq, runs)
               SELECT fence.lease, given.id, given.fingerprint, $11, $12, fence.batch_seq,
                   given.runs
               FROM fence, UNNEST($13::text[], $14::bytea[], $15::bytea[])
                   AS given (id, fingerprint, runs)
               ON CONFLICT (lease, operation_id) DO NOTHING
           ), history AS (
               INSERT INTO fence_history
                   (lease, event, token, owner, incarnation, batch_seq, home, note)
               SELECT lease, $10::text, token, owner, incarnation, batch_seq, home,
                   CASE WHEN $9 > 0 THEN 'with a redo' END
               FROM fence
           )
           SELECT (extract(epoch FROM ended.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM fence.now) * 1000000)::bigint AS "now_us!"
           FROM fence JOIN ended ON ended.lease = fence.lease"#,
        seen.lease.as_str(),
        opened.seq,
        opened.nonce,
        home.id,
        home.url.as_str(),
        big(seen.seq.0),
        big(seen.token.0),
        seen.nonce(),
        opened.step,
        how.event(),
        opened.redo_token,
        opened.redo_incarnation,
        &opened.redo.ids,
        &opened.redo.fingerprints,
        &opened.redo.runs,
    )
    .fetch_optional(session.conn()?)
    .await
}

/// Expires the lease of the token that was seen (`replace: true`). Atomic: update and history hang
/// on the fence row as it was seen under its lock. The clock is this statement's; LEAST as in
/// [`end`].
pub(super) async fn expire(
    session: &mut Session,
    seen: &Seen,
) -> Result<Option<Written>, sqlx::Error> {
    sqlx::query_as!(
        Written,
        r#"WITH clock AS MATERIALIZED (
               SELECT clock_timestamp() AS now
           ), fence AS (
               SELECT f.*, clock.now FROM fences f, clock
               WHERE f.lease = $1 AND f.batch_seq = $2 AND f.token = $3
                   AND f.nonce IS NOT DISTINCT FROM $4
           ), ended AS (
               UPDATE leases SET expires_at = LEAST(leases.expires_at, fence.now),
                   updated_at = fence.now
               FROM fence WHERE leases.lease = fence.lease AND leases.token = fence.token
               RETURNING leases.lease, leases.expires_at
           ), history AS (
               INSERT INTO fence_history (lease, event, token, owner, incarnation, batch_seq, home)
               SELECT fence.lease, 'expire', token, owner, incarnation, batch_seq, home
               FROM fence JOIN ended ON ended.lease = fence.lease
           )
           SELECT (extract(epoch FROM ended.expires_at) * 1000000)::bigint AS "expires_us!",
               (extract(epoch FROM fence.now) * 1000000)::bigint AS "now_us!"
           FROM fence JOIN ended ON ended.lease = fence.lease"#,
        seen.lease.as_str(),
        big(seen.seq.0),
        big(seen.token.0),
        seen.nonce(),
    )
    .fetch_optional(session.conn()?)
    .await
}
