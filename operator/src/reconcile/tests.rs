use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use flux_operator_core::labels;
use flux_operator_core::observe::job::JobObject;
use flux_operator_core::observe::pod::{PodSeen, PodStatusObject};
use flux_operator_core::observe::{Index, Kind};
use flux_operator_core::render::Options;
use flux_shared::names;
use flux_shared::termination::{Ender, Termination};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::health::metrics::ReconcileOutcome;
use crate::testing;

/// A context with an API server that never answers, and the number of its requests.
fn with_silent_server() -> (Context, Arc<AtomicUsize>) {
    let requests = Arc::<AtomicUsize>::default();
    let count = requests.clone();
    let client = testing::client(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        None
    });
    (testing::context(client, Options::default()), requests)
}

/// The MiniCluster `ns/mc` as a watch delivers it.
fn cluster(uid: &str, spec: Value) -> Cluster {
    let metadata =
        json!({ "namespace": "ns", "name": "mc", "uid": uid, "resourceVersion": "9", "generation": 1 });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// The requests that a fake API server got: method and path, and body.
type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// A context with an API server that has the Job `job` and the leads' pods. It refuses to delete pods, and accepts
/// every other write.
fn with_server(options: Options, job: Value, leads: Value) -> (Context, Requests) {
    with_server_that_fails(options, job, leads, |_| false)
}

/// Like [`with_server`]. The API server answers the requests (method and path) for which `fails` is true with 500.
fn with_server_that_fails(
    options: Options,
    job: Value,
    leads: Value,
    mut fails: impl FnMut(&str) -> bool + Send + 'static,
) -> (Context, Requests) {
    let requests = Requests::default();
    let log = requests.clone();
    let client = testing::client(move |request, body| {
        let (method, path) = (request.method.as_str(), request.uri.path());
        let name = format!("{method} {path}");
        let has_failed = fails(&name);
        log.lock().unwrap().push((name, body.clone()));
        Some(match (method, path.rsplit('/').next().unwrap()) {
            _ if has_failed => (500, json!({ "kind": "Status", "status": "Failure", "code": 500 })),
            ("DELETE", "pods") => (
                403,
                json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden" }),
            ),
            ("DELETE", _) => (200, json!({ "kind": "Status", "status": "Success" })),
            ("GET", "pods") => (200, json!({ "metadata": {}, "items": leads })),
            ("POST", _) => (201, body),
            _ if path.contains("/jobs/") => (200, job.clone()),
            _ => (
                200,
                json!({ "metadata": { "name": "mc", "uid": "uid", "resourceVersion": "10", "generation": 1 } }),
            ),
        })
    });
    (testing::context(client, options), requests)
}

/// The MiniCluster `ns/mc` of the uid `uid`, with a status.
fn cluster_with_status(spec: Value, status: Value) -> Arc<Cluster> {
    let metadata =
        json!({ "namespace": "ns", "name": "mc", "uid": "uid", "resourceVersion": "9", "generation": 1 });
    Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap())
}

/// Metadata of an object of the MiniCluster or its Job.
fn metadata_of(name: &str, owner_kind: &str, owner_uid: &str, labels: Value) -> Value {
    json!({
        "namespace": "ns", "name": name, "uid": name, "resourceVersion": "5", "labels": labels,
        "ownerReferences": [{
            "apiVersion": labels::API_VERSION, "kind": owner_kind, "name": "mc", "uid": owner_uid, "controller": true,
        }],
    })
}

fn job_object() -> Value {
    let metadata = metadata_of("mc", "MiniCluster", "uid", json!({ labels::CLUSTER: "mc" }));
    json!({ "metadata": metadata, "spec": { "completions": 2 }, "status": { "startTime": "2026-01-01T00:00:00Z" } })
}

