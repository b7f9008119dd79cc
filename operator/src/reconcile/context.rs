//! What all reconciles share.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use flux_operator_core::decide::silent_wait::{EventCheck, Finding, Turns};
use flux_operator_core::observe::cluster::{self, Cluster};
use flux_operator_core::observe::deleted;
use flux_operator_core::observe::pod::Trouble;
use flux_operator_core::observe::{Index, Key};
use flux_operator_core::render::Options;
use flux_operator_core::target::Target;
use flux_shared::backoff;
use flux_shared::crd::v1alpha2::MiniClusterStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{Timestamp, ToSpan};
use kube::Resource;
use kube::runtime::reflector::{ObjectRef, Store};

use crate::health::metrics::Metrics;
use crate::health::queue::Queue;
use crate::health::traces::Traces;
use crate::reconcile::apply::Writer;
use crate::reconcile::error::ReconcileError;
use crate::reconcile::job_first::JobFirst;
use crate::reconcile::lookups::warning::Reader;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The first pause after a failure; it doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Shortest time between two statuses that differ in numbers only. It doubles while they follow each other,
/// so that thousands of pods that become ready within minutes take some twenty statuses.
const BETWEEN_NUMBERS: Duration = Duration::from_secs(1);
const LONGEST_BETWEEN_NUMBERS: Duration = Duration::from_secs(30);
/// Shortest time between two such statuses while the Job controller still creates pods.
const WHILE_PODS_COME: Duration = Duration::from_secs(30);
/// Longest time that the first status waits for the pods to be created.
const FIRST_STATUS: Duration = Duration::from_secs(10);
/// Longest pause when only somebody's change can help: with the spread, 60 s. Mostly a watch reports the
/// change and ends the pause, but none reports that a quota has room again.
const LONGEST_PAUSE: Duration = Duration::from_secs(48);
/// Shortest pause of a MiniCluster whose namespace is being deleted.
const IN_TERMINATING_NAMESPACE: Duration = Duration::from_secs(12);
/// How long the difference between the clocks is taken to be the same.
const CLOCK_KNOWN: Duration = Duration::from_secs(600);
/// How long it is remembered that a namespace is being deleted, without a call.
const TERMINATING_KNOWN: Duration = Duration::from_secs(60);
/// The first pause before the result of the operator's own change is looked at. It doubles while changes
/// follow each other and nothing comes of them.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// From so many failures in a row, or after so long, the status says what fails. A single failure is no news.
const LASTING_FAILURES: u32 = 3;
const LASTING_TIME: Duration = Duration::from_secs(5);
/// Longest pause when a call failed: the API server may recover at any moment.
const LONGEST_OUTAGE: Duration = Duration::from_secs(30);

/// Memory in bytes for large specs that are reconciled at the same time, and how many times its own size a
/// spec takes: parsed, validated, rendered, sent and answered.
const ROOM: usize = 64 << 20;
const TIMES: usize = 16;
/// Bytes per permit.
const UNIT: usize = 64 << 10;

/// When a status was last written, and how long one that differs in numbers only waits after it.
#[derive(Debug, Clone, Copy)]
struct WrittenAt {
    time: Instant,
    pause: Duration,
}

impl WrittenAt {
    fn now(before: Option<WrittenAt>, now: Instant) -> WrittenAt {
        let is_series = |before: &WrittenAt| now.saturating_duration_since(before.time) < before.pause * 2;
        let pause = before
            .filter(is_series)
            .map_or(BETWEEN_NUMBERS, |before| before.pause * 2);
        WrittenAt {
            time: now,
            pause: pause.min(LONGEST_BETWEEN_NUMBERS),
        }
    }
}

fn object_ref(key: &Key) -> ObjectRef<Cluster> {
    ObjectRef::new(&key.name).within(&key.namespace)
}

