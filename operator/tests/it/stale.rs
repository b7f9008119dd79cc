//! Watches that lag behind the API server: what they have delivered so far never decides alone.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::edit::{of_job, spec};
use crate::gangs::kubernetes_minor;
use crate::restarts::{agent_message, another_job, running};
use test_support::api_server::{Call, Calls, Fault, Fixture, Operator, SETTLE, condition, test, until};

/// An operator whose watch of this resource delivers nothing while `is_silent` is true. `other`: faults of other calls.
async fn operator_with_late(
    resource: &'static str,
    fixture: &Fixture,
    is_silent: &watch::Sender<bool>,
    other: impl Fn(&Call) -> Option<Fault> + Send + Sync + 'static,
) -> Operator {
    let held = is_silent.subscribe();
    let calls = Calls::with_faults(move |call: &Call| {
        let is_watch = call.verb == "watch" && call.resource == resource;
        is_watch
            .then(|| Fault::Held(held.clone()))
            .or_else(|| other(call))
    });
    fixture.operator_of(calls, |_| {}).await
}

/// Deletes the Job, but not its pods.
async fn delete_job_alone(fixture: &Fixture, name: &str) {
    fixture.delete_with::<Job>(name, &DeleteParams::orphan()).await;
    fixture.until_gone::<Job>(name).await;
}

/// Waits until the Job has counted the failure of its lead.
async fn lead_index_failed(fixture: &Fixture, name: &str) {
    until("the Job counts the failure of its lead", async || {
        let status = fixture.job(name).await.status?;
        (status.failed_indexes.as_deref() == Some("0")).then_some(())
    })
    .await;
}

#[test]
fn unseen_success_of_a_deleted_job_is_not_a_loss() {
    test("stale-success", async |fixture| {
        let is_silent = watch::Sender::new(true);
        let operator = operator_with_late("pods", &fixture, &is_silent, |_| None).await;
        // To an operator without the pods' events, the Job was deleted unfinished: one would restart, the other fail.
        let clusters = [("restarts", 1), ("ends", 0)];
        for (name, limit) in clusters {
            fixture
                .create(name, json!({ "size": 1, "backoffLimit": limit }))
                .await;
            let lead = fixture.run_pods(name, 1).await.remove(&0).unwrap();
            fixture
                .when(name, "told of its Job", |status| status["jobUid"].is_string())
                .await;
            delete_job_alone(&fixture, name).await;
            fixture
                .end_pod(&lead, 0, "Completed", &agent_message("program", 0, json!({})))
                .await;
        }
        tokio::time::sleep(SETTLE).await;
        for (name, _) in clusters {
            let status = fixture.status(name).await;
            assert_ne!(condition(&status, "Failed")["status"], "True", "{status:#}");
            assert_eq!(status["restartCount"], Value::Null, "{status:#}");
        }
        is_silent.send_replace(false);
        for (name, _) in clusters {
            let status = fixture.when_finished(name, "Complete").await;
            assert_eq!(
                (&status["exitCode"], &status["restartCount"]),
                (&json!(0), &Value::Null),
                "{status:#}"
            );
            assert!(fixture.find::<Job>(name).await.is_none());
        }
        operator.stop().await;
    });
}

#[test]
fn unseen_failure_is_not_restarted_by_a_suspension() {
    test("stale-failure", async |fixture| {
        let is_silent = watch::Sender::new(false);
        let operator = operator_with_late("pods", &fixture, &is_silent, |_| None).await;
        let (lead, _) = running(&fixture, "mc", json!({ "suspend": false })).await;
        let job = fixture.job("mc").await.uid();
        is_silent.send_replace(true);
        fixture
            .end_pod(&lead, 7, "Error", &agent_message("program", 7, json!({})))
            .await;
        lead_index_failed(&fixture, "mc").await;
        fixture.edit("mc", json!({ "suspend": true })).await;
        until("the Job is suspended, or gone", async || {
            let job = fixture.find::<Job>("mc").await;
            let job = serde_json::to_value(job).unwrap();
            (job.is_null() || condition(&job["status"], "Suspended")["status"] == "True").then_some(())
        })
        .await;
        tokio::time::sleep(SETTLE).await;
        let kept = fixture.find::<Job>("mc").await;
        assert_eq!(kept.unwrap().metadata.deletion_timestamp, None);
        is_silent.send_replace(false);
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["exitCode"], &status["reason"], &status["restartCount"]),
            (&json!(7), &json!("NonZeroExitCode"), &Value::Null),
            "{status:#}"
        );
        assert_eq!(fixture.job("mc").await.uid(), job, "the program ran once");
        operator.stop().await;
    });
}