/// A pod of the Job. `terminated`: the terminated state of its container, or null if it has not started.
fn pod_object(name: &str, index: u32, disruptions: u32, terminated: Value) -> Value {
    let labels = json!({ labels::CLUSTER: "mc", labels::COMPLETION_INDEX: index.to_string() });
    let mut metadata = metadata_of(name, "Job", "mc", labels);
    metadata["annotations"] = json!({ names::INDEX_DISRUPTIONS.1: disruptions.to_string() });
    let phase = if terminated.is_null() { "Pending" } else { "Failed" };
    let state = if terminated.is_null() {
        json!({})
    } else {
        json!({ "terminated": terminated })
    };
    let containers = json!([{
        "name": "mc", "image": "app:1", "imageID": "", "ready": false, "restartCount": 0, "state": state,
    }]);
    json!({
        "metadata": metadata, "spec": { "containers": [{ "name": "mc" }], "restartPolicy": "Never" },
        "status": { "phase": phase, "containerStatuses": containers },
    })
}

/// A spec that is invalid if the installation does not serve `services`.
fn spec_with_services() -> Value {
    json!({
        "size": 2, "containers": [{ "image": "app:1", "command": "hostname" }],
        "services": [{ "image": "cache:1", "name": "cache" }],
    })
}

#[tokio::test]
async fn running_job_fails_for_its_pods_if_the_spec_is_invalid() {
    let snippet = Termination {
        snippet: Some("pre".into()),
        ..Termination::new(Ender::Snippet, 3)
    };
    let follower = pod_object(
        "mc-1-a",
        1,
        0,
        json!({ "exitCode": 3, "message": snippet.encode() }),
    );
    for (lead, others, expected) in [
        // The lead's node was drained, and the Job has replaced its pod.
        (
            pod_object("mc-0-b", 0, 1, Value::Null),
            vec![],
            Some("no restart, because the spec is not valid"),
        ),
        (
            pod_object("mc-0-a", 0, 0, Value::Null),
            vec![follower],
            Some("the pod of index 1 ended with exit code 3"),
        ),
        (pod_object("mc-0-a", 0, 0, Value::Null), vec![], None),
    ] {
        let options = Options {
            services: false,
            ..Options::default()
        };
        let (context, requests) = with_server(options, job_object(), json!([lead]));
        let job: JobObject = serde_json::from_value(job_object()).unwrap();
        context.index.update_job(&job.metadata, JobSeen::of(&job));
        for pod in others.iter().chain([&lead]) {
            let pod: PodStatusObject = serde_json::from_value(pod.clone()).unwrap();
            context.index.update_pod(&pod.metadata, PodSeen::of_object(&pod));
        }
        let status = json!({ "size": 2, "maximumSize": 2, "jobUid": "mc" });
        let object = cluster_with_status(spec_with_services(), status);
        reconcile(object, Arc::new(context)).await.unwrap();
        let requests = requests.lock().unwrap();
        let failed = requests
            .iter()
            .find(|(request, _)| request.ends_with("PATCH /apis/batch/v1/namespaces/ns/jobs/mc/status"))
            .map(|(_, body)| &body["status"]["conditions"][0]);
        let message = failed.and_then(|condition| condition["message"].as_str());
        match expected {
            Some(expected) => assert!(
                message.is_some_and(|message| message.ends_with(expected)),
                "{expected}: {requests:#?}"
            ),
            None => assert_eq!(failed, None),
        }
        assert!(failed.is_none_or(|condition| condition["type"] == "FailureTarget"));
    }
}

/// An earlier reconcile has created the Job. The watch reports it while this reconcile tries to create it.
#[tokio::test]
async fn job_that_the_watch_reports_first_keeps_its_state() {
    let mut suspended = job_object();
    suspended["spec"]["suspend"] = json!(true);
    let index = Arc::<OnceLock<Arc<Index>>>::default();
    let index_of_watch = index.clone();
    let client = testing::client(move |request, body| {
        let path = request.uri.path();
        Some(match (request.method.as_str(), path.ends_with("/jobs")) {
            ("POST", true) => {
                let job: JobObject = serde_json::from_value(suspended.clone()).unwrap();
                let index = index_of_watch.get().unwrap();
                index.update_job(&job.metadata, JobSeen::of(&job));
                (
                    409,
                    json!({ "kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists" }),
                )
            }
            ("POST", false) => (201, body),
            _ if path.contains("/jobs/") => (200, suspended.clone()),
            _ => (
                200,
                json!({ "metadata": { "name": "mc", "uid": "uid", "resourceVersion": "10", "generation": 1 } }),
            ),
        })
    });
    let context = Arc::new(testing::context(client, Options::default()));
    assert!(index.set(context.index.clone()).is_ok());
    let spec = json!({ "size": 2, "containers": [{ "image": "app:1", "command": "hostname" }] });
    reconcile(cluster_with_status(spec, json!({})), context.clone())
        .await
        .unwrap();
    let job = context.index.job(&Key::new("ns", "mc")).unwrap();
    assert!(job.is_suspended, "{job:?}");
}

