//! All metrics in one table. The code registers them from it, the reference page is generated from it, and tests
//! check the alerts and the dashboard against it.
//!
//! Metrics that controller-runtime or client-go also have use their names, as other operators do. The values of
//! every label are a closed set, and no label names an object, so the number of series is bounded.

/// The type of a metric. Histograms have the upper bounds of their buckets, in the family's unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

impl Kind {
    /// Prometheus' name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// The processes that have the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processes {
    Both,
    Operator,
    Webhook,
}

/// A metric: its name, help, type and labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub processes: Processes,
}

/// Buckets in seconds, for times from milliseconds to a minute.
const SHORT: Kind = Kind::Histogram(&[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0]);
/// Buckets in seconds, for times from a second to half an hour.
const LONG: Kind = Kind::Histogram(&[1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0]);

/// Defines a constant for each metric, and `ALL`.
macro_rules! families {
    ($($constant:ident = $processes:ident, $kind:expr, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        $(
            pub const $constant: Family = Family {
                name: $name,
                help: $help,
                kind: $kind,
                labels: &[$($label),*],
                processes: Processes::$processes,
            };
        )*

        /// All metrics.
        pub const ALL: &[Family] = &[$($constant),*];
    };
}

families! {
    BUILD_INFO = Both, Kind::Gauge, "flux_operator_build_info", ["component", "version"],
        "Constant 1, with the component and its version.";
    READY = Both, Kind::Gauge, "flux_operator_ready", ["component"],
        "1 if /readyz succeeds, else 0.";
    CPU = Both, Kind::Counter, "process_cpu_seconds_total", [],
        "User and system CPU time of the process.";
    RESIDENT = Both, Kind::Gauge, "process_resident_memory_bytes", [],
        "Resident memory.";
    VIRTUAL = Both, Kind::Gauge, "process_virtual_memory_bytes", [],
        "Virtual memory.";
    OPEN_FILES = Both, Kind::Gauge, "process_open_fds", [],
        "Open file descriptors.";
    MAX_FILES = Both, Kind::Gauge, "process_max_fds", [],
        "Maximum number of open file descriptors.";
    STARTED = Both, Kind::Gauge, "process_start_time_seconds", [],
        "When the process started, in seconds since 1970.";

    RECONCILES = Operator, Kind::Counter, "controller_runtime_reconcile_total", ["controller", "result"],
        "Reconciles, by result (success or error).";
    ERRORS = Operator, Kind::Counter, "controller_runtime_reconcile_errors_total", ["controller"],
        "Failed reconciles, which are retried.";
    TERMINAL_ERRORS = Operator, Kind::Counter, "controller_runtime_terminal_reconcile_errors_total", ["controller"],
        "Reconcile errors that need a user's change, or whose namespace is being deleted; see the MiniCluster's status.";
    PANICS = Operator, Kind::Counter, "controller_runtime_reconcile_panics_total", ["controller"],
        "Reconciles that panicked: a bug in the operator.";
    RECONCILE_TIME = Operator, SHORT, "controller_runtime_reconcile_time_seconds", ["controller"],
        "Duration of a reconcile.";
    WORKERS = Operator, Kind::Gauge, "controller_runtime_active_workers", ["controller"],
        "Reconciles in progress.";
    DEPTH = Operator, Kind::Gauge, "workqueue_depth", ["controller", "name"],
        "MiniClusters in the queue.";
    ADDS = Operator, Kind::Counter, "workqueue_adds_total", ["controller", "name"],
        "MiniClusters added to the queue.";
    RETRIES = Operator, Kind::Counter, "workqueue_retries_total", ["controller", "name"],
        "MiniClusters queued again after an error.";
    QUEUE_TIME = Operator, SHORT, "workqueue_queue_duration_seconds", ["controller", "name"],
        "Time that a MiniCluster waited in the queue.";
    LONGEST_WORK = Operator, Kind::Gauge, "workqueue_longest_running_processor_seconds", ["controller", "name"],
        "Seconds that the longest running reconcile has been in progress.";
    UNFINISHED_WORK = Operator, Kind::Gauge, "workqueue_unfinished_work_seconds", ["controller", "name"],
        "Total seconds of work in progress.";
    OLDEST = Operator, Kind::Gauge, "flux_operator_queue_oldest_seconds", [],
        "Seconds that the oldest MiniCluster in the queue has waited.";
    REQUESTS = Operator, Kind::Counter, "rest_client_requests_total", ["code", "method"],
        "Calls to the API server, by status and method. The code is <error> if there was no response.";
    REQUEST_TIME = Operator, SHORT, "rest_client_request_duration_seconds", ["verb"],
        "Latency of calls to the API server, without watches.";
    CALLS = Operator, Kind::Counter, "flux_operator_api_calls_total", ["verb", "resource", "code"],
        "Calls to the API server, by verb and resource. The code is 2xx, 409, 4xx, 5xx or none.";
    LEADS = Operator, Kind::Gauge, "leader_election_master_status", ["name"],
        "1 if this process leads, 0 if it waits to.";
    TIME_TO_READY = Operator, LONG, "flux_operator_time_to_ready_seconds", [],
        "Time from the creation of a MiniCluster until it is first ready. Not recorded if it restarted before.";
    MINICLUSTERS = Operator, Kind::Gauge, "flux_operator_miniclusters", ["phase"],
        "MiniClusters, by phase.";

    WEBHOOK_REQUESTS = Webhook, Kind::Counter, "controller_runtime_webhook_requests_total", ["webhook", "code"],
        "Requests to the conversion webhook, by status.";
    WEBHOOK_TIME = Webhook, SHORT, "controller_runtime_webhook_latency_seconds", ["webhook"],
        "Latency of a request, from its head to the response.";
    WEBHOOK_IN_FLIGHT = Webhook, Kind::Gauge, "controller_runtime_webhook_requests_in_flight", ["webhook"],
        "Requests in progress.";
    CONVERSIONS = Webhook, Kind::Counter, "flux_operator_webhook_conversions_total", ["result"],
        "Conversion reviews, by result: success if all their objects were converted, else failure.";
    REFUSALS = Webhook, Kind::Counter, "flux_operator_webhook_refusals_total", ["reason"],
        "Rejected connections: full (too many are waiting), no_slot (no slot became free in time), slow (a request took too long).";
    EXPIRY = Webhook, Kind::Gauge, "flux_operator_webhook_certificate_expiry_timestamp_seconds", [],
        "When the served certificate expires, in seconds since 1970; absent without one.";
    RENEWAL_FAILURES = Webhook, Kind::Counter, "flux_operator_webhook_certificate_failures_total", [],
        "Failures to read, renew, store or publish the certificate.";
}

/// Asserts that a process' metrics are exactly its families in the table.
#[cfg(test)]
pub(super) fn assert_complete(text: &str, processes: Processes) {
    let expected = ALL
        .iter()
        .filter(|family| family.processes == processes || family.processes == Processes::Both);
    for family in expected.clone() {
        let Family {
            name,
            help,
            kind,
            labels,
            ..
        } = family;
        let head = format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name());
        assert!(text.contains(&head), "{head} is not in\n{text}");
        let series = text
            .lines()
            .find(|line| !line.starts_with('#') && line.starts_with(name))
            .unwrap();
        let mut found: Vec<&str> = match series.split_once('{') {
            Some((_, rest)) => rest
                .split("\",")
                .filter_map(|label| Some(label.split_once('=')?.0))
                .collect(),
            None => Vec::new(),
        };
        // Each bucket of a histogram has this label, with its upper bound.
        found.retain(|label| *label != "le");
        let mut wanted = labels.to_vec();
        wanted.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, wanted, "{name}");
    }
    assert_eq!(text.matches("# TYPE ").count(), expected.count(), "{text}");
}
