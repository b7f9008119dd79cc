//! How the end of a pod is read from what its kubelet reports.

use k8s_openapi::api::core::v1::PodStatus;

use super::*;
use crate::observe::pod_end::{PodEnd, end_of, has_failed_by_itself};

fn ended(code: i32, reason: &str, message: &str) -> PodSeen {
    let state =
        serde_json::json!({ "terminated": { "exitCode": code, "reason": reason, "message": message } });
    let runner = serde_json::json!({
        "name": "mc", "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state,
    });
    let status = serde_json::json!({ "phase": "Failed", "containerStatuses": [runner] });
    let status: PodStatus = serde_json::from_value(status).unwrap();
    let mut seen = PodSeen::of(&ObjectMeta::default(), Some(&status));
    seen.remember(None);
    seen
}

fn agent_message(by: &str, code: i32) -> String {
    serde_json::json!({ "version": 1, "by": by, "code": code }).to_string()
}

#[test]
fn container_end_unseen_by_runtime_counts_as_node_restart() {
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
        assert_eq!(
            end_of(&pod, false),
            Some(PodEnd::Removed),
            "{code} {reason} {message}"
        );
        assert!(
            !has_failed_by_itself(&PodSeen {
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
fn agents_word_counts_where_the_runtime_saw_no_end() {
    let success = ended(255, "Unknown", &agent_message("program", 0));
    assert_eq!(end_of(&success, false), Some(PodEnd::Succeeded));
    assert!(success.has_succeeded && success.has_agents_success());
    for (code, reason, by, own) in [
        (255, "Unknown", "program", 3),
        (255, "Unknown", "snippet", 4),
        (255, "Unknown", "program", 255),
        // A program that exits with 255 itself, and codes from the kernel.
        (255, "Error", "program", 255),
        (137, "ContainerStatusUnknown", "program", 1),
    ] {
        let pod = ended(code, reason, &agent_message(by, own));
        assert_eq!(
            (end_of(&pod, false), pod.exit.unwrap().code),
            (Some(PodEnd::FailedByItself), own),
            "{code} {reason} {by} {own}"
        );
    }
    assert_eq!(
        end_of(&ended(137, "OOMKilled", ""), false),
        Some(PodEnd::FailedByItself),
        "the kernel's"
    );
    assert_eq!(
        end_of(&ended(1, "Error", ""), false),
        Some(PodEnd::FailedByItself)
    );
}

#[test]
fn failed_job_names_the_pod_in_its_message() {
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
