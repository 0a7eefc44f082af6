//! Records as librdkafka takes them, byte for byte.
//!
//! Owns the mapping: null and empty stay apart for key, value and header value; headers keep their
//! order and their repeats. Never adds or drops anything.

use crate::engine::ports::{Failure, Refused};
use crate::kafka::error::unknown;
use crate::protocol::operation::Record;
use crate::protocol::refusal::RecordRefused;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::BaseRecord;

/// One record, with its index as the mark by which its delivery report is told.
pub(super) fn base_record(record: &Record, index: usize) -> BaseRecord<'_, [u8], [u8], usize> {
    BaseRecord {
        topic: &record.topic,
        partition: record.partition,
        payload: record.value.as_deref(),
        key: record.key.as_deref(),
        timestamp: record.timestamp_ms,
        headers: headers(record),
        delivery_opaque: index,
    }
}

fn headers(record: &Record) -> Option<OwnedHeaders> {
    if record.headers.is_empty() {
        return None;
    }
    let room = OwnedHeaders::new_with_capacity(record.headers.len());
    Some(record.headers.iter().fold(room, |headers, (name, value)| {
        headers.insert(Header { key: name, value: value.as_deref() })
    }))
}

/// A refused ledger record is no record of the caller's: only a missing right is a definite no
/// that somebody can act on.
pub(super) fn ledger_failure(failure: Failure) -> Failure {
    match failure {
        Failure::Determinate { stage, refused: Refused::Record { why, .. } } => match why {
            RecordRefused::Denied { resource } => {
                Failure::Determinate { stage, refused: Refused::Denied { resource } }
            }
            RecordRefused::TooLarge { .. }
            | RecordRefused::TopicNotFound
            | RecordRefused::PartitionNotFound
            | RecordRefused::Timestamp
            | RecordRefused::Invalid => unknown(stage, format!("ledger record refused: {why:?}")),
        },
        Failure::Determinate { .. } | Failure::Indeterminate { .. } | Failure::Fenced { .. } => {
            failure
        }
    }
}
