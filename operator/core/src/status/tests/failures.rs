//! What the status says about a failure, and which pod it names.
//!
//! `ended(1, 3, 2)` is a pod of index 1 that ended with code 3 in minute 2. `true_condition` makes a condition of the
//! Job: for `failed`, `failing` or `complete`.

use flux_shared::crd::v1alpha2::LostPod;
use flux_shared::exit::REPLACE;

use super::*;
use crate::observe::pod_end::{self, PodEnd, end_of};

#[test]
fn silent_node_is_named_and_its_pods_are_not_ready() {
    let conditions = |ready: &str, reason: Option<&str>| {
        serde_json::json!([
            { "type": "PodScheduled", "status": "True" },
            { "type": "ContainersReady", "status": "True" },
            { "type": "Ready", "status": ready, "reason": reason },
        ])
    };
    let seen = |conditions: serde_json::Value, is_deleting: bool| {
        let container = serde_json::json!({
            "name": "runner", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "started": true,
            "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
        });
        let status = serde_json::json!({
            "phase": "Running", "conditions": conditions, "containerStatuses": [container],
        });
        let deleted_at = is_deleting.then_some("2026-01-01T00:05:00Z");
        let metadata = serde_json::json!({ "name": "mc-0-x", "deletionTimestamp": deleted_at });
        let metadata = serde_json::from_value(metadata).unwrap();
        let spec = PodSpecPart {
            node_name: Some("node-7".into()),
            ..PodSpecPart::default()
        };
        PodSeen::of(&metadata, serde_json::from_value(status).ok().as_ref()).with_spec(&spec)
    };
    let mut observation = observation("size: 1");
    observation.job = Some(job(1));
    observation.pods = vec![seen(conditions("True", None), false)];
    observation.previous = observation.status();
    assert!(is(&observation.previous, "Ready") && observation.previous.ready_size == 1);
    // As the node controller writes it: at first only the condition's status. Later it deletes the pod.
    for is_deleting in [false, true] {
        observation.pods = vec![seen(conditions("False", None), is_deleting)];
        let status = observation.status();
        assert!(!is(&status, "Ready") && status.ready_size == 0, "{status:#?}");
        assert_eq!(status.reason.as_deref(), Some("NodeLost"));
        let message = status.message.clone().unwrap();
        assert!(
            message.contains("mc-0-x") && message.contains("node node-7"),
            "{message}"
        );
        assert!(message.contains("Only if the machine is off"), "{message}");
        assert_eq!(message.contains("has evicted it"), is_deleting, "{message}");
        assert_eq!(
            condition(&status, "JobRunning").unwrap().status,
            ConditionStatus::Unknown
        );
        assert_eq!(
            status.phase.as_deref(),
            Some("Running"),
            "the last known phase stays"
        );
        assert!(
            events::between(&observation.previous, &status)
                .iter()
                .any(|event| event.reason == "NodeLost")
        );
    }
    observation.pods = vec![seen(conditions("False", Some("ReadinessGatesNotReady")), false)];
    assert_eq!(observation.status().reason, None, "the kubelet still reports");
    observation.pods = vec![seen(conditions("True", None), true)];
    let status = observation.status();
    assert!(
        !is(&status, "Ready") && status.ready_size == 0,
        "a pod that is being deleted is not ready"
    );
}

