//! How Prometheus finds the operator's metrics, where its operator is there.

use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use super::{HEALTH_PORT, InstallError, Installation, NAME, ServiceMonitor, operator_labels};
use crate::yaml;

/// The Service that the ServiceMonitor names, and the ServiceMonitor.
const METRICS: &str = "flux-operator-metrics";

/// A ServiceMonitor and its Service, or nothing.
pub(super) fn manifests(settings: &Installation) -> Result<Vec<String>, InstallError> {
    let Some(monitor) = &settings.service_monitor else { return Ok(Vec::new()) };
    let namespace = &settings.namespace;
    Ok(vec![yaml::document(&service(namespace)?)?, yaml::document(&service_monitor(namespace, monitor))?])
}

fn labels() -> Value {
    json!({ "app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "metrics" })
}

/// Headless: each replica has metrics of its own.
fn service(namespace: &str) -> Result<Service, InstallError> {
    let value = json!({
        "metadata": { "name": METRICS, "namespace": namespace, "labels": labels() },
        "spec": {
            "clusterIP": "None",
            "selector": operator_labels(),
            "ports": [{ "name": "metrics", "port": HEALTH_PORT, "targetPort": "metrics" }],
        },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("Service", e))
}

fn service_monitor(namespace: &str, monitor: &ServiceMonitor) -> Value {
    let mut value = json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": { "name": METRICS, "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": labels() },
            "endpoints": [{ "port": "metrics", "interval": monitor.interval }],
        },
    });
    if monitor.labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        value["metadata"]["labels"] = monitor.labels.clone();
    }
    value
}
