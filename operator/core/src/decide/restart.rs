//! Decides whether the whole MiniCluster restarts. Pure: the decision depends only on the observed objects.
//!
//! ```text
//! (status, Job, its pods) ─► Decision: count a restart and give the Job up | delete the given-up Job, or keep it
//!                                    | fail the Job | nothing
//! ```
//!
//! **A Job runs the user's program at most once**, unless it is suspended and resumed. (With `OnFailure`, the kubelet may
//! run it again, in the same pod.) A lead's pod that replaces another one runs nothing: its annotations count the earlier
//! pods. So every restart that is decided here is another Job. `status` counts the restart, with the uid of the Job that
//! is given up, before that Job is deleted: an operator that is killed at any step finds by the uid what has been done.
//! `Observation::now` is by the operator's own clock, so it is only compared with times that an operator has recorded.
//!
//! **The operator fails a Job with a failed index.** (By itself, a failed index fails the Job only after all indexes
//! have ended. With `OnFailure`, it fails the Job at once.) The Job controller then deletes all pods that still run,
//! with their logs. If a snippet (one of the user's commands around the program) has failed, the operator first asks
//! the other pods to end, by an annotation that their agents read. Their logs then stay.
//!
//! | event | restart |
//! | --- | --- |
//! | the lead's pod was removed before its program had ended, or never started | within `backoffLimit` |
//! | the job failed because a follower was removed | within `maxRestarts` |
//! | somebody deleted the Job | within `backoffLimit`; never if it waited in a queue, or if no operator noticed |
//! | the Job counted pods that a suspension stopped as failed | without a limit |
//! | the lead ended by itself (with `Never`, even if its pod was removed later), or with success | never |
//!
//! If the lead broker is in another cluster (bursting), index 0 is a follower: the Job replaces its pod. Only if it fails
//! the Job, the rows about the lead apply.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use flux_shared::crd::v1alpha2::{LostPod, MiniClusterStatus, Restart};
use flux_shared::exit::RETRIED;
use flux_shared::termination::Ender;
use k8s_openapi::jiff::Timestamp;

use crate::observe::job::{JobSeen, TrueCondition};
use crate::observe::pod::PodSeen;
use crate::observe::pod_end::{
    PodEnd, end_of, end_of_lead, is_follower_failed_by_itself, loss, was_stopped_by_suspension,
};
use crate::previous_status;
use crate::vocabulary::Reason;

mod record;

pub use record::{with_counted_restart, with_restart, without_mount_failure, without_pending_restart};

/// For this many seconds, the loss of a follower may be why the lead fails. (A rough bound. It matters mostly if the agent
/// did not learn the cause from Flux.)
const FOLLOWER_LOSS_WINDOW: i64 = 300;
/// The reason that the operator gives when it fails a Job that has not ended, although its MiniCluster has.
const ALREADY_ENDED: &str = "MiniClusterEnded";
/// At most this many annotated pods are awaited at the same time. The operator annotates each by a call of its own, the
/// lead first.
const ENDING_AT_ONCE: usize = 16;
/// Seconds after the first annotation. Later than this, no further pod is annotated: a rough bound, so that a large Job
/// whose pods end slowly fails at last.
const NOTIFY_WINDOW: i64 = 600;
/// Seconds that an annotated pod has to end. If no other pod is awaited or left to annotate, the operator then fails the
/// Job. The kubelet writes the annotation into the pod at once, or at its next sync of the pod, within 90 s.
pub const TIME_TO_END: i64 = 120;

/// Which limit a restart counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    Backoff,
    MaxRestarts,
    /// No limit: a person or a queue has suspended the Job, and thereby asked for the restart.
    None,
}

/// What to do with the Job as a whole.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Nothing about the Job as a whole: `next_action` decides what to create or change.
    Continue,
    /// Count a restart, then delete the Job if it exists: the next one is created when it is gone.
    Restart {
        job_uid: String,
        /// The Job still exists.
        job_exists: bool,
        reason: String,
        message: String,
        limit: Limit,
    },
    /// The restart has been counted before, or the pods cannot mount the view's image: delete the Job.
    Delete { job_uid: String },
    /// The status gives the Job up because a pod could not mount the view's image, but its program may have begun since:
    /// take that back.
    KeepJob { job_uid: String },
    /// Ask these pods to end by themselves, which keeps their logs: a snippet of another pod has failed. No pods: wait
    /// for those that were asked before.
    EndPods {
        job_uid: String,
        pods: Vec<String>,
        message: String,
    },
    /// Fail the Job: nothing may run again, and the Job controller would not end it.
    Fail {
        job_uid: String,
        reason: String,
        /// If it has the words `pod of index N`, `TrueCondition::index_of_pod` reads N from them.
        message: String,
    },
    /// The MiniCluster has ended, and no Job exists that could show it.
    Ended { reason: String, message: String },
    /// Pods of a Job that is gone still run: wait until they have ended before another Job is created.
    Wait,
}

/// The input of the decision.
#[derive(Debug)]
pub struct Observation<'a> {
    pub status: &'a MiniClusterStatus,
    /// False: another version or configuration of the operator created the Job. This one could create no other.
    pub is_spec_valid: bool,
    pub backoff_limit: i32,
    pub max_restarts: i32,
    /// The lead broker is in another cluster. Then index 0 is a follower, and the Job may replace its pod.
    pub lead_is_elsewhere: bool,
    /// `restartPolicy: OnFailure`: the kubelet restarts containers.
    pub restarts_on_failure: bool,
    pub min_size: Option<u32>,
    pub job: Option<&'a JobSeen>,
    /// The last Job that is gone, as last seen.
    pub last_job: Option<&'a JobSeen>,
    /// Pods of the Job, or of the last one that is gone.
    pub pods: Vec<&'a PodSeen>,
    /// Lead pods that are gone, as last seen.
    pub gone: Vec<&'a PodSeen>,
    pub now: Timestamp,
}

