//! MiniClusters that wait for a reason that only events tell. Objects that somebody has deleted: the operator creates
//! them again, or names them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flux_operator::health::metrics::{LiveState, Metrics};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::queue::place;
use crate::restarts::running;
use test_support::api_server::{Call, Calls, Fault, Fixture, SETTLE, assert_message, condition, test, until};

/// Plays the kubelet: the pod has a node, and its volumes cannot be mounted.
pub(crate) async fn cannot_mount(fixture: &Fixture, pod: &Pod, message: &str) {
    let status = json!({ "status": {
        "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "True" }],
        "containerStatuses": [{
            "name": pod.spec.as_ref().unwrap().containers[0].name, "image": "i", "imageID": "", "ready": false,
            "restartCount": 0, "state": { "waiting": { "reason": "ContainerCreating" } },
        }],
    } });
    fixture.patch_pod_status(pod, status).await;
    warn(fixture, pod, "FailedMount", message).await;
}

/// Writes a warning event about the pod.
async fn warn(fixture: &Fixture, pod: &Pod, reason: &str, message: &str) {
    let event = json!({
        "metadata": { "generateName": format!("{}-", pod.name_any()) },
        "involvedObject": { "kind": "Pod", "name": pod.name_any(), "namespace": fixture.namespace, "uid": pod.uid() },
        "type": "Warning", "reason": reason, "message": message, "lastTimestamp": Timestamp::now().to_string(),
    });
    fixture.add::<Event>(event).await;
}

#[test]
fn job_without_pods_is_explained_and_continues_when_it_can() {
    test("makes-no-pods", async |fixture| {
        let operator = fixture.operator().await;
        fixture
            .create(
                "mc",
                json!({ "size": 2, "pod": { "serviceAccountName": "later" } }),
            )
            .await;
        let status = fixture.when_is("mc", "reason", "FailedCreate").await;
        assert_message(&status, "serviceaccount \"later\" not found");
        assert_eq!(
            condition(&status, "JobWaitingForResources")["reason"],
            "FailedCreate"
        );
        assert_eq!(status["phase"], "Pending");
        operator.stop().await;

        // A new operator reports the same.
        let next_operator = fixture.operator().await;
        until("it has looked", async || {
            next_operator
                .calls
                .all()
                .into_iter()
                .find(|call| call.resource == "events" && call.verb == "list")
        })
        .await;
        let now = fixture.status("mc").await;
        assert_eq!(now["reason"], "FailedCreate", "{now:#}");

        fixture
            .add::<ServiceAccount>(json!({ "metadata": { "name": "later" } }))
            .await;
        fixture.pods("mc", 2).await;
        fixture
            .when("mc", "going on", |status| {
                status["reason"] == Value::Null && status["size"] == 2
            })
            .await;
        next_operator.stop().await;
    });
}

#[test]
fn a_volume_that_cannot_be_mounted_is_named() {
    test("cannot-mount", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.pods("mc", 2).await;
        let message = "MountVolume.SetUp failed for volume \"k\" : secret \"nope\" not found";
        cannot_mount(&fixture, &pods[&1], message).await;
        let status = fixture.when_is("mc", "reason", "FailedMount").await;
        assert_eq!(status["message"], message);
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        fixture
            .when("mc", "running", |status| {
                status["reason"] == Value::Null && status["phase"] == "Running"
            })
            .await;
        operator.stop().await;
    });
}

/// The pod has a node by now, and a policy that only audits blocks nothing.
#[test]
fn warning_that_delays_no_pod_is_not_reported() {
    test("other-warnings", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1 })).await;
        let pod = fixture.pods("mc", 1).await.remove(&0).unwrap();
        let message = "0/5 nodes are available: 5 Insufficient cpu.";
        warn(&fixture, &pod, "FailedScheduling", message).await;
        warn(
            &fixture,
            &pod,
            "PolicyViolation",
            "policy x/y fail: validation error",
        )
        .await;
        let placed = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "True" }] } });
        fixture.patch_pod_status(&pod, placed).await;
        until("its events are read", async || {
            let is_read = |call: &Call| call.resource == "events" && call.verb == "list";
            operator.calls.all().iter().any(is_read).then_some(())
        })
        .await;
        tokio::time::sleep(SETTLE).await;
        let status = fixture.status("mc").await;
        assert_eq!(status["reason"], Value::Null, "{status:#}");
        operator.stop().await;
    });
}

