//! Decides when to read the events of an object that waits although no status says why, and keeps what was found.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use flux_operator_core::decide::silent_wait::{EventCheck, Finding};
use flux_operator_core::observe::pod::Trouble;

use crate::reconcile::context::miniclusters::{MiniClusters, State};

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

impl MiniClusters {
    /// Notes that an object waits. Returns whether its events have to be read now. If so, also schedules the
    /// next check.
    pub fn are_events_due(&self, waiting: Waiting, now: Instant) -> bool {
        let Waiting {
            namespace,
            uid,
            object,
            first_check_after,
            was_reported,
        } = waiting;
        let mut states = self.states();
        let first_pause = if was_reported {
            Duration::ZERO
        } else {
            first_check_after
        };
        let check = states
            .entry(uid.to_owned())
            .or_default()
            .event_check
            .get_or_insert_with(|| Box::new(EventCheck::new(object, first_pause, now)));
        if !check.is_about(object) {
            // Another wait has begun. What the status shows is about the earlier one, so `was_reported` does not count.
            **check = EventCheck::new(object, first_check_after, now);
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
    pub fn forget_event_check(&self, uid: &str) {
        if let Some(state) = self.states().get_mut(uid) {
            state.event_check = None;
        }
    }

    /// Notes what a check of events has found.
    pub fn note_finding(&self, uid: &str, found: Option<Trouble>) {
        if let Some(check) = event_check(&mut self.states(), uid) {
            check.found = match found {
                Some(trouble) => Finding::Warning(Box::new(trouble)),
                None => Finding::Nothing,
            };
        }
    }

    /// Records why the ConfigMap, which the pod's events report as missing, could not be created again. The status
    /// shows this until the next check, which tries again.
    pub fn note_refusal(&self, uid: &str, refusal: Trouble, now: Instant) {
        if let Some(check) = event_check(&mut self.states(), uid) {
            check.note_refusal(refusal, now);
        }
    }

    /// The result of the last check of events, and the time until the next one.
    pub fn last_finding(&self, uid: &str, now: Instant) -> Option<(Finding, Duration)> {
        event_check(&mut self.states(), uid).map(|check| (check.found.clone(), check.time_left(now)))
    }
}

/// The check of the MiniCluster's events. None: no object of it waits.
fn event_check<'a>(states: &'a mut HashMap<String, State>, uid: &str) -> Option<&'a mut EventCheck> {
    states.get_mut(uid)?.event_check.as_deref_mut()
}
