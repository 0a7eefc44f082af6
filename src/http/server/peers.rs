//! How many connections one address has.
//!
//! Owns the count. One that has too many is closed at once: a client that opens connections without
//! end must not take the others' place.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// As many entries as connections.
pub(super) struct Peers {
    max: usize,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection's place; given back when it is dropped.
pub(super) struct Place {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, counts: Mutex::default() })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if the address has as many as it may.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut counts = self.counts();
        let count = counts.entry(address).or_default();
        if *count >= self.max {
            return None;
        }
        *count = count.saturating_add(1);
        drop(counts);
        Some(Place { peers: Arc::clone(self), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.peers.counts().entry(self.address) {
            let left = entry.get().saturating_sub(1);
            if left == 0 {
                entry.remove();
            } else {
                *entry.get_mut() = left;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(peers.counts().is_empty());
    }
}
