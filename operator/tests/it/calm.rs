//! Waiting costs next to nothing: without news, no state makes the operator repeat itself more often than
//! once in 10 s, and each status says why it waits.

use std::sync::Arc;
use std::time::Duration;

use flux_operator::controller::ControllerSettings;
use flux_operator::health::metrics::{LiveState, Metrics};
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, PersistentVolume, Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::faults::says_version;
use crate::queue::place;
use crate::restarts::running;
use crate::storage;
use crate::stuck::{cannot_mount, set_node_ready};
use test_support::api_server::{Call, Calls, Fault, Fixture, Operator, assert_message, test, until};

/// After this time, pauses have grown to more than 10 s.
const GROWN: Duration = Duration::from_secs(25);
const WINDOW: Duration = Duration::from_secs(20);
/// Calls of one attempt: at most one for each object of a MiniCluster, one to read what exists, and one for
/// the status.
const ATTEMPT: usize = 9;

/// Asserts that the operator makes at most this number of attempts in 20 s.
async fn assert_calm(operator: &Operator, attempts: usize, state: &str) {
    tokio::time::sleep(GROWN).await;
    operator.calls.clear();
    tokio::time::sleep(WINDOW).await;
    let calls: Vec<Call> = operator
        .calls
        .all()
        .into_iter()
        .filter(|call| call.verb != "watch")
        .collect();
    assert!(
        calls.len() <= attempts * ATTEMPT,
        "{state}: {} calls in {WINDOW:?}: {calls:#?}",
        calls.len()
    );
}

/// Removes our label from a Job.
async fn unlabel(fixture: &Fixture, name: &str) {
    let none = json!({ "metadata": { "labels": { "flux-framework.org/minicluster": null } } });
    fixture.patch::<Job>(name, none).await.unwrap();
}

/// Deletes a MiniCluster, and plays the kubelet until it is gone.
async fn delete(fixture: &Fixture, name: &str) {
    fixture.delete::<MiniCluster>(name).await;
    until(&format!("{name} is gone"), async || {
        fixture.reap(name).await;
        let cluster = fixture.find::<MiniCluster>(name).await;
        let job = fixture.find::<Job>(name).await;
        (cluster.is_none() && job.is_none()).then_some(())
    })
    .await;
}

/// The number of reconciles so far.
fn reconciles(metrics: &Metrics) -> usize {
    let text = metrics.text(LiveState::<std::iter::Empty<&str>>::default());
    let counters = text
        .lines()
        .filter(|line| line.starts_with("controller_runtime_reconcile_total{"));
    let values = counters.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
    values.sum()
}

/// The new operator has read no events yet, and reads those of one MiniCluster per second.
#[test]
fn restarted_operator_keeps_the_reasons_of_statuses() {
    test("calm-restart", async |fixture| {
        let names: Vec<String> = (0..9).map(|number| format!("mc-{number}")).collect();
        let spec = json!({ "size": 1, "pod": { "schedulerName": "nobody" } });
        for name in &names {
            fixture.create(name, spec.clone()).await;
        }
        let operator = fixture.operator().await;
        for name in &names {
            fixture.when_is(name, "reason", "SchedulerSilent").await;
        }
        drop(operator);
        let operator = fixture.operator().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let is_write = |call: &Call| !["get", "list", "watch"].contains(&call.verb.as_str());
        let writes: Vec<Call> = operator.calls.all().into_iter().filter(is_write).collect();
        assert!(writes.is_empty(), "{writes:#?}");
    });
}

#[test]
fn job_of_another_operator_is_an_obstacle_and_no_loop() {
    test("calm-foreign", async |fixture| {
        fixture.create("old", json!({ "size": 2 })).await;
        let uid = fixture.get("old").await.metadata.uid.unwrap();
        let job = json!({
            "metadata": { "name": "old", "ownerReferences": [{
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "old", "uid": uid, "controller": true,
            }] },
            "spec": { "suspend": true, "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "x", "image": "busybox" }],
            } } },
        });
        fixture.add::<Job>(job).await;
        let operator = fixture.operator().await;
        let status = fixture.when_is("old", "reason", "JobUnlabelled").await;
        assert_message(&status, "kubectl delete job old");
        assert_calm(&operator, 2, "a Job of another operator").await;
        fixture.delete::<Job>("old").await;
        fixture
            .when("old", "going on", |status| {
                status["maximumSize"] == 2 && status["reason"].is_null()
            })
            .await;
        operator.stop().await;
    });
}

