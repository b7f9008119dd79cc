//! Alerts for Prometheus. `docs/tasks/alerts.md` has a section for each: what it means, and what to do.

use serde_json::{Map, Value, json};

/// Whose metrics the alert reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Operator,
    /// Needs an installation with the conversion webhook.
    Webhook,
}

/// One alerting rule.
#[derive(Debug, Clone, Copy)]
pub struct Alert {
    pub name: &'static str,
    pub of: Part,
    /// Of this installation's figures alone: `$namespace` stands for its namespace. Another one has rules of its own,
    /// and must neither hide what is missing here nor be told of twice.
    pub expression: &'static str,
    /// How long the expression has to hold (`for`).
    pub lasts: &'static str,
    /// critical: MiniClusters cannot be created, changed or read. warning: it may come to that.
    pub severity: &'static str,
    pub summary: &'static str,
}

/// All alerts, in the order of docs/tasks/alerts.md.
pub const ALERTS: &[Alert] = &[
    Alert {
        name: "FluxOperatorDown",
        of: Part::Operator,
        expression: "absent(flux_operator_build_info{component=\"operator\",namespace=\"$namespace\"})",
        lasts: "5m",
        severity: "critical",
        summary: "No Flux operator in {{ $labels.namespace }} can be scraped: MiniClusters are probably not reconciled.",
    },
    Alert {
        name: "FluxOperatorNotLeading",
        of: Part::Operator,
        expression: "max by (namespace, job) (leader_election_master_status{name=\"flux-framework-flux-operator\",namespace=\"$namespace\"}) == 0",
        lasts: "3m",
        severity: "critical",
        summary: "No Flux operator in {{ $labels.namespace }} leads: MiniClusters are not reconciled.",
    },
    Alert {
        name: "FluxOperatorNotReady",
        of: Part::Operator,
        expression: "flux_operator_ready{namespace=\"$namespace\"} == 0",
        lasts: "10m",
        severity: "warning",
        summary: "The Flux {{ $labels.component }} at {{ $labels.instance }} runs and is not ready.",
    },
    Alert {
        name: "FluxOperatorRestarting",
        of: Part::Operator,
        expression: "changes(process_start_time_seconds{namespace=\"$namespace\"}[30m]) > 2 and on (namespace, job, instance) flux_operator_build_info",
        lasts: "1m",
        severity: "warning",
        summary: "The Flux operator's pod at {{ $labels.instance }} has restarted {{ $value }} times in half an hour.",
    },
    Alert {
        name: "FluxOperatorReconcileErrors",
        of: Part::Operator,
        expression: "sum by (namespace, job) (rate(controller_runtime_reconcile_errors_total{controller=\"minicluster\",namespace=\"$namespace\"}[5m])) \
                     - sum by (namespace, job) (rate(controller_runtime_terminal_reconcile_errors_total{controller=\"minicluster\",namespace=\"$namespace\"}[5m])) \
                     > 0.001",
        lasts: "15m",
        severity: "warning",
        summary: "Some MiniClusters keep failing to reconcile, for a reason that is not their own.",
    },
    Alert {
        name: "FluxOperatorPanics",
        of: Part::Operator,
        expression: "increase(controller_runtime_reconcile_panics_total{controller=\"minicluster\",namespace=\"$namespace\"}[15m]) > 0",
        lasts: "0m",
        severity: "warning",
        summary: "A MiniCluster triggers a bug in the operator. The others are reconciled.",
    },
    Alert {
        name: "FluxOperatorAPIErrors",
        of: Part::Operator,
        expression: "sum by (namespace, job) (rate(flux_operator_api_calls_total{code=~\"5xx|none\",namespace=\"$namespace\"}[5m])) \
                     / sum by (namespace, job) (rate(flux_operator_api_calls_total{namespace=\"$namespace\"}[5m])) > 0.1",
        lasts: "10m",
        severity: "warning",
        summary: "{{ $value | humanizePercentage }} of the operator's calls fail at the API server or get no answer.",
    },
    Alert {
        name: "FluxOperatorQueueBacklog",
        of: Part::Operator,
        expression: "flux_operator_queue_oldest_seconds{namespace=\"$namespace\"} > 60",
        lasts: "10m",
        severity: "warning",
        summary: "A MiniCluster has waited {{ $value | humanizeDuration }} in the queue.",
    },
    Alert {
        name: "FluxOperatorWebhookDown",
        of: Part::Webhook,
        expression: "absent(flux_operator_build_info{component=\"webhook\",namespace=\"$namespace\"})",
        lasts: "5m",
        severity: "critical",
        summary: "No Flux conversion webhook in {{ $labels.namespace }} can be scraped: v1alpha1 MiniClusters can probably not be read or written.",
    },
    Alert {
        name: "FluxOperatorConversionErrors",
        of: Part::Webhook,
        expression: "sum by (namespace, job) (rate(flux_operator_webhook_conversions_total{result=\"failure\",namespace=\"$namespace\"}[5m])) > 0.001",
        lasts: "10m",
        severity: "warning",
        summary: "Some MiniClusters cannot be converted between v1alpha1 and v1alpha2.",
    },
    Alert {
        name: "FluxOperatorWebhookRejectingConnections",
        of: Part::Webhook,
        expression: "sum by (namespace, job) (rate(flux_operator_webhook_refusals_total{namespace=\"$namespace\"}[5m])) > 0.001",
        lasts: "5m",
        severity: "warning",
        summary: "The conversion webhook rejects connections: there are too many, or they are too slow.",
    },
    Alert {
        name: "FluxOperatorCertificateExpiring",
        of: Part::Webhook,
        expression: "flux_operator_webhook_certificate_expiry_timestamp_seconds{namespace=\"$namespace\"} - time() < 14 * 86400",
        lasts: "1h",
        severity: "critical",
        summary: "The conversion webhook's certificate expires in {{ $value | humanizeDuration }}.",
    },
    Alert {
        name: "FluxOperatorCertificateRenewalFailing",
        of: Part::Webhook,
        expression: "increase(flux_operator_webhook_certificate_failures_total{namespace=\"$namespace\"}[15m]) > 0",
        lasts: "15m",
        severity: "warning",
        summary: "The conversion webhook's certificate cannot be read, renewed or stored.",
    },
];

/// Address of the section that says what to do.
fn runbook(alert: &Alert) -> String {
    let page = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/tasks/alerts.md");
    format!("{page}#{}", alert.name.to_lowercase())
}

fn rule(alert: &Alert, namespace: &str) -> Value {
    json!({
        "alert": alert.name,
        "expr": alert.expression.replace("$namespace", namespace),
        "for": alert.lasts,
        "labels": { "severity": alert.severity },
        "annotations": { "summary": alert.summary, "runbook_url": runbook(alert) },
    })
}

/// The rule groups of the installation in this namespace, in Prometheus' format.
pub fn groups(namespace: &str, with_webhook: bool) -> Map<String, Value> {
    let of = |part: Part| {
        let alerts = ALERTS.iter().filter(|alert| alert.of == part);
        alerts.map(|alert| rule(alert, namespace)).collect::<Vec<_>>()
    };
    let mut groups = vec![json!({ "name": "flux-operator", "rules": of(Part::Operator) })];
    if with_webhook {
        groups.push(json!({ "name": "flux-operator-webhook", "rules": of(Part::Webhook) }));
    }
    Map::from_iter([("groups".to_owned(), Value::Array(groups))])
}
