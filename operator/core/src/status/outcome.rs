//! Reason and message of the status: why a MiniCluster failed, or does not start.

use flux_shared::crd::v1alpha2::{MiniClusterStatus, Restart};
use flux_shared::exit::Category;
use flux_shared::names;
use flux_shared::termination::{Ender, Termination};

use super::{CheckedSpec, Inputs, PodSummary};
use crate::decide::remaining;
use crate::decide::restart::{self, Limit, Observation};
use crate::observe::image;
use crate::observe::job::JobSeen;
use crate::observe::pod::{Exit, FailedInit, PodSeen, Pull, Trouble};
use crate::observe::pod_end::{self, PodEnd, end_of, end_of_lead};
use crate::vocabulary::Reason;

/// Reason and message of the status; empty if nothing is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Index of the pod because of which the Job fails. None: the Job does not fail, or no pod is known as the cause.
    pub(super) index: Option<i32>,
    pub(super) reason: String,
    pub(super) message: String,
    /// Name of the snippet whose failure is the outcome.
    pub(super) snippet: Option<String>,
}

impl Outcome {
    fn new(reason: impl Into<String>, message: impl Into<String>) -> Outcome {
        Outcome {
            index: None,
            reason: reason.into(),
            message: message.into(),
            snippet: None,
        }
    }
}

/// The first of these that applies: a restart in progress, the job's end, an invalid spec, an obstacle, a stuck pod of
/// a stopped Job, the queue, a suspension, a lost node, a stuck pod, too small a size, trouble with a pod, a failed pod, a
/// warning event, trouble with the services pod, brokers that are not ready.
pub(super) fn compute(inputs: &Inputs, summary: &PodSummary) -> Outcome {
    if let Some(restart) = pending_restart(inputs) {
        return restarting(inputs, restart);
    }
    if let Some(job) = inputs.job {
        if job.complete.is_some() {
            let message = "the job ended with exit code 0";
            return match what_keeps_a_pod_alive(inputs) {
                Some(cause) => Outcome::new(Reason::SidecarStillRuns, format!("{message}; {cause}")),
                None => Outcome::new(Reason::Completed, message),
            };
        }
        // The cause of a failure is reported at once, even while other pods are still ending.
        if let Some(failed) = job.failed.as_ref().or(job.failing.as_ref()) {
            let failure = failure(inputs, &failed.reason, &failed.message);
            let addition = what_keeps_a_pod_alive(inputs)
                .or_else(|| awaited_stuck_pod(inputs, job))
                .map(|cause| format!("; {cause}"))
                .unwrap_or_default();
            return Outcome {
                message: failure.message.clone() + &addition,
                ..failure
            };
        }
    }
    if let CheckedSpec::Invalid(problems) = inputs.spec {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Outcome::new(Reason::Invalid, lines.join("; "));
    }
    if let Some(obstacle) = inputs.obstacle {
        return Outcome::new(obstacle.reason, obstacle.message.clone());
    }
    let Some(job) = inputs.job else {
        return Outcome::default();
    };
    let stuck =
        || awaited_stuck_pod(inputs, job).map(|message| Outcome::new(Reason::StuckTerminating, message));
    if job.is_suspended
        && let Some(outcome) = stuck()
    {
        return outcome;
    }
    if let Some(queue) = job.waits_in() {
        return queued(queue, inputs.warning);
    }
    if job.is_suspended {
        return Outcome::new(Reason::Suspended, "the Job is suspended: it has no pods");
    }
    if let Some(outcome) = on_silent_node(inputs) {
        return outcome;
    }
    if !summary.is_complete()
        && let Some(outcome) = stuck()
    {
        return outcome;
    }
    // Only `queued` reports Kueue's reason, together with the queue's name.
    let outcome_of_warning = || {
        inputs
            .warning
            .filter(|warning| !summary.is_complete() && warning.reason != Reason::Queued)
            .map(|warning| Outcome::new(warning.reason.clone(), warning.message.clone()))
    };
    let trouble = below_quorum(inputs, summary).or_else(|| trouble(inputs, summary));
    trouble
        .or_else(|| failed_while_incomplete(inputs, summary))
        .or_else(|| outcome_of_warning().filter(|outcome| outcome.reason != Reason::BrokersNotReady))
        // Brokers may not be ready because their snippets wait for the services.
        .or_else(|| trouble_of_services(inputs, summary))
        .or_else(outcome_of_warning)
        .map(|outcome| with_steady_reason(outcome, inputs.previous))
        .unwrap_or_default()
}

