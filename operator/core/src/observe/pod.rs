//! The data that the operator keeps of a Job's pod.

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodSchedulingGate, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use flux_shared::crd::v1alpha2::ConditionStatus;
use flux_shared::exit::UNSEEN;
use flux_shared::names;
use flux_shared::paths::AGENT_FILE;
use flux_shared::printable::printable;
use flux_shared::queueing::ELASTIC_JOB;
use flux_shared::termination::{Ender, Termination};

use super::controller_uid;
use crate::labels;
use crate::labels::AGENT;
use crate::observe::image;
use crate::observe::partial::{NAME_MAX, Partial, cut};
use crate::observe::pod_phase::PodPhase;
use crate::previous_status::cut_middle;
use crate::vocabulary::Reason;

/// A pod's status, and the part of its spec in [`PodSpecPart`]. (The spec has most of a pod's bytes.)
pub type PodStatusObject = Partial<Pod, PodSpecPart, PodStatus>;

/// The part of a pod's spec that is read: its node, its scheduler and gates, its restart policy, its containers' commands,
/// and which of its init containers are sidecars.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpecPart {
    pub node_name: Option<String>,
    pub scheduler_name: Option<String>,
    #[serde(default)]
    pub scheduling_gates: Vec<PodSchedulingGate>,
    #[serde(default)]
    pub restart_policy: String,
    #[serde(default)]
    pub containers: Vec<ContainerCommand>,
    #[serde(default)]
    pub init_containers: Vec<InitContainer>,
}

/// An init container, which may be a sidecar.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitContainer {
    pub name: String,
    #[serde(default)]
    pub restart_policy: String,
}

/// A container with its command.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ContainerCommand {
    pub name: String,
    #[serde(default)]
    pub command: Vec<String>,
}

/// Whether a container with this command is the one that runs Flux: its entrypoint is the agent. Its place in the list
/// does not show this, since webhooks may have added other containers before it.
pub fn is_runner(command: &[String]) -> bool {
    command.first().is_some_and(|word| word == AGENT_FILE)
}

impl PodSpecPart {
    /// Name of the container that runs Flux.
    fn runner(&self) -> Option<&str> {
        self.containers
            .iter()
            .find(|container| is_runner(&container.command))
            .map(|container| container.name.as_str())
    }

    /// Whether this init container is a sidecar: it ends with the pod, and is restarted if it fails.
    fn is_sidecar(&self, name: &str) -> bool {
        self.init_containers
            .iter()
            .any(|container| container.name == name && container.restart_policy == "Always")
    }
}

/// One end of the container that runs Flux. The kubelet may restart the container, which then ends again.
#[derive(Debug, Clone, Copy)]
pub struct RunnerEnd<'a> {
    /// 1 for the first end.
    pub number: u32,
    pub terminated: &'a ContainerStateTerminated,
}

impl PodStatusObject {
    /// The ends of the container that runs Flux, as far as the status still shows them: at most the last two.
    pub fn runner_ends(&self) -> Vec<RunnerEnd<'_>> {
        let name = self.spec.runner();
        let status = self.status.as_ref();
        let runner = status.and_then(|status| runner_status(status, name));
        runner.map(runner_ends).unwrap_or_default()
    }

    /// The last end of the container that runs Flux for which the agent reports a shutdown of the instance.
    fn shutdown(&self) -> Option<Exit> {
        let ends = self.runner_ends();
        let mut exits = ends.iter().rev().map(|end| Exit::of_runner(end.terminated));
        exits.find(Exit::is_shutdown)
    }
}

/// The status of the container with the name `runner`, or if that is None, of the first container in the list.
fn runner_status<'a>(status: &'a PodStatus, runner: Option<&str>) -> Option<&'a ContainerStatus> {
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    regular
        .iter()
        .find(|container| runner.is_none_or(|name| container.name == name))
}

/// The ends of a container that its status still shows. (While the container waits for a restart, the restart count
/// does not include that restart yet.)
fn runner_ends(container: &ContainerStatus) -> Vec<RunnerEnd<'_>> {
    let restarts = restarts(container);
    let state = container.state.as_ref();
    let is_waiting = state.is_some_and(|state| state.waiting.is_some());
    let last = container.last_state.as_ref();
    let last = last.and_then(|state| state.terminated.as_ref());
    let last = last.map(|terminated| RunnerEnd {
        number: restarts.saturating_add(is_waiting.into()),
        terminated,
    });
    let now = state.and_then(|state| state.terminated.as_ref());
    let now = now.map(|terminated| RunnerEnd {
        number: restarts.saturating_add(1),
        terminated,
    });
    last.into_iter().chain(now).collect()
}

