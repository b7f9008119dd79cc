//! What waits costs next to nothing: no state makes the operator repeat itself more often than once in 10 s
//! without news, and each says why it waits.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use test_support::api_server::{Call, Calls, Fault, Fixture, Operator, assert_message, test, until};

/// By then pauses have grown to more than 10 s.
const GROWN: Duration = Duration::from_secs(25);
const WINDOW: Duration = Duration::from_secs(20);
/// Calls of one attempt: at most one for each object of a MiniCluster, one to look at what is there, and a
/// status.
const ATTEMPT: usize = 9;

/// In 20 s it makes no more than two attempts.
async fn is_calm(operator: &Operator, state: &str) {
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
        calls.len() <= 2 * ATTEMPT,
        "{state}: {} calls in {WINDOW:?}: {calls:#?}",
        calls.len()
    );
}

/// Removes our label from a Job.
async fn unlabel(fixture: &Fixture, name: &str) {
    let none = json!({ "metadata": { "labels": { "flux-framework.org/minicluster": null } } });
    fixture.patch::<Job>(name, none).await.unwrap();
}

async fn told(fixture: &Fixture, name: &str, reason: &str) -> Value {
    fixture
        .when(name, "told why it waits", |status| status["reason"] == reason)
        .await["status"]
        .clone()
}

/// The new operator has read nobody's events, and may read those of five at once.
#[test]
fn operator_that_restarts_takes_no_reason_back() {
    test("calm-restart", async |fixture| {
        let names: Vec<String> = (0..9).map(|number| format!("mc-{number}")).collect();
        let spec = json!({ "size": 1, "pod": { "schedulerName": "nobody" } });
        for name in &names {
            fixture.create(name, spec.clone()).await.unwrap();
        }
        let operator = fixture.operator().await;
        for name in &names {
            told(&fixture, name, "SchedulerSilent").await;
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
        fixture.create("old", json!({ "size": 2 })).await.unwrap();
        let uid = fixture.get("old").await.metadata.uid.unwrap();
        let job = json!({
            "metadata": { "name": "old", "ownerReferences": [{
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "old", "uid": uid, "controller": true,
            }] },
            "spec": { "suspend": true, "template": { "spec": {
                "restartPolicy": "Never", "containers": [{ "name": "x", "image": "busybox" }],
            } } },
        });
        fixture
            .api::<Job>()
            .create(&PostParams::default(), &serde_json::from_value(job).unwrap())
            .await
            .unwrap();
        let operator = fixture.operator().await;
        let status = told(&fixture, "old", "JobUnlabelled").await;
        assert_message(&status, "kubectl delete job old");
        is_calm(&operator, "a Job of another operator").await;
        fixture
            .api::<Job>()
            .delete("old", &DeleteParams::background())
            .await
            .unwrap();
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
            .await
            .unwrap();
        fixture.create("runs", json!({ "size": 1 })).await.unwrap();
        fixture
            .when("waits", "suspended", |status| status["phase"] == "Suspended")
            .await;
        let pods = fixture.pods("runs", 1).await;
        fixture.run_pod(&pods[&0]).await;
        fixture
            .when("runs", "running", |status| status["phase"] == "Running")
            .await;
        for name in ["waits", "runs"] {
            unlabel(&fixture, name).await;
        }
        for (name, phase) in [("waits", "Suspended"), ("runs", "Running")] {
            let status = told(&fixture, name, "JobUnlabelled").await;
            assert_message(&status, "kubectl label job");
            assert_eq!(status["phase"], phase, "it is as it was: {status:#}");
            assert_eq!(status["restartCount"].as_i64().unwrap_or(0), 0, "{status:#}");
        }
        is_calm(&operator, "two Jobs without a label").await;
        for name in ["waits", "runs"] {
            let label = json!({ "metadata": { "labels": { "flux-framework.org/minicluster": name } } });
            fixture.patch::<Job>(name, label).await.unwrap();
        }
        fixture
            .patch::<MiniCluster>("waits", json!({ "spec": { "suspend": false } }))
            .await
            .unwrap();
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
        let quota =
            json!({ "metadata": { "name": "none" }, "spec": { "hard": { "count/jobs.batch": "0" } } });
        fixture
            .api::<ResourceQuota>()
            .create(&PostParams::default(), &serde_json::from_value(quota).unwrap())
            .await
            .unwrap();
        let is_in_force = async || {
            let quota = fixture.api::<ResourceQuota>().get("none").await.unwrap();
            quota.status.and_then(|status| status.hard)
        };
        until("the quota is in force", is_in_force).await;
        let taken = json!({ "metadata": { "name": "taken-agent" } });
        fixture
            .api::<ConfigMap>()
            .create(&PostParams::default(), &serde_json::from_value(taken).unwrap())
            .await
            .unwrap();
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
            fixture.create(name, json!({ "size": 1 })).await.unwrap();
            told(&fixture, name, reason).await;
        }
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
            calls.len() <= 3 * 2 * ATTEMPT,
            "{} calls: {calls:#?}",
            calls.len()
        );

        // Pauses have grown as long as they become.
        tokio::time::sleep(Duration::from_secs(60)).await;
        fixture
            .api::<ResourceQuota>()
            .delete("none", &DeleteParams::default())
            .await
            .unwrap();
        let begin = std::time::Instant::now();
        fixture
            .when("full", "created", |status| status["maximumSize"] == 1)
            .await;
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
        // Something keeps it.
        let kept = json!({ "metadata": { "name": "kept", "finalizers": ["example.org/stays"] } });
        fixture
            .api::<ConfigMap>()
            .create(&PostParams::default(), &serde_json::from_value(kept).unwrap())
            .await
            .unwrap();
        let operator = fixture.operator().await;
        const COUNT: usize = 20;
        let names: Vec<String> = (0..COUNT).map(|number| format!("mc-{number}")).collect();
        for name in &names {
            let cluster = fixture.create(name, json!({ "size": 1, "suspend": true })).await;
            cluster.unwrap();
            let finalizer = json!({ "metadata": { "finalizers": ["example.org/stays"] } });
            fixture.patch::<MiniCluster>(name, finalizer).await.unwrap();
        }
        for name in &names {
            fixture
                .when(name, "suspended", |status| status["phase"] == "Suspended")
                .await;
        }
        let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
        namespaces
            .delete(&fixture.namespace, &DeleteParams::default())
            .await
            .unwrap();
        // The namespace's controller need not delete the Jobs first.
        for name in &names {
            let _ = fixture
                .api::<Job>()
                .delete(name, &DeleteParams::background())
                .await;
        }
        // The first refusals tell, of those that were under way.
        tokio::time::sleep(Duration::from_secs(5)).await;
        operator.calls.clear();
        tokio::time::sleep(Duration::from_secs(20)).await;
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
