//! The newest status of each MiniCluster, and when the next one may be written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flux_operator_core::observe::cluster::{self, Cluster};
use flux_operator_core::observe::{Key, deleted};
use flux_operator_core::target::Target;
use flux_shared::crd::v1alpha2::MiniClusterStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;

use crate::reconcile::context::miniclusters::MiniClusters;

/// Shortest time between two statuses that differ in numbers only (`patch::is_news` is false). It doubles while they
/// follow each other, so that thousands of pods that become ready within minutes cause about twenty writes.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest such time, per pod: a small MiniCluster has few changes, and users wait for them.
const LONGEST_PAUSE_PER_POD: Duration = Duration::from_millis(10);
/// Longest such time for a small MiniCluster, however few pods it has.
const LONGEST_PAUSE_IF_SMALL: Duration = Duration::from_secs(2);
/// Longest such time for a large MiniCluster, however many pods it has.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Shortest time between two such statuses while the Job controller still creates pods.
const PAUSE_WHILE_PODS_APPEAR: Duration = Duration::from_secs(30);
/// Longest time that the first status waits for the pods to be created.
const FIRST_STATUS_WAIT: Duration = Duration::from_secs(10);

/// When a status was last written, and how long the next one waits if it differs in numbers only.
#[derive(Debug, Clone, Copy)]
struct WrittenAt {
    time: Instant,
    pause: Duration,
}

impl WrittenAt {
    /// A status of a MiniCluster with `pods` pods was written at `now`, and the one before it at `before`.
    fn following(before: Option<WrittenAt>, pods: u32, now: Instant) -> WrittenAt {
        let follows_closely =
            |before: &WrittenAt| now.saturating_duration_since(before.time) < before.pause * 2;
        let pause = before
            .filter(follows_closely)
            .map_or(SHORTEST_PAUSE, |before| before.pause * 2);
        WrittenAt {
            time: now,
            pause: pause.min(longest_pause(pods)),
        }
    }
}

/// The longest pause between two statuses of a MiniCluster with `pods` pods.
fn longest_pause(pods: u32) -> Duration {
    LONGEST_PAUSE_PER_POD
        .saturating_mul(pods)
        .clamp(LONGEST_PAUSE_IF_SMALL, LONGEST_PAUSE)
}

fn object_ref(key: &Key) -> ObjectRef<Cluster> {
    ObjectRef::new(&key.name).within(&key.namespace)
}

/// The statuses that were written for one MiniCluster.
#[derive(Debug, Default)]
pub(super) struct StatusWrites {
    /// When the last one was written, or the Job changed (`note_job_changed`).
    last: Option<WrittenAt>,
    /// The last status with its resourceVersion, until the watch has reported it.
    unreported: Option<Box<(u64, MiniClusterStatus)>>,
}

impl MiniClusters {
    /// The target with the newest known status. The watch may lag behind our own writes, and the target may
    /// be older than what the watch has reported since.
    pub fn latest(&self, mut target: Target) -> Target {
        self.note_reported(&target.uid, target.resource_version);
        let written = self
            .states()
            .get(&target.uid)
            .and_then(|state| state.writes.unreported.as_deref().cloned());
        let newest = written.or_else(|| self.stored(&target.key, &target.uid, target.resource_version));
        if let Some((version, status)) = newest
            && version > target.resource_version
        {
            (target.status, target.resource_version) = (status, version);
            target.has_status = true;
        }
        target
    }

    /// The MiniCluster as the watch last reported it. None: it no longer exists, or another one has its name.
    pub fn current(&self, cluster: Arc<Cluster>) -> Option<Arc<Cluster>> {
        let Some(store) = self.store.get() else {
            // The watch has not started.
            return Some(cluster);
        };
        let stored = store.get(&object_ref(&Key::of(cluster.meta())))?;
        (stored.meta().uid == cluster.meta().uid).then_some(stored)
    }

    /// Whether the watch has reported that the MiniCluster no longer exists.
    pub fn is_gone(&self, key: &Key, uid: &str) -> bool {
        self.is_without(key, uid, |_| true)
    }

    /// Whether the watch has reported that the MiniCluster is being deleted, or no longer exists.
    pub fn is_deleted(&self, key: &Key, uid: &str) -> bool {
        self.is_without(key, uid, |metadata| metadata.deletion_timestamp.is_none())
    }

    /// Like [`MiniClusters::is_deleted`], but false while Kubernetes prepares to keep the objects that the MiniCluster
    /// owns (`--cascade=orphan`).
    pub fn is_deleted_with_objects(&self, key: &Key, uid: &str) -> bool {
        self.is_without(key, uid, |metadata| {
            metadata.deletion_timestamp.is_none() || deleted::is_orphaning(metadata)
        })
    }

    /// Whether the store has no MiniCluster with this uid for which `fits` is true. False before the watch
    /// has started.
    fn is_without(&self, key: &Key, uid: &str, fits: impl Fn(&ObjectMeta) -> bool) -> bool {
        let Some(store) = self.store.get() else {
            return false;
        };
        let stored = store.get(&object_ref(key));
        stored.is_none_or(|stored| stored.meta().uid.as_deref() != Some(uid) || !fits(stored.meta()))
    }