#[test]
fn follower_failure_before_the_start_is_reported_at_once() {
    let mut observation = observation("size: 2");
    observation.job = Some(job(2));
    let mut follower = ended(1, 3, 2);
    follower.exit.as_mut().unwrap().message = "the snippet workerPre ended with 3".into();
    observation.pods = vec![
        PodSeen {
            is_running: true,
            ..pod(0)
        },
        follower,
        // Below, where the follower ended with `REPLACE`, the Job has created this pod in its place.
        pod(1),
    ];
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"), "{status:#?}");
    assert!(
        status
            .message
            .unwrap()
            .contains("the pod of index 1 ended with exit code 3: the snippet workerPre")
    );
    assert_eq!(status.phase.as_deref(), Some("Starting"));
    // Only this follower's pod was stopped.
    observation.pods[1] = ended(1, REPLACE.into(), 2);
    assert_eq!(observation.status().reason, None, "the Job replaces the pod");

    observation.pods = vec![ready(0), ended(1, 3, 2)];
    observation.job = Some(JobSeen {
        failing: true_condition("PodFailurePolicy", "x"),
        ..job(2)
    });
    observation.previous = observation.status();
    assert_eq!(
        observation.previous.reason.as_deref(),
        Some("NonZeroExitCode"),
        "while the lead ends"
    );
    assert!(!is(&observation.previous, "Failed"));
    observation.job = Some(JobSeen {
        failed: true_condition("PodFailurePolicy", "x"),
        ..job(2)
    });
    assert!(
        events::between(&observation.previous, &observation.status()).is_empty(),
        "the event was reported before"
    );
}

/// The reason of the Job's condition, and the pods; then the status' failed index, reason and message.
type Case = (
    &'static str,
    Vec<PodSeen>,
    Option<i32>,
    &'static str,
    &'static str,
);

/// Asserts what the status of a failed Job says.
fn assert_reported(cases: impl IntoIterator<Item = Case>) {
    for (job_reason, pods, index, reason, message) in cases {
        let mut observation = observation("size: 2");
        observation.job = Some(JobSeen {
            failed: true_condition(job_reason, "the Job's own words"),
            ..job(2)
        });
        observation.pods = pods;
        let status = observation.status();
        let reported = (
            status.failed_index,
            status.reason.unwrap(),
            status.message.unwrap(),
        );
        assert_eq!(reported, (index, reason.to_owned(), message.to_owned()));
    }
}

#[test]
fn end_that_is_about_no_pod_has_no_failed_index() {
    let words = "the Job's own words";
    let cases = [
        ("JobDeleted", None),
        ("Requeued", None),
        ("Suspended", None),
        ("LeadFailed", Some(0)),
        ("LeadLost", Some(0)),
        // The Job of a failed lead was deleted.
        ("JobFailed", Some(0)),
        // The lead did not start.
        ("CreateContainerError", Some(0)),
    ];
    assert_reported(cases.map(|(reason, index)| (reason, vec![], index, reason, words)));
}

#[test]
fn pod_that_failed_the_job_is_named_with_its_message() {
    let deleted = PodSeen {
        is_deleting: true,
        ..ended(1, 143, 1)
    };
    assert_reported([
        (
            "PodFailurePolicy",
            vec![ended(0, 7, 3)],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 7",
        ),
        (
            "PodFailurePolicy",
            vec![ended(0, 143, 4), ended(1, 3, 2)],
            Some(1),
            "NonZeroExitCode",
            "the pod of index 1 ended with exit code 3",
        ),
        (
            "PodFailurePolicy",
            vec![ended(0, 139, 4), deleted],
            Some(0),
            "Signalled",
            "the lead (index 0) ended by signal 11",
        ),
        (
            "PodFailurePolicy",
            vec![ended(0, 129, 4)],
            Some(0),
            "Signalled",
            "the lead (index 0) ended by signal 1, as happens to a program whose Flux instance is shut down",
        ),
        // Any program may exit with the agent's own codes. They are the agent's if the agent reports that it
        // gave up.
        (
            "PodFailurePolicy",
            vec![ended(0, 243, 1)],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 243",
        ),
        (
            "PodFailurePolicy",
            vec![with_termination(
                0,
                Termination {
                    category: Some(Category::ViewMissing),
                    ..Termination::new(Ender::Agent, 242)
                },
            )],
            Some(0),
            "ViewMissing",
            "the agent in the lead (index 0) gave up",
        ),
        (
            "PodFailurePolicy",
            vec![with_termination(
                0,
                Termination {
                    snippet: Some("pre".into()),
                    snippet_code: Some(3),
                    snippet_error: "cat: /x: No such file or directory".into(),
                    message: "To continue after a command that fails, set logging.strict: false.".into(),
                    ..Termination::new(Ender::Snippet, 3)
                },
            )],
            Some(0),
            "SnippetFailed",
            "the snippet pre of the lead (index 0) ended with exit code 3: cat: /x: No such file or directory. To \
             continue after a command that fails, set logging.strict: false.",
        ),
        (
            "PodFailurePolicy",
            vec![with_termination(
                0,
                Termination {
                    program_code: Some(7),
                    snippet: Some("post".into()),
                    snippet_code: Some(3),
                    ..Termination::new(Ender::Program, 7)
                },
            )],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 7; post of the lead (index 0) ended with exit code 3",
        ),
    ]);
}

#[test]
fn stop_without_a_removal_names_the_probe_and_the_hook() {
    let stopped = || with_termination(0, Termination::new(Ender::Stop, 143));
    let asked = PodSeen {
        end_requested: Some(at(NOW)),
        ..stopped()
    };
    let message = "the lead (index 0) was stopped before its program had ended";
    assert_reported([
        ("PodFailurePolicy", vec![asked], Some(0), "Stopped", message),
        (
            "PodFailurePolicy",
            vec![stopped()],
            Some(0),
            "Stopped",
            "the lead (index 0) was stopped before its program had ended; its pod was not removed: its livenessProbe \
             or lifeCycle.postStartExec may have failed (see the events of `kubectl describe pod mc-0`), or its node \
             was shut down",
        ),
    ]);
}

/// The lead's node was cut off, and the taint manager was about to evict the lead.
#[test]
fn program_that_ends_during_eviction_fails_with_its_own_code() {
    let cut_off = |code: u8, by: Ender| PodSeen {
        is_deleting: true,
        trouble: Some(Box::new(Trouble {
            reason: "DeletionByTaintManager".into(),
            message: "Taint manager: deleting due to NoExecute taint".into(),
            is_disruption: true,
            ..Trouble::default()
        })),
        ..with_termination(0, Termination::new(by, code))
    };
    let own = cut_off(3, Ender::Program);
    // The operator has failed the Job (with LeadFailed it reports the pod's own end), or the Job's policy has.
    for reason in ["LeadFailed", "PodFailurePolicy"] {
        let lead = own.clone();
        assert_reported([(
            reason,
            vec![lead],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 3",
        )]);
    }
    // 100 is the default. The status takes from the Job's failure that no restart was left, and counts nothing itself.
    let lost = "the lead's pod, mc-0, was lost (DeletionByTaintManager: Taint manager: deleting due to NoExecute taint); no restart left: backoffLimit is 100";
    assert_reported([(
        "PodFailurePolicy",
        vec![cut_off(143, Ender::Stop)],
        Some(0),
        "LeadLost",
        lost,
    )]);
}

/// If the lead broker is in another cluster, index 0 is a follower.
#[test]
fn pod_0_stopped_alone_beside_a_remote_lead_has_not_failed() {
    let stopped = with_termination(0, Termination::new(Ender::Stop, REPLACE));
    let ended_job = |job: JobSeen, pods: Vec<PodSeen>| {
        let mut observation = observation(
            "size: 2\nflux: {bursting: {leadBroker: {name: a, address: b}, clusters: [{name: mc}]}}",
        );
        observation.job = Some(job);
        observation.previous.lost_pods = vec![LostPod {
            time: NOW.into(),
            ..pod_end::loss(&pod(1))
        }];
        observation.pods = pods;
        observation.status()
    };
    let failed = JobSeen {
        failed: true_condition("PodFailurePolicy", ""),
        ..job(2)
    };
    let by_follower = ended_job(failed.clone(), vec![stopped.clone(), ended(1, 3, 4)]);
    assert_eq!(by_follower.reason.as_deref(), Some("NonZeroExitCode"));
    assert_eq!(by_follower.failed_index, Some(1));
    let removed = ended_job(failed, vec![stopped.clone()]);
    assert_eq!(removed.reason.as_deref(), Some("LeadLost"));
    let completed = JobSeen {
        complete: true_condition("", ""),
        ..job(2)
    };
    let replaced = ended_job(completed, vec![stopped, ended(0, 0, 5)]);
    assert_eq!(replaced.exit_code, Some(0));
}

/// A stricter operator may reject the spec of a running MiniCluster.
#[test]
fn lead_lost_with_an_invalid_spec_blames_no_limit() {
    let mut observation = observation("size: 1\nbackoffLimit: 5");
    observation.job = Some(JobSeen {
        failed: true_condition("PodFailurePolicy", ""),
        ..job(1)
    });
    observation.pods = vec![PodSeen {
        is_deleting: true,
        ..ended(0, 143, 5)
    }];
    observation.problems = vec![Problem::new("spec.size", "no")];
    let message = observation.status().message.unwrap();
    assert!(
        message.ends_with("; no restart, because the spec is not valid"),
        "{message}"
    );
}

#[test]
fn lost_or_never_started_pod_differs_from_one_that_failed() {
    let evicted = PodSeen {
        has_ended: true,
        trouble: Some(Box::new(Trouble {
            reason: "EvictionByEvictionAPI".into(),
            message: "drained".into(),
            is_disruption: true,
            ..Trouble::default()
        })),
        ..pod(1)
    };
    let init = PodSeen {
        has_ended: true,
        trouble: Some(Box::new(Trouble {
            reason: "InitFailed".into(),
            init: Some(FailedInit {
                name: "flux-view".into(),
                is_users: false,
                exit: *ended(0, 242, 3).exit.unwrap(),
            }),
            ..Trouble::default()
        })),
        ..pod(1)
    };
    assert_reported([
        // A pod that was replaced did not fail the Job, although it ended first.
        (
            "PodFailurePolicy",
            vec![evicted, ended(0, 2, 5)],
            Some(0),
            "NonZeroExitCode",
            "the lead (index 0) ended with exit code 2",
        ),
        (
            "PodFailurePolicy",
            vec![PodSeen {
                is_deleting: true,
                ..ended(0, 143, 5)
            }],
            Some(0),
            "LeadLost",
            "the lead's pod, mc-0, was lost (Deleted: it was deleted); no restart left: backoffLimit is 100",
        ),
        (
            "PodFailurePolicy",
            vec![with_termination(
                0,
                Termination {
                    node_failure: true,
                    ..Termination::new(Ender::Program, 1)
                },
            )],
            Some(0),
            "PodLost",
            "a follower was lost while the job ran on it; the lead ended with exit code 1; no restart left: maxRestarts is 0",
        ),
        (
            "PodFailurePolicy",
            vec![init],
            Some(1),
            "ViewMissing",
            "the agent in init container flux-view of the pod of index 1 gave up",
        ),
    ]);
}

/// 243 is the agent's code for a parent that cannot be reached, which the Job retries for the agent's own containers. A
/// user's container runs no agent: there the code means nothing, and a retry would run it twice.
#[test]
fn users_init_container_failure_is_reported_and_not_retried() {
    let seen = |names: &str| {
        let metadata = serde_json::json!({
            "name": "mc-0", "annotations": { "flux-framework.org/user-init-containers": names },
        });
        let state = serde_json::json!({ "terminated": { "exitCode": 243, "reason": "Error" } });
        let init = serde_json::json!({
            "name": "fetch", "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state,
        });
        let status = serde_json::json!({ "phase": "Failed", "initContainerStatuses": [init] });
        PodSeen::of(
            &serde_json::from_value(metadata).unwrap(),
            Some(&serde_json::from_value(status).unwrap()),
        )
    };
    let (users, agents) = (seen("load,fetch"), seen(""));
    assert_eq!(
        end_of(&users),
        Some(PodEnd::NotStarted {
            new_pod_may_start: false
        })
    );
    assert_eq!(
        end_of(&agents),
        Some(PodEnd::NotStarted {
            new_pod_may_start: true
        }),
        "the agent may reach its parent later"
    );
    assert_reported([(
        "PodFailurePolicy",
        vec![users],
        Some(0),
        "NonZeroExitCode",
        "init container fetch of the lead (index 0) ended with exit code 243",
    )]);
}

#[test]
fn failed_job_names_a_pod_only_if_it_is_the_known_cause() {
    assert_reported([
        (
            "MaxFailedIndexesExceeded",
            vec![ended(1, 238, 1), ended(1, 238, 2)],
            Some(1),
            "NonZeroExitCode",
            "the pod of index 1 ended with exit code 238 (retried as often as the Job allows)",
        ),
        // The operator has failed this Job itself. Unlike with LeadFailed, the Job's reason and message stay. (239 is the
        // agent's code for a lost lead.)
        (
            "LeadLost",
            vec![ended(0, 239, 3)],
            Some(0),
            "LeadLost",
            "the Job's own words",
        ),
        (
            "DeadlineExceeded",
            vec![ended(0, 143, 3)],
            None,
            "DeadlineExceeded",
            "the Job's own words",
        ),
        (
            "PodFailurePolicy",
            vec![],
            None,
            "PodFailurePolicy",
            "the Job's own words (that pod was deleted)",
        ),
        // The Job's message has this pod's name, `own`: the pod was not deleted. Its end has not been seen yet.
        (
            "PodFailurePolicy",
            vec![PodSeen {
                name: "own".into(),
                ..pod(0)
            }],
            None,
            "PodFailurePolicy",
            "the Job's own words",
        ),
    ]);
}

#[test]
fn reason_of_a_finished_cluster_never_changes() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen {
        failed: true_condition("PodFailurePolicy", "the Job's own words"),
        ..job(1)
    });
    observation.pods = vec![ended(0, 3, 5)];
    observation.previous = observation.status();
    assert_eq!(observation.previous.reason.as_deref(), Some("NonZeroExitCode"));
    observation.pods.clear();
    assert_eq!(observation.status(), observation.previous, "its pod is deleted");
    observation.pods = vec![ready(0)];
    assert_eq!(
        observation.status(),
        observation.previous,
        "another pod has its index"
    );
}

