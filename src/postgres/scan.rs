//! Reads all accepted operations, page by page: for the audit.
//!
//! A session of its own, outside the pools: an audit never takes one from a request. Never locks,
//! never writes.

use super::error::{Fault, Unreadable};
use super::operations::StoredColumns;
use crate::engine::ports::Failure;
use crate::protocol::operation::Stored;
use sqlx::{Connection, PgConnection};
use std::time::Duration;

const STAGE: &str = "scan operations";
const PAGE: i64 = 5_000;
/// For one page, and for the connection.
const PAGE_WAIT: Duration = Duration::from_secs(30);

struct Row {
    lease: String,
    id: String,
    fingerprint: Vec<u8>,
    token: i64,
    incarnation: i64,
    batch_seq: i64,
    runs: Vec<u8>,
}

/// Gives every accepted operation to `take`, by lease and id.
pub async fn operations(url: &str, mut take: impl FnMut(String, Stored)) -> Result<(), Failure> {
    let mut session = bounded(PgConnection::connect(url)).await?;
    let (mut lease, mut id) = (String::new(), String::new());
    loop {
        let page = sqlx::query_as!(
            Row,
            r#"SELECT lease, operation_id AS id, fingerprint, token, incarnation, batch_seq, runs
               FROM operations WHERE (lease, operation_id) > ($1, $2)
               ORDER BY lease, operation_id LIMIT $3"#,
            lease,
            id,
            PAGE,
        )
        .fetch_all(&mut session);
        let rows = bounded(page).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        (lease, id) = (last.lease.clone(), last.id.clone());
        for row in rows {
            let columns = StoredColumns {
                id: row.id,
                fingerprint: row.fingerprint,
                token: row.token,
                incarnation: row.incarnation,
                batch_seq: row.batch_seq,
                runs: row.runs,
            };
            let stored = columns.read().map_err(Unreadable::decode);
            take(row.lease, stored.map_err(|e| Fault::Sql(e).not_happened(STAGE))?);
        }
    }
}

async fn bounded<T>(call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(PAGE_WAIT, call).await {
        Ok(answer) => answer.map_err(|e| Fault::Sql(e).not_happened(STAGE)),
        Err(_) => Err(Failure::Indeterminate { stage: STAGE, detail: "no answer".to_owned() }),
    }
}