#[tokio::test]
async fn restart_has_one_event_if_its_job_is_not_deleted_at_once() {
    let deletion = "DELETE /apis/batch/v1/namespaces/ns/jobs/mc";
    // The lead's node was drained, and the Job has replaced its pod.
    let lead = pod_object("mc-0-b", 0, 1, Value::Null);
    let mut is_first = true;
    let (context, requests) =
        with_server_that_fails(Options::default(), job_object(), json!([lead]), move |request| {
            request == deletion && std::mem::take(&mut is_first)
        });
    let job: JobObject = serde_json::from_value(job_object()).unwrap();
    context.index.update_job(&job.metadata, JobSeen::of(&job));
    let pod: PodStatusObject = serde_json::from_value(lead).unwrap();
    context.index.update_pod(&pod.metadata, PodSeen::of_object(&pod));
    let spec = json!({ "size": 2, "containers": [{ "image": "app:1", "command": "hostname" }] });
    let object = cluster_with_status(spec, json!({ "size": 2, "maximumSize": 2, "jobUid": "mc" }));
    let context = Arc::new(context);
    let first = reconcile(object.clone(), context.clone()).await;
    assert!(first.is_err(), "the failure is reported");
    reconcile(object, context).await.unwrap();
    let requests = requests.lock().unwrap();
    let deletions = requests.iter().filter(|(request, _)| request == deletion).count();
    let reason = Reason::StartedAnew.name();
    let events = requests
        .iter()
        .filter(|(_, body)| body["reason"] == reason)
        .count();
    assert_eq!((deletions, events), (2, 1), "{requests:#?}");
}

/// `ttlSecondsAfterFinished` is counted from these times by the API server's clock. If they were this process's, a
/// MiniCluster could be deleted early.
#[tokio::test]
async fn end_is_timed_by_the_api_servers_clock() {
    for ahead in [10, -10] {
        let server_time = Timestamp::now() + SignedDuration::from_mins(ahead);
        let is_server_time =
            |time: Timestamp| time.duration_since(server_time).abs() < SignedDuration::from_secs(60);
        let set = |context: &Context| context.metrics.server_clock.note(&testing::date(server_time));

        // The Job was deleted.
        let (context, _) = with_silent_server();
        set(&context);
        let target = Target::of(&cluster("uid", json!({ "containers": [{ "image": "a" }] })));
        let job = missing_job_as_ended(&target, Reason::Completed.name(), "", &context);
        assert!(is_server_time(job.end_time().unwrap()));

        // The operator ends the Job, whose lead was replaced. Or the Job fails although the lead has succeeded.
        let success = json!({
            "exitCode": 0, "message": Termination::new(Ender::Program, 0).encode(),
            "finishedAt": server_time.to_string(),
        });
        let message =
            "Container mc for pod ns/mc-0-a failed with exit code 137 matching FailJob rule at index 1";
        let mut failing = job_object();
        failing["status"]["conditions"] = json!([{
            "type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy", "message": message,
        }]);
        let replaced = pod_object("mc-0-b", 0, 1, Value::Null);
        for (job, lead) in [
            (job_object(), replaced),
            (failing, pod_object("mc-0-a", 0, 0, success)),
        ] {
            let options = Options {
                services: false,
                ..Options::default()
            };
            let (context, requests) = with_server(options, job.clone(), json!([lead]));
            set(&context);
            let job: JobObject = serde_json::from_value(job).unwrap();
            context.index.update_job(&job.metadata, JobSeen::of(&job));
            let pod: PodStatusObject = serde_json::from_value(lead).unwrap();
            context.index.update_pod(&pod.metadata, PodSeen::of_object(&pod));
            let status = json!({ "size": 2, "maximumSize": 2, "jobUid": "mc" });
            let object = cluster_with_status(spec_with_services(), status);
            reconcile(object, Arc::new(context)).await.unwrap();
            let requests = requests.lock().unwrap();
            let written = requests.iter().find_map(|(request, body)| match request.rsplit('/').nth(2)? {
                "jobs" => body.pointer("/status/conditions/0/lastTransitionTime"),
                "miniclusters" => {
                    let mut operations = body.as_array()?.iter();
                    Some(&operations.find(|operation| operation["path"] == "/status/completionTime")?["value"])
                }
                _ => None,
            });
            let written = written.unwrap_or_else(|| panic!("{requests:#?}"));
            assert!(
                is_server_time(written.as_str().unwrap().parse().unwrap()),
                "{ahead}: {written}"
            );
        }
    }
}

