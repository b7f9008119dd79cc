//! Computes a MiniCluster's status from the observed objects and the time. Pure.
//!
//! ```text
//! Inputs ─► outcome (why it failed, or does not start) ─► conditions ─► phase, sizes, exit code ─► MiniClusterStatus
//! ```
//!
//! The Job shows whether the job has ended, and the pods show why. A condition's time is when its status last changed.
//! It is Kubernetes' time if Kubernetes records one, otherwise the operator's.

use std::collections::BTreeSet;

use flux_shared::crd::v1alpha2::{Condition, ConditionStatus, MiniClusterStatus, Timeline};
use flux_shared::names;
use flux_shared::phase::Phase;
use flux_shared::validate::{Problem, ValidMiniCluster};
use k8s_openapi::jiff::Timestamp;

use crate::decide::restart;
use crate::labels;
use crate::observe::ServicesPodSeen;
use crate::observe::job::JobSeen;
use crate::observe::pod::{Exit, PodSeen, Trouble};
use crate::observe::pod_end::{PodEnd, end_of_lead, was_stopped_by_suspension};
use crate::observe::storage::DiskSeen;
use crate::render;
use crate::vocabulary::{ConditionType, Reason};

pub use super::obstacle::Obstacle;
pub use super::previous_status::{condition, image_volume_failed, is_finished};
use super::previous_status::{has_been_ready, has_begun, is_cleaned_up, is_true, rfc3339, short};

mod conditions;
pub mod events;
mod outcome;
pub mod patch;
mod post;

use outcome::Outcome;

/// The result of the validation of the spec.
#[derive(Debug, Clone, Copy)]
pub enum CheckedSpec<'a> {
    Valid(&'a ValidMiniCluster),
    Invalid(&'a [Problem]),
}

impl CheckedSpec<'_> {
    /// Whether the lead broker is in another cluster.
    fn has_lead_elsewhere(&self) -> bool {
        matches!(self, CheckedSpec::Valid(cluster) if cluster.flux.lead.is_some())
    }

    fn min_size(&self) -> Option<u32> {
        match self {
            CheckedSpec::Valid(cluster) => cluster.min_size,
            CheckedSpec::Invalid(_) => None,
        }
    }
}

/// Everything that a status depends on.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// The MiniCluster's name.
    pub name: &'a str,
    pub generation: Option<i64>,
    pub is_deleting: bool,
    pub spec: CheckedSpec<'a>,
    /// The view's image. Empty if the spec is not valid.
    pub view_image: &'a str,
    /// The status before this one.
    pub previous: &'a MiniClusterStatus,
    /// The MiniCluster's Job. Its end may be one that the operator has decided (`decide::ending`). A Job that was given
    /// up counts as being deleted, and has no end. None: there is no Job. (If the MiniCluster ends while there is none,
    /// this is one made up with that end.)
    pub job: Option<&'a JobSeen>,
    /// Hash of the current spec ([`Target::spec_hash`](crate::target::Target::spec_hash)).
    pub spec_hash: Option<&'a str>,
    /// Pods of the Job that exist.
    pub pods: Vec<&'a PodSeen>,
    /// Lead pods of the Job that no longer exist, as last seen.
    pub gone: Vec<&'a PodSeen>,
    /// The services pod, if it is the MiniCluster's own.
    pub services_pod: Option<&'a ServicesPodSeen>,
    /// Why this reconcile could not be completed, if so.
    pub obstacle: Option<&'a Obstacle>,
    /// Whether every node that the pods may use is known to support image volumes.
    pub nodes_mount_images: bool,
    /// The node because of which the view is copied: the pods may use this node, and it cannot mount images, while
    /// other nodes can. None: there is no such node, or the nodes do not decide.
    pub copied_for: Option<&'a str>,
    /// The cluster's CSI volumes. None if the spec is not valid, or if the PersistentVolumes or storage
    /// classes have not been listed yet.
    pub disks: Option<Vec<DiskSeen>>,
    /// The last warning event about the Job or a pod that waits, or Kueue's reason. It is read only if no status says
    /// why the object waits.
    pub warning: Option<&'a Trouble>,
    pub now: Timestamp,
    /// The API server's time, which is compared with the times of deletions.
    pub server_now: Timestamp,
}

