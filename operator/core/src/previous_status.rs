//! What a MiniCluster's status says already, and how texts and times are written into it. Pure.

use flux_shared::crd::v1alpha2::{Condition, MiniClusterStatus};
use k8s_openapi::jiff::{Timestamp, Unit};

use crate::obstacle::WAITING_FOR_PODS;

/// The condition that pods and volumes have been deleted (`cleanupPods`).
pub const CLEANED_UP: &str = "CleanedUp";
/// The condition about mounting the view's image.
pub const VIEW_MOUNTED: &str = "ViewMounted";
/// The reason that the view is copied because of a node, and not since it could not be mounted.
pub const VIEW_COPIED: &str = "ViewCopied";
/// Longest message in a status or an event.
pub const MESSAGE_MAX: usize = 1024;

/// Whether the MiniCluster has ended.
pub fn is_finished(status: &MiniClusterStatus) -> bool {
    has(status, "JobFinished", "True").is_some()
}

/// Whether pods and volumes have been deleted after the end.
pub fn is_cleaned_up(status: &MiniClusterStatus) -> bool {
    has(status, CLEANED_UP, "True").is_some()
}

/// Whether the operator has noticed that the Job was deleted while its program had not ended.
pub fn waits_for_pods(status: &MiniClusterStatus) -> bool {
    status.reason.as_deref() == Some(WAITING_FOR_PODS)
}

/// Whether a pod could not mount the view's image: the Job is created again with a copy of the view, from
/// then on.
pub fn image_volume_failed(status: &MiniClusterStatus) -> bool {
    has(status, VIEW_MOUNTED, "False").is_some_and(|it| it.reason != VIEW_COPIED)
}

/// When the MiniCluster ended.
pub fn end(status: &MiniClusterStatus) -> Option<Timestamp> {
    let finished = has(status, "JobFinished", "True")?;
    status
        .completion_time
        .as_ref()
        .unwrap_or(&finished.last_transition_time)
        .parse()
        .ok()
}

/// The condition of a type.
pub fn condition<'a>(status: &'a MiniClusterStatus, type_: &str) -> Option<&'a Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
}

/// The condition of a type, if its status is `value`.
fn has<'a>(status: &'a MiniClusterStatus, type_: &str, value: &str) -> Option<&'a Condition> {
    condition(status, type_).filter(|condition| condition.status == value)
}

pub fn short(message: &str) -> String {
    match message.char_indices().nth(MESSAGE_MAX - 1) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

/// A time as Kubernetes writes it, in whole seconds.
pub fn rfc3339(time: Timestamp) -> String {
    time.round(Unit::Second).unwrap_or(time).to_string()
}
