//! Which pod decides the end, when the end is certain, and what must be gone before anything restarts: on a
//! real API server and Job controller, with fake kubelets.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::restarts::{agent_message, another_job, run, running};
use test_support::api_server::{SETTLE, assert_message, condition, has_ended, index, test, until};

#[test]
fn node_reboot_is_a_loss_and_an_unseen_success_is_a_success() {
    test("reboot", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, mut follower) = running(&fixture, "mc", json!({ "backoffLimit": 1 })).await;
        let job = fixture.job("mc").await.uid();
        let mut earlier = Vec::new();
        // The node of an idle follower reboots twice, each time after an orderly shutdown. `backoffLimit` allows only
        // one restart of all pods.
        for _ in 0..2 {
            fixture
                .end_pod(&follower, 255, "Unknown", &agent_message("stop", 0, json!({})))
                .await;
            earlier.push(follower.uid());
            follower = until("the follower is replaced", async || {
                let pods = fixture.all_pods("mc").await;
                pods.into_iter()
                    .find(|pod| index(pod) == 1 && !earlier.contains(&pod.uid()))
            })
            .await;
            fixture.run_pod(&follower).await;
        }
        let status = fixture.when_is("mc", "readySize", 2).await;
        assert_eq!(condition(&status, "Failed")["status"], "False", "{status:#}");
        assert_eq!(
            fixture.job("mc").await.uid(),
            job,
            "only the follower is replaced"
        );
        // The lead's node loses its power.
        fixture.end_pod(&lead, 255, "Unknown", "").await;
        another_job(&fixture, "mc", &job).await;
        let status = fixture.when_is("mc", "restartCount", 1).await;
        let restart = &status["restarts"][0];
        assert_eq!(restart["reason"], "LeadLost", "{status:#}");
        assert_message(restart, "NodeRestarted");
        // The runtime is down while the program ends.
        let (lead, _) = run(&fixture, "mc").await;
        fixture
            .end_pod(&lead, 255, "Unknown", &agent_message("program", 0, json!({})))
            .await;
        let status = fixture.when_finished("mc", "Complete").await;
        assert_eq!(
            (&status["exitCode"], &status["restartCount"]),
            (&json!(0), &json!(1)),
            "{status:#}"
        );
        operator.stop().await;
    });
}

#[test]
fn program_that_ends_with_255_has_failed() {
    test("own-255", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, _) = running(&fixture, "lead", json!({})).await;
        fixture
            .end_pod(&lead, 255, "Error", &agent_message("program", 255, json!({})))
            .await;
        let status = fixture.when_finished("lead", "Failed").await;
        assert_eq!(
            (&status["exitCode"], &status["restartCount"]),
            (&json!(255), &Value::Null),
            "{status:#}"
        );
        assert_eq!(status["reason"], "NonZeroExitCode");
        let (lead, follower) = running(&fixture, "follower", json!({})).await;
        fixture
            .end_pod(&follower, 255, "Error", &agent_message("snippet", 255, json!({})))
            .await;
        until("the lead is told to end", async || {
            let lead = fixture.api::<Pod>().get(&lead.name_any()).await.unwrap();
            lead.annotations()
                .contains_key("flux-framework.org/end")
                .then_some(())
        })
        .await;
        fixture
            .end_pod(&lead, 143, "Error", &agent_message("stop", 143, json!({})))
            .await;
        let status = fixture.when_finished("follower", "Failed").await;
        assert_eq!(
            (&status["failedIndex"], &status["reason"]),
            (&json!(1), &json!("SnippetFailed")),
            "{status:#}"
        );
        operator.stop().await;
    });
}

