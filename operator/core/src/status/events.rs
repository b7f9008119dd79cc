//! Kubernetes events, derived from the difference between two statuses. So a status that does not change causes none.

use flux_shared::crd::v1alpha2::ConditionStatus::{self, False, True};
use flux_shared::crd::v1alpha2::{Condition, MiniClusterStatus};

use crate::previous_status::cut_middle;
use crate::status::condition;
use crate::vocabulary::{self, ConditionType, Reason};

pub use crate::vocabulary::EventType;

/// Longest note of an event that the API server accepts, in bytes.
const NOTE_MAX: usize = 1024;

/// If a condition changes to the given status, an event with the given action is written. Its reason is that of the
/// condition. There is no event if `vocabulary::event_type` has none for the reason.
const CONDITIONS: [(ConditionType, ConditionStatus, &str); 4] = [
    (ConditionType::Valid, False, "Validate"),
    (ConditionType::ViewMounted, False, "Start"),
    (ConditionType::VolumesValid, False, "Start"),
    (ConditionType::PostSucceeded, False, "Run"),
];

/// An event of a MiniCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub type_: EventType,
    pub reason: String,
    /// The message, at most `NOTE_MAX` bytes.
    pub note: String,
    /// What was being done, in one word.
    pub action: String,
}

impl Event {
    /// An event whose message is cut to the longest note. None: the reason has no event.
    fn new(reason: &str, message: &str, action: &str) -> Option<Event> {
        Some(Event {
            type_: vocabulary::event_type(reason)?,
            reason: reason.to_owned(),
            note: note(message),
            action: action.to_owned(),
        })
    }
}

/// The message, cut to `NOTE_MAX` bytes.
fn note(message: &str) -> String {
    let mut characters = NOTE_MAX;
    loop {
        let note = cut_middle(message, characters);
        if note.len() <= NOTE_MAX {
            return note;
        }
        // A character has at most four bytes, so this never cuts too much.
        characters -= (note.len() - NOTE_MAX).div_ceil(4);
    }
}

/// The event about the last restart in the status. None: there was none. Only the reconcile that has just counted the
/// restart calls this, so the event is written once.
pub fn of_restart(status: &MiniClusterStatus) -> Option<Event> {
    let restart = status.restarts.last()?;
    let note = format!(
        "restart {} ({}): {}",
        status.restart_count, restart.reason, restart.message
    );
    Event::new(Reason::StartedAnew.name(), &note, "Start")
}

/// The events for a change of the status.
pub fn between(before: &MiniClusterStatus, after: &MiniClusterStatus) -> Vec<Event> {
    // The condition in `after`, if `is_wanted` is true for it there and was not in `before`.
    let newly = |type_: ConditionType, is_wanted: &dyn Fn(&Condition) -> bool| -> Option<&Condition> {
        let was_wanted = condition(before, type_).is_some_and(is_wanted);
        condition(after, type_).filter(|condition| is_wanted(condition) && !was_wanted)
    };
    let turned =
        |type_: ConditionType, to: ConditionStatus| newly(type_, &|condition| condition.status == to);
    let of_conditions = CONDITIONS.iter().filter_map(|(type_, to, action)| {
        let condition = turned(*type_, *to)?;
        Event::new(&condition.reason, &condition.message, action)
    });
    let mut events: Vec<Event> = of_conditions.collect();
    // A change of the spec may bring the first notes about it, while Valid stays True.
    if let Some(valid) = newly(ConditionType::Valid, &|valid| {
        valid.reason == Reason::ValidWithNotes
    }) {
        events.extend(Event::new(&valid.reason, &valid.message, "Validate"));
    }
    // These two are not in `CONDITIONS`: the event has another reason than its condition.
    if let Some(panicked) = turned(ConditionType::OperatorPanicked, True) {
        events.extend(Event::new(
            Reason::OperatorPanicked.name(),
            &panicked.message,
            "Reconcile",
        ));
    }
    if let Some(archive) = turned(ConditionType::ArchiveSaved, False) {
        events.extend(Event::new(
            Reason::ArchiveNotSaved.name(),
            &archive.message,
            "Save",
        ));
    }
    // The condition Complete has the reason `Completed`, so its event does not name the sidecar.
    if let Some(finished) = turned(ConditionType::JobFinished, True)
        && finished.reason == Reason::SidecarStillRuns
    {
        events.extend(Event::new(
            Reason::SidecarStillRuns.name(),
            &finished.message,
            "Run",
        ));
    }
    if let Some(failed) = turned(ConditionType::Failed, True) {
        // If the status already had this reason and message, the event was written before: the cause of a failure is
        // reported while other pods are still ending. The message may then also name a pod that hangs.
        let has_reported_failure = before.reason.as_ref() == Some(&failed.reason)
            && before
                .message
                .as_ref()
                .is_some_and(|message| message.starts_with(&failed.message));
        if !has_reported_failure {
            events.extend(Event::new(&failed.reason, &failed.message, "Run"));
        }
    } else if let Some(complete) = turned(ConditionType::Complete, True) {
        events.extend(Event::new(&complete.reason, &complete.message, "Run"));
    } else if let Some(reason) = &after.reason
        && before.reason.as_ref() != Some(reason)
        // There may already be an event of a condition with the same reason.
        && events.iter().all(|event| event.reason != *reason)
        // An end has its event from the branches above.
        && condition(after, ConditionType::JobFinished).is_none_or(|finished| finished.status == False)
    {
        let message = after.message.as_deref().unwrap_or_default();
        events.extend(Event::new(reason, message, "Start"));
    }
    events
}
