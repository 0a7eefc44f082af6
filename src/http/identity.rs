//! Who asks: bearer tokens of workers and of operators, and the extractors of every call.
//!
//! Owns the comparison of token hashes (constant in time over all entries) and what an identity may
//! acquire. Never stores a token, and never takes one kind of token for another.

use crate::http::Gateway;
use crate::http::pattern::{self, Pattern};
use crate::http::problem::{Code, Problem};
use crate::protocol::fence::Credential;
use crate::protocol::lease::{Identity, LeaseName, NameError, Owner};
use crate::protocol::operation::OperationId;
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// Longest bearer token that is looked at.
const BEARER_BYTES_MAX: usize = 4_096;

const OPERATION_ID_RULE: &str = "1 to 200 visible ASCII characters";

/// SHA-256 of a bearer token.
pub type TokenHash = [u8; 32];

/// One configured worker identity.
#[derive(Debug, Clone)]
pub struct Worker {
    /// Its name; kept in the lease row.
    pub identity: Identity,
    /// Hash of its token.
    pub token: TokenHash,
    /// Leases that it may acquire.
    pub leases: Vec<Pattern>,
    /// Owners that it may name.
    pub owners: Vec<Pattern>,
}

impl Worker {
    /// Refuses an owner that this identity may not name.
    pub(super) fn may_be(&self, owner: &Owner) -> Result<(), Problem> {
        if pattern::any(&self.owners, owner.as_str()) {
            return Ok(());
        }
        Err(Problem::new(Code::NotAllowed, "this identity may not use this owner"))
    }
}

fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// Finds the worker of a token. Every entry is compared, whole.
fn find_worker<'a>(workers: &'a [Worker], token: &str) -> Option<&'a Worker> {
    let given = hash(token);
    let mut found = u64::MAX;
    for (index, worker) in (0u64..).zip(workers) {
        found.conditional_assign(&index, worker.token.ct_eq(&given));
    }
    workers.get(usize::try_from(found).ok()?)
}

fn is_operator(hashes: &[TokenHash], token: &str) -> bool {
    let given = hash(token);
    hashes.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&given)).into()
}

fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let invalid = |detail: &'static str| Problem::new(Code::CredentialInvalid, detail);
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Err(Problem::new(Code::CredentialMissing, "send `Authorization: Bearer ...`"));
    };
    if values.next().is_some() {
        return Err(invalid("the Authorization header is repeated"));
    }
    let token = value.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
    match token {
        Some(token) if is_bearer(token) => Ok(token),
        Some(_) | None => Err(invalid("the Authorization header is not `Bearer` and one token")),
    }
}

fn is_bearer(token: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    !token.is_empty() && token.len() <= BEARER_BYTES_MAX && token.bytes().all(allowed)
}

fn credential(gateway: &Gateway, token: &str) -> Result<Credential, Problem> {
    gateway.signer.verify(token).ok_or_else(|| {
        Problem::new(Code::CredentialInvalid, "not a fencing credential of this installation")
    })
}

fn of_lease(credential: Credential, lease: &LeaseName) -> Result<Credential, Problem> {
    if credential.lease == *lease {
        return Ok(credential);
    }
    Err(Problem::new(Code::WrongLease, "acquire this lease to get its credential"))
}

/// The lease named in the path.
pub(super) struct LeasePath(pub(super) LeaseName);

impl<S: Send + Sync> FromRequestParts<S> for LeasePath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let refuse = |detail: String| Problem::parameter("lease", detail);
        let text = path_part(parts, state, "lease").await;
        let text = text.ok_or_else(|| refuse(NameError::Lease.to_string()))?;
        LeaseName::parse(&text).map(Self).map_err(|rule| refuse(rule.to_string()))
    }
}

/// Names the lease of the path, if there is one, on a problem with another part of the request.
pub(super) async fn on_its_lease<S: Send + Sync>(
    problem: Problem,
    parts: &mut Parts,
    state: &S,
) -> Problem {
    match LeasePath::from_request_parts(parts, state).await {
        Ok(LeasePath(lease)) => problem.on(&lease),
        Err(_) => problem,
    }
}

/// One part of the path, decoded; `None` if it is no text.
async fn path_part<S: Send + Sync>(parts: &mut Parts, state: &S, name: &str) -> Option<String> {
    let path = Path::<BTreeMap<String, String>>::from_request_parts(parts, state).await;
    path.ok().and_then(|Path(mut named)| named.remove(name))
}

/// The operation id named in the path.
pub(super) struct OperationPath(pub(super) OperationId);

impl<S: Send + Sync> FromRequestParts<S> for OperationPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let id = path_part(parts, state, "id").await.and_then(|text| OperationId::parse(&text));
        id.map(Self).ok_or_else(|| Problem::parameter("id", OPERATION_ID_RULE))
    }
}

