//! Acquire, renew, release, and a lease as it stands.
//!
//! Owns the shapes of these calls and their bounds. Decides nothing about a lease: the engine does,
//! by the database's clock.

use crate::engine::api::{AcquireRequest, Granted};
use crate::engine::ports::LeaseView;
use crate::http::body::JsonBytes;
use crate::http::identity::{Applicant, Holder, Viewer};
use crate::http::json::{self, At, Object};
use crate::http::problem::{Code, Problem};
use crate::http::query::NoParameters;
use crate::http::{Gateway, Settings};
use crate::protocol::fence::Credential;
use crate::protocol::lease::{DbTime, LeaseName, Owner, RequestId};
use crate::protocol::refusal::Refusal;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;

const ACQUIRE: &[&str] = &["owner", "ttl_ms", "wait_ms", "request_id", "replace"];
const RENEW: &[&str] = &["ttl_ms"];
/// Longest time that an acquire may wait.
const WAIT_MS_MAX: u64 = 30_000;

#[derive(Serialize)]
pub(super) struct GrantedBody {
    lease: String,
    owner: String,
    token: String,
    incarnation: u64,
    ttl_ms: u64,
    expires_in_ms: u64,
    expires_at: String,
    credential: String,
    transactional_id: String,
}

#[derive(Serialize)]
pub(super) struct ReleasedBody {
    lease: String,
    token: String,
    released: bool,
}

/// A lease as it stands.
#[derive(Serialize)]
pub(super) struct LeaseBody {
    lease: String,
    owner: Option<String>,
    token: Option<String>,
    incarnation: u64,
    state: &'static str,
    expires_in_ms: u64,
    home: Option<String>,
    batch_seq: u64,
}

/// POST /v1/leases/{lease}/acquire
pub(super) async fn acquire(
    State(gateway): State<Arc<Gateway>>,
    applicant: Applicant,
    NoParameters: NoParameters,
    JsonBytes(body, share): JsonBytes,
) -> Result<Json<GrantedBody>, Problem> {
    let lease = applicant.lease.clone();
    let answer = async {
        let request = decode_acquire(&body, &gateway.settings, applicant)?;
        // It may wait for long.
        drop((body, share));
        let granted = gateway.engine.acquire(request).await?;
        granted_body(&gateway, &granted)
    };
    answer.await.map(Json).map_err(|problem| problem.on(&lease))
}

/// POST /v1/leases/{lease}/renew
pub(super) async fn renew(
    State(gateway): State<Arc<Gateway>>,
    Holder(credential): Holder,
    NoParameters: NoParameters,
    JsonBytes(body, _share): JsonBytes,
) -> Result<Json<GrantedBody>, Problem> {
    let lease = credential.lease.clone();
    let answer = async {
        let ttl_ms = decode_renew(&body, &gateway.settings)?;
        let granted = gateway.engine.renew(credential, ttl_ms).await?;
        granted_body(&gateway, &granted)
    };
    answer.await.map(Json).map_err(|problem| problem.on(&lease))
}

/// POST /v1/leases/{lease}/release
pub(super) async fn release(
    State(gateway): State<Arc<Gateway>>,
    Holder(credential): Holder,
    NoParameters: NoParameters,
    JsonBytes(body, _share): JsonBytes,
) -> Result<Json<ReleasedBody>, Problem> {
    let lease = credential.lease.clone();
    let token = credential.token.to_string();
    let answer = async {
        optional(&body)?.map(|raw| Object::read(raw, &At::ROOT, &[])).transpose()?;
        Ok(gateway.engine.release(credential).await?)
    };
    answer.await.map_err(|problem: Problem| problem.on(&lease))?;
    Ok(Json(ReleasedBody { lease: lease.as_str().to_owned(), token, released: true }))
}

/// GET /v1/leases/{lease}
pub(super) async fn inspect(
    State(gateway): State<Arc<Gateway>>,
    Viewer { lease, credential }: Viewer,
    NoParameters: NoParameters,
) -> Result<Json<LeaseBody>, Problem> {
    let answer = async {
        let view = gateway.engine.inspect(lease.clone()).await?;
        check_times(credential.as_ref(), view.now)?;
        Ok(lease_body(view))
    };
    answer.await.map(Json).map_err(|problem: Problem| problem.on(&lease))
}

/// A look at a lease is no call that a credential may make before or after its time.
fn check_times(credential: Option<&Credential>, now: DbTime) -> Result<(), Problem> {
    let Some(credential) = credential else { return Ok(()) };
    if credential.is_from_later(now) {
        return Err(Refusal::CredentialNotYet.into());
    }
    if credential.expires_s > now.seconds() {
        return Ok(());
    }
    Err(Problem::new(Code::CredentialExpired, "renew or acquire the lease for a new one"))
}

