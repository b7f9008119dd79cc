//! Monitoring of the operator: scraping and alerts for the Prometheus operator, and a dashboard for Grafana.

use flux_operator_core::yaml;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use serde_json::{Value, json};

use super::{HEALTH_PORT, InstallError, Installation, NAME, operator_labels, webhook};

pub mod alerts;
pub mod dashboard;

/// Name of the operator's metrics Service, its ServiceMonitor, and the rules.
const METRICS: &str = "flux-operator-metrics";
/// Name of the webhook's metrics Service and its ServiceMonitor.
const WEBHOOK_METRICS: &str = "flux-operator-webhook-metrics";
const DASHBOARD: &str = "flux-operator-dashboard";

/// The monitoring objects that the administrator has chosen.
pub fn manifests(settings: &Installation) -> Result<Vec<String>, InstallError> {
    let namespace = settings.namespace.as_str();
    let mut documents = Vec::new();
    if let Some(monitor) = &settings.service_monitor {
        let mut all = vec![(METRICS, "metrics", operator_labels())];
        if settings.converts() {
            all.push((WEBHOOK_METRICS, "webhook-metrics", webhook::labels()));
        }
        for (name, component, pods) in all {
            let labels = json!({ "app.kubernetes.io/name": NAME, "app.kubernetes.io/component": component });
            documents.push(yaml::document(&service(namespace, name, &labels, &pods)?)?);
            let spec = json!({
                "selector": { "matchLabels": labels },
                "endpoints": [{ "port": "metrics", "interval": monitor.interval }],
            });
            documents.push(yaml::document(&prometheus("ServiceMonitor", name, namespace, &monitor.labels, spec))?);
        }
    }
    if let Some(rules) = &settings.rules {
        let groups = Value::Object(alerts::groups(namespace, settings.converts()));
        documents.push(yaml::document(&prometheus("PrometheusRule", METRICS, namespace, &rules.labels, groups))?);
    }
    if let Some(dashboard) = &settings.dashboard {
        documents.push(yaml::document(&config_map(namespace, &dashboard.labels)?)?);
    }
    Ok(documents)
}

/// A headless Service, since each replica has metrics of its own.
fn service(namespace: &str, name: &str, labels: &Value, pods: &Value) -> Result<Service, InstallError> {
    let value = json!({
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": {
            "clusterIP": "None",
            "selector": pods,
            "ports": [{ "name": "metrics", "port": HEALTH_PORT, "targetPort": HEALTH_PORT }],
        },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("Service", e))
}

/// An object of the Prometheus operator, with the labels by which its Prometheus selects it.
fn prometheus(kind: &str, name: &str, namespace: &str, labels: &Value, spec: Value) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": kind,
        "metadata": metadata(name, namespace, labels),
        "spec": spec,
    })
}

fn metadata(name: &str, namespace: &str, labels: &Value) -> Value {
    let mut metadata = json!({ "name": name, "namespace": namespace });
    if labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        metadata["labels"] = labels.clone();
    }
    metadata
}

/// The ConfigMap with the dashboard, with the labels by which Grafana's sidecar finds it.
fn config_map(namespace: &str, labels: &Value) -> Result<ConfigMap, InstallError> {
    let wrong = |e| InstallError::Object("ConfigMap", e);
    let text = serde_json::to_string_pretty(&dashboard::dashboard()).map_err(wrong)?;
    let value = json!({
        "metadata": metadata(DASHBOARD, namespace, labels),
        "data": { "flux-operator.json": format!("{text}\n") },
    });
    serde_json::from_value(value).map_err(wrong)
}