#[test]
fn exit_code_is_not_reported_when_nobody_saw_it() {
    let mut observation = observation("size: 1");
    let mut lead = ended(0, 255, 5);
    lead.exit.as_mut().unwrap().is_unseen = true;
    observation.job = Some(JobSeen {
        failed: true_condition("PodFailurePolicy", "x"),
        ..job(1)
    });
    observation.pods = vec![lead];
    let status = observation.status();
    assert_eq!(
        (status.exit_code, status.reason.as_deref()),
        (None, Some("LeadLost")),
        "{status:#?}"
    );
    assert!(status.message.unwrap().contains("NodeRestarted"));
}

#[test]
fn counted_restart_replaces_the_earlier_reason() {
    let mut observation = observation("size: 1");
    (observation.job, observation.pods) = (Some(job(1)), vec![ready(0)]);
    let stale = MiniClusterStatus {
        reason: Some("FailedMount".into()),
        message: Some("secret \"k\" not found".into()),
        ..observation.status()
    };
    let words = "the lead's pod, mc-0, was lost (Evicted)";
    let limit = restart::Limit::Backoff;
    let counted = restart::with_counted_restart(&stale, "job", "LeadLost", words, limit, at(NOW));
    let reason_and_message = |status: &MiniClusterStatus| (status.reason.clone(), status.message.clone());
    let message = format!("restarting once the pods of the earlier Job are gone (1 restart so far): {words}");
    let expected = (Some("LeadLost".into()), Some(message));
    let restarting = super::super::restarting(counted);
    assert_eq!(reason_and_message(&restarting), expected);
    assert_eq!(restarting.phase.as_deref(), Some("Running"), "until the Job goes");
    // The next status has the same reason and message.
    observation.pods.clear();
    (observation.previous, observation.job) = (
        restarting,
        Some(JobSeen {
            is_deleting: true,
            ..job(1)
        }),
    );
    let next = observation.status();
    assert_eq!(reason_and_message(&next), expected);
    assert_eq!(next.phase.as_deref(), Some("Pending"));
    // Without a restart the status does not change.
    assert_eq!(super::super::restarting(stale.clone()), stale);
}

