//! The operator's metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use flux_operator_core::labels;
use flux_shared::phase::Phase;
use prometheus::Result;

use super::families;
use super::process::Process;
use super::queue::QueueSnapshot;
use super::registry::{Counter, Gauge, Histogram, MetricRegistry};
use crate::api::server_clock::ServerClock;

/// Values of the label `resource` of API calls; any other resource counts as `other`. These are all resources that
/// the operator uses, whatever their API group. `apis` are the lists of APIs.
const RESOURCES: [&str; 21] = [
    "apis",
    "configmaps",
    "deployments",
    "events",
    "jobs",
    "jobs/status",
    "leases",
    "miniclusters",
    "miniclusters/status",
    "networkpolicies",
    "nodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "podgroups",
    "pods",
    "pods/status",
    "secrets",
    "services",
    "storageclasses",
    "version",
    "workloads",
];
/// Values of the label `method`; any other method counts as `other`.
const METHODS: [&str; 5] = ["DELETE", "GET", "PATCH", "POST", "PUT"];
/// The value of the labels `controller` and `name`: there is one controller and one queue.
const CONTROLLER: &str = "minicluster";

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileOutcome {
    /// It succeeded, or waits for something that ends by itself.
    Success,
    /// It failed because of an obstacle that does not pass by itself, or because the namespace is being deleted. A
    /// retry alone does not help.
    Obstacle,
    Error,
    /// It panicked: a bug in the operator.
    Panic,
}

/// State that is read when the metrics are scraped.
#[derive(Debug, Default)]
pub struct LiveState<P> {
    pub is_ready: bool,
    pub queue: QueueSnapshot,
    /// The phase of each MiniCluster.
    pub phases: P,
}

/// The operator's metrics.
#[derive(Debug)]
pub struct Metrics {
    /// No metric. It is here because the client and the reconciles share the metrics.
    pub server_clock: ServerClock,
    registry: MetricRegistry,
    process: Process,
    reconciles: Counter,
    errors: Counter,
    terminal_errors: Counter,
    panics: Counter,
    reconcile_time: Histogram,
    adds: Counter,
    retries: Counter,
    queue_time: Histogram,
    workers: Gauge,
    depth: Gauge,
    oldest: Gauge,
    longest_work: Gauge,
    unfinished_work: Gauge,
    requests: Counter,
    request_time: Histogram,
    calls: Counter,
    leads: Gauge,
    time_to_ready: Histogram,
    miniclusters: Gauge,
}

