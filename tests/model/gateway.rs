//! One gateway: the machine that the product runs, what it waits for, its session, its producer.

use super::rows::NOW;
use fencepost::protocol::batch::{BatchLimits, Ticket, Waiting};
use fencepost::protocol::bug::Bugs;
use fencepost::protocol::fence::Credential;
use fencepost::protocol::lease::{
    FencingToken, Identity, Incarnation, InstanceId, LeaseName, Owner, RequestId,
};
use fencepost::protocol::machine::{Acquire, Effect, LeaseMachine, Setting};
use fencepost::protocol::operation::{Fingerprint, OperationId, Record};
use std::sync::{Arc, LazyLock};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Session {
    None,
    /// It holds the locks that it has taken.
    Live,
    /// Ended by the server; the gateway does not know yet.
    Dead,
}

/// The awaited effect, and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Waits {
    pub effect: Effect,
    /// Requests of it that were answered.
    pub step: u8,
    /// Offset of the first record that it has sent.
    pub offset: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gateway {
    pub machine: LeaseMachine,
    pub waits: Option<Waits>,
    pub session: Session,
    /// Epoch of its producer.
    pub epoch: Option<u8>,
    /// Which half of a split database it uses.
    pub database: u8,
    /// Of each operation: it was known when it was posted here last, and under which token.
    pub looked: [bool; 2],
    pub asked: [u64; 2],
    /// Offset of the barrier that it has written last.
    pub barrier: i64,
    /// The job under way is a settle.
    pub settles: bool,
}

impl Gateway {
    pub fn new(number: u8, bugs: Bugs) -> Self {
        let home = InstanceId([number + 1; 16]);
        let limits = BatchLimits::default();
        let setting = Setting { home, limits, retention_s: 3_600, bugs };
        let machine = LeaseMachine::new(setting);
        Self {
            machine,
            waits: None,
            session: Session::None,
            epoch: None,
            database: 0,
            looked: [false; 2],
            asked: [0; 2],
            barrier: -1,
            settles: false,
        }
    }

    pub fn home(number: u8) -> InstanceId {
        InstanceId([number + 1; 16])
    }
}

static LEASE: LazyLock<LeaseName> = LazyLock::new(|| LeaseName::parse("l").unwrap());
type Operation = (OperationId, Arc<[Record]>, Fingerprint);
static OPERATIONS: LazyLock<[Operation; 2]> = LazyLock::new(|| ["a", "b"].map(operation_of));

fn operation_of(name: &str) -> Operation {
    let record = Record {
        topic: "t".into(),
        partition: None,
        key: None,
        value: Some(name.as_bytes().into()),
        headers: Vec::new(),
        timestamp_ms: None,
    };
    let records = [record];
    (OperationId::parse(name).unwrap(), records.clone().into(), Fingerprint::of(&records))
}

pub fn id(op: u8) -> &'static OperationId {
    &OPERATIONS[usize::from(op)].0
}

pub fn number(id: &OperationId) -> u8 {
    u8::from(id == &OPERATIONS[1].0)
}

/// A token that was granted, with what its credential says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant {
    pub token: u64,
    pub incarnation: u64,
    pub owner: u8,
}

pub fn owner(number: u8) -> Owner {
    Owner::parse(["w0", "w1"][usize::from(number)]).unwrap()
}

pub fn credential(grant: Grant) -> Credential {
    Credential {
        lease: LEASE.clone(),
        owner: owner(grant.owner),
        token: FencingToken(grant.token),
        incarnation: Incarnation(grant.incarnation),
        expires_s: NOW.seconds() + 1_000,
        issued_s: NOW.seconds(),
    }
}

pub fn waiting(op: u8, grant: Grant, ticket: Ticket, deadline_ms: u64) -> Waiting {
    let (id, records, fingerprint) = OPERATIONS[usize::from(op)].clone();
    let credential = credential(grant);
    let (in_doubt, alone) = (false, false);
    Waiting { ticket, credential, id, fingerprint, records, deadline_ms, in_doubt, alone }
}

pub fn acquire(by: u8, ticket: Ticket, request_id: bool) -> Acquire {
    Acquire {
        ticket,
        identity: Identity::new("i"),
        owner: owner(by),
        ttl_ms: 5_000,
        request_id: request_id.then(|| RequestId::stored(&format!("r{by}"))),
        replace: false,
        drew: None,
        restarts: 0,
    }
}