/// The outcome if the services pod has trouble. The brokers may be ready, but their program may need the services until
/// it has ended.
fn trouble_of_services(inputs: &Inputs, summary: &PodSummary) -> Option<Outcome> {
    if summary.lead_has_succeeded() {
        return None;
    }
    let pod = inputs.services_pod.filter(|pod| !pod.is_deleting)?;
    let trouble = pod.trouble.as_ref()?;
    if trouble.reason != Reason::SchedulingGated {
        let name = names::services_pod(inputs.name);
        let message = format!("services pod {name}: {}", trouble.message);
        return Some(Outcome::new(trouble.reason.clone(), message));
    }
    // To Kueue, this pod is not a part of the Job.
    Some(match &pod.queue {
        Some(queue) => queued(&format!("{queue} for the services pod"), None),
        None => Outcome::new(
            Reason::SchedulingGated,
            "a scheduling gate holds the services pod. If it is Kueue's, name a queue in spec.servicesPodTemplate (metadata.labels, kueue.x-k8s.io/queue-name)",
        ),
    })
}

/// The outcome without a change from ErrImagePull to ImagePullBackOff or back: the kubelet alternates between these two
/// reasons for an image that it cannot pull, and the first one stays.
fn with_steady_reason(outcome: Outcome, previous: &MiniClusterStatus) -> Outcome {
    let is_pull = |reason: &str| {
        matches!(
            Reason::parse(reason),
            Some(Reason::ErrImagePull | Reason::ImagePullBackOff)
        )
    };
    match &previous.reason {
        Some(before) if is_pull(before) && is_pull(&outcome.reason) => Outcome {
            reason: before.clone(),
            ..outcome
        },
        _ => outcome,
    }
}

/// Which container that is not the MiniCluster's keeps a pod alive after its program has ended, and the remedy. None:
/// no container does.
fn what_keeps_a_pod_alive(inputs: &Inputs) -> Option<String> {
    let (pod, container) = inputs
        .pods
        .iter()
        .find_map(|pod| Some((pod, pod.kept_by.as_deref()?)))?;
    Some(format!(
        "container {container}, which is not the MiniCluster's, still runs in pod {} and keeps it: delete the MiniCluster to stop it, and switch its injection off or let it be injected as a native sidecar",
        pod.name
    ))
}

/// The message about a restart while the pods of the earlier Job end.
pub(super) fn restart_message(status: &MiniClusterStatus, restart: &Restart) -> String {
    let count = match status.restart_count {
        1 => "1 restart".to_owned(),
        count => format!("{count} restarts"),
    };
    format!(
        "restarting once the pods of the earlier Job are gone ({count} so far): {}",
        restart.message
    )
}

/// The outcome of a Job that waits in a queue. `why` has Kueue's reason, once it was read.
fn queued(queue: &str, why: Option<&Trouble>) -> Outcome {
    const WAITS: &str = "waits in queue ";
    let waits = format!("{WAITS}{queue}");
    let why = why
        .filter(|why| why.reason == Reason::Queued)
        .map(|why| &why.message);
    Outcome::new(
        Reason::Queued,
        match why {
            // The message was taken from the previous status, so it has the prefix already.
            Some(message) if message.starts_with(&format!("{waits}: ")) => message.clone(),
            Some(why) if !why.starts_with(WAITS) => format!("{waits}: {why}"),
            // There is no reason, or it is from the previous status and about another queue or number of pods.
            _ => waits,
        },
    )
}

/// The outcome of the last pod that failed by itself (a follower's snippet, say) while pods are missing. It is reported
/// although the Job may create the pod again.
fn failed_while_incomplete(inputs: &Inputs, summary: &PodSummary) -> Option<Outcome> {
    if summary.is_complete() {
        return None;
    }
    let by_itself =
        |pod: &&&PodSeen| has_failed(pod) && !pod.was_removed() && !pod_end::was_stopped_alone(pod);
    let last = inputs
        .pods
        .iter()
        .filter(by_itself)
        .max_by_key(|pod| (ended_at(pod), pod.index));
    last.map(|pod| of_pod(pod))
}

