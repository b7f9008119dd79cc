//! The answers of the health server: whether this process is ready, and its metrics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use flux_operator_core::observe::Key;
use flux_operator_core::observe::cluster::Cluster;
use kube::runtime::reflector::Store;
use tokio::sync::watch;

use crate::health::metrics::{LiveState, Metrics};
use crate::health::queue::QueueRecord;
use crate::health::server;
use crate::observe::watch::KINDS;

/// The state that the health server reads once this process leads.
struct Serving {
    store: Store<Cluster>,
    /// Number of the kinds in `KINDS` that are listed, or whose list is not waited for.
    synced_kinds: watch::Receiver<usize>,
    queue: QueueRecord<Key>,
}

/// State of this process for the health server.
pub(super) struct OperatorHealth {
    metrics: Arc<Metrics>,
    /// Whether this process waits for the leader lease.
    is_waiting: AtomicBool,
    /// Empty until this process leads.
    serving: OnceLock<Serving>,
}

impl OperatorHealth {
    pub(super) fn new(metrics: Arc<Metrics>) -> OperatorHealth {
        OperatorHealth {
            metrics,
            is_waiting: AtomicBool::new(false),
            serving: OnceLock::new(),
        }
    }

    pub(super) fn set_waiting(&self, is_waiting: bool) {
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
    }

    pub(super) fn set_serving(
        &self,
        store: Store<Cluster>,
        synced_kinds: watch::Receiver<usize>,
        queue: QueueRecord<Key>,
    ) {
        // Called only once: a process that stops serving ends.
        let _ = self.serving.set(Serving {
            store,
            synced_kinds,
            queue,
        });
    }
}

impl server::Answers for OperatorHealth {
    fn is_ready(&self) -> bool {
        let is_synced = self
            .serving
            .get()
            .is_some_and(|serving| *serving.synced_kinds.borrow() >= KINDS);
        // A replica that waits to lead is ready: a rollout ends the old leader only once its successors are ready.
        is_synced || self.is_waiting.load(Ordering::Relaxed)
    }

    fn metrics(&self) -> String {
        let serving = self.serving.get();
        let clusters = serving.map(|serving| serving.store.state()).unwrap_or_default();
        let phases = clusters.iter().filter_map(|cluster| cluster.phase());
        let queue = serving
            .map(|serving| serving.queue.snapshot(Instant::now()))
            .unwrap_or_default();
        self.metrics.text(LiveState {
            is_ready: self.is_ready(),
            queue,
            phases,
        })
    }
}
