//! How the end of a pod is read from what its kubelet reports.

use k8s_openapi::api::core::v1::PodStatus;

use super::*;
use crate::observe::pod_end::{PodEnd, end_of, is_follower_failed_by_itself};

fn ended(code: i32, reason: &str, message: &str) -> PodSeen {
    let state =
        serde_json::json!({ "terminated": { "exitCode": code, "reason": reason, "message": message } });
    let runner = serde_json::json!({
        "name": "mc", "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state,
    });
    let status = serde_json::json!({ "phase": "Failed", "containerStatuses": [runner] });
    let status: PodStatus = serde_json::from_value(status).unwrap();
    let mut seen = PodSeen::of(&ObjectMeta::default(), Some(&status));
    // As the index does with a new pod: it notes whether the pod ended before it was removed.
    seen.remember(None);
    seen
}

fn agent_message(by: &str, code: i32) -> String {
    serde_json::json!({ "version": 1, "by": by, "code": code }).to_string()
}

#[test]
fn container_end_that_nobody_saw_counts_as_removal() {
    for (code, reason, message) in [
        // containerd after a reboot: after a power loss, and after an orderly shutdown.
        (255, "Unknown", String::new()),
        (255, "Unknown", agent_message("stop", 0)),
        (255, "Unknown", agent_message("stop", 143)),
        (255, "Unknown", agent_message("agent", 248)),
        // CRI-O.
        (255, "Error", String::new()),
        (-1, "Error", String::new()),
        (255, "Error", agent_message("stop", 143)),
        // The kubelet, for a container that the runtime does not know.
        (137, "ContainerStatusUnknown", String::new()),
    ] {
        let pod = ended(code, reason, &message);
        assert_eq!(end_of(&pod), Some(PodEnd::Removed), "{code} {reason} {message}");
        assert!(
            !is_follower_failed_by_itself(&PodSeen {
                index: 1,
                ..pod.clone()
            }),
            "{code} {reason} {message}"
        );
        let expected = if code == 137 { reason } else { "NodeRestarted" };
        assert_eq!(loss(&pod).reason, expected);
    }
}

#[test]
fn agents_report_counts_when_the_runtime_saw_no_end() {
    let success = ended(255, "Unknown", &agent_message("program", 0));
    assert_eq!(end_of(&success), Some(PodEnd::Succeeded));
    assert!(success.has_succeeded && success.has_agents_success());
    for (code, reason, by, own) in [
        (255, "Unknown", "program", 3),
        (255, "Unknown", "snippet", 4),
        (255, "Unknown", "program", 255),
        // The runtime saw that the program exited with 255 itself.
        (255, "Error", "program", 255),
        // The placeholder of a kubelet for a container that the runtime does not know.
        (137, "ContainerStatusUnknown", "program", 1),
    ] {
        let pod = ended(code, reason, &agent_message(by, own));
        assert_eq!(
            (end_of(&pod), pod.exit.unwrap().code),
            (Some(PodEnd::FailedByItself), own),
            "{code} {reason} {by} {own}"
        );
    }
    assert_eq!(
        end_of(&ended(137, "OOMKilled", "")),
        Some(PodEnd::FailedByItself),
        "the runtime saw that the kernel killed it"
    );
    assert_eq!(end_of(&ended(1, "Error", "")), Some(PodEnd::FailedByItself));
}

#[test]
fn index_of_the_pod_is_read_from_a_failed_jobs_message() {
    let index = |message: &str| {
        let condition = job::TrueCondition {
            reason: "PodFailurePolicy".into(),
            message: message.into(),
            since: None,
        };
        condition.index_of_pod()
    };
    let by_code =
        "Container mc for pod ns/my-mc-2-x7f2k failed with exit code 137 matching FailJob rule at index 1";
    assert_eq!(index(by_code), Some(2));
    let by_condition =
        "Pod ns/mc-0-abcde has condition flux-framework.org/Lead matching FailJob rule at index 2";
    assert_eq!(index(by_condition), Some(0));
    assert_eq!(index("Job was active longer than specified deadline"), None);
}

#[test]
fn sidecar_that_ended_with_the_pod_is_not_why_it_failed() {
    let container = |name: &str, code: i32| {
        serde_json::json!({
            "name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": code, "reason": "Error" } },
        })
    };
    let waiting = serde_json::json!({ "waiting": { "reason": "PodInitializing" } });
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mc-0-abcde" },
        "spec": {
            "restartPolicy": "Never", "nodeName": "n1",
            "initContainers": [{ "name": "proxy", "restartPolicy": "Always" }, { "name": "flux-view" }],
        },
        "status": {
            "phase": "Failed",
            "initContainerStatuses": [container("proxy", 143), container("flux-view", 242)],
            "containerStatuses": [{
                "name": "mc", "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": waiting,
            }],
        },
    });
    let pod = PodSeen::of_object(&serde_json::from_value(pod).unwrap());
    let trouble = pod.trouble.as_ref().unwrap();
    assert_eq!(trouble.init.as_ref().unwrap().name, "flux-view");
    assert_eq!(
        end_of(&pod),
        Some(PodEnd::NotStarted {
            new_pod_may_start: false
        })
    );
}