impl Observation<'_> {
    /// Whether a restart that counts against `limit` is allowed.
    pub fn may_restart(&self, limit: Limit) -> bool {
        let is_left = match limit {
            Limit::Backoff => self.status.backoff_limit_used < self.backoff_limit,
            Limit::MaxRestarts => self.status.max_restarts_used < self.max_restarts,
            Limit::None => true,
        };
        self.is_spec_valid && is_left
    }

    /// Why a restart that counts against `limit` is not allowed.
    pub fn why_no_restart(&self, limit: Limit) -> String {
        let (field, value) = match limit {
            Limit::Backoff if self.is_spec_valid => ("backoffLimit", self.backoff_limit),
            Limit::MaxRestarts if self.is_spec_valid => ("maxRestarts", self.max_restarts),
            _ => return "no restart, because the spec is not valid".to_owned(),
        };
        format!("no restart left: {field} is {value}")
    }
}

/// Whether this Job was given up: the restart that replaces it has been counted, or its pods cannot mount the view's
/// image. (No restart is counted for that, and the next Job copies the view. If the program may have begun,
/// [`Decision::KeepJob`] takes it back.) A Job that has succeeded does not count as given up: the MiniCluster ends with
/// it.
pub fn is_given_up(status: &MiniClusterStatus, job: &JobSeen) -> bool {
    !job.has_succeeded()
        && (is_restart_counted(status, &job.uid)
            || (job.mounts_view && previous_status::image_volume_failed(status)))
}

/// Whether the restart that replaces the Job with this uid has been counted.
pub fn is_restart_counted(status: &MiniClusterStatus, job_uid: &str) -> bool {
    counted_restart(status, job_uid).is_some()
}

/// The counted restart that replaces the Job with this uid.
pub fn counted_restart<'a>(status: &'a MiniClusterStatus, job_uid: &str) -> Option<&'a Restart> {
    let mut latest_first = status.restarts.iter().rev();
    latest_first.find(|restart| restart.job_uid.as_deref() == Some(job_uid))
}

/// Whether the program may have begun in this Job, although not all of its pods could mount the view's image. `pods`: the
/// Job's. `gone`: its leads that no longer exist.
pub fn may_have_begun(job: &JobSeen, pods: &[&PodSeen], gone: &[&PodSeen], min_size: Option<u32>) -> bool {
    let is_of_this_start = |pod: &&PodSeen| !was_stopped_by_suspension(job, pod);
    let has_run = |pod: &PodSeen| pod.is_running || pod.runner_ends > 0 || pod.exit.is_some();
    let pods = || pods.iter().copied().filter(is_of_this_start);
    let gone = || gone.iter().copied().filter(is_of_this_start);
    let has_begun = |lead: &PodSeen| {
        // If it replaces a lead that was not seen, that one may have run the program.
        let follows_unseen_lead = lead.replaces() && gone().next().is_none();
        lead.has_joined || lead.runner_ends > 0 || lead.exit.is_some() || follows_unseen_lead
    };
    // The probe that finds out whether the lead has joined is later than the program, which begins as soon as enough
    // brokers are online.
    let quorum = job.quorum(min_size);
    let running: BTreeSet<u32> = pods().filter(|pod| has_run(pod)).map(|pod| pod.index).collect();
    job.has_lead_index_failed
        || gone().any(has_run)
        || pods().any(|pod| pod.index == 0 && has_begun(pod))
        || (running.contains(&0) && running.len() >= usize::try_from(quorum).unwrap_or(usize::MAX))
}

/// The Job as the status sees it. The operator deletes a Job that was given up, so such a Job counts as being deleted.
/// Its end is not the MiniCluster's end.
pub fn without_end_if_given_up<'a>(status: &MiniClusterStatus, job: &'a JobSeen) -> Cow<'a, JobSeen> {
    if !is_given_up(status, job) {
        return Cow::Borrowed(job);
    }
    Cow::Owned(JobSeen {
        is_deleting: true,
        complete: None,
        failed: None,
        failing: None,
        ..job.clone()
    })
}

/// The followers that were removed while the job may have run on them, as the status records them. The latest comes
/// first.
fn lost_followers<'a>(observation: &Observation<'a>) -> impl Iterator<Item = &'a LostPod> {
    let lost_pods = observation.status.lost_pods.iter();
    lost_pods.rev().filter(|lost| lost.index > 0)
}

/// Whether the pod was lost less than `FOLLOWER_LOSS_WINDOW` ago.
fn is_recent(observation: &Observation, lost: &LostPod) -> bool {
    let lost_at = lost.time.parse::<Timestamp>().ok();
    lost_at.is_some_and(|lost_at| {
        (0..=FOLLOWER_LOSS_WINDOW).contains(&(observation.now.as_second() - lost_at.as_second()))
    })
}

/// Whether another pod has replaced the lost one, and is ready.
fn is_back(observation: &Observation, lost: &LostPod) -> bool {
    observation
        .pods
        .iter()
        .any(|pod| i64::from(pod.index) == i64::from(lost.index) && pod.name != lost.name && pod.is_ready)
}