#[test]
fn unseen_loss_of_the_lead_does_not_fail_the_job() {
    test("stale-loss", async |fixture| {
        let is_silent = watch::Sender::new(true);
        let operator = operator_with_late("pods", &fixture, &is_silent, |_| None).await;
        fixture
            .create("mc", json!({ "size": 2, "backoffLimit": 1 }))
            .await;
        let pods = fixture.run_pods("mc", 2).await;
        let job = fixture.job("mc").await.uid();
        let lead = &pods[&0];
        // While it is held, the deleted pod does not vanish.
        fixture.hold_pod(lead).await;
        fixture.delete::<Pod>(&lead.name_any()).await;
        fixture
            .end_pod(lead, 143, "Error", &agent_message("stop", 143, json!({})))
            .await;
        lead_index_failed(&fixture, "mc").await;
        tokio::time::sleep(SETTLE).await;
        // A failed index does not fail this Job. The operator would do so, with this condition, but not before it has
        // seen how the lead ended.
        let seen = serde_json::to_value(fixture.job("mc").await).unwrap();
        assert!(condition(&seen["status"], "FailureTarget").is_null(), "{seen:#}");
        is_silent.send_replace(false);
        let status = fixture.when_is("mc", "restartCount", 1).await;
        assert_eq!(status["restarts"][0]["reason"], "LeadLost", "{status:#}");
        fixture.release_pod(lead).await;
        another_job(&fixture, "mc", &job).await;
        operator.stop().await;
    });
}

#[test]
fn edit_after_an_unseen_start_does_not_recreate_the_job() {
    test("stale-edit", async |fixture| {
        let is_silent = watch::Sender::new(true);
        // Once there is a status, the API server rejects the edit.
        let no_status = is_silent.subscribe();
        let refuse_status = move |call: &Call| {
            let is_status = call.resource == "miniclusters/status" && *no_status.borrow();
            is_status.then_some(Fault::Answer(503))
        };
        let operator = operator_with_late("pods", &fixture, &is_silent, refuse_status).await;
        fixture
            .create("mc", json!({ "size": 1, "containers": spec("first") }))
            .await;
        let job = fixture.job("mc").await.uid();
        fixture.run_pods("mc", 1).await;
        fixture.edit("mc", json!({ "containers": spec("second") })).await;
        until("the operator looks at the pods itself", async || {
            let calls = operator.calls.all();
            let lists = calls
                .iter()
                .filter(|call| call.verb == "list" && call.resource == "pods");
            let is_deleted = calls
                .iter()
                .any(|call| call.verb == "delete" && call.resource == "jobs");
            // The first list is the one of the watch.
            (lists.count() > 1 || is_deleted).then_some(())
        })
        .await;
        tokio::time::sleep(SETTLE).await;
        assert_eq!(fixture.job("mc").await.uid(), job);
        is_silent.send_replace(false);
        let status = fixture.when_condition("mc", "Valid", "False").await;
        assert_eq!(
            condition(&status, "Valid")["reason"],
            "ChangedTooLate",
            "{status:#}"
        );
        assert_eq!(fixture.job("mc").await.uid(), job);
        assert_eq!(of_job(&fixture, "mc").await.as_deref(), Some("first"));
        operator.stop().await;
    });
}

/// Before a deletion, the operator asks the API server whether the spec is still the one that its watch has delivered.
#[test]
fn unseen_edit_prevents_a_deletion_after_the_end() {
    test("stale-ttl", async |fixture| {
        let is_silent = watch::Sender::new(false);
        let operator = operator_with_late("miniclusters", &fixture, &is_silent, |_| None).await;
        fixture
            .create("ttl", json!({ "size": 1, "ttlSecondsAfterFinished": 5 }))
            .await;
        fixture
            .create("pods", json!({ "size": 1, "cleanupPods": true }))
            .await;
        let pods = [fixture.pods("ttl", 1).await, fixture.pods("pods", 1).await];
        fixture.end_pod(&pods[0][&0], 0, "Completed", "").await;
        fixture.when_condition("ttl", "Complete", "True").await;
        is_silent.send_replace(true);
        fixture
            .edit("ttl", json!({ "ttlSecondsAfterFinished": null }))
            .await;
        fixture.edit("pods", json!({ "cleanupPods": null })).await;
        fixture.end_pod(&pods[1][&0], 0, "Completed", "").await;
        fixture.when_condition("pods", "Complete", "True").await;
        // Longer than the TTL.
        tokio::time::sleep(Duration::from_secs(8)).await;
        for name in ["ttl", "pods"] {
            assert_eq!(fixture.get(name).await.metadata.deletion_timestamp, None);
            assert_eq!(fixture.all_pods(name).await.len(), 1, "{name} keeps its pod");
        }
        is_silent.send_replace(false);
        operator.settled().await;
        let status = fixture.status("pods").await;
        assert!(condition(&status, "CleanedUp").is_null(), "{status:#}");
        fixture.get("ttl").await;
        operator.stop().await;
    });
}