#[tokio::test]
async fn minicluster_is_deleted_although_its_pods_cannot_be() {
    let mut spec = spec_with_services();
    spec["ttlSecondsAfterFinished"] = json!(0);
    let (context, requests) = with_server(Options::default(), job_object(), json!([]));
    let services = metadata_of(
        "mc-services",
        "MiniCluster",
        "uid",
        json!({ labels::SERVICES_OF: "mc" }),
    );
    let services = serde_json::from_value(services).unwrap();
    context.index.update_pod(&services, PodSeen::of(&services, None));
    let finished = json!({
        "type": "JobFinished", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Completed",
        "message": "",
    });
    let object = cluster_with_status(
        spec,
        json!({ "size": 2, "maximumSize": 2, "conditions": [finished] }),
    );
    let result = reconcile(object, Arc::new(context)).await;
    let requests = requests.lock().unwrap();
    let requests: Vec<&str> = requests.iter().map(|(request, _)| request.as_str()).collect();
    let minicluster = "DELETE /apis/flux-framework.org/v1alpha2/namespaces/ns/miniclusters/mc";
    assert!(requests.contains(&minicluster), "{requests:#?}");
    assert!(
        requests.contains(&"DELETE /api/v1/namespaces/ns/pods"),
        "{requests:#?}"
    );
    assert!(result.is_err(), "the refusal is reported");
}

/// The API server answers at once, but its binder binds nothing.
#[tokio::test(start_paused = true)]
async fn unbound_volumes_do_not_count_as_api_silence() {
    let (requests, mut created) = (Requests::default(), HashSet::new());
    let log = requests.clone();
    let client = testing::client(move |request, body| {
        let path = request.uri.path();
        log.lock()
            .unwrap()
            .push((format!("{} {path}", request.method), body.clone()));
        Some(match request.method.as_str() {
            "POST" => {
                created.insert(format!("{path}/{}", body["metadata"]["name"].as_str().unwrap()));
                (201, body)
            }
            "GET" if !created.contains(path) => (404, json!({ "kind": "Status", "code": 404 })),
            _ => {
                let metadata = json!({ "name": "mc", "resourceVersion": "10" });
                (
                    200,
                    json!({ "metadata": metadata, "status": { "phase": "Pending" } }),
                )
            }
        })
    });
    let context = testing::context(client, Options::default());
    let volume = |path: &str| json!({ "path": path });
    let spec = json!({
        "size": 1, "volumes": { "a": volume("/a"), "b": volume("/b"), "c": volume("/c") },
        "containers": [{ "image": "app:1", "volumes": {
            "a": volume("/a"), "b": volume("/b"), "c": volume("/c"),
        } }],
    });
    let begin = tokio::time::Instant::now();
    reconcile(Arc::new(cluster("uid", spec)), Arc::new(context))
        .await
        .unwrap();
    let took = begin.elapsed();
    assert!((Duration::from_secs(2)..SLOW_AFTER).contains(&took), "{took:?}");
    let requests = requests.lock().unwrap();
    let count = |wanted: &str| requests.iter().filter(|(request, _)| request == wanted).count();
    let jobs = count("POST /apis/batch/v1/namespaces/ns/jobs");
    let volumes = count("POST /api/v1/persistentvolumes");
    assert_eq!((volumes, jobs), (3, 1), "{requests:#?}");
    let reason = Reason::ApiError.name();
    assert!(
        requests
            .iter()
            .all(|(_, body)| !body.to_string().contains(reason)),
        "{requests:#?}"
    );
}

