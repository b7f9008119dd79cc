//! The state of a MiniCluster and its pods, as the API server last returned them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::failure::FAILED;
use flux_operator_core::observe::controller_uid;
use flux_operator_core::observe::pod::is_runner;
use flux_operator_core::observe::pod_phase::PodPhase;
use flux_operator_core::vocabulary::{ConditionType, Reason};
use flux_operator_core::{labels, previous_status};
use flux_shared::crd::v1alpha2::{Container, MiniCluster, MiniClusterSpec, MiniClusterStatus};
use flux_shared::exit::Category;
use flux_shared::names::{INDEX_DISRUPTIONS, INDEX_FAILURES};
use flux_shared::phase::Phase;
use flux_shared::termination::{Ender, Termination};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The remedy for a MiniCluster without a status.
pub const NO_OPERATOR: &str = "The operator has not processed it yet. If that does not change, the operator is not running or watches another namespace: ask your administrator.";

/// If a MiniCluster has no status after this time, probably no operator works on it, and the user is told so.
pub const SILENT_OPERATOR: Duration = Duration::from_secs(10);

/// How much longer than its grace period the deletion of a pod may take. Clocks may differ, too.
const KUBELET_DELAY: SignedDuration = SignedDuration::from_secs(60);

/// A MiniCluster and the pods of brokers, as last seen.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub cluster: Option<MiniCluster>,
    /// Pods by name. Some may belong to an earlier MiniCluster with the same name: [`Snapshot::own_pods`] leaves these
    /// out.
    pub pods: BTreeMap<String, Pod>,
}

/// The obstacles that were printed in the current phase. Each is printed once: while an image cannot be pulled, the
/// kubelet alternates between two of them.
#[derive(Debug, Default)]
pub struct Obstacles {
    phase: String,
    printed: BTreeSet<String>,
}

impl Obstacles {
    /// Whether this obstacle was not printed in this phase yet; remembers it.
    pub fn is_new(&mut self, phase: &str, why: &str) -> bool {
        if self.phase != phase {
            self.phase = phase.to_owned();
            self.printed.clear();
        }
        self.printed.insert(why.to_owned())
    }
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerStart {
    pub pod_uid: String,
    /// Name of the container.
    pub container: String,
    /// Number of restarts of the container before this run.
    pub restarts: i32,
}

impl Snapshot {
    pub fn status(&self) -> Option<&MiniClusterStatus> {
        self.cluster.as_ref()?.status.as_ref()
    }

    /// How many pods there should be.
    pub fn size(&self) -> i32 {
        self.cluster.as_ref().map_or(0, |cluster| cluster.spec.size)
    }

    /// How many brokers the job waits for: `minSize`, or without it the size when the pods started. No field has that
    /// size, so this is `spec.size` if that has not changed since the first Job. None: it has, or may have.
    pub fn quorum(&self) -> Option<i32> {
        let spec = &self.cluster.as_ref()?.spec;
        // 0, from clients with Go types, means that it is not set.
        let is_set = |size: &i32| *size > 0;
        let has_maximum = spec.max_size.filter(is_set).is_some();
        // Without `maxSize`, `status.maximumSize` is the size of the first Job. With `maxSize`, it is the maximum,
        // which does not say whether the size has changed.
        let first_size = self
            .status()
            .and_then(|status| status.maximum_size)
            .filter(is_set);
        let is_unchanged = !has_maximum && first_size.is_none_or(|first| first == spec.size);
        spec.min_size.filter(is_set).or(is_unchanged.then_some(spec.size))
    }

    /// The status' reason. None: there is none, or it is not in this set.
    pub fn reason(&self) -> Option<Reason> {
        Reason::parse(self.status()?.reason.as_deref()?)
    }

    pub fn is_true(&self, type_: ConditionType) -> bool {
        self.status()
            .is_some_and(|status| previous_status::is_true(status, type_))
    }

    /// Whether the operator has found the spec invalid.
    pub fn is_invalid(&self) -> bool {
        self.status().and_then(MiniClusterStatus::phase) == Some(Phase::Invalid)
    }

    /// Whether a program runs in the instance, and ends it.
    pub fn runs_program(&self) -> bool {
        self.cluster
            .as_ref()
            .is_some_and(|cluster| runs_program(&cluster.spec))
    }