/// State that all reconciles share.
#[derive(Debug)]
pub struct Context {
    pub writer: Writer,
    pub reader: Reader,
    pub index: Arc<Index>,
    pub options: Options,
    pub metrics: Arc<Metrics>,
    pub traces: Arc<Traces>,
    pub queue: Queue<Key>,
    pub job_first: JobFirst,
    /// The MiniClusters as the watch has reported them; set when it starts.
    store: OnceLock<Store<Cluster>>,
    /// Statuses that were written and that the watch has not reported yet: resourceVersion and status, by
    /// uid.
    written: Mutex<HashMap<String, (u64, MiniClusterStatus)>>,
    /// When statuses were written, by uid.
    written_at: Mutex<HashMap<String, WrittenAt>>,
    /// Objects whose events are checked since no status says why they wait, by the MiniCluster's uid.
    event_checks: Mutex<HashMap<String, EventCheck>>,
    turns: Mutex<Turns>,
    room: Semaphore,
    /// Consecutive failures, and changes of which nothing has come yet.
    failures: Mutex<HashMap<Key, Failures>>,
    /// How far the API server's clock is ahead of ours, in seconds, and when it was asked.
    clock_skew: tokio::sync::Mutex<Option<(i64, Instant)>>,
    /// Namespaces that are being deleted, and when the API server said so.
    terminating: Mutex<HashMap<String, Instant>>,
}

/// How the last reconcile of a MiniCluster ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    Well,
    Failed,
    FailedSlowly,
}

/// The failures in a row of one MiniCluster.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    /// When the first of them was noted.
    since: Option<Instant>,
    /// Whether the last of them was slow, or the reconcile that runs is.
    is_slow: bool,
    /// Changes by the operator since the MiniCluster was last as it should be.
    changes: u32,
}

impl Context {
    pub fn new(writer: Writer, reader: Reader, options: Options, metrics: Arc<Metrics>) -> Context {
        Context {
            writer,
            reader,
            index: Arc::default(),
            traces: Arc::new(Traces::new(options.traces.as_ref())),
            options,
            metrics,
            queue: Queue::default(),
            job_first: JobFirst::default(),
            store: OnceLock::new(),
            written: Mutex::default(),
            written_at: Mutex::default(),
            event_checks: Mutex::default(),
            turns: Mutex::default(),
            room: Semaphore::new(ROOM / UNIT),
            failures: Mutex::default(),
            clock_skew: tokio::sync::Mutex::default(),
            terminating: Mutex::default(),
        }
    }

    /// The time by the API server's clock; by ours if it cannot be asked. It is asked once in ten minutes,
    /// for all.
    pub async fn server_time(&self, namespace: &str, now: (Timestamp, Instant)) -> Timestamp {
        let mut skew = self.clock_skew.lock().await;
        let known = skew.filter(|(_, asked)| now.1.saturating_duration_since(*asked) < CLOCK_KNOWN);
        let seconds = match known {
            Some((seconds, _)) => seconds,
            None => match self.writer.server_time(namespace).await {
                Ok(Some(server)) => {
                    let seconds = server.as_second() - now.0.as_second();
                    *skew = Some((seconds, now.1));
                    seconds
                }
                Ok(None) => 0,
                Err(error) => {
                    crate::health::log::warn("failed to ask for the API server's time", &error);
                    0
                }
            },
        };
        now.0.checked_add(seconds.seconds()).unwrap_or(now.0)
    }

    /// Sets where the watch keeps the MiniClusters.
    pub fn set_store(&self, store: Store<Cluster>) {
        // Set once: the process ends when its watches do.
        let _ = self.store.set(store);
    }

    /// The target with the newest known status: the watch may lag behind our own writes, and the target
    /// behind the watch.
    pub fn latest(&self, mut target: Target) -> Target {
        self.note_reported(&target.uid, target.resource_version);
        let written = self.written().get(&target.uid).cloned();
        let newest = written.or_else(|| self.stored(&target.key, &target.uid, target.resource_version));
        if let Some((version, status)) = newest
            && version > target.resource_version
        {
            (target.status, target.resource_version) = (status, version);
            target.has_status = true;
        }
        target
    }

    /// The MiniCluster as the watch has reported it by now. None: it is gone, or another has its name.
    pub fn current(&self, cluster: Arc<Cluster>) -> Option<Arc<Cluster>> {
        let Some(store) = self.store.get() else {
            return Some(cluster);
        };
        let now = store.get(&object_ref(&Key::of(cluster.meta())))?;
        (now.meta().uid == cluster.meta().uid).then_some(now)
    }

    /// Whether the watch has reported by now that it is gone.
    pub fn is_gone(&self, key: &Key, uid: &str) -> bool {
        self.is_without(key, uid, |_| true)
    }

    /// Whether the watch has reported by now that it is gone, or is to go.
    pub fn is_deleted(&self, key: &Key, uid: &str) -> bool {
        self.is_without(key, uid, |metadata| metadata.deletion_timestamp.is_none())
    }

