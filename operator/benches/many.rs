//! Many MiniClusters against a real control plane without nodes, and in the same run a client that only
//! creates their ConfigMaps, Secrets and Jobs: `cargo bench -p flux-operator --bench many` (BENCH_N="100 2000" for
//! other numbers; BENCH_PART="rush paced size" selects parts).
//!
//! `rush`: 32 creations in flight, until all Jobs exist. `paced`: four in flight, until every MiniCluster has a
//! status that reports its Job. In both, the next creation begins when an earlier one is answered. `size`: the
//! writes for one MiniCluster, by its size. Without nodes no pod runs. A MiniCluster that becomes ready and ends has
//! more statuses (`--bench large`).
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

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{ListParams, ObjectMeta, PostParams, WatchParams};
use kube::core::WatchEvent;
use kube::{Api, Client, ResourceExt};
use plane::{
    DEADLINE, Operator, SIZE, client, control_plane, count, counted, create_by_hand, create_cluster,
};
use test_support::report::{Report, median, quantile, setting};

/// Creations in flight of the client of `rush`.
const RUSH: usize = 32;
/// Creations in flight of the client of `paced`, like a client with four threads.
const PACED: usize = 4;
/// MiniClusters of each size whose writes are counted.
const OF_A_SIZE: usize = 20;

fn main() {
    let numbers = std::env::var("BENCH_N").unwrap_or_else(|_| "100 1000".into());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut report = Report::new(include_str!("ranges.toml"));
    let numbers = numbers
        .split_whitespace()
        .map(|number| number.parse().expect("BENCH_N has numbers"));
    let wanted = |part: &str| std::env::var("BENCH_PART").map_or(true, |parts| parts.contains(part));
    for number in numbers {
        if wanted("rush") {
            runtime.block_on(rush(number, &mut report));
        }
        if wanted("paced") {
            runtime.block_on(paced(number, &mut report));
        }
    }
    for size in [4, 64] {
        if wanted("size") {
            runtime.block_on(of_size(size, &mut report));
        }
    }
    report.print("Many MiniClusters, without nodes");
}

/// Each round starts its own control planes, so that no pods of the round before remain.
async fn rush(number: usize, report: &mut Report) {
    // One measurement of a few hundred milliseconds is too noisy.
    let rounds = if number < 500 { 5 } else { 1 };
    let (mut baselines, mut alls) = (Vec::new(), Vec::new());
    for round in 1..=rounds {
        let plane = control_plane();
        let client = client(plane.kubeconfig_path()).await;
        let by_hand = |namespace| {
            let client = client.clone();
            move |name: String| {
                let client = client.clone();
                async move { create_by_hand(&client, namespace, &name, SIZE).await }
            }
        };
        // The first object is not measured: that of `with_operator` waits 2 s until the API server serves the new CRD.
        jobs_made(&client, "first", 1, RUSH, by_hand("first")).await;
        baselines.push(
            jobs_made(&client, "baseline", number, RUSH, by_hand("baseline"))
                .await
                .0
                .as_secs_f64(),
        );
        let pods = pods(&client, "baseline").await;
        drop(plane);
        if round == rounds {
            report.figure(&format!("rush-{number}-baseline-pods"), pods);
        }
        alls.push(with_operator(number, (round == rounds).then_some(&mut *report)).await);
    }
    let (baseline, all) = (median(&baselines), median(&alls));
    for (what, value) in [
        ("baseline-s", baseline),
        ("all-jobs-s", all),
        ("ratio", all / baseline),
    ] {
        report.figure(&format!("rush-{number}-{what}"), value);
    }
}

