//! When to read the events of an object that waits although no status shows a reason.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flux_operator_core::decide::silent_wait::{EventCheck, Finding, Turns};
use flux_operator_core::observe::pod::Trouble;

/// The checks that are due, by the MiniCluster's uid.
#[derive(Debug, Default)]
pub struct EventChecks {
    checks: Mutex<HashMap<String, EventCheck>>,
    turns: Mutex<Turns>,
}

/// An object that waits.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    pub namespace: &'a str,
    /// The MiniCluster's uid.
    pub uid: &'a str,
    /// The object that waits; another object is another wait.
    pub object: &'a str,
    /// How long it may wait before its events are read.
    pub patience: Duration,
    /// It has waited before: its events are read at once.
    pub has_waited: bool,
}

impl EventChecks {
    fn checks(&self) -> MutexGuard<'_, HashMap<String, EventCheck>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an object waits. True: its events have to be read now, and the next check is scheduled.
    pub fn are_due(&self, waiting: Waiting, now: Instant) -> bool {
        let Waiting {
            namespace,
            uid,
            object,
            patience,
            has_waited,
        } = waiting;
        let mut checks = self.checks();
        let first = if has_waited { Duration::ZERO } else { patience };
        let check = checks
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

    /// Records why an object could not be created. The status shows this until the next attempt.
    pub fn note_refusal(&self, uid: &str, why: Trouble, now: Instant) {
        if let Some(check) = self.checks().get_mut(uid) {
            check.note_refusal(why, now);
        }
    }

    /// The result of the last check of events, and the time until the next one.
    pub fn last_finding(&self, uid: &str, now: Instant) -> Option<(Finding, Duration)> {
        self.checks()
            .get(uid)
            .map(|check| (check.found.clone(), check.time_left(now)))
    }
}
