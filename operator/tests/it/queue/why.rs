//! Why a MiniCluster waits, as Kueue's Workload says.

use std::time::Instant;

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{admit, queue};
use test_support::api_server::{Calls, Fixture, condition, test, until};

/// Kueue's own CRD is larger. The operator reads only this part.
async fn define_workloads(fixture: &Fixture) {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({
        "name": "v1beta2", "served": true, "storage": true, "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": open, "status": open } } },
    });
    let names = json!({ "kind": "Workload", "listKind": "WorkloadList", "plural": "workloads", "singular": "workload" });
    let definition = json!({
        "metadata": { "name": "workloads.kueue.x-k8s.io", "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue" } },
        "spec": { "group": "kueue.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version] },
    });
    let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
    Api::all(fixture.client.clone())
        .create(&PostParams::default(), &definition)
        .await
        .unwrap();
    until("Workloads are served", async || {
        workloads(fixture).list(&Default::default()).await.ok()
    })
    .await;
}

fn workloads(fixture: &Fixture) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "Workload"));
    Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &resource)
}

/// One test, since the order matters: the steps without Kueue come first. Its CRD, once created, exists for all tests
/// that share the API server.
#[test]
fn status_explains_queue_wait_with_shipped_permissions() {
    test("why", async |fixture| {
        let message = |status: &Value, what: &str| {
            status["message"]
                .as_str()
                .is_some_and(|message| message.contains(what))
        };
        // This operator may list Workloads: its installation has `kueue.enabled`.
        let operator = fixture.operator().await;
        queue(&fixture, "nobody", json!({}), json!({ "size": 1 })).await;
        fixture
            .when("nobody", "told that there is no Kueue", |status| {
                message(status, "there is no Kueue")
            })
            .await;
        operator.stop().await;
        // An operator that may not list Workloads finds out in another way that there is no Kueue. The 403 below shows that
        // it lacked the permission.
        let calls = Calls::default();
        let plain = fixture
            .operator_installed(calls.clone(), &json!({}), |_| {})
            .await;
        queue(&fixture, "plain", json!({}), json!({ "size": 1 })).await;
        fixture
            .when("plain", "told that there is no Kueue", |status| {
                message(status, "there is no Kueue")
            })
            .await;
        plain.stop().await;
        assert!(
            calls
                .all()
                .iter()
                .any(|call| (call.resource.as_str(), call.status) == ("workloads", 403))
        );

        define_workloads(&fixture).await;
        let plain = fixture
            .operator_installed(Calls::default(), &json!({}), |_| {})
            .await;
        queue(&fixture, "unread", json!({}), json!({ "size": 1 })).await;
        fixture
            .when("unread", "told the remedy", |status| {
                message(status, "kueue.enabled=true")
            })
            .await;
        plain.stop().await;

        let operator = fixture.operator().await;
        queue(&fixture, "mc", json!({}), json!({ "size": 1 })).await;
        fixture
            .when("mc", "without a Workload", |status| {
                message(status, "Kueue has created no Workload")
            })
            .await;
        let quota = workload_condition(
            "QuotaReserved",
            "False",
            "couldn't assign flavors to pod set main: insufficient unused quota for cpu",
        );
        make_workload(&fixture, "mc", "job-mc", json!([quota])).await;
        let waiting = fixture
            .when("mc", "told why", |status| {
                message(status, "insufficient unused quota for cpu")
            })
            .await;
        assert!(
            message(&waiting, "waits in queue team: couldn't assign"),
            "{waiting:#}"
        );
        assert_eq!(waiting["reason"], "Queued");
        elastic_growth_wait_is_explained_with_few_calls(&fixture, &operator.calls).await;
        operator.stop().await;
    });
}

/// Kueue admits the growth of an elastic Job through another Workload. Until then, a gate in the Job's
/// template holds its pods.
async fn elastic_growth_wait_is_explained_with_few_calls(fixture: &Fixture, calls: &Calls) {
    // The operator asks about those that wait as well, so they are deleted.
    for other in ["nobody", "plain", "unread", "mc"] {
        fixture.delete::<MiniCluster>(other).await;
    }
    queue(fixture, "grows", json!({}), json!({ "size": 1, "maxSize": 4 })).await;
    let gates = json!([{ "name": "kueue.x-k8s.io/elastic-job" }]);
    let gated = json!({ "spec": { "template": { "spec": { "schedulingGates": gates } } } });
    fixture.patch::<Job>("grows", gated).await.unwrap();
    admit(fixture, "grows", 1).await;
    let open = async |count: usize| {
        for pod in fixture.pods("grows", count).await.values() {
            let opened = json!({ "spec": { "schedulingGates": null } });
            fixture
                .run_pod(&fixture.patch::<Pod>(&pod.name_any(), opened).await.unwrap())
                .await;
        }
        fixture.when_is("grows", "readySize", count).await;
    };
    open(1).await;
    make_workload(
        fixture,
        "grows",
        "job-grows-1",
        json!([
            workload_condition("QuotaReserved", "True", ""),
            workload_condition("Admitted", "True", "")
        ]),
    )
    .await;
    let quota = workload_condition(
        "QuotaReserved",
        "False",
        "couldn't assign flavors to pod set main: insufficient quota for cpu",
    );
    make_workload(fixture, "grows", "job-grows-4", json!([quota])).await;
    calls.clear();
    let begin = Instant::now();
    fixture.edit("grows", json!({ "size": 4 })).await;
    let words = "waits in queue team for 3 of 4 pods: couldn't assign flavors";
    let is_explained = |status: &Value| {
        status["message"]
            .as_str()
            .is_some_and(|message| message.starts_with(words))
    };
    let status = fixture
        .when("grows", "told why it cannot grow", is_explained)
        .await;
    assert_eq!(
        (&status["reason"], &status["phase"]),
        (&json!("Queued"), &json!("Running")),
        "{status:#}"
    );
    assert_eq!(condition(&status, "JobWaitingForResources")["reason"], "Queued");
    assert_eq!(condition(&status, "Suspended")["status"], "False");
    let kueue_calls = calls
        .all()
        .iter()
        .filter(|call| call.group == "kueue.x-k8s.io")
        .count();
    // The operator asks at most once in ten seconds, as for a MiniCluster that waits to begin: one call, and one for each
    // ten seconds that the test waited. One more may have been under way at `clear`.
    let seconds = begin.elapsed().as_secs_f64();
    assert!(
        kueue_calls >= 1 && kueue_calls as f64 <= 2.0 + seconds / 10.0,
        "{kueue_calls} in {seconds} s: {:#?}",
        calls.all()
    );

    open(4).await;
    let goes_on = fixture.status("grows").await;
    assert_eq!(
        (&goes_on["reason"], &goes_on["readySize"]),
        (&Value::Null, &json!(4)),
        "{goes_on:#}"
    );
}

fn workload_condition(type_: &str, status: &str, message: &str) -> Value {
    let reason = if status == "True" { type_ } else { "Pending" };
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}

/// A Workload as Kueue creates it for a Job.
async fn make_workload(fixture: &Fixture, job: &str, name: &str, conditions: Value) {
    let labels = json!({ "kueue.x-k8s.io/job-uid": fixture.job(job).await.uid() });
    let object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": { "name": name, "labels": labels },
        "spec": { "queueName": "team" },
    });
    let api = workloads(fixture);
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
        .await
        .unwrap();
    let status_patch = json!({ "status": { "conditions": conditions } });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status_patch))
        .await
        .unwrap();
}