/// Seconds until the operator has created all Jobs. Adds the costs to the report, if one is given.
async fn with_operator(number: usize, report: Option<&mut Report>) -> f64 {
    let plane = control_plane();
    let client = client(plane.kubeconfig_path()).await;
    let (kubeconfig, bytes) = counted(plane.kubeconfig_path());
    let operator = Operator::start(&kubeconfig).await;
    let cluster = |namespace| {
        let client = client.clone();
        move |name: String| {
            let client = client.clone();
            async move { create_cluster(&client, namespace, &name, SIZE).await }
        }
    };
    jobs_made(&client, "first", 1, RUSH, cluster("first")).await;
    operator.until_quiet().await;
    let before = (
        operator.calls().await,
        operator.writes().await,
        bytes.load(Ordering::Relaxed),
    );
    let (all, times) = jobs_made(&client, "bench", number, RUSH, cluster("bench")).await;
    let Some(report) = report else {
        return all.as_secs_f64();
    };
    report.figure(&format!("rush-{number}-pods"), pods(&client, "bench").await);
    operator.until_quiet().await;
    let calls = operator.calls().await - before.0;
    let writes = operator.writes().await - before.1;
    let bytes = bytes.load(Ordering::Relaxed) - before.2;
    let idle = operator
        .calls_in(Duration::from_secs(setting("BENCH_IDLE_SECONDS", 60) as u64))
        .await;
    let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    for (what, value) in [
        ("create-to-job-p50-s", quantile(&times, 0.5)),
        ("create-to-job-p95-s", quantile(&times, 0.95)),
        ("create-to-job-p99-s", quantile(&times, 0.99)),
        ("calls-each", calls as f64 / number as f64),
        ("writes-each", writes as f64 / number as f64),
        ("kilobytes-each", bytes as f64 / 1e3 / number as f64),
        ("cpu-s", operator.cpu_seconds()),
        ("rss-peak-mib", operator.memory("VmHWM") as f64),
        ("rss-idle-mib", operator.memory("VmRSS") as f64),
        ("idle-calls", idle as f64),
    ] {
        report.figure(&format!("rush-{number}-{what}"), value);
    }
    all.as_secs_f64()
}

/// How many pods the Job controller has created so far. This work of the Job controller slows down everybody else.
async fn pods(client: &Client, namespace: &str) -> f64 {
    count(&Api::<Pod>::namespaced(client.clone(), namespace)).await as f64
}

