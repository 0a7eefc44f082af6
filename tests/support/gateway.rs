//! A gateway over the memory ports, and the words that the tests speak to it.

use super::memory::{PARTITIONS, Ports, World};
use fencepost::engine::api::{AcquireRequest, Granted, Kept, Post, Produced};
use fencepost::engine::{Engine, Settings};
use fencepost::protocol::batch::BatchLimits;
use fencepost::protocol::fence::Credential;
use fencepost::protocol::lease::{Identity, InstanceId, LeaseName, Owner};
use fencepost::protocol::operation::{OperationId, Record};
use fencepost::protocol::refusal::Refusal;
use fencepost::protocol::transactional_id::Installation;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Time to live of every lease in these tests.
pub(crate) const TTL: Duration = Duration::from_secs(20);

pub(crate) struct Gateway {
    pub(crate) engine: Engine,
    pub(crate) ports: Ports,
}

pub(crate) fn settings(instance: InstanceId) -> Settings {
    Settings {
        installation: Installation::parse("test").unwrap(),
        instance,
        ledger_partitions: PARTITIONS,
        limits: BatchLimits::default(),
        retention_s: 7 * 24 * 3_600,
        bugs: fencepost::protocol::bug::Bugs::default(),
        queue: 64,
        leases_open_max: 100,
        idle: Duration::from_secs(60),
        batch: Duration::from_millis(2_500),
        open: Duration::from_millis(3_000),
        request: Duration::from_millis(10_000),
    }
}

impl Gateway {
    pub(crate) fn new(world: &World, number: u8) -> Self {
        Self::with(world, settings(InstanceId([number; 16])))
    }

    pub(crate) fn with(world: &World, settings: Settings) -> Self {
        let ports = world.ports(settings.instance);
        let (store, log) = (Arc::clone(&ports.store), Arc::clone(&ports.log));
        Self { engine: Engine::new(settings, store, log), ports }
    }

    pub(crate) async fn acquire(&self, owner: &str) -> Result<Granted, Refusal> {
        self.engine.acquire(request(owner)).await
    }

    /// Posts one operation of two records.
    pub(crate) async fn post(&self, held: &Granted, id: &str) -> Result<Produced, Refusal> {
        self.engine.produce(post(&credential(held), id)).await
    }
}

pub(crate) fn lease() -> LeaseName {
    LeaseName::parse("matter.7").unwrap()
}

pub(crate) fn request(owner: &str) -> AcquireRequest {
    AcquireRequest {
        lease: lease(),
        identity: Identity::new("workers"),
        owner: Owner::parse(owner).unwrap(),
        ttl_ms: u64::try_from(TTL.as_millis()).unwrap(),
        wait: Duration::ZERO,
        request_id: None,
        replace: false,
    }
}

/// What http would sign: the expiry in whole seconds, rounded down.
pub(crate) fn credential(held: &Granted) -> Credential {
    Credential {
        lease: held.lease.clone(),
        owner: held.owner.clone(),
        token: held.token,
        incarnation: held.incarnation,
        expires_s: held.expires_at.seconds(),
        issued_s: held.now.seconds(),
    }
}

pub(crate) fn post(credential: &Credential, id: &str) -> Post {
    let record = |part: &str, partition| Record {
        topic: "t".into(),
        partition: Some(partition),
        key: None,
        value: Some(format!("{id}/{part}").into_bytes().into()),
        headers: Vec::new(),
        timestamp_ms: None,
    };
    let id = OperationId::parse(id).unwrap();
    let records = vec![record("a", 0), record("b", 1)];
    Post { credential: credential.clone(), id, records, kept: Kept::default() }
}

/// Acquires, again and again while the stores do not let it.
pub(crate) async fn until_granted(gateway: &Gateway, request: AcquireRequest) -> Granted {
    for _ in 0..60 {
        if let Ok(granted) = gateway.engine.acquire(request.clone()).await {
            return granted;
        }
        sleep(Duration::from_secs(1)).await;
    }
    panic!("no lease within a minute")
}

/// Every operation is whole and there at most once; tokens and seqs never go down.
pub(crate) fn assert_log(world: &World) {
    let data = world.data();
    assert_eq!(world.violations(), Vec::<String>::new());
    for partition in 0..PARTITIONS {
        let of: Vec<_> = data.iter().filter(|r| r.partition == partition).collect();
        assert!(of.is_sorted_by_key(|r| (r.token, r.seq)), "{of:?}");
    }
    for record in &data {
        let same = |r: &&super::memory::Visible| r.operation == record.operation;
        let all: Vec<_> = data.iter().filter(same).collect();
        assert_eq!(all.len(), 2, "{all:?}");
        assert_ne!(all[0].value, all[1].value, "{all:?}");
        assert_eq!((all[0].token, all[0].seq), (all[1].token, all[1].seq));
    }
}

/// How many copies of an operation are visible.
pub(crate) fn copies(world: &World, id: &str) -> usize {
    world.data().iter().filter(|r| r.operation == id && r.partition == 0).count()
}
