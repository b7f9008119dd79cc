//! Reads the status that was written last, and formats texts and times for a status. Pure.

use flux_shared::crd::v1alpha2::{Condition, ConditionStatus, MiniClusterStatus};
use k8s_openapi::jiff::{Timestamp, Unit};

use crate::vocabulary::{ConditionType, Reason};

/// Longest message in a status, in characters: a rough bound, since a status has dozens of messages.
pub const MESSAGE_MAX: usize = 1024;

/// Whether the MiniCluster has ended.
pub fn is_finished(status: &MiniClusterStatus) -> bool {
    is_true(status, ConditionType::JobFinished)
}

/// Whether the operator has deleted pods and volumes after the end (`cleanupPods`).
pub fn is_cleaned_up(status: &MiniClusterStatus) -> bool {
    is_true(status, ConditionType::CleanedUp)
}

/// Whether the MiniCluster has been ready since its last start, according to the timeline.
pub fn has_been_ready(status: &MiniClusterStatus) -> bool {
    status
        .timeline
        .as_ref()
        .is_some_and(|timeline| timeline.ready.is_some())
}

/// Whether the lead's container has started since the last restart or suspension, according to the timeline.
pub fn has_begun(status: &MiniClusterStatus) -> bool {
    status
        .timeline
        .as_ref()
        .is_some_and(|timeline| timeline.running.is_some())
}

/// Whether the status says that the operator waits for pods of a deleted Job, or of an earlier MiniCluster of this
/// name, which may still run.
pub fn waits_for_pods(status: &MiniClusterStatus) -> bool {
    status.reason.as_deref().and_then(Reason::parse) == Some(Reason::WaitingForPods)
}

/// Whether a pod could not mount the view's image. From then on, Jobs are created with a copy of the view.
pub fn image_volume_failed(status: &MiniClusterStatus) -> bool {
    // With the reason `ViewCopied`, the pods have not tried to mount it.
    condition_with(status, ConditionType::ViewMounted, ConditionStatus::False)
        .is_some_and(|condition| condition.reason != Reason::ViewCopied)
}

/// When the MiniCluster ended. None: it has not, or the time cannot be parsed.
pub fn end(status: &MiniClusterStatus) -> Option<Timestamp> {
    let finished = condition_with(status, ConditionType::JobFinished, ConditionStatus::True)?;
    status
        .completion_time
        .as_ref()
        .unwrap_or(&finished.last_transition_time)
        .parse()
        .ok()
}

/// The condition of a type.
pub fn condition(status: &MiniClusterStatus, type_: ConditionType) -> Option<&Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
}

/// Whether the condition of a type is true.
pub fn is_true(status: &MiniClusterStatus, type_: ConditionType) -> bool {
    condition_with(status, type_, ConditionStatus::True).is_some()
}

/// The condition of a type, if its status is `value`.
fn condition_with(
    status: &MiniClusterStatus,
    type_: ConditionType,
    value: ConditionStatus,
) -> Option<&Condition> {
    condition(status, type_).filter(|condition| condition.status == value)
}

/// The message, cut to [`MESSAGE_MAX`] characters.
pub fn short(message: &str) -> String {
    cut_middle(message, MESSAGE_MAX)
}

/// The text, cut to `limit` characters. What is left out is in the middle: a refusal begins with the object's name, and
/// may quote a whole pod template before its last words, which say what is wrong.
pub fn cut_middle(text: &str, limit: usize) -> String {
    const GAP: &str = " … ";
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let kept = limit.saturating_sub(GAP.chars().count());
    let end = kept / 3;
    let parts = (text.chars().take(kept - end), text.chars().skip(length - end));
    parts.0.chain(GAP.chars()).chain(parts.1).collect()
}

/// A time as Kubernetes writes it, in whole seconds.
pub fn rfc3339(time: Timestamp) -> String {
    time.round(Unit::Second).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_keeps_its_beginning_and_its_end() {
        let (begin, end) = (
            "Job.batch \"mc\" is invalid: spec.template: Invalid value: ",
            ": field is immutable",
        );
        for filler in ["x", "é"] {
            let message = short(&format!("{begin}{}{end}", filler.repeat(10_000)));
            assert_eq!(message.chars().count(), MESSAGE_MAX);
            assert!(message.starts_with(begin) && message.ends_with(end), "{message}");
            assert_eq!(short(&message), message);
        }
        let whole = "x".repeat(MESSAGE_MAX);
        assert_eq!(short(&whole), whole);
    }
}
