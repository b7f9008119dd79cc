//! How a pod ended: by itself, by Flux, or because it was taken away.

use flux_shared::crd::v1alpha2::LostPod;
use flux_shared::exit::{Category, REPLACE};
use flux_shared::termination::Ender;

use super::pod::{Exit, PodSeen};
use crate::vocabulary::Reason;

/// Lost pods that the status remembers.
pub const LOST_KEPT: usize = 8;

/// How a lead's pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodEnd {
    Succeeded,
    /// It failed by itself; nothing took the pod away.
    FailedByItself,
    /// Flux ended the job because it had lost a node.
    NodeFailure,
    /// It replaced an earlier lead's pod and therefore refused to run the program.
    Refused,
    /// It was taken away before its program had ended.
    Taken,
    /// Its program never started; whether another attempt may help.
    NotStarted {
        may_help: bool,
    },
}

/// How a pod ended, if it did. A pod that is gone has ended, however it was seen last.
pub fn end_of(pod: &PodSeen, is_gone: bool) -> Option<PodEnd> {
    if pod.has_succeeded {
        return Some(PodEnd::Succeeded);
    }
    // What runs beside the program is not waited for.
    if !pod.has_ended && pod.kept_by.is_none() {
        return is_gone.then_some(PodEnd::Taken);
    }
    let termination = pod.exit.as_ref().and_then(|exit| exit.termination.as_ref());
    Some(match (termination, &pod.exit) {
        (Some(termination), _)
            if termination.by == Ender::Agent && termination.category == Some(Category::LeadLost) =>
        {
            PodEnd::Refused
        }
        _ if pod.was_taken() && pod.unseen_end().is_some() => PodEnd::Taken,
        (Some(termination), _) if termination.by == Ender::Stop && pod.was_taken() => PodEnd::Taken,
        (Some(termination), _) if termination.node_failure => PodEnd::NodeFailure,
        (Some(_), _) => PodEnd::FailedByItself,
        (None, Some(_)) if pod.was_taken() => PodEnd::Taken,
        (None, Some(_)) => PodEnd::FailedByItself,
        (None, None) if pod.was_taken() => PodEnd::Taken,
        (None, None) => {
            let init = pod.trouble.as_ref().and_then(|trouble| trouble.init.as_ref());
            // A user's init container runs no agent, and the Job fails with it.
            let category = init
                .filter(|init| !init.is_users)
                .and_then(|init| Category::from_code(init.exit.code));
            let is_users = init.is_some_and(|init| init.is_users);
            PodEnd::NotStarted {
                may_help: !is_users && category.is_none_or(Category::is_retriable),
            }
        }
    })
}

/// Whether a follower has failed by itself, which fails the Job.
pub fn has_failed_by_itself(pod: &PodSeen) -> bool {
    let code = pod.exit.as_ref().map(|exit| exit.code);
    pod.index > 0
        && match end_of(pod, false) {
            Some(PodEnd::FailedByItself | PodEnd::NodeFailure | PodEnd::Refused) => {
                code != Some(i32::from(REPLACE))
            }
            Some(PodEnd::NotStarted { may_help }) => !may_help,
            _ => false,
        }
}

const UNSEEN_MESSAGE: &str =
    "its node or the container runtime there was restarted, and nobody saw how the container ended";

/// The kubelet's own reason, where it has one.
fn unseen_reason(end: &Exit) -> Reason {
    if end.reason == Reason::ContainerStatusUnknown {
        Reason::ContainerStatusUnknown
    } else {
        // Of a pod whose node, or the node's runtime, was restarted while its container ran.
        Reason::NodeRestarted
    }
}

/// The entry for the status about a pod that was taken away.
pub fn loss(pod: &PodSeen) -> LostPod {
    let trouble = pod
        .trouble
        .as_ref()
        .filter(|trouble| pod.was_taken() && trouble.init.is_none());
    let (reason, message) = match (trouble, pod.unseen_end()) {
        (Some(trouble), _) if trouble.is_disruption || !pod.is_deleting => {
            (trouble.reason.clone(), trouble.message.clone())
        }
        (_, Some(end)) => (unseen_reason(end).into(), UNSEEN_MESSAGE.to_owned()),
        _ if pod.is_deleting => (Reason::Deleted.into(), "it was deleted".to_owned()),
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