#[test]
fn restart_that_waits_for_a_dead_node_names_pod_node_and_remedy() {
    let mut observation = observation("size: 2");
    let limit = restart::Limit::MaxRestarts;
    let words = "a follower was lost while the job ran on it";
    observation.previous =
        restart::with_counted_restart(&Default::default(), "job", "PodLost", words, limit, at(NOW));
    observation.job = Some(JobSeen {
        is_deleting: true,
        ..job(2)
    });
    let deleted = PodSeen {
        is_deleting: true,
        node: Some("worker-2".into()),
        ..pod(1)
    };
    observation.pods = vec![deleted.clone()];
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("PodLost"), "{status:#?}");
    assert!(
        status
            .message
            .unwrap()
            .contains("pod mc-1 on node worker-2 is being stopped")
    );
    observation.pods = vec![PodSeen {
        is_on_silent_node: true,
        ..deleted
    }];
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("NodeLost"));
    let message = status.message.unwrap();
    for expected in [
        words,
        "mc-1",
        "worker-2",
        "Only if the machine is off",
        "out-of-service",
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

/// A pod that still exists five minutes after its grace period, on a node that responds.
fn stuck(pod: PodSeen) -> PodSeen {
    PodSeen {
        is_deleting: true,
        is_ready: false,
        deletion_requested: Some(at("2026-01-01T00:04:30Z")),
        grace_end: Some(at("2026-01-01T00:05:00Z")),
        node: Some("worker-2".into()),
        ..pod
    }
}

#[test]
fn stuck_pod_is_named_while_the_cluster_waits_for_it() {
    let reason_and_message = |spec: &str, job: JobSeen, pods: Vec<PodSeen>| {
        let mut observation = observation(spec);
        observation.job = Some(job);
        observation.pods = pods;
        let status = observation.status();
        (
            status.reason.unwrap_or_default(),
            status.message.unwrap_or_default(),
        )
    };
    let suspended = |queue: Option<&str>| JobSeen {
        is_suspended: true,
        queue: queue.map(str::to_owned),
        ..job(2)
    };
    let deleted = || JobSeen {
        is_deleting: true,
        ..job(2)
    };
    let drained = Trouble {
        reason: "EvictionByEvictionAPI".into(),
        is_disruption: true,
        ..Trouble::default()
    };
    let drained = PodSeen {
        trouble: Some(Box::new(drained)),
        ..stuck(ready(1))
    };
    for (name, job, pods) in [
        ("a follower", job(2), vec![ready(0), stuck(ready(1))]),
        ("the lead", job(2), vec![stuck(ready(0)), ready(1)]),
        ("drained", job(2), vec![ready(0), drained]),
        ("suspended", suspended(None), vec![stuck(ready(1))]),
        (
            "evicted by a queue",
            suspended(Some("team")),
            vec![stuck(ready(1))],
        ),
        ("deleted", deleted(), vec![stuck(ready(1))]),
        (
            "deleted, with a finalizer",
            deleted(),
            vec![stuck(ended(1, 1, 2))],
        ),
    ] {
        let (reason, message) = reason_and_message("size: 2", job, pods);
        assert_eq!(reason, "StuckTerminating", "{name}: {message}");
        for part in [
            "on node worker-2",
            "since 2026-01-01T00:04:30Z",
            "kubectl describe pod",
        ] {
            assert!(message.contains(part), "{name}: {message}");
        }
    }
    let in_grace = |pod: PodSeen| PodSeen {
        grace_end: Some(at("2026-01-01T00:09:45Z")),
        ..stuck(pod)
    };
    for (name, spec, job, pods) in [
        (
            "stops in time",
            "size: 2",
            job(2),
            vec![ready(0), in_grace(ready(1))],
        ),
        (
            "scaled down",
            "size: 2",
            job(2),
            vec![ready(0), pod(1), stuck(ready(2))],
        ),
        (
            "not needed",
            "size: 2\nminSize: 1",
            job(2),
            vec![ready(0), stuck(ready(1))],
        ),
        (
            "replaced",
            "size: 2",
            job(2),
            vec![ready(0), pod(1), stuck(ended(1, 137, 2))],
        ),
    ] {
        let (reason, message) = reason_and_message(spec, job, pods);
        assert_ne!(reason, "StuckTerminating", "{name}: {message}");
    }
    let failing = JobSeen {
        failing: true_condition("PodFailurePolicy", "x"),
        ..job(2)
    };
    let pods = vec![stuck(ready(0)), ended(1, 3, 2)];
    let (reason, message) = reason_and_message("size: 2", failing, pods);
    assert_eq!(reason, "NonZeroExitCode", "the cause of the failure stays");
    assert!(
        message.contains("pod mc-0 on node worker-2 is Terminating"),
        "{message}"
    );
}

#[test]
fn restart_that_waits_for_a_stuck_pod_names_it() {
    let mut observation = observation("size: 2");
    let limit = restart::Limit::Backoff;
    observation.previous =
        restart::with_counted_restart(&Default::default(), "job", "LeadLost", "gone", limit, at(NOW));
    observation.job = Some(JobSeen {
        is_deleting: true,
        ..job(2)
    });
    // Only a finalizer holds a pod that has ended.
    observation.pods = vec![stuck(ended(0, 1, 2))];
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("StuckTerminating"));
    let message = status.message.unwrap();
    for part in ["restarting", "pod mc-0 on node worker-2", "finalizer"] {
        assert!(message.contains(part), "{message}");
    }
    observation.pods = vec![PodSeen {
        grace_end: Some(at(NOW)),
        ..stuck(ended(0, 1, 2))
    }];
    assert_eq!(observation.status().reason.as_deref(), Some("LeadLost"));
}

