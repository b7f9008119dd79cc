//! The settings of an installation: the Helm chart's values from a file, the chart's defaults for missing ones, and options
//! that override both.

use flux_operator_core::render::HeadlessName;
use k8s_openapi::api::core::v1::{Affinity, LocalObjectReference, ResourceRequirements, Toleration};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Settings;
use flux_shared::trace::Endpoint;
use flux_shared::validate::ViewSource;
use image::Image;

mod image;

/// The chart's default values, which are also the program's.
const DEFAULTS: &str = include_str!("../../../chart/values.yaml");
/// Paths of values whose keys are Kubernetes' or the user's, so that unknown ones are accepted.
const OPEN: &[&str] = &[
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "prometheus.dashboard.labels",
    "prometheus.rules.labels",
    "prometheus.serviceMonitor.labels",
    "resources",
    "tolerations",
    "webhook.resources",
];

/// Why values are refused.
#[derive(Debug, thiserror::Error)]
pub enum ValuesError {
    #[error("failed to read the values")]
    Yaml(#[source] serde_saphyr::Error),
    #[error("{0}: no such value")]
    Unknown(String),
    #[error("{0}: must be {1}")]
    Wrong(String, &'static str),
    #[error("{0}: {1}")]
    Refused(&'static str, String),
    #[error("failed to read the values")]
    Shape(#[source] serde_json::Error),
}

/// What to install, with every choice made.
#[derive(Debug, Clone)]
pub struct Installation {
    pub namespace: String,
    pub image: String,
    pub pull_policy: String,
    pub agent_image: String,
    pub view_image: String,
    pub view_source: String,
    /// `true` or `false`.
    pub strict_snippets: String,
    pub restful_repository: String,
    pub namespaced: bool,
    /// Whether the CustomResourceDefinition and the namespace are included.
    pub crd: bool,
    pub v1alpha1: bool,
    pub cert_manager: bool,
    pub minicluster_network_policy: bool,
    pub gang: bool,
    pub kueue: bool,
    /// Whether `spec.volumes` is served.
    pub volumes: bool,
    /// Whether `spec.services` is served.
    pub services: bool,
    /// `shared` or `minicluster`.
    pub headless_name: String,
    /// Endpoint for traces; empty for none.
    pub otlp_endpoint: String,
    pub disruption_budget: bool,
    pub service_monitor: Option<ServiceMonitor>,
    /// Labels of the PrometheusRule with the alerts; None for none.
    pub rules: Option<Labelled>,
    /// Labels of the ConfigMap with Grafana's dashboard; None for none.
    pub dashboard: Option<Labelled>,
    pub resources: Value,
    pub webhook_resources: Value,
    pub pods: Pods,
}

/// Settings of all pods of the operator and the webhook.
#[derive(Debug, Clone, Default)]
pub struct Pods {
    pub image_pull_secrets: Value,
    pub node_selector: Value,
    pub tolerations: Value,
    pub affinity: Value,
    pub priority_class_name: String,
}

/// How the ServiceMonitors are created.
#[derive(Debug, Clone, Deserialize)]
pub struct ServiceMonitor {
    pub enabled: bool,
    pub interval: String,
    #[serde(default)]
    pub labels: Value,
}

/// Labels of an object that another program selects by them.
#[derive(Debug, Clone, Deserialize)]
pub struct Labelled {
    pub enabled: bool,
    #[serde(default)]
    pub labels: Value,
}

impl Installation {
    /// An installation with the chart's default values.
    pub fn usual(namespace: &str) -> Result<Installation, ValuesError> {
        installation(&Settings { namespace: namespace.to_owned(), ..Settings::default() }, None)
    }

    /// Whether the conversion webhook is installed. Not in an installation for one namespace: its CA bundle is in the
    /// cluster-scoped CRD.
    pub fn converts(&self) -> bool {
        !self.namespaced && self.v1alpha1
    }
}

/// The values of a file, merged over the defaults.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Values {
    image: OperatorImage,
    agent: Agent,
    view: View,
    snippets: Snippets,
    restful: Restful,
    #[serde(default)]
    image_pull_secrets: Value,
    namespaced: bool,
    v1alpha1: Switch,
    cert_manager: Switch,
    crds: Switch,
    network_policy: NetworkPolicy,
    gang: Switch,
    kueue: Switch,
    volumes: Switch,
    services: Switch,
    headless_service: HeadlessService,
    tracing: Tracing,
    #[serde(default)]
    resources: Value,
    webhook: Webhook,
    #[serde(default)]
    node_selector: Value,
    #[serde(default)]
    tolerations: Value,
    #[serde(default)]
    affinity: Value,
    priority_class_name: String,
    pod_disruption_budget: Switch,
    prometheus: Prometheus,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OperatorImage {
    pull_policy: String,
    #[serde(flatten)]
    image: Image,
}

#[derive(Debug, Deserialize)]
struct Agent {
    image: Image,
}

#[derive(Debug, Deserialize)]
struct View {
    image: Image,
    source: String,
}

#[derive(Debug, Deserialize)]
struct Snippets {
    strict: bool,
}

#[derive(Debug, Deserialize)]
struct HeadlessService {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Restful {
    repository: String,
}

#[derive(Debug, Deserialize)]
struct Switch {
    enabled: bool,
}

#[derive(Debug, Deserialize)]
struct Tracing {
    endpoint: String,
}

#[derive(Debug, Deserialize)]
struct NetworkPolicy {
    miniclusters: bool,
}

#[derive(Debug, Deserialize)]
struct Webhook {
    #[serde(default)]
    resources: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Prometheus {
    service_monitor: ServiceMonitor,
    rules: Labelled,
    dashboard: Labelled,
}

/// The installation: options override the values' file, which overrides the defaults.
pub(super) fn installation(settings: &Settings, file: Option<&str>) -> Result<Installation, ValuesError> {
    let values = values(file)?;
    check_texts(&values)?;
    let version = env!("CARGO_PKG_VERSION");
    let chosen = |option: &Option<String>, value: String| option.clone().unwrap_or(value);
    let installation = Installation {
        namespace: settings.namespace.clone(),
        image: chosen(&settings.image, values.image.image.name(version)),
        pull_policy: values.image.pull_policy,
        agent_image: chosen(&settings.agent_image, values.agent.image.name(version)),
        view_image: chosen(&settings.view_image, values.view.image.name("")),
        view_source: settings.view_source.map_or(values.view.source, |source| source.name().to_owned()),
        strict_snippets: settings.strict_snippets.unwrap_or(values.snippets.strict).to_string(),
        restful_repository: chosen(&settings.restful_repository, values.restful.repository),
        namespaced: settings.namespaced || values.namespaced,
        crd: !settings.without_crd && values.crds.enabled,
        v1alpha1: !settings.without_v1alpha1 && values.v1alpha1.enabled,
        cert_manager: settings.cert_manager || values.cert_manager.enabled,
        minicluster_network_policy: settings.minicluster_network_policy || values.network_policy.miniclusters,
        gang: settings.gang || values.gang.enabled,
        kueue: settings.kueue || values.kueue.enabled,
        volumes: !settings.without_volumes && values.volumes.enabled,
        services: !settings.without_services && values.services.enabled,
        headless_name: settings.headless_name.map_or(values.headless_service.name, |name| name.to_string()),
        otlp_endpoint: settings.otlp_endpoint.as_ref().map_or(values.tracing.endpoint, ToString::to_string),
        disruption_budget: values.pod_disruption_budget.enabled,
        service_monitor: Some(values.prometheus.service_monitor).filter(|it| it.enabled),
        rules: Some(values.prometheus.rules).filter(|it| it.enabled),
        dashboard: Some(values.prometheus.dashboard).filter(|it| it.enabled),
        resources: quantities(values.resources),
        webhook_resources: quantities(values.webhook.resources),
        pods: Pods {
            image_pull_secrets: values.image_pull_secrets,
            node_selector: values.node_selector,
            tolerations: values.tolerations,
            affinity: values.affinity,
            priority_class_name: values.priority_class_name,
        },
    };
    checked(installation)
}

/// Writes numbers as text: `cpu: 2` is a quantity too.
fn quantities(mut resources: Value) -> Value {
    for kind in ["requests", "limits"] {
        for quantity in resources.get_mut(kind).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
            if let Value::Number(number) = quantity {
                *quantity = Value::String(number.to_string());
            }
        }
    }
    resources
}

/// Checks values that are written into text, so that a mistake does not show only in the cluster.
fn check_texts(values: &Values) -> Result<(), ValuesError> {
    let wrong = |path: String, what| Err(ValuesError::Wrong(path, what));
    let images =
        [("image", &values.image.image), ("agent.image", &values.agent.image), ("view.image", &values.view.image)];
    for (path, image) in images {
        if image.repository.is_empty() || image.repository.contains(char::is_whitespace) {
            return wrong(format!("{path}.repository"), "the name of an image, without tag and digest");
        }
        let is_digest = |text: &str| {
            let hexadecimal = text.strip_prefix("sha256:");
            hexadecimal.is_some_and(|it| it.len() == 64 && it.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')))
        };
        if !image.digest.is_empty() && !is_digest(&image.digest) {
            return wrong(format!("{path}.digest"), "sha256: and 64 hexadecimal digits");
        }
    }
    if !is_duration(&values.prometheus.service_monitor.interval) {
        return wrong("prometheus.serviceMonitor.interval".into(), "a duration, such as 30s");
    }
    let endpoint = &values.tracing.endpoint;
    if !endpoint.is_empty() && endpoint.parse::<Endpoint>().is_err() {
        return wrong("tracing.endpoint".into(), "http://HOST[:PORT][/PATH] (no TLS), or empty");
    }
    Ok(())
}

/// Whether a text is a duration of Prometheus', such as `1m30s`.
fn is_duration(text: &str) -> bool {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest_of = |unit: &str| (rest.len() < text.len()).then(|| rest.strip_prefix(unit)).flatten();
    ["ms", "s", "m", "h", "d", "w", "y"]
        .iter()
        .filter_map(|unit| rest_of(unit))
        .any(|rest| rest.is_empty() || is_duration(rest))
}

fn checked(installation: Installation) -> Result<Installation, ValuesError> {
    let refused = |name, problem: &str| Err(ValuesError::Refused(name, problem.to_owned()));
    if installation.cert_manager && !installation.converts() {
        return refused(
            "certManager.enabled",
            "must be false without v1alpha1, or if only one namespace is served: there is no webhook then",
        );
    }
    if !["IfNotPresent", "Always", "Never"].contains(&installation.pull_policy.as_str()) {
        return refused("image.pullPolicy", "must be IfNotPresent, Always or Never");
    }
    if let Err(problem) = installation.view_source.parse::<ViewSource>() {
        return refused("view.source", &problem);
    }
    if let Err(problem) = installation.headless_name.parse::<HeadlessName>() {
        return refused("headlessService.name", &problem);
    }
    let pods = &installation.pods;
    for (name, resources) in
        [("resources", &installation.resources), ("webhook.resources", &installation.webhook_resources)]
    {
        known::<ResourceRequirements>(name, resources)?;
    }
    known::<Vec<LocalObjectReference>>("imagePullSecrets", &pods.image_pull_secrets)?;
    known::<std::collections::BTreeMap<String, String>>("nodeSelector", &pods.node_selector)?;
    known::<Vec<Toleration>>("tolerations", &pods.tolerations)?;
    known::<Affinity>("affinity", &pods.affinity)?;
    Ok(installation)
}

/// Parses a Kubernetes type and refuses unknown fields: the types ignore them, so the result must have everything that
/// was given.
fn known<T: DeserializeOwned + serde::Serialize>(name: &'static str, value: &Value) -> Result<(), ValuesError> {
    if value.is_null() {
        return Ok(());
    }
    let wrong = |error: serde_json::Error| ValuesError::Refused(name, error.to_string());
    let typed: T = serde_json::from_value(value.clone()).map_err(wrong)?;
    match lost(value, &serde_json::to_value(&typed).map_err(wrong)?, name) {
        Some(path) => Err(ValuesError::Unknown(path)),
        None => Ok(()),
    }
}

/// The path of a value in `before` that is missing in `after`.
fn lost(before: &Value, after: &Value, path: &str) -> Option<String> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            match after.get(key) {
                Some(after) => lost(value, after, &path),
                None => Some(path),
            }
        }),
        (Value::Array(before), Value::Array(after)) => {
            let mut pairs = before.iter().zip(after).enumerate();
            pairs.find_map(|(index, (before, after))| lost(before, after, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

fn values(file: Option<&str>) -> Result<Values, ValuesError> {
    let mut merged: Value = serde_saphyr::from_str(DEFAULTS).map_err(ValuesError::Yaml)?;
    if let Some(text) = file {
        // An empty file, or one of comments alone, is no mapping.
        if let Some(given) = serde_saphyr::from_str::<Option<Value>>(text).map_err(ValuesError::Yaml)? {
            merge(&mut merged, given, "")?;
        }
    }
    serde_json::from_value(merged).map_err(ValuesError::Shape)
}

/// Merges as Helm does: mappings key by key, other values as a whole, and null removes a default.
fn merge(defaults: &mut Value, given: Value, path: &str) -> Result<(), ValuesError> {
    let wrong = |what| Err(ValuesError::Wrong(if path.is_empty() { "values".into() } else { path.to_owned() }, what));
    match (defaults, given) {
        (Value::Object(defaults), Value::Object(given)) => merge_keys(defaults, given, path),
        (Value::Object(_), _) => wrong("a mapping"),
        (it @ Value::Array(_), given @ Value::Array(_)) => replace(it, given),
        (Value::Array(_), _) => wrong("a list"),
        (it @ Value::Bool(_), given @ Value::Bool(_)) => replace(it, given),
        (Value::Bool(_), _) => wrong("true or false"),
        (it, given @ Value::String(_)) => replace(it, given),
        (_, _) => wrong("text"),
    }
}

fn replace(default: &mut Value, given: Value) -> Result<(), ValuesError> {
    *default = given;
    Ok(())
}

fn merge_keys(defaults: &mut Map<String, Value>, given: Map<String, Value>, path: &str) -> Result<(), ValuesError> {
    for (key, value) in given {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let is_open = OPEN.contains(&path.as_str());
        match defaults.get_mut(&key) {
            None => return Err(ValuesError::Unknown(path)),
            Some(_) if is_open && value.is_null() => drop(defaults.remove(&key)),
            Some(Value::Object(inner)) if is_open => match value {
                Value::Object(given) => merge_open(inner, given),
                _ => return Err(ValuesError::Wrong(path, "a mapping")),
            },
            Some(inner) => merge(inner, value, &path)?,
        }
    }
    Ok(())
}

fn merge_open(defaults: &mut Map<String, Value>, given: Map<String, Value>) {
    for (key, value) in given {
        match (defaults.get_mut(&key), value) {
            (Some(Value::Object(inner)), Value::Object(given)) => merge_open(inner, given),
            (_, Value::Null) => drop(defaults.remove(&key)),
            (_, value) => drop(defaults.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        values(Some(text)).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn values_are_merged_as_helm_merges_them() {
        let of = |text: &str| values(Some(text)).unwrap();
        let merged = of("resources: {limits: {memory: 1Gi}, requests: {cpu: null}}");
        let wanted = serde_json::json!({ "limits": { "memory": "1Gi" }, "requests": { "memory": "32Mi" } });
        assert_eq!(merged.resources, wanted);
        assert_eq!(of("resources: null").resources, Value::Null);
        assert_eq!(of("# nothing\n").image.pull_policy, "IfNotPresent");
        assert_eq!(of("tolerations: [{operator: Exists}]").tolerations[0]["operator"], "Exists");
    }

    #[test]
    fn a_value_that_does_not_exist_or_is_no_such_thing_is_refused_by_its_path() {
        assert_eq!(refusal("image: {repositry: a}"), "image.repositry: no such value");
        assert_eq!(refusal("image: a"), "image: must be a mapping");
        assert_eq!(refusal("image: {tag: 1}"), "image.tag: must be text");
        assert_eq!(refusal("image: {tag: null}"), "image.tag: must be text");
        assert_eq!(refusal("namespaced: 'yes'"), "namespaced: must be true or false");
        assert_eq!(refusal("tolerations: {}"), "tolerations: must be a list");
        assert_eq!(refusal("[]"), "values: must be a mapping");
    }

    #[test]
    fn an_interval_is_a_duration() {
        assert!(["30s", "1m30s", "500ms", "1h"].into_iter().all(is_duration));
        assert!(!["", "30", "s", "1m30", "1 m", "-1s"].into_iter().any(is_duration));
    }

    #[test]
    fn an_image_has_a_tag_or_a_digest_or_both() {
        let name = |tag: &str, digest: &str| {
            Image { repository: "r/a".into(), tag: tag.into(), digest: digest.into() }.name("0.1.0")
        };
        assert_eq!(
            [name("", ""), name("2", ""), name("", "sha256:0"), name("2", "sha256:0")],
            ["r/a:0.1.0", "r/a:2", "r/a@sha256:0", "r/a:2@sha256:0"]
        );
    }
}