#[test]
fn job_without_label_is_an_obstacle_and_no_loop() {
    test("calm-label", async |fixture| {
        let operator = fixture.operator().await;
        fixture
            .create("waits", json!({ "size": 1, "suspend": true }))
            .await;
        fixture.create("runs", json!({ "size": 1 })).await;
        fixture.when_is("waits", "phase", "Suspended").await;
        fixture.run_pods("runs", 1).await;
        fixture.when_is("runs", "phase", "Running").await;
        for name in ["waits", "runs"] {
            unlabel(&fixture, name).await;
        }
        for (name, phase) in [("waits", "Suspended"), ("runs", "Running")] {
            let status = fixture.when_is(name, "reason", "JobUnlabelled").await;
            assert_message(&status, "kubectl label job");
            assert_eq!(status["phase"], phase, "it is as it was: {status:#}");
            assert_eq!(status["restartCount"].as_i64().unwrap_or(0), 0, "{status:#}");
        }
        assert_calm(&operator, 2, "two Jobs without a label").await;
        for name in ["waits", "runs"] {
            let label = json!({ "metadata": { "labels": { "flux-framework.org/minicluster": name } } });
            fixture.patch::<Job>(name, label).await.unwrap();
        }
        fixture.edit("waits", json!({ "suspend": false })).await;
        fixture
            .when("runs", "as before", |status| {
                status["reason"].is_null() && status["phase"] == "Running"
            })
            .await;
        fixture.pods("waits", 1).await;
        operator.stop().await;
    });
}

