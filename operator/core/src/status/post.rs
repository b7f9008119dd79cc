//! A failed `post` snippet. The status reports it, but it does not change the job's result.

use flux_shared::crd::v1alpha2::ConditionStatus;
use flux_shared::termination::{POST, Termination};

use super::outcome::{Outcome, place_of};
use super::{Inputs, condition};
use crate::observe::pod::PodSeen;
use crate::vocabulary::ConditionType;

/// The message about a failed `post`, from the pods that exist or from the previous status.
pub(super) fn failure(inputs: &Inputs) -> Option<String> {
    failure_in_pods(inputs).or_else(|| reported(inputs))
}

/// Whether the previous status is about the same start of the program: the same Job, not resumed after a suspension,
/// and no later start of the lead's container (`restartPolicy: OnFailure`). Without a Job, no later start has begun.
pub(super) fn is_previous_of_this_start(inputs: &Inputs) -> bool {
    let previous = inputs.previous;
    let Some(job) = inputs.job else { return true };
    let mut leads = inputs.pods.iter().filter(|pod| pod.index == 0);
    previous.job_uid.as_deref() == Some(&job.uid)
        && !super::was_just_resumed(inputs)
        && !super::was_resumed_unseen(inputs)
        && !leads.any(|lead| i64::from(lead.restarts) > i64::from(previous.container_restarts))
}

/// The message in the previous status. It is needed once the pods no longer exist.
fn reported(inputs: &Inputs) -> Option<String> {
    if !is_previous_of_this_start(inputs) {
        return None;
    }
    let before = condition(inputs.previous, ConditionType::PostSucceeded)?;
    (before.status == ConditionStatus::False).then(|| before.message.clone())
}

/// The message from the pods that exist: names the failed pod with the lowest index, and counts the others.
fn failure_in_pods(inputs: &Inputs) -> Option<String> {
    let mut failed: Vec<(&PodSeen, &Termination, u8)> = Vec::new();
    for pod in inputs.pods_of_this_start() {
        if let Some(termination) = pod.exit.as_ref().and_then(|exit| exit.termination.as_ref())
            && let Some(code) = termination.failed_post()
        {
            failed.push((pod, termination, code));
        }
    }
    let (pod, termination, code) = failed.iter().min_by_key(|(pod, ..)| pod.index)?;
    let error = if termination.snippet_error.is_empty() {
        String::new()
    } else {
        format!(": {}", termination.snippet_error)
    };
    let others = match failed.len() - 1 {
        0 => String::new(),
        1 => " (and 1 more pod)".to_owned(),
        count => format!(" (and {count} more pods)"),
    };
    Some(format!(
        "post of {} ended with exit code {code}{error}{others}",
        place_of(pod)
    ))
}

/// The outcome with the message about a failed `post` appended, if the job has ended.
pub(super) fn with_failure(mut outcome: Outcome, inputs: &Inputs) -> Outcome {
    let has_ended = inputs
        .job
        .is_some_and(|job| job.is_finished() || job.failing.is_some());
    // If the outcome itself is about `post`, nothing is appended.
    if !has_ended || outcome.message.is_empty() || outcome.snippet.as_deref() == Some(POST) {
        return outcome;
    }
    if let Some(failure) = failure(inputs) {
        outcome.message = format!("{}; {failure}", outcome.message);
    }
    outcome
}