impl<'a> Inputs<'a> {
    /// The pods without those that a suspension has stopped, once the Job was resumed: these still exist for a moment,
    /// and say nothing about the new start.
    fn pods_of_this_start(&self) -> impl Iterator<Item = &'a PodSeen> {
        let running_job = self
            .job
            .filter(|job| is_running(job) && !is_finished(self.previous));
        let was_stopped =
            move |pod: &PodSeen| running_job.is_some_and(|job| was_stopped_by_suspension(job, pod));
        self.pods.iter().copied().filter(move |pod| !was_stopped(pod))
    }

    /// Whether the Job was created from another spec than the current one. This can only happen before the first status
    /// with the Job: from then on the API server rejects such an edit. So the hashes are not compared later, since
    /// another version of the operator might compute them differently.
    fn changed_too_late(&self) -> bool {
        let was_reported = condition(self.previous, ConditionType::Valid)
            .is_some_and(|valid| valid.reason == Reason::ChangedTooLate);
        let differs = self
            .job
            .is_some_and(|job| !job.is_deleting && job.differs_from(self.spec_hash));
        // Every status with the Job has the maximum size.
        differs && (self.previous.maximum_size.is_none() || was_reported)
    }

    /// Whether the Job's pods were created with another `podTemplate` than the current one. The API server's rule does
    /// not reject every such edit: in an object without a schema it misses a key that replaces another one. The
    /// hash is of the overlay as the user wrote it, so all versions of the operator compute the same.
    fn overlay_differs(&self, cluster: &ValidMiniCluster) -> bool {
        self.job
            .is_some_and(|job| !job.is_deleting && job.overlay_hash != render::overlay_hash(cluster))
    }
}

/// Computes the status. The same inputs give the same status. `now` only becomes the time of something that has
/// changed.
pub fn compute(inputs: &Inputs) -> MiniClusterStatus {
    let summary = PodSummary::of(inputs);
    if is_finished(inputs.previous) {
        return after_the_end(inputs, &summary);
    }
    let outcome = post::with_failure(outcome::compute(inputs, &summary), inputs);
    // The exit code of a lead that runs again is not the job's: a suspended Job creates its lead again when it is
    // resumed, and another Job follows one that was given up.
    let runs_again = inputs.job.is_some_and(|job| {
        (job.is_suspended && !job.is_finished()) || restart::is_given_up(inputs.previous, job)
    });
    let lead_exit = if runs_again {
        None
    } else {
        lead_exit(inputs, &summary)
    };
    let previous = inputs.previous;
    let job = inputs.job;
    let ended = job.is_some_and(JobSeen::is_finished);
    let conditions = conditions::compute(inputs, &summary, &outcome);
    let counted = with_observed_restarts(inputs, &summary);
    MiniClusterStatus {
        phase: Some(phase(inputs, &summary).to_string()),
        size: count(summary.living),
        ready_size: count(summary.ready),
        maximum_size: maximum_size(inputs),
        selector: job
            .map(|_| labels::selector(inputs.name))
            .or_else(|| previous.selector.clone()),
        observed_generation: inputs.generation,
        start_time: start_time(inputs),
        timeline: timeline(inputs, &summary),
        completion_time: job
            .filter(|job| job.is_finished())
            .and_then(JobSeen::end_time)
            .map(rfc3339),
        restart_count: counted.restart_count,
        // Only `restart::with_counted_restart` adds to these two, in a status of its own.
        backoff_limit_used: previous.backoff_limit_used,
        max_restarts_used: previous.max_restarts_used,
        container_restarts: counted.container_restarts,
        restarts: counted.restarts,
        // The caller has already added the new losses to the previous status.
        lost_pods: previous.lost_pods.clone(),
        job_uid: job_uid(inputs, &conditions),
        users_secret: secret(inputs, |cluster, uid| {
            (!cluster.users.is_empty()).then(|| names::users_secret(&cluster.name, uid))
        })
        .or_else(|| previous.users_secret.clone()),
        flux_restful_secret: secret(inputs, |cluster, uid| {
            cluster
                .restful
                .as_ref()
                .map(|_| names::restful_secret(&cluster.name, uid))
        })
        .or_else(|| previous.flux_restful_secret.clone()),
        // When the Job is finished, the lead's pod may be gone. Then the previous status may have its exit code.
        exit_code: match lead_exit {
            Some(exit) => Some(exit.code),
            None if ended => previous.exit_code,
            None => None,
        },
        signal: match lead_exit {
            Some(exit) => exit.signal.or(outcome::signal_of(exit.code)),
            None if ended => previous.signal,
            None => None,
        },
        failed_index: outcome.index.or(if ended { previous.failed_index } else { None }),
        reason: (!outcome.reason.is_empty()).then(|| outcome.reason.clone()),
        message: if !outcome.message.is_empty() {
            Some(short(&outcome.message))
        } else if job.is_some_and(is_running) && lead_exit.is_some_and(|exit| exit.code == 0) {
            Some("the lead has ended with exit code 0; the pods are ending".to_owned())
        } else {
            conditions::awaited(inputs, &summary)
        },
        conditions,
    }
}