/// The outcome if a pod's node has stopped responding.
fn on_silent_node(inputs: &Inputs) -> Option<Outcome> {
    let silent = || inputs.pods.iter().filter(|pod| pod.is_on_silent_node);
    let first = silent().min_by_key(|pod| pod.index)?;
    let others = match silent().count() - 1 {
        0 => String::new(),
        1 => " (1 more pod is lost)".to_owned(),
        count => format!(" ({count} more pods are lost)"),
    };
    let node = first.node.as_deref().unwrap_or("unknown");
    let evicted = if first.is_deleting {
        "; Kubernetes has evicted it"
    } else {
        ""
    };
    Some(Outcome::new(
        Reason::NodeLost,
        format!(
            "pod {} is on node {node}, which has stopped responding{others}{evicted}. {}",
            first.name,
            remaining::lost_node_remedy(node)
        ),
    ))
}

/// A pod that hangs while it is being deleted, and for which this Job waits, with the remedy. None: there is none, or the
/// Job has ended.
fn awaited_stuck_pod(inputs: &Inputs, job: &JobSeen) -> Option<String> {
    if job.is_finished() {
        return None;
    }
    // The Job replaces a pod that has ended. Only its own deletion waits until such a pod is gone.
    let is_awaited = |pod: &PodSeen| job.is_deleting || !pod.has_ended;
    // A running Job does not wait for pods beyond its size, which it no longer needs.
    let is_running = !job.is_deleting && !job.is_suspended && job.failing.is_none();
    let is_needed = |pod: &PodSeen| !is_running || pod.index < job.completions;
    let stuck: Vec<&PodSeen> = inputs
        .pods
        .iter()
        .copied()
        .filter(|pod| remaining::is_stuck(pod, inputs.server_now) && is_awaited(pod) && is_needed(pod))
        .collect();
    remaining::describe(&stuck, inputs.server_now)
}

/// The counted restart that replaces this Job, if the Job still exists. A Job that has succeeded nevertheless is not
/// replaced: the MiniCluster ends with it.
fn pending_restart<'a>(inputs: &Inputs<'a>) -> Option<&'a Restart> {
    let job = inputs.job.filter(|job| !job.has_succeeded())?;
    restart::counted_restart(inputs.previous, &job.uid)
}

/// The outcome while a restart waits until the pods of the Job that it replaces are gone.
fn restarting(inputs: &Inputs, restart: &Restart) -> Outcome {
    let now = inputs.server_now;
    let is_stuck = |pod: &PodSeen| remaining::is_stuck(pod, now);
    // The deletion of the Job also waits for pods that have ended. They are gone within moments, unless they are stuck.
    let remaining: Vec<&PodSeen> = inputs
        .pods
        .iter()
        .copied()
        .filter(|pod| !pod.has_ended || is_stuck(pod))
        .collect();
    let pods = remaining::describe(&remaining, now)
        .map(|pods| format!("; {pods}"))
        .unwrap_or_default();
    let message = restart_message(inputs.previous, restart) + &pods;
    // In the first two cases, the restart waits until the node is back, the pod can end, or a person acts.
    let reason = if remaining.iter().any(|pod| pod.is_on_silent_node) {
        Reason::NodeLost.name()
    } else if remaining.iter().any(|pod| is_stuck(pod)) {
        Reason::StuckTerminating.name()
    } else {
        &restart.reason
    };
    Outcome::new(reason, message)
}

/// The outcome if the wanted number of pods is smaller than the number of brokers for which the command waits. That
/// number is fixed in the pods: the size when they started, or `minSize`.
fn below_quorum(inputs: &Inputs, summary: &PodSummary) -> Option<Outcome> {
    let CheckedSpec::Valid(cluster) = inputs.spec else {
        return None;
    };
    // The lead of another cluster has its own quorum.
    if cluster.flux.lead.is_some() {
        return None;
    }
    let (field, quorum) = match cluster.min_size {
        Some(size) => ("minSize", inputs.job.map_or(size, |job| job.capped(size))),
        None => ("the size when its pods started", inputs.job?.initial_size?),
    };
    if summary.is_ready() || super::runs_or_ran(inputs, summary) || summary.wanted >= quorum {
        return None;
    }
    let message = format!(
        "spec.size: is {}, but the command starts only when {quorum} brokers are online ({field}): scale to {quorum}, or recreate the MiniCluster with this size or with a minSize",
        summary.wanted
    );
    Some(Outcome::new(Reason::SizeBelowQuorum, message))
}

