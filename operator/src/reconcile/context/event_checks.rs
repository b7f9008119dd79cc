//! Decides when to read the events of an object that waits although no status says why, and keeps what was found.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use flux_operator_core::decide::silent_wait::{EventCheck, Finding, Turns};
use flux_operator_core::observe::pod::Trouble;
use parking_lot::{Mutex, MutexGuard};

/// The next check of events, and the last finding, of each MiniCluster that waits.
#[derive(Debug, Default)]
pub struct EventChecks {
    /// By the MiniCluster's uid.
    checks: Mutex<HashMap<String, EventCheck>>,
    /// Limits the rate of the checks. A check that has to wait keeps the time that was reserved for it: its turn.
    turns: Mutex<Turns>,
}

/// An object that waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    pub namespace: &'a str,
    /// The MiniCluster's uid.
    pub uid: &'a str,
    /// A key for the wait (`SilentWait::object`). If it changes, another wait has begun.
    pub object: &'a str,
    /// How long it may wait before its events are first read.
    pub first_check_after: Duration,
    /// The status already shows that it waits, as after a restart of the operator: its events are read at once.
    pub was_reported: bool,
}

impl EventChecks {
    fn checks(&self) -> MutexGuard<'_, HashMap<String, EventCheck>> {
        self.checks.lock()
    }

    /// Notes that an object waits. Returns whether its events have to be read now. If so, also schedules the
    /// next check.
    pub fn are_due(&self, waiting: Waiting, now: Instant) -> bool {
        let Waiting {
            namespace,
            uid,
            object,
            first_check_after,
            was_reported,
        } = waiting;
        let mut checks = self.checks();
        let first_pause = if was_reported {
            Duration::ZERO
        } else {
            first_check_after
        };
        let check = checks
            .entry(uid.to_owned())
            .or_insert_with(|| EventCheck::new(object, first_pause, now));
        if !check.is_about(object) {
            // Another wait has begun. What the status shows is about the earlier one, so `was_reported` does not count.
            *check = EventCheck::new(object, first_check_after, now);
            // `new` sets `Unread`, with which the status would keep what it shows.
            check.found = Finding::Nothing;
        }
        if !check.is_due(now) {
            return false;
        }
        // None: the rate limit allows the check now.
        let deferred = self.turns.lock().take_or_defer(namespace, check.turn, now);
        match deferred {
            Some((next, turn)) => check.defer_until(next, turn),
            None => check.schedule_next(now),
        }
        deferred.is_none()
    }

    /// Forgets the check and its finding: no object waits without a visible reason any more.
    pub fn forget(&self, uid: &str) {
        self.checks().remove(uid);
    }

    /// Notes what a check of events has found.
    pub fn note_finding(&self, uid: &str, found: Option<Trouble>) {
        if let Some(check) = self.checks().get_mut(uid) {
            check.found = match found {
                Some(trouble) => Finding::Warning(Box::new(trouble)),
                None => Finding::Nothing,
            };
        }
    }

    /// Records why the ConfigMap, which the pod's events report as missing, could not be created again. The status
    /// shows this until the next check, which tries again.
    pub fn note_refusal(&self, uid: &str, refusal: Trouble, now: Instant) {
        if let Some(check) = self.checks().get_mut(uid) {
            check.note_refusal(refusal, now);
        }
    }

    /// The result of the last check of events, and the time until the next one.
    pub fn last_finding(&self, uid: &str, now: Instant) -> Option<(Finding, Duration)> {
        self.checks()
            .get(uid)
            .map(|check| (check.found.clone(), check.time_left(now)))
    }
}