/// A pod whose init container has ended, and whose sandbox is gone. `other`: the rest of its status.
fn without_sandbox(policy: &str, init: serde_json::Value, other: serde_json::Value) -> PodSeen {
    let container = |name: &str, state: serde_json::Value| {
        serde_json::json!({
            "name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state,
        })
    };
    let waiting = serde_json::json!({ "waiting": { "reason": "PodInitializing" } });
    let mut status = serde_json::json!({
        "phase": "Pending",
        "conditions": [{ "type": "PodReadyToStartContainers", "status": "False" }],
        "initContainerStatuses": [container("flux-agent", init)],
        "containerStatuses": [container("mc", waiting)],
    });
    status
        .as_object_mut()
        .unwrap()
        .extend(other.as_object().unwrap().clone());
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mc-0-abcde" },
        "spec": { "restartPolicy": policy, "nodeName": "n1" }, "status": status,
    });
    PodSeen::of_object(&serde_json::from_value(pod).unwrap())
}

#[test]
fn pod_that_lost_its_sandbox_before_its_container_never_starts() {
    use serde_json::json;
    let ended = || json!({ "terminated": { "exitCode": 0, "reason": "Completed" } });
    let pod = without_sandbox("Never", ended(), json!({}));
    assert!(pod.never_starts());
    assert_eq!(pod.trouble.as_ref().unwrap().reason, "NodeRestarted");
    assert_eq!(end_of(&pod), None, "it still exists");
    let deleted = PodSeen {
        is_deleting: true,
        ..pod
    };
    assert!(!deleted.never_starts(), "it is deleted already");
    // The operator gives the pod this condition before it deletes it. The kubelet then ends the pod.
    let disrupted = json!([{ "type": "DisruptionTarget", "status": "True", "reason": "NodeRestarted" }]);
    let gone = without_sandbox(
        "Never",
        ended(),
        json!({ "phase": "Failed", "conditions": disrupted }),
    );
    assert_eq!(
        (end_of(&gone), loss(&gone).reason.as_str(), gone.is_disrupted()),
        (Some(PodEnd::Removed), "NodeRestarted", true)
    );

    let conditions = |ready: &str| json!([{ "type": "PodReadyToStartContainers", "status": ready }]);
    let running = json!({ "name": "mc", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": { "running": {} } });
    let waiting = json!({ "waiting": { "reason": "PodInitializing" } });
    for (why, policy, init, other) in [
        ("the kubelet makes another", "OnFailure", ended(), json!({})),
        ("it has none yet", "Never", waiting, json!({})),
        (
            "it has one",
            "Never",
            ended(),
            json!({ "conditions": conditions("True") }),
        ),
        (
            "old kubelets do not say",
            "Never",
            ended(),
            json!({ "conditions": [] }),
        ),
        (
            "its container has started",
            "Never",
            ended(),
            json!({ "containerStatuses": [running] }),
        ),
        ("it has ended", "Never", ended(), json!({ "phase": "Failed" })),
    ] {
        let pod = without_sandbox(policy, init, other);
        assert!(!pod.never_starts(), "{why}");
        assert_eq!(pod.trouble, None, "{why}");
    }
}

#[test]
fn deletion_is_requested_a_grace_period_before_its_timestamp() {
    let metadata = serde_json::json!({
        "deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 30,
    });
    let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
    let times = |metadata: &ObjectMeta| {
        let pod = PodSeen::of(metadata, None);
        (pod.deletion_requested, pod.grace_end)
    };
    let at = |second: &str| Some(format!("2026-01-01T00:00:{second}Z").parse().unwrap());
    assert_eq!(times(&metadata), (at("10"), at("40")));
    assert_eq!(times(&ObjectMeta::default()), (None, None));
}

#[test]
fn texts_that_a_job_wrote_have_no_terminal_codes() {
    let by_agent = serde_json::json!({
        "version": 1, "by": "snippet", "code": 3, "snippetError": "\u{1b}[2Jgone", "message": "\u{1b}[2Jgone",
    });
    for (message, has_termination) in [(by_agent.to_string(), true), ("\u{1b}[2Jgone".to_owned(), false)] {
        let exit = ended(3, "Error", &message).exit.unwrap();
        assert_eq!(exit.message, "\u{fffd}[2Jgone");
        let snippet_error = exit.termination.map(|termination| termination.snippet_error);
        assert_eq!(
            snippet_error,
            has_termination.then(|| "\u{fffd}[2Jgone".to_owned())
        );
    }
}
