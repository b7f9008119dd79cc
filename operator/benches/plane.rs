//! What the operator's benches share: the operator as a process on a control plane, its metrics, and the
//! objects that clients create.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flux_operator_core::render::{Options, RenderFacts, objects};
use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::curve::Certificate;
use flux_shared::manifest;
use flux_shared::validate::validate;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use test_support::api_server::crd_without_conversion;
use test_support::control_plane::{ControlPlane, kubeconfig_via};
use test_support::operator_process::OperatorProcess;

/// Longest time to wait for one state.
pub const DEADLINE: Duration = Duration::from_secs(600);
/// The size of a MiniCluster where the size does not matter.
pub const SIZE: u32 = 4;

/// A control plane that serves v1alpha2 only.
pub fn control_plane() -> ControlPlane {
    ControlPlane::start(&crd_without_conversion()).unwrap()
}

/// A kubeconfig that connects through a forwarder, and the number of bytes (of TLS) that passed through it in
/// both directions.
pub fn counted(kubeconfig: &Path) -> (PathBuf, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (path, address) = kubeconfig_via(kubeconfig, "counted", listener.local_addr().unwrap()).unwrap();
    let bytes = Arc::new(AtomicU64::new(0));
    let counter = bytes.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(&address) else {
                return;
            };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (from, to, counter) = (
                    from.try_clone().unwrap(),
                    to.try_clone().unwrap(),
                    counter.clone(),
                );
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

pub async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Client::try_from(
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap(),
    )
    .unwrap()
}

pub struct Operator(OperatorProcess);

impl Operator {
    pub async fn start(kubeconfig: &Path) -> Operator {
        Operator::start_with(kubeconfig, &[]).await
    }

    pub async fn start_with(kubeconfig: &Path, arguments: &[&str]) -> Operator {
        let program = Path::new(env!("CARGO_BIN_EXE_flux-operator"));
        let arguments = [&["--log=warn"], arguments].concat();
        let operator = Operator(OperatorProcess::start(
            program,
            kubeconfig,
            &arguments,
            Stdio::inherit(),
        ));
        let begin = Instant::now();
        while !operator.ask("/readyz").await.contains(" 200 ") {
            assert!(begin.elapsed() < DEADLINE, "the operator does not become ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        operator
    }

    /// The operator's HTTP answer for `path`, with its head. Empty if the operator does not listen. Reads to the end:
    /// the operator closes each connection after its answer.
    async fn ask(&self, path: &str) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let Ok(mut stream) = tokio::net::TcpStream::connect(self.0.address()).await else {
            return String::new();
        };
        let mut answer = String::new();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
            .await
            .unwrap();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    /// Whether a line of the metrics counts calls that change something.
    fn is_write(line: &str) -> bool {
        !["get", "list", "watch"]
            .iter()
            .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    }

    /// All calls that change something, of any kind: pods, events, statuses and the Lease too.
    pub async fn writes(&self) -> u64 {
        self.count(Self::is_write).await
    }

    /// All calls except watches.
    pub async fn calls(&self) -> u64 {
        self.count(|line| !line.contains("verb=\"watch\"")).await
    }

    /// Writes by verb and resource, for a person to read.
    pub async fn writes_by_kind(&self) -> String {
        let text = self.ask("/metrics").await;
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("flux_operator_api_calls_total{"));
        lines
            .filter(|line| Self::is_write(line))
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// The sum of the calls in the lines of the metrics for which `counts` is true.
    async fn count(&self, counts: impl Fn(&str) -> bool) -> u64 {
        let text = self.ask("/metrics").await;
        let lines = text
            .lines()
            .filter(|line| line.starts_with("flux_operator_api_calls_total{") && counts(line));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    }

    /// Waits until the operator has made no call for 5 s, except watches.
    pub async fn until_quiet(&self) {
        let begin = Instant::now();
        while self.calls_in(Duration::from_secs(5)).await > 0 {
            assert!(begin.elapsed() < DEADLINE, "the operator does not become quiet");
        }
    }

    /// Waits for this time. Returns how many calls, without watches, the operator made meanwhile.
    pub async fn calls_in(&self, time: Duration) -> u64 {
        let before = self.calls().await;
        tokio::time::sleep(time).await;
        self.calls().await - before
    }

    /// Memory of the process in MiB, from /proc: `VmHWM` is the peak, `VmRSS` the present use.
    pub fn memory(&self, field: &str) -> u64 {
        self.0.memory_kib(field) / 1024
    }

    pub fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.pid())).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        // Fields 14 and 15, utime and stime, in hundredths of a second. Fields 1 and 2, pid and name, are cut off.
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        ticks as f64 / 100.0
    }
}

/// The number of objects. It lists one object, and the answer says how many remain.
pub async fn count<K>(api: &Api<K>) -> i64
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let first = api.list_metadata(&ListParams::default().limit(1)).await.unwrap();
    first.items.len() as i64 + first.metadata.remaining_item_count.unwrap_or(0)
}

fn manifest(namespace: &str, name: &str, size: u32) -> String {
    format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{size: {size}, containers: [{{image: 'app:1', command: hostname}}]}}\n"
    )
}

/// Creates the ConfigMap, the curve Secret and the Job that the operator would create for a MiniCluster. It creates
/// neither the MiniCluster nor the headless Service.
pub async fn create_by_hand(client: &Client, namespace: &str, name: &str, size: u32) {
    let cluster = validate(&manifest::parse(&manifest(namespace, name, size)).unwrap()).unwrap();
    let certificate = Certificate::from_keys(name, &[1; 32], &[2; 32]);
    let objects = objects(
        &cluster,
        &Options::default(),
        &RenderFacts::default(),
        certificate,
    )
    .unwrap();
    let post = PostParams::default();
    Api::<ConfigMap>::namespaced(client.clone(), namespace)
        .create(&post, &objects.config_map)
        .await
        .unwrap();
    // The first Secret is the curve Secret. This MiniCluster has no other.
    Api::<Secret>::namespaced(client.clone(), namespace)
        .create(&post, objects.secrets[0].expose())
        .await
        .unwrap();
    Api::<Job>::namespaced(client.clone(), namespace)
        .create(&post, &objects.job)
        .await
        .unwrap();
}

pub async fn create_cluster(client: &Client, namespace: &str, name: &str, size: u32) {
    let cluster: MiniCluster = serde_saphyr::from_str(&manifest(namespace, name, size)).unwrap();
    Api::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &cluster)
        .await
        .unwrap();
}