/// The operator first tells the other pods to end, and fails the Job afterwards. If the Job failed at once, its
/// controller would delete the pods that still run, and with them their logs.
#[test]
fn other_pods_keep_their_logs_when_a_snippet_fails() {
    test("snippet-fails", async |fixture| {
        let operator = fixture.operator().await;
        // The operator must not copy this 0 into the Job's own backoffLimit: the Job would fail at the first failed pod.
        for (name, failed) in [("follower", 1), ("lead", 0)] {
            fixture
                .create(name, json!({ "size": 3, "backoffLimit": 0 }))
                .await;
            let pods = fixture.run_pods(name, 3).await;
            let words =
                json!({ "snippet": "pre", "snippetCode": 1, "snippetError": "cat: /data/in: No such file" });
            fixture
                .end_pod(&pods[&failed], 1, "Error", &agent_message("snippet", 1, words))
                .await;
            let others: Vec<&Pod> = pods.values().filter(|pod| index(pod) != failed).collect();
            for pod in &others {
                let message = until("it is told to end", async || {
                    let pod = fixture.api::<Pod>().get(&pod.name_any()).await.unwrap();
                    assert_eq!(pod.metadata.deletion_timestamp, None, "{name}: it stays");
                    pod.annotations().get("flux-framework.org/end").cloned()
                })
                .await;
                let why = format!(" the snippet pre of the pod of index {failed} ended with exit code 1");
                assert!(message.ends_with(&why), "{message}");
            }
            for pod in &others {
                // As the agent exits after a stop before the program: 143 for SIGTERM, and 238 in a follower.
                let code = if index(pod) == 0 { 143 } else { 238 };
                fixture
                    .end_pod(pod, code, "Error", &agent_message("stop", code, json!({})))
                    .await;
            }
            let status = fixture.when_finished(name, "Failed").await;
            assert_eq!(
                (&status["failedIndex"], &status["reason"]),
                (&json!(failed), &json!("SnippetFailed")),
                "{status:#}"
            );
            assert_message(&status, "cat: /data/in: No such file");
            assert_eq!(status["restartCount"], Value::Null, "{status:#}");
            until("the Job has failed", async || {
                let job = serde_json::to_value(fixture.job(name).await).unwrap();
                (condition(&job["status"], "Failed")["status"] == "True").then_some(())
            })
            .await;
            for pod in pods.values() {
                let pod = fixture.api::<Pod>().get(&pod.name_any()).await.unwrap();
                assert_eq!(
                    pod.metadata.deletion_timestamp, None,
                    "{name}: its log can be read"
                );
            }
        }
        operator.stop().await;
    });
}

/// The operator tells at most 16 pods to end at the same time, the lead first. It tells the others once these have
/// ended.
#[test]
fn large_minicluster_keeps_pod_logs_when_a_snippet_fails() {
    test("snippet-fails-large", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 20 })).await;
        let pods = fixture.run_pods("mc", 20).await;
        fixture
            .end_pod(
                &pods[&1],
                1,
                "Error",
                &agent_message("snippet", 1, json!({ "snippet": "pre", "snippetCode": 1 })),
            )
            .await;
        let is_told = |pod: &Pod| pod.annotations().contains_key("flux-framework.org/end");
        let told_pods = async |count: usize| {
            until(&format!("{count} are told to end"), async || {
                let pods: Vec<Pod> = fixture.all_pods("mc").await.into_iter().filter(is_told).collect();
                (pods.len() >= count).then_some(pods)
            })
            .await
        };
        let first = told_pods(16).await;
        operator.settled().await;
        assert_eq!(told_pods(16).await.len(), 16, "no more at once");
        assert!(first.iter().any(|pod| index(pod) == 0), "the lead is among them");
        let end = async |pod: &Pod| {
            let code = if index(pod) == 0 { 143 } else { 238 };
            fixture
                .end_pod(pod, code, "Error", &agent_message("stop", code, json!({})))
                .await;
        };
        for pod in &first {
            end(pod).await;
        }
        let all = told_pods(19).await;
        for pod in all
            .iter()
            .filter(|pod| !first.iter().any(|other| index(other) == index(pod)))
        {
            assert_eq!(pod.metadata.deletion_timestamp, None, "its log would be lost");
            end(pod).await;
        }
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["failedIndex"], &status["reason"]),
            (&json!(1), &json!("SnippetFailed")),
            "{status:#}"
        );
        for pod in fixture.all_pods("mc").await {
            assert_eq!(pod.metadata.deletion_timestamp, None, "its log can be read");
        }
        operator.stop().await;
    });
}

