//! POST of records: one atomic operation.
//!
//! Owns the call's checks in their order and the shape of its answer. What passes them is looked
//! up where it is decided, under the fence row's lock. What does not is looked up before it is
//! refused: limits and topics may have been others when it was accepted.

use crate::engine::api::{Kept, Post, Produced};
use crate::failpoint;
use crate::http::Gateway;
use crate::http::body::JsonBytes;
use crate::http::identity::{Holder, IdempotencyKey};
use crate::http::problem::Problem;
use crate::http::query::NoParameters;
use crate::http::records;
use crate::protocol::lease::LeaseName;
use crate::protocol::operation::{OperationId, Placed, Record};
use crate::protocol::refusal::Refusal;
use axum::Json;
use axum::extract::State;
use serde::{Serialize, Serializer};
use std::sync::Arc;

#[derive(Serialize)]
pub(super) struct ProducedBody {
    lease: String,
    token: String,
    operation_id: String,
    batch_seq: u64,
    replayed: bool,
    offsets: Vec<OffsetBody>,
}

#[derive(Serialize)]
struct OffsetBody {
    #[serde(serialize_with = "shared_text")]
    topic: Arc<str>,
    partition: i32,
    offset: i64,
}

/// POST /v1/leases/{lease}/records
pub(super) async fn produce(
    State(gateway): State<Arc<Gateway>>,
    Holder(credential): Holder,
    IdempotencyKey(id): IdempotencyKey,
    NoParameters: NoParameters,
    JsonBytes(body, share): JsonBytes,
) -> Result<Json<ProducedBody>, Problem> {
    let lease = credential.lease.clone();
    failpoint::hit("after_auth", lease.as_str());
    let answer = async {
        let records = records::decode(&body)?;
        drop(body);
        match check(&gateway, &id, &records).await {
            Ok(()) => {
                let post = Post { credential, id, records, kept: Kept::new(share) };
                Ok(gateway.engine.produce(post).await?)
            }
            Err(problem) => gateway.engine.recall(&credential, &id, &records).await?.ok_or(problem),
        }
    };
    let produced = answer.await.map_err(|problem: Problem| problem.on(&lease))?;
    Ok(Json(produced_body(&lease, produced)))
}

/// What an operation must be before any lock is asked for.
async fn check(gateway: &Gateway, id: &OperationId, records: &[Record]) -> Result<(), Problem> {
    records::check_sizes(records, gateway.settings.record_bytes_max)?;
    records::check_ledger_size(id, records)?;
    gateway.topics.check_reserved(records)?;
    match gateway.engine.check(records).await {
        Ok(()) => gateway.topics.check_allowed(records),
        // Kafka says the same of a topic that is not the gateway's business.
        Err(denied @ Refusal::KafkaDenied { .. }) => {
            gateway.topics.check_allowed(records)?;
            Err(denied.into())
        }
        Err(refusal) => Err(refusal.into()),
    }
}

/// What an accepted operation is answered with, now and later.
pub(super) fn produced_body(lease: &LeaseName, produced: Produced) -> ProducedBody {
    let offset = |placed: Placed| OffsetBody {
        topic: placed.topic,
        partition: placed.partition,
        offset: placed.offset,
    };
    ProducedBody {
        lease: lease.as_str().to_owned(),
        token: produced.token.to_string(),
        operation_id: produced.id.as_str().to_owned(),
        batch_seq: produced.seq.0,
        replayed: produced.replayed,
        offsets: produced.offsets.into_iter().map(offset).collect(),
    }
}

fn shared_text<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::lease::{BatchSeq, FencingToken};

    #[test]
    fn an_answer_has_one_offset_a_record_in_request_order() {
        let placed = |partition, offset| Placed { topic: "t".into(), partition, offset };
        let produced = Produced {
            token: FencingToken(402),
            id: OperationId::parse("doc-1").unwrap(),
            seq: BatchSeq(9),
            replayed: false,
            offsets: vec![placed(1, 10), placed(0, 7)],
        };
        let body = produced_body(&LeaseName::parse("matter.7").unwrap(), produced);
        let expected = r#"{"lease":"matter.7","token":"402","operation_id":"doc-1","#.to_owned()
            + r#""batch_seq":9,"replayed":false,"offsets":["#
            + r#"{"topic":"t","partition":1,"offset":10},{"topic":"t","partition":0,"offset":7}]}"#;
        assert_eq!(serde_json::to_string(&body).unwrap(), expected);
    }
}
