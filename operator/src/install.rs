//! The installation: what an administrator applies, with the reason of every permission.

use std::path::PathBuf;

use clap::Args;
use flux_operator_core::render::HeadlessName;
use flux_operator_core::yaml::{self, YamlError};
use flux_shared::crd::definition::{Conversion, WebhookClient};
use flux_shared::trace::Endpoint;
use flux_shared::validate::ViewSource;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

mod deletion;
mod migration;
pub mod monitoring;
mod network;
mod permissions;
mod task;
mod user_roles;
mod values;
mod webhook;

pub use deletion::{DELETION, DELETION_PERMISSIONS, deletion};
pub use migration::{MIGRATION, MIGRATION_PERMISSIONS, Migration, migration};
pub use permissions::{
    GANG_PERMISSIONS, KUEUE_PERMISSIONS, NETWORK_PERMISSIONS, NODE_PERMISSIONS, OWN_PERMISSIONS, PERMISSIONS,
    Permission, SERVICES_PERMISSIONS, STORAGE_PERMISSIONS, VOLUME_PERMISSIONS, WEBHOOK_OWN_PERMISSIONS,
    WEBHOOK_PERMISSIONS, WHOLE_PERMISSIONS,
};
pub use values::{Installation, Labelled, Pods, ServiceMonitor, ValuesError};

/// The name of the operator's own objects.
pub const NAME: &str = flux_operator_core::labels::OPERATOR;
/// Prefix of the names of cluster-scoped objects: FluxCD's operator is called flux-operator, too.
const PREFIX: &str = "flux-framework-";
/// The name of the policy on `spec.volumes`.
const VOLUMES_POLICY: &str = "flux-framework-flux-operator-volumes";
/// The port on which the operator's pod serves its health.
const HEALTH_PORT: u16 = 8080;
/// The port of the webhook's Service.
const WEBHOOK_SERVICE_PORT: i32 = 443;
/// The operator's image of this version.
pub const DEFAULT_IMAGE: &str = concat!("ghcr.io/flux-framework/flux-operator:", env!("CARGO_PKG_VERSION"));

/// Arguments of `install`.
#[derive(Debug, Clone, Default, Args)]
pub struct Settings {
    /// File with values of the Helm chart (- for standard input); missing values default to chart/values.yaml. The options
    /// below override the file
    #[arg(long, value_name = "FILE")]
    pub values: Option<PathBuf>,
    /// Image of the operator, with a tag or a digest [default: that of this version]
    #[arg(long)]
    pub image: Option<String>,
    /// Image of the agent, with a tag or a digest [default: that of this version]
    #[arg(long)]
    pub agent_image: Option<String>,
    /// Image with the Flux view, for MiniClusters that do not name one [default: as `run --view-image`]
    #[arg(long)]
    pub view_image: Option<String>,
    /// Git URL of the Flux RESTful API [default: as `run --restful-repository`]
    #[arg(long, value_name = "ADDRESS")]
    pub restful_repository: Option<String>,
    /// How the view gets into the pods: auto, imageVolume or copy (as `run --view-source`) [default: auto]
    #[arg(long, value_parser = str::parse::<ViewSource>)]
    pub view_source: Option<ViewSource>,
    /// Whether a failing snippet ends its pod by default (as `run --strict-snippets`) [default: true]
    #[arg(long, value_name = "true|false")]
    pub strict_snippets: Option<bool>,
    /// Namespace of the operator
    #[arg(long, default_value = NAME)]
    pub namespace: String,
    /// Serve the MiniClusters of the operator's own namespace only, with no permission beyond it. Add --without-crd if
    /// another installation owns the CustomResourceDefinition: otherwise this installation's, without v1alpha1,
    /// replaces it
    #[arg(long)]
    pub namespaced: bool,
    /// Leave out the CustomResourceDefinition and the Namespace: an administrator or another installation has created them
    #[arg(long)]
    pub without_crd: bool,
    /// Serve v1alpha2 only, without the conversion webhook, its Secret and its permissions
    #[arg(long)]
    pub without_v1alpha1: bool,
    /// Get the conversion webhook's certificate from cert-manager, which must be installed
    #[arg(long, conflicts_with_all = ["without_v1alpha1", "namespaced"])]
    pub cert_manager: bool,
    /// Create a NetworkPolicy for each MiniCluster: only its own pods reach its brokers (port 8050)
    #[arg(long)]
    pub minicluster_network_policy: bool,
    /// Schedule all pods of a MiniCluster or none, if the cluster has a gang API (as `run --gang`), and add the
    /// permissions for it
    #[arg(long)]
    pub gang: bool,
    /// Allow the operator to list Kueue's Workloads, so that the status says why a MiniCluster waits in its queue
    #[arg(long)]
    pub kueue: bool,
    /// Serve no spec.volumes (v1alpha1's managed volumes), without the permissions, the policy and the watches for them
    #[arg(long)]
    pub without_volumes: bool,
    /// Serve no spec.services, without the permissions for their pod
    #[arg(long)]
    pub without_services: bool,
    /// Name of the headless Service of MiniClusters that name none (as `run --headless-name`) [default: shared]
    #[arg(long, value_name = "shared|minicluster", value_parser = str::parse::<HeadlessName>)]
    pub headless_name: Option<HeadlessName>,
    /// Endpoint for traces (OpenTelemetry; as `run --otlp-endpoint`) [default: no traces]
    #[arg(long, value_name = "ADDRESS", value_parser = str::parse::<Endpoint>)]
    pub otlp_endpoint: Option<Endpoint>,
}