#[test]
fn lost_follower_is_named_by_its_dead_node_or_by_flux() {
    let lead = || {
        let termination = Termination {
            node_failure: true,
            ..Termination::new(Ender::Program, 1)
        };
        let mut lead = with_termination(0, termination);
        lead.exit.as_mut().unwrap().message = "node failure on mc-1 (rank 1)".into();
        lead
    };
    let message = |pods: Vec<PodSeen>| {
        let mut observation = observation("size: 2");
        observation.job = Some(JobSeen {
            failed: true_condition("PodFailurePolicy", "x"),
            ..job(2)
        });
        observation.pods = pods;
        observation.status().message.unwrap()
    };
    assert!(message(vec![lead()]).contains("node failure on mc-1 (rank 1)"));
    let lost = PodSeen {
        is_on_silent_node: true,
        node: Some("worker-3".into()),
        ..pod(1)
    };
    let message = message(vec![lead(), lost]);
    assert!(
        message.contains("mc-1") && message.contains("worker-3"),
        "{message}"
    );
}

#[test]
fn size_below_the_quorum_names_the_quorum() {
    let reason_and_message = |spec: &str, wanted: u32, pods: Vec<PodSeen>| {
        let mut observation = observation(spec);
        observation.job = Some(JobSeen {
            initial_size: Some(3),
            ..job(wanted)
        });
        observation.pods = pods;
        let status = observation.status();
        (status.reason, status.message.unwrap_or_default())
    };
    let (reason, message) = reason_and_message("size: 2\nmaxSize: 3", 2, vec![pod(0), pod(1)]);
    assert_eq!(reason.as_deref(), Some("SizeBelowQuorum"), "{message}");
    assert!(message.contains("3 brokers"), "{message}");
    assert_eq!(reason_and_message("size: 3", 3, vec![pod(0), pod(1)]).0, None);
    assert_eq!(
        reason_and_message("size: 2\nminSize: 2\nmaxSize: 3", 2, vec![pod(0), pod(1)]).0,
        None,
        "minSize sets the quorum"
    );
    let remote =
        "size: 2\nmaxSize: 3\nflux: {bursting: {leadBroker: {name: a, address: b}, clusters: [{name: mc}]}}";
    assert_eq!(
        reason_and_message(remote, 2, vec![pod(0), pod(1)]).0,
        None,
        "the lead in another cluster has its own quorum"
    );
    assert_eq!(
        reason_and_message("size: 2\nmaxSize: 3", 2, vec![ready(0), ready(1)]).0,
        None,
        "the job has begun"
    );
    let mut observation = observation("size: 2\nmaxSize: 3");
    observation.job = Some(JobSeen {
        initial_size: Some(3),
        ..job(2)
    });
    observation.pods = vec![ready(0), ready(1)];
    observation.previous = observation.status();
    let restarted = PodSeen {
        is_running: true,
        ..pod(0)
    };
    observation.pods = vec![restarted, ready(1)];
    let status = observation.status();
    assert_eq!(
        status.reason.as_deref(),
        Some("SizeBelowQuorum"),
        "restarted lead: {status:?}"
    );
}

