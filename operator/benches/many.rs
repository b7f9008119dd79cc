//! Many MiniClusters against a real control plane without nodes, and in the same run a client that only creates the same
//! objects: `cargo bench -p flux-operator --bench many` (BENCH_N="100 1000" for other numbers).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a measurement")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it looks, acts and tells"
)]

#[path = "../tests/it/controlplane.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod controlplane;
#[path = "../../agent/benches/report.rs"]
#[allow(dead_code, reason = "shared with other benches")]
mod report;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use controlplane::{ControlPlane, led_over};
use flux_operator::install;
use flux_operator::render::{Facts, Options, objects};
use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::curve::Certificate;
use flux_shared::manifest;
use flux_shared::validate::validate;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{ObjectMeta, PostParams, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::WatchEvent;
use kube::{Api, Client, Config, ResourceExt};
use report::{Report, median, quantile, setting};

/// Creations that one client has under way.
const CONCURRENCY: usize = 32;
const DEADLINE: Duration = Duration::from_secs(600);

fn main() {
    let numbers = std::env::var("BENCH_N").unwrap_or_else(|_| "100 1000".into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut report = Report::new(include_str!("ranges.toml"));
    for number in numbers.split_whitespace() {
        runtime.block_on(measure(number.parse().expect("BENCH_N has numbers"), &mut report));
    }
    report.print("Many MiniClusters, without nodes");
}

/// Each round has its own control planes, so that none carries the former's pods.
async fn measure(number: usize, report: &mut Report) {
    // A few hundred milliseconds say little alone.
    let rounds = if number < 500 { 5 } else { 1 };
    let (mut baselines, mut alls) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let plane = ControlPlane::start(&install::crd().unwrap()).unwrap();
        let client = client(plane.kubeconfig_path()).await;
        let by_hand = |namespace| {
            let client = client.clone();
            move |name: String| {
                let client = client.clone();
                async move { create_by_hand(&client, namespace, &name).await }
            }
        };
        // The first of its kind takes longer: the API server makes the first caller of a new CRD wait for 2 s.
        jobs_made(&client, "first", 1, by_hand("first")).await;
        baselines.push(jobs_made(&client, "baseline", number, by_hand("baseline")).await.0.as_secs_f64());
        drop(plane);
        alls.push(with_operator(number, (round == rounds).then_some(&mut *report)).await);
    }
    let (baseline, all) = (median(&baselines), median(&alls));
    for (what, value) in [("baseline-s", baseline), ("all-jobs-s", all), ("ratio", all / baseline)] {
        report.figure(&format!("many-{number}-{what}"), value);
    }
}

/// Seconds until all Jobs are there. What it costs goes into the report.
async fn with_operator(number: usize, report: Option<&mut Report>) -> f64 {
    let plane = ControlPlane::start(&install::crd().unwrap()).unwrap();
    let client = client(plane.kubeconfig_path()).await;
    let (kubeconfig, bytes) = counted(plane.kubeconfig_path());
    let operator = Operator::start(&kubeconfig).await;
    let cluster = |namespace| {
        let client = client.clone();
        move |name: String| {
            let client = client.clone();
            async move { create_cluster(&client, namespace, &name).await }
        }
    };
    jobs_made(&client, "first", 1, cluster("first")).await;
    operator.is_quiet().await;
    let before = (operator.calls().await, operator.labels().await, bytes.load(Ordering::Relaxed));
    let (all, times) = jobs_made(&client, "bench", number, cluster("bench")).await;
    let Some(report) = report else { return all.as_secs_f64() };
    operator.is_quiet().await;
    let calls = operator.calls().await - before.0;
    let labels = operator.labels().await - before.1;
    let bytes = bytes.load(Ordering::Relaxed) - before.2;
    let idle = operator.calls_in(Duration::from_secs(setting("BENCH_IDLE_SECONDS", 60) as u64)).await;
    let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    for (what, value) in [
        ("create-to-job-p50-s", quantile(&times, 0.5)),
        ("create-to-job-p95-s", quantile(&times, 0.95)),
        ("create-to-job-p99-s", quantile(&times, 0.99)),
        ("calls-each", calls as f64 / number as f64),
        ("labels-each", labels as f64 / number as f64),
        ("kilobytes-each", bytes as f64 / 1e3 / number as f64),
        ("cpu-s", operator.cpu_seconds()),
        ("rss-peak-mib", operator.memory("VmHWM") as f64),
        ("rss-idle-mib", operator.memory("VmRSS") as f64),
        ("idle-calls", idle as f64),
    ] {
        report.figure(&format!("many-{number}-{what}"), value);
    }
    all.as_secs_f64()
}

/// A kubeconfig that leads through a forwarder, and the bytes (of TLS) that went through it, both ways.
fn counted(kubeconfig: &Path) -> (PathBuf, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (path, server) = led_over(kubeconfig, "counted", listener.local_addr().unwrap()).unwrap();
    let bytes = Arc::new(AtomicU64::new(0));
    let counter = bytes.clone();
    std::thread::spawn(move || {
        for there in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&server) else { return };
            for (from, to) in [(&there, &server), (&server, &there)] {
                let (from, to, counter) = (from.try_clone().unwrap(), to.try_clone().unwrap(), counter.clone());
                std::thread::spawn(move || forward(from, to, &counter));
            }
        }
    });
    (path, bytes)
}