/// Plays the kubelet of a node that has rebooted before the pod's container had started: the reboot removed the pod's
/// sandbox, or (`has_sandbox`) the pod has a new one.
async fn set_sandbox(fixture: &Fixture, pod: &Pod, has_sandbox: bool) {
    let container = |name: &str, state: Value| json!({ "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    let runner = &pod.spec.as_ref().unwrap().containers[0].name;
    let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed" } });
    let waiting = json!({ "waiting": { "reason": "PodInitializing" } });
    let status = json!({ "status": {
        "phase": "Pending",
        "conditions": [
            { "type": "PodScheduled", "status": "True" },
            { "type": "PodReadyToStartContainers", "status": if has_sandbox { "True" } else { "False" } },
        ],
        "initContainerStatuses": [container("flux-agent", ended)],
        "containerStatuses": [container(runner, waiting)],
    } });
    fixture.patch_pod_status(pod, status).await;
}

/// With restartPolicy Never, the kubelet makes no other sandbox. If a pod gets one nevertheless, it stays.
#[test]
fn pod_that_its_restarted_node_never_starts_is_replaced() {
    test("never-starts", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.pods("mc", 2).await;
        fixture.run_pod(&pods[&0]).await;
        set_sandbox(&fixture, &pods[&1], false).await;
        let status = fixture.when_is("mc", "reason", "NodeRestarted").await;
        assert_message(
            &status,
            "pod 1: its node was restarted before its container had started",
        );
        let gone = &pods[&1];
        let new = until("it is replaced", async || {
            let new = fixture.pods("mc", 2).await.remove(&1);
            new.filter(|new| new.uid() != gone.uid())
        })
        .await;
        fixture.run_pod(&new).await;
        fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(
            fixture.status("mc").await["restarts"],
            Value::Null,
            "only the follower"
        );

        // Another such pod gets a sandbox after the operator has seen it. The operator does not delete it.
        fixture.create("back", json!({ "size": 1 })).await;
        let pod = fixture.pods("back", 1).await.remove(&0).unwrap();
        set_sandbox(&fixture, &pod, false).await;
        fixture.when_is("back", "reason", "NodeRestarted").await;
        set_sandbox(&fixture, &pod, true).await;
        fixture.when_is("back", "reason", Value::Null).await;
        // The operator first waits 10 s before it deletes such a pod.
        tokio::time::sleep(Duration::from_secs(12)).await;
        assert_eq!(fixture.pods("back", 1).await[&0].uid(), pod.uid());

        // A lead that its node never starts counts as lost.
        set_sandbox(&fixture, &pod, false).await;
        let is_restarted = |status: &Value| status["restarts"][0]["reason"] == "LeadLost";
        let status = fixture.when("back", "restarted", is_restarted).await;
        assert_message(&status["restarts"][0], "NodeRestarted");
        operator.stop().await;
    });
}

/// The kubelet has ended both pods. A finalizer of another controller holds one, and no event follows.
#[test]
fn pod_that_a_finalizer_holds_is_named() {
    test("finalizer-on-pod", async |fixture| {
        let operator = fixture.operator().await;
        let (_, follower) = running(&fixture, "mc", json!({})).await;
        fixture.hold_pod(&follower).await;
        fixture
            .delete_with::<Job>("mc", &DeleteParams::foreground())
            .await;
        until("the Job's pods are being deleted", async || {
            let mut pods = fixture.all_pods("mc").await.into_iter();
            pods.all(|pod| pod.metadata.deletion_timestamp.is_some())
                .then_some(())
        })
        .await;
        fixture.reap("mc").await;
        let status = fixture.when_is("mc", "reason", "StuckTerminating").await;
        assert_message(&status, &format!("pod {} on node", follower.name_any()));
        assert_message(&status, "a finalizer");
        fixture.release_pod(&follower).await;
        fixture.run_pods("mc", 2).await;
        let status = fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(status["reason"], Value::Null, "{status:#}");
        operator.stop().await;
    });
}

/// Between the operator's calls, a pod may change. That is no failure: the next check reads it again. The operator
/// marks the pod by a patch, and then deletes it by a `deletecollection` that selects its name. Each fails once here.
#[test]
fn pod_that_changes_before_it_is_deleted_is_no_error() {
    test("never-starts-changed", async |fixture| {
        let faults = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let [was_patched, was_deleted] = faults.clone();
        let calls = Calls::with_faults(move |call: &Call| {
            let is_first = match (call.verb.as_str(), call.resource.as_str()) {
                ("patch", "pods/status") if call.name.starts_with("patched-") => {
                    !was_patched.swap(true, Ordering::SeqCst)
                }
                ("deletecollection", "pods") => !was_deleted.swap(true, Ordering::SeqCst),
                _ => false,
            };
            is_first.then_some(Fault::Answer(409))
        });
        let metrics = Arc::new(Metrics::new().unwrap());
        let counts = metrics.clone();
        let operator = fixture
            .operator_of(calls, |settings| settings.metrics = counts)
            .await;
        let mut lost = BTreeMap::new();
        for name in ["patched", "deleted"] {
            fixture.create(name, json!({ "size": 1 })).await;
            let pod = fixture.pods(name, 1).await.remove(&0).unwrap();
            set_sandbox(&fixture, &pod, false).await;
            lost.insert(name, pod.uid());
        }
        for (name, lost) in lost {
            let is_restarted = |status: &Value| status["restarts"][0]["reason"] == "LeadLost";
            fixture.when(name, "restarted", is_restarted).await;
            assert_ne!(fixture.pods(name, 1).await[&0].uid(), lost, "{name}");
        }
        assert!(faults.iter().all(|happened| happened.load(Ordering::SeqCst)));
        let text = metrics.text(LiveState::<std::iter::Empty<&str>>::default());
        assert!(
            text.contains("controller_runtime_reconcile_errors_total{controller=\"minicluster\"} 0\n"),
            "{text}"
        );
        operator.stop().await;
    });
}

#[test]
fn deleted_config_map_is_recreated_and_deleted_key_is_reported() {
    test("parts-deleted", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 2, "maxSize": 4 })).await;
        let pods = fixture.pods("mc", 2).await;
        let before = fixture.api::<ConfigMap>().get("mc-agent").await.unwrap();
        fixture.delete::<ConfigMap>("mc-agent").await;
        let message = "MountVolume.SetUp failed for volume \"flux-agent\" : configmap \"mc-agent\" not found";
        cannot_mount(&fixture, &pods[&1], message).await;
        let after = until("it is made again", async || {
            fixture.find::<ConfigMap>("mc-agent").await
        })
        .await;
        assert_eq!(
            (before.data, before.metadata.owner_references),
            (after.data, after.metadata.owner_references)
        );

        fixture.create("lost", json!({ "size": 1 })).await;
        let pods = fixture.pods("lost", 1).await;
        let secret = fixture.secret("lost", "curve").await.unwrap().name_any();
        fixture.delete::<Secret>(&secret).await;
        let message =
            format!("MountVolume.SetUp failed for volume \"flux-curve\" : secret \"{secret}\" not found");
        cannot_mount(&fixture, &pods[&0], &message).await;
        let status = fixture.when_is("lost", "reason", "SecretDeleted").await;
        assert_message(&status, "apply it again");
        assert!(
            fixture.secret("lost", "curve").await.is_none(),
            "another key would fit no other pod"
        );
        operator.stop().await;
    });
}