/// Creates the namespace, and `number` objects with `create`. Returns the time until all Jobs exist, and the sorted
/// times from the creation of each object to its Job.
async fn jobs_made<F: Future<Output = ()>>(
    client: &Client,
    namespace: &str,
    number: usize,
    concurrency: usize,
    create: impl Fn(String) -> F,
) -> (Duration, Vec<Duration>) {
    let metadata = ObjectMeta {
        name: Some(namespace.into()),
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
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let begin = Instant::now();
    // kube accepts less than 295 s. "0": the watch begins with the objects that exist.
    let watch = async || {
        jobs.watch_metadata(&WatchParams::default().timeout(290), "0")
            .await
            .unwrap()
            .boxed()
    };
    let mut watched = watch().await;
    let made = async {
        let mut made: HashMap<String, Instant> = HashMap::new();
        while made.len() < number {
            let event = tokio::time::timeout(DEADLINE, watched.try_next())
                .await
                .expect("in time")
                .unwrap();
            match event {
                Some(WatchEvent::Added(job)) => drop(made.entry(job.name_any()).or_insert_with(Instant::now)),
                Some(_) => {}
                // The API server has ended the watch.
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
    let creating = creating.buffer_unordered(concurrency).collect::<Vec<_>>();
    let (made, begun) = tokio::join!(made, creating);
    let mut times: Vec<Duration> = begun.iter().map(|(name, begin)| made[name] - *begin).collect();
    times.sort();
    (made.values().max().unwrap().duration_since(begin), times)
}

/// Few creations in flight, as with most clients, until every MiniCluster has a status that reports its Job.
async fn paced(number: usize, report: &mut Report) {
    let plane = control_plane();
    let client = client(plane.kubeconfig_path()).await;
    let by_hand = |namespace| {
        let client = client.clone();
        move |name: String| {
            let client = client.clone();
            async move { create_by_hand(&client, namespace, &name, SIZE).await }
        }
    };
    jobs_made(&client, "first", 1, PACED, by_hand("first")).await;
    let (baseline, _) = jobs_made(&client, "baseline", number, PACED, by_hand("baseline")).await;
    drop(plane);

    let plane = control_plane();
    let client = plane::client(plane.kubeconfig_path()).await;
    let operator = Operator::start(plane.kubeconfig_path()).await;
    let cluster = |namespace| {
        let client = client.clone();
        move |name: String| {
            let client = client.clone();
            async move { create_cluster(&client, namespace, &name, SIZE).await }
        }
    };
    jobs_made(&client, "first", 1, PACED, cluster("first")).await;
    operator.until_quiet().await;
    let begin = Instant::now();
    let reporting = tokio::spawn(until_all_reported(client.clone(), "bench", number));
    let (jobs, times) = jobs_made(&client, "bench", number, PACED, cluster("bench")).await;
    reporting.await.unwrap();
    let all_reported = begin.elapsed();
    let times: Vec<f64> = times.iter().map(Duration::as_secs_f64).collect();
    for (what, value) in [
        ("baseline-s", baseline.as_secs_f64()),
        ("all-jobs-s", jobs.as_secs_f64()),
        ("all-statuses-s", all_reported.as_secs_f64()),
        ("ratio", all_reported.as_secs_f64() / baseline.as_secs_f64()),
        ("create-to-job-p99-s", quantile(&times, 0.99)),
    ] {
        report.figure(&format!("paced-{number}-{what}"), value);
    }
}

/// Waits until `number` MiniClusters of a namespace have a status that reports their Jobs.
async fn until_all_reported(client: Client, namespace: &str, number: usize) {
    let clusters: Api<MiniCluster> = Api::namespaced(client, namespace);
    // kube accepts less than 295 s. "0": the watch begins with the objects that exist.
    let watch = async || {
        clusters
            .watch(&WatchParams::default().timeout(290), "0")
            .await
            .unwrap()
            .boxed()
    };
    let mut watched = watch().await;
    let mut reported = HashSet::new();
    while reported.len() < number {
        match tokio::time::timeout(DEADLINE, watched.try_next())
            .await
            .expect("in time")
            .unwrap()
        {
            // The first status that reports a Job has a maximum size.
            Some(WatchEvent::Added(cluster) | WatchEvent::Modified(cluster)) => {
                if cluster
                    .status
                    .as_ref()
                    .is_some_and(|status| status.maximum_size.is_some())
                {
                    reported.insert(cluster.name_any());
                }
            }
            Some(_) => {}
            // The API server has ended the watch.
            None => watched = watch().await,
        }
    }
}

/// The writes for a MiniCluster of this size, until all its pods exist (they get no node).
async fn of_size(size: u32, report: &mut Report) {
    let plane = control_plane();
    let client = client(plane.kubeconfig_path()).await;
    let operator = Operator::start(plane.kubeconfig_path()).await;
    let cluster = |namespace| {
        let client = client.clone();
        move |name: String| {
            let client = client.clone();
            async move { create_cluster(&client, namespace, &name, size).await }
        }
    };
    jobs_made(&client, "first", 1, PACED, cluster("first")).await;
    operator.until_quiet().await;
    let before = operator.writes().await;
    jobs_made(&client, "bench", OF_A_SIZE, PACED, cluster("bench")).await;
    let pods: Api<Pod> = Api::namespaced(client, "bench");
    while pods
        .list_metadata(&ListParams::default())
        .await
        .unwrap()
        .items
        .len()
        < OF_A_SIZE * size as usize
    {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    operator.until_quiet().await;
    let writes = operator.writes().await - before;
    eprintln!(
        "  writes with size {size}, the first MiniCluster's too: {}",
        operator.writes_by_kind().await
    );
    report.figure(
        &format!("size-{size}-writes-each"),
        writes as f64 / OF_A_SIZE as f64,
    );
}