/// The status after the job has ended. It is the previous one, with values that were not known at the end and with the
/// number of pods that still run. The Job and its pods change nothing else.
fn after_the_end(inputs: &Inputs, summary: &PodSummary) -> MiniClusterStatus {
    let previous = inputs.previous;
    let no_pods_left = inputs.job.is_none() || is_cleaned_up(previous);
    // The MiniCluster may have ended while it waited for the end of a Job that was given up.
    let pods_say_nothing = no_pods_left || inputs.job.is_some_and(|job| restart::is_given_up(previous, job));
    // None of the conditions that `can_change` allows depends on the outcome, so an empty one is passed.
    let updates = if inputs.job.is_none() {
        Vec::new()
    } else {
        conditions::compute(inputs, summary, &Outcome::default())
    };
    let can_change = |condition: &Condition| match ConditionType::parse(&condition.type_) {
        Some(ConditionType::Valid | ConditionType::VolumesValid) => true,
        Some(ConditionType::ArchiveSaved | ConditionType::PostSucceeded) => !pods_say_nothing,
        _ => false,
    };
    let update_of = |type_: &str| {
        updates
            .iter()
            .find(|update| update.type_ == type_ && can_change(update))
    };
    let kept = previous.conditions.iter().map(|before| {
        update_of(&before.type_)
            .cloned()
            .unwrap_or(with_generation(before, inputs.generation))
    });
    let is_new = |update: &&Condition| {
        can_change(update)
            && previous
                .conditions
                .iter()
                .all(|before| before.type_ != update.type_)
    };
    let conditions = kept.chain(updates.iter().filter(is_new).cloned()).collect();
    let lead_exit = if pods_say_nothing {
        None
    } else {
        lead_exit(inputs, summary)
    };
    MiniClusterStatus {
        phase: if inputs.is_deleting {
            Some(Phase::Terminating.to_string())
        } else {
            previous.phase.clone()
        },
        size: if no_pods_left { 0 } else { count(summary.living) },
        ready_size: 0,
        observed_generation: inputs.generation,
        exit_code: previous.exit_code.or(lead_exit.map(|exit| exit.code)),
        signal: previous
            .signal
            .or(lead_exit.and_then(|exit| exit.signal.or(outcome::signal_of(exit.code)))),
        conditions,
        ..previous.clone()
    }
}

/// How the lead's program ended, if the agent or the container runtime saw its end.
fn lead_exit<'a>(inputs: &Inputs<'a>, summary: &PodSummary<'a>) -> Option<&'a Exit> {
    let exit = decisive_lead(inputs, summary).and_then(|lead| lead.exit.as_deref());
    exit.filter(|exit| !exit.is_unseen)
}