/// The outcome if a pod keeps the cluster from starting, or from growing.
fn trouble(inputs: &Inputs, summary: &PodSummary) -> Option<Outcome> {
    if summary.is_complete() {
        return None;
    }
    let living = || inputs.pods.iter().filter(|pod| !pod.has_ended);
    let troubled = living().filter_map(|pod| Some((pod, pod.trouble.as_ref()?)));
    let (pod, trouble) = troubled.min_by_key(|(pod, _)| pod.index)?;
    // If an elastic Job has grown and the queue has not admitted that yet, the queue's reason counts, not the
    // scheduler's.
    if pod.is_held_by_queue
        && let Some(queue) = inputs.job.and_then(|job| job.queue.as_deref())
    {
        let held = living().filter(|pod| pod.is_held_by_queue).count();
        return Some(queued(
            &format!("{queue} for {held} of {} pods", summary.wanted),
            inputs.warning,
        ));
    }
    let index = pod.index;
    let image = whose_image(inputs, trouble);
    // The node is named, since other nodes may have the image or reach its registry.
    let place = match &pod.node {
        Some(node) if trouble.pull.is_some() => format!(" on node {node}"),
        _ => String::new(),
    };
    Some(Outcome::new(
        trouble.reason.clone(),
        format!("pod {index}{place}: {image}{}", trouble.message),
    ))
}

/// Prefix of the kubelet's message about the view's image.
const VIEW_IMAGE: &str = "the view's image cannot be pulled (spec.flux.container.image and imagePullSecret; without them, \
    the operator's --view-image): ";

/// A prefix that says whose image cannot be pulled, if the container that the kubelet names does not show that.
/// Otherwise empty.
fn whose_image(inputs: &Inputs, trouble: &Trouble) -> String {
    let CheckedSpec::Valid(cluster) = inputs.spec else {
        return String::new();
    };
    let runner = &cluster.runner.container;
    let is_view_mounted = || inputs.job.is_some_and(|job| job.mounts_view);
    match &trouble.pull {
        // The agent's init container mounts two images: the view's and, for its /opt/software, the runner's. The
        // kubelet reports both on this container.
        Some(Pull::Mounted) if image::is_named(&trouble.message, &runner.image) => {
            format!("the image of container {} cannot be pulled: ", runner.name)
        }
        Some(Pull::Mounted) if is_view_mounted() && image::is_named(&trouble.message, inputs.view_image) => {
            VIEW_IMAGE.to_owned()
        }
        // A webhook may have replaced an image's name by that of a mirror.
        Some(Pull::Mounted) if is_view_mounted() => format!(
            "the image of container {} or the view's (spec.flux.container.image; without it, the operator's --view-image) cannot be pulled: ",
            runner.name
        ),
        Some(Pull::Of(name)) if cluster.view.enabled && *name == cluster.view.name => VIEW_IMAGE.to_owned(),
        _ => String::new(),
    }
}

/// Whether this reason of a failed Job is one of Kubernetes. Other reasons are from the operator, which has failed the
/// Job.
fn is_of_kubernetes(reason: &str) -> bool {
    reason.is_empty()
        || matches!(
            Reason::parse(reason),
            Some(
                Reason::PodFailurePolicy
                    | Reason::BackoffLimitExceeded
                    | Reason::MaxFailedIndexesExceeded
                    | Reason::FailedIndexes
                    | Reason::DeadlineExceeded
            )
        )
}

