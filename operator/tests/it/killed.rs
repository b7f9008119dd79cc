//! The operator is killed at every single write of a change: in each round at the next one. The next operator
//! finishes the change, with the same result.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::storage;
use test_support::api_server::{Fixture, condition, test, until};

/// A change of an existing MiniCluster.
struct Change<'a> {
    spec: Value,
    /// The change makes at least this many writes, so that the test does not pass without testing anything.
    least: usize,
    fixture: &'a Fixture,
}

impl Change<'_> {
    /// `is_done` also plays the kubelet. It looks at the state, not at who made it.
    async fn killed_at_every_write(self, change: impl AsyncFn(&str), is_done: impl AsyncFn(&str) -> bool) {
        let Change { spec, least, fixture } = self;
        for round in 0..20 {
            let name = format!("mc-{round}");
            let mut spec = spec.clone();
            // By default, MiniClusters of a namespace share one Service. That of the round before may still exist.
            spec["network"] = json!({ "headlessName": format!("net-{round}") });
            let first = fixture.operator().await;
            fixture.create(&name, spec).await;
            fixture
                .when(&name, "whole", |status| {
                    status["size"] == 2 && status["maximumSize"].is_u64()
                })
                .await;
            until("it owns its Service", async || {
                let service = fixture
                    .find::<k8s_openapi::api::core::v1::Service>(&format!("net-{round}"))
                    .await?;
                service.metadata.owner_references
            })
            .await;
            first.stop().await;
            let key = fixture.secret(&name, "curve").await.unwrap();
            let job = fixture.job(&name).await;

            change(&name).await;
            let victim = fixture.operator_that_dies(round).await;
            let was_done = until("it is killed, or done", async || {
                // The order matters: an operator that is killed by the very write that completes the change, between
                // the two questions, must not count as one that survived.
                let is_done = is_done(&name).await;
                if victim.is_dead() {
                    Some(false)
                } else {
                    is_done.then_some(true)
                }
            })
            .await;
            drop(victim);
            let second = fixture.operator().await;
            until(&format!("it is done after write {round}"), async || {
                is_done(&name).await.then_some(())
            })
            .await;
            second.stop().await;
            if let Some(now) = fixture.secret(&name, "curve").await {
                assert_eq!(key.data, now.data, "the key is made once");
            }
            if let Some(now) = fixture.find::<Job>(&name).await {
                assert_eq!(now.metadata.uid, job.metadata.uid, "the Job is made once");
            }
            let _ = fixture
                .api::<MiniCluster>()
                .delete(&name, &DeleteParams::default())
                .await;
            if was_done {
                assert!(round >= least, "it was killed {round} times only");
                return;
            }
        }
        panic!("it makes too many writes");
    }
}

async fn status(fixture: &Fixture, name: &str) -> Value {
    let cluster = fixture.find::<MiniCluster>(name).await;
    serde_json::to_value(cluster).unwrap()["status"].take()
}

async fn end_lead(fixture: &Fixture, name: &str, code: i32) {
    let pods = fixture.pods(name, 2).await;
    fixture
        .end_pod(&pods[&0], code, if code == 0 { "Completed" } else { "Error" }, "")
        .await;
    if code != 0 {
        // Only an operator fails this Job, and none runs during the change. (The Job controller completes a Job by
        // itself.)
        return;
    }
    until("the Job has ended", async || {
        fixture.reap(name).await;
        fixture
            .job(name)
            .await
            .status?
            .conditions?
            .into_iter()
            .find(|condition| matches!(condition.type_.as_str(), "Complete" | "Failed"))
    })
    .await;
}

#[test]
fn scaling_is_finished_after_the_operator_is_killed() {
    test("killed-scale", async |fixture| {
        let change = Change {
            spec: json!({ "size": 2, "maxSize": 3 }),
            least: 2,
            fixture: &fixture,
        };
        let scale = async |name: &str| {
            fixture.edit(name, json!({ "size": 3 })).await;
        };
        let is_done = async |name: &str| {
            fixture.all_pods(name).await.len() == 3 && status(&fixture, name).await["size"] == 3
        };
        change.killed_at_every_write(scale, is_done).await;
    });
}

