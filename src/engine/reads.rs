//! What can be answered without an actor: topics, look-ups, lists.
//!
//! Owns the reads of both stores that take no lock. The one that may go further is the look-up of
//! an operation, which settles an expired lease if it is asked to. Never writes by itself.

use crate::engine::Engine;
use crate::engine::api::{OperationQuery, OperationState, Produced};
use crate::engine::ports::{
    Answer, Failure, FenceStore, HistoryEntry, HistoryPage, LeasePage, LeaseView, Refused,
};
use crate::protocol::fence::{Credential, Locked, Verdict, judge};
use crate::protocol::lease::LeaseName;
use crate::protocol::operation::{Fingerprint, OperationId, Record};
use crate::protocol::outcome::{Outcome, outcome};
use crate::protocol::refusal::{RecordRefused, Refusal, SideEffect};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::time::timeout;

impl Engine {
    /// Checks topics and partitions of records against cached metadata: before any lock.
    pub async fn check(&self, records: &[Record]) -> Result<(), Refusal> {
        let mut topics: BTreeMap<Arc<str>, Vec<(usize, Option<i32>)>> = BTreeMap::new();
        for (index, record) in records.iter().enumerate() {
            let wants = topics.entry(Arc::clone(&record.topic)).or_default();
            wants.push((index, record.partition));
        }
        let log = Arc::clone(&self.deps.log);
        let check = async move {
            for (topic, wants) in topics {
                let count = log.partitions(&topic).await.map_err(no_metadata)?;
                // It may have been accepted while the topic was there.
                let side_effect = SideEffect::Maybe;
                let refuse = |index: usize, why| Err(Refusal::Record { index, why, side_effect });
                for (index, partition) in wants {
                    match (count, partition) {
                        (None, _) => return refuse(index, RecordRefused::TopicNotFound),
                        (Some(count), Some(partition)) if partition >= count => {
                            return refuse(index, RecordRefused::PartitionNotFound);
                        }
                        (Some(_), _) => {}
                    }
                }
            }
            Ok(())
        };
        // It ends before its caller's deadline however many topics there are.
        let within = self.deps.settings.request.mul_f64(0.9);
        let check =
            async move { timeout(within, check).await.unwrap_or(Err(Refusal::KafkaUnavailable)) };
        self.detached("check", check).await
    }

    /// Looks up an operation that is about to be refused without having been sent. Found: its
    /// stored answer. A refusal: one that says more than the other would. `None`: nothing better is
    /// known.
    pub async fn recall(
        &self,
        credential: &Credential,
        id: &OperationId,
        records: &[Record],
    ) -> Result<Option<Produced>, Refusal> {
        let fingerprint = Fingerprint::of(records);
        let rows = match self.find(&credential.lease, id).await {
            Ok(Some(rows)) => rows,
            Ok(None) | Err(_) => return Ok(None),
        };
        match judge(&rows, credential, id, &fingerprint, self.deps.settings.retention_s) {
            Verdict::Replay(stored) => Ok(Some(Produced::of(stored, true))),
            Verdict::Refused(
                refusal @ (Refusal::CredentialNotYet
                | Refusal::OperationConflict
                | Refusal::StaleToken { .. }
                | Refusal::LeaseReleased { .. }),
            ) => Err(refusal),
            Verdict::Refused(_) | Verdict::Live | Verdict::Ahead => Ok(None),
        }
    }

    /// What became of an operation.
    pub async fn operation(&self, query: OperationQuery) -> Result<OperationState, Refusal> {
        // All its parts together take no longer than one request may; a settle that nobody waits
        // for any more goes on or is passed over, as its actor finds it.
        let answer = timeout(self.deps.settings.request, self.looked_up(query)).await;
        answer.unwrap_or(Err(Refusal::OutcomeUnknown))
    }

    async fn looked_up(&self, query: OperationQuery) -> Result<OperationState, Refusal> {
        let told = self.told(&query).await?;
        if !query.settle || told != (Outcome::Unknown { can_settle: true }) {
            return state(told);
        }
        match self.settle(&query.lease).await {
            Ok(()) => state(self.told(&query).await?),
            // Taken over meanwhile: a live lease is never opened for a question.
            Err(Refusal::LeaseHeld { .. }) => Ok(OperationState::Unknown),
            Err(refusal) => Err(refusal),
        }
    }

    async fn told(&self, query: &OperationQuery) -> Result<Outcome, Refusal> {
        let rows = self.find(&query.lease, &query.id).await?.ok_or(Refusal::LeaseNotFound)?;
        let retention_s = self.deps.settings.retention_s;
        Ok(outcome(&rows, &query.id, query.credential.as_ref(), retention_s))
    }

    async fn find(
        &self,
        lease: &LeaseName,
        id: &OperationId,
    ) -> Result<Option<Box<Locked>>, Refusal> {
        let (lease, id) = (lease.clone(), id.clone());
        self.read("find", move |store| Box::pin(async move { store.find(&lease, &id).await })).await
    }

    /// A lease's rows.
    pub async fn inspect(&self, lease: LeaseName) -> Result<LeaseView, Refusal> {
        let read =
            self.read("inspect", move |store| Box::pin(async move { store.inspect(&lease).await }));
        read.await?.ok_or(Refusal::LeaseNotFound)
    }

    /// Several leases' rows.
    pub async fn list(&self, page: LeasePage) -> Result<Vec<LeaseView>, Refusal> {
        self.read("list", move |store| Box::pin(async move { store.list(page).await })).await
    }

    /// What happened to a lease.
    pub async fn history(
        &self,
        lease: LeaseName,
        page: HistoryPage,
    ) -> Result<Vec<HistoryEntry>, Refusal> {
        let read = self.read("history", move |store| {
            Box::pin(async move { store.history(&lease, page).await })
        });
        read.await?.ok_or(Refusal::LeaseNotFound)
    }

    /// One read of the fence store, detached from its caller.
    async fn read<T: Send + 'static>(
        &self,
        name: &'static str,
        call: impl FnOnce(Arc<dyn FenceStore>) -> Answer<'static, T>,
    ) -> Result<T, Refusal> {
        let answer = call(Arc::clone(&self.deps.store));
        let read = async move {
            answer.await.map_err(|failure| {
                tracing::warn!(%failure, name, "read");
                Refusal::PostgresUnavailable
            })
        };
        self.detached(name, read).await
    }
}

fn no_metadata(failure: Failure) -> Refusal {
    tracing::warn!(%failure, "metadata");
    match failure {
        Failure::Determinate { refused: Refused::Denied { resource }, .. } => {
            Refusal::KafkaDenied { resource }
        }
        Failure::Determinate { .. } | Failure::Indeterminate { .. } | Failure::Fenced { .. } => {
            Refusal::KafkaUnavailable
        }
    }
}

fn state(told: Outcome) -> Result<OperationState, Refusal> {
    match told {
        Outcome::Committed(stored) => Ok(OperationState::Committed(Produced::of(stored, true))),
        Outcome::Unknown { .. } => Ok(OperationState::Unknown),
        Outcome::Absent { up_to } => Ok(OperationState::Absent { up_to }),
        Outcome::Refused(refusal) => Err(refusal),
    }
}
