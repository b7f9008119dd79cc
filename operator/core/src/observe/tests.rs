use flux_shared::queueing::QUEUE_NAME;
use flux_shared::termination::{Ender, Termination};

use super::*;

mod ends;
mod neighbours;

/// Metadata of an object of the MiniCluster `ns/mc`.
fn metadata(name: &str, uid: &str, version: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some("ns".into()),
        uid: Some(uid.into()),
        resource_version: Some(version.into()),
        labels: Some([(labels::CLUSTER.to_owned(), "mc".to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// A queue suspends a Job by itself. The watch of pods may report this before the watch of Jobs.
#[test]
fn deletion_seen_before_its_suspension_is_no_loss() {
    let metadata = |name: &str, version: &str| metadata(name, name, version);
    let index = Index::default();
    let losses = || index.observed(&Key::new("ns", "mc")).losses.len();
    let job = JobSeen {
        uid: "mc".into(),
        completions: 2,
        ..JobSeen::default()
    };
    index.update_job(&metadata("mc", "1"), job.clone());
    let pod = PodSeen {
        name: "mc-0".into(),
        job_uid: Some("mc".into()),
        is_running: true,
        ..PodSeen::default()
    };
    index.update_pod(&metadata("mc-0", "2"), pod.clone());
    index.update_pod(
        &metadata("mc-0", "3"),
        PodSeen {
            is_deleting: true,
            ..pod
        },
    );
    assert_eq!(losses(), 1, "the suspension is not known yet");
    index.update_job(
        &metadata("mc", "4"),
        JobSeen {
            is_suspended: true,
            ..job
        },
    );
    assert_eq!(losses(), 0);
}

/// The Job controller deletes the pods above a smaller size. The watch of pods may report this first.
#[test]
fn deletion_seen_before_its_shrink_is_no_loss() {
    let metadata = |name: &str, version: &str| metadata(name, name, version);
    let index = Index::default();
    let lost = || {
        let observed = index.observed(&Key::new("ns", "mc"));
        let names = observed.losses.iter().map(|lost| lost.name.clone());
        names.collect::<Vec<_>>()
    };
    let job = |completions: u32| JobSeen {
        uid: "mc".into(),
        completions,
        ..JobSeen::default()
    };
    index.update_job(&metadata("mc", "1"), job(4));
    let disruption = pod::Trouble {
        is_disruption: true,
        ..pod::Trouble::default()
    };
    for (number, trouble) in [(1, None), (2, None), (3, Some(Box::new(disruption)))] {
        let name = format!("mc-{number}");
        let pod = PodSeen {
            name: name.clone(),
            index: number,
            job_uid: Some("mc".into()),
            is_running: true,
            trouble,
            ..PodSeen::default()
        };
        index.update_pod(&metadata(&name, "2"), pod.clone());
        index.update_pod(
            &metadata(&name, "3"),
            PodSeen {
                is_deleting: true,
                ..pod
            },
        );
    }
    assert_eq!(lost(), ["mc-1", "mc-2", "mc-3"], "the new size is not known yet");
    index.update_job(&metadata("mc", "4"), job(4));
    assert_eq!(lost().len(), 3, "another change of the Job");
    index.update_job(&metadata("mc", "5"), job(2));
    assert_eq!(
        lost(),
        ["mc-1", "mc-3"],
        "one stays in the Job, one was disrupted"
    );
}

/// The lists of a new operator come in any order.
#[test]
fn loss_that_is_listed_before_its_job_counts() {
    let index = Index::default();
    let job = JobSeen {
        uid: "mc".into(),
        completions: 2,
        ..JobSeen::default()
    };
    let lost = PodSeen {
        name: "mc-1".into(),
        index: 1,
        job_uid: Some("mc".into()),
        is_running: true,
        is_deleting: true,
        ..PodSeen::default()
    };
    let losses = || index.observed(&Key::new("ns", "mc")).losses.len();
    index.update_pod(&metadata("mc-1", "mc-1", "2"), lost.clone());
    assert_eq!(losses(), 0, "the pod's Job is not known yet");
    index.update_job(&metadata("mc", "mc", "1"), job.clone());
    assert_eq!(losses(), 1);
    index.update_pod(&metadata("mc-1", "mc-1", "3"), lost);
    index.update_job(&metadata("mc", "mc", "4"), job);
    assert_eq!(losses(), 1, "it counts once");
}

/// A new operator finds pods that a suspension has stopped, after the resume.
#[test]
fn pod_that_a_suspension_stops_is_no_loss() {
    let time = |minute| format!("2026-01-01T00:{minute:02}:00Z").parse().unwrap();
    for (start, losses) in [(2, 1), (4, 0)] {
        let index = Index::default();
        let job = JobSeen {
            uid: "mc".into(),
            completions: 2,
            start_time: Some(time(start)),
            ..JobSeen::default()
        };
        let pod = PodSeen {
            name: "mc-1".into(),
            index: 1,
            job_uid: Some("mc".into()),
            is_running: true,
            is_deleting: true,
            deletion_requested: Some(time(3)),
            ..PodSeen::default()
        };
        index.update_job(&metadata("mc", "mc", "1"), job);
        index.update_pod(&metadata("mc-1", "mc-1", "2"), pod);
        assert_eq!(index.observed(&Key::new("ns", "mc")).losses.len(), losses);
    }
}

/// The garbage collector deletes the Job of a deleted MiniCluster with a delay.
#[test]
fn losses_of_an_earlier_minicluster_are_forgotten_with_its_job() {
    let job = |uid: &str| JobSeen {
        uid: uid.into(),
        completions: 2,
        ..JobSeen::default()
    };
    let pod = |deleting: bool| PodSeen {
        name: "mc-0".into(),
        job_uid: Some("earlier".into()),
        is_running: true,
        is_deleting: deleting,
        ..PodSeen::default()
    };
    let (index, key) = (Index::default(), Key::new("ns", "mc"));
    let losses = || index.observed(&key).losses.len();
    // To the index, a MiniCluster exists if it uses a headless Service.
    index.join(&Key::new("ns", "flux-service"), "mc");
    index.update_job(&metadata("mc", "earlier", "1"), job("earlier"));
    index.update_pod(&metadata("mc-0", "pod", "2"), pod(false));
    index.forget_cluster(&key);
    index.update_pod(&metadata("mc-0", "pod", "3"), pod(true));
    assert_eq!(losses(), 1);
    index.remove(Kind::Job, &metadata("mc", "earlier", "4"));
    index.join(&Key::new("ns", "flux-service"), "mc");
    index.update_job(&metadata("mc", "next", "5"), job("next"));
    assert_eq!(losses(), 0);
}

#[test]
fn old_node_counts_only_for_pods_that_may_use_it() {
    let node = |name: &str, runtime: &str, taint: bool| {
        let taints = if taint {
            serde_json::json!([{ "key": "virtual", "effect": "NoSchedule" }])
        } else {
            serde_json::json!([])
        };
        let node = serde_json::json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/arch": "arm64" } }, "spec": { "taints": taints },
            "status": { "nodeInfo": { "kubeletVersion": "v1.35.4", "containerRuntimeVersion": runtime } },
        });
        NodeSeen::of(&serde_json::from_value(node).unwrap())
    };
    let index = Index::default();
    let nodes =
        |spec: &str| index.view_nodes(|| crate::render::placement::of_pods(&crate::testing::cluster(spec)));
    assert_eq!(nodes(""), ViewNodes::Unknown);
    index.update_node("old", node("old", "containerd://1.6.20", true));
    assert_eq!(nodes(""), ViewNodes::AllOld);
    index.update_node("new", node("new", "containerd://2.2.9", false));
    assert_eq!(nodes(""), ViewNodes::Mount, "no pod may be put on the old one");
    let tolerates = "pod: {tolerations: [{key: virtual, operator: Exists}]}";
    assert_eq!(
        nodes(tolerates),
        ViewNodes::Old("node old (kubelet v1.35.4, containerd://1.6.20)".into())
    );
    assert_eq!(
        nodes(&format!("{tolerates}\nflux: {{arch: amd64}}")),
        ViewNodes::Mount
    );
    index.keep_nodes(&["new".to_owned()].into());
    assert_eq!(nodes(tolerates), ViewNodes::Mount, "it is gone");
}

/// The node controller marks a pod only if it was ready.
#[test]
fn pods_of_a_silent_node_are_marked_even_if_never_ready() {
    let metadata = |name: &str| metadata(name, name, "1");
    let index = Index::default();
    let key = Key::new("ns", "mc");
    let pod = |name: &str| PodSeen {
        name: name.into(),
        node: Some("worker-3".into()),
        ..PodSeen::default()
    };
    let is_on_silent_node = |name: &str| index.observed(&key).pods[name].is_on_silent_node;
    index.update_pod(&metadata("mc-0"), pod("mc-0"));
    assert_eq!(index.update_silence("worker-3", true), std::slice::from_ref(&key));
    assert!(index.update_silence("worker-3", true).is_empty(), "it is no news");
    index.update_pod(&metadata("mc-1"), pod("mc-1"));
    index.update_pod(
        &metadata("mc-2"),
        PodSeen {
            has_ended: true,
            ..pod("mc-2")
        },
    );
    assert!(is_on_silent_node("mc-0") && is_on_silent_node("mc-1") && !is_on_silent_node("mc-2"));
    assert_eq!(
        index.update_silence("worker-3", false),
        std::slice::from_ref(&key)
    );
    assert!(!is_on_silent_node("mc-0") && !is_on_silent_node("mc-1"));
}

/// The watch of pods may lag behind, so the result of a list counts.
#[test]
fn leads_are_as_the_api_server_has_just_listed_them() {
    let lead = |name: &str| PodSeen {
        name: name.into(),
        job_uid: Some("job".into()),
        ..PodSeen::default()
    };
    let pods = [
        ("a".to_owned(), lead("a")),
        (
            "b".to_owned(),
            PodSeen {
                index: 1,
                ..lead("b")
            },
        ),
    ];
    let observed = Observed {
        pods: pods.map(|(uid, pod)| (uid, Box::new(pod))).into(),
        ..Observed::default()
    };
    let updated = observed.with_pods(
        "job",
        vec![(
            "c".into(),
            PodSeen {
                has_ended: true,
                ..lead("c")
            },
        )],
    );
    assert_eq!(updated.gone_leads, [lead("a")]);
    // The index has not seen `c` before. It had ended without a sign of a removal, so it ended before any loss
    // (`PodSeen::remember`).
    assert!(
        updated.pods["c"].has_ended
            && updated.pods["c"].ended_before_loss
            && updated.pods.contains_key("b")
            && updated.pods.len() == 2
    );
}

/// Otherwise each decision would seem to be out of date.
#[test]
fn lead_that_is_read_again_unchanged_is_the_same() {
    let lead = || PodSeen {
        name: "mc-0".into(),
        job_uid: Some("job".into()),
        node: Some("worker".into()),
        is_running: true,
        ..PodSeen::default()
    };
    let ended = || PodSeen {
        is_running: false,
        has_ended: true,
        ..lead()
    };
    let key = Key::new("ns", "mc");
    // The node has stopped responding. The lead still runs; or it has ended and was deleted afterwards.
    for states in [
        vec![lead()],
        vec![
            lead(),
            ended(),
            PodSeen {
                is_deleting: true,
                ..ended()
            },
        ],
    ] {
        let index = Index::default();
        index.update_job(
            &metadata("mc", "job", "1"),
            JobSeen {
                uid: "job".into(),
                ..JobSeen::default()
            },
        );
        index.update_silence("worker", true);
        for state in &states {
            index.update_pod(&metadata("mc-0", "lead", "1"), state.clone());
        }
        let observed = index.observed(&key);
        let again = observed.with_pods("job", vec![("lead".into(), states.last().unwrap().clone())]);
        assert_eq!(again, *observed);
    }
}

/// A reconcile reads the Job, and the answer arrives after the watch has reported its end. No later event
/// would correct it.
#[test]
fn job_that_is_gone_does_not_return_with_an_earlier_answer() {
    let metadata = |version: &str, uid: &str| metadata("mc", uid, version);
    let job = |uid: &str| JobSeen {
        uid: uid.into(),
        ..JobSeen::default()
    };
    let (index, key) = (Index::default(), Key::new("ns", "mc"));
    // The MiniCluster exists, so the index remembers its last Job.
    index.join(&Key::new("ns", "flux-service"), "mc");
    index.update_job(&metadata("10", "job"), job("job"));
    index.update_job(&metadata("20", "job"), job("job"));
    index.remove(Kind::Job, &metadata("20", "job"));
    assert_eq!(index.update_job(&metadata("15", "job"), job("job")), None);
    let observed = index.observed(&key);
    assert!(
        observed.job.is_none() && observed.last_job.is_some(),
        "{observed:?}"
    );
    assert_eq!(
        index.update_job(&metadata("30", "next"), job("next")),
        Some(key.clone())
    );
    assert_eq!(index.job(&key), Some(job("next")));
}

#[test]
fn services_pod_counts_as_evicted_unless_it_failed_by_itself() {
    let was_evicted = |status: serde_json::Value| {
        let labels = serde_json::json!({ (labels::SERVICES_OF): "mc" });
        let pod = serde_json::json!({
            "metadata": { "name": "mc-services", "namespace": "ns", "uid": "pod", "labels": labels },
            "spec": {}, "status": status,
        });
        let pod: pod::PodStatusObject = serde_json::from_value(pod).unwrap();
        let index = Index::default();
        index.update_pod(&pod.metadata, PodSeen::of_object(&pod));
        let services_pod = index.observed(&Key::new("ns", "mc")).services_pod.clone();
        services_pod.unwrap().was_evicted
    };
    let ended = |code: i32| {
        let terminated = serde_json::json!({ "exitCode": code, "reason": "Error" });
        serde_json::json!([{
            "name": "db", "image": "db", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": terminated },
        }])
    };
    let evicted = |containers: serde_json::Value| {
        was_evicted(
            serde_json::json!({ "phase": "Failed", "reason": "Evicted", "containerStatuses": containers }),
        )
    };
    let over_own_limit = serde_json::json!({
        "phase": "Failed", "reason": "Evicted", "containerStatuses": ended(137),
        "message": "Usage of EmptyDir volume \"data\" exceeds the limit \"1Gi\". ",
    });
    assert!(!was_evicted(over_own_limit));
    let disrupted = serde_json::json!([{
        "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
    }]);
    assert!(!was_evicted(serde_json::json!({ "phase": "Running" })));
    for code in [1, 137, 255] {
        let by_itself = serde_json::json!({ "phase": "Failed", "containerStatuses": ended(code) });
        assert!(!was_evicted(by_itself), "{code}");
    }
    assert!(!evicted(serde_json::json!([])), "its node never started it");
    assert!(evicted(ended(137)));
    assert!(was_evicted(serde_json::json!({
        "phase": "Failed", "conditions": disrupted, "containerStatuses": ended(137),
    })));
}

#[test]
fn services_pod_keeps_its_queue_and_its_gate() {
    let pod = |is_gated: bool, queue: &str| {
        let conditions = if is_gated {
            serde_json::json!([{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }])
        } else {
            serde_json::json!([])
        };
        let labels = serde_json::json!({ (labels::SERVICES_OF): "mc", (QUEUE_NAME): queue });
        let pod = serde_json::json!({
            "metadata": { "name": "mc-services", "namespace": "ns", "uid": "pod", "labels": labels },
            "spec": {}, "status": { "phase": "Pending", "conditions": conditions },
        });
        let pod: pod::PodStatusObject = serde_json::from_value(pod).unwrap();
        let index = Index::default();
        index.update_pod(&pod.metadata, PodSeen::of_object(&pod));
        let services_pod = index
            .observed(&Key::new("ns", "mc"))
            .services_pod
            .clone()
            .unwrap();
        (
            services_pod.trouble.map(|trouble| trouble.reason),
            services_pod.queue,
        )
    };
    for (is_gated, trouble) in [(true, Some("SchedulingGated".to_owned())), (false, None)] {
        assert_eq!(
            pod(is_gated, "default"),
            (trouble.clone(), Some("default".into()))
        );
        assert_eq!(pod(is_gated, ""), (trouble, None));
    }
}

#[test]
fn services_pod_keeps_what_is_wrong_with_its_containers() {
    use serde_json::{Value, json};
    let index = Index::default();
    let trouble = |phase: &str, containers: &[(&str, Value, Value)]| {
        let container = |(name, state, last): &(&str, Value, Value)| {
            json!({ "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 1,
                "state": state, "lastState": last })
        };
        let statuses: Vec<Value> = containers.iter().map(container).collect();
        // With `minimalService`, the pod has an index.
        let labels = json!({ (labels::SERVICES_OF): "mc", (labels::COMPLETION_INDEX): "0" });
        let pod = json!({
            "metadata": { "name": "mc-services", "namespace": "ns", "uid": "pod", "labels": labels },
            "spec": { "restartPolicy": "Always" }, "status": { "phase": phase, "containerStatuses": statuses },
        });
        let pod: pod::PodStatusObject = serde_json::from_value(pod).unwrap();
        index.update_pod(&pod.metadata, PodSeen::of_object(&pod));
        let services_pod = index.observed(&Key::new("ns", "mc")).services_pod.clone();
        let trouble = services_pod.unwrap().trouble?;
        Some((trouble.reason.clone(), trouble.message.clone()))
    };
    let waiting = |reason: &str| json!({ "waiting": { "reason": reason, "message": "why" } });
    let ended = |code: i32, reason: &str| json!({ "terminated": { "exitCode": code, "reason": reason } });
    let (runs, none) = (json!({ "running": {} }), json!({}));
    let failed = |message: &str| Some(("ServiceFailed".to_owned(), message.to_owned()));
    let beside = ("web", runs.clone(), none.clone());
    let of = |phase: &str, state: Value, last: Value| trouble(phase, &[beside.clone(), ("db", state, last)]);

    let pull = Some(("ErrImagePull".to_owned(), "container db: why".to_owned()));
    assert_eq!(of("Pending", waiting("ErrImagePull"), none.clone()), pull);
    let exited = failed("container db ended with exit code 3");
    assert_eq!(of("Running", ended(3, "Error"), none.clone()), exited);
    assert_eq!(of("Failed", ended(3, "Error"), none.clone()), exited);
    // The same words, so the status does not change with each restart.
    assert_eq!(
        of("Running", waiting("CrashLoopBackOff"), ended(3, "Error")),
        exited
    );
    assert_eq!(
        of("Running", ended(137, "OOMKilled"), none.clone()),
        failed("container db ended with exit code 137 (OOMKilled)")
    );
    assert_eq!(
        of("Running", waiting("CrashLoopBackOff"), ended(0, "Completed")),
        failed("container db ended with exit code 0, and the kubelet restarts it again and again")
    );
    for (phase, state, last) in [
        ("Pending", waiting("ContainerCreating"), none.clone()),
        ("Running", runs, ended(3, "Error")),
        ("Running", ended(0, "Completed"), none.clone()),
        ("Succeeded", ended(0, "Completed"), none),
    ] {
        assert_eq!(of(phase, state.clone(), last), None, "{state}");
    }

    // `servicesPodTemplate` may have init containers.
    let container = |name: &str, state: Value| json!({ "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    let pod = json!({
        "metadata": { "name": "mc-services", "namespace": "ns", "uid": "pod", "labels": { (labels::SERVICES_OF): "mc" } },
        "spec": { "restartPolicy": "Never" },
        "status": { "phase": "Failed", "initContainerStatuses": [container("load", ended(4, "Error"))],
            "containerStatuses": [container("db", waiting("PodInitializing"))] },
    });
    let pod: pod::PodStatusObject = serde_json::from_value(pod).unwrap();
    let trouble = PodSeen::of_object(&pod).trouble.unwrap();
    assert_eq!(
        Some((trouble.reason, trouble.message)),
        failed("init container load ended with exit code 4")
    );
}

/// The kubelet may never start the runner. The words stay while a sidecar is restarted.
#[test]
fn sidecar_that_fails_before_the_runner_is_trouble() {
    use serde_json::{Value, json};
    let trouble = |state: Value, last: Value, runner: Value| {
        let pod = json!({
            "metadata": { "name": "mc-0-x", "namespace": "ns", "uid": "pod" },
            "spec": { "initContainers": [{ "name": "server", "restartPolicy": "Always" }], "containers": [{ "name": "main" }] },
            "status": { "phase": "Pending",
                "initContainerStatuses": [{ "name": "server", "image": "i", "imageID": "", "ready": false,
                    "restartCount": 1, "state": state, "lastState": last }],
                "containerStatuses": [{ "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                    "state": runner }] },
        });
        let pod: pod::PodStatusObject = serde_json::from_value(pod).unwrap();
        let trouble = PodSeen::of_object(&pod).trouble?;
        Some((trouble.reason.clone(), trouble.message.clone()))
    };
    let snippet = Termination {
        snippet: Some("pre".into()),
        snippet_error: "apt-get: command not found".into(),
        ..Termination::new(Ender::Snippet, 127)
    };
    let ended = |code: i32, message: &str| json!({ "terminated": { "exitCode": code, "reason": "Error", "message": message } });
    let (by_snippet, none) = (ended(127, &snippet.encode()), json!({}));
    let (runs, looping) = (
        json!({ "running": {} }),
        json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
    );
    let failed = |message: &str| Some(("SidecarFailed".to_owned(), message.to_owned()));
    let named =
        failed("the snippet pre of the sidecar server ended with exit code 127: apt-get: command not found");
    let idle = json!({ "waiting": { "reason": "PodInitializing" } });
    for (state, last) in [
        (by_snippet.clone(), none.clone()),
        (looping.clone(), by_snippet.clone()),
        (runs.clone(), by_snippet.clone()),
    ] {
        assert_eq!(trouble(state.clone(), last, idle.clone()), named, "{state}");
    }
    assert_eq!(
        trouble(looping, ended(0, ""), runs.clone()),
        failed("the sidecar server ended with exit code 0, and the kubelet restarts it again and again")
    );
    // It is over once the runner runs, and a signal ends a sidecar with its pod.
    assert_eq!(trouble(runs.clone(), by_snippet, runs.clone()), None);
    assert_eq!(trouble(ended(143, ""), none.clone(), runs), None);
    assert_eq!(trouble(ended(0, ""), none, idle), None);
}

/// Otherwise one namespace's pods could fill the operator's memory.
#[test]
fn pod_seen_keeps_no_long_names_that_a_user_wrote() {
    let long = "x".repeat(100_000);
    let pod = serde_json::json!({
        "metadata": { "name": "p" }, "spec": { "schedulerName": long, "nodeName": null },
        "status": { "phase": "Pending" },
    });
    let size_of = |pod: &serde_json::Value| {
        format!(
            "{:?}",
            PodSeen::of_object(&serde_json::from_value(pod.clone()).unwrap())
        )
        .len()
    };
    assert!(size_of(&pod) < 4096);
    let bound =
        serde_json::json!({ "metadata": { "name": "p" }, "spec": { "nodeName": long }, "status": {} });
    assert!(size_of(&bound) < 4096);
}
