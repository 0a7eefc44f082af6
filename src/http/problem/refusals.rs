//! From a refusal of the engine to the problem that the caller reads.
//!
//! Owns which code and which words each refusal gets. Names no status: the catalogue has them.

use super::{Code, More, Problem};
use crate::protocol::refusal::{RecordRefused, Refusal};

/// Waits that a caller is told where the refusal itself knows of none.
const BUSY_RETRY_MS: u64 = 250;
const STORE_RETRY_MS: u64 = 1_000;
const OPERATOR_RETRY_MS: u64 = 30_000;

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        use Refusal as R;
        let with = |code: Code, detail: &'static str| Self::with(&refusal, code, detail);
        match &refusal {
            R::LeaseNotFound => with(Code::LeaseNotFound, "acquire it first"),
            R::LeaseHeld { holder, expires_in_ms } => {
                let mut problem = with(Code::LeaseHeld, "wait until it expires or is released");
                problem.more.holder = Some(holder.as_str().to_owned());
                problem.more.expires_in_ms = Some(*expires_in_ms);
                problem.after_ms(expires_in_ms.saturating_add(jitter_ms()).max(1))
            }
            R::StaleToken { current, .. } => {
                with(Code::StaleToken, "this token is fenced").superseded(*current)
            }
            R::LeaseExpired { current, .. } => {
                with(Code::LeaseExpired, "this token's lease is over").superseded(*current)
            }
            R::LeaseReleased { current, .. } => {
                with(Code::LeaseReleased, "this token was given back").superseded(*current)
            }
            R::CredentialExpired => {
                with(Code::CredentialExpired, "use the one that the last renew gave")
            }
            R::CredentialNotYet => with(Code::CredentialInvalid, "not valid yet"),
            R::OperationConflict => {
                with(Code::OperationConflict, "choose another Idempotency-Key for other records")
            }
            R::OperationTooOld => {
                with(Code::OperationTooOld, "whether it was accepted cannot be told any more")
            }
            R::OperationAhead => {
                let text = "a UUIDv7 whose time is more than 5 minutes ahead of the database's";
                let mut problem = with(Code::InvalidMember, text);
                problem.more.parameter = Some("Idempotency-Key");
                problem
            }
            R::OperationInFlight => {
                with(Code::OperationInFlight, "repeat it with the same key to learn the outcome")
            }
            R::Record { index, why, .. } => record(&refusal, *index, why),
            R::Quarantined => {
                with(Code::Quarantined, "an operator decides").after_ms(OPERATOR_RETRY_MS)
            }
            R::PostgresUnavailable => {
                with(Code::PostgresUnavailable, "repeat it").after_ms(STORE_RETRY_MS)
            }
            R::KafkaUnavailable => {
                with(Code::KafkaUnavailable, "repeat it").after_ms(STORE_RETRY_MS)
            }
            R::KafkaDenied { resource } => denied(&refusal, resource),
            R::ProducerFenced { retry_after_ms } => {
                with(Code::ProducerFenced, "repeat it").after_ms((*retry_after_ms).max(1))
            }
            R::OutcomeUnknown => {
                with(Code::OutcomeUnknown, "repeat it with the same key to learn the outcome")
            }
            R::Busy => with(Code::Busy, "slow down").after_ms(BUSY_RETRY_MS),
            R::ShuttingDown => {
                with(Code::ShuttingDown, "ask another gateway").after_ms(STORE_RETRY_MS)
            }
        }
    }
}

fn denied(refusal: &Refusal, resource: &str) -> Problem {
    let detail = format!("the broker denied: {resource}");
    Problem::with(refusal, Code::KafkaDenied, detail).after_ms(OPERATOR_RETRY_MS)
}

fn record(refusal: &Refusal, index: usize, why: &RecordRefused) -> Problem {
    let with = |code: Code, detail: String| Problem::with(refusal, code, detail);
    let member = |problem: Problem, member: &str| {
        let pointer = format!("/records/{index}{member}");
        Problem { more: Box::new(More { pointer: Some(pointer), ..*problem.more }), ..problem }
    };
    let problem = match why {
        RecordRefused::TooLarge { limit_bytes } => {
            let text = format!(
                "record {index}, with what was sent beside it, is more than the topic takes"
            );
            let mut problem = with(Code::RecordTooLarge, text);
            problem.more.limit_bytes = *limit_bytes;
            problem
        }
        RecordRefused::TopicNotFound => {
            with(Code::TopicNotFound, format!("the topic of record {index} does not exist"))
        }
        RecordRefused::PartitionNotFound => {
            with(Code::PartitionNotFound, format!("the partition of record {index} does not exist"))
        }
        RecordRefused::Denied { resource } => denied(refusal, resource),
        RecordRefused::Timestamp => {
            let text = "the broker refuses this timestamp".to_owned();
            member(with(Code::InvalidMember, text), "/timestamp")
        }
        RecordRefused::Invalid => {
            member(with(Code::InvalidMember, "the broker refuses this record".to_owned()), "")
        }
    };
    problem.at_record(index)
}

/// Spreads those who wait for one instant over the second after it.
fn jitter_ms() -> u64 {
    let [high, low, ..] = uuid::Uuid::new_v4().into_bytes();
    u64::from(u16::from_be_bytes([high, low])) % 1_000
}
