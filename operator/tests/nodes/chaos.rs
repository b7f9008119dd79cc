//! Random MiniClusters and random faults, from one seed: `make chaos SECONDS=3600 SEED=7`. Afterwards every
//! program's account (`stage.rs`) is compared with the status and with the promises of the pages
//! (`test_support::promises`).
//!
//! ```text
//! schedule   what happens when: a function of the seed
//! clusters   the MiniClusters: how they are made, changed and deleted, and what each has to keep
//! faults     what is done to pods, the operator and nodes
//! ```

mod clusters;
mod faults;
mod schedule;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;
use test_support::node::has_finished;

use crate::machines::{operator_pods, restore};
use crate::stage::{Stage, test};
use crate::timeline::now;
use faults::{PASSING, World};
use schedule::schedule;

/// Time for MiniClusters to end after the last fault: their longest program, restarts, and the eviction from
/// a lost node.
const SETTLES_WITHIN: f64 = 420.0;
/// Time for all objects of deleted MiniClusters to go.
const CLEAN_WITHIN: f64 = 90.0;
/// A third of the chart's memory limit for the operator, which serves only a few MiniClusters here.
const MEMORY_LIMIT_KIB: u64 = 128 * 1024;

/// How long the idle operator is watched.
const CALM: Duration = Duration::from_secs(30);
/// The operator renews its Lease every few seconds, and reopens watches.
const MOST_CALLS_WHEN_CALM: f64 = 60.0;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .filter(|text| !text.is_empty())
        .map_or(default, |text| {
            text.parse()
                .unwrap_or_else(|_| panic!("{name} must be a whole number, not {text:?}"))
        })
}

#[test]
#[ignore = "make chaos"]
fn random_faults_break_no_promise() {
    let (seconds, seed) = (setting("CHAOS_SECONDS", 3600), setting("SEED", 1));
    test("chaos", async |stage| {
        eprintln!("chaos: {seconds} s with seed {seed}");
        let world = World::new(stage);
        for event in schedule(seed, seconds as f64) {
            world.until(event.at).await;
            world.apply(&event).await;
        }
        // Faults may have left nodes off and, if the API server was down, MiniClusters suspended. The stops are those
        // of the interactive instances. They come last, since a suspended instance is never stopped.
        world.calm_down().await;
        restore(&stage.fixture.client).await;
        world.resume_all().await;
        world.wait_for_stops().await;
        let violations = [
            settle(&world, stage).await,
            leftovers(&world, stage).await,
            operator(&world, stage).await,
        ]
        .concat();
        eprintln!(
            "chaos: seed {seed}, {seconds} s: {}, {} violations",
            world.summary(),
            violations.len()
        );
        assert!(violations.is_empty(), "seed {seed}:\n{}", violations.join("\n"));
    });
}

