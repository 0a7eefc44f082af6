//! What is told of an operation, row by row.

use super::*;
use crate::protocol::fence::tests::{NOW_S, RETENTION_S, rows as held};
use crate::protocol::lease::{BatchSeq, DbTime, Incarnation};
use crate::protocol::operation::{Accepted, Fingerprint};

const ABSENT: Outcome = Outcome::Absent { up_to: FencingToken(7) };
const UNKNOWN: Outcome = Outcome::Unknown { can_settle: false };

fn id() -> OperationId {
    OperationId::parse("op").unwrap()
}

fn expired() -> Locked {
    let mut rows = held();
    rows.lease.expires_at = rows.now;
    rows
}

fn released() -> Locked {
    let mut rows = held();
    rows.lease.released = true;
    rows
}

fn credential(token: u64) -> Credential {
    Credential { token: FencingToken(token), ..crate::protocol::fence::tests::credential() }
}

fn told(rows: &Locked, credential: Option<&Credential>) -> Outcome {
    outcome(rows, &id(), credential, RETENTION_S)
}

#[test]
fn what_is_found_is_committed_whoever_asks_and_however_the_lease_stands() {
    let stored = Stored {
        accepted: Accepted { id: id(), fingerprint: Fingerprint([1; 32]), runs: Vec::new() },
        token: FencingToken(3),
        incarnation: Incarnation(1),
        seq: BatchSeq(2),
    };
    for mut rows in [held(), expired(), released()] {
        rows.found = vec![stored.clone()];
        let late = Credential { expires_s: NOW_S - 1, ..credential(3) };
        for asks in [None, Some(&credential(7)), Some(&late)] {
            assert_eq!(told(&rows, asks), Outcome::Committed(stored.clone()));
        }
    }
}

#[test]
fn under_a_live_lease_nothing_is_absent_for_an_older_token_either() {
    for asks in [None, Some(&credential(7)), Some(&credential(6))] {
        assert_eq!(told(&held(), asks), UNKNOWN);
    }
}

#[test]
fn an_expired_lease_can_be_settled_and_says_nothing_by_itself() {
    for asks in [None, Some(&credential(7)), Some(&credential(6))] {
        assert_eq!(told(&expired(), asks), Outcome::Unknown { can_settle: true });
    }
}

#[test]
fn after_a_release_or_a_settle_what_is_not_found_is_absent() {
    for asks in [None, Some(&credential(7)), Some(&credential(6))] {
        assert_eq!(told(&released(), asks), ABSENT);
    }
    let mut quarantined = released();
    quarantined.fence.quarantine = Some("why".to_owned());
    assert_eq!(told(&quarantined, None), UNKNOWN);
}

#[test]
fn what_may_have_been_forgotten_is_not_absent() {
    let old = Credential { issued_s: NOW_S - RETENTION_S - 1, ..credential(6) };
    assert_eq!(told(&released(), Some(&old)), UNKNOWN);
    let mut purged = released();
    purged.forgotten_to = DbTime(credential(6).issued_s * 1_000_000);
    assert_eq!(told(&purged, Some(&credential(6))), UNKNOWN);
    let v7 = OperationId::parse("017f22e2-79b0-7cc3-98c4-dc0c0c07398f").unwrap();
    assert_eq!(outcome(&released(), &v7, None, RETENTION_S), UNKNOWN);
    let foreign = Credential { incarnation: Incarnation(1), ..credential(7) };
    assert_eq!(told(&released(), Some(&foreign)), UNKNOWN);
}

#[test]
fn a_credential_that_a_renew_replaced_and_one_above_the_row_may_not_ask() {
    let replaced = Credential { expires_s: NOW_S, ..credential(7) };
    assert_eq!(told(&held(), Some(&replaced)), Outcome::Refused(Refusal::CredentialExpired));
    assert_eq!(told(&held(), Some(&credential(8))), Outcome::Refused(Refusal::Quarantined));
    let early = Credential { issued_s: NOW_S + 1, ..credential(7) };
    assert_eq!(told(&released(), Some(&early)), Outcome::Refused(Refusal::CredentialNotYet));
    // Its lease over, it is the one that needs to know.
    let over = Credential { expires_s: NOW_S, ..credential(7) };
    assert_eq!(told(&released(), Some(&over)), ABSENT);
}