/// How often the kubelet has restarted a container.
fn restarts(container: &ContainerStatus) -> u32 {
    u32::try_from(container.restart_count).unwrap_or(0)
}

/// The scheduler of pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Longest message that is kept, in characters.
const MESSAGE_MAX: usize = 512;

/// A pod as last seen. There may be many thousands, so rare fields are boxed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSeen {
    pub name: String,
    pub job_uid: Option<String>,
    /// No Job owns it: its Job was deleted without its pods (`--cascade=orphan`).
    pub is_orphan: bool,
    /// Its completion index; 0 is the lead. 0 also if the label is missing.
    pub index: u32,
    /// How many earlier pods of its index the Job counts as failed.
    pub index_failures: u32,
    /// How many earlier pods of its index the Job counts as disrupted.
    pub index_disruptions: u32,
    /// How often the kubelet has restarted the container that runs Flux.
    pub restarts: u32,
    /// How often the container that runs Flux has ended.
    pub runner_ends: u32,
    pub created: Option<Timestamp>,
    pub is_deleting: bool,
    /// When its deletion was requested.
    pub deletion_requested: Option<Timestamp>,
    /// The end of its grace period (its `deletionTimestamp`), while it is being deleted.
    pub grace_end: Option<Timestamp>,
    /// It has the label `job-index` and the condition by which the Job's failure policy recognises the lead. (Only the
    /// lead's pod gets them.)
    pub is_labelled: bool,
    pub is_scheduled: bool,
    /// It has the queue's scheduling gate: an elastic Job has grown, and the queue has not admitted the growth yet.
    pub is_held_by_queue: bool,
    /// No scheduler has set its condition PodScheduled, nominated a node for it or put it on a node.
    pub is_unnoticed: bool,
    /// The name of its scheduler, while `is_unnoticed`.
    pub scheduler: Option<Box<str>>,
    /// Its node, once it has one.
    pub node: Option<String>,
    /// Its node has stopped responding. The state of its containers is the last reported one.
    pub is_on_silent_node: bool,
    /// One of its containers was started, or the pod has ended.
    pub has_begun: bool,
    /// The container that runs Flux is running.
    pub is_running: bool,
    /// The container that runs Flux is ready: its startup probe, if it has one, has found that the broker joined.
    pub has_joined: bool,
    /// Kubernetes' condition Ready is true, and the pod is not being deleted.
    pub is_ready: bool,
    /// Phase Succeeded or Failed.
    pub has_ended: bool,
    /// It has succeeded: by its phase, or because the agent reports that the program ended with 0.
    pub has_succeeded: bool,
    /// It had ended before it was deleted, evicted or disrupted.
    pub ended_before_loss: bool,
    /// When the operator asked it to end, because a snippet of another pod had failed.
    pub end_requested: Option<Timestamp>,
    /// Name of another container that still runs, and so keeps the pod alive, although the container that runs Flux has
    /// ended. Webhooks add such containers.
    pub kept_by: Option<Box<str>>,
    /// Its program was ended by a shutdown of the instance. With `OnFailure`, the kubelet starts the container that runs
    /// Flux again, which then runs nothing. So the pod has ended for good, although its phase stays Running. (Without
    /// `OnFailure`, `has_ended` says the same, and this is false.)
    pub is_shut_down: bool,
    /// How the container that runs Flux ended. With `is_shut_down`, it may have started again since.
    pub exit: Option<Box<Exit>>,
    /// Why the pod failed, if it did, or why it does not start.
    pub trouble: Option<Box<Trouble>>,
    /// The runtime's message if it could not create the agent's init container, which is the first one. Almost always
    /// a volume is the cause.
    pub creation_failure: Option<String>,
}

/// How a container ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exit {
    /// The exit code. If only the agent saw the end, it is the code that the agent reports.
    pub code: i32,
    /// Nobody saw how the program ended, since the node, its runtime or the kubelet was restarted. The code and the
    /// reason are placeholders of the runtime or the kubelet.
    pub is_unseen: bool,
    /// The signal that ended it, if the runtime reports one.
    pub signal: Option<i32>,
    /// Kubernetes' or the runtime's reason, such as OOMKilled.
    pub reason: String,
    /// The agent's termination message.
    pub termination: Option<Termination>,
    /// The agent's message, or the first line of another program's termination message.
    pub message: String,
    /// When it ended.
    pub at: Option<Timestamp>,
}

