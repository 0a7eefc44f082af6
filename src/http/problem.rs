//! Problem documents (RFC 9457): the catalogue of codes, and how a refusal becomes an answer.
//!
//! Owns the only mapping to status codes. Never shows a cause: no SQL, host, stack or parser text;
//! a detail is written here or by the check that refused, for the caller to act on.

use crate::protocol::lease::{FencingToken, LeaseName};
use crate::protocol::refusal::{Refusal, SideEffect};
use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use std::borrow::Cow;

mod refusals;

/// When the same call may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same request will be refused again.
    Never,
    /// With the same `Idempotency-Key` and the same body.
    SameKey,
    /// Later.
    Later,
    /// After acquiring the lease again.
    Reacquire,
}

impl Retry {
    /// As it stands in a problem document.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::SameKey => "same_key",
            Self::Later => "later",
            Self::Reacquire => "reacquire",
        }
    }
}

macro_rules! catalogue {
    ($($code:ident $name:literal $status:ident $retry:ident $title:literal,)*) => {
        /// Every code that an answer can carry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $title] $code,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The code as it stands in a problem document.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$code => $name,)* }
            }

            /// Its status.
            #[must_use]
            pub fn status(self) -> StatusCode {
                match self { $(Self::$code => StatusCode::$status,)* }
            }

            /// Its title.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$code => $title,)* }
            }

            /// What the caller may do.
            #[must_use]
            pub fn retry(self) -> Retry {
                match self { $(Self::$code => Retry::$retry,)* }
            }

            /// The page that stands at its type: what it means, and who does what next.
            #[must_use]
            pub fn page(self) -> &'static str {
                match self {
                    $(Self::$code => {
                        include_str!(concat!("../../openapi/problems/", $name, ".md"))
                    })*
                }
            }
        }
    };
}

catalogue! {
    MalformedBody "malformed_body" BAD_REQUEST Never "The body is not one JSON document",
    MissingIdempotencyKey "missing_idempotency_key" BAD_REQUEST Never
        "The Idempotency-Key header is missing or repeated",
    CredentialMissing "credential_missing" UNAUTHORIZED Never "No bearer credential was sent",
    CredentialInvalid "credential_invalid" UNAUTHORIZED Never "The credential is not valid here",
    CredentialExpired "credential_expired" UNAUTHORIZED Reacquire "The credential has expired",
    WrongLease "wrong_lease" FORBIDDEN Never "The credential is for another lease",
    TopicNotAllowed "topic_not_allowed" FORBIDDEN Never "The topic may not be written to",
    NotAllowed "not_allowed" FORBIDDEN Never "The identity may not do this",
    LeaseNotFound "lease_not_found" NOT_FOUND Never "Nobody has ever acquired this lease",
    TopicNotFound "topic_not_found" NOT_FOUND Never "The topic does not exist",
    PartitionNotFound "partition_not_found" NOT_FOUND Never "The partition does not exist",
    PathNotFound "path_not_found" NOT_FOUND Never "Nothing is served at this path",
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED Never
        "The path does not take this method",
    SlowBody "slow_body" REQUEST_TIMEOUT SameKey "The body did not arrive in time",
    LeaseHeld "lease_held" CONFLICT Later "The lease is held by somebody else",
    OperationInFlight "operation_in_flight" CONFLICT SameKey
        "An identical operation is still under way",
    StaleToken "stale_token" PRECONDITION_FAILED Reacquire "A newer token is installed",
    LeaseExpired "lease_expired" PRECONDITION_FAILED Reacquire "The lease has expired",
    LeaseReleased "lease_released" PRECONDITION_FAILED Reacquire "The lease was released",
    BodyTooLarge "body_too_large" PAYLOAD_TOO_LARGE Never "The request is too large",
    RecordTooLarge "record_too_large" PAYLOAD_TOO_LARGE Never "A record is too large",
    UnsupportedMediaType "unsupported_media_type" UNSUPPORTED_MEDIA_TYPE Never
        "The body must be plain application/json",
    HomedElsewhere "homed_elsewhere" MISDIRECTED_REQUEST SameKey
        "Another gateway is this lease's home",
    OperationConflict "operation_conflict" UNPROCESSABLE_ENTITY Never
        "The operation id is committed with other records",
    OperationTooOld "operation_too_old" UNPROCESSABLE_ENTITY Never
        "The operation id is older than what is remembered",
    InvalidMember "invalid_member" UNPROCESSABLE_ENTITY Never "Part of the request is not valid",
    Busy "busy" TOO_MANY_REQUESTS SameKey "Too much is waiting",
    PostgresUnavailable "postgres_unavailable" SERVICE_UNAVAILABLE SameKey
        "Postgres cannot be asked at the moment",
    KafkaUnavailable "kafka_unavailable" SERVICE_UNAVAILABLE SameKey
        "Kafka cannot be written to at the moment",
    ProducerFenced "producer_fenced" SERVICE_UNAVAILABLE SameKey
        "Another producer uses this lease's transactional.id",
    ShuttingDown "shutting_down" SERVICE_UNAVAILABLE SameKey "This gateway is stopping",
    Quarantined "quarantined" SERVICE_UNAVAILABLE Later "The lease waits for an operator",
    KafkaDenied "kafka_denied" SERVICE_UNAVAILABLE Never "Kafka denies the gateway a right",
    OutcomeUnknown "outcome_unknown" GATEWAY_TIMEOUT SameKey "The outcome is not known",
    InternalError "internal_error" INTERNAL_SERVER_ERROR SameKey "The gateway failed",
}