    /// The same, where what it owns goes with it.
    pub fn is_deleted_with_its_own(&self, key: &Key, uid: &str) -> bool {
        self.is_without(key, uid, |metadata| {
            metadata.deletion_timestamp.is_none() || deleted::is_orphaning(metadata)
        })
    }

    /// Whether there is no MiniCluster of this uid that `fits`.
    fn is_without(&self, key: &Key, uid: &str, fits: impl Fn(&ObjectMeta) -> bool) -> bool {
        let Some(store) = self.store.get() else {
            return false;
        };
        let now = store.get(&object_ref(key));
        now.is_none_or(|now| now.meta().uid.as_deref() != Some(uid) || !fits(now.meta()))
    }

    /// resourceVersion and status that the watch has reported after `version`.
    fn stored(&self, key: &Key, uid: &str, version: u64) -> Option<(u64, MiniClusterStatus)> {
        let stored = self.store.get()?.get(&object_ref(key))?;
        let metadata = stored.meta();
        let now = cluster::version(metadata);
        let is_newer = now > version && metadata.uid.as_deref() == Some(uid);
        is_newer.then(|| stored.status())?.map(|status| (now, status))
    }

    fn written(&self) -> MutexGuard<'_, HashMap<String, (u64, MiniClusterStatus)>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch has reported this version, or a read has: what was written until then is known by it.
    pub fn note_reported(&self, uid: &str, version: u64) {
        let mut written = self.written();
        if written.get(uid).is_some_and(|(until, _)| *until <= version) {
            written.remove(uid);
            // A rush leaves no memory behind.
            if written.is_empty() {
                written.shrink_to_fit();
            }
        }
    }

    /// Notes that the Job was created: the first status may wait until its pods exist (at most
    /// `FIRST_STATUS`).
    pub fn note_job_created(&self, uid: &str, now: Instant) {
        self.note_write(uid, now);
    }

    fn note_write(&self, uid: &str, now: Instant) {
        let mut written_at = self.written_at.lock().unwrap_or_else(PoisonError::into_inner);
        let written = WrittenAt::now(written_at.get(uid).copied(), now);
        written_at.insert(uid.to_owned(), written);
    }