/// What is wrong with a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trouble {
    /// Kubernetes' reason, or one of the operator's ([`Reason`]).
    pub reason: String,
    pub message: String,
    /// The cluster removed the pod (eviction, preemption, a drained node). This is no failure of the user's program.
    pub is_disruption: bool,
    /// The init container that failed.
    pub init: Option<FailedInit>,
    /// The image that cannot be pulled.
    pub pull: Option<Pull>,
}

/// An init container that failed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FailedInit {
    pub name: String,
    /// It comes from the user's pod template, so it does not run the agent.
    pub is_users: bool,
    pub exit: Exit,
}

/// Which image cannot be pulled.
#[derive(Debug, Clone, PartialEq)]
pub enum Pull {
    /// The image of the container with this name.
    Of(String),
    /// An image that is mounted as a volume. The kubelet reports it on the first container, the agent's init container.
    Mounted,
}

impl PodSeen {
    /// Whether the program has ended for good, even if the pod's phase is still Running: another container keeps the
    /// pod (`kept_by`), or a start after a shutdown runs nothing (`is_shut_down`).
    pub fn counts_as_ended(&self) -> bool {
        self.has_ended || self.kept_by.is_some() || self.is_shut_down
    }

    /// Whether its Job created it as a replacement for an earlier pod of its index. A lead that is a replacement does
    /// not run the program.
    pub fn replaces(&self) -> bool {
        self.index_failures + self.index_disruptions > 0
    }

    /// Whether it has ended, the container that runs Flux with exit code 0.
    pub fn ended_with_code_zero(&self) -> bool {
        self.has_ended && self.trouble.is_none() && self.exit.as_ref().is_some_and(|exit| exit.code == 0)
    }

    /// Whether the agent reports that the program ended with 0. The container may have ended in another way.
    pub fn has_agents_success(&self) -> bool {
        self.exit.as_deref().is_some_and(Exit::is_success)
    }

    /// Whether the cluster, a person or its node removed it before it had ended.
    pub fn was_removed(&self) -> bool {
        !self.ended_before_loss && self.has_sign_of_removal()
    }

    fn has_sign_of_removal(&self) -> bool {
        // An unseen end is such a sign: the node or its runtime was restarted.
        self.is_deleting || self.was_evicted() || self.unseen_end().is_some()
    }

    /// Whether the cluster or its node has reported that it removed the pod (other than for exceeding its own limits).
    pub fn was_evicted(&self) -> bool {
        let by_node = |trouble: &Trouble| match Reason::parse(&trouble.reason) {
            Some(Reason::Evicted) => !exceeds_own_limit(&trouble.message),
            Some(
                Reason::NodeLost
                | Reason::NodeShutdown
                | Reason::Shutdown
                | Reason::Terminated
                | Reason::Preempting,
            ) => true,
            _ => false,
        };
        self.trouble
            .as_ref()
            .is_some_and(|trouble| trouble.is_disruption || by_node(trouble))
    }

    /// The end of the container that runs Flux, or of the init container that failed, if nobody saw how it ended.
    pub fn unseen_end(&self) -> Option<&Exit> {
        let init = self
            .trouble
            .as_ref()
            .and_then(|trouble| trouble.init.as_ref())
            .map(|init| &init.exit);
        self.exit.as_deref().or(init).filter(|exit| exit.is_unseen)
    }

