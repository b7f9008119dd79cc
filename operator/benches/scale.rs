//! What grows with the number of MiniClusters or of pods, beside baselines of the same run:
//! `make bench-scale`. BENCH_PART="neighbours waiting running brownout deletion" selects parts.
//!
//! - `neighbours` (SCALE_PACED=1000): a client with four creations in flight, each of which waits for its
//!   answer. It creates MiniClusters in one namespace, in 100 namespaces, and in one namespace where each
//!   MiniCluster has its own headless Service. For comparison, a client creates ConfigMap, Secret and Job
//!   itself. The CPU time of the API server and of the controller manager is reported too.
//! - `waiting` (SCALE_CLUSTERS=10000): the operator starts among that many MiniClusters, all of which wait for
//!   a scheduler that does not exist. The bench reports the time until its caches are synced (compared with
//!   `kubectl get pods -A`), its memory, and its calls in a minute (it reads events at most ten times a second).
//! - `running` (SCALE_CLUSTERS=10000): the same while all pods run on fake nodes (`kubelets.rs`), and its memory
//!   after all MiniClusters are deleted.
//! - `brownout` (SCALE_SLOW=2000): that many MiniClusters whose objects an admission webhook delays for 30 s,
//!   compared with as many that nothing delays.
//! - `deletion` (SCALE_PODS=5000): one MiniCluster with that many pods is deleted.
//!
//! Pods run only in `running`.
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

mod kubelets;
#[allow(dead_code, reason = "shared with other benches")]
mod plane;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use kubelets::Kubelets;
use plane::{DEADLINE, Operator, SIZE, client, control_plane, count, create_by_hand, create_cluster};
use test_support::control_plane::ControlPlane;
use test_support::report::{Report, setting};

/// Creations in flight where the speed of the creations is measured.
const PACED: usize = 4;
/// Creations in flight where their speed is not measured.
const RUSH: usize = 32;
/// Namespaces over which the MiniClusters are spread.
const NAMESPACES: usize = 100;
/// Long enough for the operator to reconcile every MiniCluster, and to return freed memory.
const SETTLING: Duration = Duration::from_secs(60);

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut report = Report::new(include_str!("ranges.toml"));
    let wanted = |part: &str| std::env::var("BENCH_PART").map_or(true, |parts| parts.contains(part));
    runtime.block_on(async {
        if wanted("neighbours") {
            neighbours(setting("SCALE_PACED", 1000), &mut report).await;
        }
        let (waiting, running) = (wanted("waiting"), wanted("running"));
        if waiting || running {
            let number = setting("SCALE_CLUSTERS", 10_000);
            start_among(number, waiting, running, &mut report).await;
        }
        if wanted("brownout") {
            brownout(setting("SCALE_SLOW", 2000), &mut report).await;
        }
        if wanted("deletion") {
            deletion(setting("SCALE_PODS", 5000), &mut report).await;
        }
    });
    report.print("What grows with the number of MiniClusters");
}

/// A new control plane, and a client for it.
async fn started() -> (ControlPlane, Client) {
    let plane = control_plane();
    let client = client(plane.kubeconfig_path()).await;
    (plane, client)
}

async fn make_namespaces(client: &Client, count: usize) {
    for number in 0..count {
        let metadata = ObjectMeta {
            name: Some(format!("bench-{number}")),
            ..ObjectMeta::default()
        };
        let object = Namespace {
            metadata,
            ..Namespace::default()
        };
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }
}

/// Creates `number` objects, spread over the namespaces in turn.
async fn create<F: Future<Output = ()>>(
    number: usize,
    namespaces: usize,
    concurrency: usize,
    create: impl Fn(String, String) -> F,
) {
    let all = (0..number).map(|i| create(format!("bench-{}", i % namespaces), format!("mc-{i}")));
    futures::stream::iter(all)
        .buffer_unordered(concurrency)
        .collect::<Vec<_>>()
        .await;
}