/// The maximum size. It is taken from the first Job that is not being deleted, and does not change after that.
fn maximum_size(inputs: &Inputs) -> Option<i32> {
    let of_job = || {
        inputs
            .job
            .filter(|job| !job.is_deleting)
            .and_then(|job| job.maximum_size)
            .map(count)
    };
    inputs.previous.maximum_size.or_else(of_job)
}

/// The condition with this `observedGeneration`.
fn with_generation(condition: &Condition, generation: Option<i64>) -> Condition {
    Condition {
        observed_generation: generation,
        ..condition.clone()
    }
}

/// The lead pod whose end decides how the job ended. If there is none, the latest lead pod that exists.
fn decisive_lead<'a>(inputs: &Inputs<'a>, summary: &PodSummary<'a>) -> Option<&'a PodSeen> {
    let leads = inputs.pods.iter().copied().filter(|pod| pod.index == 0);
    // If the Job is complete, a lead's success counts even if the Job's start is not known.
    let job = inputs.job.filter(|job| job.complete.is_none());
    let decides = |pod: &PodSeen| {
        matches!(
            end_of_lead(pod, job, inputs.spec.has_lead_elsewhere()),
            Some(PodEnd::FailedByItself | PodEnd::NodeFailure | PodEnd::Succeeded)
        )
    };
    leads
        .chain(inputs.gone.iter().copied())
        .find(|pod| decides(pod))
        .or(summary.lead)
}

/// The time of the first start since the last suspension: no time of a suspension, or in a queue, counts against
/// `deadlineSeconds`. A restart does not change it. It stays while the Job is suspended, since the MiniCluster may end
/// then.
fn start_time(inputs: &Inputs) -> Option<String> {
    let unfinished = inputs.job.filter(|job| !job.is_finished());
    if unfinished.is_some_and(|job| job.is_suspended) {
        return inputs.previous.start_time.clone();
    }
    let before = if was_just_resumed(inputs) {
        None
    } else {
        inputs.previous.start_time.clone()
    };
    let is_first = inputs.previous.backoff_limit_used + inputs.previous.max_restarts_used == 0;
    // A restart that follows a suspension removes the start time. The Job that was given up must not set it again.
    let job = inputs
        .job
        .filter(|job| !restart::is_given_up(inputs.previous, job));
    let of_job = job.and_then(|job| job.start_time).map(rfc3339);
    if is_first {
        of_job.or(before)
    } else {
        before.or(of_job)
    }
}

/// Uid of the current or last Job. None if the Job is about to be replaced, for a restart or by one that copies the
/// view: then its deletion does not count as one by somebody else (`decide::restart`). `conditions`: those of the new
/// status.
fn job_uid(inputs: &Inputs, conditions: &[Condition]) -> Option<String> {
    let cannot_mount = conditions.iter().any(|condition| {
        condition.type_ == ConditionType::ViewMounted && condition.status == ConditionStatus::False
    });
    match inputs.job {
        Some(job)
            if restart::is_given_up(inputs.previous, job)
                || (job.mounts_view && cannot_mount && !job.has_succeeded()) =>
        {
            None
        }
        Some(job) => Some(job.uid.clone()),
        None => inputs.previous.job_uid.clone(),
    }
}