/// The follower whose loss may be why the job failed, although Flux has reported no loss: it was lost recently, and its
/// new pod is not ready yet.
fn recently_lost_follower<'a>(observation: &Observation<'a>) -> Option<&'a LostPod> {
    lost_followers(observation).find(|lost| is_recent(observation, lost) && !is_back(observation, lost))
}

/// The follower that Flux has reported as lost: the latest that was lost recently, or else one that is still missing.
/// None: no record is about it, or a pod on a silent node is the likelier one.
fn follower_lost_by_flux<'a>(observation: &Observation<'a>) -> Option<&'a LostPod> {
    let recent = lost_followers(observation).find(|lost| is_recent(observation, lost));
    let mut followers = observation.pods.iter().filter(|pod| pod.index > 0);
    if recent.is_some() || followers.any(|pod| pod.is_on_silent_node) {
        return recent;
    }
    let job = observation.job.or(observation.last_job);
    let size = job.map_or(0, |job| i64::from(job.completions));
    lost_followers(observation).find(|lost| i64::from(lost.index) < size && !is_back(observation, lost))
}

/// The loss of a follower that failed the lead's job.
#[derive(Debug, Clone, Copy)]
pub struct FollowerLoss<'a> {
    /// None: which pod was lost is not known.
    pub pod: Option<&'a LostPod>,
}

/// The loss of a follower, if it is why the job of a lead that has ended failed. `end`: how the lead ended.
pub fn loss_that_ended_the_lead<'a>(
    observation: &Observation<'a>,
    lead: &PodSeen,
    end: PodEnd,
) -> Option<FollowerLoss<'a>> {
    // If a follower has failed by itself, that is the cause, and not the loss of one.
    if observation
        .pods
        .iter()
        .any(|pod| is_follower_failed_by_itself(pod))
    {
        return None;
    }
    match end {
        // Flux itself has reported to the lead's agent that it lost a follower.
        PodEnd::NodeFailure => Some(FollowerLoss {
            pod: follower_lost_by_flux(observation),
        }),
        // An end by the agent, by a snippet or by a shutdown of the instance is not the loss of a follower.
        PodEnd::FailedByItself
            if lead
                .exit
                .as_ref()
                .and_then(|exit| exit.termination.as_ref())
                .is_none_or(|termination| termination.by == Ender::Program && !termination.shut_down) =>
        {
            recently_lost_follower(observation).map(|pod| FollowerLoss { pod: Some(pod) })
        }
        _ => None,
    }
}

/// Describes a lost pod: its index and node, and what removed it.
pub fn describe_loss(lost: &LostPod) -> String {
    let pod = if lost.index == 0 {
        "the lead's pod".to_owned()
    } else {
        format!("the pod of index {}", lost.index)
    };
    let node = lost
        .node
        .as_deref()
        .map(|node| format!(" on node {node}"))
        .unwrap_or_default();
    let detail = if lost.message.is_empty() {
        String::new()
    } else {
        format!(": {}", lost.message)
    };
    format!("{pod}, {}{node}, was lost ({}{detail})", lost.name, lost.reason)
}

/// Describes the loss of a follower that made the job fail: by its record, by a pod on a node that does not respond, or
/// else by the lead's message.
pub fn describe_lost_follower(lost: Option<&LostPod>, pods: &[&PodSeen]) -> String {
    if let Some(lost) = lost {
        return format!("{} while the job ran on it", describe_loss(lost));
    }
    let mut followers = pods.iter().filter(|pod| pod.index > 0 && pod.is_on_silent_node);
    if let Some((pod, node)) = followers.find_map(|pod| Some((pod, pod.node.as_deref()?))) {
        let (index, name) = (pod.index, &pod.name);
        return format!(
            "the pod of index {index}, {name}, is on node {node}, which has stopped responding while the job ran on it"
        );
    }
    let lead = pods
        .iter()
        .filter(|pod| pod.index == 0)
        .find_map(|pod| pod.exit.as_ref());
    let detail = lead
        .filter(|exit| !exit.message.is_empty())
        .map(|exit| format!(": {}", exit.message));
    format!(
        "a follower was lost while the job ran on it{}",
        detail.unwrap_or_default()
    )
}

/// Decides what to do with the Job as a whole.
pub fn decide(observation: &Observation) -> Decision {
    if previous_status::is_finished(observation.status) {
        return after_the_end(observation);
    }
    match observation.job {
        Some(job) if job.is_deleting => Decision::Continue,
        Some(job) if job.has_succeeded() => Decision::Continue,
        Some(job) if is_given_up(observation.status, job) => {
            let job_uid = job.uid.clone();
            let has_begun =
                || may_have_begun(job, &observation.pods, &observation.gone, observation.min_size);
            if is_restart_counted(observation.status, &job_uid) || !has_begun() {
                Decision::Delete { job_uid }
            } else {
                Decision::KeepJob { job_uid }
            }
        }
        Some(job) => decide_with_job(observation, job),
        None => decide_without_job(observation),
    }
}