/// Why the Job failed, with `reason` and `message` from its condition. These are reported if the Job's deadline was
/// exceeded, if the operator has failed the Job with a reason of its own, or if no pod is known as the cause. (For
/// `LeadFailed`, the lead's pod is reported, if it is known.) Otherwise the outcome is that of a lost pod, or of the
/// pod that failed the Job: the first one that is not created again, or the last one if pods were retried too often.
fn failure(inputs: &Inputs, reason: &str, message: &str) -> Outcome {
    if !is_of_kubernetes(reason) {
        let mut known = inputs.pods.iter().chain(&inputs.gone);
        let lead =
            known.find(|pod| *reason == Reason::LeadFailed && pod.index == 0 && ends_the_job(inputs, pod));
        let outcome = lead
            .map(|lead| of_pod(lead))
            .unwrap_or_else(|| Outcome::new(reason, message));
        // The operator's other reasons are about the lead: if a follower is the cause, the operator fails the Job with one
        // of Kubernetes' reasons.
        let is_of_no_pod = matches!(
            Reason::parse(reason),
            Some(Reason::JobDeleted | Reason::Requeued | Reason::Suspended)
        );
        return Outcome {
            index: if is_of_no_pod { None } else { Some(0) },
            ..outcome
        };
    }
    // If a pod has failed the Job, but all pods ended before the operator could act, Kubernetes gives the reason
    // FailedIndexes.
    let known = match Reason::parse(reason) {
        Some(Reason::FailedIndexes) if inputs.pods.iter().any(|pod| ends_the_job(inputs, pod)) => {
            Some(Reason::PodFailurePolicy)
        }
        known => known,
    };
    if known == Some(Reason::PodFailurePolicy)
        && let Some(lost) = of_removed_pod(inputs)
    {
        return lost;
    }
    let mut failed: Vec<&PodSeen> = inputs
        .pods
        .iter()
        .copied()
        .filter(|pod| has_failed(pod))
        .collect();
    // Pods that were stopped because another one had failed come last: those that are being deleted or were asked to
    // end.
    let was_stopped = |pod: &PodSeen| pod.is_deleting || pod.end_requested.is_some();
    failed.sort_by_key(|pod| (was_stopped(pod), ended_at(pod), pod.index));
    let is_tried_too_often = matches!(
        known,
        Some(Reason::BackoffLimitExceeded | Reason::MaxFailedIndexesExceeded | Reason::FailedIndexes)
    );
    let culprit = match known {
        Some(Reason::DeadlineExceeded) => None,
        _ if is_tried_too_often => failed
            .iter()
            .rev()
            .find(|pod| !was_stopped(pod))
            .or(failed.last()),
        _ => failed
            .iter()
            .find(|pod| ends_the_job(inputs, pod))
            .or(failed.first()),
    };
    let Some(pod) = culprit else {
        let mut message = if message.is_empty() {
            "the Job failed".to_owned()
        } else {
            message.to_owned()
        };
        if known == Some(Reason::PodFailurePolicy)
            && !inputs.pods.iter().any(|pod| message.contains(&pod.name))
        {
            message.push_str(" (that pod was deleted)");
        }
        return Outcome::new(known.unwrap_or(Reason::JobFailed), message);
    };
    let mut outcome = of_pod(pod);
    outcome.index = i32::try_from(pod.index).ok();
    if is_tried_too_often && !pod.is_shut_down {
        outcome.message.push_str(" (retried as often as the Job allows)");
    }
    outcome
}

/// Whether the Job fails with this pod, instead of creating another one. False for a pod of the lead that refused to
/// run: then the loss of an earlier pod is the cause ([`of_removed_pod`]).
fn ends_the_job(inputs: &Inputs, pod: &PodSeen) -> bool {
    match end_of_lead(pod, inputs.job, inputs.spec.has_lead_elsewhere()) {
        Some(PodEnd::FailedByItself | PodEnd::NodeFailure) if pod.index == 0 => true,
        Some(PodEnd::NotStarted { new_pod_may_start }) if pod.index == 0 => !new_pod_may_start,
        _ => pod_end::is_follower_failed_by_itself(pod),
    }
}

