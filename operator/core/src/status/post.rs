//! A `post` that has failed: a fact beside the job's result, which it does not change.

use flux_shared::crd::v1alpha2::ConditionStatus;
use flux_shared::termination::{POST, Termination};

use super::outcome::{Outcome, place_of};
use super::{Inputs, condition};
use crate::observe::pod::PodSeen;
use crate::vocabulary::ConditionType;

/// What failed, if a pod has reported that its `post` did, now or while it was there.
pub(super) fn failure(inputs: &Inputs) -> Option<String> {
    failure_in_pods(inputs).or_else(|| reported(inputs))
}

/// What was reported of this Job before, perhaps by pods that are gone.
fn reported(inputs: &Inputs) -> Option<String> {
    if inputs.previous.job_uid.as_deref() != Some(&inputs.job?.uid) {
        return None;
    }
    let before = condition(inputs.previous, ConditionType::PostSucceeded)?;
    (before.status == ConditionStatus::False).then(|| before.message.clone())
}

/// What failed, by the pods that are there: the first in words, the others as a number.
fn failure_in_pods(inputs: &Inputs) -> Option<String> {
    let mut failed: Vec<(&PodSeen, &Termination, u8)> = Vec::new();
    for pod in &inputs.pods {
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

/// The outcome with that fact, once the job has ended.
pub(super) fn added(mut outcome: Outcome, inputs: &Inputs) -> Outcome {
    let has_ended = inputs
        .job
        .is_some_and(|job| job.is_finished() || job.failing.is_some());
    if !has_ended || outcome.message.is_empty() || outcome.snippet.as_deref() == Some(POST) {
        return outcome;
    }
    if let Some(failure) = failure(inputs) {
        outcome.message = format!("{}; {failure}", outcome.message);
    }
    outcome
}