    /// How long a status that differs in numbers only has to wait: pods come one by one, and one write can
    /// cover many. Longer while more pods are about to come.
    pub fn wait_to_write(
        &self,
        uid: &str,
        pods_come: bool,
        is_first: bool,
        now: Instant,
    ) -> Option<Duration> {
        let written = *self
            .written_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)?;
        let least = match (pods_come, is_first) {
            (true, true) => FIRST_STATUS,
            (true, false) => WHILE_PODS_COME,
            (false, _) => written.pause,
        };
        let wait = least.saturating_sub(now.saturating_duration_since(written.time));
        (!wait.is_zero()).then_some(wait)
    }

    pub fn remember_status(&self, target: &Target, version: u64, status: &MiniClusterStatus, now: Instant) {
        let Target { key, uid, .. } = target;
        self.note_write(uid, now);
        // The watch may have been faster than the answer.
        if self.stored(key, uid, version.saturating_sub(1)).is_none() {
            self.written().insert(uid.clone(), (version, status.clone()));
        } else {
            self.note_reported(uid, version);
        }
    }

    fn event_checks(&self) -> MutexGuard<'_, HashMap<String, EventCheck>> {
        self.event_checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for memory to reconcile a spec of so many bytes.
    pub async fn room_for(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let permits = bytes.saturating_mul(TIMES).min(ROOM).div_ceil(UNIT);
        // The semaphore is never closed: this cannot fail.
        self.room
            .acquire_many(u32::try_from(permits).unwrap_or(u32::MAX))
            .await
            .ok()
    }

    /// Notes that an object waits although no status says why. True: its events have to be read now, and the
    /// next check is scheduled. The first is due after `patience`, or now if `at_once` (it has waited
    /// before).
    pub fn events_are_due(
        &self,
        namespace: &str,
        uid: &str,
        (object, patience): (&str, Duration),
        at_once: bool,
        now: Instant,
    ) -> bool {
        let mut event_checks = self.event_checks();
        let first = if at_once { Duration::ZERO } else { patience };
        let check = event_checks
            .entry(uid.to_owned())
            .or_insert_with(|| EventCheck::new(object, first, now));
        if !check.is_about(object) {
            *check = EventCheck::new(object, patience, now);
            check.found = Finding::Nothing;
        }
        if !check.is_due(now) {
            return false;
        }
        let turn = self
            .turns
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take_or_defer(namespace, check.turn, now);
        match turn {
            Some((next, turn)) => check.defer_until(next, turn),
            None => check.schedule_next(now),
        }
        turn.is_none()
    }

    /// Forgets the check of events: nothing waits without a reason any more.
    pub fn forget_event_check(&self, uid: &str) {
        self.event_checks().remove(uid);
    }

    /// Notes what a check of events has found.
    pub fn note_finding(&self, uid: &str, found: Option<Trouble>) {
        if let Some(check) = self.event_checks().get_mut(uid) {
            check.found = match found {
                Some(trouble) => Finding::Warning(Box::new(trouble)),
                None => Finding::Nothing,
            };
        }
    }

    /// Notes why what is missing could not be created: the status says it until the next try.
    pub fn note_refusal(&self, uid: &str, why: Trouble, now: Instant) {
        if let Some(check) = self.event_checks().get_mut(uid) {
            check.note_refusal(why, now);
        }
    }

    /// What the last check of events found, and the time until the next one.
    pub fn last_finding(&self, uid: &str, now: Instant) -> Option<(Finding, Duration)> {
        self.event_checks()
            .get(uid)
            .map(|check| (check.found.clone(), check.time_left(now)))
    }

    /// Forgets a MiniCluster that is gone.
    pub fn forget(&self, key: &Key, uid: &str) {
        self.written().remove(uid);
        self.written_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
        self.event_checks().remove(uid);
        self.clear_failures(key);
        self.index.forget_cluster(key);
    }

    pub fn clear_failures(&self, key: &Key) {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<Key, Failures>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a failure and returns the pause after it: for this object only, and spread so that not all
    /// retry at the same time.
    pub fn pause_after_failure(&self, key: &Key, error: &ReconcileError, now: Instant) -> Duration {
        let mut all = self.failures();
        let failures = all.entry(key.clone()).or_default();
        let is_outage = error.obstacle().is_none() && !matches!(error, ReconcileError::Panicked(_));
        let longest = if is_outage { LONGEST_OUTAGE } else { LONGEST_PAUSE };
        failures.count = failures.count.saturating_add(1);
        failures.since.get_or_insert(now);
        let least = if error.is_of_terminating_namespace() {
            IN_TERMINATING_NAMESPACE
        } else {
            Duration::ZERO
        };
        let pause = backoff::after(failures.count, FIRST_PAUSE, longest)
            .max(error.asked_to_wait())
            .max(least);
        let mut hasher = DefaultHasher::new();
        (key, failures.count).hash(&mut hasher);
        pause.mul_f64(1.0 + (hasher.finish() % 256) as f64 / 1024.0)
    }

    /// The pause before the next look at a MiniCluster for which something was just created or deleted, or
    /// whose cached objects differ from the API server's. It grows if the next look finds the same again.
    pub fn pause_after_change(&self, key: &Key, now: Instant) -> Duration {
        let mut all = self.failures();
        let failures = all.entry(key.clone()).or_default();
        failures.changes = failures.changes.saturating_add(1);
        if failures.changes == 1 {
            (failures.count, failures.since) = (0, None);
        } else {
            failures.since.get_or_insert(now);
        }
        backoff::after(failures.changes, FIRST_LOOK, LONGEST_OUTAGE)
    }

    /// Whether an error of a reconcile that began at `begin` is more than a passing failure: then the status
    /// says it.
    pub fn is_lasting(&self, key: &Key, error: &ReconcileError, begin: Instant, now: Instant) -> bool {
        let all = self.failures();
        let before = all.get(key);
        let since = before
            .and_then(|failures| failures.since)
            .unwrap_or(begin)
            .min(begin);
        before.is_some_and(|failures| failures.count + 1 >= LASTING_FAILURES)
            && !error.is_of_terminating_namespace()
            || now.saturating_duration_since(since) >= LASTING_TIME
            || error.asked_to_wait() >= LASTING_TIME
    }

    /// How the last reconcile of this MiniCluster ended.
    pub fn last(&self, key: &Key) -> Last {
        match self.failures().get(key) {
            Some(failures) if failures.count > 0 && failures.is_slow => Last::FailedSlowly,
            Some(failures) if failures.count > 0 => Last::Failed,
            _ => Last::Well,
        }
    }

    /// Notes whether a reconcile of this MiniCluster is slow.
    pub fn note_slowness(&self, key: &Key, is_slow: bool) {
        let mut all = self.failures();
        if is_slow {
            all.entry(key.clone()).or_default().is_slow = true;
        } else if let Some(failures) = all.get_mut(key) {
            failures.is_slow = false;
        }
    }

    /// Notes that a namespace is being deleted.
    pub fn note_terminating(&self, namespace: &str, now: Instant) {
        let mut terminating = self.terminating.lock().unwrap_or_else(PoisonError::into_inner);
        terminating.retain(|_, since| now.saturating_duration_since(*since) < TERMINATING_KNOWN);
        terminating.insert(namespace.to_owned(), now);
    }

    /// Whether the API server said within the last minute that the namespace is being deleted.
    pub fn is_terminating(&self, namespace: &str, now: Instant) -> bool {
        let terminating = self.terminating.lock().unwrap_or_else(PoisonError::into_inner);
        terminating
            .get(namespace)
            .is_some_and(|since| now.saturating_duration_since(*since) < TERMINATING_KNOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::apply::ApplyError;
    use flux_operator_core::obstacle::Obstacle;
    use flux_operator_core::vocabulary::Reason;

    #[test]
    fn status_writes_slow_down_until_changes_pause() {
        let start = Instant::now();
        let mut last = WrittenAt::now(None, start);
        let mut times = vec![0];
        while last.time < start + Duration::from_secs(400) {
            last = WrittenAt::now(Some(last), last.time + last.pause);
            times.push((last.time - start).as_secs());
        }
        assert_eq!(times[..7], [0, 1, 3, 7, 15, 31, 61]);
        assert!(times.len() < 20, "{times:?}");
        let later = WrittenAt::now(Some(last), last.time + Duration::from_secs(60));
        assert_eq!(later.pause, BETWEEN_NUMBERS);
    }

    /// Its API server never answers.
    fn context() -> Context {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
        });
        let client = kube::client::ClientBuilder::new(service, "default").build();
        let metrics = Arc::new(Metrics::new().unwrap());
        Context::new(
            Writer::new(client.clone()),
            Reader::new(client),
            Options::default(),
            metrics,
        )
    }

    #[tokio::test]
    async fn numbers_in_the_status_lag_30_s_at_most() {
        let (context, mut now) = (context(), Instant::now());
        let mut longest = Duration::ZERO;
        for _ in 0..10 {
            context.note_write("u", now);
            for (pods_come, is_first) in [(false, false), (false, true), (true, false), (true, true)] {
                let wait = context.wait_to_write("u", pods_come, is_first, now).unwrap();
                longest = longest.max(wait);
            }
            now += context.wait_to_write("u", false, false, now).unwrap();
            assert_eq!(context.wait_to_write("u", false, false, now), None, "it is due");
        }
        assert_eq!(longest, Duration::from_secs(30));
    }

    #[tokio::test]
    async fn each_object_has_its_own_pauses() {
        let (context, now) = (context(), Instant::now());
        let (one, two) = (Key::new("a", "one"), Key::new("a", "two"));
        let failed = |code: u16, retry_after_seconds: u32| {
            let details = serde_json::json!({ "retryAfterSeconds": retry_after_seconds });
            let details = Some(serde_json::from_value(details).unwrap());
            let status = kube::core::Status {
                code,
                details,
                ..Default::default()
            };
            let source = Box::new(kube::Error::Api(Box::new(status)));
            ReconcileError::from(ApplyError::Api {
                verb: "create",
                kind: "Job".into(),
                name: "one".into(),
                source,
            })
        };
        let obstacle = || Obstacle {
            reason: Reason::Forbidden,
            message: String::new(),
        };
        let obstacle = || ReconcileError::from(ApplyError::from(obstacle()));
        let pauses: Vec<f64> = (0..12)
            .map(|_| {
                context
                    .pause_after_failure(&one, &failed(500, 0), now)
                    .as_secs_f64()
            })
            .collect();
        assert!(
            pauses[0] < 0.4 && pauses[3] > 1.9 && (30.0..=37.5).contains(&pauses[11]),
            "{pauses:?}"
        );
        assert!((48.0..=60.0).contains(&context.pause_after_failure(&one, &obstacle(), now).as_secs_f64()));
        assert!(
            context.pause_after_failure(&two, &failed(500, 0), now) < Duration::from_millis(400),
            "nobody else waits"
        );
        context.clear_failures(&one);
        assert!(
            context.pause_after_failure(&one, &failed(429, 7), now) >= Duration::from_secs(7),
            "as long as the API server asks"
        );
    }
}
