//! Accepted operations: their columns, and their look-up.
//!
//! Never deletes one, and never decides what a repeat is told.

use super::checkout::Session;
use super::error::Unreadable;
use crate::protocol::lease::{BatchSeq, FencingToken, Incarnation, LeaseName};
use crate::protocol::ledger::{decode_runs, encode_runs};
use crate::protocol::operation::{Accepted, Fingerprint, OperationId, Stored};

/// Operations as one array a column, for UNNEST.
#[derive(Default)]
pub(super) struct Columns {
    pub(super) ids: Vec<String>,
    pub(super) fingerprints: Vec<Vec<u8>>,
    pub(super) runs: Vec<Vec<u8>>,
}

impl Columns {
    pub(super) fn of(operations: &[Accepted]) -> Self {
        Self {
            ids: operations.iter().map(|o| o.id.as_str().to_owned()).collect(),
            fingerprints: operations.iter().map(|o| o.fingerprint.0.to_vec()).collect(),
            runs: operations.iter().map(|o| encode_runs(&o.runs)).collect(),
        }
    }
}

/// The columns of one operation as they are read.
pub(super) struct StoredColumns {
    pub(super) id: String,
    pub(super) fingerprint: Vec<u8>,
    pub(super) token: i64,
    pub(super) incarnation: i64,
    pub(super) batch_seq: i64,
    pub(super) runs: Vec<u8>,
}

impl StoredColumns {
    pub(super) fn read(self) -> Result<Stored, Unreadable> {
        let fingerprint =
            self.fingerprint.try_into().map_err(|_| Unreadable("operations.fingerprint"))?;
        Ok(Stored {
            accepted: Accepted {
                id: OperationId::parse(&self.id).ok_or(Unreadable("operations.operation_id"))?,
                fingerprint: Fingerprint(fingerprint),
                runs: decode_runs(&self.runs).map_err(|_| Unreadable("operations.runs"))?,
            },
            // The table's CHECKs keep these three above zero.
            token: FencingToken(self.token.unsigned_abs()),
            incarnation: Incarnation(self.incarnation.unsigned_abs()),
            seq: BatchSeq(self.batch_seq.unsigned_abs()),
        })
    }
}

/// Ids as an array parameter.
pub(super) fn texts(ids: &[OperationId]) -> Vec<String> {
    ids.iter().map(|id| id.as_str().to_owned()).collect()
}

/// Looks operations up. Under the fence row's lock nobody can add one of this lease: every insert
/// is part of a statement that first changed the locked row.
pub(super) async fn find(
    session: &mut Session,
    lease: &LeaseName,
    ids: &[OperationId],
) -> Result<Vec<Stored>, sqlx::Error> {
    let rows = sqlx::query_as!(
        StoredColumns,
        r#"SELECT operation_id AS id, fingerprint, token, incarnation, batch_seq, runs
           FROM operations WHERE lease = $1 AND operation_id = ANY ($2)"#,
        lease.as_str(),
        &texts(ids),
    )
    .fetch_all(session.conn()?)
    .await?;
    rows.into_iter().map(|row| row.read().map_err(Unreadable::decode)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::operation::Run;

    fn accepted() -> Accepted {
        let run = Run { topic: "t".into(), partition: 3, first_offset: 40, count: 2 };
        Accepted {
            id: OperationId::parse("op-1").unwrap(),
            fingerprint: Fingerprint([7; 32]),
            runs: vec![run],
        }
    }

    fn columns() -> StoredColumns {
        let mut given = Columns::of(&[accepted()]);
        StoredColumns {
            id: given.ids.remove(0),
            fingerprint: given.fingerprints.remove(0),
            token: 5,
            incarnation: 1,
            batch_seq: 9,
            runs: given.runs.remove(0),
        }
    }

    #[test]
    fn an_operation_is_read_back_as_it_was_written() {
        let stored = columns().read().unwrap();
        assert_eq!(stored.accepted, accepted());
        assert_eq!((stored.token, stored.seq), (FencingToken(5), BatchSeq(9)));
    }

    #[test]
    fn a_broken_column_is_an_error_and_never_an_empty_answer() {
        assert!(StoredColumns { runs: vec![9], ..columns() }.read().is_err());
        assert!(StoredColumns { fingerprint: vec![0; 31], ..columns() }.read().is_err());
        assert!(StoredColumns { id: String::new(), ..columns() }.read().is_err());
    }
}
