//! What the status says about pods that wait for a queue, a scheduler or an image.

use serde_json::{Value, json};

use super::*;
use crate::decide::silent_wait;

#[test]
fn elastic_cluster_names_queue_and_reason_when_it_cannot_grow() {
    let mut observation = observation("size: 3\nmaxSize: 4");
    let gate = Trouble {
        reason: "SchedulingGated".into(),
        message: "gates".into(),
        ..Trouble::default()
    };
    let held = |index| PodSeen {
        is_scheduled: false,
        is_held_by_queue: true,
        trouble: Some(Box::new(gate.clone())),
        ..pod(index)
    };
    let queue = Some("team".to_owned());
    observation.job = Some(JobSeen {
        queue,
        is_elastic: true,
        ..job(3)
    });
    (observation.previous, observation.pods) = (observation.status(), vec![ready(0), held(1), held(2)]);
    let after = observation.status();
    assert_eq!(after.reason.as_deref(), Some("Queued"));
    assert_eq!(
        after.message.as_deref(),
        Some("waits in queue team for 2 of 3 pods")
    );
    observation.warning = Some(Trouble {
        reason: "Queued".into(),
        message: "no cpu".into(),
        ..Trouble::default()
    });
    let after = observation.status();
    assert_eq!(
        after.message.as_deref(),
        Some("waits in queue team for 2 of 3 pods: no cpu")
    );
    for (type_, status) in [
        ("Suspended", ConditionStatus::False),
        ("JobRunning", ConditionStatus::True),
        ("JobWaitingForResources", ConditionStatus::True),
    ] {
        assert_eq!(
            condition(&after, type_).unwrap().status,
            status,
            "{type_}: what runs goes on"
        );
    }
    assert_eq!(
        condition(&after, "JobWaitingForResources").unwrap().message,
        after.message.clone().unwrap()
    );
    assert!(events::between(&observation.previous, &after).is_empty());
    observation.job = Some(job(3));
    assert_eq!(
        observation.status().reason.as_deref(),
        Some("SchedulingGated"),
        "no queue is known"
    );
    observation.job = Some(JobSeen {
        queue: Some("team".into()),
        ..job(3)
    });
    observation.pods = vec![ready(0), ready(1), pod(2)];
    assert_eq!(observation.status().reason, None, "all pods are admitted");
}

#[test]
fn status_names_the_scheduler_of_unseen_pods() {
    let mut observation = observation("size: 1");
    observation.job = Some(job(1));
    let unseen = |name: &str| PodSeen {
        is_scheduled: false,
        is_unnoticed: true,
        scheduler: Some(name.into()),
        ..pod(0)
    };
    observation.pods = vec![unseen("default-scheduler")];
    let counts = "0/1 pods scheduled, 0 running, 0 ready";
    assert_eq!(
        observation.status().message.as_deref(),
        Some(counts),
        "the default scheduler is not named"
    );
    observation.pods = vec![unseen("nobody")];
    let expected = format!("{counts}; scheduler nobody has not looked at all of them yet");
    assert_eq!(observation.status().message, Some(expected));
    let silent = silent_wait::unnoticed(0, "nobody", false);
    observation.warning = Some(silent.clone());
    let after = observation.status();
    assert_eq!(
        (after.reason.as_deref(), after.message),
        (Some("SchedulerSilent"), Some(silent.message))
    );
}

