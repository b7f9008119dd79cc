//! How the MiniCluster ends, as soon as that is known: the Job's own conditions Complete and Failed come only
//! when all its pods have ended, which a pod on a dead node never does. Pure.

use std::borrow::Cow;

use super::restart::{self, Decision, Observation, is_by_policy};
use crate::observe::job::{JobSeen, TrueCondition};
use crate::observe::pod::PodSeen;
use crate::observe::pod_end::{PodEnd, end_of, has_failed_by_itself};
use crate::vocabulary::Reason;

/// The Job with the end that it will have, if nothing can change that any more.
pub fn with_decided_end<'a>(observation: &Observation, job: &'a JobSeen) -> Cow<'a, JobSeen> {
    if job.is_deleting || job.complete.is_some() || restart::is_given_up(observation.status, job) {
        return Cow::Borrowed(job);
    }
    let has_living_pods = job.failed.is_none() && observation.pods.iter().any(|pod| !pod.has_ended);
    if let Some(complete) = success(observation, job) {
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
        .or_else(|| failed_beside_another(observation, job));
    if failed == job.failed {
        return Cow::Borrowed(job);
    }
    Cow::Owned(JobSeen {
        failed,
        has_living_pods,
        ..job.clone()
    })
}

/// The lead's success: the Job says so, or the agent does where the Job sees a failed, disrupted or deleted pod (by a
/// suspension, say), or has replaced it.
fn success(observation: &Observation, job: &JobSeen) -> Option<TrueCondition> {
    let since = |since| TrueCondition {
        reason: Reason::Completed.into(),
        message: String::new(),
        since,
    };
    if let Some(succeeding) = &job.succeeding {
        return Some(since(succeeding.since));
    }
    let failing = job.failed.as_ref().or(job.failing.as_ref());
    let is_own_failure = failing.is_some_and(|failing| !is_by_policy(observation, failing))
        || observation.pods.iter().any(|pod| has_failed_by_itself(pod));
    let lead = leads(observation)
        .find(|(_, end)| *end == Some(PodEnd::Succeeded))
        .map(|(lead, _)| lead)?;
    let is_replaced = leads(observation).any(|(lead, _)| lead.replaces());
    let is_deleted = lead.is_deleting || observation.gone.iter().any(|gone| gone.name == lead.name);
    let is_missed =
        failing.is_some() || lead.is_disrupted() || is_deleted || lead.kept_by.is_some() || is_replaced;
    if is_own_failure || !is_missed || !lead.has_agents_success() {
        return None;
    }
    Some(since(lead.exit.as_ref().and_then(|exit| exit.at)))
}

/// The failure of a lead whose pod a container that is not ours keeps alive: the Job does not see it. The
/// pods stay, for their logs.
fn failed_beside_another(observation: &Observation, job: &JobSeen) -> Option<TrueCondition> {
    let is_own = |end: &Option<PodEnd>| matches!(end, Some(PodEnd::FailedByItself | PodEnd::NodeFailure));
    let (lead, _) = leads(observation).find(|(lead, end)| lead.kept_by.is_some() && is_own(end))?;
    if job.failing.is_some() || restart::decide(observation) != Decision::Continue {
        return None;
    }
    let since = lead.exit.as_ref().and_then(|exit| exit.at);
    Some(TrueCondition {
        reason: Reason::PodFailurePolicy.into(),
        message: String::new(),
        since,
    })
}

/// Whether a Job that fails is the MiniCluster's end: no restart is due, and what is still unknown of its
/// pods cannot make one due.
fn has_failed_for_good(observation: &Observation, job: &JobSeen) -> bool {
    let Some(failing) = job.failed.as_ref().or(job.failing.as_ref()) else {
        return false;
    };
    if restart::decide(observation) != Decision::Continue {
        return false;
    }
    let is_final =
        !is_by_policy(observation, failing) || observation.pods.iter().any(|pod| has_failed_by_itself(pod));
    // A lead that lives is being stopped, and its end will tell. On a node that is cut off it will not.
    let is_awaited = |pod: &PodSeen| !(pod.is_lost && (is_final || job.failed.is_some()));
    if leads(observation).any(|(lead, end)| end.is_none() && is_awaited(lead)) {
        return false;
    }
    if job.failed.is_none() && leads(observation).next().is_none() {
        return false;
    }
    // The lead may have failed because of a follower whose loss is not known yet.
    let may_restart = !is_final && observation.status.max_restarts_used < observation.max_restarts;
    !(may_restart && observation.pods.iter().any(|pod| pod.index > 0 && !pod.has_ended))
}

fn leads<'a>(observation: &Observation<'a>) -> impl Iterator<Item = (&'a PodSeen, Option<PodEnd>)> {
    let gone = observation
        .gone
        .clone()
        .into_iter()
        .map(|pod| (pod, end_of(pod, true)));
    let present = observation
        .pods
        .clone()
        .into_iter()
        .filter(|pod| pod.index == 0)
        .map(|pod| (pod, end_of(pod, false)));
    gone.chain(present)
}
