//! Proxies in front of the stack's two stores.

use crate::chaos_proxy::{ChaosProxy, Framing};
use crate::world::{free_port, stack, wait_for};
use std::time::Duration;

/// A proxy on one of the broker's listeners that advertise another port than they bind.
pub fn kafka_proxy() -> ChaosProxy {
    let pairs = stack("KAFKA_CHAOS");
    wait_for("a chaos listener is free", Duration::from_secs(300), || {
        pairs.split(',').find_map(|pair| {
            let (bound, advertised) = pair.split_once(':').unwrap();
            let target = format!("127.0.0.1:{bound}");
            ChaosProxy::start(advertised.parse().unwrap(), &target, Framing::Kafka).ok()
        })
    })
}

/// A proxy of the test's own in front of Postgres, and where it stands.
pub fn postgres_proxy() -> (ChaosProxy, (String, u16)) {
    let url = stack("DATABASE_URL");
    let target = url.rsplit_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
    wait_for("a port is free", Duration::from_secs(20), || {
        let port = free_port();
        let proxy = ChaosProxy::start(port, &target, Framing::Raw).ok()?;
        Some((proxy, ("127.0.0.1".to_owned(), port)))
    })
}
