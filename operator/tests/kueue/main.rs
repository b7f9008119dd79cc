//! MiniClusters in the queues of Kueue itself, on a node where pods really run (`make e2e-kueue`).
//!
//! The quota is two CPUs: two pods of 700m fit, a third does not. The same is true of a node with two CPUs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::LogParams;
use serde_json::{Value, json};
use test_support::node::{Fixture, app_image, is_fake_flux, test_within};
use test_support::repository::repository;

const DEADLINE: Duration = Duration::from_secs(180);
const APPLY: [&str; 5] = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
const QUEUES: &str = include_str!("queues.yaml");
const QUEUE: &str = "kueue.x-k8s.io/queue-name";
const PRIORITY: &str = "kueue.x-k8s.io/priority-class";
const TOPOLOGY: &str = "kueue.x-k8s.io/podset-required-topology";

/// Runs a test in a namespace with queues. Then deletes its MiniClusters, so that the next test has the whole quota.
fn test(name: &str, body: impl AsyncFnOnce(&Fixture)) {
    test_within(DEADLINE, &format!("kueue-{name}"), async |fixture| {
        // Kueue's webhook may need a moment longer than its pod.
        let ask = async || fixture.try_kubectl(&APPLY, QUEUES).ok();
        fixture.until("the queues are made", ask).await;
        body(&fixture).await;
        fixture.delete("minicluster", &["--all"]).await;
    });
}

fn cluster(name: &str, size: u32, command: &str) -> Value {
    let requests = json!({ "requests": { "cpu": "700m", "memory": "64Mi" } });
    json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": { "name": name, "labels": { QUEUE: "team" } },
        "spec": {
            "size": size, "tasks": 1,
            "containers": [{ "image": app_image(), "command": command, "resources": requests }],
        },
    })
}

async fn create(fixture: &Fixture, cluster: Value) {
    fixture.create_object::<MiniCluster>(cluster).await;
}

/// Creates the MiniCluster, and waits until it runs. Returns the lead's container.
async fn start(fixture: &Fixture, cluster: Value) -> String {
    let name = cluster["metadata"]["name"].as_str().unwrap().to_owned();
    create(fixture, cluster).await;
    fixture
        .when(&name, "it runs", |status| status["phase"] == "Running")
        .await;
    lead_container(fixture, &name).await
}

/// Changes the size to one that the quota allows.
async fn resize(fixture: &Fixture, name: &str, size: u32) {
    set_size(fixture, name, size);
    has_ready(fixture, name, size).await;
}

fn set_size(fixture: &Fixture, name: &str, size: u32) {
    let patch = json!({ "spec": { "size": size } }).to_string();
    fixture.kubectl(
        &["patch", "minicluster", name, "--type=merge", "--patch", &patch],
        "",
    );
}

async fn has_ready(fixture: &Fixture, name: &str, pods: u32) {
    let what = format!("{pods} are ready");
    fixture
        .when(name, &what, |status| status["readySize"] == pods)
        .await;
}

/// Waits until the status has this message.
async fn says_why(fixture: &Fixture, name: &str, why: &str) -> Value {
    let has_message = |status: &Value| {
        status["message"]
            .as_str()
            .is_some_and(|message| message.contains(why))
    };
    fixture.when(name, why, has_message).await
}

/// Waits for the end with this code. Returns the reasons of the restarts.
async fn ended(fixture: &Fixture, name: &str, code: i32) -> Vec<Value> {
    let has_ended = |status: &Value| !status["completionTime"].is_null();
    let status = fixture.when(name, "it has ended", has_ended).await;
    assert_eq!(status["exitCode"], code, "{name}: {status:#}");
    restarts(&status)
}

fn restarts(status: &Value) -> Vec<Value> {
    let restarts = status["restarts"].as_array().into_iter().flatten();
    restarts.map(|restart| restart["reason"].clone()).collect()
}

async fn lead_container(fixture: &Fixture, name: &str) -> String {
    let status = fixture.lead(name).await.unwrap().status.unwrap();
    status.container_statuses.unwrap()[0]
        .container_id
        .clone()
        .unwrap()
}

