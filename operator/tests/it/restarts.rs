//! What restarts, how often, and what never does: on a real API server and Job controller, with fake
//! kubelets.

use flux_operator_core::observe::Key;
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams};
use serde_json::{Value, json};

use test_support::api_server::{Fixture, SETTLE, assert_message, condition, index, test, until};

/// What the agent leaves as its termination message.
pub(crate) fn agent_message(by: &str, code: i32, more: Value) -> String {
    let mut line = json!({ "version": 1, "by": by, "code": code });
    line.as_object_mut()
        .unwrap()
        .extend(more.as_object().cloned().unwrap_or_default());
    line.to_string()
}

/// A MiniCluster of two pods that run.
pub(crate) async fn running(fixture: &Fixture, name: &str, spec: Value) -> (Pod, Pod) {
    let mut spec = spec;
    spec["size"] = json!(2);
    fixture.create(name, spec).await;
    run(fixture, name).await
}

pub(crate) async fn run(fixture: &Fixture, name: &str) -> (Pod, Pod) {
    let mut pods = fixture.run_pods(name, 2).await;
    fixture.when_condition(name, "Ready", "True").await;
    // The operator sets the label `job-index` and, by the same patch, the condition by which the Job's failure policy
    // recognises the lead. So the label shows that the condition is there.
    until("the Job knows its lead", async || {
        let is_known =
            |pod: &Pod| pod.labels().contains_key("job-index") && pod.metadata.deletion_timestamp.is_none();
        fixture.all_pods(name).await.iter().any(is_known).then_some(())
    })
    .await;
    (pods.remove(&0).unwrap(), pods.remove(&1).unwrap())
}

async fn evict(fixture: &Fixture, pod: &Pod) {
    fixture
        .api::<Pod>()
        .evict(&pod.name_any(), &EvictParams::default())
        .await
        .unwrap();
}

/// Plays the kubelets of a lead that is evicted, and of its follower, which ends with it.
pub(crate) async fn evict_lead(fixture: &Fixture, lead: &Pod, follower: &Pod) {
    evict(fixture, lead).await;
    // `program` of a follower: the instance has ended.
    fixture
        .end_pod(follower, 0, "Completed", &agent_message("program", 0, json!({})))
        .await;
    fixture
        .end_pod(lead, 143, "Error", &agent_message("stop", 143, json!({})))
        .await;
}

pub(crate) async fn another_job(fixture: &Fixture, name: &str, than: &Option<String>) -> Job {
    until("there is another Job", async || {
        fixture.reap(name).await;
        let job = fixture.find::<Job>(name).await;
        job.filter(|job| job.uid() != *than)
    })
    .await
}

fn restarts_left(job: &Job) -> String {
    let pod = job.spec.clone().unwrap().template.spec.unwrap();
    pod.containers[0]
        .command
        .clone()
        .unwrap()
        .into_iter()
        .find(|word| word.starts_with("--restarts-left"))
        .unwrap()
}