/// Members that only some problems have.
#[derive(Debug, Clone, Default, Serialize)]
struct More {
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_bytes: Option<u64>,
}

/// One refusal, as the caller will read it.
#[derive(Debug, Clone)]
pub struct Problem {
    code: Code,
    detail: Cow<'static, str>,
    side_effect: SideEffect,
    more: Box<More>,
}

#[derive(Serialize)]
struct Document<'a> {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
    retry: &'static str,
    side_effect: &'static str,
    #[serde(flatten)]
    more: &'a More,
}

/// 200 or 503, for probes that ask no more than yes or no.
pub(super) fn status_of(ready: bool) -> StatusCode {
    if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// The answer to a body that came too slowly: there is no use in reading the rest of it.
pub(super) fn is_slow_body<B>(response: &Response<B>) -> bool {
    response.status() == StatusCode::REQUEST_TIMEOUT
}

impl Problem {
    /// A request that was refused before it was looked up. `none` only for what no credential, no
    /// topic and no configuration could ever have made an accepted operation.
    pub fn new(code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        let never = matches!(
            code,
            Code::MalformedBody
                | Code::MissingIdempotencyKey
                | Code::InvalidMember
                | Code::UnsupportedMediaType
                | Code::PathNotFound
                | Code::MethodNotAllowed
        );
        let side_effect = if never { SideEffect::None } else { SideEffect::Maybe };
        Self { code, detail: detail.into(), side_effect, more: Box::default() }
    }

    /// A member of the body that is not as it should be; `pointer` is a JSON Pointer to it.
    #[must_use]
    pub fn member(pointer: String, detail: impl Into<Cow<'static, str>>) -> Self {
        let mut problem = Self::new(Code::InvalidMember, detail);
        problem.more.pointer = Some(pointer);
        problem
    }

    /// A header or a part of the path that is not as it should be.
    pub fn parameter(name: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        let mut problem = Self::new(Code::InvalidMember, detail);
        problem.more.parameter = Some(name);
        problem
    }

    /// A defect or a failure that has no code of its own. The cause belongs into the log.
    #[must_use]
    pub fn internal() -> Self {
        Self::new(Code::InternalError, "the cause is in the gateway's log")
    }

    /// Names the lease that the request was about.
    #[must_use]
    pub fn on(mut self, lease: &LeaseName) -> Self {
        self.more.lease = Some(lease.as_str().to_owned());
        self
    }

    /// Names the record, by its index in the request.
    #[must_use]
    pub fn at_record(mut self, index: usize) -> Self {
        self.more.index = Some(index);
        self
    }

    /// Names the limit that was passed.
    #[must_use]
    pub fn limit_bytes(mut self, limit: usize) -> Self {
        self.more.limit_bytes = u64::try_from(limit).ok();
        self
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    fn with(refusal: &Refusal, code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { side_effect: refusal.side_effect(), ..Self::new(code, detail) }
    }

    fn after_ms(mut self, ms: u64) -> Self {
        self.more.retry_after_ms = Some(ms);
        self
    }

    fn superseded(mut self, current: FencingToken) -> Self {
        self.more.current_token = Some(current.to_string());
        self
    }

    fn document(&self) -> Vec<u8> {
        let document = Document {
            r#type: format!("/problems/{}", self.code.as_str()),
            title: self.code.title(),
            status: self.code.status().as_u16(),
            detail: &self.detail,
            code: self.code.as_str(),
            retry: self.code.retry().as_str(),
            side_effect: match self.side_effect {
                SideEffect::None => "none",
                SideEffect::Committed => "committed",
                SideEffect::Maybe => "maybe",
            },
            more: &self.more,
        };
        serde_json::to_vec(&document).unwrap_or_default()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.document()));
        *response.status_mut() = self.code.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code.status() == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(ms) = self.more.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000).max(1)));
        }
        response
    }
}

/// GET /problems/{code}: the page of a code, as text that a browser shows.
pub(super) async fn page(path: Result<Path<String>, PathRejection>) -> Response<Body> {
    let name = path.map(|Path(name)| name).unwrap_or_default();
    let Some(code) = Code::ALL.iter().find(|code| code.as_str() == name) else {
        return Problem::new(Code::PathNotFound, "there is no such problem").into_response();
    };
    let mut response = Response::new(Body::from(code.page()));
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// What a panic in a handler is answered with; the panic itself is logged by its hook.
pub(super) fn panicked(_panic: Box<dyn std::any::Any + Send>) -> Response<Body> {
    Problem::internal().into_response()
}

#[cfg(test)]
mod tests;
