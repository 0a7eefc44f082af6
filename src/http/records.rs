//! The body of a POST of records: from JSON to what Kafka will be given, byte for byte.
//!
//! Owns the mapping, the limits on records, and which topics may be named. Null, empty and absent
//! stay apart; the order and the repeats of headers are kept; nothing is guessed or defaulted.

use crate::http::json::{self, At, Object};
use crate::http::pattern::{self, Pattern};
use crate::http::problem::{Code, Problem};
use crate::protocol::lease::is_printable;
use crate::protocol::ledger::{LEDGER_RECORD_MAX, RECORD_OVERHEAD_MAX, operation_bytes_max};
use crate::protocol::operation::{OperationId, Payload, RECORDS_MAX, Record, TopicName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use std::sync::Arc;

const BODY: &[&str] = &["records"];
const RECORD: &[&str] = &["topic", "partition", "key", "value", "headers", "timestamp"];
const HEADER: &[&str] = &["name", "value"];
const ENCODED: &[&str] = &["base64", "json"];
const TOPIC_BYTES_MAX: usize = 249;
const HEADER_NAME_BYTES_MAX: usize = 249;
/// Headers of ours; a caller's may not be named so, in any case of letters.
const RESERVED_PREFIX: &str = "fencepost-";
const INTERNAL_PREFIX: &str = "__";

/// Which topics may be written to.
#[derive(Debug, Clone)]
pub struct Topics {
    /// Patterns of those that may.
    pub allowed: Vec<Pattern>,
    /// The ledger, which never may.
    pub ledger: String,
}

impl Topics {
    /// Refuses Kafka's own topics and the ledger, whether they exist or not.
    pub(super) fn check_reserved(&self, records: &[Record]) -> Result<(), Problem> {
        let reserved = |topic: &str| topic.starts_with(INTERNAL_PREFIX) || topic == self.ledger;
        refuse_first(records, reserved, "internal topics and the ledger are never written to")
    }

    /// Refuses what no pattern allows; asked only after the topics were found to exist.
    pub(super) fn check_allowed(&self, records: &[Record]) -> Result<(), Problem> {
        let refused = |topic: &str| !pattern::any(&self.allowed, topic);
        refuse_first(records, refused, "this gateway does not serve this topic")
    }
}

fn refuse_first(
    records: &[Record],
    refused: impl Fn(&str) -> bool,
    detail: &'static str,
) -> Result<(), Problem> {
    match records.iter().position(|record| refused(&record.topic)) {
        Some(index) => Err(Problem::new(Code::TopicNotAllowed, detail).at_record(index)),
        None => Ok(()),
    }
}

/// Decodes the body of a POST. What it gives is an operation: one with a fingerprint, that may have
/// been accepted under other limits.
pub(super) fn decode(body: &[u8]) -> Result<Vec<Record>, Problem> {
    let body = Object::read(json::document(body)?, &At::ROOT, BODY)?;
    let at = At::ROOT.member("records");
    let Some(items) = json::list(body.require("records", &At::ROOT)?, &at, RECORDS_MAX)? else {
        let detail = format!("a request may have {RECORDS_MAX} records");
        return Err(Problem::new(Code::BodyTooLarge, detail));
    };
    if items.is_empty() {
        return Err(at.refuse("must have at least one record"));
    }
    let mut records: Vec<Record> = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let last = records.last().map(|record| &record.topic);
        records.push(decode_record(item, &at.index(index), last)?);
    }
    Ok(records)
}

/// Refuses a record that is larger than this gateway takes.
pub(super) fn check_sizes(records: &[Record], record_bytes_max: usize) -> Result<(), Problem> {
    let Some(index) = records.iter().position(|r| r.payload_bytes() > record_bytes_max) else {
        return Ok(());
    };
    let detail = format!("key, value and headers may have {record_bytes_max} bytes");
    let problem = Problem::new(Code::RecordTooLarge, detail);
    Err(problem.at_record(index).limit_bytes(record_bytes_max))
}

/// Refuses an operation whose ledger record could pass its limit: before anything is sent.
pub(super) fn check_ledger_size(id: &OperationId, records: &[Record]) -> Result<(), Problem> {
    let worst = operation_bytes_max(id, records.iter().map(|record| record.topic.len()));
    if worst.saturating_add(RECORD_OVERHEAD_MAX) <= LEDGER_RECORD_MAX {
        return Ok(());
    }
    let detail = format!(
        "what the ledger keeps of one request may have {LEDGER_RECORD_MAX} bytes, \
         20 and the topic's name for each record: send fewer records"
    );
    Err(Problem::new(Code::BodyTooLarge, detail).limit_bytes(LEDGER_RECORD_MAX))
}