/// The outcome if the Job failed because a pod was removed: what was lost, and why there is no restart.
fn of_removed_pod(inputs: &Inputs) -> Option<Outcome> {
    let (backoff_limit, max_restarts) = match inputs.spec {
        CheckedSpec::Valid(cluster) => (cluster.backoff_limit, cluster.max_restarts),
        CheckedSpec::Invalid(_) => (0, 0),
    };
    // Nothing that is called below reads `restarts_on_failure` or `min_size`, nor, since there is a Job, `last_job`.
    let observation = Observation {
        status: inputs.previous,
        is_spec_valid: matches!(inputs.spec, CheckedSpec::Valid(_)),
        backoff_limit,
        max_restarts,
        lead_is_elsewhere: inputs.spec.has_lead_elsewhere(),
        restarts_on_failure: false,
        min_size: None,
        job: inputs.job,
        last_job: None,
        pods: inputs.pods.clone(),
        gone: inputs.gone.clone(),
        now: inputs.now,
    };
    let ended = |(pod, end)| Some((pod, end?));
    let leads: Vec<(&PodSeen, PodEnd)> = restart::leads(&observation)
        .into_iter()
        .filter_map(ended)
        .collect();
    if let Some((lead, end)) = leads
        .iter()
        .find(|(_, end)| matches!(end, PodEnd::FailedByItself | PodEnd::NodeFailure))
    {
        let lost = restart::loss_that_ended_the_lead(&observation, lead, *end)?.pod;
        let code = lead
            .exit
            .as_ref()
            .map(|exit| format!("; the lead ended with exit code {}", exit.code));
        let message = format!(
            "{}{}; {}",
            restart::describe_lost_follower(lost, &inputs.pods),
            code.unwrap_or_default(),
            observation.why_no_restart(Limit::MaxRestarts)
        );
        // If it is not known which follower was lost, the lead counts: the Job failed with its end.
        let index = Some(lost.map_or(0, |lost| lost.index));
        return Some(Outcome {
            index,
            ..Outcome::new(Reason::PodLost, message)
        });
    }
    // A pod's own failure is the cause, and not a loss.
    if inputs.pods.iter().any(|pod| ends_the_job(inputs, pod)) {
        return None;
    }
    let removed_lead = leads
        .iter()
        .find(|(_, end)| *end == PodEnd::Removed)
        .map(|(lead, _)| pod_end::loss(lead));
    let recorded_lead = inputs
        .previous
        .lost_pods
        .iter()
        .rev()
        .find(|lost| lost.index == 0)
        .cloned();
    let by_follower = inputs
        .job
        .and_then(|job| job.failed.as_ref().or(job.failing.as_ref())?.index_of_pod());
    if by_follower.is_some_and(|index| index > 0)
        && let Some(lost) = restart::follower_lost_by_failing_job(&observation)
    {
        let message = format!(
            "{}; {}",
            restart::describe_lost_follower(Some(&lost), &inputs.pods),
            observation.why_no_restart(Limit::MaxRestarts)
        );
        return Some(Outcome {
            index: Some(lost.index),
            ..Outcome::new(Reason::PodLost, message)
        });
    }
    let loss = match removed_lead.or(recorded_lead) {
        Some(lost) => restart::describe_loss(&lost),
        None if leads.iter().any(|(_, end)| *end == PodEnd::Refused) => {
            "an earlier pod of the lead was lost".to_owned()
        }
        None => return None,
    };
    let message = format!("{loss}; {}", observation.why_no_restart(Limit::Backoff));
    Some(Outcome {
        index: Some(0),
        ..Outcome::new(Reason::LeadLost, message)
    })
}

/// Whether the pod's program, or the pod itself, has ended with a failure.
fn has_failed(pod: &PodSeen) -> bool {
    pod.counts_as_ended() && (pod.trouble.is_some() || pod.exit.as_ref().is_some_and(|exit| exit.code != 0))
}

/// When the container that runs Flux, or the init container that failed, ended.
fn ended_at(pod: &PodSeen) -> Option<k8s_openapi::jiff::Timestamp> {
    let init = pod
        .trouble
        .as_ref()
        .and_then(|trouble| trouble.init.as_ref())
        .and_then(|init| init.exit.at);
    pod.exit.as_ref().and_then(|exit| exit.at).or(init)
}

/// How messages name a pod.
pub(super) fn place_of(pod: &PodSeen) -> String {
    match pod.index {
        0 => "the lead (index 0)".to_owned(),
        index => format!("the pod of index {index}"),
    }
}

/// The outcome of a pod that has failed.
fn of_pod(pod: &PodSeen) -> Outcome {
    let place = place_of(pod);
    if pod.unseen_end().is_some() {
        let lost = pod_end::loss(pod);
        return Outcome::new(lost.reason.clone(), restart::describe_loss(&lost));
    }
    let exit = pod.exit.as_deref();
    // The pod's container ended by itself, although the cluster was about to remove the pod. So the exit counts, and not
    // the disruption in `trouble`.
    if let Some(exit) = exit
        && pod.is_disrupted()
        && end_of(pod) == Some(PodEnd::FailedByItself)
    {
        return of_exit(exit, &place);
    }
    match (&pod.trouble, exit) {
        (Some(trouble), _) => match &trouble.init {
            Some(init) => of_init(init, &format!("init container {} of {place}", init.name)),
            None => Outcome::new(trouble.reason.clone(), format!("{place}: {}", trouble.message)),
        },
        (None, Some(exit)) => with_cause_of_stop(pod, of_exit(exit, &place)),
        (None, None) => Outcome::new(Reason::JobFailed, format!("{place} failed and left no status")),
    }
}