#[test]
fn lost_lead_restarts_within_backoff_limit_and_one_deadline() {
    test("taken", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, follower) = running(
            &fixture,
            "mc",
            json!({ "backoffLimit": 1, "deadlineSeconds": 1000 }),
        )
        .await;
        let first = fixture.job("mc").await;
        assert_eq!(
            (
                restarts_left(&first).as_str(),
                first.spec.as_ref().unwrap().active_deadline_seconds
            ),
            ("--restarts-left=1", Some(1000))
        );
        let begun = fixture
            .when("mc", "begun", |status| status["startTime"].is_string())
            .await["startTime"]
            .clone();
        // At least 2 s of the deadline pass.
        tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
        evict_lead(&fixture, &lead, &follower).await;
        let second = another_job(&fixture, "mc", &first.uid()).await;
        assert_eq!(restarts_left(&second), "--restarts-left=0");
        let left = second.spec.as_ref().unwrap().active_deadline_seconds.unwrap();
        assert!((900..=998).contains(&left), "{left} s of 1000 are left");
        let (lead, follower) = run(&fixture, "mc").await;
        let status = fixture.when_is("mc", "restartCount", 1).await;
        assert_eq!(
            (&status["backoffLimitUsed"], &status["startTime"]),
            (&json!(1), &begun),
            "{status:#}"
        );
        let restart = &status["restarts"][0];
        assert_eq!(
            (&restart["reason"], &restart["jobUid"]),
            (&json!("LeadLost"), &json!(first.uid().unwrap()))
        );
        assert_message(restart, "EvictionByEvictionAPI");

        evict_lead(&fixture, &lead, &follower).await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["reason"], &status["restartCount"]),
            (&json!("LeadLost"), &json!(1)),
            "{status:#}"
        );
        assert_message(&status, "backoffLimit is 1");
        assert_eq!(fixture.job("mc").await.uid(), second.uid(), "no third one");
        operator.stop().await;
    });
}

#[test]
fn failed_lead_never_reruns_though_its_pod_is_evicted() {
    test("by-itself", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, _) = running(&fixture, "mc", json!({})).await;
        let job = fixture.job("mc").await.uid();
        evict(&fixture, &lead).await;
        fixture
            .end_pod(&lead, 7, "Error", &agent_message("program", 7, json!({})))
            .await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["exitCode"], &status["restartCount"]),
            (&json!(7), &Value::Null),
            "{status:#}"
        );
        assert_eq!(fixture.job("mc").await.uid(), job);
        operator.stop().await;
    });
}

/// With `OnFailure`, the kubelet starts the lead's container again, which then runs nothing.
#[test]
fn shutdown_with_on_failure_ends_as_without_it() {
    test("shut-down", async |fixture| {
        let operator = fixture.operator().await;
        let more = json!({ "programCode": 143, "shutDown": true });
        let message = agent_message("program", 143, more);
        let (lead, _) = running(&fixture, "never", json!({})).await;
        fixture.end_pod(&lead, 143, "Error", &message).await;
        let wanted = fixture.when_finished("never", "Failed").await;
        assert_eq!(wanted["exitCode"], 143, "{wanted:#}");
        let spec = json!({ "pod": { "restartPolicy": "OnFailure" } });
        let (lead, _) = running(&fixture, "on-failure", spec).await;
        let runner = &lead.spec.as_ref().unwrap().containers[0].name;
        let restarted = json!({ "status": { "phase": "Running", "containerStatuses": [{
            "name": runner, "image": "i", "imageID": "i", "ready": false, "restartCount": 1,
            "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } },
            "lastState": { "terminated": { "exitCode": 143, "reason": "Error", "message": message } },
        }] } });
        fixture.patch_pod_status(&lead, restarted).await;
        let status = fixture.when_finished("on-failure", "Failed").await;
        for field in ["reason", "message", "exitCode", "failedIndex", "restartCount"] {
            assert_eq!(status[field], wanted[field], "{field}: {status:#}");
        }
        operator.stop().await;
    });
}

#[test]
fn lead_that_exits_238_unseen_fails_without_restart() {
    test("two-three-eight", async |fixture| {
        // The program ends with 238, the code of a follower whose pod the Job may replace. The Job takes the lead
        // for such a follower, since no operator marks the pod.
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1 })).await;
        fixture.job("mc").await;
        operator.stop().await;
        let lead = fixture.pods("mc", 1).await.remove(&0).unwrap();
        // The operator may have marked the pod before it stopped.
        let unmark = json!({ "metadata": { "labels": { "job-index": null } },
            "status": { "conditions": [{ "type": "flux-framework.org/Lead", "status": "False" }] } });
        fixture.patch_pod_status(&lead, unmark).await;
        fixture
            .end_pod(&lead, 238, "Error", &agent_message("program", 238, json!({})))
            .await;
        let second = until("the Job replaces it", async || {
            fixture
                .all_pods("mc")
                .await
                .into_iter()
                .find(|pod| pod.uid() != lead.uid())
        })
        .await;
        assert_eq!(
            second.annotations()["batch.kubernetes.io/job-index-failure-count"],
            "1"
        );
        let job = fixture.job("mc").await.uid();
        let next_operator = fixture.operator().await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["exitCode"], &status["restartCount"]),
            (&json!(238), &Value::Null),
            "{status:#}"
        );
        assert_eq!(fixture.job("mc").await.uid(), job);
        next_operator.stop().await;
    });
}

