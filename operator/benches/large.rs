//! One very large MiniCluster on fake nodes, from its creation until it is ready, and MiniClusters of 4 and 64 pods
//! for their whole life: `.ci/bench large` (LARGE_SIZE=5000). Kubernetes' own scheduler runs, and kwok replaces the
//! kubelets.
//!
//! The bench reports all writes of the operator (events too), its peak memory, and the seconds until the large
//! MiniCluster is Ready. For comparison, it reports the seconds until the Job controller, the scheduler and the
//! fake nodes had all pods ready. The operator cannot speed that up.
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

#[allow(dead_code, reason = "shared with other benches")]
mod plane;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::{ConditionStatus, MiniCluster};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use plane::{DEADLINE, Operator, client, control_plane};
use test_support::control_plane::ControlPlane;
use test_support::report::{Report, setting};

/// Each takes 1,000 pods (`kwok/stages.yaml`).
const NODES: usize = 10;
/// How many MiniClusters of each size run for their whole life.
const LIVES: usize = 20;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut report = Report::new(include_str!("ranges.toml"));
    runtime.block_on(async {
        for size in [4, 64] {
            whole_lives(size, &mut report).await;
        }
        one_large(setting("LARGE_SIZE", 5000), &mut report).await;
    });
    report.print("MiniClusters on fake nodes");
}

/// A control plane with fake nodes, and the operator. Its programs end when it is dropped.
struct Fleet {
    operator: Operator,
    client: Client,
    programs: Vec<Child>,
    _plane: ControlPlane,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

impl Fleet {
    async fn start() -> Fleet {
        let plane = control_plane();
        let client = client(plane.kubeconfig_path()).await;
        let kwok = std::env::var("KWOK").expect("KWOK names the kwok program: use .ci/bench large");
        let stages = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/kwok/stages.yaml");
        let mut fake = Command::new(kwok);
        fake.args([
            "--manage-all-nodes",
            "--cidr=198.18.0.1/16",
            "--node-lease-duration-seconds=60",
        ]);
        fake.arg("--config").arg(stages);
        let mut scheduler = Command::new(plane.binary());
        scheduler.args(["kube-scheduler", "--leader-elect=false", "--secure-port=0"]);
        scheduler.args(["--kube-api-qps=2000", "--kube-api-burst=4000"]);
        let programs = [(fake, "kwok"), (scheduler, "scheduler")]
            .map(|(mut command, name)| {
                let log = std::fs::File::create(log_of(name)).unwrap();
                command.arg("--kubeconfig").arg(plane.kubeconfig_path());
                command
                    .stdin(Stdio::null())
                    .stdout(log.try_clone().unwrap())
                    .stderr(log)
                    .spawn()
                    .unwrap()
            })
            .into();
        plane.apply(&nodes()).unwrap();
        let operator = Operator::start(plane.kubeconfig_path()).await;
        let fleet = Fleet {
            operator,
            client,
            programs,
            _plane: plane,
        };
        // The API server delays the first request for a new CRD. This MiniCluster also fills everybody's
        // caches.
        fleet.create("first", "mc", 1, true).await;
        fleet.until("first", "mc", "JobFinished").await;
        fleet.operator.until_quiet().await;
        fleet
    }

    /// Creates the namespace if it is missing, and a MiniCluster. `ends`: its lead ends with 0 (`kwok/stages.yaml`).
    async fn create(&self, namespace: &str, name: &str, size: usize, ends: bool) {
        let spaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.client.clone());
        let space = serde_json::from_value(serde_json::json!({"metadata": {"name": namespace}})).unwrap();
        let _ = spaces.create(&PostParams::default(), &space).await;
        let cluster: MiniCluster = serde_saphyr::from_str(&format!(
            "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{size: {size}, pod: {{annotations: {{bench/ends: '{ends}'}}}}, containers: [{{image: 'app:1', command: hostname}}]}}\n"
        ))
        .unwrap();
        Api::namespaced(self.client.clone(), namespace)
            .create(&PostParams::default(), &cluster)
            .await
            .unwrap();
    }