/// The decision for a MiniCluster that has ended. The Job controller replaces a lead's pod that was evicted or
/// stopped by a suspension, even one that had succeeded. Only the operator can end the new pod and its followers.
fn after_the_end(observation: &Observation) -> Decision {
    let is_open = |job: &&JobSeen| {
        !job.is_deleting && !job.is_finished() && !job.has_succeeded() && job.failing.is_none()
    };
    // After a suspension, the annotations of the new pod may count no earlier pod, so `replaces` is not enough.
    // A pod with an `exit` does not run the program any more.
    let is_living = |pod: &PodSeen| !pod.has_ended && !pod.is_deleting && pod.exit.is_none();
    let is_replaced = || {
        observation
            .pods
            .iter()
            .any(|pod| pod.index == 0 && (pod.replaces() || is_living(pod)))
    };
    match observation.job.filter(is_open) {
        // A suspended Job would run the program again when it is resumed.
        Some(job) if job.is_suspended || is_replaced() => Decision::Fail {
            job_uid: job.uid.clone(),
            reason: ALREADY_ENDED.into(),
            message: "the MiniCluster has ended, and this Job would start its program again".into(),
        },
        _ => Decision::Continue,
    }
}

/// The decision if there is no Job. Somebody may have deleted it.
fn decide_without_job(observation: &Observation) -> Decision {
    // Which Job is gone? Before a status names a Job, the operator itself may have deleted it, after an edit of the spec;
    // but not once a container has started. (A success also counts: the pods may be gone before this operator saw them.)
    let has_started_container = observation
        .gone
        .iter()
        .chain(&observation.pods)
        .any(|pod| pod.has_begun);
    let has_begun = |last: &JobSeen| has_started_container || last.has_succeeded();
    let last = observation
        .last_job
        .filter(|last| has_begun(last) && !is_given_up(observation.status, last));
    let Some(uid) = observation
        .status
        .job_uid
        .clone()
        .or(last.map(|last| last.uid.clone()))
    else {
        return Decision::Continue;
    };
    let last = last.filter(|last| last.uid == uid);
    let leads = leads(observation);
    if last.is_some_and(JobSeen::has_succeeded)
        || leads.iter().any(|(_, end)| *end == Some(PodEnd::Succeeded))
    {
        let message = "the job ended with exit code 0; the Job was deleted later".to_owned();
        return Decision::Ended {
            reason: Reason::Completed.into(),
            message,
        };
    }
    // The restart that replaces this Job is already counted: create the next Job.
    if is_restart_counted(observation.status, &uid) {
        return Decision::Continue;
    }
    // No restart, even if a limit allows one: a user who deletes a failed Job wants no other.
    if let Some(lead) = first_lead(&leads, is_failure) {
        return Decision::Ended {
            reason: Reason::JobFailed.into(),
            message: ended_by_itself(lead),
        };
    }
    if observation.pods.iter().any(|pod| !pod.has_ended) {
        return Decision::Wait;
    }
    // If the status says that the operator waits for pods of a deleted Job, an operator ran after the deletion.
    let last_seen = observation.last_job.filter(|last| last.uid == uid);
    if last_seen.is_none() && leads.is_empty() && !previous_status::waits_for_pods(observation.status) {
        return Decision::Ended {
            reason: Reason::JobDeleted.into(),
            message: DELETED_UNSEEN.into(),
        };
    }
    // Before it was deleted, the Job was failing for good: not because of how a pod ended.
    if let Some(failed) = last
        .and_then(|last| last.failing.as_ref())
        .filter(|failed| !is_by_pods_end(observation, failed))
    {
        return Decision::Ended {
            reason: failed.reason.clone(),
            message: failed.message.clone(),
        };
    }
    if replaces_unseen(observation, &leads) {
        return Decision::Ended {
            reason: Reason::LeadLost.into(),
            message: MAY_HAVE_ENDED.into(),
        };
    }
    // Kueue may delete a Job that it admits no more. Another one would queue, and perhaps run, again and again.
    if last_seen.is_some_and(|last| last.is_suspended && last.queue.is_some()) {
        return Decision::Ended {
            reason: Reason::JobDeleted.into(),
            message: DELETED_IN_QUEUE.into(),
        };
    }
    let message = "the Job was deleted before it had finished".to_owned();
    restart_or_end(
        observation,
        JobToReplace {
            job_uid: uid,
            job_exists: false,
            is_failing: false,
        },
        Reason::JobDeleted,
        message,
        Limit::Backoff,
    )
}

/// The message if this operator has seen neither the deleted Job nor a pod of its lead. The program may have succeeded.
const DELETED_UNSEEN: &str = "the Job and its pods were deleted while no operator ran, so whether the program had ended is unknown, and it is not restarted: delete the MiniCluster and apply it again to run it";
/// The message if the deleted Job was suspended by its queue.
const DELETED_IN_QUEUE: &str = "the Job was deleted while it waited in its queue, by Kueue (objectRetentionPolicies) or by a person, so it is not recreated: delete the MiniCluster and apply it again to run it";
/// The message if a lead's pod replaces a failed one whose end this operator has not seen.
const MAY_HAVE_ENDED: &str = "an earlier pod of the lead has failed and is gone: its program may have ended by itself, so it is not restarted";

/// Whether a lead's pod replaces one that failed and that this operator has not seen end.
fn replaces_unseen(observation: &Observation, leads: &[(&PodSeen, Option<PodEnd>)]) -> bool {
    let replaces = |pod: &PodSeen| replaces_failed(observation, pod);
    // Another pod of the lead that was seen, and that has not failed by itself.
    let is_known = |(pod, end): &(&PodSeen, Option<PodEnd>)| {
        !replaces(pod) && matches!(end, Some(PodEnd::NotStarted { .. } | PodEnd::Removed))
    };
    // The status lists a lost pod of the lead, so an operator has seen the end of that pod.
    let is_remembered = observation.status.lost_pods.iter().any(|lost| lost.index == 0);
    leads.iter().any(|(pod, _)| replaces(pod)) && !leads.iter().any(is_known) && !is_remembered
}