/// The previous status with the restarts that the operator does not decide: restarts by the kubelet, and the restart
/// after a suspension.
fn with_observed_restarts(inputs: &Inputs, summary: &PodSummary) -> MiniClusterStatus {
    let mut known = inputs.previous.clone();
    let Some(job) = inputs.job else {
        return known;
    };
    let had_begun = has_begun(&known);
    let was_suspended = is_true(&known, ConditionType::Suspended);
    let is_suspended = job.is_suspended && !job.is_finished();
    let has_new_start = (is_suspended && !was_suspended) || was_resumed_unseen(inputs);
    if had_begun && has_new_start {
        let (reason, message) = match job.queue {
            Some(_) => (
                Reason::Requeued,
                "the queue stopped the pods; it restarts when it is admitted again",
            ),
            None => (
                Reason::Suspended,
                "the pods were stopped to suspend the MiniCluster; it restarts when it is resumed",
            ),
        };
        known = restart::with_restart(&known, None, reason.name(), message, inputs.now);
    }
    // A Job that is resumed creates a new pod of the lead.
    if has_new_start {
        known.container_restarts = 0;
    }
    if job.is_finished() {
        return restart::without_pending_restart(&known, job);
    }
    // The lead's pod that still ends shows the restarts before the suspension.
    if is_suspended {
        return known;
    }
    // The agent runs nothing at a restart beyond the allowed number, or after a shutdown of the instance. Such restarts
    // are not counted.
    let allowed = match inputs.spec {
        CheckedSpec::Valid(cluster) => {
            cluster.restarts_left(u32::try_from(known.backoff_limit_used).unwrap_or(0))
        }
        CheckedSpec::Invalid(_) => u32::MAX,
    };
    // `container_restarts` counts since the Job was created or suspended. If a new lead pod has fewer restarts, nothing
    // is added.
    let counted_lead = summary.lead.filter(|lead| !lead.is_shut_down);
    let by_kubelet = counted_lead.map_or(0, |lead| count(lead.restarts.min(allowed)));
    let new_restarts = by_kubelet.saturating_sub(known.container_restarts).max(0);
    known.restart_count += new_restarts;
    known.container_restarts += new_restarts;
    known
}

/// Whether the Job is neither suspended nor finished.
fn is_running(job: &JobSeen) -> bool {
    !job.is_suspended && !job.is_finished()
}

/// Whether the Job was suspended in the previous status, and is not any more.
fn was_just_resumed(inputs: &Inputs) -> bool {
    inputs.job.is_some_and(is_running) && is_true(inputs.previous, ConditionType::Suspended)
}

/// Whether the Job was suspended and resumed while no operator ran. Only its start time shows this. (After a restart
/// that counts against a limit, the status has the start time of an earlier Job, so this is not known.)
fn was_resumed_unseen(inputs: &Inputs) -> bool {
    let previous = inputs.previous;
    let is_same_job = inputs
        .job
        .is_some_and(|job| previous.job_uid.as_ref() == Some(&job.uid));
    let start = start_time(inputs);
    is_same_job && start.is_some() && previous.start_time.is_some() && start != previous.start_time
}

/// When each step of the start was first seen. None while there is no Job, or one that is suspended, deleted or
/// replaced. So the next start gets new times.
fn timeline(inputs: &Inputs, summary: &PodSummary) -> Option<Timeline> {
    let job = inputs.job?;
    if (job.is_suspended && !job.is_finished())
        || job.is_deleting
        || restart::is_given_up(inputs.previous, job)
    {
        return None;
    }
    let before = match &inputs.previous.timeline {
        Some(before) if !was_resumed_unseen(inputs) => before.clone(),
        _ => Timeline::default(),
    };
    let reached =
        |before: Option<String>, is_reached: bool| before.or_else(|| is_reached.then(|| rfc3339(inputs.now)));
    let timeline = Timeline {
        scheduled: reached(
            before.scheduled,
            summary.wanted > 0 && summary.scheduled >= summary.wanted,
        ),
        running: reached(before.running, summary.lead_runs()),
        ready: reached(before.ready, summary.is_ready()),
    };
    (timeline != Timeline::default()).then_some(timeline)
}

/// Name of a Secret that users read (passwords, tokens). None before the Job exists, since the Secret may be missing
/// until then. `name` gets the spec and the uid of the Job's owner.
fn secret(
    inputs: &Inputs,
    name: impl Fn(&ValidMiniCluster, Option<&str>) -> Option<String>,
) -> Option<String> {
    match (inputs.spec, inputs.job) {
        (CheckedSpec::Valid(cluster), Some(job)) => name(cluster, job.owner_uid.as_deref()),
        _ => None,
    }
}