impl Settings {
    /// The installation, with the text of the values' file.
    pub fn installation(&self, values: Option<&str>) -> Result<Installation, InstallError> {
        Ok(values::installation(self, values)?)
    }
}

/// Arguments of `crd`.
#[derive(Debug, Clone, Args)]
pub struct Definition {
    /// Namespace of the operator, whose webhook converts
    #[arg(long, default_value = NAME)]
    pub namespace: String,
    /// Serve v1alpha2 only, without a conversion webhook
    #[arg(long)]
    pub without_conversion: bool,
    /// Let cert-manager inject the CA bundle of the webhook's certificate
    #[arg(long, conflicts_with = "without_conversion")]
    pub cert_manager: bool,
}

/// Why the installation could not be written: a bug of ours.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("failed to generate the CustomResourceDefinition")]
    Definition(#[from] flux_shared::crd::definition::DefinitionError),
    #[error(transparent)]
    Yaml(#[from] YamlError),
    #[error(transparent)]
    Values(#[from] ValuesError),
    #[error("failed to generate the {0}")]
    Object(&'static str, #[source] serde_json::Error),
}

/// The CustomResourceDefinition that is shipped, as YAML.
pub fn crd() -> Result<String, InstallError> {
    crd_of(&Definition { namespace: NAME.into(), without_conversion: false, cert_manager: false })
}

/// The CustomResourceDefinition as YAML.
pub fn crd_of(definition: &Definition) -> Result<String, InstallError> {
    let conversion = match definition.without_conversion {
        true => Conversion::None,
        false => Conversion::Webhook {
            client: WebhookClient::Service {
                namespace: definition.namespace.clone(),
                name: crate::webhook::NAME.into(),
                path: crate::webhook::PATH.into(),
                port: WEBHOOK_SERVICE_PORT,
            },
            ca_bundle: Vec::new(),
        },
    };
    let mut document = flux_shared::crd::definition::definition(&conversion)?;
    if definition.cert_manager {
        document.metadata.annotations.get_or_insert_default().extend([webhook::inject_from(&definition.namespace)]);
    }
    Ok(yaml::document(&document)?)
}

/// All manifests of the installation, in the order in which they can be applied.
pub fn manifests(settings: &Installation) -> Result<String, InstallError> {
    let mut documents = Vec::new();
    if settings.crd {
        documents.extend([yaml::document(&namespace(settings)?)?, installed_crd(settings)?]);
    }
    documents.extend(objects(settings)?);
    documents.extend(monitoring::manifests(settings)?);
    Ok(yaml::stream(documents))
}

fn namespace(settings: &Installation) -> Result<Namespace, InstallError> {
    // The operator's pods run "restricted". Where MiniClusters live beside it, their authors' pods set the level.
    let labels = match settings.namespaced {
        true => json!({}),
        false => json!({ "pod-security.kubernetes.io/enforce": "restricted" }),
    };
    serde_json::from_value(json!({ "metadata": { "name": settings.namespace, "labels": labels } }))
        .map_err(|e| InstallError::Object("Namespace", e))
}

/// The CustomResourceDefinition with this installation's conversion webhook, or without one.
fn installed_crd(settings: &Installation) -> Result<String, InstallError> {
    crd_of(&Definition {
        namespace: settings.namespace.clone(),
        without_conversion: !settings.converts(),
        cert_manager: settings.cert_manager,
    })
}

/// All but the namespace, the definition, and what watches it (`monitoring`).
pub fn objects(settings: &Installation) -> Result<Vec<String>, InstallError> {
    let scope = settings.namespaced.then_some(settings.namespace.as_str());
    let own = Some(settings.namespace.as_str());
    let operator = Subject { account: NAME, namespace: &settings.namespace };
    let network = if settings.minicluster_network_policy { NETWORK_PERMISSIONS } else { &[] };
    let gang = if settings.gang { GANG_PERMISSIONS } else { &[] };
    let kueue = if settings.kueue { KUEUE_PERMISSIONS } else { &[] };
    let mut documents = vec![
        yaml::document(&account(NAME, &settings.namespace)?)?,
        role(NAME, scope, &[PERMISSIONS, WHOLE_PERMISSIONS, network, gang, kueue].concat()),
        binding(NAME, scope, operator),
        role("flux-operator-leader", own, OWN_PERMISSIONS),
        binding("flux-operator-leader", own, operator),
    ];
    for (name, is_on, permissions) in [
        ("flux-operator-services", settings.services, SERVICES_PERMISSIONS),
        ("flux-operator-claims", settings.volumes, STORAGE_PERMISSIONS),
    ] {
        if is_on {
            documents.extend([role(name, scope, permissions), binding(name, scope, operator)]);
        }
    }
    // Nodes and PersistentVolumes are in no namespace.
    if !settings.namespaced {
        documents.extend(user_roles::roles());
        documents.extend([
            role("flux-operator-nodes", None, NODE_PERMISSIONS),
            binding("flux-operator-nodes", None, operator),
        ]);
    }
    if settings.volumes && !settings.namespaced {
        documents.extend([
            role("flux-operator-volumes", None, VOLUME_PERMISSIONS),
            binding("flux-operator-volumes", None, operator),
            yaml::document(&volumes_policy()?)?,
            yaml::document(&volumes_policy_binding()?)?,
        ]);
    }
    documents.extend([
        yaml::document(&network::of_operator(&settings.namespace)?)?,
        yaml::document(&deployment(settings)?)?,
    ]);
    if settings.disruption_budget && !settings.namespaced {
        documents.push(yaml::document(&disruption_budget(&settings.namespace, NAME, &operator_labels())?)?);
    }
    if settings.converts() {
        documents.push(yaml::document(&network::of_webhook(&settings.namespace)?)?);
        documents.extend(webhook::manifests(settings)?);
    }
    Ok(documents)
}

/// A PodDisruptionBudget: one replica stays while nodes are drained.
fn disruption_budget(namespace: &str, name: &str, labels: &Value) -> Result<PodDisruptionBudget, InstallError> {
    let value = json!({
        "metadata": { "name": name, "namespace": namespace, "labels": labels },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": labels } },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("PodDisruptionBudget", e))
}

/// Sets the administrator's placement of the pods; `usual` is the affinity if they give none.
fn set_placement(pod: &mut Value, pods: &Pods, usual: Option<Value>) {
    let is_empty = |value: &Value| match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    let affinity = if is_empty(&pods.affinity) { usual.unwrap_or_default() } else { pods.affinity.clone() };
    for (name, value) in [
        ("imagePullSecrets", &pods.image_pull_secrets),
        ("nodeSelector", &pods.node_selector),
        ("tolerations", &pods.tolerations),
        ("affinity", &affinity),
    ] {
        if !is_empty(value) {
            pod[name] = value.clone();
        }
    }
    if !pods.priority_class_name.is_empty() {
        pod["priorityClassName"] = json!(pods.priority_class_name);
    }
}

/// The policy that admits `spec.volumes` only from users who may create PersistentVolumes themselves: such
/// volumes are directories of nodes, or disks with anybody's Secret.
fn volumes_policy() -> Result<ValidatingAdmissionPolicy, InstallError> {
    let value = json!({
        "metadata": { "name": VOLUMES_POLICY, "labels": operator_labels() },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["flux-framework.org"],
                "apiVersions": ["v1alpha2"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["miniclusters"],
            }] },
            "matchConditions": [
                { "name": "has-volumes", "expression": "has(object.spec.volumes) && object.spec.volumes.size() > 0" },
                {
                    "name": "new-volumes",
                    "expression": "request.operation == 'CREATE' || !has(oldObject.spec.volumes) || oldObject.spec.volumes != object.spec.volumes",
                },
            ],
            "validations": [{
                "expression": "authorizer.group('').resource('persistentvolumes').check('create').allowed()",
                "reason": "Forbidden",
                "message": "spec.volumes makes PersistentVolumes, which you may not create: ask an administrator, or mount a claim by containers[].volumes and claimName",
            }],
        },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("ValidatingAdmissionPolicy", e))
}

fn volumes_policy_binding() -> Result<ValidatingAdmissionPolicyBinding, InstallError> {
    let value = json!({
        "metadata": { "name": VOLUMES_POLICY, "labels": operator_labels() },
        "spec": { "policyName": VOLUMES_POLICY, "validationActions": ["Deny"] },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("ValidatingAdmissionPolicyBinding", e))
}

fn operator_labels() -> Value {
    json!({ "app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "operator" })
}

/// A Role or ClusterRole as text, with the reasons of its permissions as comments.
fn role(name: &str, namespace: Option<&str>, permissions: &[Permission]) -> String {
    role_with_labels(name, namespace, "", permissions)
}

/// The name of an object that is cluster-scoped if `namespace` is None: then it gets our prefix.
fn prefixed(name: &str, namespace: Option<&str>) -> String {
    format!("{}{name}", if namespace.is_some() { "" } else { PREFIX })
}

fn role_with_labels(name: &str, namespace: Option<&str>, labels: &str, permissions: &[Permission]) -> String {
    let name = prefixed(name, namespace);
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let place = namespace.map(|namespace| format!("  namespace: {}\n", scalar(namespace))).unwrap_or_default();
    let mut text = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n{place}{labels}rules:\n"
    );
    for Permission { group, resource, names, verbs, reason } in permissions {
        let verbs = verbs.join(", ");
        let names = match names.is_empty() {
            true => String::new(),
            false => format!("  resourceNames: [{}]\n", names.join(", ")),
        };
        text.push_str(&format!(
            "# {reason}\n- apiGroups: [{group:?}]\n  resources: [{resource:?}]\n{names}  verbs: [{verbs}]\n"
        ));
    }
    text
}

fn account(name: &str, namespace: &str) -> Result<ServiceAccount, InstallError> {
    serde_json::from_value(json!({ "metadata": { "name": name, "namespace": namespace } }))
        .map_err(|e| InstallError::Object("ServiceAccount", e))
}

/// The account that a role is bound to, and where.
#[derive(Debug, Clone, Copy)]
struct Subject<'a> {
    account: &'a str,
    namespace: &'a str,
}

fn binding(name: &str, namespace: Option<&str>, who: Subject) -> String {
    let Subject { account, namespace: account_namespace } = who;
    let name = prefixed(name, namespace);
    let prefix = if namespace.is_some() { "" } else { "Cluster" };
    let place = namespace.map(|namespace| format!("  namespace: {}\n", scalar(namespace))).unwrap_or_default();
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: {prefix}RoleBinding\nmetadata:\n  name: {name}\n{place}\
         roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {prefix}Role\n  name: {name}\n\
         subjects:\n- kind: ServiceAccount\n  name: {account}\n  namespace: {}\n",
        scalar(account_namespace)
    )
}

/// A name as a YAML scalar: quoted where it might not be read as text, such as `123` or `true`.
fn scalar(name: &str) -> String {
    let is_text = name.starts_with(|first: char| first.is_ascii_lowercase()) && name.len() > 5;
    if is_text { name.to_owned() } else { format!("{name:?}") }
}

/// Security context of a pod that the "restricted" Pod Security Standard admits.
fn pod_security_context() -> Value {
    json!({ "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" } })
}

/// Security context of a container that the same standard admits.
fn container_security_context() -> Value {
    json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true })
}