/// A reconcile goes on after an obstacle, and may meet another one.
#[test]
fn obstacle_is_not_hidden_by_one_of_a_later_step() {
    test("two-obstacles", async |fixture| {
        let [refuse_scaling, refuse_config_maps] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (no_scaling, no_config_maps) = (refuse_scaling.clone(), refuse_config_maps.clone());
        let calls = Calls::with_faults(move |call: &Call| {
            let is_refused = match (call.verb.as_str(), call.resource.as_str()) {
                ("patch", "jobs") => no_scaling.load(Ordering::SeqCst),
                ("create", "configmaps") => no_config_maps.load(Ordering::SeqCst),
                _ => false,
            };
            is_refused.then_some(Fault::Answer(403))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        fixture.create("mc", json!({ "size": 2, "maxSize": 4 })).await;
        let pods = fixture.pods("mc", 2).await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_is("mc", "maximumSize", 4).await;
        refuse_scaling.store(true, Ordering::SeqCst);
        refuse_config_maps.store(true, Ordering::SeqCst);
        fixture.edit("mc", json!({ "size": 3 })).await;
        let of_job = |status: &Value| {
            let message = status["message"].as_str().unwrap_or_default();
            status["reason"] == "Forbidden" && message.contains("Job mc")
        };
        fixture.when("mc", "told of the Job", of_job).await;
        fixture.delete::<Service>("flux-service").await;
        until("the Service is made again", async || {
            fixture.find::<Service>("flux-service").await
        })
        .await;
        fixture.delete::<ConfigMap>("mc-agent").await;
        let message = "MountVolume.SetUp failed for volume \"flux-agent\" : configmap \"mc-agent\" not found";
        operator.calls.clear();
        cannot_mount(&fixture, &pods[&1], message).await;
        until("the ConfigMap is refused, too", async || {
            let is_try = |call: &Call| call.verb == "create" && call.resource == "configmaps";
            operator.calls.all().iter().any(is_try).then_some(())
        })
        .await;
        tokio::time::sleep(SETTLE).await;
        let status = fixture.status("mc").await;
        assert!(of_job(&status), "{status:#}");

        refuse_scaling.store(false, Ordering::SeqCst);
        let of_config_map = |status: &Value| {
            let message = status["message"].as_str().unwrap_or_default();
            status["reason"] == "Forbidden" && message.contains("ConfigMap mc-agent")
        };
        fixture.when("mc", "told of the ConfigMap", of_config_map).await;
        tokio::time::sleep(SETTLE).await;
        let status = fixture.status("mc").await;
        assert!(of_config_map(&status), "it stays: {status:#}");
        refuse_config_maps.store(false, Ordering::SeqCst);
        until("it is made again", async || {
            fixture.find::<ConfigMap>("mc-agent").await
        })
        .await;
        operator.stop().await;
    });
}

/// The quorum stays the size that the Job had when its pods were created. The operator reports a size below it only until the MiniCluster has
/// been ready. No pod starts here by itself: the control plane of these tests has no scheduler.
#[test]
fn size_below_the_quorum_names_the_quorum_until_it_is_raised() {
    test("quorum", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 3, "maxSize": 4 })).await;
        fixture.pods("mc", 3).await;
        let resize = async |size: u32| {
            fixture.edit("mc", json!({ "size": size })).await;
        };
        resize(2).await;
        let is_below = |status: &Value| status["reason"] == "SizeBelowQuorum";
        let status = fixture.when("mc", "told of its quorum", is_below).await;
        assert_message(&status, "3 brokers");
        resize(3).await;
        fixture
            .when("mc", "not told of it any more", |status| !is_below(status))
            .await;
        operator.stop().await;
    });
}