/// Whether the Job counts the pod that this lead replaces as failed: its program may have ended by itself. (With
/// `OnFailure`, the kubelet restarts a program that fails, in the same pod.) If the Job counts a disruption as well, it
/// is not known which of the two pods ran the program: then the lead counts as lost, and the MiniCluster restarts.
fn replaces_failed(observation: &Observation, lead: &PodSeen) -> bool {
    !observation.lead_is_elsewhere
        && lead.index_failures > 0
        && lead.index_disruptions == 0
        && !observation.restarts_on_failure
}

/// All pods of index 0, those that are gone first, and how each ended. None: it still runs.
pub(crate) fn leads<'a>(observation: &Observation<'a>) -> Vec<(&'a PodSeen, Option<PodEnd>)> {
    let job = observation.job.or(observation.last_job);
    let end_of = |pod| end_of_lead(pod, job, observation.lead_is_elsewhere);
    let gone = observation
        .gone
        .iter()
        .map(|pod| (*pod, end_of(pod).or(Some(PodEnd::Removed))));
    let present = observation
        .pods
        .iter()
        .filter(|pod| pod.index == 0)
        .map(|pod| (*pod, end_of(pod)));
    gone.chain(present).collect()
}

/// The first lead whose end satisfies `is_wanted`.
fn first_lead<'a>(
    leads: &[(&'a PodSeen, Option<PodEnd>)],
    is_wanted: fn(PodEnd) -> bool,
) -> Option<&'a PodSeen> {
    leads
        .iter()
        .find(|(_, end)| end.is_some_and(is_wanted))
        .map(|(pod, _)| *pod)
}

/// Whether a lead has failed, and was not just lost.
pub(crate) fn is_failure(end: PodEnd) -> bool {
    matches!(
        end,
        PodEnd::FailedByItself
            | PodEnd::NodeFailure
            | PodEnd::NotStarted {
                new_pod_may_start: false
            }
    )
}

/// The decision for a Job that exists, has not succeeded and was not given up.
fn decide_with_job(observation: &Observation, job: &JobSeen) -> Decision {
    let all_leads = leads(observation);
    if first_lead(&all_leads, |end| end == PodEnd::Succeeded).is_some() {
        return Decision::Continue;
    }
    // A Job that fails for another reason than how a pod ended fails for good: the deadline, followers that do not
    // start, or a reason of the operator's own.
    let failing = job.failing.as_ref().or(job.failed.as_ref());
    if failing.is_some_and(|failing| !is_by_pods_end(observation, failing)) {
        return Decision::Continue;
    }
    let is_failing = failing.is_some();
    let to_replace = || JobToReplace {
        job_uid: job.uid.clone(),
        job_exists: true,
        is_failing,
    };
    let has_replacement = all_leads.iter().any(|(pod, _)| pod.replaces());
    if let Some((lead, end)) = all_leads
        .iter()
        .find_map(|(pod, end)| end.filter(|end| is_failure(*end)).map(|end| (*pod, end)))
    {
        return when_lead_ended(observation, to_replace(), lead, end, has_replacement);
    }
    if let Some(follower) = observation
        .pods
        .iter()
        .find(|pod| is_follower_failed_by_itself(pod))
    {
        return when_follower_failed(observation, to_replace(), follower);
    }
    // After a resume, a lead that the suspension stopped says nothing about the new start. But until the Job controller
    // has replaced it, the Job may still fail because of it.
    let mut leads = all_leads.clone();
    leads.retain(|(pod, end)| *end != Some(PodEnd::Removed) || !was_stopped_by_suspension(job, pod));
    if job.is_suspended || (leads.is_empty() && !all_leads.is_empty()) {
        return when_suspended(observation, job, to_replace());
    }
    let replacement = if observation.lead_is_elsewhere {
        None
    } else {
        leads.iter().map(|(pod, _)| *pod).find(|pod| pod.replaces())
    };
    // Until the Job fails or replaces the pod, wait. The replacement of a lead's pod runs nothing, so it does not help.
    if let Some(lead) = first_lead(&leads, |end| {
        matches!(
            end,
            PodEnd::NotStarted {
                new_pod_may_start: true
            }
        )
    }) && (is_failing || replacement.is_some())
    {
        let (reason, detail) = match &lead.trouble {
            Some(trouble) => (trouble.reason.as_str(), trouble.message.as_str()),
            None => (Reason::NotStarted.name(), ""),
        };
        let message = format!("the lead's pod, {}, did not start: {detail}", lead.name);
        return restart_or_end(observation, to_replace(), reason, message, Limit::Backoff);
    }
    // If a follower made the Job fail, the Job controller deletes the lead's pod. Then the lead was not lost. The watch
    // of Jobs may lag behind, so a removed pod alone proves no loss, unless it was disrupted.
    let failed_index = failing.and_then(TrueCondition::index_of_pod);
    let by_follower = failed_index.is_some_and(|index| index > 0);
    let may_be_lost = (is_failing && !by_follower) || job.has_lead_index_failed || replacement.is_some();
    if let Some(lead) = first_lead(&leads, |end| end == PodEnd::Removed)
        && (may_be_lost || (lead.is_disrupted() && !observation.lead_is_elsewhere))
    {
        return restart_or_end(
            observation,
            to_replace(),
            Reason::LeadLost,
            describe_loss(&loss(lead)),
            Limit::Backoff,
        );
    }
    // The lead's pod that was lost may not be known any more. Then only the status lists it.
    let recorded_loss = observation
        .status
        .lost_pods
        .iter()
        .rev()
        .find(|lost| lost.index == 0);
    if (replacement.is_some() || (may_be_lost && !has_living_lead(&leads)))
        && let Some(lost) = recorded_loss
    {
        return restart_or_end(
            observation,
            to_replace(),
            Reason::LeadLost,
            describe_loss(lost),
            Limit::Backoff,
        );
    }
    if let Some(lead) = replacement {
        return when_lead_replaced(observation, to_replace(), lead);
    }
    // A follower was removed, and killed before it could leave the instance. A lead that still seems to run may have
    // succeeded: the failing Job ends it, and then its exit code is known.
    let has_removed_follower = || {
        observation
            .pods
            .iter()
            .any(|pod| pod.index > 0 && end_of(pod) == Some(PodEnd::Removed))
    };
    // The Job's message alone does not prove that a follower was lost: the follower may have failed by itself, and the
    // watch of pods may lag behind.
    let is_for_follower = || {
        failed_index != Some(0) && (has_removed_follower() || recently_lost_follower(observation).is_some())
    };
    if is_failing && !has_living_lead(&leads) && is_for_follower() {
        let message = describe_lost_follower(
            follower_lost_by_failing_job(observation).as_ref(),
            &observation.pods,
        );
        return restart_or_end(
            observation,
            to_replace(),
            Reason::PodLost,
            message,
            Limit::MaxRestarts,
        );
    }
    if is_failing {
        return Decision::Continue;
    }
    if let Some(index) = index_that_never_starts(observation) {
        return Decision::Fail {
            job_uid: job.uid.clone(),
            reason: Reason::MaxFailedIndexesExceeded.into(),
            message: format!("the pod of index {index} did not start"),
        };
    }
    match job.has_lead_index_failed.then_some(0).or(job.failed_index) {
        Some(index) => when_index_failed(observation, to_replace(), index),
        None => Decision::Continue,
    }
}

