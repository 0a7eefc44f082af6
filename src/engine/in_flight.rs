//! Which operations have a caller waiting right now.
//!
//! Owns the count of callers an operation id. It decides nothing about an operation, which is
//! looked up under the fence row's lock whatever stands here: it only tells a caller that gave up
//! waiting whether it had waited for somebody else's request.

use crate::protocol::lease::LeaseName;
use crate::protocol::operation::OperationId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Key = (LeaseName, OperationId);

/// As many entries as requests: their number is bounded by that of connections.
#[derive(Default)]
pub(super) struct InFlight(Mutex<HashMap<Key, usize>>);

/// One waiting caller; counted until it is dropped.
pub(super) struct Caller {
    all: Arc<InFlight>,
    key: Key,
    /// Another one was waiting for the same operation when this one came.
    pub(super) joined: bool,
}

impl InFlight {
    fn counts(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(self: &Arc<Self>, lease: &LeaseName, id: &OperationId) -> Caller {
        let key = (lease.clone(), id.clone());
        let mut counts = self.counts();
        let count = counts.entry(key.clone()).or_default();
        let joined = *count > 0;
        *count = count.saturating_add(1);
        drop(counts);
        Caller { all: Arc::clone(self), key, joined }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        if let Entry::Occupied(mut entry) = counts.entry(self.key.clone()) {
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
    fn only_a_caller_that_meets_another_one_has_joined_and_nothing_is_left_behind() {
        let all = Arc::new(InFlight::default());
        let lease = LeaseName::parse("l").unwrap();
        let id = |text| OperationId::parse(text).unwrap();
        let first = all.enter(&lease, &id("a"));
        let second = all.enter(&lease, &id("a"));
        let other = all.enter(&lease, &id("b"));
        assert_eq!((first.joined, second.joined, other.joined), (false, true, false));
        drop(first);
        assert!(all.enter(&lease, &id("a")).joined);
        drop((second, other));
        assert!(!all.enter(&lease, &id("a")).joined);
        assert!(all.counts().is_empty());
    }
}