    /// Whether the pod has the condition DisruptionTarget. The Job's failure policy then ignores its end.
    pub fn is_disrupted(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_disruption)
    }

    /// Takes over facts that the pod's current state no longer shows. `before`: its previous state; None if it is new.
    pub(super) fn remember(&mut self, before: Option<&PodSeen>) {
        self.is_labelled |= before.is_some_and(|before| before.is_labelled);
        self.runner_ends = before
            .map_or(0, |before| before.runner_ends)
            .max(self.runner_ends);
        self.ended_before_loss = match before {
            Some(before) => {
                before.ended_before_loss
                    || (!before.has_ended && self.has_ended && !self.has_sign_of_removal())
            }
            None => self.has_ended && !self.has_sign_of_removal(),
        };
    }

    /// Whether it is the lead's pod and lacks the label and condition of [`is_labelled`](PodSeen::is_labelled). Other
    /// pods need none, so they cost no call.
    pub fn needs_label(&self) -> bool {
        self.index == 0 && !self.is_labelled && !self.is_deleting
    }

    /// Adds what the pod's spec says about its node, or about its scheduler and its queue's gate while it has no node.
    pub fn with_spec(self, spec: &PodSpecPart) -> PodSeen {
        let is_unnoticed = self.is_unnoticed && spec.node_name.is_none();
        // A user can write both names, of any length.
        let scheduler = cut(
            spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER),
            NAME_MAX,
        );
        PodSeen {
            node: spec
                .node_name
                .as_deref()
                .map(|name| cut(name, NAME_MAX).to_owned()),
            is_held_by_queue: spec.scheduling_gates.iter().any(|gate| gate.name == ELASTIC_JOB),
            is_unnoticed,
            scheduler: is_unnoticed.then(|| scheduler.into()),
            ..self
        }
    }

    /// Whether the kubelet will never start the container that runs Flux, although the pod has not ended
    /// ([`has_lost_sandbox`]). If the pod is deleted, it is replaced. False on a silent node, whose last
    /// report may no longer be true.
    pub fn never_starts(&self) -> bool {
        let has_restarted_node = |trouble: &Trouble| trouble.reason == Reason::NodeRestarted;
        !self.has_ended
            && !self.is_deleting
            && !self.is_on_silent_node
            && self.trouble.as_deref().is_some_and(has_restarted_node)
    }

    /// The pod as the watch reports it.
    pub fn of_object(pod: &PodStatusObject) -> PodSeen {
        let mut pod_seen = PodSeen::read(&pod.metadata, pod.status.as_ref(), &pod.spec).with_spec(&pod.spec);
        let status = pod.status.as_ref();
        // A pod that has lost its sandbox never starts if its restartPolicy is Never. With OnFailure, the kubelet makes
        // a new sandbox. A disrupted pod keeps the trouble that says so: otherwise `is_disrupted` would be false.
        if pod.spec.restart_policy == "Never"
            && !pod_seen.has_ended
            && !pod_seen.is_disrupted()
            && status.is_some_and(has_lost_sandbox)
        {
            pod_seen.trouble = Some(Box::new(Trouble {
                reason: Reason::NodeRestarted.into(),
                message: NEVER_STARTS.into(),
                ..Trouble::default()
            }));
        }
        // With OnFailure, the kubelet restarts the container that runs Flux if it has failed. So the pod does not count
        // as ended, which `kept_by` would mean.
        let may_return = pod.spec.restart_policy == "OnFailure" && !pod_seen.has_agents_success();
        if !may_return {
            return pod_seen;
        }
        let pod_seen = PodSeen {
            kept_by: None,
            ..pod_seen
        };
        match pod.shutdown() {
            // That the container waits for its next start is no trouble here. A disruption of the pod still is.
            Some(exit) => PodSeen {
                is_shut_down: true,
                trouble: pod_seen.trouble.filter(|trouble| trouble.is_disruption),
                exit: Some(Box::new(exit)),
                ..pod_seen
            },
            None => pod_seen,
        }
    }

    /// A pod whose spec is not known: its first container counts as the one that runs Flux.
    pub fn of(metadata: &ObjectMeta, status: Option<&PodStatus>) -> PodSeen {
        PodSeen::read(metadata, status, &PodSpecPart::default())
    }

    /// Reads a pod. If `spec` names no container that runs Flux, the first one counts as it. (The MiniCluster's sidecars
    /// are restartable init containers, so they are not in `container_statuses`.)
    fn read(metadata: &ObjectMeta, status: Option<&PodStatus>, spec: &PodSpecPart) -> PodSeen {
        let number_in_annotation = |key: &str| {
            metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(key)?.parse().ok())
        };
        let label = |key: &str| metadata.labels.as_ref().and_then(|all| all.get(key));
        let index_label = label(labels::COMPLETION_INDEX);
        let empty_status = PodStatus::default();
        let status = status.unwrap_or(&empty_status);
        let phase = PodPhase::of(status);
        let ended = phase.has_ended();
        let regular = status.container_statuses.as_deref().unwrap_or_default();
        let runner = runner_status(status, spec.runner());
        let state = runner.and_then(|runner| runner.state.as_ref());
        let deleting = metadata.deletion_timestamp.is_some();
        let is_ready =
            condition(status, "Ready").is_some_and(|(status, _, _)| status == ConditionStatus::True);
        let joined = !ended && runner.is_some_and(|runner| runner.ready);
        let exit = state
            .and_then(|state| state.terminated.as_ref())
            .map(Exit::of_runner);
        let still_runs = |container: &&ContainerStatus| {
            container
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some())
        };
        let kept_by = if exit.is_some() && !ended {
            regular.iter().find(still_runs)
        } else {
            None
        };
        PodSeen {
            name: metadata.name.clone().unwrap_or_default(),
            job_uid: job_uid(metadata),
            is_orphan: controller_uid(metadata).is_none(),
            index: index_label.and_then(|text| text.parse().ok()).unwrap_or(0),
            // Each of the two constants is a pair: an environment variable and an annotation.
            index_failures: number_in_annotation(names::INDEX_FAILURES.1).unwrap_or(0),
            index_disruptions: number_in_annotation(names::INDEX_DISRUPTIONS.1).unwrap_or(0),
            restarts: runner.map_or(0, restarts),
            // At least the number of restarts, also if the status shows no end.
            runner_ends: runner.map_or(0, |runner| {
                runner_ends(runner)
                    .last()
                    .map_or(0, |end| end.number)
                    .max(restarts(runner))
            }),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_deleting: deleting,
            deletion_requested: deletion_requested(metadata),
            grace_end: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            is_labelled: label(labels::JOB_INDEX).is_some_and(|text| Some(text) == index_label)
                && condition(status, labels::LEAD)
                    .is_some_and(|(status, _, _)| status == ConditionStatus::True),
            is_scheduled: condition(status, "PodScheduled")
                .is_some_and(|(status, _, _)| status == ConditionStatus::True),
            is_held_by_queue: false,
            // Since Kubernetes 1.35, the scheduler nominates a node before it lets the pod wait for a gang or a volume.
            is_unnoticed: !ended
                && condition(status, "PodScheduled").is_none()
                && status.nominated_node_name.is_none(),
            scheduler: None,
            node: None,
            is_on_silent_node: !ended && is_on_silent_node(status),
            has_begun: ended || containers(status).any(has_begun),
            is_running: !ended && state.is_some_and(|state| state.running.is_some()),
            has_joined: joined,
            is_ready: joined && is_ready && !deleting,
            has_ended: ended,
            has_succeeded: phase == PodPhase::Succeeded
                || ((ended || kept_by.is_some()) && exit.as_ref().is_some_and(Exit::is_success)),
            ended_before_loss: false,
            end_requested: metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(labels::END))
                .and_then(|text| leading_timestamp(text)),
            kept_by: kept_by.map(|container| container.name.as_str().into()),
            is_shut_down: false,
            exit: exit.map(Box::new),
            trouble: if labels::is_services_pod(metadata) {
                trouble_of_services(status, spec, phase, user_init(metadata))
            } else {
                trouble(status, spec, phase, user_init(metadata))
            }
            .map(Box::new),
            creation_failure: if ended { None } else { creation_failure(status) },
        }
    }
}