/// The status with its last restart as reason and message, for the moment when the restart is counted. The next
/// computed status might already be about a later restart.
pub fn restarting(status: MiniClusterStatus) -> MiniClusterStatus {
    let Some(restart) = status.restarts.last() else {
        return status;
    };
    let (reason, message) = (restart.reason.clone(), outcome::restart_message(&status, restart));
    MiniClusterStatus {
        reason: Some(reason),
        message: Some(short(&message)),
        ..status
    }
}

/// The status once pods and volumes have been deleted (`cleanupPods`): it has the condition `CleanedUp`.
pub fn cleaned_up(status: &MiniClusterStatus, now: Timestamp) -> MiniClusterStatus {
    let mut status = MiniClusterStatus {
        size: 0,
        ready_size: 0,
        ..status.clone()
    };
    status.conditions.push(Condition {
        type_: ConditionType::CleanedUp.into(),
        status: ConditionStatus::True,
        observed_generation: status.observed_generation,
        last_transition_time: rfc3339(now),
        reason: Reason::Completed.into(),
        message: "the pods (with their logs), the claims and the volumes were deleted after the job had completed, because of cleanupPods (v1alpha1: cleanup, whose default is true): set it to false to keep them".into(),
    });
    status
}

/// A panic of the operator, with its file and line in the source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the operator panicked at {0}")]
pub struct Panicked(pub String);

/// The status after a panic of the operator: the previous one with the condition `OperatorPanicked`.
pub fn panicked(
    before: &MiniClusterStatus,
    generation: Option<i64>,
    panicked: &Panicked,
    now: Timestamp,
) -> MiniClusterStatus {
    let message = format!(
        "{panicked}: this is a bug in the operator, please report it with this MiniCluster's spec; its pods keep running, and the operator retries"
    );
    let is_known =
        condition(before, ConditionType::OperatorPanicked).is_some_and(|before| before.message == message);
    if is_known {
        return before.clone();
    }
    let mut status = without_panic(before.clone());
    status.conditions.push(Condition {
        type_: ConditionType::OperatorPanicked.into(),
        status: ConditionStatus::True,
        observed_generation: generation,
        last_transition_time: rfc3339(now),
        reason: Reason::Defect.into(),
        message,
    });
    status
}

/// The status without the condition `OperatorPanicked`, for a reconcile without a panic.
pub fn without_panic(mut status: MiniClusterStatus) -> MiniClusterStatus {
    status
        .conditions
        .retain(|condition| condition.type_ != ConditionType::OperatorPanicked);
    status
}

/// Numbers of pods by state, and the lead's pod.
#[derive(Debug)]
struct PodSummary<'a> {
    /// The latest pod of index 0 of this start.
    lead: Option<&'a PodSeen>,
    /// Pods that have not ended.
    living: u32,
    scheduled: u32,
    running: u32,
    ready: u32,
    /// Number of pods of the Job (its completions).
    wanted: u32,
    /// Number of ready pods that is enough to start the job: `minSize`, or the size when the pods started.
    quorum: u32,
    /// Number of ready pods below which the status says what the missing ones wait for: `minSize`, or all.
    expected: u32,
    /// Number of followers that have ended with exit code 0, and are not recreated (completeWorkers).
    completed_followers: u32,
}