#[test]
fn deleted_job_restarts_within_backoff_limit() {
    test("job-deleted", async |fixture| {
        let operator = fixture.operator().await;
        running(&fixture, "mc", json!({ "backoffLimit": 1 })).await;
        let first = fixture.job("mc").await.uid();
        fixture.delete::<Job>("mc").await;
        let second = another_job(&fixture, "mc", &first).await;
        run(&fixture, "mc").await;
        let status = fixture.when_is("mc", "restartCount", 1).await;
        assert_eq!(status["restarts"][0]["reason"], "JobDeleted", "{status:#}");
        assert_eq!(restarts_left(&second), "--restarts-left=0");
        fixture
            .delete_with::<Job>("mc", &DeleteParams::foreground())
            .await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["reason"], &status["restartCount"]),
            (&json!("JobDeleted"), &json!(1)),
            "{status:#}"
        );
        assert!(fixture.find::<Job>("mc").await.is_none());
        operator.stop().await;
    });
}

/// Tools that wait by kstatus take `Stalled` for final.
#[test]
fn wait_for_pods_of_a_deleted_job_does_not_stall() {
    test("job-deleted-wait", async |fixture| {
        let operator = fixture.operator().await;
        let (lead, _) = running(&fixture, "mc", json!({})).await;
        let first = fixture.job("mc").await.uid();
        fixture.hold_pod(&lead).await;
        fixture.delete::<Job>("mc").await;
        for _ in 0..2 {
            let status = fixture.when_is("mc", "reason", "WaitingForPods").await;
            assert!(condition(&status, "Stalled").is_null(), "{status:#}");
            tokio::time::sleep(SETTLE).await;
        }
        fixture.release_pod(&lead).await;
        another_job(&fixture, "mc", &first).await;
        operator.stop().await;
    });
}

#[test]
fn job_that_lost_a_follower_restarts_within_max_restarts() {
    test("pod-lost", async |fixture| {
        let operator = fixture.operator().await;
        for (name, max_restarts) in [("once", 1), ("never", 0)] {
            let (lead, follower) = running(&fixture, name, json!({ "maxRestarts": max_restarts })).await;
            let first = fixture.job(name).await.uid();
            evict(&fixture, &follower).await;
            fixture
                .when(name, "told of the loss", |status| {
                    status["lostPods"][0]["index"] == 1
                })
                .await;
            fixture
                .end_pod(&follower, 238, "Error", &agent_message("stop", 238, json!({})))
                .await;
            fixture
                .end_pod(
                    &lead,
                    1,
                    "Error",
                    &agent_message("program", 1, json!({ "programCode": 1, "nodeFailure": true })),
                )
                .await;
            if max_restarts == 0 {
                let status = fixture.when_finished(name, "Failed").await;
                assert_eq!(
                    (&status["reason"], &status["exitCode"]),
                    (&json!("PodLost"), &json!(1)),
                    "{status:#}"
                );
                for words in [
                    follower.name_any().as_str(),
                    "EvictionByEvictionAPI",
                    "exit code 1",
                ] {
                    assert_message(&status, words);
                }
                assert_eq!(status["failedIndex"], 1);
                continue;
            }
            another_job(&fixture, name, &first).await;
            let status = fixture.when_is(name, "restartCount", 1).await;
            assert_eq!(
                (&status["maxRestartsUsed"], &status["backoffLimitUsed"]),
                (&json!(1), &Value::Null),
                "{status:#}"
            );
            assert_eq!(status["restarts"][0]["reason"], "PodLost");
            let (lead, _) = run(&fixture, name).await;
            fixture
                .end_pod(&lead, 0, "Completed", &agent_message("program", 0, json!({})))
                .await;
            let status = fixture.when_finished(name, "Complete").await;
            assert_eq!(
                (&status["exitCode"], &status["restartCount"]),
                (&json!(0), &json!(1)),
                "{status:#}"
            );
        }
        operator.stop().await;
    });
}