#[test]
fn container_that_keeps_a_pod_after_the_end_is_named() {
    let kept = |code: i32| PodSeen {
        has_ended: false,
        kept_by: Some("daprd".into()),
        ..ended(0, code, 5)
    };
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen {
        complete: true_condition("Completed", ""),
        has_living_pods: true,
        ..job(1)
    });
    observation.pods = vec![kept(0)];
    let status = observation.status();
    assert_eq!(
        (status.reason.as_deref(), status.exit_code),
        (Some("SidecarStillRuns"), Some(0)),
        "{status:#?}"
    );
    assert!(is(&status, "Complete") && status.message.as_ref().unwrap().contains("container daprd"));
    let none = MiniClusterStatus::default();
    assert!(
        events::between(&none, &status)
            .iter()
            .any(|event| event.reason == "SidecarStillRuns")
    );
    observation.job = Some(JobSeen {
        failed: true_condition("PodFailurePolicy", ""),
        has_living_pods: true,
        ..job(1)
    });
    observation.pods = vec![kept(7)];
    let status = observation.status();
    assert_eq!(
        (status.reason.as_deref(), status.exit_code),
        (Some("NonZeroExitCode"), Some(7)),
        "{status:#?}"
    );
    assert!(status.message.unwrap().contains("container daprd"));
}

/// The pod, whose `post` has ended with this code.
fn with_post(mut pod: PodSeen, code: u8) -> PodSeen {
    let program_code = (pod.index == 0).then_some(0);
    let exit = pod.exit.as_mut().unwrap();
    exit.termination = Some(Termination {
        program_code,
        snippet: (code != 0).then(|| "post".to_owned()),
        snippet_code: (code != 0).then_some(code),
        snippet_error: if code == 0 {
            String::new()
        } else {
            "cat: /tmp/out: No such file or directory".into()
        },
        ..Termination::new(Ender::Program, 0)
    });
    pod
}

const WITH_POST: &str = "containers: [{image: app, command: 'true', commands: {post: cat /tmp/out}}]";

#[test]
fn failed_post_of_an_earlier_start_is_forgotten() {
    let mut observation = observation(&format!("size: 1\n{WITH_POST}"));
    observation.job = Some(job(1));
    observation.pods = vec![with_post(ended(0, 0, 5), 3)];
    let failed_once = observation.status();
    assert_eq!(
        condition(&failed_once, "PostSucceeded").unwrap().status,
        ConditionStatus::False
    );
    let restarted = |restarts: u32, pod: PodSeen| PodSeen { restarts, ..pod };
    // A start that runs nothing repeats how the earlier one ended.
    observation.previous = failed_once.clone();
    observation.pods = vec![restarted(1, with_post(ended(0, 0, 5), 3))];
    assert_eq!(
        condition(&observation.status(), "PostSucceeded").unwrap().status,
        ConditionStatus::False
    );
    // The kubelet starts the lead's container again.
    observation.previous = failed_once.clone();
    observation.pods = vec![restarted(1, ready(0))];
    let running = observation.status();
    assert_eq!(condition(&running, "PostSucceeded"), None);
    observation.previous = running;
    observation.pods = vec![restarted(1, with_post(ended(0, 0, 5), 0))];
    let succeeded = observation.status();
    assert_eq!(
        condition(&succeeded, "PostSucceeded").unwrap().status,
        ConditionStatus::True
    );
    // A new Job.
    let limit = restart::Limit::Backoff;
    observation.previous =
        restart::with_counted_restart(&failed_once, "job", "LeadLost", "gone", limit, at(NOW));
    observation.job = Some(JobSeen {
        uid: "next".into(),
        ..job(1)
    });
    observation.pods = vec![];
    assert_eq!(condition(&observation.status(), "PostSucceeded"), None);
}

/// A Job that is resumed creates a new pod of the lead, whose container has not been restarted yet.
#[test]
fn kubelet_restarts_are_counted_from_0_after_a_suspension() {
    let restarted = |restarts: u32, pod: PodSeen| PodSeen { restarts, ..pod };
    let suspended = JobSeen {
        is_suspended: true,
        ..job(1)
    };
    let resumed = JobSeen {
        start_time: Some(at("2026-01-01T00:06:00Z")),
        ..job(1)
    };
    let stopped = PodSeen {
        is_deleting: true,
        deletion_requested: Some(at("2026-01-01T00:05:00Z")),
        ..restarted(2, ready(0))
    };
    // `is_seen`: an operator ran while the Job was suspended. `has_begun`: it has seen the lead run before.
    for (is_seen, has_begun) in [(true, true), (false, true), (true, false)] {
        let mut observation = observation(&format!("size: 1\n{WITH_POST}"));
        (observation.job, observation.pods) = (Some(job(1)), vec![restarted(2, pod(0))]);
        if has_begun {
            observation.pods = vec![restarted(2, ready(0))];
        }
        observation.previous = observation.status();
        assert_eq!(observation.previous.container_restarts, 2);
        // The suspension of a lead that has begun is a restart, too.
        let before = 2 + i32::from(has_begun);
        let see = |observation: &mut Observation, job: &JobSeen, pods: &[&PodSeen]| {
            observation.job = Some(job.clone());
            observation.pods = pods.iter().copied().cloned().collect();
            observation.previous = observation.status();
            let status = &observation.previous;
            let post = condition(status, "PostSucceeded").map(|post| post.status);
            (status.container_restarts, status.restart_count - before, post)
        };
        if is_seen {
            for pods in [vec![&stopped], vec![&stopped], vec![]] {
                let seen = see(&mut observation, &suspended, &pods);
                assert_eq!(seen, (0, 0, None), "{has_begun}");
            }
        }
        let seen = see(&mut observation, &resumed, &[&stopped]);
        assert_eq!(seen, (0, 0, None), "{is_seen} {has_begun}");
        let failed = with_post(ended(0, 0, 5), 3);
        let seen = see(&mut observation, &resumed, &[&stopped, &failed]);
        assert_eq!(seen, (0, 0, Some(ConditionStatus::False)), "{is_seen}");
        let second = restarted(1, ready(0));
        assert_eq!(see(&mut observation, &resumed, &[&second]), (1, 1, None));
        let good = restarted(1, with_post(ended(0, 0, 5), 0));
        let seen = see(&mut observation, &resumed, &[&good]);
        assert_eq!(seen, (1, 1, Some(ConditionStatus::True)), "{is_seen}");
    }
}

