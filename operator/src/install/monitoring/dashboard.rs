//! A dashboard for Grafana; each panel answers one question.

use serde_json::{Value, json};

/// One panel of the dashboard.
#[derive(Debug, Clone, Copy)]
pub struct Panel {
    pub title: &'static str,
    /// Grafana's name of the unit.
    pub unit: &'static str,
    /// Expressions, each with the legend of its lines.
    pub queries: &'static [(&'static str, &'static str)],
}

const fn panel(title: &'static str, unit: &'static str, queries: &'static [(&'static str, &'static str)]) -> Panel {
    Panel { title, unit, queries }
}

/// All panels, two per row.
pub const PANELS: &[Panel] = &[
    panel(
        "MiniClusters by phase",
        "short",
        &[("max by (phase) (flux_operator_miniclusters{namespace=~\"$namespace\"})", "{{phase}}")],
    ),
    panel(
        "Time from creation to ready",
        "s",
        &[
            (
                "histogram_quantile(0.5, sum by (le) (rate(flux_operator_time_to_ready_seconds_bucket{namespace=~\"$namespace\"}[$__rate_interval])))",
                "median",
            ),
            (
                "histogram_quantile(0.95, sum by (le) (rate(flux_operator_time_to_ready_seconds_bucket{namespace=~\"$namespace\"}[$__rate_interval])))",
                "95 %",
            ),
        ],
    ),
    panel(
        "Reconciles",
        "ops",
        &[
            (
                "sum by (result) (rate(controller_runtime_reconcile_total{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "{{result}}",
            ),
            (
                "sum(rate(controller_runtime_reconcile_errors_total{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "failed",
            ),
            (
                "sum(rate(controller_runtime_terminal_reconcile_errors_total{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "failed, needs a user's change",
            ),
            (
                "sum(rate(controller_runtime_reconcile_panics_total{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "panicked",
            ),
        ],
    ),
    panel(
        "Duration of a reconcile",
        "s",
        &[
            (
                "histogram_quantile(0.5, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval])))",
                "median",
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval])))",
                "99 %",
            ),
            (
                "max(workqueue_longest_running_processor_seconds{controller=\"minicluster\",namespace=~\"$namespace\"})",
                "longest now",
            ),
        ],
    ),
    panel(
        "Queue",
        "short",
        &[
            ("sum(workqueue_depth{controller=\"minicluster\",namespace=~\"$namespace\"})", "waiting"),
            (
                "sum(controller_runtime_active_workers{controller=\"minicluster\",namespace=~\"$namespace\"})",
                "in progress",
            ),
            (
                "sum(rate(workqueue_adds_total{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "added, per second",
            ),
            (
                "sum(rate(workqueue_retries_total{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "retried, per second",
            ),
        ],
    ),
    panel(
        "Wait in the queue",
        "s",
        &[
            (
                "histogram_quantile(0.99, sum by (le) (rate(workqueue_queue_duration_seconds_bucket{controller=\"minicluster\",namespace=~\"$namespace\"}[$__rate_interval])))",
                "99 %",
            ),
            ("max(flux_operator_queue_oldest_seconds{namespace=~\"$namespace\"})", "oldest now"),
        ],
    ),
    panel(
        "Calls to the API server",
        "reqps",
        &[(
            "sum by (verb, resource) (rate(flux_operator_api_calls_total{namespace=~\"$namespace\"}[$__rate_interval]))",
            "{{verb}} {{resource}}",
        )],
    ),
    panel(
        "Responses of the API server",
        "reqps",
        &[(
            "sum by (code) (rate(rest_client_requests_total{job=\"flux-operator-metrics\",namespace=~\"$namespace\"}[$__rate_interval]))",
            "{{code}}",
        )],
    ),
    panel(
        "Latency of the API server, 99 %",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (le, verb) (rate(rest_client_request_duration_seconds_bucket{job=\"flux-operator-metrics\",namespace=~\"$namespace\"}[$__rate_interval])))",
            "{{verb}}",
        )],
    ),
    panel(
        "Leader, and ready pods",
        "short",
        &[
            (
                "leader_election_master_status{name=\"flux-framework-flux-operator\",namespace=~\"$namespace\"}",
                "{{pod}} leads",
            ),
            ("flux_operator_ready{namespace=~\"$namespace\"}", "{{pod}} is ready"),
        ],
    ),
    panel(
        "Requests to the conversion webhook",
        "reqps",
        &[
            (
                "sum by (code) (rate(controller_runtime_webhook_requests_total{webhook=\"/convert\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "{{code}}",
            ),
            (
                "sum(rate(flux_operator_webhook_conversions_total{result=\"failure\",namespace=~\"$namespace\"}[$__rate_interval]))",
                "failed conversions",
            ),
            (
                "sum by (reason) (rate(flux_operator_webhook_refusals_total{namespace=~\"$namespace\"}[$__rate_interval]))",
                "rejected: {{reason}}",
            ),
        ],
    ),
    panel(
        "Duration of conversions, and how many are in progress",
        "s",
        &[
            (
                "histogram_quantile(0.99, sum by (le) (rate(controller_runtime_webhook_latency_seconds_bucket{webhook=\"/convert\",namespace=~\"$namespace\"}[$__rate_interval])))",
                "99 %",
            ),
            (
                "sum(controller_runtime_webhook_requests_in_flight{webhook=\"/convert\",namespace=~\"$namespace\"})",
                "in progress (count)",
            ),
        ],
    ),
    panel(
        "Webhook's certificate: time left",
        "s",
        &[(
            "min(flux_operator_webhook_certificate_expiry_timestamp_seconds{namespace=~\"$namespace\"}) - time()",
            "left",
        )],
    ),
    panel(
        "Failures to keep the certificate",
        "short",
        &[(
            "sum(increase(flux_operator_webhook_certificate_failures_total{namespace=~\"$namespace\"}[$__rate_interval]))",
            "failures",
        )],
    ),
    panel(
        "Memory",
        "bytes",
        &[(
            "process_resident_memory_bytes{namespace=~\"$namespace\"} and on (job, instance) flux_operator_build_info",
            "{{pod}}",
        )],
    ),
    panel(
        "CPU",
        "cores",
        &[(
            "rate(process_cpu_seconds_total{namespace=~\"$namespace\"}[$__rate_interval]) and on (job, instance) flux_operator_build_info",
            "{{pod}}",
        )],
    ),
    panel(
        "Open files, share of the limit",
        "percentunit",
        &[(
            "process_open_fds{namespace=~\"$namespace\"} / process_max_fds and on (job, instance) flux_operator_build_info",
            "{{pod}}",
        )],
    ),
    panel(
        "Uptime by version",
        "s",
        &[(
            "(time() - process_start_time_seconds{namespace=~\"$namespace\"}) * on (job, instance) group_left (component, version) flux_operator_build_info",
            "{{component}} {{version}} {{pod}}",
        )],
    ),
];