/// The index of a follower that failed to start more often than `backoffLimit` allows. The Job's own limit for each
/// index is at least `REPLACEMENTS` (`render::job`), since it also counts the pods that were lost.
fn index_that_never_starts(observation: &Observation) -> Option<u32> {
    // With `OnFailure`, the Job's own limit for each index is `backoffLimit`, so the Job itself fails.
    if observation.restarts_on_failure {
        return None;
    }
    let mut failures = BTreeMap::new();
    let is_follower = |pod: &PodSeen| pod.index > 0 || observation.lead_is_elsewhere;
    let followers = observation.pods.iter().filter(|pod| is_follower(pod));
    for pod in followers.filter(|pod| {
        end_of(pod)
            == Some(PodEnd::NotStarted {
                new_pod_may_start: true,
            })
    }) {
        *failures.entry(pod.index).or_insert(0_i32) += 1;
    }
    failures
        .into_iter()
        .find_map(|(index, number)| (number > observation.backoff_limit).then_some(index))
}

/// Whether a Job fails because of how a pod ended, and not because of a limit or for another reason that the operator
/// has set. `condition`: the Job's condition Failed or FailureTarget.
pub fn is_by_pods_end(observation: &Observation, condition: &TrueCondition) -> bool {
    let has_own_end = || {
        let is_own = |(_, end): &(&PodSeen, Option<PodEnd>)| {
            matches!(end, Some(PodEnd::FailedByItself | PodEnd::NodeFailure))
        };
        leads(observation).iter().any(is_own)
            || observation
                .pods
                .iter()
                .any(|pod| is_follower_failed_by_itself(pod))
    };
    // With `OnFailure`, the pods that a drain stops count against the Job's limit, and a suspension may follow the
    // drain. A disrupted lead shows such a drain: the Job controller does not mark the pods that it deletes as
    // disrupted. (It does not count the pods that it deletes for a suspension.)
    let was_lead_stopped = || {
        let leads = leads(observation);
        let is_of_earlier_start = |pod: &PodSeen| {
            observation
                .job
                .is_some_and(|job| was_stopped_by_suspension(job, pod))
        };
        // After a resume, this holds only until there is a lead of the new start.
        let was_suspended = observation.job.is_some_and(|job| job.is_suspended)
            || leads.iter().all(|(pod, _)| is_of_earlier_start(pod));
        let is_stopped = |(pod, end): &(&PodSeen, Option<PodEnd>)| {
            *end == Some(PodEnd::Removed)
                && (was_suspended || (pod.is_disrupted() && !is_of_earlier_start(pod)))
        };
        observation.restarts_on_failure && !has_own_end() && leads.iter().any(is_stopped)
    };
    // With a failure policy (which a Job has unless it is `OnFailure`), an index fails with its first pod that is not
    // retried, even one that was removed. In a Job of one pod, the Job then fails with the reason FailedIndexes.
    condition.reason == Reason::PodFailurePolicy
        || (condition.reason == Reason::FailedIndexes && (!observation.restarts_on_failure || has_own_end()))
        || (condition.reason == Reason::BackoffLimitExceeded && was_lead_stopped())
}

