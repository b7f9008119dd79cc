//! NetworkPolicies of the operator's pods, for clusters whose network plugin enforces them.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

use super::{HEALTH_PORT, InstallError};
use crate::webhook;

/// The label of namespaces whose pods may read the operator's metrics.
const METRICS: &str = "flux-framework.org/metrics";

/// The operator's NetworkPolicy: its port is for metrics collectors, and for probes, which come from the node and are
/// always let in.
pub(super) fn of_operator(namespace: &str) -> Result<NetworkPolicy, InstallError> {
    policy(namespace, super::NAME, super::operator_labels(), json!([from_collectors()]))
}

fn from_collectors() -> Value {
    let collectors = json!([{ "namespaceSelector": { "matchLabels": { METRICS: "allowed" } } }]);
    json!({ "from": collectors, "ports": [{ "port": HEALTH_PORT }] })
}

/// The webhook's NetworkPolicy: everybody may reach its port, since the API server calls from a node's address or from
/// anywhere; its health port is for probes and metrics collectors.
pub(super) fn of_webhook(namespace: &str) -> Result<NetworkPolicy, InstallError> {
    policy(
        namespace,
        webhook::NAME,
        super::webhook::labels(),
        json!([{ "ports": [{ "port": webhook::PORT }] }, from_collectors()]),
    )
}

fn policy(namespace: &str, name: &str, pods: Value, ingress: Value) -> Result<NetworkPolicy, InstallError> {
    let value = json!({
        "metadata": { "name": name, "namespace": namespace },
        "spec": { "podSelector": { "matchLabels": pods }, "policyTypes": ["Ingress"], "ingress": ingress },
    });
    serde_json::from_value(value).map_err(|error| InstallError::Object("NetworkPolicy", error))
}