/// `word` if it is one of `words`, else `other`.
fn known_or_other<const N: usize>(word: &str, words: [&'static str; N]) -> &'static str {
    words.into_iter().find(|known| *known == word).unwrap_or("other")
}

impl Metrics {
    /// Registers all metrics. It fails only if the table of families has a mistake.
    pub fn new() -> Result<Metrics> {
        let registry = MetricRegistry::default();
        // The values of the label `controller`, and of the labels `controller` and `name`.
        let controller = &[CONTROLLER];
        let queue = &[CONTROLLER, CONTROLLER];
        let metrics = Metrics {
            server_clock: ServerClock::default(),
            process: Process::new(&registry, "operator")?,
            reconciles: registry
                .counter(&families::RECONCILES)?
                .with_series(&[CONTROLLER, "success"])
                .with_series(&[CONTROLLER, "error"]),
            errors: registry.counter(&families::ERRORS)?.with_series(controller),
            terminal_errors: registry
                .counter(&families::TERMINAL_ERRORS)?
                .with_series(controller),
            panics: registry.counter(&families::PANICS)?.with_series(controller),
            reconcile_time: registry
                .histogram(&families::RECONCILE_TIME)?
                .with_series(controller),
            adds: registry.counter(&families::ADDS)?.with_series(queue),
            retries: registry.counter(&families::RETRIES)?.with_series(queue),
            queue_time: registry.histogram(&families::QUEUE_TIME)?.with_series(queue),
            workers: registry.gauge(&families::WORKERS)?,
            depth: registry.gauge(&families::DEPTH)?,
            oldest: registry.gauge(&families::OLDEST)?,
            longest_work: registry.gauge(&families::LONGEST_WORK)?,
            unfinished_work: registry.gauge(&families::UNFINISHED_WORK)?,
            requests: registry.counter(&families::REQUESTS)?,
            request_time: registry.histogram(&families::REQUEST_TIME)?,
            calls: registry.counter(&families::CALLS)?,
            leads: registry.gauge(&families::LEADS)?,
            time_to_ready: registry.histogram(&families::TIME_TO_READY)?.with_series(&[]),
            miniclusters: registry.gauge(&families::MINICLUSTERS)?,
            registry,
        };
        metrics.set_leader(false);
        Ok(metrics)
    }

    /// Counts a reconcile that has ended.
    pub fn reconciled(&self, outcome: ReconcileOutcome, took: Duration) {
        let result = if outcome == ReconcileOutcome::Success {
            "success"
        } else {
            "error"
        };
        self.reconciles.count(&[CONTROLLER, result]);
        match outcome {
            ReconcileOutcome::Success => {}
            ReconcileOutcome::Error => self.errors.count(&[CONTROLLER]),
            ReconcileOutcome::Obstacle => {
                self.errors.count(&[CONTROLLER]);
                self.terminal_errors.count(&[CONTROLLER]);
            }
            ReconcileOutcome::Panic => {
                self.errors.count(&[CONTROLLER]);
                self.panics.count(&[CONTROLLER]);
            }
        }
        self.reconcile_time.observe(&[CONTROLLER], took.as_secs_f64());
    }

    /// Counts a MiniCluster that was put into the queue.
    pub fn queued(&self) {
        self.adds.count(&[CONTROLLER, CONTROLLER]);
    }

    /// Records that a MiniCluster left the queue to be reconciled; `waited` is its time in the queue.
    pub fn dequeued_after(&self, waited: Duration) {
        self.queue_time
            .observe(&[CONTROLLER, CONTROLLER], waited.as_secs_f64());
    }

    /// Counts a MiniCluster that is queued again because its reconcile failed.
    pub fn retried(&self) {
        self.retries.count(&[CONTROLLER, CONTROLLER]);
    }

    /// Records that a MiniCluster became ready; `age` is the time since its creation.
    pub fn ready_after(&self, age: Duration) {
        self.time_to_ready.observe(&[], age.as_secs_f64());
    }

    /// Records whether this process leads.
    pub fn set_leader(&self, leads: bool) {
        self.leads.set(&[labels::MANAGER], f64::from(u8::from(leads)));
    }

    /// Records an API call that has ended. `path` is the path of its URL. `status` is None if there was no answer.
    pub fn called(&self, method: &str, path: &str, is_watch: bool, status: Option<u16>, took: Duration) {
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
        self.calls
            .count(&[verb, known_or_other(&resource, RESOURCES), class]);
        // A number that is no HTTP status counts as no answer here, so that the number of series is bounded.
        let code = status
            .filter(|code| (100..600).contains(code))
            .map(|code| code.to_string());
        self.requests.count(&[
            code.as_deref().unwrap_or("<error>"),
            known_or_other(method, METHODS),
        ]);
        // The answer to a watch begins at once, so its time says nothing about the API server's latency.
        if !is_watch {
            self.request_time.observe(&[verb], took.as_secs_f64());
        }
    }

    /// All metrics in Prometheus' text format.
    pub fn text<'a>(&self, state: LiveState<impl Iterator<Item = &'a str>>) -> String {
        self.process.update(state.is_ready);
        let (snapshot, queue_labels) = (state.queue, &[CONTROLLER, CONTROLLER]);
        self.depth.set(queue_labels, snapshot.depth as f64);
        self.oldest.set(&[], snapshot.oldest.as_secs_f64());
        self.workers.set(&[CONTROLLER], snapshot.workers as f64);
        self.longest_work
            .set(queue_labels, snapshot.longest.as_secs_f64());
        self.unfinished_work
            .set(queue_labels, snapshot.unfinished.as_secs_f64());
        // A phase without MiniClusters is set to 0: else it would keep its last value.
        let mut counts: BTreeMap<&str, u32> = Phase::ALL.map(|phase| (phase.as_str(), 0)).into();
        counts.insert("other", 0);
        for phase in state.phases {
            *counts
                .entry(Phase::parse(phase).map_or("other", Phase::as_str))
                .or_default() += 1;
        }
        for (phase, count) in counts {
            self.miniclusters.set(&[phase], f64::from(count));
        }
        self.registry.text()
    }
}

/// The resource (with its subresource) of an API path, and whether the path names one object:
/// `/api/v1/namespaces/a/pods/b/status` is (`pods/status`, true). Empty for other paths.
fn resource(path: &str) -> (String, bool) {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let rest = match parts.as_slice() {
        // The lists of APIs.
        ["api" | "apis"] | ["api", _] | ["apis", _, _] => return ("apis".to_owned(), false),
        ["version"] => return ("version".to_owned(), false),
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => return (String::new(), false),
    };
    // A path that ends with the namespace names the namespace itself.
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
    fn api_path_yields_its_resource() {
        for (path, wanted, has_name) in [
            ("/api/v1/namespaces/a/pods", "pods", false),
            ("/api/v1/pods", "pods", false),
            ("/apis/batch/v1/namespaces/a/jobs/b", "jobs", true),
            (
                "/apis/flux-framework.org/v1alpha2/namespaces/a/miniclusters/b/status",
                "miniclusters/status",
                true,
            ),
            ("/version", "version", false),
            ("/apis", "apis", false),
            ("/apis/scheduling.k8s.io/v1alpha1", "apis", false),
            ("/openapi/v3", "", false),
        ] {
            assert_eq!(resource(path), (wanted.to_owned(), has_name), "{path}");
        }
    }

    #[test]
    fn operator_metrics_count_events_under_a_closed_set_of_labels() {
        let metrics = Metrics::new().unwrap();
        metrics.reconciled(ReconcileOutcome::Obstacle, Duration::from_millis(3));
        metrics.reconciled(ReconcileOutcome::Panic, Duration::from_millis(3));
        metrics.queued();
        metrics.dequeued_after(Duration::from_millis(30));
        metrics.retried();
        metrics.ready_after(Duration::from_secs(4));
        metrics.called(
            "POST",
            "/api/v1/namespaces/a/secrets",
            false,
            Some(201),
            Duration::from_millis(2),
        );
        metrics.called(
            "GET",
            "/apis/x/v1/strange/b",
            false,
            None,
            Duration::from_secs(65),
        );
        metrics.called(
            "GET",
            "/apis/kueue.x-k8s.io/v1beta2/namespaces/a/workloads",
            false,
            Some(200),
            Duration::ZERO,
        );
        metrics.called(
            "GET",
            "/apis/scheduling.k8s.io/v1beta1",
            false,
            Some(503),
            Duration::ZERO,
        );
        metrics.called("GET", "/api/v1/pods", true, Some(200), Duration::from_secs(9));
        metrics.called("BREW", "/api/v1/pods", false, Some(999), Duration::ZERO);
        metrics.set_leader(true);
        let snapshot = QueueSnapshot {
            depth: 3,
            oldest: Duration::from_secs(7),
            workers: 2,
            ..QueueSnapshot::default()
        };
        let phases = ["Running", "Running", "Nonsense"].into_iter();
        let text = metrics.text(LiveState {
            is_ready: true,
            queue: snapshot,
            phases,
        });
        for line in [
            "flux_operator_ready{component=\"operator\"} 1",
            "controller_runtime_reconcile_total{controller=\"minicluster\",result=\"success\"} 0",
            "controller_runtime_reconcile_total{controller=\"minicluster\",result=\"error\"} 2",
            "controller_runtime_reconcile_errors_total{controller=\"minicluster\"} 2",
            "controller_runtime_terminal_reconcile_errors_total{controller=\"minicluster\"} 1",
            "controller_runtime_reconcile_panics_total{controller=\"minicluster\"} 1",
            "controller_runtime_reconcile_time_seconds_bucket{controller=\"minicluster\",le=\"0.001\"} 0",
            "controller_runtime_reconcile_time_seconds_bucket{controller=\"minicluster\",le=\"0.005\"} 2",
            "controller_runtime_reconcile_time_seconds_count{controller=\"minicluster\"} 2",
            "controller_runtime_active_workers{controller=\"minicluster\"} 2",
            "workqueue_adds_total{controller=\"minicluster\",name=\"minicluster\"} 1",
            "workqueue_depth{controller=\"minicluster\",name=\"minicluster\"} 3",
            "workqueue_queue_duration_seconds_bucket{controller=\"minicluster\",name=\"minicluster\",le=\"0.1\"} 1",
            "workqueue_retries_total{controller=\"minicluster\",name=\"minicluster\"} 1",
            "flux_operator_queue_oldest_seconds 7",
            "flux_operator_time_to_ready_seconds_bucket{le=\"5\"} 1",
            "rest_client_requests_total{code=\"201\",method=\"POST\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"other\"} 1",
            "rest_client_request_duration_seconds_count{verb=\"get\"} 1",
            "flux_operator_api_calls_total{code=\"2xx\",resource=\"secrets\",verb=\"create\"} 1",
            "flux_operator_api_calls_total{code=\"none\",resource=\"other\",verb=\"get\"} 1",
            "flux_operator_api_calls_total{code=\"2xx\",resource=\"workloads\",verb=\"list\"} 1",
            "flux_operator_api_calls_total{code=\"5xx\",resource=\"apis\",verb=\"list\"} 1",
            "flux_operator_api_calls_total{code=\"2xx\",resource=\"pods\",verb=\"watch\"} 1",
            "flux_operator_miniclusters{phase=\"Running\"} 2",
            "flux_operator_miniclusters{phase=\"other\"} 1",
            "flux_operator_miniclusters{phase=\"Failed\"} 0",
            "leader_election_master_status{name=\"flux-framework-flux-operator\"} 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(!text.contains("verb=\"watch\",le"), "a watch is not timed");
        let text = metrics.text(LiveState {
            is_ready: false,
            queue: QueueSnapshot::default(),
            phases: std::iter::empty(),
        });
        assert!(
            text.contains("flux_operator_miniclusters{phase=\"other\"} 0\n"),
            "a phase without MiniClusters counts 0"
        );
    }

    #[test]
    fn operator_serves_every_family() {
        let metrics = Metrics::new().unwrap();
        metrics.called("GET", "/api/v1/pods", false, Some(200), Duration::ZERO);
        let text = metrics.text(LiveState {
            is_ready: true,
            queue: QueueSnapshot::default(),
            phases: std::iter::empty(),
        });
        families::assert_complete(&text, families::Processes::Operator);
    }
}
