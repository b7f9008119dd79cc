//! Gangs on a node where pods really run. Two MiniClusters that each need all of the node's CPUs start at
//! once. Either the node's Kubernetes has its own API for gangs switched on (`make e2e-gang`), or another
//! scheduler runs (`E2E_SCHEDULER`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stdout, reason = "tests print figures and notices")]

use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use serde_json::{Value, json};
use test_support::api_server::has_ended;
use test_support::node::{Fixture, app_image, test};

const ROUNDS: u32 = 20;
/// Time for two MiniClusters one after the other, each of which may have to try again.
const ROUND: Duration = Duration::from_secs(120);
/// Without gangs: if both MiniClusters are half placed for this long, neither will ever run.
const STUCK: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// Thousandths of a CPU.
fn millis(quantity: Option<&Quantity>) -> u32 {
    let Some(Quantity(text)) = quantity else { return 0 };
    match text.strip_suffix('m') {
        Some(number) => number.parse().unwrap(),
        None => text.parse::<u32>().unwrap() * 1000,
    }
}

/// The CPU request with which two pods fill the free CPUs of the only node, and three do not fit.
async fn half_of_the_node(fixture: &Fixture) -> u32 {
    let nodes = test_support::node::list(&Api::<Node>::all(fixture.client.clone()), "").await;
    assert_eq!(nodes.len(), 1, "a node for itself");
    let all = millis(
        nodes[0]
            .status
            .as_ref()
            .unwrap()
            .allocatable
            .as_ref()
            .unwrap()
            .get("cpu"),
    );
    let pods = test_support::node::list(&Api::<Pod>::all(fixture.client.clone()), "").await;
    let containers = pods
        .iter()
        .filter(|pod| !has_ended(pod))
        .flat_map(|pod| &pod.spec.as_ref().unwrap().containers);
    let used: u32 = containers
        .map(|container| {
            millis(
                container
                    .resources
                    .as_ref()
                    .and_then(|resources| resources.requests.as_ref()?.get("cpu")),
            )
        })
        .sum();
    (all - used) / 2
}

fn scheduler() -> String {
    std::env::var("E2E_SCHEDULER").unwrap_or("default-scheduler".into())
}

async fn create(fixture: &Fixture, name: &str, cpu: u32, gang: &str) {
    let object = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": name },
        "spec": {
            "size": 2, "gang": gang,
            // The Service of an earlier round may still exist. Without affinity, each pod starts as soon as it can.
            "network": { "headlessName": name, "disableAffinity": true },
            "pod": { "schedulerName": scheduler() },
            "containers": [{
                "image": app_image(), "command": "sleep 1", "resources": { "requests": { "cpu": format!("{cpu}m") } },
            }],
        },
    });
    fixture.create_object::<MiniCluster>(object).await;
}

/// What two MiniClusters have on the node.
#[derive(Debug, Default)]
struct Watched {
    /// Pods that have a node and have not ended, at present.
    placed: [usize; 2],
    /// Whether the MiniCluster has had all its pods at once.
    was_whole: [bool; 2],
    completed: [bool; 2],
}

impl Watched {
    async fn look(&mut self, fixture: &Fixture, names: &[String; 2]) {
        let pods = fixture.list::<Pod>("").await;
        for (i, name) in names.iter().enumerate() {
            let of_it = pods.iter().filter(|pod| {
                pod.metadata
                    .labels
                    .as_ref()
                    .is_some_and(|all| all.get("batch.kubernetes.io/job-name") == Some(name))
            });
            let placed =
                of_it.filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some() && !has_ended(pod));
            self.placed[i] = placed.count();
            self.was_whole[i] |= self.placed[i] == 2;
            self.completed[i] = self.completed[i] || phase(fixture, name).await == "Completed";
        }
    }

    fn both_are_half_placed(&self) -> bool {
        self.placed == [1, 1] && self.was_whole == [false, false]
    }
}

async fn phase(fixture: &Fixture, name: &str) -> Value {
    let status = fixture.status(name).await;
    assert!(
        !["Failed", "Invalid"].map(Value::from).contains(&status["phase"]),
        "{name}: {status:#}"
    );
    assert_ne!(status["reason"], "GangUnavailable", "{name}: {status:#}");
    status["phase"].clone()
}

#[test]
fn two_gangs_for_one_node_never_block_each_other() {
    test("gang", async |fixture| {
        let cpu = half_of_the_node(&fixture).await;
        let mut slowest = Duration::ZERO;
        for round in 0..ROUNDS {
            let names = [format!("a-{round}"), format!("b-{round}")];
            let start = Instant::now();
            tokio::join!(
                create(&fixture, &names[0], cpu, "on"),
                create(&fixture, &names[1], cpu, "on")
            );
            let mut watched = Watched::default();
            while watched.completed != [true, true] {
                watched.look(&fixture, &names).await;
                assert!(
                    !watched.both_are_half_placed(),
                    "round {round}: both have half of the node"
                );
                assert!(start.elapsed() < ROUND, "round {round}: {watched:?}");
                tokio::time::sleep(POLL).await;
            }
            assert_eq!(
                watched.was_whole,
                [true, true],
                "round {round}: each had all its pods at once"
            );
            println!(
                "round {round}: both have run after {:.1} s",
                start.elapsed().as_secs_f64()
            );
            slowest = slowest.max(start.elapsed());
            fixture.delete("minicluster", &["--all"]).await;
        }
        println!(
            "{ROUNDS} rounds of two pods with {cpu}m each, the slowest {:.1} s",
            slowest.as_secs_f64()
        );
    });
}

/// Shows what gangs are for, and that the test above can fail.
#[test]
fn clusters_without_gangs_can_block_each_other() {
    test("gang-off", async |fixture| {
        let cpu = half_of_the_node(&fixture).await;
        for round in 0..ROUNDS {
            let names = [format!("a-{round}"), format!("b-{round}")];
            tokio::join!(
                create(&fixture, &names[0], cpu, "off"),
                create(&fixture, &names[1], cpu, "off")
            );
            let mut watched = Watched::default();
            let mut since: Option<Instant> = None;
            while !watched.completed.contains(&true) {
                watched.look(&fixture, &names).await;
                since = watched
                    .both_are_half_placed()
                    .then(|| since.unwrap_or_else(Instant::now));
                if since.is_some_and(|since| since.elapsed() > STUCK) {
                    println!("round {round}: both have half of the node");
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
            fixture.delete("minicluster", &["--all"]).await;
        }
        panic!(
            "in {ROUNDS} rounds one of the two had the whole node each time: the other test shows nothing"
        );
    });
}

#[test]
fn the_example_ends_as_its_readme_says() {
    test("gang-example", async |fixture| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gang/minicluster.yaml");
        let mut example: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        example["spec"]["containers"][0]["image"] = json!(app_image());
        example["spec"]["pod"] = json!({ "schedulerName": scheduler() });
        fixture.create_object::<MiniCluster>(example).await;
        fixture.when_condition("gang", "Complete").await;
        let job: Job = fixture.api().get("gang").await.unwrap();
        assert!(
            job.metadata
                .annotations
                .unwrap()
                .contains_key("flux-framework.org/gang")
        );
        let log = fixture.lead_log("gang").await;
        let readme = std::fs::read_to_string(path.replace("minicluster.yaml", "README.md")).unwrap();
        let line = log.lines().find(|line| *line == "all of us or none");
        assert!(
            line.is_some_and(|line| readme.lines().any(|shown| shown == line)),
            "{log}"
        );
    });
}
