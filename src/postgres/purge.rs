//! Removing operations that nobody needs to be told of any more.
//!
//! Owns the statement and its session, which no request ever waits for. Never touches what is
//! younger than the longest retention that any gateway of this database was started with; a trigger
//! keeps that, too.

use super::Postgres;
use super::checkout::{from_pool, within};
use crate::engine::ports::{Failure, PurgeStep, Purged};
use crate::protocol::fence::PURGE_AFTER_S;
use crate::protocol::lease::DbTime;

impl Postgres {
    /// Removes some of the oldest operations.
    ///
    /// One statement that commits by itself. Which clock: `clock_timestamp()`, and a row's own
    /// `accepted_at` is the clock of the statement that inserted it. The index on `accepted_at` is
    /// entered at `from`, where the step before ended: what stood before it is dead and would be
    /// walked over again. Of several gateways one removes, the others find the advisory lock taken
    /// and do nothing: two that delete the same rows in another order would deadlock. A row that is
    /// removed is never locked by anything else: operations are only inserted and read.
    pub(super) async fn purge_operations(&self, step: PurgeStep) -> Result<Purged, Failure> {
        const STAGE: &str = "purge operations";
        let timeouts = self.options.timeouts;
        let mut session = from_pool(&self.purger, timeouts.checkout, STAGE).await?;
        let purge = async {
            sqlx::query!(
                r#"WITH mine AS MATERIALIZED (
                       SELECT pg_try_advisory_xact_lock(hashtext('fencepost purge')) AS is_mine
                   ), horizon AS MATERIALIZED (
                       SELECT clock_timestamp() - make_interval(
                           secs => (GREATEST(retention_s, $1::bigint) + $2::bigint)::float8) AS at
                       FROM installation
                   ), old AS MATERIALIZED (
                       SELECT lease, operation_id, accepted_at FROM operations
                       WHERE (SELECT is_mine FROM mine)
                           AND accepted_at >= 'epoch'::timestamptz + $3::bigint * interval '1 us'
                           AND accepted_at < (SELECT at FROM horizon)
                       ORDER BY accepted_at LIMIT $4
                   ), gone AS (
                       DELETE FROM operations USING old
                       WHERE operations.lease = old.lease
                           AND operations.operation_id = old.operation_id
                       RETURNING old.accepted_at
                   )
                   SELECT count(*) AS "rows!",
                       (extract(epoch FROM max(accepted_at)) * 1000000)::bigint AS to_us
                   FROM gone"#,
                step.retention_s,
                PURGE_AFTER_S,
                step.from.0,
                i64::from(step.rows),
            )
            .fetch_one(session.conn()?)
            .await
        };
        // Removed or not: the next step finds out.
        let gone = within(timeouts.call(), purge).await.map_err(|f| f.unknown(STAGE))?;
        session.give_back();
        Ok(Purged { rows: gone.rows.unsigned_abs(), to: gone.to_us.map_or(step.from, DbTime) })
    }
}