#[test]
fn clusters_run_in_turn_when_the_quota_fits_one() {
    test("turn", async |fixture| {
        let clusters = [("m3", 3), ("m4", 4), ("m5", 5)];
        for (name, code) in clusters {
            let command = format!("sh -c 'sleep 8; exit {code}'");
            create(fixture, cluster(name, 2, &command)).await;
        }
        let (mut have_run, mut waits) = (BTreeSet::new(), Vec::new());
        let ask = async || {
            let pods = fixture.list::<Pod>("").await.into_iter();
            let is_running = |pod: &Pod| pod.status.as_ref().unwrap().phase.as_deref() == Some("Running");
            let name = |pod: Pod| pod.labels()["batch.kubernetes.io/job-name"].clone();
            let now: BTreeSet<String> = pods.filter(is_running).map(name).collect();
            assert!(now.len() <= 1, "at once: {now:?}");
            have_run.extend(now);
            let mut have_ended = true;
            for (name, _) in clusters {
                let status = fixture.status(name).await;
                waits.extend((status["reason"] == "Queued").then(|| status["message"].to_string()));
                have_ended &= !status["completionTime"].is_null();
            }
            have_ended.then_some(())
        };
        fixture.until("all have ended", ask).await;
        assert!(!have_run.is_empty(), "none was seen to run");
        let names_quota = |message: &String| message.contains("queue team") && message.contains("quota");
        assert!(waits.iter().any(names_quota), "{waits:?}");
        for (name, code) in clusters {
            ended(fixture, name, code).await;
        }
    });
}

#[test]
fn higher_priority_evicts_and_the_victim_keeps_its_code() {
    test("priority", async |fixture| {
        let trap = "trap \"sleep 4; echo saved; exit 0\" TERM";
        let command = format!("sh -c '{trap}; echo begun; sleep 25 & wait; exit 7'");
        let mut low = cluster("low", 2, &command);
        low["metadata"]["labels"][PRIORITY] = json!("low");
        // The queue's eviction counts toward no limit of restarts.
        low["spec"]["maxRestarts"] = json!(0);
        create(fixture, low).await;
        let ask = async || fixture.lead_log("low").await.contains("begun").then_some(());
        fixture.until("the victim runs", ask).await;
        let lead = fixture.lead("low").await.unwrap().name_any();
        let follow = LogParams {
            follow: true,
            ..LogParams::default()
        };
        let log = fixture.api::<Pod>().log_stream(&lead, &follow).await.unwrap();

        let mut high = cluster("high", 2, "sleep 5");
        high["metadata"]["labels"][PRIORITY] = json!("high");
        start(fixture, high).await;
        // Kueue admitted `high` when it suspended the victim, so the victim's lead may still run. Its log ends with it.
        let log = tokio::time::timeout(DEADLINE, log.lines().try_collect::<Vec<String>>());
        let log = log.await.unwrap().unwrap();
        assert!(log.iter().any(|line| line.contains("saved")), "{log:?}");
        ended(fixture, "high", 0).await;
        assert_eq!(ended(fixture, "low", 7).await, ["Requeued"]);
        let status = fixture.status("low").await;
        assert_eq!(status["backoffLimitUsed"].as_u64().unwrap_or(0), 0, "{status:#}");
    });
}

#[test]
fn elastic_cluster_keeps_its_lead_when_resized() {
    test("elastic", async |fixture| {
        let mut grows = cluster("grows", 1, "sleep 40");
        grows["spec"]["maxSize"] = json!(2);
        let lead = start(fixture, grows).await;
        resize(fixture, "grows", 2).await;
        resize(fixture, "grows", 1).await;
        assert_eq!(lead_container(fixture, "grows").await, lead);
        assert_eq!(ended(fixture, "grows", 0).await, [""; 0]);
    });
}

#[test]
fn elastic_cluster_says_why_it_cannot_grow_and_goes_on() {
    test("wants", async |fixture| {
        let mut wants = cluster("wants", 1, "sleep 300");
        wants["spec"]["maxSize"] = json!(4);
        let lead = start(fixture, wants).await;
        set_size(fixture, "wants", 4);
        let why = "waits in queue team for 3 of 4 pods: ";
        let status = says_why(fixture, "wants", why).await;
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("quota for cpu"), "{message}");
        assert_eq!(status["reason"], "Queued", "{status:#}");
        assert_eq!(status["phase"], "Running", "{status:#}");
        // Two pods fit.
        resize(fixture, "wants", 2).await;
        set_size(fixture, "wants", 3);
        let status = says_why(fixture, "wants", "waits in queue team for 1 of 3 pods: ").await;
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("quota for cpu"), "{message}");
        // With this quota, Kueue admits the third pod. But the pod finds no node with room. `test` resets the quota for
        // the next test.
        fixture.kubectl(&APPLY, &QUEUES.replace("nominalQuota: 2}", "nominalQuota: 4}"));
        let is_admitted = |status: &Value| status["reason"] != "Queued";
        fixture.when("wants", "it is admitted", is_admitted).await;
        resize(fixture, "wants", 1).await;
        assert_eq!(lead_container(fixture, "wants").await, lead);
        assert_eq!(restarts(&fixture.status("wants").await), [""; 0]);
    });
}

