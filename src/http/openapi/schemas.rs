//! The shapes of requests and answers, as JSON Schema.
//!
//! Owns the components of the document. What a schema cannot say (bytes instead of characters, what
//! the broker refuses) stands in a description. Limits that can be configured are the defaults.

use crate::http::Settings;
use crate::http::problem::{Code, Retry};
use crate::protocol::operation::{OPERATION_ID_MAX, RECORDS_MAX};
use serde_json::{Value, json};

/// No control characters; the gateway refuses invisible ones, too.
const PRINTABLE: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";
const BASE64: &str = concat!(
    "^(?:[A-Za-z0-9+/]{4})*",
    "(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
);
const HEADER_NAME: &str =
    concat!("^(?![Ff][Ee][Nn][Cc][Ee][Pp][Oo][Ss][Tt]-)", r"[^\u0000-\u001f\u007f-\u009f]+$");

/// All of them.
pub(super) fn all() -> Value {
    let settings = Settings::default();
    let ttl = json!({
        "type": "integer", "minimum": settings.ttl_min_ms, "maximum": settings.ttl_max_ms,
        "description": "Time to live in ms; the bounds are configured.",
        "example": 30_000,
    });
    json!({
        "LeaseName": lease_name(),
        "OperationId": operation_id(),
        "Token": {
            "type": "string", "pattern": "^[0-9]{1,19}$", "example": "402",
            "description": "A fencing token. Text, because a number above 2^53 does not survive \
                every reader."
        },
        "Acquire": acquire(&ttl),
        "Renew": object(&json!({ "ttl_ms": ttl }), &["ttl_ms"]),
        "Nothing": { "type": "object", "additionalProperties": false, "maxProperties": 0 },
        "Granted": granted(),
        "Released": object(&json!({
            "lease": reference("LeaseName"),
            "token": reference("Token"),
            "released": { "const": true },
        }), &[]),
        "Payload": payload(),
        "Record": record(),
        "Records": records(),
        "Produced": produced(),
        "Operation": operation(),
        "Lease": lease(),
        "Leases": page(&reference("Lease"), &json!({ "type": ["string", "null"] })),
        "HistoryEntry": history_entry(),
        "History": page(&reference("HistoryEntry"), &json!({ "type": ["integer", "null"] })),
        "Problem": problem(),
    })
}

pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

pub(super) fn lease_name() -> Value {
    json!({
        "type": "string", "pattern": "^[A-Za-z0-9._-]{1,200}$", "not": { "enum": [".", ".."] },
        "description": "The part before the first dot is the tenant.", "example": "orders.7",
    })
}

pub(super) fn operation_id() -> Value {
    json!({
        "type": "string", "pattern": format!("^[!-~]{{1,{OPERATION_ID_MAX}}}$"),
        "description": "Durable id of one POST, in the scope of its lease. A UUIDv7 is judged by \
            its own time, too.",
        "example": "order-4711",
    })
}

/// An object of exactly these members, all of which are there but the optional ones.
fn object(properties: &Value, optional: &[&str]) -> Value {
    let names = properties.as_object().into_iter().flat_map(serde_json::Map::keys);
    let required: Vec<&String> = names.filter(|name| !optional.contains(&name.as_str())).collect();
    json!({
        "type": "object", "additionalProperties": false,
        "properties": properties, "required": required,
    })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time", "description": "UTC, with milliseconds." })
}

fn acquire(ttl: &Value) -> Value {
    object(
        &json!({
            "owner": {
                "type": "string", "minLength": 1, "maxLength": 200, "pattern": PRINTABLE,
                "description": "Who will hold it: at most 200 bytes of UTF-8, printable.",
                "example": "worker-1",
            },
            "ttl_ms": ttl,
            "wait_ms": {
                "type": "integer", "minimum": 0, "maximum": 30_000, "default": 0,
                "description": "How long to wait while somebody else holds it, in ms.",
            },
            "request_id": {
                "type": "string", "pattern": "^[!-~]{1,200}$",
                "description": "A repeat with the same id, identity and owner gives the same lease \
                    again; nothing is extended.",
            },
            "replace": {
                "type": "boolean", "default": false,
                "description": "End the lease that the same identity and owner still holds.",
            },
        }),
        &["wait_ms", "request_id", "replace"],
    )
}

fn granted() -> Value {
    object(
        &json!({
            "lease": reference("LeaseName"),
            "owner": { "type": "string" },
            "token": reference("Token"),
            "incarnation": count(),
            "ttl_ms": count(),
            "expires_in_ms": {
                "type": "integer", "minimum": 0,
                "description": "Rounded down; count it from the moment the request was sent.",
            },
            "expires_at": time(),
            "credential": { "type": "string", "description": "The bearer of the other calls." },
            "transactional_id": { "type": "string" },
        }),
        &[],
    )
}