/// Reads a pod as the API server sends it: its gates, its scheduler, and whether the scheduler has reported
/// on it.
#[test]
fn what_keeps_a_pod_from_a_node_is_read_from_it() {
    let seen = |spec: Value, conditions: Value| {
        let status = serde_json::from_value(json!({ "conditions": conditions })).unwrap();
        let spec: PodSpecPart = serde_json::from_value(spec).unwrap();
        let seen = PodSeen::of(&Default::default(), Some(&status)).with_spec(&spec);
        (
            seen.is_held_by_queue,
            seen.scheduler.as_deref().map(str::to_owned),
            seen.trouble.map(|trouble| trouble.reason),
        )
    };
    let unscheduled = |reason: &str| json!([{ "type": "PodScheduled", "status": "False", "reason": reason }]);
    let spec = |more: Value| {
        let mut spec = json!({ "schedulerName": "mine" });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        spec
    };
    let gates = |name: &str| spec(json!({ "schedulingGates": [{ "name": name }] }));
    let none = || json!([]);
    let gated = Some("SchedulingGated".to_owned());
    assert_eq!(
        seen(
            gates("kueue.x-k8s.io/elastic-job"),
            unscheduled("SchedulingGated")
        ),
        (true, None, gated.clone())
    );
    assert_eq!(
        seen(gates("kueue.x-k8s.io/topology"), unscheduled("SchedulingGated")),
        (false, None, gated.clone())
    );
    assert_eq!(
        seen(gates("example.org/mine"), unscheduled("SchedulingGated")),
        (false, None, gated)
    );
    assert_eq!(seen(spec(json!({})), none()), (false, Some("mine".into()), None));
    assert_eq!(
        seen(json!({}), none()),
        (false, Some("default-scheduler".into()), None)
    );
    assert_eq!(
        seen(spec(json!({ "nodeName": "a" })), none()),
        (false, None, None),
        "the pod has a node"
    );
    let nominated = serde_json::from_value(json!({ "nominatedNodeName": "a" })).unwrap();
    assert!(
        !PodSeen::of(&Default::default(), Some(&nominated)).is_unnoticed,
        "the scheduler has nominated a node"
    );
    let error = Some("SchedulerError".to_owned());
    assert_eq!(
        seen(spec(json!({})), unscheduled("SchedulerError")),
        (false, None, error),
        "the scheduler reports the error itself"
    );
}

#[test]
fn failed_pull_keeps_one_reason_while_the_kubelet_alternates() {
    let waiting = |reason: &str| PodSeen {
        trouble: Some(Box::new(Trouble {
            reason: reason.into(),
            message: format!("{reason}: not found"),
            ..Trouble::default()
        })),
        ..pod(0)
    };
    for words in [
        ["ErrImagePull", "ImagePullBackOff"],
        ["ImagePullBackOff", "ErrImagePull"],
    ] {
        let mut observation = observation("size: 1");
        observation.job = Some(job(1));
        observation.pods = vec![waiting(words[0])];
        observation.previous = observation.status();
        observation.pods = vec![waiting(words[1])];
        let after = observation.status();
        assert_eq!(after.reason.as_deref(), Some(words[0]));
        assert_eq!(events::between(&observation.previous, &after), []);
        assert!(
            after.message.unwrap().contains(words[1]),
            "the message is the newest"
        );
    }
}

fn services_pod(trouble: Option<(Reason, &str)>) -> ServicesPodSeen {
    let trouble = trouble.map(|(reason, message)| {
        Box::new(Trouble {
            reason: reason.to_string(),
            message: message.into(),
            ..Trouble::default()
        })
    });
    ServicesPodSeen {
        uid: "services".into(),
        controller_uid: Some("uid".into()),
        is_deleting: false,
        was_evicted: false,
        trouble,
        queue: None,
    }
}