/// The uid of the pod's Job. A pod that was orphaned (`--cascade=orphan`) has no owner, but may still run: its label
/// has the uid.
fn job_uid(metadata: &ObjectMeta) -> Option<String> {
    let label = || metadata.labels.as_ref()?.get(labels::JOB_UID).map(String::as_str);
    let has_no_owner = metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
    controller_uid(metadata)
        .or_else(|| if has_no_owner { label() } else { None })
        .map(str::to_owned)
}

/// When the pod's deletion was first requested. A later request with a shorter grace period changes both fields, but not
/// their difference.
fn deletion_requested(metadata: &ObjectMeta) -> Option<Timestamp> {
    let end = metadata.deletion_timestamp.as_ref()?.0;
    let grace_period = metadata.deletion_grace_period_seconds.unwrap_or(0);
    Timestamp::from_second(end.as_second().saturating_sub(grace_period)).ok()
}

/// The time with which the annotation [`labels::END`] begins.
fn leading_timestamp(text: &str) -> Option<Timestamp> {
    text.split_whitespace().next()?.parse().ok()
}

/// All container statuses, those of init containers first.
fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    init.iter()
        .chain(status.container_statuses.as_deref().unwrap_or_default())
}

/// Whether the kubelet evicted the pod because it used more storage than its own limits allow: a new pod would, too.
/// (For this eviction, the kubelet sets no condition. Only its message differs from that about a node that is short of
/// something.)
fn exceeds_own_limit(message: &str) -> bool {
    [
        "exceeded its local ephemeral storage limit",
        "exceeds the total limit of containers",
        "exceeds the limit",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// Whether the container was ever started.
fn has_begun(container: &ContainerStatus) -> bool {
    !is_idle(container) || container.restart_count > 0
}

/// Whether the pod's node has stopped responding: then the node controller sets Ready to False, without a reason, and
/// leaves ContainersReady as it was. The kubelet always gives a reason.
fn is_on_silent_node(status: &PodStatus) -> bool {
    condition(status, "Ready")
        .is_some_and(|(status, reason, _)| status == ConditionStatus::False && reason.is_empty())
        && condition(status, "ContainersReady").is_some_and(|(status, _, _)| status == ConditionStatus::True)
}

/// The message about a pod that never starts: of its trouble, and of the condition that the operator gives it.
pub const NEVER_STARTS: &str = "its node was restarted before its container had started; Kubernetes does not start such a pod, so it is replaced";

/// Whether the pod has lost its sandbox after an init container had started, and before any other container had. That
/// happens if its node reboots. With restartPolicy Never, the kubelet makes no other sandbox, and the pod stays Pending
/// (kubernetes#118321).
fn has_lost_sandbox(status: &PodStatus) -> bool {
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    condition(status, "PodReadyToStartContainers")
        .is_some_and(|(status, _, _)| status == ConditionStatus::False)
        && init.iter().any(has_begun)
        && !regular.iter().any(has_begun)
}

/// Whether an error of the container runtime is about a mount. A busy node causes other errors, which pass by
/// themselves ("failed to reserve container name", "context deadline exceeded").
pub fn is_about_mount(error: &str) -> bool {
    let error = error.to_lowercase();
    ["mount", "image volume", "subpath", "path escapes"]
        .iter()
        .any(|words| error.contains(words))
}

/// The runtime's message if it could not create the agent's init container.
fn creation_failure(status: &PodStatus) -> Option<String> {
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let agent = init.iter().find(|container| container.name == AGENT)?;
    let waiting = agent.state.as_ref()?.waiting.as_ref()?;
    let has_failed = waiting.reason.as_deref().and_then(Reason::parse) == Some(Reason::CreateContainerError);
    has_failed.then(|| first_line(waiting.message.as_deref()))
}

/// containerd's reason for a container that had died when containerd started.
const CONTAINERD_UNKNOWN: &str = "Unknown";

impl Exit {
    /// Whether the agent reports that the program ended with 0.
    fn is_success(&self) -> bool {
        self.code == 0
            && self
                .termination
                .as_ref()
                .is_some_and(|termination| termination.by == Ender::Program)
    }

    /// Whether the agent reports that a shutdown of the instance ended the program.
    pub fn is_shutdown(&self) -> bool {
        self.termination
            .as_ref()
            .is_some_and(|termination| termination.shut_down)
    }

    /// How the container that runs Flux ended.
    fn of_runner(terminated: &ContainerStateTerminated) -> Exit {
        let exit_seen = exit(terminated);
        // CRI-O gives the reason Error for every code but 0, so an unseen end has to be recognised by its code. The
        // agent always reports the code that it ends with. So 255 or -1 without such a report is the runtime's
        // placeholder.
        let is_placeholder = [i32::from(UNSEEN), -1].contains(&exit_seen.code)
            && exit_seen
                .termination
                .as_ref()
                .is_none_or(|termination| i32::from(termination.code) != exit_seen.code);
        let is_unseen = exit_seen.is_unseen || is_placeholder;
        // The agent saw the end of the program or the snippet, even if the runtime did not see that of the container.
        // With another report, the end stays unseen: the node's shutdown may have caused the stop or the failure.
        let reported = exit_seen
            .termination
            .as_ref()
            .filter(|termination| matches!(termination.by, Ender::Program | Ender::Snippet));
        match reported {
            Some(termination) if is_unseen => Exit {
                code: i32::from(termination.code),
                is_unseen: false,
                signal: None,
                reason: String::new(),
                ..exit_seen
            },
            _ => Exit {
                is_unseen,
                ..exit_seen
            },
        }
    }
}

/// How a container ended, by its status alone.
fn exit(terminated: &ContainerStateTerminated) -> Exit {
    let termination = terminated.message.as_deref().and_then(Termination::decode);
    let reason = terminated.reason.clone().unwrap_or_default();
    Exit {
        code: terminated.exit_code,
        is_unseen: reason == Reason::ContainerStatusUnknown || reason == CONTAINERD_UNKNOWN,
        signal: terminated.signal.filter(|signal| *signal > 0),
        reason,
        message: match &termination {
            Some(termination) => first_line(Some(&termination.message)),
            None => first_line(terminated.message.as_deref()),
        },
        termination,
        at: terminated.finished_at.as_ref().map(|time| time.0),
    }
}

/// Status, reason and message of the pod's condition of this type.
fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<(ConditionStatus, &'a str, &'a str)> {
    let found = status
        .conditions
        .as_deref()?
        .iter()
        .find(|condition| condition.type_ == type_)?;
    Some((
        found.status.as_str().into(),
        found.reason.as_deref().unwrap_or_default(),
        found.message.as_deref().unwrap_or_default(),
    ))
}

/// Names of the init containers that come from the user's pod template, separated by commas.
fn user_init(metadata: &ObjectMeta) -> &str {
    metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(labels::USER_INIT))
        .map_or("", String::as_str)
}

/// Why the pod failed, or why it does not start. The first of: a disruption, the pod's own reason, a failed init
/// container; and if it has not ended: the scheduler's reason, a container that cannot start.
fn trouble(status: &PodStatus, spec: &PodSpecPart, phase: PodPhase, user_init: &str) -> Option<Trouble> {
    let new = |reason: &str, message: &str| Trouble {
        reason: reason.to_owned(),
        message: first_line(Some(message)),
        ..Trouble::default()
    };
    if let Some((ConditionStatus::True, reason, message)) = condition(status, "DisruptionTarget") {
        let reason = if reason.is_empty() {
            Reason::Disrupted.name()
        } else {
            reason
        };
        return Some(Trouble {
            is_disruption: true,
            ..new(reason, message)
        });
    }
    if phase == PodPhase::Failed
        && let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty())
    {
        return Some(new(reason, status.message.as_deref().unwrap_or_default()));
    }
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    for container in init {
        let terminated = container
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        // Sidecars are init containers too. A signal ends them with the pod, so they are no cause. Nor is an init
        // container the cause if a regular container has started: Kubernetes starts that after the init containers.
        if let Some(terminated) =
            terminated.filter(|end| end.exit_code != 0 && !spec.is_sidecar(&container.name))
            && phase == PodPhase::Failed
            && status
                .container_statuses
                .as_deref()
                .unwrap_or_default()
                .iter()
                .all(is_idle)
        {
            let exit = exit(terminated);
            return Some(Trouble {
                reason: Reason::InitFailed.into(),
                message: exit.message.clone(),
                init: Some(FailedInit {
                    name: container.name.clone(),
                    is_users: user_init.split(',').any(|name| name == container.name),
                    exit,
                }),
                ..Trouble::default()
            });
        }
    }
    if phase.has_ended() {
        return None;
    }
    if let Some((ConditionStatus::False, reason, message)) = condition(status, "PodScheduled")
        && matches!(
            Reason::parse(reason),
            Some(Reason::Unschedulable | Reason::SchedulingGated | Reason::SchedulerError)
        )
    {
        return Some(new(reason, message));
    }
    if let Some(failed) = failed_sidecar(status, spec) {
        return Some(failed);
    }
    let waiting = containers(status)
        .filter_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)));
    let mut stuck = waiting.filter(|(_, waiting)| is_stuck(waiting));
    stuck.next().map(|(container, waiting)| {
        let text = waiting.message.as_deref().unwrap_or_default();
        let message = format!("container {}: {text}", container.name);
        Trouble {
            pull: pull(container, waiting),
            ..new(waiting.reason.as_deref().unwrap_or_default(), &message)
        }
    })
}