    /// Waits until the MiniCluster has the condition.
    async fn until(&self, namespace: &str, name: &str, condition: &str) {
        let api: Api<MiniCluster> = Api::namespaced(self.client.clone(), namespace);
        let has_condition = |cluster: MiniCluster| {
            let conditions = cluster.status.unwrap_or_default().conditions;
            conditions
                .iter()
                .any(|entry| entry.type_ == condition && entry.status == ConditionStatus::True)
        };
        let begin = Instant::now();
        while !has_condition(api.get(name).await.unwrap()) {
            assert!(
                begin.elapsed() < DEADLINE,
                "{namespace}/{name} does not become {condition}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn log_of(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bench-large-{name}.log"))
}

fn nodes() -> String {
    let node = |number| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: fake-{number}}}\n");
    (0..NODES).map(node).collect::<Vec<_>>().join("---\n")
}

/// Reports the operator's writes for one MiniCluster from creation to end. The MiniClusters run one after the other.
async fn whole_lives(size: usize, report: &mut Report) {
    let fleet = Fleet::start().await;
    let before = fleet.operator.writes().await;
    for number in 0..LIVES {
        let name = format!("mc-{number}");
        fleet.create("lives", &name, size, true).await;
        fleet.until("lives", &name, "JobFinished").await;
    }
    fleet.operator.until_quiet().await;
    let writes = fleet.operator.writes().await - before;
    eprintln!(
        "  writes since the operator's start (with the MiniCluster of the namespace `first`), size {size}: {}",
        fleet.operator.writes_by_kind().await
    );
    report.figure(&format!("life-{size}-writes-each"), writes as f64 / LIVES as f64);
}

/// Reports the times and costs until one MiniCluster of this size is ready. Its job does not end.
async fn one_large(size: usize, report: &mut Report) {
    let fleet = Fleet::start().await;
    let (calls, writes) = (fleet.operator.calls().await, fleet.operator.writes().await);
    let begin = Instant::now();
    fleet.create("large", "mc", size, false).await;
    let jobs: Api<Job> = Api::namespaced(fleet.client.clone(), "large");
    let mut job_made = None;
    let all_ready = loop {
        let job = jobs.get_opt("mc").await.unwrap();
        if job.is_some() {
            job_made.get_or_insert_with(|| begin.elapsed());
        }
        let ready = job.and_then(|job| job.status?.ready).unwrap_or(0);
        if ready as usize >= size {
            break begin.elapsed();
        }
        assert!(
            begin.elapsed() < DEADLINE * 3,
            "{ready} of {size} pods are ready; see {}",
            log_of("kwok").display()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    fleet.until("large", "mc", "Ready").await;
    let ready = begin.elapsed();
    fleet.operator.until_quiet().await;
    let pods: Api<Pod> = Api::namespaced(fleet.client.clone(), "large");
    assert_eq!(
        pods.list_metadata(&ListParams::default())
            .await
            .unwrap()
            .items
            .len(),
        size
    );
    eprintln!(
        "  writes since the operator's start (with the MiniCluster of the namespace `first`): {}",
        fleet.operator.writes_by_kind().await
    );
    for (what, value) in [
        ("job-s", job_made.unwrap_or_default().as_secs_f64()),
        ("all-pods-ready-s", all_ready.as_secs_f64()),
        ("ready-s", ready.as_secs_f64()),
        (
            "ready-after-pods-s",
            ready.saturating_sub(all_ready).as_secs_f64(),
        ),
        ("calls", (fleet.operator.calls().await - calls) as f64),
        ("writes", (fleet.operator.writes().await - writes) as f64),
        // These two include the operator's start and the MiniCluster `first`.
        ("cpu-s", fleet.operator.cpu_seconds()),
        ("rss-peak-mib", fleet.operator.memory("VmHWM") as f64),
    ] {
        report.figure(&format!("large-{size}-{what}"), value);
    }
}
