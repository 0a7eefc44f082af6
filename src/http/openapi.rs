//! The OpenAPI document of the data listener: built from the catalogue and the limits.
//!
//! Owns which call takes what and which codes it may be refused with. `openapi/fencepost-v1.json`
//! is this document, and a test says so; the gateway serves it at /openapi.json.

mod schemas;

use crate::http::operations::{PAGE, PAGE_MAX};
use crate::http::problem::Code;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use schemas::reference;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Any call.
const ALWAYS: &[Code] = &[
    Code::CredentialMissing,
    Code::CredentialInvalid,
    Code::InvalidMember,
    Code::PostgresUnavailable,
    Code::OutcomeUnknown,
    Code::InternalError,
];
/// A call with a body.
const BODY: &[Code] = &[
    Code::MalformedBody,
    Code::SlowBody,
    Code::BodyTooLarge,
    Code::UnsupportedMediaType,
    Code::Busy,
    Code::ShuttingDown,
];
/// A call that asks for a lease's fence with a credential.
const FENCED: &[Code] = &[
    Code::CredentialExpired,
    Code::WrongLease,
    Code::LeaseNotFound,
    Code::StaleToken,
    Code::LeaseExpired,
    Code::LeaseReleased,
    Code::Quarantined,
];
/// A call that may open a lease.
const OPENS: &[Code] =
    &[Code::KafkaUnavailable, Code::ProducerFenced, Code::KafkaDenied, Code::Quarantined];
const RECORDS: &[Code] = &[
    Code::MissingIdempotencyKey,
    Code::TopicNotAllowed,
    Code::TopicNotFound,
    Code::PartitionNotFound,
    Code::RecordTooLarge,
    Code::OperationInFlight,
    Code::OperationConflict,
    Code::OperationTooOld,
];
const ACQUIRE: &[Code] =
    &[Code::NotAllowed, Code::LeaseHeld, Code::LeaseExpired, Code::LeaseReleased];
const ASKS: &[Code] = &[
    Code::WrongLease,
    Code::CredentialExpired,
    Code::LeaseNotFound,
    Code::Busy,
    Code::ShuttingDown,
];
const LOOKS: &[Code] = &[Code::WrongLease, Code::CredentialExpired, Code::LeaseNotFound];
const LISTS: &[Code] = &[Code::NotAllowed];
const OF_ONE: &[Code] = &[Code::LeaseNotFound];

/// The document.
#[must_use]
pub fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Fencepost",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": env!("CARGO_PKG_DESCRIPTION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths(),
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                "worker": bearer("A worker's token, from the configuration: acquires."),
                "fencing": bearer("The credential that an acquire or a renew gave."),
                "ops": bearer("An operator's token, from the configuration: looks."),
            },
        },
    })
}

/// GET /openapi.json
pub(super) async fn serve() -> impl IntoResponse {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| document().to_string());
    ([(CONTENT_TYPE, "application/json")], text.as_str())
}

fn paths() -> Value {
    let lease = json!([part("lease", "LeaseName")]);
    json!({
        "/v1/leases/{lease}/acquire": {
            "parameters": lease,
            "post": Call::new("acquire", "Acquire a lease", &["worker"])
                .body("Acquire", true)
                .answer("Granted", &[ALWAYS, BODY, OPENS, ACQUIRE]),
        },
        "/v1/leases/{lease}/renew": {
            "parameters": lease,
            "post": Call::new("renew", "Extend a lease, never shorten it", &["fencing"])
                .body("Renew", false)
                .answer("Granted", &[ALWAYS, BODY, FENCED]),
        },
        "/v1/leases/{lease}/release": {
            "parameters": lease,
            "post": Call::new("release", "Give a lease back; a second time too", &["fencing"])
                .body("Nothing", false)
                .answer("Released", &[ALWAYS, BODY, FENCED, OPENS]),
        },
        "/v1/leases/{lease}/records": {
            "parameters": lease,
            "post": Call::new("produce", "Write records: one atomic operation", &["fencing"])
                .body("Records", true)
                .parameter(&json!({
                    "name": "Idempotency-Key", "in": "header", "required": true,
                    "schema": reference("OperationId"),
                }))
                .answer("Produced", &[ALWAYS, BODY, FENCED, OPENS, RECORDS]),
        },
        "/v1/leases/{lease}/operations/{id}": {
            "parameters": [part("lease", "LeaseName"), part("id", "OperationId")],
            "get": Call::new("operation", "What became of an operation", &["ops", "fencing"])
                .parameter(&query("settle", &json!({
                    "type": "boolean", "default": false,
                    "description": "Decide it, if the lease has expired: for good.",
                })))
                .answer("Operation", &[ALWAYS, ASKS, OPENS]),
        },
        "/v1/leases/{lease}": {
            "parameters": lease,
            "get": Call::new("lease", "A lease as it stands", &["ops", "fencing"])
                .answer("Lease", &[ALWAYS, LOOKS]),
        },
        "/v1/leases/{lease}/history": {
            "parameters": lease,
            "get": Call::new("history", "What happened to a lease, oldest first", &["ops"])
                .parameter(&limit())
                .parameter(&query("after", &json!({
                    "type": "integer", "minimum": 0, "maximum": i64::MAX,
                })))
                .answer("History", &[ALWAYS, LISTS, OF_ONE]),
        },
        "/v1/leases": {
            "get": Call::new("leases", "Leases by name, in byte order", &["ops"])
                .parameter(&query("prefix", &json!({
                    "type": "string", "pattern": "^[A-Za-z0-9._-]{0,200}$",
                })))
                .parameter(&limit())
                .parameter(&query("after", &reference("LeaseName")))
                .answer("Leases", &[ALWAYS, LISTS]),
        },
    })
}