/// The decision when a follower has failed by itself.
fn when_follower_failed(observation: &Observation, to_replace: JobToReplace, follower: &PodSeen) -> Decision {
    // With `OnFailure`, the Job handles the failure.
    if to_replace.is_failing || observation.restarts_on_failure {
        return Decision::Continue;
    }
    end_pods_or_fail(observation, to_replace, follower)
}

/// The decision when an index has failed for a cause that its pods do not show: they are gone, were killed,
/// or did not start.
fn when_index_failed(observation: &Observation, to_replace: JobToReplace, index: u32) -> Decision {
    let pods = || observation.pods.iter().filter(|pod| pod.index == index);
    if pods().any(|pod| !pod.has_ended) {
        // The watch of pods lags behind.
        return Decision::Continue;
    }
    // Each pod counts the failed pods of its index before it, so the last one has the largest count.
    let last = pods().max_by_key(|pod| pod.index_failures);
    // The Job retries a pod without an exit code, or with a code in `RETRIED`. So no retry was left for the index.
    let has_no_retry_left =
        last.is_some_and(|pod| pod.exit.as_ref().is_none_or(|exit| is_retried(exit.code)));
    let (reason, code) = match last.and_then(|pod| pod.exit.as_ref()) {
        _ if has_no_retry_left => (Reason::MaxFailedIndexesExceeded, None),
        exit => (Reason::PodFailurePolicy, exit.map(|exit| exit.code)),
    };
    let code = code
        .map(|code| format!(" with exit code {code}"))
        .unwrap_or_default();
    let message = format!("the pod of index {index} ended{code}");
    Decision::Fail {
        job_uid: to_replace.job_uid,
        reason: reason.into(),
        message,
    }
}

/// Fails the Job because of how the pod `failed` ended. If a snippet has failed, the other pods are first asked to end,
/// which keeps their logs.
fn end_pods_or_fail(observation: &Observation, to_replace: JobToReplace, failed: &PodSeen) -> Decision {
    let job_uid = to_replace.job_uid;
    // A pod that was asked to end also counts as failed by itself, so `failed` may be such a pod. The cause is the pod
    // whose snippet has failed.
    let by_snippet = std::iter::once(failed)
        .chain(observation.pods.iter().copied())
        .find_map(|pod| {
            let termination = pod.exit.as_ref()?.termination.as_ref()?;
            (pod.has_ended && termination.by == Ender::Snippet && termination.code != 0)
                .then_some((pod, termination))
        });
    let failed = by_snippet.map_or(failed, |(pod, _)| pod);
    if let Some((_, termination)) = by_snippet {
        let mut living: Vec<&PodSeen> = observation
            .pods
            .iter()
            .copied()
            .filter(|pod| can_end(pod))
            .collect();
        living.sort_by_key(|pod| pod.index);
        let is_within = |notified_at: Timestamp, limit: i64| {
            observation.now.as_second() - notified_at.as_second() < limit
        };
        let is_ending = |pod: &&&PodSeen| {
            pod.end_requested
                .is_some_and(|notified_at| is_within(notified_at, TIME_TO_END))
        };
        let ending = living.iter().filter(is_ending).count();
        let first_notified = observation.pods.iter().filter_map(|pod| pod.end_requested).min();
        let may_notify = first_notified.is_none_or(|notified_at| is_within(notified_at, NOTIFY_WINDOW));
        let not_notified = living
            .iter()
            .filter(|pod| may_notify && pod.end_requested.is_none());
        let pods: Vec<String> = not_notified
            .take(ENDING_AT_ONCE.saturating_sub(ending))
            .map(|pod| pod.name.clone())
            .collect();
        if !pods.is_empty() || ending > 0 {
            let name = termination.snippet.as_deref().unwrap_or("of the container");
            let message = format!(
                "the snippet {name} of the pod of index {} ended with exit code {}",
                failed.index, termination.code
            );
            return Decision::EndPods {
                job_uid,
                pods,
                message,
            };
        }
    }
    let code = failed
        .exit
        .as_ref()
        .map(|exit| format!(" with exit code {}", exit.code))
        .unwrap_or_default();
    let message = format!("the pod of index {} ended{code}", failed.index);
    Decision::Fail {
        job_uid,
        reason: Reason::PodFailurePolicy.into(),
        message,
    }
}

/// Whether the pod has a log to keep, and an agent that can end it.
fn can_end(pod: &PodSeen) -> bool {
    pod.has_begun && !pod.has_ended && !pod.is_deleting && !pod.is_on_silent_node && pod.kept_by.is_none()
}

/// Whether the Job's failure policy retries a pod with this exit code. (If the pod is labelled as the lead's, such a
/// code fails the Job.)
fn is_retried(code: i32) -> bool {
    RETRIED.iter().any(|retried| i32::from(*retried) == code)
}

/// The follower that a failing Job has lost: as the status records it, or as its pod still shows. The one that the Job
/// names comes first.
pub fn follower_lost_by_failing_job(observation: &Observation) -> Option<LostPod> {
    let removed = observation
        .pods
        .iter()
        .filter(|pod| pod.index > 0 && end_of(pod) == Some(PodEnd::Removed))
        .map(|pod| loss(pod));
    let lost: Vec<LostPod> = lost_followers(observation).cloned().chain(removed).collect();
    let failing = observation
        .job
        .and_then(|job| job.failing.as_ref().or(job.failed.as_ref()));
    let failed_index = failing.and_then(TrueCondition::index_of_pod).map(i64::from);
    lost.iter()
        .find(|lost| failed_index == Some(i64::from(lost.index)))
        .or(lost.first())
        .cloned()
}