#[test]
fn follower_deleted_at_once_does_not_rerun_the_program() {
    test("killed-follower", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, follower) = running(&fixture, "mc", json!({ "maxRestarts": 0 })).await;
        let job = fixture.job("mc").await.uid();
        let at_once = DeleteParams::default().grace_period(0);
        fixture.delete_with::<Pod>(&follower.name_any(), &at_once).await;
        fixture.end_pod(&follower, 137, "Error", "").await;
        // The lead stays after its deletion, so that the test can write its end.
        fixture.hold_pod(&lead).await;
        until("the Job stops the lead", async || {
            let lead = fixture.api::<Pod>().get(&lead.name_any()).await.unwrap();
            lead.metadata.deletion_timestamp.map(|_| ())
        })
        .await;
        fixture
            .end_pod(
                &lead,
                143,
                "Error",
                &agent_message("stop", 143, json!({ "nodeFailure": true })),
            )
            .await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["reason"], &status["restartCount"]),
            (&json!("PodLost"), &Value::Null),
            "{status:#}"
        );
        fixture.release_pod(&lead).await;
        tokio::time::sleep(SETTLE).await;
        assert_eq!(fixture.job("mc").await.uid(), job);
        operator.stop().await;
    });
}

#[test]
fn end_is_reported_while_a_dead_node_keeps_a_pod() {
    test("dead-node", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, follower) = running(&fixture, "good", json!({})).await;
        fixture.hold_pod(&follower).await;
        fixture
            .end_pod(&lead, 0, "Completed", &agent_message("program", 0, json!({})))
            .await;
        let status = fixture.when_condition("good", "Complete", "True").await;
        assert_eq!(
            (&status["exitCode"], &status["phase"]),
            (&json!(0), &json!("Completed")),
            "{status:#}"
        );
        let job = serde_json::to_value(fixture.job("good").await).unwrap();
        assert_ne!(
            condition(&job["status"], "Complete")["status"],
            "True",
            "the Job waits for its pod"
        );
        let waits = [
            "wait",
            "--for=condition=Complete",
            "minicluster/good",
            "--timeout=5s",
        ];
        fixture.kubectl(&waits).unwrap();
        fixture.release_pod(&follower).await;

        let (lead, follower) = running(&fixture, "bad", json!({})).await;
        fixture.hold_pod(&follower).await;
        fixture
            .end_pod(&lead, 3, "Error", &agent_message("program", 3, json!({})))
            .await;
        let status = fixture.when_condition("bad", "Failed", "True").await;
        assert_eq!(
            (&status["exitCode"], &status["reason"]),
            (&json!(3), &json!("NonZeroExitCode")),
            "{status:#}"
        );
        fixture.release_pod(&follower).await;
        until("the Job has failed", async || {
            fixture.reap("bad").await;
            let job = serde_json::to_value(fixture.job("bad").await).unwrap();
            (condition(&job["status"], "Failed")["status"] == "True").then_some(())
        })
        .await;
        // The end stays in the status when the lead's pod, from which it was read, is gone.
        fixture
            .delete_with::<Pod>(&lead.name_any(), &DeleteParams::default().grace_period(0))
            .await;
        tokio::time::sleep(SETTLE).await;
        let after = fixture.status("bad").await;
        assert_eq!(
            (&after["reason"], &after["message"]),
            (&status["reason"], &status["message"]),
            "{after:#}"
        );
        assert_eq!(after["phase"], "Failed");
        operator.stop().await;
    });
}

