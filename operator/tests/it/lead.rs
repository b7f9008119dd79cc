//! The Lease of the operators, and what an operator reports about its health.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use flux_operator::api::lease::Candidate;
use flux_operator::controller::ControllerError;
use flux_operator_core::labels::OPERATOR;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::prometheus::free_address;
use test_support::api_server::{Call, Calls, DEADLINE, Fault, SETTLE, test, until};
use test_support::call::assert_sufficient_and_all_used;
use test_support::installation::Installation;

/// The namespace in which the shipped Role allows a Lease.
const NAMESPACE: &str = "flux-operator";

async fn ask(port: u16, path: &str) -> String {
    let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else {
        return String::new();
    };
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[test]
fn one_operator_leads_and_the_next_takes_over_at_its_stop() {
    test("lead", async |fixture| {
        let candidate = |identity: &str| {
            let duration = Duration::from_secs(3);
            Some(Candidate {
                namespace: NAMESPACE.into(),
                identity: identity.into(),
                duration,
            })
        };
        let leases: Api<Lease> = Api::namespaced(fixture.client.clone(), NAMESPACE);
        let holder = async || {
            leases
                .get_opt("flux-operator")
                .await
                .unwrap()?
                .spec?
                .holder_identity
        };
        let port = free_address().port();
        let deployment = Api::<Deployment>::namespaced(fixture.client.clone(), NAMESPACE)
            .get("flux-operator")
            .await
            .unwrap();

        let first = Calls::default();
        let one = fixture
            .operator_of(first.clone(), |settings| settings.candidate = candidate("one"))
            .await;
        until("one leads", async || (holder().await? == "one").then_some(())).await;
        let calls = Calls::default();
        let two = fixture
            .operator_of(calls.clone(), |settings| {
                settings.candidate = candidate("two");
                settings.health = Some(([127, 0, 0, 1], port).into());
            })
            .await;
        until("two is ready to lead", async || {
            ask(port, "/readyz").await.contains("200 OK").then_some(())
        })
        .await;
        fixture.create("mc", json!({ "size": 1 })).await;
        fixture.pods("mc", 1).await;
        // Longer than a Lease lives, so it must be renewed.
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(holder().await.unwrap(), "one");
        assert!(
            calls.all().iter().all(|call| call.resource == "leases"),
            "the loser does nothing: {:?}",
            calls.all()
        );
        assert!(
            ask(port, "/metrics")
                .await
                .contains("leader_election_master_status{name=\"flux-framework-flux-operator\"} 0")
        );

        // The Lease belongs to the operator's Deployment, and is deleted with it.
        let lease = leases.get("flux-operator").await.unwrap();
        let owners: Vec<&str> = lease
            .owner_references()
            .iter()
            .map(|owner| owner.uid.as_str())
            .collect();
        assert_eq!(owners, [deployment.uid().unwrap()]);

        one.stop().await;
        until("two leads", async || (holder().await? == "two").then_some(())).await;
        fixture.create("next", json!({ "size": 1 })).await;
        let pods = fixture.run_pods("next", 1).await;
        fixture.when_condition("next", "Ready", "True").await;
        until("two reports both in its metrics", async || {
            let text = ask(port, "/metrics").await;
            let has = |line: &str| text.lines().any(|found| found == line);
            (has("leader_election_master_status{name=\"flux-framework-flux-operator\"} 1")
                && has("flux_operator_miniclusters{phase=\"Running\"} 1")
                && has("flux_operator_time_to_ready_seconds_count 1"))
            .then_some(())
        })
        .await;
        // A MiniCluster that becomes ready again is not counted again.
        let waiting = json!({ "status": {
            "conditions": [{ "type": "Ready", "status": "False" }],
            "containerStatuses": [{
                "name": pods[&0].spec.as_ref().unwrap().containers[0].name, "image": "i", "imageID": "i", "ready": false,
                "restartCount": 0, "started": true, "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
            }],
        } });
        fixture.patch_pod_status(&pods[&0], waiting).await;
        fixture.when_condition("next", "Ready", "False").await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("next", "Ready", "True").await;
        tokio::time::sleep(SETTLE).await;
        let text = ask(port, "/metrics").await;
        let count = "flux_operator_time_to_ready_seconds_count 1";
        assert!(text.lines().any(|line| line == count), "{text}");

        // Somebody else takes the Lease, so the process ends.
        let change = json!({ "spec": { "holderIdentity": "three" } });
        leases
            .patch("flux-operator", &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap();
        assert!(matches!(two.end().await, Err(ControllerError::LostLease)));
        // Both operators act with the shipped permissions. Those of this Role are about the Lease.
        let all_calls = [first.all(), calls.all()].concat();
        assert_sufficient_and_all_used(
            &all_calls,
            &Installation::whole(&json!({})).permissions("flux-operator-leader"),
        );
    });
}

/// A call may take 65 s, and many MiniClusters may wait for a slot. The kubelet kills the operator after 30 s.
#[test]
fn stopped_leader_releases_its_lease_during_late_calls() {
    test("lead-late", async |fixture| {
        // The usual account may not use a Lease of this namespace: its Role for Leases is in `NAMESPACE`.
        let account = format!("--serviceaccount={NAMESPACE}:{OPERATOR}");
        let resources = "--resource=leases.coordination.k8s.io,deployments.apps";
        fixture
            .kubectl(&["create", "role", "leader", "--verb=*", resources])
            .unwrap();
        fixture
            .kubectl(&["create", "rolebinding", "leader", "--role=leader", &account])
            .unwrap();
        let leases: Api<Lease> = fixture.api();
        let free = json!({ "metadata": { "name": "flux-operator" }, "spec": { "holderIdentity": "" } });
        fixture.add::<Lease>(free).await;
        let holder = async || {
            let lease = leases.get_opt("flux-operator").await.unwrap();
            lease?.spec?.holder_identity
        };
        let late = Duration::from_secs(60);
        let calls = Calls::with_faults(move |call: &Call| {
            let is_late = call.resource == "configmaps" && call.verb == "create";
            is_late.then_some(Fault::Late(late, 504))
        });
        let operator = fixture
            .operator_of(calls.clone(), |settings| {
                settings.candidate = Some(Candidate {
                    namespace: fixture.namespace.clone(),
                    identity: "one".into(),
                    duration: Duration::from_secs(30),
                });
            })
            .await;
        until("it leads", async || (holder().await? == "one").then_some(())).await;
        for number in 0..150 {
            fixture
                .create(&format!("mc-{number}"), json!({ "size": 1 }))
                .await;
        }
        let count = || {
            let all = calls.all().into_iter();
            all.filter(|call| call.resource == "configmaps").count()
        };
        // More calls than the 48 slots (`slots::CONCURRENCY`): slow reconciles have left theirs to others.
        let all_taken = async || (count() > 48).then_some(());
        until(
            "more reconciles wait for an answer than there are slots",
            all_taken,
        )
        .await;
        let begin = Instant::now();
        // The operator gives its reconciles 20 s (`FINISH_TIME`). The kubelet would kill it after 30 s.
        let stopped = tokio::time::timeout(Duration::from_secs(25), operator.stop()).await;
        assert!(stopped.is_ok(), "the operator still runs 25 s after the stop");
        assert_eq!(holder().await.as_deref(), Some(""));
        // Well below `FINISH_TIME`, and too long for a stop that waits for no call.
        assert!(
            begin.elapsed() > Duration::from_secs(10),
            "the stop did not wait for the calls that were under way"
        );
    });
}

/// As if the CustomResourceDefinition were missing.
#[test]
fn operator_without_minicluster_list_is_unready_but_stops() {
    test("not-listed", async |fixture| {
        let calls = Calls::with_faults(|call: &Call| {
            let is_list = call.resource == "miniclusters" && call.verb == "list";
            is_list.then_some(Fault::Answer(404))
        });
        let port = free_address().port();
        let operator = fixture
            .operator_of(calls.clone(), |settings| {
                settings.health = Some(([127, 0, 0, 1], port).into());
            })
            .await;
        until("other kinds are listed, and watched", async || {
            let watches = calls.all().into_iter().filter(|call| call.verb == "watch");
            let watched: BTreeSet<String> = watches.map(|call| call.resource).collect();
            let others = ["jobs", "nodes", "pods", "services"];
            others.iter().all(|kind| watched.contains(*kind)).then_some(())
        })
        .await;
        let ready = ask(port, "/readyz").await;
        assert!(ready.contains("503"), "{ready}");
        let stopped = tokio::time::timeout(DEADLINE, operator.stop()).await;
        assert!(stopped.is_ok(), "it does not stop");
    });
}

/// A replica still runs for a moment after its Deployment was deleted. It finds no Lease, and must not create one.
#[test]
fn lease_deleted_with_its_deployment_is_not_recreated() {
    test("uninstalled", async |fixture| {
        let labels = json!({ "app": "none" });
        let deployment = json!({
            "metadata": { "name": "flux-operator" },
            "spec": {
                "replicas": 0, "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "a", "image": "a" }] } },
            },
        });
        let made = fixture.add::<Deployment>(deployment).await;
        let leases: Api<Lease> = fixture.api();
        let owner = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": made.name_any(), "uid": made.uid() });
        let lease = json!({
            "metadata": { "name": "flux-operator", "ownerReferences": [owner] },
            "spec": { "holderIdentity": "other", "leaseDurationSeconds": 3600 },
        });
        fixture.add::<Lease>(lease).await;

        let (namespace, client) = (fixture.namespace.clone(), fixture.client.clone());
        let duration = Duration::from_millis(300);
        let waiting = tokio::spawn(async move {
            Candidate {
                namespace,
                identity: "waiting".into(),
                duration,
            }
            .acquire(&client)
            .await
        });
        // The replica looks every 100 ms. It sees that another one holds the Lease, and that the Lease has an owner.
        tokio::time::sleep(Duration::from_secs(3)).await;
        fixture.delete::<Deployment>("flux-operator").await;
        until("the Lease has gone with it", async || {
            leases
                .get_opt("flux-operator")
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
        // Time for more attempts of the replica.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(leases.get_opt("flux-operator").await.unwrap(), None);
        assert!(!waiting.is_finished());
        waiting.abort();
    });
}