fn payload() -> Value {
    let of = |name: &str, value: Value| {
        json!({
            "type": "object", "additionalProperties": false, "required": [name],
            "properties": { name: value },
        })
    };
    json!({
        "description": "A string is its UTF-8 bytes, null is Kafka's null (a tombstone as a \
            value), `json` is its bytes as sent.",
        "oneOf": [
            { "type": "string" },
            { "type": "null" },
            of("base64", json!({ "type": "string", "pattern": BASE64 })),
            of("json", json!({})),
        ],
    })
}

fn record() -> Value {
    object(
        &json!({
            "topic": {
                "type": "string", "pattern": "^[A-Za-z0-9._-]{1,249}$",
                "not": { "enum": [".", ".."] }, "example": "demo.records",
            },
            "partition": {
                "type": "integer", "minimum": 0, "maximum": i32::MAX,
                "description": "By murmur2 of the key where absent, as the Java client does it.",
            },
            "key": reference("Payload"),
            "value": reference("Payload"),
            "headers": { "type": "array", "items": object(&json!({
                "name": {
                    "type": "string", "minLength": 1, "maxLength": 249, "pattern": HEADER_NAME,
                },
                "value": reference("Payload"),
            }), &[]) },
            "timestamp": {
                "type": "integer", "minimum": 1, "maximum": i64::MAX,
                "description": "Milliseconds since 1970. The topic may allow less.",
            },
        }),
        &["partition", "key", "headers", "timestamp"],
    )
}

fn records() -> Value {
    object(
        &json!({
            "records": {
                "type": "array", "minItems": 1, "maxItems": RECORDS_MAX,
                "items": reference("Record"),
            },
        }),
        &[],
    )
}

fn produced() -> Value {
    object(
        &json!({
            "lease": reference("LeaseName"),
            "token": reference("Token"),
            "operation_id": reference("OperationId"),
            "batch_seq": count(),
            "replayed": {
                "type": "boolean", "description": "It had been accepted before this request.",
            },
            "offsets": {
                "type": "array", "description": "One a record, in request order.",
                "items": object(&json!({
                    "topic": { "type": "string" }, "partition": count(), "offset": count(),
                }), &[]),
            },
        }),
        &[],
    )
}

fn operation() -> Value {
    let mut schema = object(
        &json!({
            "lease": reference("LeaseName"),
            "operation_id": reference("OperationId"),
            "state": { "enum": ["committed", "unknown", "absent"] },
            "up_to_token": reference("Token"),
            "answer": reference("Produced"),
        }),
        &["up_to_token", "answer"],
    );
    let text = "Committed: with the stored answer. Absent: not accepted within the retention, and \
        nothing of it comes under a token up to `up_to_token`.";
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("description".to_owned(), json!(text));
    }
    schema
}

fn lease() -> Value {
    object(
        &json!({
            "lease": reference("LeaseName"),
            "owner": { "type": ["string", "null"] },
            "token": { "oneOf": [reference("Token"), { "type": "null" }] },
            "incarnation": count(),
            "state": { "enum": ["free", "held", "expired", "released", "quarantined"] },
            "expires_in_ms": count(),
            "home": { "type": ["string", "null"], "description": "Its gateway; a hint." },
            "batch_seq": count(),
        }),
        &[],
    )
}

fn history_entry() -> Value {
    let events =
        ["install", "reopen", "release", "settle", "retire", "quarantine", "expire", "lift"];
    object(
        &json!({
            "id": count(),
            "at": time(),
            "event": { "enum": events },
            "token": reference("Token"),
            "owner": { "type": "string" },
            "incarnation": count(),
            "batch_seq": count(),
            "home": { "type": ["string", "null"] },
            "note": { "type": ["string", "null"] },
        }),
        &[],
    )
}

fn page(item: &Value, next: &Value) -> Value {
    let next =
        json!({ "description": "The next page's `after`; null at the end.", "allOf": [next] });
    object(&json!({ "items": { "type": "array", "items": item }, "next": next }), &[])
}

/// RFC 9457, with members of ours.
fn problem() -> Value {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let retries = [Retry::Never, Retry::SameKey, Retry::Later, Retry::Reacquire].map(Retry::as_str);
    let more = [
        ("lease", reference("LeaseName")),
        ("retry_after_ms", count()),
        ("holder", json!({ "type": "string" })),
        ("expires_in_ms", count()),
        ("current_token", reference("Token")),
        ("pointer", json!({ "type": "string", "description": "JSON Pointer into the body." })),
        ("parameter", json!({ "type": "string" })),
        ("index", json!({ "type": "integer", "minimum": 0, "description": "Of the record." })),
        ("limit_bytes", count()),
    ];
    let mut properties = json!({
        "type": { "type": "string", "format": "uri-reference" },
        "title": { "type": "string" },
        "status": { "type": "integer", "minimum": 400, "maximum": 599 },
        "detail": { "type": "string" },
        "code": { "enum": codes },
        "retry": { "enum": retries },
        "side_effect": {
            "enum": ["none", "committed", "maybe"],
            "description": "What is known of the operation, not of this attempt.",
        },
    });
    let optional: Vec<&str> = more.iter().map(|(name, _)| *name).collect();
    if let Some(properties) = properties.as_object_mut() {
        properties.extend(more.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())));
    }
    object(&properties, &optional)
}
