//! When a MiniCluster is deleted, its pods are told to stop at once, with as many calls as for a small one.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use test_support::api_server::{Call, Fixture, test, until};

/// So many that the garbage collector would need a quarter of a minute.
const PODS: usize = 300;

/// The number of a MiniCluster's pods, and how many of them have not been told to stop.
async fn pods(fixture: &Fixture, name: &str) -> (usize, usize) {
    let of_it = ListParams::default().labels(&format!("job-name={name}"));
    let pods = fixture.api::<Pod>().list(&of_it).await.unwrap().items;
    let staying = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .count();
    (pods.len(), staying)
}

#[test]
fn pods_of_a_deleted_minicluster_are_deleted_by_one_call() {
    test("deletion", async |fixture| {
        let operator = fixture.operator().await;
        for (name, parameters) in [
            ("background", DeleteParams::background()),
            ("foreground", DeleteParams::foreground()),
        ] {
            fixture.create(name, json!({ "size": PODS })).await;
            until("all pods are there", async || {
                (pods(&fixture, name).await.0 == PODS).then_some(())
            })
            .await;
            operator.settled().await;
            operator.calls.clear();
            fixture.delete_with::<MiniCluster>(name, &parameters).await;
            until("all are told to stop", async || {
                (pods(&fixture, name).await.1 == 0).then_some(())
            })
            .await;
            // The pods are deleted while the call is still being answered. The call is recorded with its
            // answer.
            let is_deleted = |call: &Call| call.verb == "deletecollection";
            until("the call is answered", async || {
                operator.calls.all().iter().any(is_deleted).then_some(())
            })
            .await;
            let calls = operator.calls.all();
            // The garbage collector may have deleted the Job first.
            let is_done = |call: &Call| call.status < 300 || call.status == 404;
            let deletes = calls
                .iter()
                .filter(|call| call.verb.starts_with("delete") && is_done(call));
            let deletes: Vec<(&str, &str)> = deletes
                .map(|call| (call.verb.as_str(), call.resource.as_str()))
                .collect();
            assert_eq!(
                deletes,
                [("delete", "jobs"), ("deletecollection", "pods")],
                "{name}: {calls:#?}"
            );
        }
        operator.stop().await;
    });
}