#[test]
fn broken_services_pod_is_reported_while_the_job_may_need_it() {
    let mut observation = observation("size: 1\nservices: [{image: db, name: db}]");
    observation.job = Some(job(1));
    observation.pods = vec![ready(0)];
    observation.services_pod = Some(services_pod(None));
    observation.previous = observation.status();
    assert_eq!(observation.previous.reason, None);

    let failed = (Reason::ServiceFailed, "container db ended with exit code 3");
    observation.services_pod = Some(services_pod(Some(failed)));
    let broken = observation.status();
    assert_eq!(
        (
            broken.phase.as_deref(),
            broken.reason.as_deref(),
            broken.message.as_deref()
        ),
        (
            Some("Running"),
            Some("ServiceFailed"),
            Some("services pod mc-services: container db ended with exit code 3")
        )
    );
    assert_eq!(
        broken.conditions, observation.previous.conditions,
        "the brokers are well"
    );
    let written: Vec<String> = events::between(&observation.previous, &broken)
        .into_iter()
        .map(|event| event.reason)
        .collect();
    assert_eq!(written, ["ServiceFailed"]);

    // The kubelet alternates between two reasons for the same image.
    let pull = |reason: Reason| Some(services_pod(Some((reason, "container db: not found"))));
    observation.services_pod = pull(Reason::ErrImagePull);
    observation.previous = observation.status();
    observation.services_pod = pull(Reason::ImagePullBackOff);
    assert_eq!(observation.status(), observation.previous);

    // A broker's trouble comes first.
    observation.pods = vec![PodSeen {
        trouble: services_pod(Some((Reason::Unschedulable, "no room"))).trouble,
        ..pod(0)
    }];
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("Unschedulable"));
    // Brokers may wait for the services.
    observation.pods = vec![pod(0)];
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("ErrImagePull"));
    assert!(condition(&status, "Stalled").is_none(), "{status:#?}");

    // It is no news once it is being deleted, or once the program has ended.
    observation.services_pod.as_mut().unwrap().is_deleting = true;
    assert_eq!(observation.status().reason, None);
    observation.services_pod = Some(services_pod(Some(failed)));
    observation.pods = vec![ended(0, 0, 5)];
    assert_eq!(observation.status().reason, None);
    observation.job.as_mut().unwrap().complete = true_condition("CompletionsReached", "");
    observation.previous = observation.status();
    assert_eq!(observation.previous.reason.as_deref(), Some("Completed"));
    assert_eq!(observation.status(), observation.previous);
}

/// Kueue's pod integration takes the services pod for a Job of its own.
#[test]
fn gated_services_pod_is_reported_with_its_queue() {
    let mut observation = observation("size: 1\nservices: [{image: db, name: db}]");
    observation.job = Some(job(1));
    observation.pods = vec![ready(0)];
    let gated = |is_gated: bool, queue: Option<&str>| {
        let trouble = is_gated.then_some((Reason::SchedulingGated, ""));
        Some(ServicesPodSeen {
            queue: queue.map(str::to_owned),
            ..services_pod(trouble)
        })
    };
    observation.services_pod = gated(true, Some("default"));
    let status = observation.status();
    assert_eq!(
        (status.reason.as_deref(), status.message.as_deref()),
        (
            Some("Queued"),
            Some("waits in queue default for the services pod")
        )
    );
    assert!(is(&status, "Ready"), "the brokers run: {status:#?}");
    observation.services_pod = gated(true, None);
    let status = observation.status();
    assert_eq!(status.reason.as_deref(), Some("SchedulingGated"));
    let message = status.message.unwrap_or_default();
    assert!(message.contains("spec.servicesPodTemplate"), "{message}");
    // Brokers may wait for the services. A refused pod has another cause.
    observation.pods = vec![pod(0)];
    let reason_with = |observation: &mut Observation, warning: Reason| {
        observation.warning = Some(Trouble {
            reason: warning.to_string(),
            message: "why".into(),
            ..Trouble::default()
        });
        observation.status().reason
    };
    let reason = reason_with(&mut observation, Reason::BrokersNotReady);
    assert_eq!(reason.as_deref(), Some("SchedulingGated"));
    let reason = reason_with(&mut observation, Reason::FailedCreate);
    assert_eq!(reason.as_deref(), Some("FailedCreate"));
    observation.warning = None;
    observation.pods = vec![ready(0)];
    observation.services_pod = gated(false, Some("default"));
    assert_eq!(observation.status().reason, None);
}
