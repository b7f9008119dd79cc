//! What the operator remembers about each MiniCluster. The methods that use it are in the modules of its parts:
//! `statuses`, `pauses` and `event_checks`.

use std::collections::HashMap;
use std::sync::OnceLock;

use flux_operator_core::decide::silent_wait::{EventCheck, Turns};
use flux_operator_core::observe::cluster::Cluster;
use kube::runtime::reflector::Store;
use parking_lot::{Mutex, MutexGuard};

use crate::reconcile::context::pauses::Failures;
use crate::reconcile::context::statuses::StatusWrites;

/// What the operator remembers about one MiniCluster, until it no longer exists.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) writes: StatusWrites,
    pub(super) failures: Failures,
    /// The next check of events, and the last finding, if an object of it waits although no status says why.
    pub(super) event_check: Option<Box<EventCheck>>,
}

/// The MiniClusters as the watch last reported them, and what the operator remembers about each.
#[derive(Debug, Default)]
pub struct MiniClusters {
    /// The MiniClusters as the watch last reported them. Set when the watch starts.
    pub(super) store: OnceLock<Store<Cluster>>,
    /// By uid.
    states: Mutex<HashMap<String, State>>,
    /// Limits the rate of the checks of events. A check that has to wait keeps the time that was reserved for it: its
    /// turn.
    pub(super) turns: Mutex<Turns>,
}

impl MiniClusters {
    /// Sets the store in which the watch keeps the MiniClusters.
    pub fn set_store(&self, store: Store<Cluster>) {
        // Called only once: the process ends when its watches end.
        let _ = self.store.set(store);
    }

    /// Forgets a MiniCluster that no longer exists.
    pub fn forget(&self, uid: &str) {
        self.states().remove(uid);
    }

    pub(super) fn states(&self) -> MutexGuard<'_, HashMap<String, State>> {
        self.states.lock()
    }
}