/// With `OnFailure`, the kubelet starts the lead's container again, and the operator fails the Job.
#[test]
fn shutdown_is_reported_alike_with_and_without_on_failure() {
    let exit = Exit {
        code: 143,
        termination: Some(Termination {
            program_code: Some(143),
            shut_down: true,
            ..Termination::new(Ender::Program, 143)
        }),
        ..Exit::default()
    };
    let never = PodSeen {
        exit: Some(Box::new(exit)),
        ..ended(0, 143, 1)
    };
    let on_failure = PodSeen {
        has_ended: false,
        is_shut_down: true,
        restarts: 1,
        ..never.clone()
    };
    let status_of = |reason: &str, lead: &PodSeen, is_gone: bool| {
        let mut observation = observation("size: 2");
        observation.job = Some(job(2));
        observation.pods = vec![ready(0), ready(1)];
        observation.previous = observation.status();
        observation.pods = vec![lead.clone(), ready(1)];
        observation.previous = observation.status();
        observation.job = Some(JobSeen {
            failed: true_condition(reason, "the Job's own words"),
            ..job(2)
        });
        if is_gone {
            observation.pods.remove(0);
            observation.gone = vec![lead.clone()];
        }
        observation.status()
    };
    let wanted = status_of("PodFailurePolicy", &never, false);
    assert_eq!(
        (wanted.reason.as_deref(), wanted.exit_code),
        (Some("Signalled"), Some(143))
    );
    for (reason, is_gone) in [
        ("LeadFailed", false),
        // The lead's pod is already gone.
        ("LeadFailed", true),
        // The Job controller fails the Job before the operator does.
        ("BackoffLimitExceeded", false),
    ] {
        let status = status_of(reason, &on_failure, is_gone);
        assert_eq!(
            (&status.reason, &status.message, status.exit_code),
            (&wanted.reason, &wanted.message, wanted.exit_code),
            "{reason} {is_gone}"
        );
        assert_eq!(
            (status.failed_index, status.restart_count),
            (Some(0), 0),
            "{reason}"
        );
    }
}

#[test]
fn failed_post_is_reported_beside_the_jobs_result() {
    let outcome = |codes: [u8; 3], spec: &str| {
        let mut observation = observation(&format!("size: 3\n{spec}"));
        observation.job = Some(job(3));
        observation.pods = vec![ready(0), ready(1), ready(2)];
        let running = observation.status();
        assert_eq!(condition(&running, "PostSucceeded"), None, "nobody knows yet");
        observation.job = Some(JobSeen {
            complete: true_condition("SuccessPolicy", ""),
            ..job(3)
        });
        observation.pods = codes
            .iter()
            .zip(0..)
            .map(|(code, index)| with_post(ended(index, 0, 5), *code))
            .collect();
        observation.previous = running.clone();
        let after = observation.status();
        assert_eq!((after.exit_code, is(&after, "Complete")), (Some(0), true));
        let events = events::between(&running, &after);
        let found =
            condition(&after, "PostSucceeded").map(|condition| (condition.status, condition.message.clone()));
        let warned = events.iter().filter(|event| event.reason == "PostFailed").count();
        assert_eq!(
            warned,
            usize::from(
                found
                    .as_ref()
                    .is_some_and(|(status, _)| *status == ConditionStatus::False)
            )
        );
        observation.previous = after.clone();
        observation.pods.clear();
        let later = observation.status();
        assert_eq!(
            condition(&later, "PostSucceeded"),
            condition(&after, "PostSucceeded"),
            "when the pods are gone"
        );
        assert_eq!(later.message, after.message);
        (found, after.message.unwrap())
    };
    let text = |status: ConditionStatus, message: &str| Some((status, message.to_owned()));
    let succeeded = "the job ended with exit code 0";
    assert_eq!(
        outcome([0, 0, 0], WITH_POST),
        (
            text(ConditionStatus::True, "post ended with exit code 0"),
            succeeded.to_owned()
        )
    );
    assert_eq!(outcome([0, 0, 0], ""), (None, succeeded.to_owned()));
    let failure =
        "post of the pod of index 1 ended with exit code 2: cat: /tmp/out: No such file or directory";
    assert_eq!(
        outcome([0, 2, 0], WITH_POST),
        (
            text(ConditionStatus::False, failure),
            format!("{succeeded}; {failure}")
        )
    );
    let both = format!("{failure} (and 1 more pod)");
    assert_eq!(
        outcome([0, 2, 1], WITH_POST),
        (
            text(ConditionStatus::False, &both),
            format!("{succeeded}; {both}")
        )
    );
}