/// The operator has given up the Job, since a pod could not mount the view. Then the pod runs, and so does the program.
#[test]
fn unseen_start_is_not_repeated_to_copy_the_view() {
    if kubernetes_minor() < 35 {
        return;
    }
    test("stale-view", async |fixture| {
        let (is_silent, is_refused) = (watch::Sender::new(false), watch::Sender::new(true));
        let refused = is_refused.subscribe();
        let refuse_deletion = move |call: &Call| {
            let deletes_job = call.verb == "delete" && call.resource == "jobs" && *refused.borrow();
            deletes_job.then_some(Fault::Answer(503))
        };
        let operator = operator_with_late("pods", &fixture, &is_silent, refuse_deletion).await;
        let flux = json!({ "container": { "source": "imageVolume" } });
        fixture.create("mc", json!({ "size": 2, "flux": flux })).await;
        let pods = fixture.pods("mc", 2).await;
        let job = fixture.job("mc").await.uid();
        fixture.cannot_mount(&pods[&1]).await;
        fixture.when_condition("mc", "ViewMounted", "False").await;
        is_silent.send_replace(true);
        fixture.mounts_after_all(&pods[&1]).await;
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        operator.calls.clear();
        is_refused.send_replace(false);
        until("the operator looks at the pods itself", async || {
            let calls = operator.calls.all();
            let looks = |call: &Call| call.verb == "list" && call.resource == "pods";
            let deletes = |call: &Call| call.verb == "delete" && call.resource == "jobs";
            calls
                .iter()
                .any(|call| looks(call) || deletes(call))
                .then_some(())
        })
        .await;
        tokio::time::sleep(SETTLE).await;
        let kept = fixture.job("mc").await;
        assert_eq!(
            (kept.uid(), kept.metadata.deletion_timestamp),
            (job.clone(), None)
        );
        is_silent.send_replace(false);
        let status = fixture.when_condition("mc", "Ready", "True").await;
        assert_eq!(condition(&status, "ViewMounted")["status"], "True", "{status:#}");
        assert_eq!(status["restartCount"], Value::Null, "{status:#}");
        assert_eq!(fixture.job("mc").await.uid(), job);
        operator.stop().await;
    });
}

/// A failed snippet fails a Job, and before that the operator tells the other pods to end. If the Job was deleted, the
/// MiniCluster restarts once its pods have ended by themselves, so no pod is told.
#[test]
fn unseen_deletion_of_the_job_tells_no_pod_to_end() {
    test("stale-job", async |fixture| {
        let is_silent = watch::Sender::new(false);
        let operator = operator_with_late("jobs", &fixture, &is_silent, |_| None).await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.run_pods("mc", 2).await;
        fixture.when_condition("mc", "JobRunning", "True").await;
        is_silent.send_replace(true);
        delete_job_alone(&fixture, "mc").await;
        let words = json!({ "snippet": "pre", "snippetCode": 1 });
        fixture
            .end_pod(&pods[&1], 1, "Error", &agent_message("snippet", 1, words))
            .await;
        until("the operator looks at the Job itself", async || {
            let looks = |call: &Call| call.verb == "get" && call.resource == "jobs";
            operator.calls.all().iter().any(looks).then_some(())
        })
        .await;
        tokio::time::sleep(SETTLE).await;
        let assert_untold = async || {
            let lead = fixture.api::<Pod>().get(&pods[&0].name_any()).await.unwrap();
            assert_eq!(lead.annotations().get("flux-framework.org/end"), None);
        };
        assert_untold().await;
        is_silent.send_replace(false);
        fixture.when_is("mc", "reason", "WaitingForPods").await;
        assert_untold().await;
        operator.stop().await;
    });
}