/// Waits until all have ended, and compares their statuses with what their programs did.
async fn settle(world: &World<'_>, stage: &Stage) -> Vec<String> {
    let deadline = now() + SETTLES_WITHIN;
    let mut violations = Vec::new();
    for life in world.not_deleted() {
        let status = loop {
            let status = stage.fixture.status(life.name()).await;
            if has_finished(&status) || now() > deadline {
                break status;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        violations.extend(world.violations_of(&life, &status));
    }
    // Those of MiniClusters that the run deleted, and names of which two programs ran at once.
    violations.extend(world.other_violations());
    violations
}

/// Deletes all MiniClusters. Returns what is left of them.
async fn leftovers(world: &World<'_>, stage: &Stage) -> Vec<String> {
    world.delete_all().await;
    let deadline = now() + CLEAN_WITHIN;
    loop {
        let left = left(stage).await;
        if left.is_empty() || now() > deadline {
            return left
                .into_iter()
                .map(|name| format!("{name} is left after all MiniClusters were deleted"))
                .collect();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn left(stage: &Stage) -> Vec<String> {
    async fn names<K>(stage: &Stage, kind: &str, is_ours: impl Fn(&K) -> bool) -> Vec<String>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let objects = stage.fixture.list::<K>("").await;
        objects
            .iter()
            .filter(|object| is_ours(object))
            .map(|object| format!("{kind} {}", object.name_any()))
            .collect()
    }
    // The namespaces that a fault created, to delete them while MiniClusters run in them.
    let passing = Api::<Namespace>::all(stage.fixture.client.clone())
        .list(&ListParams::default().labels(PASSING))
        .await
        .unwrap();
    [
        passing
            .items
            .iter()
            .map(|namespace| format!("namespace {}", namespace.name_any()))
            .collect(),
        names::<MiniCluster>(stage, "MiniCluster", |_| true).await,
        names::<Job>(stage, "Job", |_| true).await,
        names::<Pod>(stage, "Pod", |_| true).await,
        names::<Service>(stage, "Service", |_| true).await,
        names::<Secret>(stage, "Secret", |_| true).await,
        names::<ConfigMap>(stage, "ConfigMap", |object| {
            object.name_any() != "kube-root-ca.crt"
        })
        .await,
    ]
    .concat()
}

/// Checks that the operator's containers run, that none uses too much memory, and that it is quiet in a calm cluster.
async fn operator(world: &World<'_>, stage: &Stage) -> Vec<String> {
    let mut violations = Vec::new();
    for pod in operator_pods(&stage.fixture.client).await {
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        for status in statuses {
            let name = format!("{}: {}", pod.name_any(), status.name);
            if !status.ready {
                violations.push(format!("{name} is not ready"));
            }
            // Each fault may cost the operator its Lease, or fail its probes.
            if status.restart_count as usize > world.faults() {
                violations.push(format!("{name} was restarted {} times", status.restart_count));
            }
            eprintln!("chaos: {name} was restarted {} times", status.restart_count);
        }
    }
    let before = api_calls(stage).await;
    tokio::time::sleep(CALM).await;
    for (pod, calls) in api_calls(stage).await {
        let new = calls - before.get(&pod).copied().unwrap_or(0.0);
        eprintln!(
            "chaos: {pod} made {new} calls in {} s with nothing to do",
            CALM.as_secs()
        );
        if new > MOST_CALLS_WHEN_CALM {
            violations.push(format!(
                "{pod} made {new} calls in {} s with nothing to do",
                CALM.as_secs()
            ));
        }
    }
    // The nodes are on this machine, so `ps` sees their processes.
    let resident = Command::new("ps")
        .args(["-C", "flux-operator", "-o", "rss="])
        .output()
        .unwrap();
    for kib in String::from_utf8(resident.stdout)
        .unwrap()
        .split_whitespace()
        .map(|word| word.parse::<u64>().unwrap())
    {
        eprintln!("chaos: a flux-operator has {} MiB", kib / 1024);
        if kib > MEMORY_LIMIT_KIB {
            violations.push(format!("a flux-operator has {} MiB", kib / 1024));
        }
    }
    violations
}

/// The number of API calls of each operator pod that counts them.
async fn api_calls(stage: &Stage) -> BTreeMap<String, f64> {
    let mut calls = BTreeMap::new();
    for pod in operator_pods(&stage.fixture.client).await {
        let name = pod.name_any();
        let path = format!("/api/v1/namespaces/flux-operator/pods/{name}:8080/proxy/metrics");
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        // An operator pod that does not answer is left out.
        let Ok(text) = stage.fixture.client.request_text(request).await else {
            continue;
        };
        let count = |line: &str| -> Option<f64> {
            line.strip_prefix("flux_operator_api_calls_total")?
                .rsplit(' ')
                .next()?
                .parse()
                .ok()
        };
        calls.insert(name, text.lines().filter_map(count).sum());
    }
    calls
}

/// The status of a MiniCluster that may have been deleted.
async fn status_if_there(stage: &Stage, name: &str) -> Option<Value> {
    let cluster = stage.fixture.api::<MiniCluster>().get_opt(name).await.ok()??;
    Some(serde_json::to_value(cluster.status).unwrap())
}