    /// Whether the instance is up, or has been up before. A new Job or a suspension resets this.
    pub fn has_been_up(&self) -> bool {
        let timeline = self.status().and_then(|status| status.timeline.as_ref());
        self.is_true(ConditionType::JobMiniClusterReady)
            || timeline.is_some_and(|timeline| timeline.ready.is_some())
    }

    /// The MiniCluster's pods, without those of another MiniCluster with the same name.
    pub fn own_pods(&self) -> impl Iterator<Item = &Pod> {
        let is_own = |pod: &&Pod| {
            self.cluster
                .as_ref()
                .is_some_and(|cluster| belongs_to(pod, cluster))
        };
        self.pods.values().filter(is_own)
    }

    /// The latest pod of each index. The pods that these have replaced may still exist.
    pub fn latest_pods(&self) -> impl Iterator<Item = &Pod> {
        let mut latest = BTreeMap::new();
        for pod in self.own_pods() {
            let Some(index) = index(pod) else { continue };
            let known = latest.entry(index).or_insert(pod);
            if created(pod) >= created(known) {
                *known = pod;
            }
        }
        latest.into_values()
    }

    /// The latest pod of index 0.
    pub fn lead(&self) -> Option<&Pod> {
        lead_of(self.own_pods())
    }

    /// The lead and its runner's start. None: the runner has not started, so there is no log.
    pub fn started_lead(&self) -> Option<(&Pod, ContainerStart)> {
        let lead = self.lead()?;
        Some((lead, started(lead)?))
    }
}

/// Whether a program runs in the instance, and ends it. Otherwise the instance stays up until it is stopped.
pub fn runs_program(spec: &MiniClusterSpec) -> bool {
    let runner = runner_position(spec).and_then(|position| spec.containers.get(position));
    // Diagnostics run instead of the command.
    !spec.interactive && runner.is_some_and(|runner| !runner.diagnostics && has_command_or_script(runner))
}

/// Which of the MiniCluster's containers runs Flux.
pub fn runner_position(spec: &MiniClusterSpec) -> Option<usize> {
    (0..spec.containers.len()).find(|position| spec.runs_flux(*position))
}

fn has_command_or_script(runner: &Container) -> bool {
    let script = runner
        .commands
        .as_ref()
        .and_then(|commands| commands.script.as_ref());
    [runner.command.as_ref(), script]
        .into_iter()
        .flatten()
        .any(|text| !text.trim().is_empty())
}

/// Whether the pod belongs to the current Job of this MiniCluster, or to one that a restart has replaced, or is its
/// services pod. Pods of a deleted MiniCluster with the same name may still exist.
pub fn belongs_to(pod: &Pod, cluster: &MiniCluster) -> bool {
    if is_services_pod(pod) {
        return controller_uid(&pod.metadata) == cluster.metadata.uid.as_deref();
    }
    let job = pod
        .metadata
        .labels
        .as_ref()
        .and_then(|all| all.get(labels::JOB_UID));
    let Some((job, status)) = job.zip(cluster.status.as_ref()) else {
        return false;
    };
    let replaced = status
        .restarts
        .iter()
        .filter_map(|restart| restart.job_uid.as_ref());
    status.job_uid.iter().chain(replaced).any(|uid| uid == job)
}

/// The latest pod of index 0.
pub fn lead_of<'a>(pods: impl Iterator<Item = &'a Pod>) -> Option<&'a Pod> {
    latest_of(0, pods)
}

/// The latest pod of an index.
pub fn latest_of<'a>(index: u32, pods: impl Iterator<Item = &'a Pod>) -> Option<&'a Pod> {
    pods.filter(|pod| self::index(pod) == Some(index))
        .max_by_key(|pod| created(pod))
}

pub fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// The completion index of a broker's pod. (With `minimalService`, the services pod has this label, too.)
pub fn index(pod: &Pod) -> Option<u32> {
    if is_services_pod(pod) {
        return None;
    }
    labels::completion_index(&pod.metadata)
}

/// Whether it is the pod of `spec.services`.
pub fn is_services_pod(pod: &Pod) -> bool {
    labels::is_services_pod(&pod.metadata)
}

pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Name of the container that runs Flux. If none is recognised, because a webhook has wrapped its command, that of the
/// pod's first. (The MiniCluster's sidecars are init containers.)
pub fn runner(pod: &Pod) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    let runner = containers
        .iter()
        .find(|container| is_runner(container.command.as_deref().unwrap_or_default()));
    Some(runner.or(containers.first())?.name.as_str())
}