fn decode_record(raw: &RawValue, at: &At<'_>, last: Option<&TopicName>) -> Result<Record, Problem> {
    let record = Object::read(raw, at, RECORD)?;
    let topic = decode_topic(record.require("topic", at)?, &at.member("topic"), last)?;
    let partition = match record.get("partition") {
        None => None,
        Some(raw) => Some(decode_partition(raw, &at.member("partition"))?),
    };
    let key = match record.get("key") {
        None => None,
        Some(raw) => decode_payload(raw, &at.member("key"))?,
    };
    let value = decode_payload(record.require("value", at)?, &at.member("value"))?;
    let headers = match record.get("headers") {
        None => Vec::new(),
        Some(raw) => decode_headers(raw, &at.member("headers"))?,
    };
    let timestamp_ms = match record.get("timestamp") {
        None => None,
        Some(raw) => Some(decode_timestamp(raw, &at.member("timestamp"))?),
    };
    Ok(Record { topic, partition, key, value, headers, timestamp_ms })
}

/// `last` is the topic of the record before: most requests name one topic, which is then kept once.
fn decode_topic(
    raw: &RawValue,
    at: &At<'_>,
    last: Option<&TopicName>,
) -> Result<TopicName, Problem> {
    let text = json::text(raw, at)?;
    if let Some(last) = last.filter(|last| last.as_ref() == text) {
        return Ok(Arc::clone(last));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let sized = !text.is_empty() && text.len() <= TOPIC_BYTES_MAX;
    if sized && text.bytes().all(allowed) && text != "." && text != ".." {
        return Ok(text.into());
    }
    Err(at.refuse("a topic is 1 to 249 of A-Z a-z 0-9 . _ - and neither \".\" nor \"..\""))
}

fn decode_partition(raw: &RawValue, at: &At<'_>) -> Result<i32, Problem> {
    let partition = json::integer(raw).and_then(|n| i32::try_from(n).ok()).filter(|n| *n >= 0);
    partition.ok_or_else(|| at.refuse("must be a whole number from 0 to 2147483647"))
}

fn decode_timestamp(raw: &RawValue, at: &At<'_>) -> Result<i64, Problem> {
    let timestamp = json::integer(raw).filter(|ms| *ms >= 1);
    timestamp.ok_or_else(|| at.refuse("must be milliseconds since 1970, a whole number from 1"))
}

/// The bytes of a key, a value or a header's value; `None` is Kafka's null.
fn decode_payload(raw: &RawValue, at: &At<'_>) -> Result<Option<Payload>, Problem> {
    if raw.get() == "null" {
        return Ok(None);
    }
    if json::is_text(raw) {
        return Ok(Some(json::text(raw, at)?.as_bytes().into()));
    }
    if !raw.get().starts_with('{') {
        return Err(at.refuse("must be a string, null, {\"base64\": ...} or {\"json\": ...}"));
    }
    let encoded = Object::read(raw, at, ENCODED)?;
    match (encoded.len(), encoded.get("base64"), encoded.get("json")) {
        (1, Some(raw), None) => decode_base64(raw, &at.member("base64")).map(Some),
        (1, None, Some(raw)) => Ok(Some(raw.get().as_bytes().into())),
        _ => Err(at.refuse("must have exactly one of base64 and json")),
    }
}

fn decode_base64(raw: &RawValue, at: &At<'_>) -> Result<Payload, Problem> {
    let text = json::text(raw, at)?;
    let bytes = STANDARD.decode(text.as_bytes());
    bytes.map(Payload::from).map_err(|_| at.refuse("is not padded standard base64"))
}

type Headers = Vec<(Arc<str>, Option<Payload>)>;

fn decode_headers(raw: &RawValue, at: &At<'_>) -> Result<Headers, Problem> {
    let items = json::list(raw, at, usize::MAX)?.unwrap_or_default();
    let mut headers = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let at = at.index(index);
        let header = Object::read(item, &at, HEADER)?;
        let name = decode_header_name(header.require("name", &at)?, &at.member("name"))?;
        let value = decode_payload(header.require("value", &at)?, &at.member("value"))?;
        headers.push((name, value));
    }
    Ok(headers)
}

fn decode_header_name(raw: &RawValue, at: &At<'_>) -> Result<Arc<str>, Problem> {
    let name = json::text(raw, at)?;
    if name.is_empty() || name.len() > HEADER_NAME_BYTES_MAX || !is_printable(&name) {
        return Err(at.refuse(
            "a header's name is 1 to 249 bytes of printable text: no control or invisible \
             characters, no space but the plain one, and none at either end",
        ));
    }
    let prefix = name.as_bytes().get(..RESERVED_PREFIX.len());
    if prefix.is_some_and(|p| p.eq_ignore_ascii_case(RESERVED_PREFIX.as_bytes())) {
        return Err(at.refuse("headers named fencepost-* are the gateway's own"));
    }
    Ok(name.into())
}

#[cfg(test)]
mod tests;
