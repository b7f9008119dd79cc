//! The pauses before a MiniCluster is reconciled again after a failure, or after a change by the operator. They grow
//! while failures or changes follow each other.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use flux_operator_core::observe::Key;
use flux_shared::backoff;

use crate::reconcile::context::miniclusters::MiniClusters;
use crate::reconcile::error::ReconcileError;

/// The first pause after a failure; it doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause after an obstacle or a panic: a retry helps only after something has changed. `after_failure` adds up
/// to a quarter, so that it may be 60 s. Usually a watch reports the change and ends the pause, but no watch reports
/// that a quota has room again.
const LONGEST_PAUSE: Duration = Duration::from_secs(48);
/// The first pause after a change by the operator: then the next reconcile looks at the result. It doubles
/// while changes follow each other.
const FIRST_PAUSE_AFTER_CHANGE: Duration = Duration::from_millis(100);
/// The status shows failures other than obstacles and panics once there are this many in a row, or once they last for
/// `LASTING_TIME`. A single short one is not shown.
const LASTING_FAILURES: u32 = 3;
const LASTING_TIME: Duration = Duration::from_secs(5);
/// Longest pause when a call failed (before `after_failure` adds to it), or after changes that follow each other: the
/// API server, or whoever undoes the changes, may recover at any moment.
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(30);

/// How the last reconcile of a MiniCluster ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastOutcome {
    /// It did not fail, or there was none.
    NotFailed,
    Failed,
    /// It failed after it had taken longer than `SLOT_TIME` in `controller`. Few of these are retried at the same time
    /// (`controller::slots`).
    FailedSlowly,
}

/// The failures and changes in a row of one MiniCluster.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: u32,
    /// When the first failure, or the second change in a row, was noted.
    since: Option<Instant>,
    /// Whether the last reconcile was slow, or the one that runs is.
    is_slow: bool,
    /// Number of calls of `after_change` since the last success.
    changes: u32,
}

impl MiniClusters {
    /// Forgets the failures and changes: a reconcile has succeeded.
    pub fn clear_failures(&self, uid: &str) {
        if let Some(state) = self.states().get_mut(uid) {
            state.failures = Failures::default();
        }
    }

    /// Counts a failure, and returns the pause before this MiniCluster is retried. None: it no longer exists. The
    /// pauses of different MiniClusters are spread, so that not all retry at the same time.
    pub fn after_failure(
        &self,
        key: &Key,
        uid: &str,
        error: &ReconcileError,
        now: Instant,
    ) -> Option<Duration> {
        let mut states = self.states();
        // Under the lock: `forget` is called after the store has changed, so it cannot have come before this entry.
        if self.is_gone(key, uid) {
            return None;
        }
        let failures = &mut states.entry(uid.to_owned()).or_default().failures;
        let is_outage = error.obstacle().is_none() && !matches!(error, ReconcileError::Panicked(_));
        let longest = if is_outage {
            LONGEST_OUTAGE_PAUSE
        } else {
            LONGEST_PAUSE
        };
        failures.count = failures.count.saturating_add(1);
        failures.since.get_or_insert(now);
        // Nothing can be created in a namespace that is being deleted, so an earlier retry is of no use. After this
        // pause the failure lasts, so the first retry shows it in the status.
        let shortest = if error.is_of_terminating_namespace() {
            LASTING_TIME
        } else {
            Duration::ZERO
        };
        let pause = backoff::after(failures.count, FIRST_PAUSE, longest)
            .max(error.retry_after())
            .max(shortest);
        // Up to a quarter of the pause is added, by a hash of the MiniCluster's uid and the number of failures.
        let mut hasher = DefaultHasher::new();
        (uid, failures.count).hash(&mut hasher);
        Some(pause.mul_f64(1.0 + (hasher.finish() % 256) as f64 / 1024.0))
    }

    /// The pause before the next reconcile after an object was created or deleted, if cached objects differ from the
    /// API server's, or if the new status calls for another decision. It doubles if that one ends in the same way.
    pub fn after_change(&self, uid: &str, now: Instant) -> Duration {
        let mut states = self.states();
        let failures = &mut states.entry(uid.to_owned()).or_default().failures;
        failures.changes = failures.changes.saturating_add(1);
        // The first change ends a row of failures. Repeated changes are no progress: from the second on, `since` runs,
        // so that the status soon shows an error that follows them.
        if failures.changes == 1 {
            (failures.count, failures.since) = (0, None);
        } else {
            failures.since.get_or_insert(now);
        }
        backoff::after(failures.changes, FIRST_PAUSE_AFTER_CHANGE, LONGEST_OUTAGE_PAUSE)
    }

    /// Whether an error of a reconcile that began at `begin` lasts, so that the status should show it.
    pub fn is_lasting(&self, uid: &str, error: &ReconcileError, begin: Instant, now: Instant) -> bool {
        let states = self.states();
        let before = states.get(uid).map(|state| &state.failures);
        let since = before.and_then(|failures| failures.since).unwrap_or(begin);
        // `+ 1`: this error is not counted yet. In a terminating namespace the number says nothing, because each object
        // that is deleted there causes a reconcile.
        let are_many = before.is_some_and(|failures| failures.count + 1 >= LASTING_FAILURES)
            && !error.is_of_terminating_namespace();
        are_many
            || now.saturating_duration_since(since) >= LASTING_TIME
            || error.retry_after() >= LASTING_TIME
    }

    /// How the last reconcile of this MiniCluster ended.
    pub fn last_outcome(&self, uid: &str) -> LastOutcome {
        match self.states().get(uid).map(|state| &state.failures) {
            Some(failures) if failures.count > 0 && failures.is_slow => LastOutcome::FailedSlowly,
            Some(failures) if failures.count > 0 => LastOutcome::Failed,
            _ => LastOutcome::NotFailed,
        }
    }

    /// Notes whether a reconcile of this MiniCluster is slow.
    pub fn note_slowness(&self, uid: &str, is_slow: bool) {
        let mut states = self.states();
        if is_slow {
            states.entry(uid.to_owned()).or_default().failures.is_slow = true;
        } else if let Some(state) = states.get_mut(uid) {
            state.failures.is_slow = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconcile::apply::ApplyError;
    use flux_operator_core::obstacle::Obstacle;
    use flux_operator_core::vocabulary::Reason;

    #[test]
    fn pauses_grow_for_each_minicluster_on_its_own() {
        let (miniclusters, now) = (MiniClusters::default(), Instant::now());
        let pause_after = |name: &str, error: &ReconcileError| {
            miniclusters
                .after_failure(&Key::new("a", name), name, error, now)
                .unwrap()
        };
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
        let obstacle = ReconcileError::from(Obstacle::new(Reason::Forbidden, ""));
        let seconds: Vec<f64> = (0..12)
            .map(|_| pause_after("one", &failed(500, 0)).as_secs_f64())
            .collect();
        assert!(
            seconds[0] < 0.4 && seconds[3] > 1.9 && (30.0..=37.5).contains(&seconds[11]),
            "{seconds:?}"
        );
        assert!((48.0..=60.0).contains(&pause_after("one", &obstacle).as_secs_f64()));
        assert!(
            pause_after("two", &failed(500, 0)) < Duration::from_millis(400),
            "no other MiniCluster waits longer"
        );
        miniclusters.clear_failures("one");
        assert!(
            pause_after("one", &failed(429, 7)) >= Duration::from_secs(7),
            "as long as the API server asks"
        );
    }
}