/// The decision for a suspended Job, or for a Job that was resumed while pods that the suspension had stopped still
/// existed. The Job may have counted these pods as failed. An index that has failed for good would get no pod when the
/// Job is resumed.
fn when_suspended(observation: &Observation, job: &JobSeen, to_replace: JobToReplace) -> Decision {
    if !to_replace.is_failing && !job.has_lead_index_failed && job.failed_index.is_none() {
        return Decision::Continue;
    }
    let (reason, cause) = if job.queue.is_some() {
        (Reason::Requeued, "the queue stopped the pods")
    } else {
        (
            Reason::Suspended,
            "the pods were stopped to suspend the MiniCluster",
        )
    };
    let message = format!("{cause}, which the Job counted as a failure");
    restart_or_end(observation, to_replace, reason, message, Limit::None)
}

fn has_living_lead(leads: &[(&PodSeen, Option<PodEnd>)]) -> bool {
    leads.iter().any(|(_, end)| end.is_none())
}

/// The decision when a lead has failed (`is_failure`).
fn when_lead_ended(
    observation: &Observation,
    to_replace: JobToReplace,
    lead: &PodSeen,
    end: PodEnd,
    is_replaced: bool,
) -> Decision {
    // If no restart is left, the lead's own failure counts, as without a loss.
    if let Some(loss) = loss_that_ended_the_lead(observation, lead, end)
        && observation.may_restart(Limit::MaxRestarts)
    {
        let message = describe_lost_follower(loss.pod, &observation.pods);
        return restart_or_end(
            observation,
            to_replace,
            Reason::PodLost,
            message,
            Limit::MaxRestarts,
        );
    }
    if to_replace.is_failing {
        return Decision::Continue;
    }
    // With `OnFailure`, the lead waited for its next restart when its pod was lost.
    if observation.restarts_on_failure && !lead.is_shut_down && (lead.is_disrupted() || is_replaced) {
        let message = describe_loss(&loss(lead));
        return restart_or_end(observation, to_replace, Reason::LeadLost, message, Limit::Backoff);
    }
    // The Job ignores a pod that was also disrupted, and does not fail by one that it has replaced. If a lead is not
    // labelled yet, the Job retries some exit codes. With `OnFailure`, after a shutdown of the instance, the Job would
    // fail only when the container had restarted `backoffLimit` times.
    let is_passed_over_by_job = lead.is_disrupted()
        || is_replaced
        || lead.is_shut_down
        || (!lead.is_labelled && lead.exit.as_ref().is_some_and(|exit| is_retried(exit.code)));
    if !is_passed_over_by_job {
        // The kubelet may restart the lead's container, or a foreign container still runs in the pod, which is kept for
        // its log.
        let stays = observation.restarts_on_failure || lead.kept_by.is_some();
        return if stays {
            Decision::Continue
        } else {
            end_pods_or_fail(observation, to_replace, lead)
        };
    }
    Decision::Fail {
        job_uid: to_replace.job_uid,
        reason: Reason::LeadFailed.into(),
        message: ended_by_itself(lead),
    }
}

fn ended_by_itself(lead: &PodSeen) -> String {
    let code = lead
        .exit
        .as_ref()
        .map(|exit| format!(" with exit code {}", exit.code))
        .unwrap_or_default();
    format!("the lead (index 0) ended{code}; it is not restarted")
}

/// The decision when a lead's pod replaces one that this operator has not seen end.
fn when_lead_replaced(observation: &Observation, to_replace: JobToReplace, lead: &PodSeen) -> Decision {
    if !replaces_failed(observation, lead) {
        let message = format!("an earlier pod of the lead was lost; {} replaced it", lead.name);
        return restart_or_end(observation, to_replace, Reason::LeadLost, message, Limit::Backoff);
    }
    if to_replace.is_failing {
        return Decision::Continue;
    }
    Decision::Fail {
        job_uid: to_replace.job_uid,
        reason: Reason::LeadLost.into(),
        message: MAY_HAVE_ENDED.into(),
    }
}

/// The Job that a restart would replace.
struct JobToReplace {
    job_uid: String,
    /// The Job still exists.
    job_exists: bool,
    /// The Job has failed, or is about to fail.
    is_failing: bool,
}

/// Restarts if that is allowed. Otherwise the MiniCluster ends, unless it can wait for a valid spec.
fn restart_or_end(
    observation: &Observation,
    to_replace: JobToReplace,
    reason: impl Into<String>,
    message: String,
    limit: Limit,
) -> Decision {
    let JobToReplace {
        job_uid,
        job_exists,
        is_failing,
    } = to_replace;
    let reason = reason.into();
    if observation.may_restart(limit) {
        return Decision::Restart {
            job_uid,
            job_exists,
            reason,
            message,
            limit,
        };
    }
    // Without pods there is time: the spec may be valid again before anything runs. Until then, the status says that it
    // is not valid.
    let has_no_pods = !job_exists || observation.job.is_some_and(|job| job.is_suspended);
    if !observation.is_spec_valid && has_no_pods {
        return Decision::Continue;
    }
    let message = format!("{message}; {}", observation.why_no_restart(limit));
    match (job_exists, is_failing) {
        (false, _) => Decision::Ended { reason, message },
        (true, false) => Decision::Fail {
            job_uid,
            reason,
            message,
        },
        // The Job ends without the operator.
        (true, true) => Decision::Continue,
    }
}

#[cfg(test)]
mod tests;