#[test]
fn job_waits_for_pods_of_an_earlier_cluster_of_its_name() {
    test("same-name", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, _) = running(&fixture, "mc", json!({})).await;
        fixture.hold_pod(&lead).await;
        fixture.delete::<MiniCluster>("mc").await;
        until("Job and MiniCluster are gone", async || {
            fixture.reap("mc").await;
            let job = fixture.find::<Job>("mc").await;
            (job.is_none() && fixture.find::<MiniCluster>("mc").await.is_none()).then_some(())
        })
        .await;
        fixture.create("mc", json!({ "size": 1 })).await;
        // At first the message may name another pod, which has not been told to end yet.
        let waits = |status: &Value| {
            let message = status["message"].as_str().unwrap_or_default();
            status["reason"] == "WaitingForPrevious" && message.contains(&lead.name_any())
        };
        fixture.when("mc", "waiting", waits).await;
        tokio::time::sleep(SETTLE).await;
        assert!(
            fixture.find::<Job>("mc").await.is_none(),
            "two leads would have the same name"
        );
        fixture.release_pod(&lead).await;
        fixture.job("mc").await;
        operator.stop().await;
    });
}

#[test]
fn orphaned_pods_of_a_deleted_job_are_waited_for() {
    test("orphans", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, _) = running(&fixture, "mc", json!({})).await;
        let first = fixture.job("mc").await.uid();
        fixture.delete_with::<Job>("mc", &DeleteParams::orphan()).await;
        let status = fixture.when_is("mc", "reason", "WaitingForPods").await;
        assert_message(&status, &lead.name_any());
        assert_eq!(condition(&status, "Stalled")["status"], "True", "{status:#}");
        tokio::time::sleep(SETTLE).await;
        assert!(fixture.find::<Job>("mc").await.is_none());
        for pod in fixture.all_pods("mc").await.iter().filter(|pod| !has_ended(pod)) {
            fixture
                .delete_with::<Pod>(&pod.name_any(), &DeleteParams::default().grace_period(0))
                .await;
        }
        another_job(&fixture, "mc", &first).await;
        let status = fixture.when_is("mc", "restartCount", 1).await;
        assert_eq!(status["restarts"][0]["reason"], "JobDeleted", "{status:#}");
        operator.stop().await;
    });
}

#[test]
fn success_is_not_rerun_when_job_is_deleted_without_operator() {
    test("deleted-unseen", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, _) = running(&fixture, "mc", json!({})).await;
        fixture
            .when("mc", "told of its Job", |status| status["jobUid"].is_string())
            .await;
        operator.stop().await;
        fixture
            .end_pod(&lead, 0, "Completed", &agent_message("program", 0, json!({})))
            .await;
        fixture.delete::<Job>("mc").await;
        until("Job and pods are gone", async || {
            fixture.reap("mc").await;
            let is_gone = fixture.find::<Job>("mc").await.is_none();
            (is_gone && fixture.all_pods("mc").await.is_empty()).then_some(())
        })
        .await;
        let next_operator = fixture.operator().await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["reason"], &status["restartCount"]),
            (&json!("JobDeleted"), &Value::Null),
            "{status:#}"
        );
        assert_message(&status, "while no operator ran");
        assert!(
            fixture.find::<Job>("mc").await.is_none(),
            "it may have been a success"
        );
        next_operator.stop().await;
    });
}

/// `aaa` is a container that a webhook has added to the pods. The kubelet sorts statuses by name, so its status comes
/// before the runner's.
#[test]
fn container_beside_the_runner_decides_nothing_and_is_named() {
    test("injected", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, follower) = running(&fixture, "mc", json!({})).await;
        let status = |name: &str, state: Value| json!({ "name": name, "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": state });
        let runner = lead.spec.as_ref().unwrap().containers[0].name.clone();
        let runs = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
        let message = agent_message("program", 0, json!({}));
        let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "message": message } });
        for pod in [&lead, &follower] {
            let statuses = [status("aaa", runs.clone()), status(&runner, ended.clone())];
            fixture
                .patch_pod_status(pod, json!({ "status": { "containerStatuses": statuses } }))
                .await;
        }
        let status = fixture.when_condition("mc", "Complete", "True").await;
        assert_eq!(
            (&status["exitCode"], &status["reason"]),
            (&json!(0), &json!("SidecarStillRuns")),
            "{status:#}"
        );
        assert_message(&status, "container aaa");
        operator.stop().await;
    });
}