/// Kubernetes' reason for a container that ends again and again, and waits for its next start.
const CRASH_LOOP: Reason = Reason::CrashLoopBackOff;

/// The first sidecar that ends again and again, or that has failed while the runner has not started. The kubelet may start
/// the runner only once it sees that the sidecar runs. Until then, the words stay while the sidecar is restarted.
fn failed_sidecar(status: &PodStatus, spec: &PodSpecPart) -> Option<Trouble> {
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    let is_starting = regular.iter().all(is_idle);
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let mut sidecars = init.iter().filter(|container| spec.is_sidecar(&container.name));
    sidecars.find_map(|container| {
        let state = container.state.as_ref()?;
        let waiting = state.waiting.as_ref();
        let is_looping = waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(CRASH_LOOP.name()));
        let last = container
            .last_state
            .as_ref()
            .and_then(|last| last.terminated.as_ref());
        let end = if is_looping {
            last?
        } else {
            let end = state.terminated.as_ref().or(last);
            end.filter(|end| is_starting && end.exit_code != 0)?
        };
        let message = how_it_failed(&format!("the sidecar {}", container.name), &exit(end));
        Some(Trouble {
            reason: Reason::SidecarFailed.into(),
            message: first_line(Some(&message)),
            ..Trouble::default()
        })
    })
}