/// Affinity that puts replicas on different nodes if possible.
fn spread(labels: &Value) -> Value {
    json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "podAffinityTerm": { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": labels } },
    }] } })
}

/// The operator's Deployment, under the "restricted" Pod Security Standard. One replica leads; if all namespaces are
/// served, another one waits.
fn deployment(settings: &Installation) -> Result<Deployment, InstallError> {
    let labels = operator_labels();
    let mut args = vec!["run".to_owned()];
    if settings.namespaced {
        args.push(format!("--namespace={}", settings.namespace));
    }
    if settings.gang {
        args.push("--gang".to_owned());
    }
    if !settings.volumes {
        args.push("--without-volumes".to_owned());
    }
    if !settings.services {
        args.push("--without-services".to_owned());
    }
    if !settings.otlp_endpoint.is_empty() {
        args.push(format!("--otlp-endpoint={}", settings.otlp_endpoint));
    }
    let mut value = json!({
        "metadata": { "name": NAME, "namespace": settings.namespace, "labels": labels },
        "spec": {
            "replicas": if settings.namespaced { 1 } else { 2 },
            "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": NAME,
                    "securityContext": pod_security_context(),
                    "enableServiceLinks": false,
                    "containers": [{
                        "name": "operator",
                        "image": settings.image,
                        "imagePullPolicy": settings.pull_policy,
                        "args": args,
                        "ports": [{ "name": "metrics", "containerPort": HEALTH_PORT }],
                        "readinessProbe": { "httpGet": { "path": "/readyz", "port": "metrics" } },
                        "livenessProbe": {
                            "httpGet": { "path": "/healthz", "port": "metrics" },
                            "periodSeconds": 20,
                            "timeoutSeconds": 5,
                        },
                        "env": [
                            { "name": "HEALTH_ADDRESS", "value": format!("[::]:{HEALTH_PORT}") },
                            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                            { "name": "LEASE_NAMESPACE", "value": settings.namespace },
                            { "name": "FLUX_AGENT_IMAGE", "value": settings.agent_image },
                            { "name": "FLUX_VIEW_IMAGE", "value": settings.view_image },
                            { "name": "FLUX_RESTFUL_REPOSITORY", "value": settings.restful_repository },
                            { "name": "FLUX_VIEW_SOURCE", "value": settings.view_source },
                            { "name": "FLUX_STRICT_SNIPPETS", "value": settings.strict_snippets },
                            { "name": "FLUX_HEADLESS_NAME", "value": settings.headless_name },
                        ],
                        "resources": settings.resources,
                        "securityContext": container_security_context(),
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                    }],
                },
            },
        },
    });
    let pod = &mut value["spec"]["template"]["spec"];
    set_placement(pod, &settings.pods, (!settings.namespaced).then(|| spread(&labels)));
    if settings.minicluster_network_policy
        && let Some(variables) = pod["containers"][0]["env"].as_array_mut()
    {
        variables.push(json!({ "name": "FLUX_MINICLUSTER_NETWORK_POLICY", "value": "true" }));
    }
    serde_json::from_value(value).map_err(|e| InstallError::Object("Deployment", e))
}