#[test]
fn operator_killed_at_any_write_counts_a_restart_once() {
    test("killed-anew", async |fixture| {
        // In each round the operator dies at a later write, until it makes too few writes to die.
        for round in 0..20 {
            let name = format!("mc-{round}");
            let first = fixture.operator().await;
            let (lead, follower) = running(&fixture, &name, json!({ "backoffLimit": 5 })).await;
            let job = fixture.job(&name).await.uid();
            first.stop().await;
            evict_lead(&fixture, &lead, &follower).await;
            let victim = fixture.operator_that_dies(round).await;
            let is_done = async || {
                fixture.reap(&name).await;
                let current = fixture.find::<Job>(&name).await?;
                let status = fixture.status(&name).await;
                (current.uid() != job && status["jobUid"] == json!(current.uid())).then_some(())
            };
            let was_done = until("it is killed, or done", async || {
                // In this order, as in `killed.rs`: the very write that completes the restart may kill the operator
                // between the two questions. Then it must not count as one that survived.
                let is_done = is_done().await;
                if victim.is_dead() {
                    Some(false)
                } else {
                    is_done.map(|()| true)
                }
            })
            .await;
            drop(victim);
            let second = fixture.operator().await;
            until(&format!("it is done after write {round}"), is_done).await;
            let status = fixture.when_is(&name, "restartCount", 1).await;
            assert_eq!(
                (
                    &status["backoffLimitUsed"],
                    status["restarts"].as_array().unwrap().len()
                ),
                (&json!(1), 1)
            );
            assert_eq!(restarts_left(&fixture.job(&name).await), "--restarts-left=4");
            second.stop().await;
            fixture.delete::<MiniCluster>(&name).await;
            if was_done {
                // A restart takes at least four writes: its count in the status, the deletion of the Job, the
                // creation of the next one, and the status with the uid of that one.
                assert!(round >= 4, "it was killed {round} times only");
                return;
            }
        }
        panic!("it makes too many writes");
    });
}

#[test]
fn suspension_counts_as_restart_and_uses_no_limit() {
    test("suspended", async |fixture| {
        let operator = fixture.operator().await;
        running(&fixture, "mc", json!({ "suspend": false, "backoffLimit": 0 })).await;
        fixture.edit("mc", json!({ "suspend": true })).await;
        until("its pods go", async || {
            fixture.reap("mc").await;
            fixture.all_pods("mc").await.is_empty().then_some(())
        })
        .await;
        let status = fixture.when_condition("mc", "Suspended", "True").await;
        assert_eq!(
            (&status["restartCount"], &status["restarts"][0]["reason"]),
            (&json!(1), &json!("Suspended"))
        );
        fixture.edit("mc", json!({ "suspend": false })).await;
        run(&fixture, "mc").await;
        let status = fixture.status("mc").await;
        assert_eq!(
            (&status["restartCount"], &status["backoffLimitUsed"]),
            (&json!(1), &Value::Null),
            "{status:#}"
        );
        operator.stop().await;
    });
}