/// As `trouble`, for the services pod, where also a container that has failed is trouble. The words stay while the
/// kubelet waits to restart it: otherwise each restart would change the status.
fn trouble_of_services(
    status: &PodStatus,
    spec: &PodSpecPart,
    phase: PodPhase,
    user_init: &str,
) -> Option<Trouble> {
    match trouble(status, spec, phase, user_init) {
        // Its message alone would name neither the container nor its exit code.
        Some(Trouble { init: Some(init), .. }) => Some(service_failed(
            &format!("init container {}", init.name),
            &init.exit,
        )),
        Some(trouble) if trouble.reason != CRASH_LOOP => Some(trouble),
        // Of an init container, the loop is all that is known.
        crash_loop => failed_service(status).or(crash_loop),
    }
}

/// The first container of the services pod that has failed, or that ends again and again. One that ends with 0 for good
/// has not failed.
fn failed_service(status: &PodStatus) -> Option<Trouble> {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    containers.iter().find_map(|container| {
        let state = container.state.as_ref()?;
        let waiting = state.waiting.as_ref();
        let end = if waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(CRASH_LOOP.name())) {
            container.last_state.as_ref()?.terminated.as_ref()?
        } else {
            state.terminated.as_ref().filter(|end| end.exit_code != 0)?
        };
        Some(service_failed(
            &format!("container {}", container.name),
            &exit(end),
        ))
    })
}

