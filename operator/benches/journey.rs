//! Times MiniClusters, one at a time, on a real node, and bare Jobs for comparison: `make bench-journey
//! KUBECONFIG=... FLUX=...`. On the test node, this also sets the variables with the images (`.ci/bench`).
//!
//! ```text
//! create ─► all pods run ─► the job's first line ─► complete;   an instance that stays: delete ─► all gone
//! ```
//!
//! The operator runs on this machine, for a namespace of its own. No other operator may serve all namespaces
//! of that cluster meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement"
)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench prints its figures"
)]

use std::panic::AssertUnwindSafe;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flux_operator::definition::{self, crd};
use flux_shared::crd::v1alpha2::MiniCluster;
use futures::{AsyncBufReadExt, FutureExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, LogParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use test_support::report::{Report, median, setting};

/// Longest time to wait for one state.
const DEADLINE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);
/// Number of pods of each object.
const SIZE: usize = 4;
/// What the program, `echo hello`, prints.
const LINE: &str = "hello";
/// Name of the CustomResourceDefinition.
const CRD: &str = "miniclusters.flux-framework.org";

/// The image that the environment variable `name` names.
fn image(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} must name an image"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let client = Client::try_default()
        .await
        .expect("KUBECONFIG must name a cluster");
    let namespace = format!("bench-journey-{}", std::process::id());
    let made_crd = make_crd(&client).await;
    let metadata = ObjectMeta {
        name: Some(namespace.clone()),
        ..ObjectMeta::default()
    };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(
            &PostParams::default(),
            &Namespace {
                metadata,
                ..Namespace::default()
            },
        )
        .await
        .unwrap();
    // A panic is caught, so that the cleanup below runs after a failure too.
    let result = AssertUnwindSafe(measure(client.clone(), namespace.clone()))
        .catch_unwind()
        .await;
    let _ = namespaces.delete(&namespace, &DeleteParams::default()).await;
    if made_crd {
        let _ = Api::<CustomResourceDefinition>::all(client)
            .delete(CRD, &DeleteParams::default())
            .await;
    }
    match result {
        Ok(report) => report.print("From create to gone, on a real node"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Creates the CRD if it is missing. Returns whether it was missing.
async fn make_crd(client: &Client) -> bool {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    // A CRD that an earlier run deleted may still be terminating.
    while let Some(crd) = crds.get_opt(CRD).await.unwrap() {
        if crd.metadata.deletion_timestamp.is_none() {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
    let crd = serde_saphyr::from_str(&crd(&definition::Options::default()).unwrap()).unwrap();
    crds.create(&PostParams::default(), &crd).await.unwrap();
    // The API server serves a new resource only after a moment.
    tokio::time::sleep(Duration::from_secs(3)).await;
    true
}

async fn measure(client: Client, namespace: String) -> Report {
    let fixture = Fixture { client, namespace };
    let mut report = Report::new(include_str!("ranges.toml"));
    let app = image("BENCH_APP_IMAGE");
    let with_flux = image("BENCH_FLUX_IMAGE");
    let _operator = Operator::start(&fixture.namespace);
    let kinds = [
        ("bare-job", bare_job(&app, json!(["sh", "-c", "echo hello"]))),
        (
            "mounted-view",
            mini_cluster(
                &app,
                json!({ "flux": { "container": { "source": "imageVolume" } } }),
            ),
        ),
        (
            "copied-view",
            mini_cluster(&app, json!({ "flux": { "container": { "source": "copy" } } })),
        ),
        (
            "own-flux",
            mini_cluster(
                &with_flux,
                json!({ "flux": { "container": { "disable": true } } }),
            ),
        ),
    ];
    // For each kind, the times of each run.
    let mut journeys: [Vec<[f64; 3]>; 4] = Default::default();
    for run in 0..setting("BENCH_RUNS", 5) {
        for (number, (kind, object)) in kinds.iter().enumerate() {
            let name = format!("{kind}-{run}");
            let journey = fixture.journey(&name, object).await;
            eprintln!(
                "  {name}: running {:.2}, first line {:.2}, complete {:.2} s",
                journey[0], journey[1], journey[2]
            );
            journeys[number].push(journey);
        }
    }
    // The medians of the three times, for the kind with this number.
    let figures = |number: usize| {
        [0, 1, 2].map(|at| {
            median(
                &journeys[number]
                    .iter()
                    .map(|journey| journey[at])
                    .collect::<Vec<_>>(),
            )
        })
    };
    // Kind 0 is `bare-job`.
    let bare = figures(0);
    for (number, (kind, _)) in kinds.iter().enumerate() {
        for (at, what) in ["running", "first-line", "complete"].into_iter().enumerate() {
            let time = figures(number)[at];
            report.figure(&format!("journey-{kind}-{what}-s"), time);
            if number > 0 {
                report.figure(&format!("journey-{kind}-{what}-over-bare-s"), time - bare[at]);
            }
        }
    }
    // The seconds of the stops: first those of MiniClusters, then that of a bare Job.
    let mut stops: [Vec<f64>; 2] = Default::default();
    for run in 0..setting("BENCH_STOPS", 3) {
        let staying = mini_cluster(
            &with_flux,
            json!({ "interactive": true, "flux": { "container": { "disable": true } } }),
        );
        stops[0].push(fixture.stop(&format!("stop-{run}"), &staying).await);
    }
    // With `; true`, the shell stays process 1 and does not become `flux start`. As process 1 it ignores SIGTERM. So a
    // stop takes the whole grace period, and one measurement is enough.
    let shell = bare_job(&with_flux, json!(["bash", "-c", "flux start sleep 600; true"]));
    stops[1].push(fixture.stop("stop-shell", &shell).await);
    report.figure("journey-stop-s", median(&stops[0]));
    report.figure("journey-stop-shell-s", median(&stops[1]));
    report
}

fn mini_cluster(image: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["size"] = json!(SIZE);
    spec["tasks"] = json!(SIZE);
    spec["containers"] = json!([{ "image": image, "command": "echo hello" }]);
    // An interactive MiniCluster runs no command: its instance stays up.
    if spec.get("interactive").is_some() {
        spec["containers"] = json!([{ "image": image }]);
    }
    json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": {}, "spec": spec })
}

fn bare_job(image: &str, command: Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {},
        "spec": {
            "completions": SIZE, "parallelism": SIZE, "completionMode": "Indexed",
            "template": { "spec": {
                "restartPolicy": "Never",
                "containers": [{ "name": "app", "image": image, "command": command }],
            } },
        },
    })
}

struct Fixture {
    client: Client,
    namespace: String,
}

impl Fixture {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create(&self, name: &str, object: &Value) {
        let mut object = object.clone();
        object["metadata"]["name"] = json!(name);
        let post = PostParams::default();
        if object["kind"] == "Job" {
            self.api::<Job>()
                .create(&post, &serde_json::from_value(object).unwrap())
                .await
                .unwrap();
        } else {
            self.api::<MiniCluster>()
                .create(&post, &serde_json::from_value(object).unwrap())
                .await
                .unwrap();
        }
    }

    /// Deletes the object with background propagation, as `kubectl delete` does.
    async fn delete(&self, name: &str, object: &Value) {
        let background = DeleteParams::background();
        if object["kind"] == "Job" {
            drop(self.api::<Job>().delete(name, &background).await.unwrap());
        } else {
            drop(self.api::<MiniCluster>().delete(name, &background).await.unwrap());
        }
    }

    /// Seconds from the creation until all pods run, until the first line, and until the Job is complete.
    /// Deletes everything afterwards.
    async fn journey(&self, name: &str, object: &Value) -> [f64; 3] {
        let begin = Instant::now();
        let since = || begin.elapsed().as_secs_f64();
        self.create(name, object).await;
        let running = async {
            self.until("all pods run", async || {
                self.running_or_succeeded(name).await == SIZE
            })
            .await;
            since()
        };
        let first_line = async {
            self.until("the first line", async || self.has_line(name).await)
                .await;
            since()
        };
        let (running, first_line) = tokio::join!(running, first_line);
        self.until("complete", async || self.has_condition(name, "Complete").await)
            .await;
        let complete = since();
        self.delete(name, object).await;
        self.wait_until_gone(name).await;
        [running, first_line, complete]
    }

    /// Seconds from the deletion of a running object until everything is gone.
    async fn stop(&self, name: &str, object: &Value) -> f64 {
        self.create(name, object).await;
        self.until("all pods run", async || {
            self.running_or_succeeded(name).await == SIZE
        })
        .await;
        // Long enough for the instance to become complete.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let begin = Instant::now();
        self.delete(name, object).await;
        self.wait_until_gone(name).await;
        begin.elapsed().as_secs_f64()
    }

    async fn pods(&self, name: &str) -> Vec<Pod> {
        let selector = format!("batch.kubernetes.io/job-name={name}");
        self.api::<Pod>()
            .list(&ListParams::default().labels(&selector))
            .await
            .unwrap()
            .items
    }

    /// How many pods run or have succeeded.
    async fn running_or_succeeded(&self, name: &str) -> usize {
        let pods = self.pods(name).await;
        let phase = |pod: &Pod| {
            pod.status
                .as_ref()
                .and_then(|status| status.phase.clone())
                .unwrap_or_default()
        };
        pods.iter()
            .filter(|pod| matches!(phase(pod).as_str(), "Running" | "Succeeded"))
            .count()
    }

    /// Whether the lead's log has the line. Follows the log until it ends or the line has come.
    async fn has_line(&self, name: &str) -> bool {
        let is_lead = |pod: &Pod| {
            pod.metadata
                .name
                .as_ref()
                .is_some_and(|pod| pod.starts_with(&format!("{name}-0-")))
        };
        let Some(lead) = self.pods(name).await.into_iter().find(is_lead) else {
            return false;
        };
        let follow = LogParams {
            follow: true,
            ..LogParams::default()
        };
        let name = lead.metadata.name.unwrap();
        let Ok(log) = self.api::<Pod>().log_stream(&name, &follow).await else {
            return false;
        };
        let mut lines = log.lines();
        while let Ok(Some(line)) = lines.try_next().await {
            if line.trim() == LINE {
                return true;
            }
        }
        false
    }

    /// Whether the Job has the condition. Panics if the Job has failed.
    async fn has_condition(&self, name: &str, type_: &str) -> bool {
        let job = self.api::<Job>().get_opt(name).await.unwrap();
        let conditions = job
            .and_then(|job| job.status)
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        assert!(
            !conditions
                .iter()
                .any(|condition| condition.type_ == "Failed" && condition.status == "True"),
            "{name} failed: {conditions:?}"
        );
        conditions
            .iter()
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    }

    async fn wait_until_gone(&self, name: &str) {
        let all = ListParams::default();
        self.until("nothing is left", async || {
            let is_gone =
                self.api::<Job>().get_opt(name).await.unwrap().is_none() && self.pods(name).await.is_empty();
            is_gone
                && self.api::<MiniCluster>().list(&all).await.unwrap().items.is_empty()
                && self.api::<Service>().list(&all).await.unwrap().items.is_empty()
                && self.api::<Secret>().list(&all).await.unwrap().items.is_empty()
                // Kubernetes creates kube-root-ca.crt in each namespace.
                && self.api::<ConfigMap>().list(&all).await.unwrap().items.len() <= 1
        })
        .await;
    }

    async fn until(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !is_so().await {
            assert!(Instant::now() < deadline, "not in time: {what}");
            tokio::time::sleep(POLL).await;
        }
    }
}

struct Operator(Child);

impl Operator {
    fn start(namespace: &str) -> Operator {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flux-operator"));
        command.args(["run", "--log", "warn", "--namespace", namespace]);
        command.args(["--agent-image", &image("BENCH_AGENT_IMAGE")]);
        command.args(["--view-image", &image("BENCH_VIEW_IMAGE")]);
        Operator(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