async fn wait_for_jobs(client: &Client, number: usize) {
    let jobs: Api<Job> = Api::all(client.clone());
    let begin = Instant::now();
    loop {
        let made = count(&jobs).await;
        if made >= number as i64 {
            return;
        }
        assert!(begin.elapsed() < DEADLINE * 10, "{made} of {number} Jobs");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until there are that many pods. No reported duration includes this wait: it depends on the Job controller, too.
async fn wait_for_pods(client: &Client, number: i64) {
    let begin = Instant::now();
    let pods: Api<Pod> = Api::all(client.clone());
    while count(&pods).await < number {
        assert!(begin.elapsed() < DEADLINE * 10, "the pods do not come");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn neighbours(number: usize, report: &mut Report) {
    let mut baselines = BTreeMap::new();
    // The operator's arguments. None: no operator runs, and the client creates the operator's objects itself.
    for (what, namespaces, arguments) in [
        ("client", 1, None),
        ("one-namespace", 1, Some(&[][..])),
        ("100-namespaces", NAMESPACES, Some(&[][..])),
        ("own-service", 1, Some(&["--headless-name=minicluster"][..])),
    ] {
        let (plane, client) = started().await;
        make_namespaces(&client, namespaces).await;
        let operator = match arguments {
            Some(arguments) => Some(Operator::start_with(plane.kubeconfig_path(), arguments).await),
            None => None,
        };
        let cpu = |program| plane.cpu_seconds(program).unwrap();
        let before = (cpu("kube-apiserver"), cpu("kube-controller-manager"));
        let begin = Instant::now();
        let make = async |namespace: String, name: String| match operator {
            Some(_) => create_cluster(&client, &namespace, &name, SIZE).await,
            None => create_by_hand(&client, &namespace, &name, SIZE).await,
        };
        create(number, namespaces, PACED, make).await;
        wait_for_jobs(&client, number).await;
        let time = begin.elapsed().as_secs_f64();
        wait_for_pods(&client, number as i64 * i64::from(SIZE)).await;
        // The controllers still work for the last pods. Their CPU time for that counts too.
        tokio::time::sleep(Duration::from_secs(5)).await;
        for (figure, value) in [
            ("s", time),
            ("api-server-cpu-s", cpu("kube-apiserver") - before.0),
            ("controllers-cpu-s", cpu("kube-controller-manager") - before.1),
        ] {
            report.figure(&format!("paced-{number}-{what}-{figure}"), value);
            // The first row, `client`, is the baseline.
            let baseline = *baselines.entry(figure).or_insert(value);
            if what != "client" {
                report.figure(&format!("paced-{number}-{what}-{figure}-ratio"), value / baseline);
            }
        }
        if let Some(operator) = operator {
            report.figure(
                &format!("paced-{number}-{what}-operator-cpu-s"),
                operator.cpu_seconds(),
            );
        }
    }
}

/// Starts the operator among `number` MiniClusters: while all wait (if `waiting`), and while all run (if `running`).
async fn start_among(number: usize, waiting: bool, running: bool, report: &mut Report) {
    let (plane, client) = started().await;
    make_namespaces(&client, NAMESPACES).await;
    let mut operator = Operator::start(plane.kubeconfig_path()).await;
    let make = async |namespace: String, name: String| create_cluster(&client, &namespace, &name, SIZE).await;
    create(number, NAMESPACES, RUSH, make).await;
    wait_for_jobs(&client, number).await;
    wait_for_pods(&client, number as i64 * i64::from(SIZE)).await;
    if waiting {
        // This does not wait until the operator is quiet: the operator reads the events of waiting MiniClusters, ten a
        // second.
        tokio::time::sleep(SETTLING).await;
        operator = start_again(operator, &plane, &format!("restart-{number}"), report).await;
    }
    if !running {
        return;
    }
    let kubelets = Kubelets::start(plane.kubeconfig_path()).await;
    kubelets.run_all().await;
    tokio::time::sleep(SETTLING).await;
    operator = start_again(operator, &plane, &format!("restart-{number}-running"), report).await;
    for namespace in 0..NAMESPACES {
        let clusters: Api<MiniCluster> = Api::namespaced(client.clone(), &format!("bench-{namespace}"));
        clusters
            .delete_collection(&DeleteParams::background(), &ListParams::default())
            .await
            .unwrap();
    }
    let begin = Instant::now();
    while count(&Api::<Pod>::all(client.clone())).await > 0 {
        assert!(begin.elapsed() < DEADLINE * 10, "the pods do not go");
        kubelets.end_all().await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    // The operator returns freed memory twice a minute.
    tokio::time::sleep(SETTLING).await;
    report.figure(
        &format!("restart-{number}-rss-after-deletion-mib"),
        operator.memory("VmRSS") as f64,
    );
}

/// Reports how large the operator has grown, and the costs of another one that starts in its place.
async fn start_again(operator: Operator, plane: &ControlPlane, what: &str, report: &mut Report) -> Operator {
    let mut figure = |name: &str, value: f64| report.figure(&format!("{what}-{name}"), value);
    figure("grown-rss-peak-mib", operator.memory("VmHWM") as f64);
    figure("grown-rss-idle-mib", operator.memory("VmRSS") as f64);
    drop(operator);
    let begin = Instant::now();
    let lines = plane.kubectl(&["get", "pods", "-A"]).unwrap().lines().count();
    let baseline = begin.elapsed().as_secs_f64();
    // One line is the header.
    figure("pods", (lines - 1) as f64);
    let begin = Instant::now();
    let operator = Operator::start(plane.kubeconfig_path()).await;
    let synced = begin.elapsed().as_secs_f64();
    figure("kubectl-s", baseline);
    figure("synced-s", synced);
    figure("ratio", synced / baseline);
    tokio::time::sleep(SETTLING).await;
    let calls = operator.calls_in(Duration::from_secs(60)).await;
    figure("calls-in-a-minute", calls as f64);
    figure("rss-peak-mib", operator.memory("VmHWM") as f64);
    figure("rss-idle-mib", operator.memory("VmRSS") as f64);
    operator
}

/// The operator's peak memory, as a ratio to the same MiniClusters without the webhook.
async fn brownout(number: usize, report: &mut Report) {
    let baseline = memory_of_many(number, false, report).await;
    let peak = memory_of_many(number, true, report).await;
    report.figure(&format!("brownout-{number}-rss-peak-mib"), peak);
    report.figure(&format!("brownout-{number}-rss-ratio"), peak / baseline);
}

/// The operator's peak memory in MiB. With `is_held_up`, an admission webhook accepts connections and never
/// answers.
async fn memory_of_many(number: usize, is_held_up: bool, report: &mut Report) -> f64 {
    let (plane, client) = started().await;
    make_namespaces(&client, NAMESPACES).await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    if is_held_up {
        let rule = "{apiGroups: ['*'], apiVersions: ['*'], operations: [CREATE], resources: [configmaps, secrets, jobs]}";
        plane
            .apply(&format!(
                "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n\
                 metadata: {{name: silent}}\nwebhooks: [{{name: silent.example.com, sideEffects: None, timeoutSeconds: 30,\n\
                 admissionReviewVersions: [v1], failurePolicy: Ignore, rules: [{rule}],\n\
                 clientConfig: {{url: 'https://{}/'}}}}]\n",
                silent.local_addr().unwrap()
            ))
            .unwrap();
        // The API server calls a new webhook only after a moment.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let operator = Operator::start(plane.kubeconfig_path()).await;
    let make = async |namespace: String, name: String| create_cluster(&client, &namespace, &name, SIZE).await;
    create(number, NAMESPACES, RUSH, make).await;
    tokio::time::sleep(Duration::from_secs(setting("SCALE_BROWNOUT_SECONDS", 120) as u64)).await;
    if is_held_up {
        let jobs = count(&Api::<Job>::all(client.clone())).await;
        report.figure(&format!("brownout-{number}-jobs"), jobs as f64);
    }
    operator.memory("VmHWM") as f64
}

/// Reports how long it takes until all pods are told to end: of a deleted Job, and of a deleted MiniCluster.
async fn deletion(size: usize, report: &mut Report) {
    let (plane, client) = started().await;
    make_namespaces(&client, 1).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "bench-0");
    let number = u32::try_from(size).unwrap();
    create_by_hand(&client, "bench-0", "job", number).await;
    wait_for_pods(&client, size as i64).await;
    let baseline = until_told_to_end::<Job>(&client, "job", &pods).await;
    until_gone(&pods).await;
    let operator = Operator::start(plane.kubeconfig_path()).await;
    create_cluster(&client, "bench-0", "mc", number).await;
    wait_for_pods(&client, size as i64).await;
    operator.until_quiet().await;
    let calls = operator.calls().await;
    let time = until_told_to_end::<MiniCluster>(&client, "mc", &pods).await;
    for (what, value) in [("job-s", baseline), ("s", time), ("ratio", time / baseline)] {
        report.figure(&format!("deletion-{size}-{what}"), value);
    }
    operator.until_quiet().await;
    report.figure(
        &format!("deletion-{size}-calls"),
        (operator.calls().await - calls) as f64,
    );
    report.figure(
        &format!("deletion-{size}-rss-peak-mib"),
        operator.memory("VmHWM") as f64,
    );
}

/// Deletes the object with background propagation. Returns the seconds until each pod has been told to end.
async fn until_told_to_end<K>(client: &Client, name: &str, pods: &Api<Pod>) -> f64
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let begin = Instant::now();
    Api::<K>::namespaced(client.clone(), "bench-0")
        .delete(name, &DeleteParams::background())
        .await
        .unwrap();
    loop {
        let remaining = pods.list_metadata(&ListParams::default()).await.unwrap().items;
        if remaining
            .iter()
            .all(|pod| pod.metadata.deletion_timestamp.is_some())
        {
            return begin.elapsed().as_secs_f64();
        }
        assert!(begin.elapsed() < DEADLINE, "{} pods stay", remaining.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn until_gone(pods: &Api<Pod>) {
    let begin = Instant::now();
    let first = ListParams::default().limit(1);
    while !pods.list_metadata(&first).await.unwrap().items.is_empty() {
        assert!(begin.elapsed() < DEADLINE * 10, "the pods do not go");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
