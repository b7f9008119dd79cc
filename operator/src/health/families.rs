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

/// A metric of the operator and the webhook.
const fn both(name: &'static str, help: &'static str, kind: Kind, labels: &'static [&'static str]) -> Family {
    Family {
        name,
        help,
        kind,
        labels,
        processes: Processes::Both,
    }
}

/// A metric of the operator alone.
const fn operator(
    name: &'static str,
    help: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
) -> Family {
    Family {
        name,
        help,
        kind,
        labels,
        processes: Processes::Operator,
    }
}

/// A metric of the webhook alone.
const fn webhook(
    name: &'static str,
    help: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
) -> Family {
    Family {
        name,
        help,
        kind,
        labels,
        processes: Processes::Webhook,
    }
}

pub const BUILD_INFO: Family = both(
    "flux_operator_build_info",
    "Constant 1, with the component and its version.",
    Kind::Gauge,
    &["component", "version"],
);
pub const READY: Family = both(
    "flux_operator_ready",
    "1 if /readyz succeeds, else 0.",
    Kind::Gauge,
    &["component"],
);
pub const CPU: Family = both(
    "process_cpu_seconds_total",
    "User and system CPU time of the process.",
    Kind::Counter,
    &[],
);
pub const RESIDENT: Family = both(
    "process_resident_memory_bytes",
    "Resident memory.",
    Kind::Gauge,
    &[],
);
pub const VIRTUAL: Family = both(
    "process_virtual_memory_bytes",
    "Virtual memory.",
    Kind::Gauge,
    &[],
);
pub const OPEN_FILES: Family = both("process_open_fds", "Open file descriptors.", Kind::Gauge, &[]);
pub const MAX_FILES: Family = both(
    "process_max_fds",
    "Maximum number of open file descriptors.",
    Kind::Gauge,
    &[],
);
pub const STARTED: Family = both(
    "process_start_time_seconds",
    "When the process started, in seconds since 1970.",
    Kind::Gauge,
    &[],
);

pub const RECONCILES: Family = operator(
    "controller_runtime_reconcile_total",
    "Reconciles, by result (success or error).",
    Kind::Counter,
    &["controller", "result"],
);
pub const ERRORS: Family = operator(
    "controller_runtime_reconcile_errors_total",
    "Failed reconciles, which are retried.",
    Kind::Counter,
    &["controller"],
);
pub const TERMINAL_ERRORS: Family = operator(
    "controller_runtime_terminal_reconcile_errors_total",
    "Reconcile errors that need a user's change; see the MiniCluster's status.",
    Kind::Counter,
    &["controller"],
);
pub const PANICS: Family = operator(
    "controller_runtime_reconcile_panics_total",
    "Reconciles that panicked: a bug in the operator.",
    Kind::Counter,
    &["controller"],
);
pub const RECONCILE_TIME: Family = operator(
    "controller_runtime_reconcile_time_seconds",
    "Duration of a reconcile.",
    SHORT,
    &["controller"],
);
pub const WORKERS: Family = operator(
    "controller_runtime_active_workers",
    "Reconciles in progress.",
    Kind::Gauge,
    &["controller"],
);
pub const DEPTH: Family = operator(
    "workqueue_depth",
    "MiniClusters in the queue.",
    Kind::Gauge,
    &["controller", "name"],
);
pub const ADDS: Family = operator(
    "workqueue_adds_total",
    "MiniClusters added to the queue.",
    Kind::Counter,
    &["controller", "name"],
);
pub const RETRIES: Family = operator(
    "workqueue_retries_total",
    "MiniClusters queued again after an error.",
    Kind::Counter,
    &["controller", "name"],
);
pub const QUEUE_TIME: Family = operator(
    "workqueue_queue_duration_seconds",
    "Time that a MiniCluster waited in the queue.",
    SHORT,
    &["controller", "name"],
);
pub const LONGEST_WORK: Family = operator(
    "workqueue_longest_running_processor_seconds",
    "Seconds that the longest running reconcile has been in progress.",
    Kind::Gauge,
    &["controller", "name"],
);
pub const UNFINISHED_WORK: Family = operator(
    "workqueue_unfinished_work_seconds",
    "Total seconds of work in progress.",
    Kind::Gauge,
    &["controller", "name"],
);
pub const OLDEST: Family = operator(
    "flux_operator_queue_oldest_seconds",
    "Seconds that the oldest MiniCluster in the queue has waited.",
    Kind::Gauge,
    &[],
);
pub const REQUESTS: Family = operator(
    "rest_client_requests_total",
    "Calls to the API server, by status and method. The code is <error> if there was no response.",
    Kind::Counter,
    &["code", "method"],
);
pub const REQUEST_TIME: Family = operator(
    "rest_client_request_duration_seconds",
    "Latency of calls to the API server, without watches.",
    SHORT,
    &["verb"],
);
pub const CALLS: Family = operator(
    "flux_operator_api_calls_total",
    "Calls to the API server, by verb and resource. The code is 2xx, 409, 4xx, 5xx or none.",
    Kind::Counter,
    &["verb", "resource", "code"],
);
pub const LEADS: Family = operator(
    "leader_election_master_status",
    "1 if this process leads, 0 if it waits to.",
    Kind::Gauge,
    &["name"],
);
pub const TIME_TO_READY: Family = operator(
    "flux_operator_time_to_ready_seconds",
    "Time from the creation of a MiniCluster until it is first ready. Not recorded if it restarted before.",
    LONG,
    &[],
);
pub const MINICLUSTERS: Family = operator(
    "flux_operator_miniclusters",
    "MiniClusters, by phase.",
    Kind::Gauge,
    &["phase"],
);

