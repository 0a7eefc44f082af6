//! How many connections one address has.
//!
//! Owns the bound. One that has too many is closed at once: a client that opens connections without
//! end must not take the others' place. It guards against a client's defect, not against a host
//! with many addresses: those may be many workers.

use crate::counts::{Counted, Counts};
use std::net::IpAddr;
use std::sync::Arc;

/// One connection's place; given back when it is dropped.
pub(super) type Place = Counted<IpAddr>;

/// As many entries as connections.
pub(super) struct Peers {
    max: usize,
    counts: Arc<Counts<IpAddr>>,
}

impl Peers {
    pub(super) fn new(max: usize) -> Self {
        Self { max, counts: Arc::default() }
    }

    /// `None` if the address has as many as it may.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Place> {
        Some(self.counts.enter(address.to_canonical())).filter(|place| place.before < self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_counts_as_itself_on_a_socket_of_both_kinds() {
        let peers = Peers::new(1);
        let of = |text: &str| peers.enter(text.parse().unwrap());
        let held = of("10.0.0.1");
        assert!(held.is_some() && of("::ffff:10.0.0.1").is_none());
        assert!(of("::ffff:10.0.0.2").is_some());
    }

    #[test]
    fn one_address_has_no_more_than_its_places_and_takes_none_of_anothers() {
        let peers = Peers::new(2);
        let (a, b) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let first = peers.enter(a).unwrap();
        let second = peers.enter(a).unwrap();
        assert!(peers.enter(a).is_none());
        assert!(peers.enter(b).is_some());
        drop(first);
        assert!(peers.enter(a).is_some());
        drop(second);
        let (third, fourth) = (peers.enter(a), peers.enter(a));
        assert!(third.is_some() && fourth.is_some() && peers.enter(a).is_none());
    }
}