fn bearer(description: &str) -> Value {
    json!({ "type": "http", "scheme": "bearer", "description": description })
}

fn part(name: &str, schema: &str) -> Value {
    json!({ "name": name, "in": "path", "required": true, "schema": reference(schema) })
}

fn query(name: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": "query", "schema": schema })
}

fn limit() -> Value {
    let schema = json!({ "type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE });
    query("limit", &schema)
}

/// One operation of the document.
struct Call {
    members: Map<String, Value>,
    parameters: Vec<Value>,
}

impl Call {
    /// `security`: any one of these is enough.
    fn new(id: &str, summary: &str, security: &[&str]) -> Self {
        let mut members = Map::new();
        members.insert("operationId".to_owned(), json!(id));
        members.insert("summary".to_owned(), json!(summary));
        let any: Vec<Value> = security.iter().map(|name| json!({ *name: [] })).collect();
        members.insert("security".to_owned(), Value::Array(any));
        Self { members, parameters: Vec::new() }
    }

    fn body(mut self, schema: &str, required: bool) -> Self {
        let content = json!({ "application/json": { "schema": reference(schema) } });
        let body = json!({ "required": required, "content": content });
        self.members.insert("requestBody".to_owned(), body);
        self
    }

    fn parameter(mut self, parameter: &Value) -> Self {
        self.parameters.push(parameter.clone());
        self
    }

    fn answer(mut self, schema: &str, codes: &[&[Code]]) -> Value {
        let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
        for code in codes.iter().copied().flatten() {
            let of_status = by_status.entry(code.status().as_u16()).or_default();
            if !of_status.contains(code) {
                of_status.push(*code);
            }
        }
        let mut responses = Map::new();
        let content = json!({ "application/json": { "schema": reference(schema) } });
        responses.insert("200".to_owned(), json!({ "description": "Done", "content": content }));
        for (status, codes) in by_status {
            responses.insert(status.to_string(), refusal(&codes));
        }
        if !self.parameters.is_empty() {
            self.members.insert("parameters".to_owned(), Value::Array(self.parameters));
        }
        self.members.insert("responses".to_owned(), Value::Object(responses));
        Value::Object(self.members)
    }
}

/// One status: the codes that have it, each with its page.
fn refusal(codes: &[Code]) -> Value {
    let names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    let lines: Vec<String> = codes
        .iter()
        .map(|code| format!("[{0}](/problems/{0}): {1}", code.as_str(), code.title()))
        .collect();
    let of_these = json!({ "properties": { "code": { "enum": names } } });
    let schema = json!({ "allOf": [reference("Problem"), of_these] });
    json!({
        "description": lines.join("\n\n"),
        "content": { "application/problem+json": { "schema": schema } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_the_one_that_is_served() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/fencepost-v1.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        let current = format!("{:#}\n", document());
        assert!(committed == current, "stale: fencepost openapi > openapi/fencepost-v1.json");
    }

    #[test]
    fn every_code_is_an_answer_of_some_call() {
        let text = document()["paths"].to_string();
        // These belong to no call of the document, or come later.
        let apart = [Code::PathNotFound, Code::MethodNotAllowed, Code::HomedElsewhere];
        for code in Code::ALL.iter().filter(|code| !apart.contains(code)) {
            assert!(text.contains(&format!("\"{}\"", code.as_str())), "{}", code.as_str());
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let text = document.to_string();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
