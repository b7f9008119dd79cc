//! Events for people, from the difference of two statuses: their number is bounded by the number of changes.

use flux_shared::crd::v1alpha2::MiniClusterStatus;

use crate::previous_status::VIEW_COPIED;
use crate::status::outcome::SIDECAR_STILL_RUNS;
use crate::status::{
    ARCHIVE_SAVED, OPERATOR_PANICKED, POST_SUCCEEDED, VIEW_MOUNTED, VOLUMES_VALID, condition,
};

/// Longest note of an event; the API server's limit is 1 KiB.
const NOTE_MAX: usize = 1000;

/// An event of a MiniCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub type_: EventType,
    pub reason: String,
    pub note: String,
    pub action: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

/// The event of a restart.
pub fn started_anew(status: &MiniClusterStatus) -> Option<Event> {
    let restart = status.restarts.last()?;
    let note = format!(
        "restart {} ({}): {}",
        status.restart_count, restart.reason, restart.message
    );
    Some(Event {
        type_: EventType::Warning,
        reason: "StartedAnew".into(),
        note: note.chars().take(NOTE_MAX).collect(),
        action: "Start".into(),
    })
}

/// The events for a change of the status.
pub fn events(before: &MiniClusterStatus, after: &MiniClusterStatus) -> Vec<Event> {
    let mut events = Vec::new();
    let turned = |type_: &str, to: &str| {
        let was = condition(before, type_).is_some_and(|condition| condition.status == to);
        condition(after, type_).filter(|condition| condition.status == to && !was)
    };
    let mut say = |type_, reason: &str, message: &str, action: &str| {
        events.push(Event {
            type_,
            reason: reason.to_owned(),
            note: message.chars().take(NOTE_MAX).collect(),
            action: action.to_owned(),
        });
    };
    if let Some(valid) = turned("Valid", "False") {
        say(EventType::Warning, &valid.reason, &valid.message, "Validate");
    }
    if let Some(valid) = turned("Valid", "True").filter(|valid| valid.reason == "ValidWithNotes") {
        say(EventType::Normal, &valid.reason, &valid.message, "Validate");
    }
    if let Some(mounted) = turned(VIEW_MOUNTED, "False").filter(|mounted| mounted.reason != VIEW_COPIED) {
        say(EventType::Warning, &mounted.reason, &mounted.message, "Start");
    }
    if let Some(volumes) = turned(VOLUMES_VALID, "False") {
        say(EventType::Warning, &volumes.reason, &volumes.message, "Start");
    }
    if let Some(panicked) = turned(OPERATOR_PANICKED, "True") {
        say(
            EventType::Warning,
            OPERATOR_PANICKED,
            &panicked.message,
            "Reconcile",
        );
    }
    if let Some(archive) = turned(ARCHIVE_SAVED, "False") {
        say(EventType::Warning, "ArchiveNotSaved", &archive.message, "Save");
    }
    if let Some(finished) =
        turned("JobFinished", "True").filter(|finished| finished.reason == SIDECAR_STILL_RUNS)
    {
        say(EventType::Warning, SIDECAR_STILL_RUNS, &finished.message, "Run");
    }
    if let Some(post) = turned(POST_SUCCEEDED, "False") {
        say(EventType::Warning, "PostFailed", &post.message, "Run");
    }
    if let Some(failed) = turned("Failed", "True") {
        // The event may have been written while the other pods were ending.
        if before.reason.as_ref() != Some(&failed.reason) || before.message.as_ref() != Some(&failed.message)
        {
            say(EventType::Warning, &failed.reason, &failed.message, "Run");
        }
    } else if let Some(complete) = turned("Complete", "True") {
        say(EventType::Normal, &complete.reason, &complete.message, "Run");
    } else if let Some(reason) = &after.reason
        && before.reason.as_ref() != Some(reason)
        && !matches!(
            reason.as_str(),
            "Invalid" | "Suspended" | "Queued" | "Requeued" | "Completed" | "WaitingForPrevious"
        )
        && condition(after, "JobFinished").is_none_or(|finished| finished.status == "False")
    {
        say(
            EventType::Warning,
            reason,
            after.message.as_deref().unwrap_or_default(),
            "Start",
        );
    }
    events
}
