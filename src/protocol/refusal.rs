//! What a caller is told when the answer is no.
//!
//! Owns the list of refusals and what each may say about the operation's side
//! effect. Knows no status code: http maps them.

use crate::protocol::lease::{FencingToken, Owner};

/// What is known of the *operation* (not of this attempt) when it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SideEffect {
    /// Proven: nothing of it is in the topic.
    None,
    /// It is in the topic.
    Committed,
    /// Not known.
    Maybe,
}

/// Why Kafka, or we on its behalf, will not take a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RecordRefused {
    /// Larger than the topic, the broker or the gateway takes.
    TooLarge {
        /// The limit in bytes, where it is known.
        limit_bytes: Option<u64>,
    },
    /// The topic is not there.
    TopicNotFound,
    /// The partition is not there.
    PartitionNotFound,
    /// The broker does not let us write to this topic.
    Denied {
        /// The resource and the operation that was denied on it.
        resource: String,
    },
    /// The broker refuses the record's timestamp.
    Timestamp,
    /// The broker refuses the record for another reason of its own (a policy, a missing key).
    Invalid,
}

/// A definite no, or an honest "not known".
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Nobody has ever acquired this lease.
    LeaseNotFound,
    /// Somebody else holds the lease.
    LeaseHeld {
        /// Who.
        holder: Owner,
        /// For how long still.
        expires_in_ms: u64,
    },
    /// A newer token is installed (or this token belongs to another history).
    StaleToken {
        /// The row's token.
        current: FencingToken,
        /// Of the operation.
        side_effect: SideEffect,
    },
    /// The lease of this token is over.
    LeaseExpired {
        /// The row's token.
        current: FencingToken,
        /// Of the operation.
        side_effect: SideEffect,
    },
    /// The lease of this token was released.
    LeaseReleased {
        /// The row's token.
        current: FencingToken,
        /// Of the operation.
        side_effect: SideEffect,
    },
    /// The credential is over while its lease lives on (a renew gave a newer one).
    CredentialExpired,
    /// The credential is not valid yet, by the database's clock.
    CredentialNotYet,
    /// This operation id is committed with other records.
    OperationConflict,
    /// An operation id whose own time is further back than operations are remembered: whether it
    /// was accepted cannot be told any more.
    OperationTooOld,
    /// An operation id whose own time is in the future: it would be forgotten before it is too old.
    OperationAhead,
    /// Another request with this operation id was still under way at this one's deadline.
    OperationInFlight,
    /// One record cannot be taken; nothing of the operation was written.
    Record {
        /// Index of the record in the POST.
        index: usize,
        /// Why.
        why: RecordRefused,
        /// Of the operation.
        side_effect: SideEffect,
    },
    /// Postgres and the ledger contradict each other; an operator decides.
    Quarantined,
    /// Postgres could not say yes.
    PostgresUnavailable,
    /// Kafka could not say yes.
    KafkaUnavailable,
    /// Kafka denies the gateway a right that it needs.
    KafkaDenied {
        /// The resource and the operation that was denied on it.
        resource: String,
    },
    /// Somebody else initialised this lease's transactional.id.
    ProducerFenced {
        /// When the next attempt makes sense.
        retry_after_ms: u64,
    },
    /// The deadline passed before the outcome was known.
    OutcomeUnknown,
    /// Too much is waiting.
    Busy,
    /// This gateway is stopping.
    ShuttingDown,
}

impl Refusal {
    /// The same refusal, of an operation that may have been accepted and forgotten.
    #[must_use]
    pub fn unproven(mut self) -> Self {
        if let Self::StaleToken { side_effect, .. }
        | Self::LeaseExpired { side_effect, .. }
        | Self::LeaseReleased { side_effect, .. } = &mut self
        {
            *side_effect = SideEffect::Maybe;
        }
        self
    }

    /// What this refusal may say of the operation.
    #[must_use]
    pub fn side_effect(&self) -> SideEffect {
        match self {
            Self::StaleToken { side_effect, .. }
            | Self::LeaseExpired { side_effect, .. }
            | Self::LeaseReleased { side_effect, .. }
            | Self::Record { side_effect, .. } => *side_effect,
            Self::OperationConflict => SideEffect::Committed,
            Self::LeaseHeld { .. } => SideEffect::None,
            // To one with a credential a row that is gone is a row that went back.
            Self::LeaseNotFound
            | Self::CredentialExpired
            | Self::CredentialNotYet
            | Self::Quarantined
            | Self::PostgresUnavailable
            | Self::KafkaUnavailable
            | Self::KafkaDenied { .. }
            | Self::ProducerFenced { .. }
            | Self::OperationTooOld
            | Self::OperationAhead
            | Self::OperationInFlight
            | Self::OutcomeUnknown
            | Self::Busy
            | Self::ShuttingDown => SideEffect::Maybe,
        }
    }
}
