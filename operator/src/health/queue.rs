//! A record of the controller's queue for the metrics: since when each MiniCluster waits in it, and how long each
//! reconcile has been running.
//!
//! kube's controller has the queue itself, but does not show its length or the time spent in it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A record of the controller's queue. `K` is the key of a queued object.
#[derive(Debug)]
pub struct QueueRecord<K>(Arc<Mutex<QueueState<K>>>);

#[derive(Debug)]
struct QueueState<K> {
    /// When each key was queued.
    waiting: HashMap<K, Instant>,
    /// Id of the next reconcile.
    next_id: u64,
    /// When each reconcile in progress began, by its id.
    working: HashMap<u64, Instant>,
}

impl<K> Default for QueueRecord<K> {
    fn default() -> QueueRecord<K> {
        QueueRecord(Arc::new(Mutex::new(QueueState {
            waiting: HashMap::new(),
            next_id: 0,
            working: HashMap::new(),
        })))
    }
}

impl<K> Clone for QueueRecord<K> {
    /// Another handle of the same record.
    fn clone(&self) -> QueueRecord<K> {
        QueueRecord(self.0.clone())
    }
}

/// Depth of the queue, and ages, at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct QueueSnapshot {
    pub depth: usize,
    /// How long the oldest key in the queue has waited.
    pub oldest: Duration,
    /// Reconciles in progress.
    pub workers: usize,
    /// How long the oldest reconcile in progress has been running.
    pub longest: Duration,
    /// How long all reconciles in progress have been running, added up.
    pub unfinished: Duration,
}

/// A reconcile in progress, until this is dropped.
#[derive(Debug)]
pub struct Working<K> {
    queue: Arc<Mutex<QueueState<K>>>,
    id: u64,
    /// How long its key waited in the queue; zero if it was not recorded there.
    pub waited: Duration,
}

impl<K: Hash + Eq + Clone> QueueRecord<K> {
    /// Adds a key unless it waits already. Returns whether it was added.
    pub fn enqueue(&self, key: &K, now: Instant) -> bool {
        let mut state = self.0.lock();
        if state.waiting.contains_key(key) {
            return false;
        }
        state.waiting.insert(key.clone(), now);
        true
    }

    /// Removes a key that need not be reconciled any more.
    pub fn remove(&self, key: &K) {
        self.0.lock().waiting.remove(key);
    }

    /// Takes a key out of the queue: its reconcile begins.
    pub fn start(&self, key: &K, now: Instant) -> Working<K> {
        let mut state = self.0.lock();
        let waited = state
            .waiting
            .remove(key)
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let id = state.next_id;
        state.next_id += 1;
        state.working.insert(id, now);
        Working {
            queue: self.0.clone(),
            id,
            waited,
        }
    }

    pub fn snapshot(&self, now: Instant) -> QueueSnapshot {
        let state = self.0.lock();
        let age = |since: &Instant| now.saturating_duration_since(*since);
        let oldest_age = |all: &mut dyn Iterator<Item = &Instant>| all.min().map(age).unwrap_or_default();
        QueueSnapshot {
            depth: state.waiting.len(),
            oldest: oldest_age(&mut state.waiting.values()),
            workers: state.working.len(),
            longest: oldest_age(&mut state.working.values()),
            unfinished: state.working.values().map(age).sum(),
        }
    }
}

impl<K> Drop for Working<K> {
    fn drop(&mut self) {
        self.queue.lock().working.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_wait_from_first_event_until_start_or_removal() {
        let queue = QueueRecord::default();
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(queue.enqueue(&"a", at(0)) && queue.enqueue(&"b", at(2)) && queue.enqueue(&"gone", at(3)));
        assert!(!queue.enqueue(&"a", at(4)), "it waits already");
        let now = queue.snapshot(at(5));
        assert_eq!(
            (now.depth, now.oldest, now.workers),
            (3, Duration::from_secs(5), 0)
        );
        queue.remove(&"gone");
        let one = queue.start(&"a", at(6));
        assert_eq!(one.waited, Duration::from_secs(6));
        let other = queue.start(&"never seen", at(8));
        assert_eq!(other.waited, Duration::ZERO);
        let now = queue.snapshot(at(10));
        assert_eq!(
            (now.depth, now.oldest, now.workers),
            (1, Duration::from_secs(8), 2)
        );
        assert_eq!(
            (now.longest, now.unfinished),
            (Duration::from_secs(4), Duration::from_secs(6))
        );
        drop((one, other));
        drop(queue.start(&"b", at(11)));
        assert_eq!(queue.snapshot(at(12)), QueueSnapshot::default());
    }
}
