//! What all reconciles share.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniClusterStatus;

use crate::apply::Writer;
use crate::fetch::Target;
use crate::metrics::Metrics;
use crate::observe::{Index, Key};
use crate::render::Options;

/// The first pause after a failure; it doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Least time between two statuses that differ in nothing but numbers.
const BETWEEN_NUMBERS: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What all reconciles share.
#[derive(Debug)]
pub struct Context {
    pub writer: Writer,
    pub index: Index,
    pub options: Options,
    pub metrics: Arc<Metrics>,
    /// Statuses that were written and have not come back by the watch: version and status, by uid.
    written: Mutex<HashMap<String, (u64, MiniClusterStatus)>>,
    /// When a status was written last, by uid.
    written_at: Mutex<HashMap<String, Instant>>,
    /// Failures in a row.
    failures: Mutex<HashMap<Key, u32>>,
}

impl Context {
    pub fn new(writer: Writer, options: Options, metrics: Arc<Metrics>) -> Context {
        Context {
            writer,
            index: Index::default(),
            options,
            metrics,
            written: Mutex::default(),
            written_at: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// The target with the newest status that is known: a watch may lag behind our own writes.
    pub fn latest(&self, mut target: Target) -> Target {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        match written.get(&target.uid) {
            Some((version, status)) if *version > target.resource_version => target.status = status.clone(),
            Some(_) => drop(written.remove(&target.uid)),
            None => {}
        }
        target
    }

    /// How long a status that tells nothing new has to wait: pods come one by one, and one write can speak of many.
    pub fn wait_to_write(&self, uid: &str, now: Instant) -> Option<Duration> {
        let mut written_at = self.written_at.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = written_at.get(uid).map(|last| BETWEEN_NUMBERS.saturating_sub(now.saturating_duration_since(*last)));
        let wait = wait.filter(|wait| !wait.is_zero());
        if wait.is_none() {
            written_at.remove(uid);
        }
        wait
    }

    pub fn remember(&self, uid: &str, version: u64, status: &MiniClusterStatus, now: Instant) {
        self.written_at.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.to_owned(), now);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert(uid.to_owned(), (version, status.clone()));
    }

    /// The MiniCluster is gone.
    pub fn forget(&self, key: &Key, uid: &str) {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.written_at.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        self.succeeded(key);
        self.index.leave(key);
    }

    pub fn succeeded(&self, key: &Key) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// How long to wait after one more failure: of this object alone, and not all at the same time.
    pub fn pause(&self, key: &Key) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(key.clone()).or_default();
        let pause = FIRST_PAUSE.saturating_mul(1 << (*count).min(16)).min(LONGEST_PAUSE);
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (key, *count).hash(&mut hasher);
        pause.mul_f64(1.0 + (hasher.finish() % 256) as f64 / 1024.0)
    }
}
