//! Classifies how a pod ended: by itself, because of Flux, or because it was removed.

use flux_shared::crd::v1alpha2::LostPod;
use flux_shared::exit::{Category, REPLACE};
use flux_shared::termination::Ender;

use super::job::JobSeen;
use super::pod::{Exit, PodSeen};
use crate::vocabulary::Reason;

/// Most lost pods that `status.lostPods` lists.
pub const LOST_KEPT: usize = 8;

/// Shortens a list of lost pods to the most that are kept. It drops the first followers, or the first leads if there is
/// no follower: a lead's entry may be all that `decide::restart` knows about the loss of that lead.
pub fn shorten(lost: &mut Vec<LostPod>) {
    while lost.len() > LOST_KEPT {
        let first_follower = lost.iter().position(|pod| pod.index > 0);
        lost.remove(first_follower.unwrap_or(0));
    }
}

/// How a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodEnd {
    Succeeded,
    /// It failed, but not because it was removed.
    FailedByItself,
    /// Flux ended the job because it had lost one of its nodes, which are the pods.
    NodeFailure,
    /// The lead's agent refused to run the program, which may have run already: in an earlier pod of the lead, or in an
    /// earlier start of this container.
    Refused,
    /// It was removed before its program had ended.
    Removed,
    /// Its program never started.
    NotStarted {
        /// The failure may pass, so a new pod is worth a try.
        new_pod_may_start: bool,
    },
}

/// How a pod ended. None: it still runs. (If it no longer exists, and was last seen running, it was removed.)
pub fn end_of(pod: &PodSeen) -> Option<PodEnd> {
    if pod.has_succeeded {
        return Some(PodEnd::Succeeded);
    }
    if !pod.counts_as_ended() {
        return None;
    }
    let termination = pod.exit.as_ref().and_then(|exit| exit.termination.as_ref());
    Some(match (termination, &pod.exit) {
        // This comes first: a refusal counts even if the pod was removed, too.
        (Some(termination), _)
            if termination.by == Ender::Agent && termination.category == Some(Category::LeadLost) =>
        {
            PodEnd::Refused
        }
        _ if pod.was_removed() && pod.unseen_end().is_some() => PodEnd::Removed,
        (Some(termination), _) if termination.by == Ender::Stop && pod.was_removed() => PodEnd::Removed,
        (Some(termination), _) if termination.node_failure => PodEnd::NodeFailure,
        // The agent reports how it ended, and that was no stop by a removal. So a removal of the pod does not count.
        (Some(_), _) => PodEnd::FailedByItself,
        (None, Some(_)) if pod.was_removed() => PodEnd::Removed,
        (None, Some(_)) => PodEnd::FailedByItself,
        (None, None) if pod.was_removed() => PodEnd::Removed,
        (None, None) => {
            let init = pod.trouble.as_ref().and_then(|trouble| trouble.init.as_ref());
            // The code of a user's init container is no code of the agent. If it fails, the Job fails.
            let category = init
                .filter(|init| !init.is_users)
                .and_then(|init| Category::from_code(init.exit.code));
            let is_users = init.is_some_and(|init| init.is_users);
            PodEnd::NotStarted {
                new_pod_may_start: !is_users && category.is_none_or(Category::is_retriable),
            }
        }
    })
}

/// How a pod of index 0 ended. `job`: its Job. None: it still runs. (If it no longer exists, and was last seen running,
/// it was removed.)
///
/// - If the lead broker is in another cluster, this pod is a follower: if it was stopped alone, the Job may replace it,
///   so it counts as removed.
/// - A program that a suspension stops may exit with 0, for example after a checkpoint. The Job does not count this as
///   a success, and runs the program again when it is resumed. So the pod counts as removed.
pub fn end_of_lead(pod: &PodSeen, job: Option<&JobSeen>, lead_is_elsewhere: bool) -> Option<PodEnd> {
    let was_suspended = || job.is_some_and(|job| was_stopped_by_suspension(job, pod));
    match end_of(pod) {
        Some(PodEnd::FailedByItself) if lead_is_elsewhere && was_stopped_alone(pod) => Some(PodEnd::Removed),
        Some(PodEnd::Succeeded) if !pod.has_agents_success() && was_suspended() => Some(PodEnd::Removed),
        end => end,
    }
}

/// Whether the pod was deleted before the Job's current start, as by a suspension. (A resume resets the Job's start
/// time. Until the Job controller sees the resume, the Job has no start time. The two times may come from different
/// clocks, which matters only for a pod that is lost right after the start.)
pub fn was_stopped_by_suspension(job: &JobSeen, pod: &PodSeen) -> bool {
    let is_before_start = |requested| job.start_time.is_none_or(|start| requested < start);
    pod.deletion_requested.is_some_and(is_before_start)
}

/// Whether this follower's agent reports that the pod alone was stopped. The Job may replace it.
pub fn was_stopped_alone(pod: &PodSeen) -> bool {
    pod.exit
        .as_ref()
        .is_some_and(|exit| exit.code == i32::from(REPLACE))
}

/// Whether this pod is a follower whose failure fails the Job. (`NodeFailure` and `Refused` are ends of leads. A
/// follower that reports one all the same fails the Job like any other failure.)
pub fn is_follower_failed_by_itself(pod: &PodSeen) -> bool {
    pod.index > 0
        && match end_of(pod) {
            Some(PodEnd::FailedByItself | PodEnd::NodeFailure | PodEnd::Refused) => !was_stopped_alone(pod),
            Some(PodEnd::NotStarted { new_pod_may_start }) => !new_pod_may_start,
            _ => false,
        }
}

/// The message about a pod with an unseen end ([`PodSeen::unseen_end`]).
const UNSEEN_MESSAGE: &str =
    "its node or the container runtime there was restarted, and nobody saw how the container ended";

/// The reason for an unseen end: the kubelet's, or one of the operator's.
fn unseen_reason(end: &Exit) -> Reason {
    if end.reason == Reason::ContainerStatusUnknown {
        Reason::ContainerStatusUnknown
    } else {
        // The node, or its runtime, was restarted while the container ran.
        Reason::NodeRestarted
    }
}

/// The entry for `status.lostPods` about a pod that was removed. `time` is empty: the caller sets it.
pub fn loss(pod: &PodSeen) -> LostPod {
    // A failed init container is not why the pod was removed. If nobody saw its end, `unseen_end` has that end.
    let trouble = pod
        .trouble
        .as_ref()
        .filter(|trouble| pod.was_removed() && trouble.init.is_none());
    let (reason, message) = match (trouble, pod.unseen_end()) {
        // If the pod was deleted, only a disruption is a cause of that. Other trouble is not.
        (Some(trouble), _) if trouble.is_disruption || !pod.is_deleting => {
            (trouble.reason.clone(), trouble.message.clone())
        }
        (_, Some(end)) => (unseen_reason(end).into(), UNSEEN_MESSAGE.to_owned()),
        _ if pod.is_deleting => (Reason::Deleted.into(), "it was deleted".to_owned()),
        // The pod no longer exists, and showed no sign of a removal when it was last seen.
        _ => (Reason::Gone.into(), String::new()),
    };
    LostPod {
        name: pod.name.clone(),
        index: i32::try_from(pod.index).unwrap_or(i32::MAX),
        node: pod.node.clone(),
        reason,
        message,
        time: String::new(),
    }
}