/// Up to Kubernetes 1.35, the Job controller first compares the deadline with the start before the suspension.
#[test]
fn a_resumed_job_has_its_whole_deadline_again() {
    test("resumed-late", async |fixture| {
        let operator = fixture.operator().await;
        running(
            &fixture,
            "mc",
            json!({ "suspend": false, "deadlineSeconds": 600 }),
        )
        .await;
        let suspend = async |suspend: bool| {
            fixture.edit("mc", json!({ "suspend": suspend })).await;
        };
        suspend(true).await;
        until("its pods go, and the Job controller says so", async || {
            fixture.reap("mc").await;
            let conditions = fixture
                .job("mc")
                .await
                .status
                .unwrap()
                .conditions
                .unwrap_or_default();
            let is_suspended = conditions.iter().any(|condition| condition.type_ == "Suspended");
            (is_suspended && fixture.all_pods("mc").await.is_empty()).then_some(())
        })
        .await;
        // As if it had been suspended for a long time.
        let started = json!({ "status": { "startTime": "2026-01-01T00:00:00Z" } });
        fixture
            .api::<Job>()
            .patch_status("mc", &PatchParams::default(), &Patch::Merge(started))
            .await
            .unwrap();
        suspend(false).await;
        run(&fixture, "mc").await;
        operator.stop().await;
    });
}

/// Kueue removes the start time of a Job that it suspends, and so does Kubernetes 1.36.
#[test]
fn suspended_job_without_a_start_time_can_be_failed() {
    test("never-started", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", json!({ "size": 1, "suspend": true })).await;
        fixture.when_condition("mc", "Suspended", "True").await;
        operator.stop().await;
        let (writer, key) = (fixture.writer().await, Key::new(&fixture.namespace, "mc"));
        let uid = fixture.job("mc").await.uid().unwrap();
        let now = k8s_openapi::jiff::Timestamp::now().to_string();
        writer
            .fail_job(&key, &uid, "AlreadyEnded", "why", &now, false)
            .await
            .unwrap();
        until("the Job controller fails it", async || {
            let conditions = fixture.job("mc").await.status?.conditions?;
            let is_failed = conditions.iter().any(|condition| condition.type_ == "Failed");
            is_failed.then_some(())
        })
        .await;
    });
}

#[test]
fn resize_does_not_suspend_a_resumed_job_again() {
    test("resumed", async |fixture| {
        let operator = fixture.operator().await;
        fixture
            .create("mc", json!({ "size": 1, "maxSize": 3, "suspend": true }))
            .await;
        fixture.when_condition("mc", "Suspended", "True").await;
        fixture
            .patch::<Job>("mc", json!({ "spec": { "suspend": false } }))
            .await
            .unwrap();
        fixture.pods("mc", 1).await;
        fixture.edit("mc", json!({ "size": 3 })).await;
        let pods = fixture.pods("mc", 3).await;
        assert_eq!(pods.values().map(index).max(), Some(2));
        assert_eq!(fixture.job("mc").await.spec.unwrap().suspend, Some(false));
        operator.stop().await;
    });
}

/// A suspension stops the lead. If the lead had not begun, or nobody saw how it ended, the Job's failure policy fails
/// the Job.
#[test]
fn resume_before_stopped_lead_has_ended_uses_no_limit() {
    test("resumed-soon", async |fixture| {
        resume_soon(&fixture, false).await;
    });
    test("resumed-run", async |fixture| {
        resume_soon(&fixture, true).await;
    });
}

