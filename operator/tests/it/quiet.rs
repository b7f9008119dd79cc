//! What the operator costs, what it may do, and what survives its end.

use std::collections::BTreeSet;

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::EvictParams;
use serde_json::json;

use test_support::api_server::{Calls, Fixture, Operator, SETTLE, test, until};
use test_support::call::{Call, assert_sufficient_and_all_used, of_all_parts};
use test_support::installation::Installation;

use crate::storage::has_listed_everything;

async fn settled(fixture: &Fixture, operator: &Operator, names: &[&str]) {
    for name in names {
        fixture.when_is(name, "size", 2).await;
    }
    operator.settled().await;
}

#[test]
fn a_cluster_costs_few_calls_and_an_idle_one_none() {
    test("calls", async |fixture| {
        let operator = fixture.operator().await;
        let names = ["a", "b", "c", "d", "e"];
        for name in names {
            fixture.create(name, json!({ "size": 2 })).await;
        }
        settled(&fixture, &operator, &names).await;
        let calls = operator.calls.counted();
        // For each: a ConfigMap, a Secret, a Job, one or two statuses, and its part of the shared Service.
        assert!(
            calls.len() <= 6 * names.len(),
            "{} calls for {} clusters: {calls:#?}",
            calls.len(),
            names.len()
        );
        assert!(calls.iter().all(|call| call.status < 300), "{calls:#?}");

        operator.calls.clear();
        fixture
            .patch::<MiniCluster>(
                "a",
                json!({ "metadata": { "annotations": { "somebody": "was here" } } }),
            )
            .await
            .unwrap();
        tokio::time::sleep(SETTLE).await;
        assert_eq!(operator.calls.all(), [], "nothing to do, nothing done");
        operator.stop().await;

        // A new operator, perhaps of another version, changes nothing that runs.
        let next_operator = fixture.operator().await;
        has_listed_everything(&next_operator).await;
        tokio::time::sleep(SETTLE).await;
        let calls = next_operator.calls.counted();
        assert_eq!(calls, [], "a restart writes nothing");
        next_operator.stop().await;
    });
}

/// An operator for one namespace, with the chart's default values, and MiniClusters that use no neighbour, such as
/// Kueue. The operator never asks which APIs exist, and calls no API of a neighbour.
#[test]
fn operator_makes_no_calls_for_neighbours_that_are_not_used() {
    test("no-neighbour", async |fixture| {
        let calls = Calls::default();
        let operator = fixture
            .operator_installed(calls.clone(), &json!({}), |_| {})
            .await;
        fixture.create("mc", of_all_parts()).await;
        let stays = json!({ "size": 2, "gang": "auto", "pod": { "schedulerName": "nobody" } });
        fixture.create("stays", stays).await;
        let pods = fixture.run_pods("mc", 1).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.edit("mc", json!({ "size": 2 })).await;
        fixture.run_pods("mc", 2).await;
        fixture.when_is("mc", "readySize", 2).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        until("it has ended", async || {
            fixture.reap("mc").await;
            let status = fixture.status("mc").await;
            status["completionTime"].is_string().then_some(())
        })
        .await;
        // For a MiniCluster that waits, the operator reads its pods' events, and asks no neighbour.
        fixture.when_is("stays", "reason", "SchedulerSilent").await;
        operator.stop().await;
        let resources: BTreeSet<String> = calls
            .all()
            .iter()
            .map(|call| format!("{} {}", call.group, call.resource))
            .collect();
        let own = [
            " configmaps",
            " events",
            " nodes",
            " persistentvolumes",
            " pods",
            " pods/status",
            " secrets",
            " services",
            "batch jobs",
            "events.k8s.io events",
            "flux-framework.org miniclusters",
            "flux-framework.org miniclusters/status",
            // The version of Kubernetes.
            "? version",
            "storage.k8s.io storageclasses",
        ];
        let more: Vec<&String> = resources
            .iter()
            .filter(|call| !own.contains(&call.as_str()))
            .collect();
        assert!(
            resources.len() > 8 && more.is_empty(),
            "{more:?} of {resources:?}"
        );
        // This operator may not list nodes, PersistentVolumes and storage classes, which are in no namespace.
        let refused: Vec<Call> = calls
            .all()
            .into_iter()
            .filter(|call| call.status == 403 && call.verb != "list")
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
    });
}

