//! How many connections one address has.
//!
//! Owns the bound, and what counts as one address. One that has too many is closed at once: a
//! client that opens connections without end must not take the others' place.

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
        Some(self.counts.enter(one_host(address))).filter(|place| place.before < self.max)
    }
}

/// What one host can change at will is left out: of an IPv6 address the lower half, its interface
/// identifier (RFC 4291, 2.5.1).
fn one_host(address: IpAddr) -> IpAddr {
    const HOST: u128 = (1 << 64) - 1;
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !HOST).into()),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_host_is_its_network_and_a_mapped_ipv4_address_is_itself() {
        let peers = Peers::new(1);
        let of = |text: &str| peers.enter(text.parse().unwrap());
        let held = (of("2001:db8::1"), of("10.0.0.1"));
        assert!(held.0.is_some() && held.1.is_some());
        assert!(of("2001:db8::ffff:1:2:3").is_none() && of("::ffff:10.0.0.1").is_none());
        assert!(of("2001:db8:0:1::1").is_some() && of("::ffff:10.0.0.2").is_some());
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