/// The deadline ended the wait for a given-up Job, whose lead ends afterwards.
#[test]
fn exit_of_a_given_up_job_is_not_taken_over_after_the_end() {
    let mut observation = observation("size: 1\narchive: {path: /state/a.tgz}");
    let now = at(NOW);
    let limit = restart::Limit::Backoff;
    let before = MiniClusterStatus {
        exit_code: Some(1),
        signal: Some(15),
        ..Default::default()
    };
    observation.previous = restart::with_counted_restart(&before, "job", "LeadLost", "gone", limit, now);
    // While the given-up Job is being deleted, its lead's end is no result either.
    let waiting = Observation {
        job: Some(JobSeen {
            is_deleting: true,
            ..job(1)
        }),
        pods: vec![with_termination(0, Termination::new(Ender::Stop, 143))],
        previous: observation.previous.clone(),
        cluster: observation.cluster.clone(),
        ..super::observation("size: 1")
    };
    observation.previous = waiting.status();
    assert_eq!(
        (observation.previous.exit_code, observation.previous.signal),
        (None, None)
    );
    // There is no Job: the operator reports the end with a made-up one, which has no uid.
    observation.job = Some(JobSeen {
        uid: String::new(),
        failed: true_condition("DeadlineExceeded", "deadlineSeconds exceeded"),
        ..job(1)
    });
    observation.previous = observation.status();
    assert_eq!(observation.previous.exit_code, None);
    let reported = |job_uid: &str| {
        let lead = PodSeen {
            is_deleting: true,
            ..with_termination(0, Termination::new(Ender::Stop, 143))
        };
        let observation = Observation {
            job: Some(JobSeen {
                uid: job_uid.into(),
                is_deleting: true,
                ..job(1)
            }),
            pods: vec![lead, ready(1)],
            cluster: observation.cluster.clone(),
            previous: observation.previous.clone(),
            ..super::observation("size: 1")
        };
        let status = observation.status();
        let is_archive_reported = condition(&status, "ArchiveSaved").is_some();
        assert_eq!((status.phase.as_deref(), status.size), (Some("Failed"), 1));
        (status.exit_code, is_archive_reported)
    };
    assert_eq!(reported("job"), (None, false), "the given-up Job");
    assert_eq!(
        reported("other"),
        (Some(143), true),
        "a Job that was not given up"
    );
}

/// The deadline ended the wait for a given-up Job, whose last pods are still on a lost node, say.
#[test]
fn valid_follows_the_spec_beside_a_given_up_job() {
    let mut observation = observation("size: 1");
    let (now, limit) = (at(NOW), restart::Limit::Backoff);
    let before = MiniClusterStatus::default();
    observation.previous = restart::with_counted_restart(&before, "job", "LeadLost", "gone", limit, now);
    observation.job = Some(JobSeen {
        uid: String::new(),
        failed: true_condition("DeadlineExceeded", "deadlineSeconds exceeded"),
        ..job(1)
    });
    observation.previous = observation.status();
    assert!(is_finished(&observation.previous) && is(&observation.previous, "Valid"));
    observation.job = Some(JobSeen {
        is_deleting: true,
        ..job(1)
    });
    observation.problems = vec![Problem::new("spec.size", "no")];
    let status = observation.status();
    assert!(!is(&status, "Valid"), "{status:#?}");
    assert!(is(&status, "Failed"), "{status:#?}");
    let cleaned_up = Condition {
        type_: "CleanedUp".into(),
        status: ConditionStatus::True,
        ..observation.previous.conditions[0].clone()
    };
    observation.previous.conditions.push(cleaned_up);
    assert!(!is(&observation.status(), "Valid"), "{:#?}", observation.status());
}

#[test]
fn lead_stopped_before_a_resume_has_no_exit_code() {
    let mut observation = observation(&format!("size: 1\narchive: {{path: /state/a.tgz}}\n{WITH_POST}"));
    observation.job = Some(JobSeen {
        start_time: Some(at("2026-01-01T00:05:05Z")),
        ..job(1)
    });
    for (code, is_gone) in [(143, false), (143, true), (0, false), (0, true)] {
        let termination = Termination {
            snippet: Some("post".into()),
            snippet_code: Some(3),
            ..Termination::new(Ender::Stop, code)
        };
        let stopped = PodSeen {
            is_deleting: true,
            deletion_requested: Some(at("2026-01-01T00:05:00Z")),
            has_succeeded: code == 0,
            ..with_termination(0, termination)
        };
        (observation.pods, observation.gone) = if is_gone {
            (vec![pod(0)], vec![stopped])
        } else {
            (vec![stopped], Vec::new())
        };
        let status = observation.status();
        let message = status.message.as_deref().unwrap_or_default();
        assert!(!message.contains("exit code"), "{code} {is_gone}: {message}");
        assert_eq!(status.exit_code, None, "{code} {is_gone}");
        assert_ne!(status.phase.as_deref(), Some("Running"), "{code} {is_gone}");
        for type_ in ["ArchiveSaved", "PostSucceeded"] {
            assert_eq!(condition(&status, type_), None, "{code} {is_gone}");
        }
    }
    // The Job was deleted after a success: a made-up one without a start time represents it. The last lead above, which
    // ended with 0, is still in `gone`.
    observation.job = Some(JobSeen {
        complete: true_condition("Completed", ""),
        start_time: None,
        ..job(1)
    });
    observation.pods = Vec::new();
    assert_eq!(observation.status().exit_code, Some(0));
}