/// A worker that may acquire the lease in the path.
pub(super) struct Applicant {
    pub(super) lease: LeaseName,
    pub(super) worker: Worker,
}

impl FromRequestParts<Arc<Gateway>> for Applicant {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Problem> {
        let LeasePath(lease) = LeasePath::from_request_parts(parts, gateway).await?;
        let token = bearer(&parts.headers).map_err(|p| p.on(&lease))?;
        let refuse = |code, detail: &'static str| Problem::new(code, detail).on(&lease);
        let worker = find_worker(&gateway.workers, token)
            .ok_or_else(|| refuse(Code::CredentialInvalid, "not a worker's token"))?;
        if !pattern::any(&worker.leases, lease.as_str()) {
            return Err(refuse(Code::NotAllowed, "this identity may not acquire this lease"));
        }
        Ok(Self { lease, worker: worker.clone() })
    }
}

/// The credential of the lease in the path. It proves who, never whether still.
pub(super) struct Holder(pub(super) Credential);

impl FromRequestParts<Arc<Gateway>> for Holder {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Problem> {
        let LeasePath(lease) = LeasePath::from_request_parts(parts, gateway).await?;
        let check = |token| of_lease(credential(gateway, token)?, &lease);
        bearer(&parts.headers).and_then(check).map(Self).map_err(|p| p.on(&lease))
    }
}

/// An operator, by its token.
pub(super) struct Operator;

impl FromRequestParts<Arc<Gateway>> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Problem> {
        let token = bearer(&parts.headers)?;
        if is_operator(&gateway.operators, token) {
            return Ok(Self);
        }
        // A worker or a holder is known, and yet may not ask this.
        let known = find_worker(&gateway.workers, token).is_some()
            || gateway.signer.verify(token).is_some();
        let detail = "this call is for operators";
        let code = if known { Code::NotAllowed } else { Code::CredentialInvalid };
        Err(Problem::new(code, detail))
    }
}

/// Whoever may look at the lease in the path: an operator, or a holder by its credential.
pub(super) struct Viewer {
    pub(super) lease: LeaseName,
    pub(super) credential: Option<Credential>,
}

impl FromRequestParts<Arc<Gateway>> for Viewer {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, Problem> {
        let LeasePath(lease) = LeasePath::from_request_parts(parts, gateway).await?;
        let token = bearer(&parts.headers).map_err(|p| p.on(&lease))?;
        if is_operator(&gateway.operators, token) {
            return Ok(Self { lease, credential: None });
        }
        let credential = credential(gateway, token)
            .and_then(|c| of_lease(c, &lease))
            .map_err(|p| p.on(&lease))?;
        Ok(Self { lease, credential: Some(credential) })
    }
}

/// The operation id that a POST of records must carry.
pub(super) struct IdempotencyKey(pub(super) OperationId);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let mut values = parts.headers.get_all("idempotency-key").iter();
        let missing = |detail: &'static str| Problem::new(Code::MissingIdempotencyKey, detail);
        let value = values.next().ok_or_else(|| missing("send the operation's durable id"))?;
        if values.next().is_some() {
            return Err(missing("send the header once"));
        }
        let id = value.to_str().ok().and_then(OperationId::parse);
        id.map(Self).ok_or_else(|| Problem::parameter("Idempotency-Key", OPERATION_ID_RULE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str, token: &str) -> Worker {
        let all = || vec![Pattern::new("*")];
        Worker { identity: Identity::new(name), token: hash(token), leases: all(), owners: all() }
    }

    #[test]
    fn a_token_finds_its_own_worker_and_no_other() {
        let workers = [worker("a", "token-a"), worker("b", "token-b")];
        let find = |token| find_worker(&workers, token).map(|w| w.identity.as_str());
        assert_eq!((find("token-a"), find("token-b")), (Some("a"), Some("b")));
        assert_eq!((find("token-c"), find("")), (None, None));
        assert!(is_operator(&[hash("x"), hash("y")], "y"));
        assert!(!is_operator(&[hash("x")], "y") && !is_operator(&[], ""));
    }

    #[test]
    fn only_one_bearer_token_is_taken() {
        let code = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(str::to_owned).map_err(|p| p.code())
        };
        let (missing, invalid) = (Err(Code::CredentialMissing), Err(Code::CredentialInvalid));
        assert_eq!(code(&[]), missing);
        assert_eq!(code(&["Bearer a.b-c"]), Ok("a.b-c".to_owned()));
        let long = format!("Bearer {}", "a".repeat(BEARER_BYTES_MAX + 1));
        for bad in
            ["", "Bearer", "Bearer ", "bearer x", "Basic x", "Bearer  x", "Bearer x y", &long]
        {
            assert_eq!(code(&[bad]), invalid, "{bad:?}");
        }
        assert_eq!(code(&["Bearer a", "Bearer a"]), invalid);
    }
}
