//! Counters for Prometheus. Every label comes from a closed set, so that the number of series is bounded.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds.
const SHORT: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];
const LONG: [f64; 8] = [1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// The kinds that are told apart among API calls.
const RESOURCES: [&str; 11] = [
    "configmaps",
    "deployments",
    "events",
    "jobs",
    "leases",
    "miniclusters",
    "miniclusters/status",
    "pods",
    "pods/status",
    "secrets",
    "services",
];
/// The phases of MiniClusters.
const PHASES: [&str; 8] =
    ["Completed", "Failed", "Invalid", "Pending", "Running", "Starting", "Suspended", "Terminating"];

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// Only a change by somebody helps.
    Obstacle,
    Error,
    /// A defect of ours.
    Panic,
}

/// What is counted.
#[derive(Debug, Default)]
pub struct Metrics {
    reconciles: [AtomicU64; 4],
    duration: Histogram,
    time_to_ready: Histogram,
    /// By verb, resource and class of the answer.
    calls: Mutex<BTreeMap<(&'static str, &'static str, &'static str), u64>>,
    leads: AtomicBool,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; 8],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, bounds: &[f64; 8], value: Duration) {
        let seconds = value.as_secs_f64();
        for (bucket, _) in self.buckets.iter().zip(bounds).filter(|(_, bound)| seconds <= **bound) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(value.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str, bounds: &[f64; 8]) -> std::fmt::Result {
        head(out, name, help, "histogram")?;
        for (bucket, bound) in self.buckets.iter().zip(bounds) {
            writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {}", bucket.load(Ordering::Relaxed))?;
        }
        let count = self.count.load(Ordering::Relaxed);
        writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}")?;
        writeln!(out, "{name}_sum {}", self.micros.load(Ordering::Relaxed) as f64 / 1e6)?;
        writeln!(out, "{name}_count {count}")
    }
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) -> std::fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

fn known<const N: usize>(word: &str, words: [&'static str; N]) -> &'static str {
    words.into_iter().find(|known| *known == word).unwrap_or("other")
}

impl Metrics {
    pub fn reconciled(&self, outcome: Outcome, took: Duration) {
        if let Some(counter) = self.reconciles.get(outcome as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        self.duration.observe(&SHORT, took);
    }

    /// A MiniCluster became ready so long after it was made.
    pub fn ready_after(&self, time: Duration) {
        self.time_to_ready.observe(&LONG, time);
    }

    pub fn leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// An API call and its answer; none: there was no answer.
    pub fn called(&self, method: &str, path: &str, is_watch: bool, status: Option<u16>) {
        let (resource, has_name) = resource(path);
        let verb = match method {
            "GET" if is_watch => "watch",
            "GET" if has_name => "get",
            "GET" => "list",
            "POST" => "create",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "other",
        };
        let class = match status {
            Some(200..=299) => "2xx",
            Some(409) => "409",
            Some(400..=499) => "4xx",
            Some(500..) => "5xx",
            _ => "none",
        };
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry((verb, known(&resource, RESOURCES), class)).or_default() += 1;
    }

    /// Prometheus' text format. `phases` are those of the MiniClusters that there are.
    pub fn text<'a>(&self, phases: impl Iterator<Item = &'a str>) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, phases);
        out
    }

    fn write<'a>(&self, out: &mut String, phases: impl Iterator<Item = &'a str>) -> std::fmt::Result {
        head(out, "flux_operator_reconciles_total", "Reconciles, by how they ended.", "counter")?;
        for (outcome, counter) in ["success", "obstacle", "error", "panic"].iter().zip(&self.reconciles) {
            let count = counter.load(Ordering::Relaxed);
            writeln!(out, "flux_operator_reconciles_total{{outcome=\"{outcome}\"}} {count}")?;
        }
        self.duration.write(out, "flux_operator_reconcile_seconds", "Time of a reconcile.", &SHORT)?;
        let help = "Time from the creation of a MiniCluster until it is ready.";
        self.time_to_ready.write(out, "flux_operator_time_to_ready_seconds", help, &LONG)?;
        head(out, "flux_operator_api_calls_total", "Calls to the API server.", "counter")?;
        for ((verb, resource, code), count) in &*self.calls.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels = format!("verb=\"{verb}\",resource=\"{resource}\",code=\"{code}\"");
            writeln!(out, "flux_operator_api_calls_total{{{labels}}} {count}")?;
        }
        let mut numbers: BTreeMap<&str, u64> = PHASES.into_iter().map(|phase| (phase, 0)).collect();
        for phase in phases {
            *numbers.entry(known(phase, PHASES)).or_default() += 1;
        }
        head(out, "flux_operator_miniclusters", "MiniClusters, by phase.", "gauge")?;
        for (phase, count) in numbers {
            writeln!(out, "flux_operator_miniclusters{{phase=\"{phase}\"}} {count}")?;
        }
        head(out, "flux_operator_leader", "1: this process leads.", "gauge")?;
        writeln!(out, "flux_operator_leader {}", u8::from(self.leads.load(Ordering::Relaxed)))
    }
}

/// The resource (with its subresource) of an API path, and whether the path names one object.
pub fn resource(path: &str) -> (String, bool) {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => return (String::new(), false),
    };
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    match rest {
        [resource] => ((*resource).to_owned(), false),
        [resource, _] => ((*resource).to_owned(), true),
        [resource, _, subresource, ..] => (format!("{resource}/{subresource}"), true),
        [] => (String::new(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_resources() {
        for (path, wanted, named) in [
            ("/api/v1/namespaces/a/pods", "pods", false),
            ("/api/v1/pods", "pods", false),
            ("/apis/batch/v1/namespaces/a/jobs/b", "jobs", true),
            ("/apis/flux-framework.org/v1alpha2/namespaces/a/miniclusters/b/status", "miniclusters/status", true),
            ("/version", "", false),
        ] {
            assert_eq!(resource(path), (wanted.to_owned(), named), "{path}");
        }
    }

    #[test]
    fn what_happened_can_be_read_and_labels_are_closed() {
        let metrics = Metrics::default();
        metrics.reconciled(Outcome::Obstacle, Duration::from_millis(3));
        metrics.ready_after(Duration::from_secs(4));
        metrics.called("POST", "/api/v1/namespaces/a/secrets", false, Some(201));
        metrics.called("GET", "/apis/x/v1/strange/b", false, None);
        metrics.leads(true);
        let text = metrics.text(["Running", "Running", "Nonsense"].into_iter());
        for line in [
            "flux_operator_reconciles_total{outcome=\"obstacle\"} 1",
            "flux_operator_reconcile_seconds_bucket{le=\"0.001\"} 0",
            "flux_operator_reconcile_seconds_bucket{le=\"0.005\"} 1",
            "flux_operator_reconcile_seconds_count 1",
            "flux_operator_time_to_ready_seconds_bucket{le=\"5\"} 1",
            "flux_operator_api_calls_total{verb=\"create\",resource=\"secrets\",code=\"2xx\"} 1",
            "flux_operator_api_calls_total{verb=\"get\",resource=\"other\",code=\"none\"} 1",
            "flux_operator_miniclusters{phase=\"Running\"} 2",
            "flux_operator_miniclusters{phase=\"other\"} 1",
            "flux_operator_miniclusters{phase=\"Failed\"} 0",
            "flux_operator_leader 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