/// A body that may be left out altogether.
fn optional(body: &[u8]) -> Result<Option<&RawValue>, Problem> {
    if body.is_empty() { Ok(None) } else { json::document(body).map(Some) }
}

fn decode_acquire(
    body: &[u8],
    settings: &Settings,
    applicant: Applicant,
) -> Result<AcquireRequest, Problem> {
    let at = At::ROOT;
    let body = Object::read(json::document(body)?, &at, ACQUIRE)?;
    let owner_at = at.member("owner");
    let owner = json::text(body.require("owner", &at)?, &owner_at)?;
    let owner = Owner::parse(&owner).map_err(|rule| owner_at.refuse(rule.to_string()))?;
    let ttl_ms = decode_ttl(body.require("ttl_ms", &at)?, &at.member("ttl_ms"), settings)?;
    let wait_ms = match body.get("wait_ms") {
        None => 0,
        Some(raw) => decode_wait(raw, &at.member("wait_ms"))?,
    };
    let request_id = match body.get("request_id") {
        None => None,
        Some(raw) => Some(decode_request_id(raw, &at.member("request_id"))?),
    };
    let replace = match body.get("replace") {
        None => false,
        Some(raw) => json::boolean(raw, &at.member("replace"))?,
    };
    applicant.worker.may_be(&owner)?;
    Ok(AcquireRequest {
        lease: applicant.lease,
        identity: applicant.worker.identity,
        owner,
        ttl_ms,
        wait: Duration::from_millis(wait_ms),
        request_id,
        replace,
    })
}

fn decode_renew(body: &[u8], settings: &Settings) -> Result<Option<u64>, Problem> {
    let Some(raw) = optional(body)? else {
        return Ok(None);
    };
    let at = At::ROOT;
    let body = Object::read(raw, &at, RENEW)?;
    body.get("ttl_ms").map(|raw| decode_ttl(raw, &at.member("ttl_ms"), settings)).transpose()
}

fn decode_ttl(raw: &RawValue, at: &At<'_>, settings: &Settings) -> Result<u64, Problem> {
    decode_between(raw, at, settings.ttl_min_ms, settings.ttl_max_ms)
}

fn decode_wait(raw: &RawValue, at: &At<'_>) -> Result<u64, Problem> {
    decode_between(raw, at, 0, WAIT_MS_MAX)
}

fn decode_between(raw: &RawValue, at: &At<'_>, min: u64, max: u64) -> Result<u64, Problem> {
    let number = json::integer(raw).and_then(|n| u64::try_from(n).ok());
    number
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| at.refuse(format!("must be a whole number from {min} to {max}")))
}

fn decode_request_id(raw: &RawValue, at: &At<'_>) -> Result<RequestId, Problem> {
    RequestId::parse(&json::text(raw, at)?).map_err(|rule| at.refuse(rule.to_string()))
}

fn granted_body(gateway: &Gateway, granted: &Granted) -> Result<GrantedBody, Problem> {
    let credential = gateway.signer.mint(granted).map_err(|error| {
        tracing::error!(%error, lease.name = %granted.lease, "no credential for a granted lease");
        Problem::internal()
    })?;
    Ok(GrantedBody {
        lease: granted.lease.as_str().to_owned(),
        owner: granted.owner.as_str().to_owned(),
        token: granted.token.to_string(),
        incarnation: granted.incarnation.0,
        ttl_ms: granted.ttl_ms,
        expires_in_ms: granted.expires_at.ms_after(granted.now),
        expires_at: rfc3339(granted.expires_at),
        credential,
        transactional_id: transactional_id(gateway, &granted.lease),
    })
}

fn transactional_id(gateway: &Gateway, lease: &LeaseName) -> String {
    gateway.engine.transactional_id(lease).as_str().to_owned()
}

pub(super) fn lease_body(view: LeaseView) -> LeaseBody {
    let LeaseView { name, fence, lease, home_url, now } = view;
    let held = lease.is_held(now);
    let taken = fence.token.0 > 0;
    let state = match () {
        () if fence.quarantine.is_some() => "quarantined",
        () if !taken => "free",
        () if held => "held",
        () if lease.released => "released",
        () => "expired",
    };
    LeaseBody {
        lease: name.as_str().to_owned(),
        owner: taken.then(|| fence.owner.as_str().to_owned()),
        token: taken.then(|| fence.token.to_string()),
        incarnation: fence.incarnation.0,
        state,
        expires_in_ms: if held { lease.expires_at.ms_after(now) } else { 0 },
        home: home_url,
        batch_seq: fence.seq.0,
    }
}

/// UTC with milliseconds, rounded down.
pub(super) fn rfc3339(time: DbTime) -> String {
    let nanos = i128::from(time.0).saturating_mul(1_000);
    let t = OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, clock) = ((t.year(), u8::from(t.month()), t.day()), t.to_hms_milli());
    let ((year, month, day), (hour, minute, second, milli)) = (date, clock);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(test)]
mod tests;
