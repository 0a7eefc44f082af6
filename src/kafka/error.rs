//! What librdkafka's error codes mean, stage by stage.
//!
//! Owns the allow-lists that promote a code to fenced, denied or a refused record. Whatever is not
//! on a list is unknown: the call may have happened or may still happen. There is no `From`: each
//! site names its stage.

use crate::engine::ports::{Failure, Refused};
use crate::protocol::refusal::RecordRefused;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use tokio::sync::oneshot;

/// It may have happened.
pub(super) fn unknown(stage: &'static str, detail: impl Into<String>) -> Failure {
    Failure::Indeterminate { stage, detail: detail.into() }
}

/// It certainly did not happen, and nobody knows when it could.
pub(super) fn unavailable(stage: &'static str) -> Failure {
    Failure::Determinate { stage, refused: Refused::Unavailable }
}

/// The answer to somebody who may have stopped waiting, which is no error.
pub(super) fn answer<T>(to: oneshot::Sender<T>, with: T) {
    if to.send(with).is_err() {
        tracing::trace!("nobody waits for this answer any more");
    }
}

/// An error as text. A configuration error names its key only: its value may be a secret.
pub(super) fn describe(error: &KafkaError) -> String {
    if let KafkaError::ClientConfig(_, why, key, _) = error {
        return format!("setting {key}: {why}");
    }
    error.to_string()
}

/// Another producer of the same transactional.id was initialised. A transaction that the
/// coordinator timed out looks the same.
pub(super) fn is_fenced(code: Code) -> bool {
    matches!(code, Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch)
}

/// A call on the producer that failed; `fatal` is the client's fatal error, if it has one, which
/// says more than the call's own code.
pub(super) fn call_failed(stage: &'static str, error: &KafkaError, fatal: Option<Code>) -> Failure {
    let code = fatal.or_else(|| error.rdkafka_error_code());
    match code {
        Some(code) if is_fenced(code) => Failure::Fenced { stage },
        Some(_) | None => unknown(stage, describe(error)),
    }
}

/// An initialisation that failed. The coordinator refuses these before it touches the epoch, and
/// librdkafka does not repeat them.
pub(super) fn init_failed(error: &KafkaError, fatal: Option<Code>, id: &str) -> Failure {
    let stage = "init_transactions";
    let code = fatal.or_else(|| error.rdkafka_error_code());
    match code {
        Some(Code::TransactionalIdAuthorizationFailed) => {
            let resource = format!("WRITE on transactional id {id}");
            Failure::Determinate { stage, refused: Refused::Denied { resource } }
        }
        Some(Code::ClusterAuthorizationFailed) => {
            let resource = "IDEMPOTENT_WRITE on the cluster".to_owned();
            Failure::Determinate { stage, refused: Refused::Denied { resource } }
        }
        _ => call_failed(stage, error, fatal),
    }
}

/// Why a record was refused, if that is certain. `limit_bytes` is the client's own limit, given
/// where the client refused.
pub(super) fn record_refused(
    code: Code,
    topic: &str,
    limit_bytes: Option<u64>,
) -> Option<RecordRefused> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "an allow-list: the rest is unknown")]
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Some(RecordRefused::TooLarge { limit_bytes })
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::InvalidTopic => {
            Some(RecordRefused::TopicNotFound)
        }
        Code::UnknownPartition => Some(RecordRefused::PartitionNotFound),
        Code::TopicAuthorizationFailed => {
            Some(RecordRefused::Denied { resource: format!("WRITE on topic {topic}") })
        }
        Code::InvalidTimestamp => Some(RecordRefused::Timestamp),
        Code::InvalidRecord | Code::PolicyViolation => Some(RecordRefused::Invalid),
        _ => None,
    }
}

/// Consumer errors that say nothing of a partition's contents: a connection went or did not come
/// up, or the group (which is never joined) could not be asked for. The position stays, and the
/// library goes on from there.
pub(super) fn keeps_position(error: &KafkaError) -> bool {
    let (KafkaError::MessageConsumption(code) | KafkaError::Global(code)) = error else {
        return false;
    };
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::SSL
            | Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::TimedOutQueue
            | Code::GroupAuthorizationFailed
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::NotCoordinator
    )
}

/// librdkafka's own lines: warnings and worse, the rest only for who traces.
pub(super) fn log_line(level: RDKafkaLogLevel, fac: &str, line: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error
        | RDKafkaLogLevel::Warning => tracing::warn!(fac, line, "librdkafka"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
            tracing::trace!(fac, line, "librdkafka");
        }
    }
}
