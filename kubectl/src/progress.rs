//! The progress of a start in four stages: pods, view (Flux and its libraries), brokers, quorum. Pure.

use flux_operator_core::labels;
use flux_operator_core::vocabulary::{ConditionType, Reason};
use k8s_openapi::api::core::v1::Pod;

use crate::observed::{self, Snapshot};

/// State of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// An earlier stage comes first.
    Later,
    Now,
    /// Something blocks it: a problem with the pods, or a suspension.
    Stuck,
    Done,
}

/// A stage of a start, one line on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub name: &'static str,
    pub state: State,
    pub text: String,
}

/// Values of `status.reason` in an ordinary start, which mean no trouble with the pods.
const NO_TROUBLE: &[Reason] = &[
    Reason::BrokersNotReady,
    Reason::PodsStarting,
    Reason::JobCreated,
    Reason::NotRequested,
    Reason::LeadNotRunning,
];

/// The four stages of a start.
pub fn stages(snapshot: &Snapshot) -> [Stage; 4] {
    [
        pods(snapshot),
        view(snapshot),
        brokers(snapshot),
        quorum(snapshot),
    ]
}

fn stage(name: &'static str, state: State, text: impl Into<String>) -> Stage {
    Stage {
        name,
        state,
        text: text.into(),
    }
}

/// The operator's reason and message, unless the reason is that of an ordinary start.
pub fn trouble(snapshot: &Snapshot) -> Option<String> {
    let status = snapshot.status()?;
    // A reason that Kubernetes or the agent has set may be none of `Reason`. It counts as trouble.
    let is_trouble = |reason: &&str| {
        !reason.is_empty() && Reason::parse(reason).is_none_or(|reason| !NO_TROUBLE.contains(&reason))
    };
    let reason = status.reason.as_deref().filter(is_trouble)?;
    Some(format!(
        "{reason}: {}",
        status.message.as_deref().unwrap_or("no details")
    ))
}

/// How many pods' runners have started.
fn started(snapshot: &Snapshot) -> usize {
    let pods = snapshot.latest_pods();
    pods.filter(|pod| observed::started(pod).is_some()).count()
}

fn are_all_started(snapshot: &Snapshot) -> bool {
    usize::try_from(snapshot.size()).is_ok_and(|size| started(snapshot) >= size)
}

fn pods(snapshot: &Snapshot) -> Stage {
    let (size, existing) = (snapshot.size(), snapshot.own_pods().count());
    let scheduled = snapshot
        .latest_pods()
        .filter(|pod| observed::is_scheduled(pod))
        .count();
    let count = format!("{} of {size} running", started(snapshot));
    if snapshot.has_been_up() || are_all_started(snapshot) {
        return stage("pods", State::Done, count);
    }
    if snapshot.is_true(ConditionType::Suspended) {
        let text = match snapshot.status().and_then(|status| status.message.clone()) {
            Some(message) if snapshot.reason() == Some(Reason::Queued) => message,
            _ => "suspended: spec.suspend is true, or its Job was suspended".to_owned(),
        };
        return stage("pods", State::Stuck, text);
    }
    match trouble(snapshot) {
        Some(trouble) => stage("pods", State::Stuck, format!("{count}; {trouble}")),
        None if existing == 0 => stage(
            "pods",
            State::Now,
            format!("0 of {size}: the operator has not created any yet"),
        ),
        None => stage("pods", State::Now, format!("{count}, {scheduled} scheduled")),
    }
}

fn view(snapshot: &Snapshot) -> Stage {
    // The lead's pod stands for all: each pod prepares its view with the same init containers.
    let lead = snapshot.lead().filter(|lead| observed::is_scheduled(lead));
    match lead {
        _ if snapshot.has_been_up() => stage("view", State::Done, "Flux is in the pods"),
        None => stage("view", State::Later, "after the pods are scheduled"),
        Some(lead) if observed::started(lead).is_some() => stage("view", State::Done, "Flux is in the pods"),
        Some(lead) => stage("view", State::Now, preparing(lead)),
    }
}

/// What the lead's pod does before its runner starts.
fn preparing(lead: &Pod) -> String {
    let Some((container, waiting_reason)) = observed::initializing(lead) else {
        return "the lead's image is pulled and started".into();
    };
    let what = match container {
        labels::AGENT => "the agent is being installed in the lead's pod".to_owned(),
        other => format!("init container {other} prepares the lead's pod"),
    };
    match waiting_reason {
        // PodInitializing says only that an earlier init container still runs.
        Some(reason) if reason != "PodInitializing" => format!("{what} ({reason})"),
        _ => what,
    }
}