#[test]
fn status_names_the_scheduler_when_none_sees_the_pods() {
    test("unseen", async |fixture| {
        let operator = fixture.operator().await;
        let container = json!({ "image": "app:1", "name": "app", "command": "hostname" });
        let over = json!({ "spec": { "schedulerName": "nobody" } });
        fixture
            .create(
                "mc",
                json!({ "size": 2, "podTemplate": over, "containers": [container] }),
            )
            .await;
        let pods = fixture.pods("mc", 2).await;
        let status = fixture.when_is("mc", "reason", "SchedulerSilent").await;
        let message = status["message"].as_str().unwrap();
        assert!(
            message.starts_with("scheduler nobody has not reported on pod 0 yet"),
            "{status:#}"
        );
        assert_eq!(
            condition(&status, "JobWaitingForResources")["reason"],
            "SchedulerSilent"
        );
        let looks = operator
            .calls
            .all()
            .into_iter()
            .filter(|call| call.resource == "events" && call.verb == "list");
        assert_eq!(looks.count(), 1, "after 10 s, and then ever more rarely");

        let placed = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "True" }] } });
        fixture.patch_pod_status(&pods[&0], placed).await;
        fixture.when_is("mc", "reason", Value::Null).await;
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        fixture.when_condition("mc", "Ready", "True").await;
        operator.stop().await;
    });
}

/// Creates the node, and sets its condition. The operators of other tests see it too. It is unschedulable, so they
/// ignore it when they choose where the view comes from.
pub(crate) async fn set_node_ready(nodes: &Api<Node>, name: &str, status: &str) {
    let node = json!({ "metadata": { "name": name }, "spec": { "unschedulable": true } });
    let node: Node = serde_json::from_value(node).unwrap();
    let _ = nodes.create(&PostParams::default(), &node).await;
    let change = json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
    let patch = Patch::Merge(change);
    nodes
        .patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Kubernetes marks the pods of a dead node only if they were ready.
#[test]
fn dead_node_is_reported_for_a_pod_that_was_never_ready() {
    const NODE: &str = "dead-node";
    test(NODE, async |fixture| {
        let nodes: Api<Node> = Api::all(fixture.client.clone());
        set_node_ready(&nodes, NODE, "True").await;
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1 })).await;
        let pod = fixture.pods("mc", 1).await.remove(&0).unwrap();
        place(&fixture, &pod, NODE).await;

        set_node_ready(&nodes, NODE, "Unknown").await;
        let status = fixture.when_is("mc", "reason", "NodeLost").await;
        let name = pod.name_any();
        for words in [
            format!("pod {name} is on node {NODE}, which has stopped responding"),
            format!("kubectl taint node {NODE} node.kubernetes.io/out-of-service"),
        ] {
            assert_message(&status, &words);
        }

        set_node_ready(&nodes, NODE, "True").await;
        fixture.when_is("mc", "reason", Value::Null).await;
        nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
        operator.stop().await;
    });
}