fn forward(mut from: TcpStream, mut to: TcpStream, bytes: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        bytes.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap()).unwrap()
}

/// Makes `number` with `create`; how long until every Job is there, and the times of each, sorted.
async fn jobs_made<F: Future<Output = ()>>(
    client: &Client,
    namespace: &str,
    number: usize,
    create: impl Fn(String) -> F,
) -> (Duration, Vec<Duration>) {
    let metadata = ObjectMeta { name: Some(namespace.into()), ..ObjectMeta::default() };
    let object = Namespace { metadata, ..Namespace::default() };
    Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let begin = Instant::now();
    let watch = async || jobs.watch_metadata(&WatchParams::default().timeout(290), "0").await.unwrap().boxed();
    let mut watched = watch().await;
    let made = async {
        let mut made: HashMap<String, Instant> = HashMap::new();
        while made.len() < number {
            let event = tokio::time::timeout(DEADLINE, watched.try_next()).await.expect("in time").unwrap();
            match event {
                Some(WatchEvent::Added(job)) => drop(made.entry(job.name_any()).or_insert_with(Instant::now)),
                Some(_) => {}
                // The API server ends a watch that does not keep up.
                None => watched = watch().await,
            }
        }
        made
    };
    let creating = futures::stream::iter(0..number).map(|i| {
        let name = format!("mc-{i}");
        let creation = create(name.clone());
        async move {
            let begin = Instant::now();
            creation.await;
            (name, begin)
        }
    });
    let creating = creating.buffer_unordered(CONCURRENCY).collect::<Vec<_>>();
    let (made, begun) = tokio::join!(made, creating);
    let mut times: Vec<Duration> = begun.iter().map(|(name, begin)| made[name] - *begin).collect();
    times.sort();
    (made.values().max().unwrap().duration_since(begin), times)
}

fn manifest(namespace: &str, name: &str) -> String {
    format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{size: 4, containers: [{{image: 'app:1', command: hostname}}]}}\n"
    )
}

async fn create_by_hand(client: &Client, namespace: &str, name: &str) {
    let cluster = validate(&manifest::parse(&manifest(namespace, name)).unwrap()).unwrap();
    let certificate = Certificate::from_keys(name, &[1; 32], &[2; 32]);
    let objects = objects(&cluster, &Options::default(), &Facts::default(), certificate).unwrap();
    let post = PostParams::default();
    Api::<ConfigMap>::namespaced(client.clone(), namespace).create(&post, &objects.config_map).await.unwrap();
    Api::<Secret>::namespaced(client.clone(), namespace).create(&post, objects.secrets[0].expose()).await.unwrap();
    Api::<Job>::namespaced(client.clone(), namespace).create(&post, &objects.job).await.unwrap();
}

async fn create_cluster(client: &Client, namespace: &str, name: &str) {
    let cluster: MiniCluster = serde_saphyr::from_str(&manifest(namespace, name)).unwrap();
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &cluster).await.unwrap();
}

struct Operator {
    child: Child,
    address: String,
}

impl Operator {
    async fn start(kubeconfig: &Path) -> Operator {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_flux-operator"))
            .args(["run", "--log=warn", "--health", &address])
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let operator = Operator { child, address };
        let begin = Instant::now();
        while !operator.ask("/readyz").await.contains(" 200 ") {
            assert!(begin.elapsed() < DEADLINE, "the operator does not become ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        operator
    }

    async fn ask(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let Ok(mut stream) = tokio::net::TcpStream::connect(&self.address).await else { return String::new() };
        let mut answer = String::new();
        stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Calls but lists, watches and the documented label on pods.
    async fn calls(&self) -> u64 {
        self.count(|line| {
            !line.contains("verb=\"list\"")
                && !line.contains("verb=\"watch\"")
                && !line.contains("verb=\"patch\",resource=\"pods/status\"")
        })
        .await
    }

    /// The documented label on pods, one call each.
    async fn labels(&self) -> u64 {
        self.count(|line| line.contains("verb=\"patch\",resource=\"pods/status\"")).await
    }

    async fn count(&self, counts: impl Fn(&str) -> bool) -> u64 {
        let text = self.ask("/metrics").await;
        let lines = text.lines().filter(|line| line.starts_with("flux_operator_api_calls_total{") && counts(line));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Waits until it makes no calls any more, of whatever kind.
    async fn is_quiet(&self) {
        let begin = Instant::now();
        while self.calls_in(Duration::from_secs(5)).await > 0 {
            assert!(begin.elapsed() < DEADLINE, "the operator does not become quiet");
        }
    }

    async fn calls_in(&self, time: Duration) -> u64 {
        let is_call = |line: &str| !line.contains("verb=\"watch\"");
        let before = self.count(is_call).await;
        tokio::time::sleep(time).await;
        self.count(is_call).await - before
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        ticks as f64 / 100.0
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
