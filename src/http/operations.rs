//! What became of an operation, and what happened to leases: the calls that only look.
//!
//! Owns their parameters and the shapes of their answers. The one that may do more is the look-up
//! of an operation, which settles an expired lease if it is asked to.

use crate::engine::api::{OperationQuery, OperationState};
use crate::engine::ports::{HistoryEntry, HistoryPage, LeasePage};
use crate::http::Gateway;
use crate::http::identity::{LeasePath, OperationPath, Operator, Viewer};
use crate::http::leases::{LeaseBody, lease_body, rfc3339};
use crate::http::problem::Problem;
use crate::http::produce::{ProducedBody, produced_body};
use crate::http::query::Parameters;
use crate::protocol::lease::LeaseName;
use crate::protocol::operation::OperationId;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use std::sync::Arc;

/// Items of one page, unless asked for another number.
pub(super) const PAGE: u16 = 100;
/// Most items of one page.
pub(super) const PAGE_MAX: u16 = 1_000;

#[derive(Serialize)]
pub(super) struct OperationBody {
    lease: String,
    operation_id: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    up_to_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<ProducedBody>,
}

#[derive(Serialize)]
pub(super) struct Page<T, N> {
    items: Vec<T>,
    next: Option<N>,
}

#[derive(Serialize)]
pub(super) struct HistoryBody {
    id: i64,
    at: String,
    event: String,
    token: String,
    owner: String,
    incarnation: u64,
    batch_seq: u64,
    home: Option<String>,
    note: Option<String>,
}

/// GET /v1/leases/{lease}/operations/{id}
pub(super) async fn operation(
    State(gateway): State<Arc<Gateway>>,
    OperationPath(id): OperationPath,
    Viewer { lease, credential }: Viewer,
    parameters: Parameters,
) -> Result<Json<OperationBody>, Problem> {
    let answer = async {
        let settle = parameters.only(&["settle"])?.flag("settle")?;
        let (lease, id) = (lease.clone(), id.clone());
        Ok(gateway.engine.operation(OperationQuery { lease, id, credential, settle }).await?)
    };
    let state = answer.await.map_err(|problem: Problem| problem.on(&lease))?;
    Ok(Json(operation_body(&lease, &id, state)))
}

/// GET /v1/leases
pub(super) async fn list(
    State(gateway): State<Arc<Gateway>>,
    Operator: Operator,
    parameters: Parameters,
) -> Result<Json<Page<LeaseBody, String>>, Problem> {
    let page = lease_page(parameters.only(&["prefix", "limit", "after"])?)?;
    let limit = page.limit;
    let leases = gateway.engine.list(page).await?;
    let next = leases.last().filter(|_| leases.len() >= usize::from(limit));
    let next = next.map(|view| view.name.as_str().to_owned());
    Ok(Json(Page { items: leases.into_iter().map(lease_body).collect(), next }))
}

/// GET /v1/leases/{lease}/history
pub(super) async fn history(
    State(gateway): State<Arc<Gateway>>,
    LeasePath(lease): LeasePath,
    Operator: Operator,
    parameters: Parameters,
) -> Result<Json<Page<HistoryBody, i64>>, Problem> {
    let answer = async {
        let parameters = parameters.only(&["limit", "after"])?;
        let limit = parameters.limit(PAGE, PAGE_MAX)?;
        let page = HistoryPage { after: parameters.number("after")?.unwrap_or(0), limit };
        let entries = gateway.engine.history(lease.clone(), page).await?;
        let next = entries.last().filter(|_| entries.len() >= usize::from(limit)).map(|e| e.id);
        Ok(Page { items: entries.into_iter().map(history_body).collect(), next })
    };
    answer.await.map(Json).map_err(|problem: Problem| problem.on(&lease))
}

fn lease_page(parameters: Parameters) -> Result<LeasePage, Problem> {
    let prefix = parameters.get("prefix").unwrap_or_default().to_owned();
    // The beginnings of a name that are no names by themselves.
    let begins = ["", ".", ".."].contains(&prefix.as_str()) || LeaseName::parse(&prefix).is_ok();
    if !begins {
        return Err(Problem::parameter("prefix", "must be the beginning of a lease name"));
    }
    let after = parameters.get("after").map(|name| {
        LeaseName::parse(name).map_err(|rule| Problem::parameter("after", rule.to_string()))
    });
    Ok(LeasePage { prefix, after: after.transpose()?, limit: parameters.limit(PAGE, PAGE_MAX)? })
}

fn operation_body(lease: &LeaseName, id: &OperationId, state: OperationState) -> OperationBody {
    let (state, up_to_token, answer) = match state {
        OperationState::Committed(produced) => {
            ("committed", None, Some(produced_body(lease, produced)))
        }
        OperationState::Unknown => ("unknown", None, None),
        OperationState::Absent { up_to } => ("absent", Some(up_to.to_string()), None),
    };
    let (lease, operation_id) = (lease.as_str().to_owned(), id.as_str().to_owned());
    OperationBody { lease, operation_id, state, up_to_token, answer }
}

fn history_body(entry: HistoryEntry) -> HistoryBody {
    HistoryBody {
        id: entry.id,
        at: rfc3339(entry.at),
        event: entry.event,
        token: entry.token.to_string(),
        owner: entry.owner,
        incarnation: entry.incarnation.0,
        batch_seq: entry.seq.0,
        home: entry.home.map(|home| uuid::Uuid::from_bytes(home.0).to_string()),
        note: entry.note,
    }
}