#[test]
fn part_of_a_cluster_is_admitted_when_min_size_fits() {
    test("part", async |fixture| {
        let command = "sh -c \"flux resource list -no {state}:{nnodes}; sleep 5\"";
        let mut part = cluster("part", 4, command);
        part["spec"]["minSize"] = json!(2);
        // With one core for each pod, the job's node is allocated, and the other one is free.
        part["spec"]["containers"][0]["cores"] = json!(1);
        create(fixture, part).await;
        has_ready(fixture, "part", 2).await;
        assert_eq!(fixture.list::<Pod>("").await.len(), 2);
        if !is_fake_flux() {
            let ask = async || fixture.lead_log("part").await.contains("free:1").then_some(());
            fixture.until("Flux has these two", ask).await;
        }
        ended(fixture, "part", 0).await;
    });
}

#[test]
fn status_names_the_admission_check_that_is_not_ready() {
    test("checked", async |fixture| {
        let mut checked = cluster("checked", 2, "echo never");
        checked["metadata"]["labels"][QUEUE] = json!("checked");
        create(fixture, checked).await;
        // A queue with a check that no controller serves admits nothing.
        let why = "inactive (its admission checks: budget (Pending))";
        says_why(fixture, "checked", why).await;
        // This is what the check's controller would report.
        let active = json!({
            "type": "Active", "status": "True", "reason": "Active", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let patch = json!({ "status": { "conditions": [active] } }).to_string();
        let words = "patch admissioncheck budget --subresource=status --type=merge --patch";
        let words: Vec<&str> = words.split(' ').chain([patch.as_str()]).collect();
        fixture.kubectl(&words, "");
        let why = "its quota is reserved, and it waits for the admission check budget (Pending)";
        says_why(fixture, "checked", why).await;
        assert!(fixture.list::<Pod>("").await.is_empty());
    });
}

#[test]
fn topology_annotation_reaches_the_pods() {
    test("placed", async |fixture| {
        let mut placed = cluster("placed", 2, "sleep 3");
        placed["metadata"]["labels"][QUEUE] = json!("placed");
        placed["metadata"]["annotations"] = json!({ TOPOLOGY: "kubernetes.io/hostname" });
        start(fixture, placed).await;
        let lead = fixture.lead("placed").await.unwrap();
        assert_eq!(lead.annotations()[TOPOLOGY], "kubernetes.io/hostname");
        ended(fixture, "placed", 0).await;
    });
}

#[test]
fn cluster_of_another_controller_is_left_alone() {
    test("other", async |fixture| {
        let mut other = cluster("other", 2, "echo never");
        other["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
        create(fixture, other).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(fixture.list::<Job>("").await.is_empty());
        assert_eq!(fixture.status("other").await, Value::Null);
    });
}

#[test]
fn example_ends_as_its_readme_says() {
    test("example", async |fixture| {
        let folder = repository().join("examples/queue");
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
        fixture.kubectl(&APPLY, &read("queue.yaml"));
        let mut example: Value = serde_saphyr::from_str(&read("minicluster.yaml")).unwrap();
        let container = &mut example["spec"]["containers"][0];
        container["image"] = json!(app_image());
        // The node has two CPUs for all its pods.
        container["resources"]["requests"]["cpu"] = json!("50m");
        create(fixture, example).await;
        ended(fixture, "queue", 0).await;
        let log = fixture.lead_log("queue").await;
        assert_eq!(log.lines().filter(|line| *line == "my turn").count(), 4, "{log}");
    });
}

#[test]
#[ignore = "takes an operator that may not list Workloads: `.ci/e2e` runs it last"]
fn cluster_runs_when_the_operator_may_not_list_workloads() {
    test("no-right", async |fixture| {
        start(fixture, cluster("first", 2, "sleep 15")).await;
        create(fixture, cluster("second", 2, "sh -c 'exit 5'")).await;
        says_why(fixture, "second", "waits in queue team: the reason is in Kueue").await;
        ended(fixture, "first", 0).await;
        ended(fixture, "second", 5).await;
    });
}