fn brokers(snapshot: &Snapshot) -> Stage {
    let size = snapshot.size();
    let ready = snapshot.status().map_or(0, |status| status.ready_size);
    let are_all_ready = size > 0 && ready >= size;
    let message = snapshot
        .status()
        .and_then(|status| status.message.as_deref())
        .unwrap_or_default();
    let is_explained = snapshot.reason() == Some(Reason::BrokersNotReady) && !message.is_empty();
    if are_all_ready || snapshot.has_been_up() {
        stage("brokers", State::Done, format!("{ready} of {size} ready"))
    } else if snapshot.started_lead().is_none() {
        stage("brokers", State::Later, "after the lead has started")
    } else if is_explained {
        stage(
            "brokers",
            State::Now,
            format!("{ready} of {size} ready; {message}"),
        )
    } else if are_all_started(snapshot)
        // Until then, the stage of the pods shows it.
        && let Some(trouble) = trouble(snapshot)
    {
        stage(
            "brokers",
            State::Stuck,
            format!("{ready} of {size} ready; {trouble}"),
        )
    } else {
        stage("brokers", State::Now, format!("{ready} of {size} ready"))
    }
}

fn quorum(snapshot: &Snapshot) -> Stage {
    let needed = match snapshot.quorum() {
        Some(1) => "1 broker".to_owned(),
        Some(quorum) => format!("{quorum} brokers"),
        // The quorum is the size at the Job's creation, which has changed since, or may have (`Snapshot::quorum`).
        None => "as many brokers as `size` was at the start".to_owned(),
    };
    let ready = snapshot.status().map_or(0, |status| status.ready_size);
    if snapshot.has_been_up() {
        let what = if snapshot.runs_program() {
            "the job starts"
        } else {
            "the instance is up"
        };
        stage("quorum", State::Done, format!("{needed}: {what}"))
    } else if snapshot.started_lead().is_none() {
        stage("quorum", State::Later, format!("needed: {needed}"))
    } else {
        stage("quorum", State::Now, format!("{ready} ready; needed: {needed}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(mut status: Value, pods: &[Value]) -> Snapshot {
        status["jobUid"] = json!("job");
        let cluster = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" },
            "spec": { "size": 2, "containers": [{ "image": "a" }] }, "status": status,
        });
        let pods = pods.iter().map(|pod| {
            let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
            (observed::name(&pod).to_owned(), pod)
        });
        Snapshot {
            cluster: Some(serde_json::from_value(cluster).unwrap()),
            pods: pods.collect(),
        }
    }

    fn pod(index: u32, node: bool, status: Value) -> Value {
        let mut pod = json!({
            "metadata": { "name": format!("mc-{index}-x"), "uid": format!("u{index}"),
                "labels": { "batch.kubernetes.io/job-completion-index": index.to_string(),
                    "batch.kubernetes.io/controller-uid": "job" } },
            "spec": { "containers": [{ "name": "main" }] }, "status": status,
        });
        if node {
            pod["spec"]["nodeName"] = json!("n1");
        }
        pod
    }

    fn states(snapshot: &Snapshot) -> Vec<(State, String)> {
        stages(snapshot)
            .into_iter()
            .map(|stage| (stage.state, stage.text))
            .collect()
    }

    #[test]
    fn quorum_is_unknown_once_the_size_may_have_changed() {
        let quorum_of = |status: Value| snapshot(status, &[]).quorum();
        assert_eq!(quorum_of(json!({})), Some(2));
        assert_eq!(quorum_of(json!({ "maximumSize": 2 })), Some(2));
        assert_eq!(quorum_of(json!({ "maximumSize": 4 })), None);
    }

    #[test]
    fn each_step_of_a_start_has_its_line() {
        let nothing = states(&snapshot(json!({}), &[]));
        assert_eq!(
            nothing[0],
            (State::Now, "0 of 2: the operator has not created any yet".into())
        );
        assert!(
            nothing[1..].iter().all(|(state, _)| *state == State::Later),
            "{nothing:?}"
        );

        let init = json!({ "initContainerStatuses": [
            { "name": "flux-agent", "image": "", "imageID": "", "ready": false, "restartCount": 0,
              "state": { "waiting": { "reason": "PodInitializing" } } }] });
        let placed = states(&snapshot(
            json!({}),
            &[pod(0, true, init), pod(1, false, json!({}))],
        ));
        assert_eq!(placed[0].1, "0 of 2 running, 1 scheduled");
        assert_eq!(
            placed[1],
            (
                State::Now,
                "the agent is being installed in the lead's pod".into()
            )
        );

        // The kubelet sets `started` for each init container that runs.
        let preparing = |policy: Value| {
            let mut lead = pod(
                0,
                true,
                json!({ "initContainerStatuses": [{ "name": "flux-view", "image": "", "imageID": "", "ready": false,
                    "restartCount": 0, "started": true, "state": { "running": {} } }] }),
            );
            lead["spec"]["initContainers"] = json!([{ "name": "flux-view", "restartPolicy": policy }]);
            states(&snapshot(json!({}), &[lead])).swap_remove(1).1
        };
        assert_eq!(
            preparing(Value::Null),
            "init container flux-view prepares the lead's pod"
        );
        assert_eq!(
            preparing("Always".into()),
            "the lead's image is pulled and started"
        );

        let run = json!({ "containerStatuses": [{ "name": "main", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": { "running": {} } }] });
        let waits = json!({ "reason": "BrokersNotReady", "message": "rank 1 is missing", "readySize": 1 });
        let running = states(&snapshot(
            waits,
            &[pod(0, true, run.clone()), pod(1, true, json!({}))],
        ));
        assert_eq!(running[2], (State::Now, "1 of 2 ready; rank 1 is missing".into()));
        assert_eq!(running[3], (State::Now, "1 ready; needed: 2 brokers".into()));

        // Brokers may wait for the services.
        let services =
            json!({ "reason": "ErrImagePull", "message": "services pod mc-services: no such image" });
        let waiting = states(&snapshot(
            services,
            &[pod(0, true, run.clone()), pod(1, true, run.clone())],
        ));
        assert_eq!(
            waiting[2],
            (
                State::Stuck,
                "0 of 2 ready; ErrImagePull: services pod mc-services: no such image".into()
            )
        );

        let up = json!({ "readySize": 2, "conditions": [{ "type": "JobMiniClusterReady", "status": "True",
            "lastTransitionTime": "", "reason": "", "message": "" }] });
        let up = states(&snapshot(up, &[pod(0, true, run.clone()), pod(1, true, run)]));
        assert!(up.iter().all(|(state, _)| *state == State::Done), "{up:?}");
        assert_eq!(up[3].1, "2 brokers: the instance is up");
    }

    #[test]
    fn progress_counts_an_index_once_when_its_pod_is_replaced() {
        let status = |state: Value| {
            json!({ "containerStatuses": [{ "name": "main", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": state }] })
        };
        let mut first = pod(1, true, status(json!({ "terminated": { "exitCode": 1 } })));
        first["metadata"]["name"] = json!("mc-1-a");
        first["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        let mut second = pod(1, true, status(json!({ "running": {} })));
        second["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:09Z");
        let lead = pod(0, true, status(json!({ "waiting": {} })));
        let shown = states(&snapshot(json!({}), &[lead, first, second])).swap_remove(0);
        assert_eq!(shown, (State::Now, "1 of 2 running, 2 scheduled".into()));
    }

    #[test]
    fn progress_shows_the_queue_reason() {
        let suspended = json!([{ "type": "Suspended", "status": "True", "lastTransitionTime": "", "reason": "", "message": "" }]);
        let status =
            json!({ "reason": "Queued", "message": "waits in queue team: no cpu", "conditions": suspended });
        let pods = |status| states(&snapshot(status, &[])).swap_remove(0);
        assert_eq!(pods(status), (State::Stuck, "waits in queue team: no cpu".into()));
        assert!(
            pods(json!({ "reason": "Suspended", "conditions": suspended }))
                .1
                .starts_with("suspended: spec.suspend")
        );
    }

    #[test]
    fn progress_shows_why_pods_are_unschedulable() {
        let status = json!({ "reason": "Unschedulable", "message": "0/1 nodes: insufficient cpu" });
        let (state, text) = states(&snapshot(status, &[pod(0, false, json!({}))])).swap_remove(0);
        assert_eq!(
            (state, text.as_str()),
            (
                State::Stuck,
                "0 of 2 running; Unschedulable: 0/1 nodes: insufficient cpu"
            )
        );
    }
}