async fn resume_soon(fixture: &Fixture, has_begun: bool) {
    let operator = fixture.operator().await;
    fixture
        .create("mc", json!({ "size": 1, "suspend": false, "backoffLimit": 0 }))
        .await;
    let pods = fixture.pods("mc", 1).await;
    if has_begun {
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
    }
    let lead = until("the Job knows its lead", async || {
        let mut pods = fixture.all_pods("mc").await.into_iter();
        pods.find(|pod| pod.labels().contains_key("job-index"))
    })
    .await;
    fixture.hold_pod(&lead).await;
    let job = fixture.job("mc").await.uid();
    let suspend = async |suspend: bool| {
        fixture.edit("mc", json!({ "suspend": suspend })).await;
    };
    suspend(true).await;
    until("its lead is being deleted", async || {
        let lead = fixture.api::<Pod>().get(&lead.name_any()).await.unwrap();
        lead.metadata.deletion_timestamp
    })
    .await;
    // Times have whole seconds: the resume must be in a later one than the deletion.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    suspend(false).await;
    until("the Job controller has resumed it", async || {
        let status = serde_json::to_value(fixture.job("mc").await.status).unwrap();
        (condition(&status, "Suspended")["status"] == "False").then_some(())
    })
    .await;
    if has_begun {
        operator.settled().await;
        // The runtime did not see how it ended.
        fixture.end_pod(&lead, 255, "ContainerStatusUnknown", "").await;
    } else {
        fixture
            .patch_pod_status(&lead, json!({ "status": { "phase": "Failed" } }))
            .await;
    }
    fixture
        .when("mc", "counted", |status| {
            status["restarts"][0]["jobUid"] == json!(job)
        })
        .await;
    fixture.release_pod(&lead).await;
    another_job(fixture, "mc", &job).await;
    let status = fixture.status("mc").await;
    assert_eq!(
        (
            &status["restartCount"],
            &status["restarts"][0]["reason"],
            &status["backoffLimitUsed"]
        ),
        (&json!(1), &json!("Suspended"), &Value::Null),
        "{status:#}"
    );
    operator.stop().await;
}

#[test]
fn deadline_ends_the_wait_for_pods_of_a_deleted_job() {
    test("gone-late", async |fixture| {
        let operator = fixture.operator().await;
        let mut leads = Vec::new();
        for (name, parameters) in [
            ("mc", DeleteParams::background()),
            ("fore", DeleteParams::foreground()),
        ] {
            let spec = json!({ "backoffLimit": 1, "deadlineSeconds": 15 });
            let (lead, _) = running(&fixture, name, spec).await;
            fixture.hold_pod(&lead).await;
            fixture.delete_with::<Job>(name, &parameters).await;
            leads.push((name, lead));
        }
        for (name, lead) in leads {
            let status = fixture.when_finished(name, "Failed").await;
            assert_eq!(status["reason"], "DeadlineExceeded", "{status:#}");
            fixture.release_pod(&lead).await;
        }
        operator.stop().await;
    });
}

#[test]
fn deadline_ends_the_wait_for_a_pod_on_a_dead_node() {
    test("dead-late", async |fixture| {
        let operator = fixture.operator().await;
        let lose_lead = async |name: &str| {
            let spec = json!({ "backoffLimit": 1, "deadlineSeconds": 15 });
            let (lead, follower) = running(&fixture, name, spec).await;
            fixture.hold_pod(&lead).await;
            evict_lead(&fixture, &lead, &follower).await;
            fixture.when_is(name, "restartCount", 1).await;
            lead
        };
        // A user suspends this one while it waits, so its clock stops.
        let other_lead = lose_lead("paused").await;
        fixture.edit("paused", json!({ "suspend": true })).await;
        let earlier = fixture.job("paused").await.uid();
        let lead = lose_lead("mc").await;
        let status = fixture.when_finished("mc", "Failed").await;
        assert_eq!(
            (&status["reason"], &status["restartCount"]),
            (&json!("DeadlineExceeded"), &json!(1)),
            "{status:#}"
        );
        fixture.release_pod(&lead).await;
        until("the earlier Job is gone, and no other comes", async || {
            fixture.reap("mc").await;
            let job = fixture.find::<Job>("mc").await;
            job.is_none().then_some(())
        })
        .await;
        tokio::time::sleep(SETTLE).await;
        assert!(fixture.find::<Job>("mc").await.is_none());
        fixture.release_pod(&other_lead).await;
        let next = another_job(&fixture, "paused", &earlier).await;
        assert_eq!(next.spec.unwrap().suspend, Some(true));
        operator.stop().await;
    });
}