const WIDTH: usize = 12;
const HEIGHT: usize = 8;

fn drawn(number: usize, panel: &Panel) -> Value {
    let source = json!({ "type": "prometheus", "uid": "${datasource}" });
    let targets: Vec<Value> = panel
        .queries
        .iter()
        .zip('A'..='Z')
        .map(|((expression, legend), id)| {
            json!({ "refId": id, "datasource": source, "expr": expression, "legendFormat": legend })
        })
        .collect();
    json!({
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": { "x": number % 2 * WIDTH, "y": number / 2 * HEIGHT, "w": WIDTH, "h": HEIGHT },
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "options": { "legend": { "displayMode": "list", "placement": "bottom" }, "tooltip": { "mode": "multi" } },
        "targets": targets,
    })
}

/// The dashboard as Grafana imports it.
pub fn dashboard() -> Value {
    let panels: Vec<Value> = PANELS.iter().enumerate().map(|(number, panel)| drawn(number, panel)).collect();
    json!({
        "uid": "flux-framework-operator",
        "title": "Flux operator",
        "tags": ["flux-framework"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": { "from": "now-3h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" },
            {
                "name": "namespace",
                "label": "Namespace of the operator",
                "type": "query",
                "datasource": { "type": "prometheus", "uid": "${datasource}" },
                "query": "label_values(flux_operator_build_info, namespace)",
                "refresh": 2,
                "includeAll": true,
                "allValue": ".*",
                "current": { "text": "All", "value": "$__all" },
            },
        ] },
        "panels": panels,
    })
}