/// Whether the pod has a container, init container or ephemeral container of this name.
pub fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let others = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    spec.containers
        .iter()
        .chain(others)
        .map(|container| &container.name)
        .chain(ephemeral.map(|container| &container.name))
        .any(|container| container == name)
}

/// The status of a container, init container or ephemeral container.
fn container_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .find(|container| container.name == name)
}

fn container_state<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerState> {
    container_status(pod, name)?.state.as_ref()
}

fn runner_status(pod: &Pod) -> Option<&ContainerStatus> {
    container_status(pod, runner(pod)?)
}

/// The start of the runner that runs or has ended. None: it has not started, or waits to be restarted.
pub fn started(pod: &Pod) -> Option<ContainerStart> {
    started_container(pod, runner(pod)?)
}

/// As `started`, of the container of this name.
pub fn started_container(pod: &Pod, name: &str) -> Option<ContainerStart> {
    let state = container_state(pod, name)?;
    (state.running.is_some() || state.terminated.is_some()).then(|| ContainerStart {
        pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
        container: name.to_owned(),
        restarts: restarts(pod, name),
    })
}

/// How often the container was restarted.
pub fn restarts(pod: &Pod, container: &str) -> i32 {
    container_status(pod, container).map_or(0, |status| status.restart_count)
}

pub fn is_running(pod: &Pod) -> bool {
    runner(pod)
        .and_then(|runner| container_state(pod, runner))
        .is_some_and(|state| state.running.is_some())
}

/// Whether the runner has ended before. It may wait to be restarted.
pub fn was_restarted(pod: &Pod) -> bool {
    runner_status(pod).is_some_and(|status| status.restart_count > 0) || last_end(pod).is_some()
}

/// The end of the runner's earlier start.
fn last_end(pod: &Pod) -> Option<&ContainerStateTerminated> {
    runner_status(pod)?.last_state.as_ref()?.terminated.as_ref()
}

/// Whether the Job created the pod as a replacement for an earlier pod of its index.
pub fn replaces(pod: &Pod) -> bool {
    let is_counted = |annotation: &str| {
        let count = pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(annotation));
        count.is_some_and(|count| count != "0")
    };
    is_counted(INDEX_FAILURES.1) || is_counted(INDEX_DISRUPTIONS.1)
}

/// Whether the runner's earlier start has failed before it ran the program: the runtime could not start the container,
/// or its agent reports that it, or a snippet, failed.
pub fn has_failed_before_program(pod: &Pod) -> bool {
    let Some(end) = last_end(pod) else {
        return false;
    };
    if matches!(end.reason.as_deref(), Some("StartError" | "ContainerCannotRun")) {
        return true;
    }
    let termination = end.message.as_deref().and_then(Termination::decode);
    termination.is_some_and(|termination| {
        let has_failed = match termination.by {
            Ender::Snippet => true,
            // In these cases, the agent did not run the program again, has a bug, or names no cause.
            Ender::Agent => !matches!(
                termination.category,
                None | Some(Category::LeadLost | Category::Internal)
            ),
            Ender::Program | Ender::Stop => false,
        };
        has_failed && termination.program_code.is_none()
    })
}

/// Whether the runner's earlier start ended because somebody shut the instance down. Its program does not start again.
pub fn was_shut_down(pod: &Pod) -> bool {
    last_end(pod)
        .and_then(|end| Termination::decode(end.message.as_deref()?))
        .is_some_and(|termination| termination.shut_down)
}

/// Whether this start of a container is over.
pub fn is_over(pod: &Pod, start: &ContainerStart) -> bool {
    let has_ended = |status| PodPhase::of(status).has_ended();
    !is_pod_of(pod, start)
        || pod.status.as_ref().is_some_and(has_ended)
        || container_state(pod, &start.container).is_some_and(|state| state.terminated.is_some())
        || restarts(pod, &start.container) > start.restarts
}

/// Whether a deleted pod should have been gone for a while. Its node is probably dead: the pod then stays, and its
/// state says that it runs.
pub fn is_overdue(pod: &Pod, now: Timestamp) -> bool {
    // The end of the grace period.
    let deadline = pod.metadata.deletion_timestamp.as_ref();
    deadline.is_some_and(|deadline| now.duration_since(deadline.0) > KUBELET_DELAY)
}

/// Whether `pod` is the pod of this start, not another pod with the same name.
pub fn is_pod_of(pod: &Pod, start: &ContainerStart) -> bool {
    pod.metadata.uid.as_deref() == Some(start.pod_uid.as_str())
}