#[test]
fn what_cannot_be_created_is_tried_rarely_and_within_a_minute() {
    test("calm-quota", async |fixture| {
        fixture.refuse_jobs().await;
        let existing = json!({ "metadata": { "name": "taken-agent" } });
        fixture.add::<ConfigMap>(existing).await;
        let calls = Calls::with_faults(|call: &Call| {
            (call.verb == "create" && call.resource == "configmaps" && call.name == "fails-agent")
                .then_some(Fault::Answer(500))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        for (name, reason) in [
            ("full", "Forbidden"),
            ("taken", "NameTaken"),
            ("fails", "ApiError"),
        ] {
            fixture.create(name, json!({ "size": 1 })).await;
            fixture.when_is(name, "reason", reason).await;
        }
        // Two attempts for each of the three.
        assert_calm(&operator, 3 * 2, "three that cannot be created").await;

        // The pauses grow to their maximum.
        tokio::time::sleep(Duration::from_secs(60)).await;
        fixture.allow_jobs().await;
        let begin = std::time::Instant::now();
        fixture.when_is("full", "maximumSize", 1).await;
        assert!(
            begin.elapsed() < Duration::from_secs(65),
            "it took {:?}",
            begin.elapsed()
        );
        operator.stop().await;
    });
}

#[test]
fn nothing_is_created_in_a_namespace_that_is_being_deleted() {
    test("calm-terminating", async |fixture| {
        // An object with a finalizer keeps the namespace.
        let kept = json!({ "metadata": { "name": "kept", "finalizers": ["example.org/stays"] } });
        fixture.add::<ConfigMap>(kept).await;
        let operator = fixture.operator().await;
        const COUNT: usize = 20;
        let names: Vec<String> = (0..COUNT).map(|number| format!("mc-{number}")).collect();
        for name in &names {
            fixture.create(name, json!({ "size": 1, "suspend": true })).await;
            let finalizer = json!({ "metadata": { "finalizers": ["example.org/stays"] } });
            fixture.patch::<MiniCluster>(name, finalizer).await.unwrap();
        }
        for name in &names {
            fixture.when_is(name, "phase", "Suspended").await;
        }
        let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
        namespaces
            .delete(&fixture.namespace, &DeleteParams::default())
            .await
            .unwrap();
        // The Jobs may go before the namespace controller deletes them. The operator must not create them again.
        for name in &names {
            let _ = fixture
                .api::<Job>()
                .delete(name, &DeleteParams::background())
                .await;
        }
        // The calls in flight are refused, and the operator learns from them.
        tokio::time::sleep(Duration::from_secs(5)).await;
        operator.calls.clear();
        tokio::time::sleep(Duration::from_secs(20)).await;
        // Events may still be tried: the operator ignores that the API server refuses them.
        let is_creation = |call: &Call| call.verb == "create" && call.resource != "events";
        let creations: Vec<Call> = operator.calls.all().into_iter().filter(is_creation).collect();
        assert!(
            creations.is_empty(),
            "in a namespace that is being deleted: {creations:#?}"
        );
        for name in &names {
            let none = json!({ "metadata": { "finalizers": null } });
            let _ = fixture.patch::<MiniCluster>(name, none).await;
        }
        let none = json!({ "metadata": { "finalizers": null } });
        let _ = fixture.patch::<ConfigMap>("kept", none).await;
        operator.stop().await;
    });
}

/// All states at once. A reconcile is recognized by one of its calls, which the table of states names. For "earlier"
/// and "secret" it names none: all reconciles that are left over may be theirs.
#[test]
fn waiting_minicluster_is_reconciled_once_in_10_s_at_most() {
    const LONG_WINDOW: Duration = Duration::from_secs(35);
    const MOST: usize = 4;
    const NODE: &str = "calm-node";
    test("calm-waiting", async |fixture| {
        let calls = Calls::with_faults(|call: &Call| {
            let no_groups = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [] });
            // "old" needs Kubernetes 1.34.
            says_version("33", call).or_else(|| (call.resource == "apis").then(|| Fault::Says(no_groups)))
        });
        let metrics = Arc::new(Metrics::new().unwrap());
        let counts = metrics.clone();
        let change =
            |settings: &mut ControllerSettings| (settings.metrics, settings.options.gang) = (counts, true);
        let operator = fixture.operator_of(calls, change).await;

        // Pods of a Job that is gone.
        running(&fixture, "orphans", json!({})).await;
        fixture
            .delete_with::<Job>("orphans", &DeleteParams::orphan())
            .await;
        // A pod of an earlier MiniCluster, on a dead node.
        let nodes: Api<Node> = Api::all(fixture.client.clone());
        let (held, _) = running(&fixture, "earlier", json!({})).await;
        set_node_ready(&nodes, NODE, "Unknown").await;
        place(&fixture, &held, NODE).await;
        fixture.hold_pod(&held).await;
        delete(&fixture, "earlier").await;
        // A PersistentVolume of an earlier MiniCluster.
        let with_volume = || storage::spec(json!({ "path": "/tmp/data" }));
        fixture.create("volume", with_volume()).await;
        let volume = storage::bound(&fixture, "volume").await.name_any();
        let keep_volume = async |finalizers: Value| {
            let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
            let api: Api<PersistentVolume> = Api::all(fixture.client.clone());
            api.patch(&volume, &PatchParams::default(), &patch).await.unwrap();
        };
        keep_volume(json!(["example.org/stays"])).await;
        delete(&fixture, "volume").await;

        // The Secret that a pod still has to mount.
        fixture.create("secret", json!({ "size": 1 })).await;
        let pods = fixture.pods("secret", 1).await;
        let secret = fixture.secret("secret", "curve").await.unwrap().name_any();
        let secrets = fixture.api::<Secret>();
        secrets.delete(&secret, &DeleteParams::default()).await.unwrap();
        let message =
            format!("MountVolume.SetUp failed for volume \"flux-curve\" : secret \"{secret}\" not found");
        cannot_mount(&fixture, &pods[&0], &message).await;

        let gang = json!({ "size": 1, "gang": "on" });
        let template = json!({ "size": 1, "podTemplate": { "spec": { "hostNetwrok": true } } });
        // With ''' in it, the text needs a TOML string that escapes each backslash. So the AgentSpec is larger than a
        // ConfigMap may be.
        let script = format!("'''{}", "\\".repeat(600_000));
        let large =
            json!({ "size": 1, "containers": [{ "image": "app:1", "commands": { "script": script } }] });
        let old = json!({ "size": 1, "pod": { "resources": { "cpu": 1 } } });
        let states = [
            ("orphans", None, "WaitingForPods", "get jobs"),
            ("earlier", Some(json!({ "size": 2 })), "WaitingForPods", ""),
            (
                "volume",
                Some(with_volume()),
                "WaitingForPrevious",
                "get persistentvolumes",
            ),
            ("secret", None, "SecretDeleted", ""),
            ("gang", Some(gang), "GangUnavailable", "list apis"),
            ("template", Some(template), "PodTemplateRefused", "create jobs"),
            ("large", Some(large), "TooLarge", "get miniclusters"),
            ("old", Some(old), "Unsupported", "list version"),
        ];
        for (name, spec, reason, _) in &states {
            if let Some(spec) = spec {
                fixture.create(name, spec.clone()).await;
            }
            fixture.when_is(name, "reason", *reason).await;
        }
        let count = |name: &str, wanted: &str| {
            let is_it = |call: &Call| {
                format!("{} {}", call.verb, call.resource) == wanted
                    && (call.name.is_empty() || call.name.contains(name))
            };
            operator.calls.all().iter().filter(|call| is_it(call)).count()
        };
        tokio::time::sleep(GROWN).await;
        for (name, _, _, call) in states.iter().filter(|(_, _, _, call)| !call.is_empty()) {
            assert!(count(name, call) >= 2, "{name}: {call} is not what it repeats");
        }
        operator.calls.clear();
        let before = reconciles(&metrics);
        tokio::time::sleep(LONG_WINDOW).await;
        let mut others = reconciles(&metrics) - before;
        for (name, _, reason, call) in &states {
            let count = count(name, call);
            assert!(count <= MOST, "{name}: {count} times {call} in {LONG_WINDOW:?}");
            others -= count;
            fixture.when_is(name, "reason", *reason).await;
        }
        assert!(
            others <= 2 * MOST,
            "earlier and secret: {others} reconciles in {LONG_WINDOW:?}"
        );
        fixture.release_pod(&held).await;
        keep_volume(Value::Null).await;
        nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
        operator.stop().await;
    });
}