/// `outcome` of a pod, with the probable cause if its container was stopped, but nobody removed the pod or asked it to
/// end. Then the kubelet stops only the container, and its events say why.
fn with_cause_of_stop(pod: &PodSeen, outcome: Outcome) -> Outcome {
    let was_pod_stopped = pod.is_deleting || pod.end_requested.is_some();
    if was_pod_stopped || outcome.reason != Reason::Stopped {
        return outcome;
    }
    Outcome {
        message: format!(
            "{}; its pod was not removed: its livenessProbe or lifeCycle.postStartExec may have failed (see the events of `kubectl describe pod {}`), or its node was shut down",
            outcome.message.trim_end_matches('.'),
            pod.name
        ),
        ..outcome
    }
}

/// The outcome of a failed init container. In the operator's own only the agent runs, so a code of [`Category`] is
/// the agent's. A user's init container does not run the agent, so its termination message is not read as the agent's.
fn of_init(init: &FailedInit, place: &str) -> Outcome {
    let exit = &init.exit;
    if init.is_users {
        return of_exit(
            &Exit {
                termination: None,
                ..exit.clone()
            },
            place,
        );
    }
    let category = match Category::from_code(exit.code) {
        Some(category) if exit.termination.is_none() => category,
        _ => return of_exit(exit, place),
    };
    let details = if exit.message.is_empty() {
        String::new()
    } else {
        format!(": {}", exit.message)
    };
    Outcome::new(
        Reason::from(category),
        format!("the agent in {place} gave up{details}"),
    )
}

/// The outcome of a container's end. `place` names the container or its pod.
fn of_exit(exit: &Exit, place: &str) -> Outcome {
    let with_message = |text: String| {
        if exit.message.is_empty() {
            text
        } else {
            format!("{text}: {}", exit.message)
        }
    };
    let code = exit.code;
    if let Some(outcome) = exit
        .termination
        .as_ref()
        .and_then(|termination| from_termination(termination, place))
    {
        return outcome;
    }
    if exit.reason == Reason::OOMKilled {
        return Outcome::new(
            Reason::OOMKilled,
            with_message(format!("{place} used more memory than its limit allows")),
        );
    }
    if let Some(signal) = exit.signal.or(signal_of(code)) {
        let cause = if signal == 1 {
            ", as happens to a program whose Flux instance is shut down"
        } else {
            ""
        };
        return Outcome::new(
            Reason::Signalled,
            with_message(format!("{place} ended by signal {signal}{cause}")),
        );
    }
    // These reasons of the runtime say no more than the exit code.
    if !matches!(exit.reason.as_str(), "" | "Error" | "Completed") {
        return Outcome::new(
            exit.reason.clone(),
            with_message(format!("{place} ended with exit code {code}")),
        );
    }
    Outcome::new(
        Reason::NonZeroExitCode,
        with_message(format!("{place} ended with exit code {code}")),
    )
}

/// The outcome according to the agent's termination message. None: the program has ended, and the container's state
/// says how.
fn from_termination(termination: &Termination, place: &str) -> Option<Outcome> {
    let details = if termination.message.is_empty() {
        String::new()
    } else {
        format!(": {}", termination.message)
    };
    match termination.by {
        Ender::Agent => {
            let reason = termination.category.map_or(Reason::AgentFailed, Reason::from);
            Some(Outcome::new(
                reason,
                format!("the agent in {place} gave up{details}"),
            ))
        }
        Ender::Snippet => {
            let name = termination.snippet.as_deref().unwrap_or("of the container");
            let error = match termination.snippet_error.as_str() {
                "" => String::new(),
                error => format!(": {error}"),
            };
            let remedy = if termination.message.is_empty() {
                String::new()
            } else {
                format!(". {}", termination.message)
            };
            let message = format!(
                "the snippet {name} of {place} ended with exit code {}{error}{remedy}",
                termination.code
            );
            Some(Outcome {
                snippet: termination.snippet.clone(),
                ..Outcome::new(Reason::SnippetFailed, message)
            })
        }
        Ender::Stop => Some(Outcome::new(
            Reason::Stopped,
            format!("{place} was stopped before its program had ended{details}"),
        )),
        Ender::Program => None,
    }
}

/// The signal that an exit code means, by the convention of shells (128 + signal). None: it means no signal.
pub(super) fn signal_of(code: i32) -> Option<i32> {
    (129..=192).contains(&code).then(|| code - 128)
}