/// Whether the pod has a node.
pub fn is_scheduled(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// Name of the first init container that has not finished, and the reason if it waits.
pub fn initializing(pod: &Pod) -> Option<(&str, Option<&str>)> {
    let all = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    // A sidecar (an init container that keeps running) counts as finished once it has started. Of the others, `started`
    // only says that they run.
    let is_sidecar = |name: &str| {
        let mut specified = pod
            .spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten());
        specified
            .any(|container| container.name == name && container.restart_policy.as_deref() == Some("Always"))
    };
    let is_over = |container: &ContainerStatus| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.terminated.as_ref().is_some_and(|end| end.exit_code == 0))
            || (container.started == Some(true) && is_sidecar(&container.name))
    };
    let current = all.iter().find(|container| !is_over(container))?;
    let waits = current.state.as_ref().and_then(|state| state.waiting.as_ref());
    Some((
        current.name.as_str(),
        waits.and_then(|waiting| waiting.reason.as_deref()),
    ))
}

/// The phase. `Unseen` if the operator has not set one.
pub fn phase_of(status: Option<&MiniClusterStatus>) -> &str {
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Unseen")
}

/// Whether the job has ended.
pub fn is_finished(status: Option<&MiniClusterStatus>) -> bool {
    status
        .and_then(MiniClusterStatus::phase)
        .is_some_and(Phase::is_finished)
}

/// The plugin's exit code for a job that has ended. `is_complete`: the job has not failed. The code is never 0 for a
/// failed job, although a program that was stopped at its deadline may have exited with 0.
pub fn code_of(exit_code: Option<i32>, is_complete: bool) -> u8 {
    match exit_code {
        Some(0) if !is_complete => FAILED,
        Some(code) => u8::try_from(code).unwrap_or(FAILED),
        None if is_complete => 0,
        None => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_another_minicluster_of_the_name_do_not_count() {
        let pod = |name: &str, job: &str| {
            let pod: Pod = serde_json::from_value(serde_json::json!({ "metadata": { "name": name, "labels": {
                "batch.kubernetes.io/job-completion-index": "0", "batch.kubernetes.io/controller-uid": job } } }))
            .unwrap();
            (name.to_owned(), pod)
        };
        let cluster = serde_json::json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "mc" }, "spec": { "size": 1, "containers": [{ "image": "a" }] },
            "status": { "jobUid": "second", "restarts": [{ "time": "", "reason": "", "message": "", "jobUid": "first" }] } });
        let snapshot = Snapshot {
            cluster: Some(serde_json::from_value(cluster).unwrap()),
            pods: [pod("a", "first"), pod("b", "second"), pod("c", "of another")].into(),
        };
        assert_eq!(snapshot.own_pods().map(name).collect::<Vec<_>>(), ["a", "b"]);
        let unprocessed = Snapshot {
            cluster: snapshot.cluster.map(|cluster| MiniCluster {
                status: None,
                ..cluster
            }),
            pods: snapshot.pods,
        };
        assert!(unprocessed.lead().is_none());
    }

    #[test]
    fn runner_is_found_when_webhook_adds_container_first() {
        let agent = flux_shared::paths::AGENT_FILE;
        let pod = |agent: &str| -> Pod {
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": "mc-0-x", "uid": "u" },
                "spec": { "containers": [{ "name": "istio-proxy" }, { "name": "app", "command": [agent, "run"] }] },
                "status": { "containerStatuses": [
                    { "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 2,
                        "state": { "terminated": { "exitCode": 0 } } },
                    { "name": "istio-proxy", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "state": { "running": {} } },
                ] },
            }))
            .unwrap()
        };
        let injected = pod(agent);
        assert_eq!(runner(&injected), Some("app"));
        assert!(!is_running(&injected) && restarts(&injected, runner(&injected).unwrap()) == 2);
        assert_eq!(runner(&pod("/wrapper")), Some("istio-proxy"));
    }

    #[test]
    fn run_exits_with_job_code_and_1_when_a_failure_has_none() {
        for code in 0..=255_u8 {
            assert_eq!(code_of(Some(code.into()), code == 0), code);
        }
        assert_eq!(
            (
                code_of(None, true),
                code_of(None, false),
                code_of(Some(-1), false),
                code_of(Some(0), false)
            ),
            (0, 1, 1, 1)
        );
    }
}