/// ConfigMap, Secret, Job, the lead's label, one or two statuses: the number of calls does not grow with the pods. The
/// Service is shared: it is created once, and many MiniClusters join it at a time.
#[test]
fn a_cluster_costs_the_same_few_writes_whatever_its_size() {
    test("writes", async |fixture| {
        let operator = fixture.operator().await;
        let mut costs = Vec::new();
        for size in [4, 64] {
            operator.calls.clear();
            let names: Vec<String> = (0..4).map(|i| format!("mc-{size}-{i}")).collect();
            for name in &names {
                fixture.create(name, json!({ "size": size })).await;
            }
            for name in &names {
                fixture.when_is(name, "size", size).await;
            }
            operator.settled().await;
            let writes: Vec<Call> = operator
                .calls
                .all()
                .into_iter()
                .filter(|call| !call.is_read())
                .collect();
            let (shared, own): (Vec<&Call>, Vec<&Call>) =
                writes.iter().partition(|call| call.resource == "services");
            let statuses = own
                .iter()
                .filter(|call| call.resource == "miniclusters/status")
                .count();
            let others = own.len() - statuses;
            assert_eq!(others, 4 * names.len(), "{own:#?}");
            costs.push((statuses, shared.len()));
        }
        // If pods are created slowly, a MiniCluster reports them twice.
        assert!(
            costs
                .iter()
                .all(|(statuses, shared)| *statuses <= 2 * 4 && *shared <= 2),
            "{costs:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn operator_killed_at_any_write_leaves_the_same_objects() {
    test("killed", async |fixture| {
        let mut round = 0;
        let mut was_done = false;
        while !was_done {
            let name = format!("mc-{round}");
            let spec = json!({
                "size": 2,
                "network": { "headlessName": format!("net-{round}") },
                "containers": [
                    { "image": "app:1", "command": "hostname", "runFlux": true },
                    { "image": "db:1", "name": format!("db-{round}"), "ports": [5432] },
                ],
                "services": [{ "image": "cache:1", "name": "cache" }],
            });
            fixture.create(&name, spec).await;
            let victim = fixture.operator_that_dies(round).await;
            was_done = until("it is killed, or done", async || {
                // In this order, as in `killed.rs`.
                let is_done = fixture.status(&name).await["size"] == 2;
                if victim.is_dead() {
                    Some(false)
                } else {
                    is_done.then_some(true)
                }
            })
            .await;
            drop(victim);
            let key = fixture.secret(&name, "curve").await;

            let second = fixture.operator().await;
            fixture
                .when(&name, "whole", |status| {
                    status["size"] == 2 && status["maximumSize"] == 2
                })
                .await;
            until("the services pod is there", async || {
                fixture
                    .find::<k8s_openapi::api::core::v1::Pod>(&format!("{name}-services"))
                    .await
            })
            .await;
            let owned = until("it is one of the Service's owners", async || {
                let service = fixture
                    .find::<k8s_openapi::api::core::v1::Service>(&format!("net-{round}"))
                    .await?;
                service.metadata.owner_references
            })
            .await;
            assert_eq!(owned.len(), 1);
            fixture
                .api::<k8s_openapi::api::core::v1::Service>()
                .get(&format!("db-{round}"))
                .await
                .unwrap();
            if let Some(key) = key {
                let now = fixture.secret(&name, "curve").await.unwrap();
                assert_eq!(key.data, now.data, "the key is made once");
            }
            assert_eq!(fixture.all_pods(&name).await.len(), 2);
            second.stop().await;
            fixture.delete::<MiniCluster>(&name).await;
            round += 1;
            assert!(round < 40, "it makes too many writes");
        }
        assert!(round > 5, "it was killed {round} times only");
    });
}

#[test]
fn clusters_are_created_once_despite_lost_answers() {
    test("flaky", async |fixture| {
        let operator = fixture.operator_with_flaky_connection().await;
        for name in ["a", "b", "c"] {
            fixture.create(name, json!({ "size": 2 })).await;
        }
        let mut keys = Vec::new();
        for name in ["a", "b", "c"] {
            fixture
                .when(name, "whole", |status| {
                    status["size"] == 2 && status["maximumSize"] == 2
                })
                .await;
            assert_eq!(fixture.all_pods(name).await.len(), 2);
            keys.push(fixture.secret(name, "curve").await.unwrap().data);
        }
        until("all own the Service", async || {
            let service = fixture
                .api::<k8s_openapi::api::core::v1::Service>()
                .get("flux-service")
                .await
                .unwrap();
            (service.metadata.owner_references?.len() == 3).then_some(())
        })
        .await;
        operator.settled().await;
        for (name, key) in ["a", "b", "c"].iter().zip(keys) {
            assert_eq!(fixture.secret(name, "curve").await.unwrap().data, key);
        }
        operator.stop().await;
    });
}

#[test]
fn operator_uses_exactly_the_shipped_permissions() {
    test("rbac", async |fixture| {
        let operator = fixture.operator().await;
        let mut spec = of_all_parts();
        spec["cleanup"] = json!(true);
        fixture.create("mc", spec).await;
        fixture.pods("mc", 1).await;
        // A second MiniCluster, which shares the Service. Then a change of the first.
        fixture.create("other", json!({ "size": 1 })).await;
        fixture.pods("other", 1).await;
        fixture.when_is("mc", "maximumSize", 2).await;
        fixture.edit("mc", json!({ "size": 2 })).await;
        let pods = fixture.pods("mc", 2).await;
        // A third MiniCluster, which cannot mount its view. Since Kubernetes 1.35, pods can mount images by default.
        if fixture.minor().await >= 35 {
            let mounts = json!({ "size": 1, "flux": { "container": { "source": "imageVolume" } } });
            fixture.create("mounts", mounts).await;
            fixture.cannot_mount(&fixture.pods("mounts", 1).await[&0]).await;
            fixture.when_condition("mounts", "ViewMounted", "False").await;
        }
        // A MiniCluster whose lead is lost, and that may not restart. The operator fails its Job.
        fixture
            .create("lost", json!({ "size": 1, "backoffLimit": 0 }))
            .await;
        let lost = fixture.pods("lost", 1).await.remove(&0).unwrap();
        fixture
            .api::<Pod>()
            .evict(&lost.name_any(), &EvictParams::default())
            .await
            .unwrap();
        fixture.end_pod(&lost, 143, "Error", "").await;
        fixture.when_condition("lost", "Failed", "True").await;
        // The operator reports an invalid MiniCluster by an event.
        fixture
            .create(
                "wrong",
                json!({ "size": 1, "containers": [{ "image": "a", "command": "'" }] }),
            )
            .await;
        fixture.when_is("wrong", "phase", "Invalid").await;
        // For a Job without pods, the operator reads events. For one in a queue, it also lists Kueue's Workloads.
        let account = json!({ "size": 1, "pod": { "serviceAccountName": "nobody" } });
        fixture.create("stuck", account).await;
        fixture.when_is("stuck", "reason", "FailedCreate").await;
        fixture
            .create(
                "queued",
                json!({ "size": 1, "jobLabels": { "kueue.x-k8s.io/queue-name": "team" } }),
            )
            .await;
        let names_kueue = |status: &serde_json::Value| {
            status["message"]
                .as_str()
                .is_some_and(|message| message.contains("Kueue"))
        };
        fixture.when("queued", "explained", names_kueue).await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        until("it has been cleaned up", async || {
            fixture.reap("mc").await;
            fixture.find::<MiniCluster>("mc").await.is_none().then_some(())
        })
        .await;
        // The MiniCluster may be gone before the operator, which deletes it, has the answer. The operator deletes its
        // pods when it has seen that the MiniCluster is gone.
        for (verb, resource) in [("delete", "miniclusters"), ("deletecollection", "pods")] {
            until("the delete is answered", async || {
                operator
                    .calls
                    .all()
                    .iter()
                    .any(|call| call.resource == resource && call.verb == verb)
                    .then_some(())
            })
            .await;
        }
        // An operator also reads objects that already exist. `calls_about_what_exists` plays one that forgets
        // everything between two calls.
        let mut seen = operator.calls.all();
        operator.stop().await;
        seen.extend(fixture.calls_about_what_exists().await);

        let installed = Installation::whole(&json!({ "kueue": { "enabled": true } }));
        let mut permissions = installed.permissions("flux-operator");
        permissions.extend(installed.permissions("flux-operator-nodes"));
        assert_sufficient_and_all_used(&seen, &permissions);
    });
}
