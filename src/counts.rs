//! How many of something there are right now, by a key.
//!
//! Owns the counts and gives each back when what was counted is dropped; a key without any takes no
//! room. Sets no bound: whoever counts does.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The counts, by key.
#[derive(Debug)]
pub struct Counts<K>(Mutex<HashMap<K, usize>>);

/// One of them, counted until it is dropped.
#[derive(Debug)]
pub struct Counted<K: Eq + Hash> {
    all: Arc<Counts<K>>,
    key: K,
    /// How many there were when this one came.
    pub before: usize,
}

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Counts<K> {
    fn counts(&self) -> MutexGuard<'_, HashMap<K, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone> Counts<K> {
    /// Counts one more.
    pub fn enter(self: &Arc<Self>, key: K) -> Counted<K> {
        let mut counts = self.counts();
        let count = counts.entry(key.clone()).or_default();
        let before = *count;
        *count = before.saturating_add(1);
        drop(counts);
        Counted { all: Arc::clone(self), key, before }
    }
}

impl<K: Eq + Hash> Drop for Counted<K> {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        let Some(count) = counts.get_mut(&self.key) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_counted_by_itself_and_nothing_is_left_behind() {
        let all = Arc::new(Counts::default());
        let first = all.enter("a");
        let second = all.enter("a");
        let other = all.enter("b");
        assert_eq!((first.before, second.before, other.before), (0, 1, 0));
        drop(first);
        assert_eq!(all.enter("a").before, 1);
        drop((second, other));
        assert_eq!(all.enter("a").before, 0);
        assert!(all.counts().is_empty());
    }
}