#[test]
fn recreated_namespace_is_usable_at_once() {
    test("calm-recreated", async |fixture| {
        // Since Kubernetes 1.33, the namespace controller deletes nothing else before all pods are gone.
        let kept = json!({
            "metadata": { "name": "kept", "finalizers": ["example.org/stays"] },
            "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
        });
        fixture.add::<Pod>(kept).await;
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1, "suspend": true })).await;
        fixture.when_is("mc", "phase", "Suspended").await;
        operator.calls.clear();
        let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
        namespaces
            .delete(&fixture.namespace, &DeleteParams::default())
            .await
            .unwrap();
        let jobs = fixture.api::<Job>();
        let _ = jobs.delete("mc", &DeleteParams::background()).await;
        // Wait until the operator has tried to create an object, which the API server refuses, but for 10 s at most: an
        // earlier Kubernetes may delete the MiniCluster first, and then the operator creates nothing.
        let is_creation = |call: &Call| call.verb == "create" && call.resource != "events";
        for _ in 0..50 {
            if operator.calls.all().iter().any(is_creation) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let none = json!({ "metadata": { "finalizers": null } });
        fixture.patch::<Pod>("kept", none).await.unwrap();
        until("the namespace is gone", async || {
            let namespace = namespaces.get_opt(&fixture.namespace).await.unwrap();
            namespace.is_none().then_some(())
        })
        .await;
        let namespace = json!({ "metadata": { "name": fixture.namespace } });
        namespaces
            .create(
                &PostParams::default(),
                &serde_json::from_value(namespace).unwrap(),
            )
            .await
            .unwrap();
        fixture.create("mc", json!({ "size": 1 })).await;
        let created = |status: &Value| status["maximumSize"] == 1;
        fixture
            .when_within(Duration::from_secs(20), "mc", "created", created)
            .await;
        operator.stop().await;
    });
}
