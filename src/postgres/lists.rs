//! What people and dashboards read: many leases, and what happened to one.
//!
//! Runs on sessions of its own: a renew never waits for a list. Never locks, never writes, decides
//! nothing.

use super::checkout::within;
use super::{Postgres, rows};
use crate::engine::ports::{Failure, HistoryEntry, HistoryPage, LeasePage, LeaseView};
use crate::protocol::lease::{BatchSeq, DbTime, FencingToken, Incarnation, InstanceId, LeaseName};
use sqlx::types::Uuid;

struct Entry {
    id: i64,
    at_us: i64,
    event: String,
    token: i64,
    owner: String,
    incarnation: i64,
    batch_seq: i64,
    home: Option<Uuid>,
    note: Option<String>,
}

impl From<Entry> for HistoryEntry {
    fn from(row: Entry) -> Self {
        Self {
            id: row.id,
            at: DbTime(row.at_us),
            event: row.event,
            token: FencingToken(row.token.unsigned_abs()),
            owner: row.owner,
            incarnation: Incarnation(row.incarnation.unsigned_abs()),
            seq: BatchSeq(row.batch_seq.unsigned_abs()),
            home: row.home.map(|id| InstanceId(id.into_bytes())),
            note: row.note,
        }
    }
}

impl Postgres {
    pub(super) async fn list_leases(&self, page: LeasePage) -> Result<Vec<LeaseView>, Failure> {
        const STAGE: &str = "list leases";
        let mut session = self.reader(STAGE).await?;
        let views = within(self.options.timeouts.call(), rows::page(&mut session, &page))
            .await
            .map_err(|f| f.not_happened(STAGE))?;
        session.give_back();
        Ok(views)
    }

    pub(super) async fn read_history(
        &self,
        lease: &LeaseName,
        page: HistoryPage,
    ) -> Result<Option<Vec<HistoryEntry>>, Failure> {
        const STAGE: &str = "read history";
        let mut session = self.reader(STAGE).await?;
        let read = async {
            let exists = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT 1 FROM leases WHERE lease = $1) AS "exists!""#,
                lease.as_str(),
            )
            .fetch_one(session.conn()?)
            .await?;
            if !exists {
                return Ok(None);
            }
            let entries = sqlx::query_as!(
                Entry,
                r#"SELECT id, (extract(epoch FROM at) * 1000000)::bigint AS "at_us!", event, token,
                       owner, incarnation, batch_seq, home, note
                   FROM fence_history WHERE lease = $1 AND id > $2 ORDER BY id LIMIT $3"#,
                lease.as_str(),
                page.after,
                i64::from(page.limit),
            )
            .fetch_all(session.conn()?)
            .await?;
            Ok(Some(entries.into_iter().map(HistoryEntry::from).collect()))
        };
        let entries =
            within(self.options.timeouts.call(), read).await.map_err(|f| f.not_happened(STAGE))?;
        session.give_back();
        Ok(entries)
    }
}