/// Otherwise no alert would tell the administrator.
#[tokio::test]
async fn missing_permission_for_volumes_is_the_operators_error() {
    let forbidden = json!({
        "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
        "message": r#"persistentvolumes "a" is forbidden: User "o" cannot get resource "persistentvolumes""#,
    });
    let client = testing::client(move |request, body| {
        Some(match request.method.as_str() {
            _ if request.uri.path().contains("persistentvolumes") => (403, forbidden.clone()),
            "POST" => (201, body),
            _ => (
                200,
                json!({ "metadata": { "name": "mc", "resourceVersion": "10" } }),
            ),
        })
    });
    let context = testing::context(client, Options::default());
    let volumes = json!({ "a": { "path": "/a" } });
    let spec = json!({
        "size": 1, "volumes": volumes, "containers": [{ "image": "app:1", "volumes": volumes }],
    });
    let result = reconcile(Arc::new(cluster("uid", spec)), Arc::new(context)).await;
    assert_eq!(result.unwrap_err().outcome(), ReconcileOutcome::Error);
}

#[tokio::test]
async fn lost_pods_of_an_earlier_minicluster_are_not_counted() {
    let metadata = |name: &str, version: &str| ObjectMeta {
        name: Some(name.into()),
        namespace: Some("ns".into()),
        uid: Some(name.into()),
        resource_version: Some(version.into()),
        labels: Some([(labels::CLUSTER.to_owned(), "mc".to_owned())].into()),
        ..ObjectMeta::default()
    };
    let (context, _) = with_silent_server();
    let index = &context.index;
    // The index keeps the losses of a removed Job only for a MiniCluster that has joined a headless Service.
    index.join(&Key::new("ns", "flux-service"), "mc");
    let job = JobSeen {
        uid: "mc".into(),
        owner_uid: Some("earlier".into()),
        completions: 2,
        ..JobSeen::default()
    };
    index.update_job(&metadata("mc", "1"), job);
    // The pod is removed while its Job runs: a loss.
    for is_deleting in [false, true] {
        let pod = PodSeen {
            name: "mc-0".into(),
            job_uid: Some("mc".into()),
            is_running: true,
            is_deleting,
            ..PodSeen::default()
        };
        index.update_pod(&metadata("mc-0", "2"), pod);
    }
    index.remove(Kind::Job, &metadata("mc", "3"));
    let lost_pods = |uid: &str| {
        let target = Target::of(&cluster(uid, json!({ "containers": [{ "image": "a" }] })));
        with_losses(&target, &context).lost_pods.len()
    };
    assert_eq!((lost_pods("earlier"), lost_pods("next")), (1, 0));
}

#[test]
fn next_reconcile_is_after_the_shortest_pause() {
    let [long, short] = [300, 2].map(Duration::from_secs);
    for times in [
        [Some(long), Some(short), None],
        [None, Some(short), Some(long)],
        [Some(long), None, Some(short)],
    ] {
        assert_eq!(requeue_after_shortest(times), Action::requeue(short));
    }
    assert_eq!(requeue_after_shortest([None; 3]), Action::await_change());
}

#[tokio::test(start_paused = true)]
async fn large_spec_given_up_is_not_called_invalid() {
    let requests_for = async |script: usize| {
        let (context, requests) = with_silent_server();
        let spec = json!({ "containers": [{ "image": "a", "commands": { "pre": "x".repeat(script) } }] });
        let mut cluster = cluster("uid", spec);
        // This leaves out a large spec, as in the cache. What is left would be invalid.
        cluster::shrink(&mut cluster);
        let now = Instant::now();
        // After so many failures in a row, the status shows them.
        for _ in 0..3 {
            let key = Key::new("ns", "mc");
            context
                .miniclusters
                .after_failure(&key, "uid", &ReconcileError::TooManySlow, now);
        }
        // A report that writes a status gets no answer: only the time limit ends it.
        let report = report_overload(&cluster, &context);
        drop(tokio::time::timeout(Duration::from_secs(50), report).await);
        requests.load(Ordering::SeqCst)
    };
    assert_eq!((requests_for(10).await, requests_for(100_000).await), (1, 0));
}
