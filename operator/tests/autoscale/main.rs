//! A real autoscaler on a queue of real Flux: 20 jobs grow a MiniCluster from one node to four, an empty
//! queue shrinks it to one again, and no job is lost (`make e2e-autoscale FLUX=/opt/flux`). CYCLES is the
//! number of repetitions, SECONDS_OF_A_JOB the length of each job.
//!
//! AUTOSCALER is a file of `examples/autoscale`: `hpa` is Kubernetes' own autoscaler, which gets the lead's
//! metrics from Prometheus and prometheus-adapter; `keda` asks the lead; `keda-prometheus` asks Prometheus.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stdout, reason = "tests print figures and notices")]

use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::usage::{HostState, Usage};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use test_support::node::{Fixture, app_image, kubectl, test};
use test_support::report::setting;
use test_support::repository::repository;

const PROMETHEUS: &str = "test-node/neighbours/prometheus.yaml";
const PROMETHEUS_ADAPTER: &str = "test-node/neighbours/prometheus-adapter.yaml";
/// Enough for four nodes: the examples want one for every five jobs.
const JOBS: usize = 20;
const GROWTH_MAX: Duration = Duration::from_secs(180);
const SHRINK_MAX: Duration = Duration::from_secs(300);
const METRICS_MAX: Duration = Duration::from_secs(120);

/// Changes a file that is written for the namespace `default` to this namespace. In the examples, the autoscaler
/// shrinks only after a minute of calm. Here it does not wait, so jobs still run when it shrinks.
fn adapted(fixture: &Fixture, file: &str) -> String {
    let text = std::fs::read_to_string(repository().join(file)).unwrap();
    let namespace = &fixture.namespace;
    text.replace(".default.svc", &format!(".{namespace}.svc"))
        .replace("{namespace: default}", &format!("{{namespace: {namespace}}}"))
        .replace("namespace=\"default\"", &format!("namespace=\"{namespace}\""))
        .replace("WindowSeconds: 60", "WindowSeconds: 0")
}

/// The MiniCluster of the example.
struct Instance<'a> {
    fixture: &'a Fixture,
    lead: Pod,
}

impl Instance<'_> {
    fn try_exec(&self, command: &[&str]) -> Result<String, String> {
        let (lead, container) = (self.lead.name_any(), "--container=autoscale");
        let exec = ["exec", &lead, container, "--"];
        self.fixture.try_kubectl(&[&exec, command].concat(), "")
    }

    fn flux(&self, arguments: &[&str]) -> String {
        let script = ". /mnt/flux/flux-view.sh && exec flux proxy $fluxsocket flux \"$@\"";
        self.try_exec(&[&["sh", "-c", script, "-"], arguments].concat())
            .unwrap()
    }

    /// None if the lead does not answer yet.
    fn usage(&self) -> Option<Usage> {
        serde_json::from_str(&self.try_exec(&["/mnt/flux/flux-agent", "usage"]).ok()?).ok()
    }

    /// The wanted number of nodes, and the number of pods, including those that are terminating.
    async fn size(&self) -> (i32, usize) {
        let cluster: MiniCluster = self.fixture.api().get("autoscale").await.unwrap();
        let of_job = "batch.kubernetes.io/job-name=autoscale";
        (cluster.spec.size, self.fixture.list::<Pod>(of_job).await.len())
    }

    /// Submits jobs, and waits until the cluster has grown and has shrunk again. Returns whether a node was
    /// told to leave while a job ran on it.
    async fn cycle(&self, number: usize) -> bool {
        let begin = Instant::now();
        let jobs = format!("--cc=1-{JOBS}");
        let seconds = setting("SECONDS_OF_A_JOB", 8).to_string();
        self.flux(&["submit", "--quiet", &jobs, "sleep", &seconds]);
        let ask = async || (self.size().await.0 == 4).then(|| begin.elapsed());
        let grown = self.fixture.within(GROWTH_MAX, "there are four nodes", ask).await;

        let mut under_job = false;
        let ask = async || {
            // Each look runs a program in the lead.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let usage = self.usage()?;
            let mut hosts = usage.resources.iter().flat_map(|resources| &resources.hosts);
            under_job |= hosts.any(|host| host.state == HostState::Drained && host.cores_used > 0);
            let is_idle = usage
                .jobs
                .is_some_and(|jobs| jobs.waiting == 0 && jobs.running == 0);
            (is_idle && self.size().await == (1, 1)).then(|| begin.elapsed())
        };
        let shrunk = self.fixture.within(SHRINK_MAX, "one node is left", ask).await;
        println!(
            "cycle {number}: four nodes after {grown:.0?}, one again after {shrunk:.0?}; with a job: {under_job}"
        );

        // All jobs that were ever submitted have completed.
        let results = self.flux(&["jobs", "-a", "--count=0", "--no-header", "--format={result}"]);
        let all = vec!["COMPLETED"; number * JOBS];
        assert_eq!(results.lines().collect::<Vec<_>>(), all);
        let lead = self.fixture.lead("autoscale").await.unwrap();
        assert_eq!(lead.uid(), self.lead.uid(), "the lead is another pod");
        under_job
    }
}

#[test]
fn queue_resizes_minicluster_and_no_job_is_lost() {
    let autoscaler = std::env::var("AUTOSCALER").unwrap_or("hpa".into());
    test("autoscale", async |fixture| {
        // `.ci/e2e` has installed KEDA. It cannot install Prometheus, whose configuration contains the test's namespace.
        let neighbours: &[&str] = match autoscaler.as_str() {
            "hpa" => &[PROMETHEUS, PROMETHEUS_ADAPTER, "examples/autoscale/adapter.yaml"],
            "keda" => &[],
            _ => &[PROMETHEUS],
        };
        for file in neighbours {
            kubectl(&["apply", "-f", "-"], &adapted(&fixture, file)).unwrap();
        }
        let text = adapted(&fixture, "examples/autoscale/minicluster.yaml");
        let mut example: Value = serde_saphyr::from_str(&text).unwrap();
        example["spec"]["containers"][0]["image"] = json!(app_image());
        // Shorter than in the example. The jobs that `cycle` submits (8 s by default) fit into it.
        example["spec"]["pod"]["terminationGracePeriodSeconds"] = json!(120);
        fixture.create_object::<MiniCluster>(example).await;
        fixture.when_condition("autoscale", "Ready").await;
        let lead = fixture.lead("autoscale").await.unwrap();
        if autoscaler == "hpa" {
            let metrics = "/apis/external.metrics.k8s.io/v1beta1/namespaces";
            let path = format!("{metrics}/{}/job_queue_state_active_count", fixture.namespace);
            let ask = async || fixture.try_kubectl(&["get", "--raw", &path], "").ok();
            fixture.within(METRICS_MAX, "the external metrics", ask).await;
        }
        let example = adapted(&fixture, &format!("examples/autoscale/{autoscaler}.yaml"));
        assert!(example.contains("stabilizationWindowSeconds: 0"), "{example}");
        fixture.kubectl(&["apply", "-f", "-"], &example);

        let fixture = &fixture;
        let instance = Instance { fixture, lead };
        let (cycles, mut under_jobs) = (setting("CYCLES", 10), 0);
        for number in 1..=cycles {
            under_jobs += usize::from(instance.cycle(number).await);
        }
        // Otherwise the test has not covered that a job keeps its node.
        assert_ne!(under_jobs, 0, "no node was told to go with a job on it");
    });
}