    /// resourceVersion and status in the store, if they are newer than `version`.
    fn stored(&self, key: &Key, uid: &str, version: u64) -> Option<(u64, MiniClusterStatus)> {
        let stored = self.store.get()?.get(&object_ref(key))?;
        let metadata = stored.meta();
        let stored_version = cluster::version(metadata);
        let is_newer = stored_version > version && metadata.uid.as_deref() == Some(uid);
        is_newer
            .then(|| stored.status())?
            .map(|status| (stored_version, status))
    }

    /// Notes that the watch or a read has returned this version. A status that was written up to it need not
    /// be kept here.
    pub fn note_reported(&self, uid: &str, version: u64) {
        if let Some(state) = self.states().get_mut(uid) {
            state
                .writes
                .unreported
                .take_if(|unreported| unreported.0 <= version);
        }
    }

    /// Notes that the Job was created, or deleted to be recreated. The first status may then wait until the pods exist,
    /// for at most `FIRST_STATUS_WAIT`.
    pub fn note_job_changed(&self, uid: &str, now: Instant) {
        self.note_write(uid, 0, now);
    }

    fn note_write(&self, uid: &str, pods: u32, now: Instant) {
        let mut states = self.states();
        let writes = &mut states.entry(uid.to_owned()).or_default().writes;
        writes.last = Some(WrittenAt::following(writes.last, pods, now));
    }

    /// How long the first status, or one that differs in numbers only, has to wait before it is written: pods become
    /// ready one by one, and one write can cover many. Longer while the Job controller creates pods. None: it may be
    /// written now.
    pub fn wait_to_write(
        &self,
        uid: &str,
        expects_pods: bool,
        is_first: bool,
        now: Instant,
    ) -> Option<Duration> {
        let written = self.states().get(uid)?.writes.last?;
        let pause = match (expects_pods, is_first) {
            (true, true) => FIRST_STATUS_WAIT,
            (true, false) => PAUSE_WHILE_PODS_APPEAR,
            (false, _) => written.pause,
        };
        let wait = pause.saturating_sub(now.saturating_duration_since(written.time));
        (!wait.is_zero()).then_some(wait)
    }

    /// Remembers a status that was written, until the watch reports it.
    pub fn remember_status(&self, target: &Target, version: u64, status: &MiniClusterStatus, now: Instant) {
        let Target { key, uid, .. } = target;
        self.note_write(uid, u32::try_from(status.size).unwrap_or(0), now);
        // The watch may have reported this version, or a newer one, before the answer to the write came. (`stored`
        // returns only what is newer than the given version, so one less is given.)
        if self.stored(key, uid, version.saturating_sub(1)).is_none() {
            let mut states = self.states();
            let writes = &mut states.entry(uid.clone()).or_default().writes;
            writes.unreported = Some(Box::new((version, status.clone())));
        } else {
            self.note_reported(uid, version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_writes_slow_down_until_changes_pause() {
        let start = Instant::now();
        let mut last = WrittenAt::following(None, 5000, start);
        let mut times = vec![0];
        while last.time < start + Duration::from_secs(400) {
            last = WrittenAt::following(Some(last), 5000, last.time + last.pause);
            times.push((last.time - start).as_secs());
        }
        assert_eq!(times[..7], [0, 1, 3, 7, 15, 31, 61]);
        assert!(times.len() < 20, "{times:?}");
        let later = WrittenAt::following(Some(last), 5000, last.time + Duration::from_secs(60));
        assert_eq!(later.pause, SHORTEST_PAUSE);
    }

    #[test]
    fn numbers_in_the_status_lag_30_s_at_most() {
        let (miniclusters, mut now) = (MiniClusters::default(), Instant::now());
        let mut longest = Duration::ZERO;
        for _ in 0..10 {
            miniclusters.note_write("u", 5000, now);
            for (expects_pods, is_first) in [(false, false), (false, true), (true, false), (true, true)] {
                let wait = miniclusters
                    .wait_to_write("u", expects_pods, is_first, now)
                    .unwrap();
                longest = longest.max(wait);
            }
            now += miniclusters.wait_to_write("u", false, false, now).unwrap();
            assert_eq!(
                miniclusters.wait_to_write("u", false, false, now),
                None,
                "it is due"
            );
        }
        assert_eq!(longest, Duration::from_secs(30));
    }

    #[test]
    fn numbers_of_a_small_cluster_lag_2_s_at_most() {
        for (pods, seconds) in [(4, 2), (200, 2), (1000, 10), (3000, 30), (10_000, 30)] {
            let (miniclusters, mut now) = (MiniClusters::default(), Instant::now());
            let mut longest = Duration::ZERO;
            for _ in 0..10 {
                miniclusters.note_write("u", pods, now);
                let pause = miniclusters.wait_to_write("u", false, false, now).unwrap();
                longest = longest.max(pause);
                now += pause;
            }
            assert_eq!(longest.as_secs(), seconds, "{pods} pods");
        }
    }
}