/// The trouble of the services pod if this container of it has ended.
fn service_failed(container: &str, end: &Exit) -> Trouble {
    Trouble {
        reason: Reason::ServiceFailed.into(),
        message: first_line(Some(&how_it_failed(container, end))),
        ..Trouble::default()
    }
}

/// How a container ended that the kubelet restarts.
fn how_it_failed(container: &str, end: &Exit) -> String {
    let snippet = end
        .termination
        .as_ref()
        .filter(|termination| termination.by == Ender::Snippet);
    let (what, cause) = match snippet {
        Some(termination) => (
            format!(
                "the snippet {} of {container}",
                termination.snippet.as_deref().unwrap_or_default()
            ),
            &termination.snippet_error,
        ),
        None => (container.to_owned(), &end.message),
    };
    let mut message = format!("{what} ended with exit code {}", end.code);
    // These reasons say no more than the exit code.
    if !matches!(end.reason.as_str(), "" | "Error" | "Completed") {
        message.push_str(&format!(" ({})", end.reason));
    }
    if end.code == 0 {
        message.push_str(", and the kubelet restarts it again and again");
    }
    if !cause.is_empty() {
        message.push_str(&format!(": {cause}"));
    }
    message
}

/// The image that cannot be pulled. None: the container waits for another reason. The kubelet reports a mounted image
/// as if it were the container's own, but the message then does not name the container's image.
fn pull(container: &ContainerStatus, waiting: &ContainerStateWaiting) -> Option<Pull> {
    let (reason, text) = (
        waiting.reason.as_deref()?,
        waiting.message.as_deref().unwrap_or_default(),
    );
    let is_pull = matches!(
        Reason::parse(reason),
        Some(
            Reason::ErrImagePull
                | Reason::ImagePullBackOff
                | Reason::InvalidImageName
                | Reason::ErrImageNeverPull
        )
    );
    let names_own_image = text.contains(&container.image) || image::is_named(text, &container.image);
    let is_mounted = container.name == AGENT && !text.is_empty() && !names_own_image;
    is_pull.then(|| {
        if is_mounted {
            Pull::Mounted
        } else {
            Pull::Of(container.name.clone())
        }
    })
}

/// Whether the container does not run and has not ended: it was not started yet, or waits for a restart.
fn is_idle(container: &ContainerStatus) -> bool {
    container
        .state
        .as_ref()
        .is_none_or(|state| state.running.is_none() && state.terminated.is_none())
}

/// Whether a container waits because of a problem. Every container waits before its start.
fn is_stuck(waiting: &ContainerStateWaiting) -> bool {
    let reason = waiting.reason.as_deref().unwrap_or_default();
    !matches!(reason, "" | "PodInitializing" | "ContainerCreating")
}

/// The first line of a text without terminal codes, up to `MESSAGE_MAX` characters.
pub(crate) fn first_line(text: Option<&str>) -> String {
    let line = text.unwrap_or_default().trim().lines().next().unwrap_or_default();
    cut_middle(&printable(line), MESSAGE_MAX)
}
