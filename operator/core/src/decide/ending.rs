//! Decides how the MiniCluster has ended, as early as possible. The Job's own conditions Complete and Failed come only
//! after all its pods have ended, and a pod on a dead node never ends. Pure.

use std::borrow::Cow;

use k8s_openapi::jiff::Timestamp;

use super::restart::{self, Decision, Limit, Observation, is_by_pods_end, leads};
use crate::observe::job::{JobSeen, TrueCondition};
use crate::observe::pod::PodSeen;
use crate::observe::pod_end::{PodEnd, is_follower_failed_by_itself};
use crate::vocabulary::Reason;

/// The Job with the condition Complete or Failed, if its end is already certain. If the Job has the condition Failed,
/// but this does not end the MiniCluster (yet), the condition is left out. Otherwise the Job as it is. `now` is the
/// control plane's time.
pub fn with_decided_end<'a>(observation: &Observation, job: &'a JobSeen, now: Timestamp) -> Cow<'a, JobSeen> {
    // Once a Job that is being deleted is gone, `restart` decides whether the MiniCluster has ended. Another Job
    // replaces a given-up one: `restart::without_end_if_given_up` removes its end.
    if job.is_deleting || job.complete.is_some() || restart::is_given_up(observation.status, job) {
        return Cow::Borrowed(job);
    }
    // The Job gets the condition Failed only after its pods have ended, but the watch of pods may lag behind.
    let has_living_pods = job.failed.is_none() && observation.pods.iter().any(|pod| !pod.has_ended);
    if let Some(complete) = success(observation, job, now) {
        return Cow::Owned(JobSeen {
            complete: Some(complete),
            failed: None,
            has_living_pods,
            ..job.clone()
        });
    }
    let failing = if has_failed_for_good(observation, job) {
        job.failed.as_ref().or(job.failing.as_ref())
    } else {
        None
    };
    let failed = failing
        .cloned()
        .or_else(|| failure_beside_foreign_container(observation, job, now));
    if failed == job.failed {
        return Cow::Borrowed(job);
    }
    Cow::Owned(JobSeen {
        failed,
        has_living_pods,
        ..job.clone()
    })
}

/// The lead's success, if there is one. The Job reports it, or only the agent does: the Job misses the success of a
/// pod that has failed, is kept by a foreign container, or was disrupted, deleted (as by a suspension) or replaced.
fn success(observation: &Observation, job: &JobSeen, now: Timestamp) -> Option<TrueCondition> {
    let completed_since = |since| TrueCondition {
        reason: Reason::Completed.into(),
        message: String::new(),
        since,
    };
    if let Some(succeeding) = &job.succeeding {
        return Some(completed_since(succeeding.since));
    }
    // A Job that fails for another reason (such as its deadline), or by a follower's own failure, stops the lead. The
    // lead may then end with 0, but the failure stays.
    let failing = job.failed.as_ref().or(job.failing.as_ref());
    if failing.is_some_and(|failing| !is_by_pods_end(observation, failing))
        || observation
            .pods
            .iter()
            .any(|pod| is_follower_failed_by_itself(pod))
    {
        return None;
    }
    let leads = leads(observation);
    let (lead, _) = leads.iter().find(|(_, end)| *end == Some(PodEnd::Succeeded))?;
    let is_deleted = lead.is_deleting || observation.gone.iter().any(|gone| gone.name == lead.name);
    let is_replaced = leads.iter().any(|(lead, _)| lead.replaces());
    // If none of the following is true, the Job will report the success itself.
    let is_missed_by_job =
        failing.is_some() || lead.is_disrupted() || is_deleted || lead.kept_by.is_some() || is_replaced;
    // `PodEnd::Succeeded` may come from the pod's phase alone. Against the Job, only the agent's message counts.
    if !is_missed_by_job || !lead.has_agents_success() {
        return None;
    }
    Some(completed_since(end_of_program(job, lead, now)))
}

/// When the lead's program ended. The pod's time comes from its node's clock, the Job's times come from the control
/// plane's clock. So the result is kept between the Job's start and now.
fn end_of_program(job: &JobSeen, lead: &PodSeen, now: Timestamp) -> Option<Timestamp> {
    let at = lead.exit.as_ref()?.at?.min(now);
    Some(job.start_time.or(job.created).map_or(at, |start| at.max(start)))
}

/// The failure of a lead whose pod still runs because a foreign container runs in it (`kept_by`). The Job does not see
/// this failure. The pods are kept, for their logs.
fn failure_beside_foreign_container(
    observation: &Observation,
    job: &JobSeen,
    now: Timestamp,
) -> Option<TrueCondition> {
    let is_failure = |end: &Option<PodEnd>| matches!(end, Some(PodEnd::FailedByItself | PodEnd::NodeFailure));
    let (lead, _) = leads(observation)
        .into_iter()
        .find(|(lead, end)| lead.kept_by.is_some() && is_failure(end))?;
    // A Job that fails anyway has its own condition. Another decision than Continue restarts or fails the Job.
    if job.failing.is_some() || restart::decide(observation) != Decision::Continue {
        return None;
    }
    Some(TrueCondition {
        // The reason of a Job that the operator (`end_pods_or_fail`) or the Job controller fails for its lead.
        reason: Reason::PodFailurePolicy.into(),
        // The status takes its message from the pods (`status::outcome`).
        message: String::new(),
        since: end_of_program(job, lead, now),
    })
}

/// Whether the failure of the Job ends the MiniCluster: no restart is due, and the pods that still run cannot make one
/// due.
fn has_failed_for_good(observation: &Observation, job: &JobSeen) -> bool {
    let Some(failing) = job.failed.as_ref().or(job.failing.as_ref()) else {
        return false;
    };
    if restart::decide(observation) != Decision::Continue {
        return false;
    }
    let is_final = !is_by_pods_end(observation, failing)
        || observation
            .pods
            .iter()
            .any(|pod| is_follower_failed_by_itself(pod));
    // A lead that still runs is being stopped: wait for its exit code. A lead on a silent node will report none: it is
    // not awaited once the failure is final or the Job has failed.
    let is_awaited = |pod: &PodSeen| !(pod.is_on_silent_node && (is_final || job.failed.is_some()));
    let leads = leads(observation);
    if leads.iter().any(|(lead, end)| end.is_none() && is_awaited(lead)) {
        return false;
    }
    // No pod of the lead is known, so its end is not known: wait until the Job has failed.
    if job.failed.is_none() && leads.is_empty() {
        return false;
    }
    // The lead may have failed because of a follower whose loss is not known yet.
    let may_restart = !is_final && observation.may_restart(Limit::MaxRestarts);
    !(may_restart && observation.pods.iter().any(|pod| pod.index > 0 && !pod.has_ended))
}
