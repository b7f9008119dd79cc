//! Containers that a webhook puts beside ours, leads that were shut down, and pods that have lost their Job.

use super::*;
use crate::observe::pod::PodStatusObject;
use crate::observe::pod_end::{PodEnd, end_of};

fn seen(phase: &str, policy: &str, states: &[(&str, serde_json::Value)]) -> PodSeen {
    let statuses = states.iter().map(|(name, state)| {
        serde_json::json!({
            "name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state,
        })
    });
    let agent = serde_json::json!({ "name": "mc", "command": ["/etc/flux-agent/bin/flux-agent", "run"] });
    let pod = serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mc-0-abcde" },
        "spec": { "restartPolicy": policy, "containers": [{ "name": "aaa" }, agent] },
        "status": { "phase": phase, "containerStatuses": statuses.collect::<Vec<_>>() },
    });
    PodSeen::of_object(&serde_json::from_value::<PodStatusObject>(pod).unwrap())
}

fn terminated(code: i32) -> serde_json::Value {
    let message = serde_json::json!({ "version": 1, "by": "program", "code": code }).to_string();
    serde_json::json!({ "terminated": { "exitCode": code, "reason": "Error", "message": message } })
}

fn running() -> serde_json::Value {
    serde_json::json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } })
}

/// The kubelet sorts container statuses by name.
#[test]
fn result_is_that_of_the_container_that_runs_flux() {
    let runs = seen("Running", "Never", &[("aaa", terminated(0)), ("mc", running())]);
    assert_eq!((end_of(&runs), runs.is_running, runs.exit), (None, true, None));
    let failed = seen(
        "Failed",
        "Never",
        &[("aaa", terminated(0)), ("mc", terminated(7))],
    );
    assert_eq!(
        (end_of(&failed), failed.exit.unwrap().code),
        (Some(PodEnd::FailedByItself), 7)
    );
    let succeeded = seen(
        "Failed",
        "Never",
        &[("aaa", terminated(1)), ("mc", terminated(0))],
    );
    assert_eq!(
        end_of(&succeeded),
        Some(PodEnd::Succeeded),
        "another container's exit code does not count"
    );
}

#[test]
fn end_is_the_runners_while_another_container_keeps_the_pod() {
    let kept =
        |policy: &str, code: i32| seen("Running", policy, &[("aaa", running()), ("mc", terminated(code))]);
    let failed = kept("Never", 7);
    assert_eq!(
        (end_of(&failed), failed.kept_by.as_deref()),
        (Some(PodEnd::FailedByItself), Some("aaa"))
    );
    assert_eq!(end_of(&kept("Never", 0)), Some(PodEnd::Succeeded));
    assert_eq!(end_of(&kept("OnFailure", 0)), Some(PodEnd::Succeeded));
    assert_eq!(end_of(&kept("OnFailure", 7)), None, "the kubelet starts it again");
}

/// With `OnFailure`, the kubelet starts the container again, and the pod's phase stays Running.
#[test]
fn lead_that_was_shut_down_has_ended_for_good() {
    let end = |is_shut_down: bool| {
        let mut message =
            serde_json::json!({ "version": 1, "by": "program", "code": 143, "programCode": 143 });
        if is_shut_down {
            message["shutDown"] = true.into();
        }
        let message = message.to_string();
        serde_json::json!({ "terminated": { "exitCode": 143, "reason": "Error", "message": message } })
    };
    let lead = |policy: &str, state: &serde_json::Value, last: &serde_json::Value| {
        let pod = serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mc-0-abcde" },
            "spec": { "restartPolicy": policy, "containers": [
                { "name": "mc", "command": ["/etc/flux-agent/bin/flux-agent", "run"] },
            ] },
            "status": { "phase": "Running", "containerStatuses": [{
                "name": "mc", "image": "i", "imageID": "i", "ready": false, "restartCount": 1,
                "state": state, "lastState": last,
            }] },
        });
        PodSeen::of_object(&serde_json::from_value::<PodStatusObject>(pod).unwrap())
    };
    let waiting =
        serde_json::json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } });
    let killed = serde_json::json!({ "terminated": { "exitCode": 137, "reason": "Error" } });
    let none = serde_json::json!({});
    for (state, last, is_end) in [
        (end(true), none.clone(), true),
        (waiting.clone(), end(true), true),
        (running(), end(true), true),
        // The container that the kubelet had started again.
        (killed, end(true), true),
        (end(false), none.clone(), false),
        (waiting, end(false), false),
        (running(), end(false), false),
    ] {
        let seen = lead("OnFailure", &state, &last);
        let wanted = is_end.then_some((PodEnd::FailedByItself, 143));
        let end = end_of(&seen).map(|end| (end, seen.exit.as_ref().unwrap().code));
        assert_eq!((end, seen.is_shut_down), (wanted, is_end), "{state} {last}");
        assert!(seen.trouble.is_none() || !is_end, "{state}");
    }
    let never = lead("Never", &end(true), &none);
    assert_eq!(end_of(&never), None, "its sidecars may still run");
}

#[test]
fn orphaned_pod_still_belongs_to_its_job() {
    let job_uid = |owners: serde_json::Value| {
        let metadata = serde_json::json!({
            "labels": { "batch.kubernetes.io/controller-uid": "job" }, "ownerReferences": owners,
        });
        PodSeen::of(&serde_json::from_value(metadata).unwrap(), None).job_uid
    };
    assert_eq!(job_uid(serde_json::json!([])).as_deref(), Some("job"));
    let other =
        serde_json::json!([{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true }]);
    assert_eq!(
        job_uid(other).as_deref(),
        Some("x"),
        "its owner counts, not its label"
    );
}
