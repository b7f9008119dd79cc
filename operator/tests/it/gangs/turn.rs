//! Where gangs are created one after the other.

use std::time::Duration;

use flux_operator::health::metrics::{LiveState, Metrics};
use flux_operator::health::queue::QueueSnapshot;
use k8s_openapi::api::batch::v1::Job;
use serde_json::json;

use super::spec;
use test_support::api_server::{Fixture, Operator, condition};

/// A pod of it has a node now.
async fn place(fixture: &Fixture, cluster: &str) {
    let placed = json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": "True" }] } });
    let pod = fixture.all_pods(cluster).await.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
    fixture.patch_pod_status(&pod.unwrap(), placed).await;
}

/// Calls of the operator, but for what its watches and its Lease need.
fn calls_of(operator: &Operator) -> usize {
    operator.calls.counted().iter().filter(|call| call.resource != "leases").count()
}

/// Reconciles that only a change of the spec would help, and those that were to be repeated.
fn failures(metrics: &Metrics) -> Vec<String> {
    let text = metrics.text(LiveState { is_ready: true, queue: QueueSnapshot::default(), phases: std::iter::empty() });
    let families = ["controller_runtime_terminal_reconcile_errors_total", "workqueue_retries_total"];
    let found: Vec<String> =
        text.lines().filter(|line| families.iter().any(|it| line.starts_with(it))).map(str::to_owned).collect();
    assert_eq!(found.len(), families.len(), "{text}");
    found
}

/// While no pod of a gang has a place, no other gang is made; who waits makes no call, and is no failure.
pub async fn gangs_are_made_one_after_the_other(fixture: &Fixture, operator: &Operator, metrics: &Metrics) {
    place(fixture, "mc").await;
    fixture.create("first", spec(json!({}))).await.unwrap();
    fixture.pods("first", 2).await;
    let over = json!({ "podTemplate": { "metadata": { "annotations": { "a/b": "c" } } } });
    fixture.create("next", spec(over)).await.unwrap();
    let waits = fixture.when("next", "waits", |status| status["reason"] == "WaitingForGang").await["status"].clone();
    assert!(waits["message"].as_str().unwrap().contains("one after the other"), "{waits:#}");
    assert!(condition(&waits, "Stalled").is_null(), "nobody has to do anything: {waits:#}");
    // One pod alone holds nothing that others need.
    fixture.create("alone", json!({ "size": 1 })).await.unwrap();
    fixture.pods("alone", 1).await;
    operator.settled().await;
    let (before, failed) = (calls_of(operator), failures(metrics));
    // It asks about once a second.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let made: Vec<_> = operator.calls.counted().into_iter().skip(before).collect();
    assert_eq!(calls_of(operator), before, "{made:?}");
    assert_eq!(failures(metrics), failed, "asking is no failure");
    assert!(fixture.api::<Job>().get_opt("next").await.unwrap().is_none());
    place(fixture, "first").await;
    fixture.pods("next", 2).await;
}