pub const WEBHOOK_REQUESTS: Family = webhook(
    "controller_runtime_webhook_requests_total",
    "Requests to the conversion webhook, by status.",
    Kind::Counter,
    &["webhook", "code"],
);
pub const WEBHOOK_TIME: Family = webhook(
    "controller_runtime_webhook_latency_seconds",
    "Latency of a request, from its head to the response.",
    SHORT,
    &["webhook"],
);
pub const WEBHOOK_IN_FLIGHT: Family = webhook(
    "controller_runtime_webhook_requests_in_flight",
    "Requests in progress.",
    Kind::Gauge,
    &["webhook"],
);
pub const CONVERSIONS: Family = webhook(
    "flux_operator_webhook_conversions_total",
    "Conversion reviews, by result: success if all their objects were converted, else failure.",
    Kind::Counter,
    &["result"],
);
pub const REFUSALS: Family = webhook(
    "flux_operator_webhook_refusals_total",
    "Rejected connections: full (too many are waiting), no_slot (no slot became free in time), slow (a request took too long).",
    Kind::Counter,
    &["reason"],
);
pub const EXPIRY: Family = webhook(
    "flux_operator_webhook_certificate_expiry_timestamp_seconds",
    "When the served certificate expires, in seconds since 1970; absent without one.",
    Kind::Gauge,
    &[],
);
pub const RENEWAL_FAILURES: Family = webhook(
    "flux_operator_webhook_certificate_failures_total",
    "Failures to read, renew or store the certificate.",
    Kind::Counter,
    &[],
);

/// All metrics.
pub const ALL: &[Family] = &[
    BUILD_INFO,
    READY,
    CPU,
    RESIDENT,
    VIRTUAL,
    OPEN_FILES,
    MAX_FILES,
    STARTED,
    RECONCILES,
    ERRORS,
    TERMINAL_ERRORS,
    PANICS,
    RECONCILE_TIME,
    WORKERS,
    DEPTH,
    ADDS,
    RETRIES,
    QUEUE_TIME,
    LONGEST_WORK,
    UNFINISHED_WORK,
    OLDEST,
    REQUESTS,
    REQUEST_TIME,
    CALLS,
    LEADS,
    TIME_TO_READY,
    MINICLUSTERS,
    WEBHOOK_REQUESTS,
    WEBHOOK_TIME,
    WEBHOOK_IN_FLIGHT,
    CONVERSIONS,
    REFUSALS,
    EXPIRY,
    RENEWAL_FAILURES,
];

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
