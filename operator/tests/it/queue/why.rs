//! Why it waits, as Kueue's Workload says it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::queue;
use test_support::api_server::{Calls, Fixture, test, until};

/// Kueue's own CRD is larger; this much of it is read.
async fn define_workloads(fixture: &Fixture) {
    let open = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({
        "name": "v1beta2", "served": true, "storage": true, "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": open, "status": open } } },
    });
    let names =
        json!({ "kind": "Workload", "listKind": "WorkloadList", "plural": "workloads", "singular": "workload" });
    let definition = json!({
        "metadata": { "name": "workloads.kueue.x-k8s.io", "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue" } },
        "spec": { "group": "kueue.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version] },
    });
    let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
    Api::all(fixture.client.clone()).create(&PostParams::default(), &definition).await.unwrap();
    until("Workloads are served", async || workloads(fixture).list(&Default::default()).await.ok()).await;
}

fn workloads(fixture: &Fixture) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "Workload"));
    Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &resource)
}

/// The steps are one test: Kueue's CRD, once it is there, is there for all.
#[test]
fn the_status_says_what_the_queue_waits_for_with_the_rights_that_are_shipped() {
    test("why", async |fixture| {
        let message = |status: &Value, what: &str| status["message"].as_str().is_some_and(|it| it.contains(what));
        let operator = fixture.operator().await;
        queue(&fixture, "nobody", json!({}), json!({ "size": 1 })).await;
        fixture.when("nobody", "told that there is no Kueue", |status| message(status, "there is no Kueue")).await;
        operator.stop().await;
        // One that may not list Workloads says the same, and never that a right would help.
        let calls = Calls::default();
        let plain = fixture.operator_installed(calls.clone(), |it| it.kueue = false, |_| {}).await;
        queue(&fixture, "plain", json!({}), json!({ "size": 1 })).await;
        fixture.when("plain", "told that there is no Kueue", |status| message(status, "there is no Kueue")).await;
        plain.stop().await;
        assert!(calls.all().iter().any(|call| (call.resource.as_str(), call.status) == ("workloads", 403)));

        define_workloads(&fixture).await;
        let plain = fixture.operator_installed(Calls::default(), |it| it.kueue = false, |_| {}).await;
        queue(&fixture, "unread", json!({}), json!({ "size": 1 })).await;
        fixture.when("unread", "told the remedy", |status| message(status, "kueue.enabled (--kueue)")).await;
        plain.stop().await;

        let operator = fixture.operator().await;
        queue(&fixture, "mc", json!({}), json!({ "size": 1 })).await;
        fixture.when("mc", "without a Workload", |status| message(status, "Kueue has created no Workload")).await;
        let labels = json!({ "kueue.x-k8s.io/job-uid": fixture.job("mc").await.uid() });
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": { "name": "job-mc", "labels": labels },
            "spec": { "queueName": "team" },
        });
        let api = workloads(&fixture);
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        let quota = json!({
            "type": "QuotaReserved", "status": "False", "reason": "Pending", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "couldn't assign flavors to pod set main: insufficient unused quota for cpu",
        });
        let said = json!({ "status": { "conditions": [quota] } });
        api.patch_status("job-mc", &PatchParams::default(), &Patch::Merge(said)).await.unwrap();
        let told = fixture.when("mc", "told why", |status| message(status, "insufficient unused quota for cpu")).await;
        assert!(message(&told["status"], "waits in queue team: couldn't assign"), "{told:#}");
        assert_eq!(told["status"]["reason"], "Queued");
        operator.stop().await;
    });
}