impl<'a> PodSummary<'a> {
    fn of(inputs: &Inputs<'a>) -> PodSummary<'a> {
        let pods = || inputs.pods.iter().copied();
        let number = |predicate: &dyn Fn(&PodSeen) -> bool| {
            u32::try_from(pods().filter(|pod| predicate(pod)).count()).unwrap_or(u32::MAX)
        };
        // A Job is finished only after its pods have ended, but the watch of pods may report this later. If the
        // operator has decided the Job's end, pods may still run (`has_living_pods`).
        let is_finished = inputs
            .job
            .is_some_and(|job| job.is_finished() && !job.has_living_pods);
        let living = |predicate: fn(&PodSeen) -> bool| {
            if is_finished {
                0
            } else {
                number(&|pod| !pod.has_ended && predicate(pod))
            }
        };
        let wanted = inputs.job.map_or(0, |job| job.completions);
        let has_completed = |pod: &PodSeen| pod.exit.as_ref().is_some_and(|exit| exit.code == 0);
        // A smaller size leaves completed pods behind, and a later larger one gives their indexes new pods. (A completed
        // pod may have the phase Running: its sidecars stop after it, or another container keeps it.)
        let mut completed: BTreeSet<u32> = pods()
            .filter(|pod| has_completed(pod))
            .map(|pod| pod.index)
            .filter(|index| (1..wanted).contains(index))
            .collect();
        for pod in pods().filter(|pod| !pod.has_ended && !has_completed(pod)) {
            completed.remove(&pod.index);
        }
        let min_size = inputs.spec.min_size();
        PodSummary {
            // Of two with the same creation time, the one that has not ended.
            lead: inputs
                .pods_of_this_start()
                .filter(|pod| pod.index == 0)
                .max_by_key(|pod| (pod.created, !pod.has_ended)),
            living: living(|_| true),
            scheduled: living(|pod| pod.is_scheduled),
            running: living(|pod| pod.is_running),
            ready: living(|pod| pod.is_ready),
            wanted,
            quorum: inputs.job.map_or(0, |job| job.quorum(min_size)).min(wanted),
            expected: min_size.unwrap_or(wanted).min(wanted),
            completed_followers: u32::try_from(completed.len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether the lead's container that runs Flux is running.
    fn lead_runs(&self) -> bool {
        self.lead.is_some_and(|lead| lead.is_running)
    }

    /// Whether the lead has ended with exit code 0. The other pods may still be ending.
    fn lead_has_succeeded(&self) -> bool {
        let exit = self.lead.and_then(|lead| lead.exit.as_ref());
        exit.is_some_and(|exit| exit.code == 0)
    }

    /// Number of pods that must be ready: the quorum without followers that have completed. At least 1, for the lead.
    fn needed(&self) -> u32 {
        self.quorum.saturating_sub(self.completed_followers).max(1)
    }

    /// Whether the lead and enough other brokers are ready.
    fn is_ready(&self) -> bool {
        let lead = self.lead.is_some_and(|lead| lead.is_running && lead.is_ready);
        self.wanted > 0 && lead && self.ready >= self.needed()
    }

    /// Whether the status has nothing to say about missing pods. A MiniCluster that has grown is ready before that.
    fn is_complete(&self) -> bool {
        self.is_ready() && self.ready + self.completed_followers >= self.expected
    }
}

/// The phase, from the Job and its pods.
fn phase(inputs: &Inputs, summary: &PodSummary) -> Phase {
    let Some(job) = inputs.job else {
        return match inputs.spec {
            _ if inputs.is_deleting => Phase::Terminating,
            CheckedSpec::Invalid(_) => Phase::Invalid,
            CheckedSpec::Valid(_) => Phase::Pending,
        };
    };
    if inputs.is_deleting {
        Phase::Terminating
    } else if job.complete.is_some() {
        Phase::Completed
    } else if job.failed.is_some() {
        Phase::Failed
    } else if job.is_suspended {
        Phase::Suspended
    } else if summary.is_ready() || runs_or_ran(inputs, summary) {
        Phase::Running
    } else if summary.scheduled > 0 {
        Phase::Starting
    } else {
        Phase::Pending
    }
}

/// Whether the lead's command has begun: from then on, it does not matter whether brokers are missing. If the lead's
/// container was restarted, the command begins again once its broker has joined.
fn runs_or_ran(inputs: &Inputs, summary: &PodSummary) -> bool {
    summary
        .lead
        .is_some_and(|lead| lead.exit.is_some() || (lead.has_joined && has_been_ready(inputs.previous)))
}

/// Converts a number to i32, the type of numbers in the status.
fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