#[test]
fn suspension_is_finished_after_the_operator_is_killed() {
    test("killed-suspend", async |fixture| {
        let change = Change {
            spec: json!({ "size": 2, "suspend": false }),
            least: 2,
            fixture: &fixture,
        };
        let suspend = async |name: &str| {
            fixture.edit(name, json!({ "suspend": true })).await;
        };
        let is_done = async |name: &str| {
            fixture.reap(name).await;
            let status = status(&fixture, name).await;
            fixture.all_pods(name).await.is_empty()
                && condition(&status, "Suspended")["status"] == "True"
                && status["size"] == 0
        };
        change.killed_at_every_write(suspend, is_done).await;
    });
}

#[test]
fn failure_is_reported_after_the_operator_is_killed() {
    test("killed-end", async |fixture| {
        let change = Change {
            spec: json!({ "size": 2 }),
            least: 1,
            fixture: &fixture,
        };
        let is_done = async |name: &str| {
            fixture.reap(name).await;
            let status = status(&fixture, name).await;
            condition(&status, "Failed")["status"] == "True"
                && status["exitCode"] == 7
                && status["failedIndex"] == 0
        };
        change
            .killed_at_every_write(async |name| end_lead(&fixture, name, 7).await, is_done)
            .await;
    });
}

#[test]
fn ttl_deletion_is_finished_after_the_operator_is_killed() {
    test("killed-ttl", async |fixture| {
        let change = Change {
            spec: json!({ "size": 2, "ttlSecondsAfterFinished": 0 }),
            least: 2,
            fixture: &fixture,
        };
        let is_done = async |name: &str| fixture.find::<MiniCluster>(name).await.is_none();
        change
            .killed_at_every_write(async |name| end_lead(&fixture, name, 0).await, is_done)
            .await;
    });
}

fn with_volume() -> Value {
    json!({
        "size": 2, "cleanupPods": true, "volumes": { "data": { "path": "/tmp/data" } },
        "services": [{ "image": "cache:1", "name": "cache" }],
        "containers": [{ "image": "app:1", "command": "ls /data", "volumes": { "data": { "path": "/data" } } }],
    })
}

async fn has_volume(fixture: &Fixture, name: &str) -> bool {
    storage::volume(fixture, name).await.is_some() || storage::claim(fixture, name).await.is_some()
}

/// Plays the kubelet for all pods, including those of services.
async fn reap_all(fixture: &Fixture) {
    let pods = fixture.api::<k8s_openapi::api::core::v1::Pod>();
    for pod in pods.list(&Default::default()).await.unwrap().items {
        if pod.metadata.deletion_timestamp.is_some() {
            let name = pod.metadata.name.unwrap_or_default();
            let _ = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
        }
    }
}

#[test]
fn cleanup_is_finished_after_the_operator_is_killed() {
    test("killed-clean", async |fixture| {
        let change = Change {
            spec: with_volume(),
            least: 4,
            fixture: &fixture,
        };
        let is_done = async |name: &str| {
            reap_all(&fixture).await;
            let status = status(&fixture, name).await;
            condition(&status, "CleanedUp")["status"] == "True"
                && status["exitCode"] == 0
                && fixture.all_pods(name).await.is_empty()
                && !has_volume(&fixture, name).await
        };
        change
            .killed_at_every_write(async |name| end_lead(&fixture, name, 0).await, is_done)
            .await;
    });
}

#[test]
fn volume_sweep_is_finished_after_the_operator_is_killed() {
    test("killed-sweep", async |fixture| {
        let change = Change {
            spec: with_volume(),
            least: 1,
            fixture: &fixture,
        };
        let delete = async |name: &str| {
            fixture.delete::<MiniCluster>(name).await;
        };
        let is_done = async |name: &str| {
            reap_all(&fixture).await;
            fixture.find::<Job>(name).await.is_none() && !has_volume(&fixture, name).await
        };
        change.killed_at_every_write(delete, is_done).await;
    });
}
