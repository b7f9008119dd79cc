//! The installation: what an administrator applies, with the reason of every permission.

use clap::Args;
use flux_shared::crd::definition::{Conversion, WebhookClient};
use flux_shared::validate::ViewSource;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use crate::yaml::{self, YamlError};
use crate::{migrate, webhook};

/// The name of the operator's own objects.
pub const NAME: &str = "flux-operator";
/// The name of the policy on `spec.volumes`.
const VOLUMES_POLICY: &str = "flux-operator-volumes";
/// Where the operator's pod tells of its health.
const HEALTH_PORT: u16 = 8080;
/// The port of the webhook's Service.
const WEBHOOK_SERVICE_PORT: i32 = 443;
/// The operator that belongs to this source.
pub const DEFAULT_IMAGE: &str = concat!("ghcr.io/flux-framework/flux-operator:", env!("CARGO_PKG_VERSION"));

/// What the administrator chooses.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Image of the operator; a digest is possible
    #[arg(long, default_value = DEFAULT_IMAGE)]
    pub image: String,
    /// Image of the agent; a digest is possible
    #[arg(long, default_value = crate::render::DEFAULT_AGENT_IMAGE)]
    pub agent_image: String,
    /// Image with the Flux view, for MiniClusters that name none
    #[arg(long, default_value = crate::render::DEFAULT_VIEW_IMAGE)]
    pub view_image: String,
    /// Address of the Flux RESTful API's repository, as git takes it
    #[arg(long, default_value = flux_shared::agent_spec::RESTFUL_REPOSITORY, value_name = "ADDRESS")]
    pub restful_repository: String,
    /// How the view comes into the pods: auto, imageVolume or copy (as `run --view-source`)
    #[arg(long, default_value = "auto", value_parser = str::parse::<ViewSource>)]
    pub view_source: ViewSource,
    /// Namespace of the operator
    #[arg(long, default_value = NAME)]
    pub namespace: String,
    /// Serve the MiniClusters of the operator's own namespace only, with no permission beyond it
    #[arg(long)]
    pub namespaced: bool,
}

/// Which CustomResourceDefinition.
#[derive(Debug, Clone, Args)]
pub struct Definition {
    /// Namespace of the operator, whose webhook converts
    #[arg(long, default_value = NAME)]
    pub namespace: String,
    /// v1alpha2 alone: nothing converts, so v1alpha1 is not served
    #[arg(long)]
    pub without_conversion: bool,
}

/// Why the installation could not be written: a defect.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("failed to make the CustomResourceDefinition")]
    Definition(#[from] flux_shared::crd::definition::DefinitionError),
    #[error(transparent)]
    Yaml(#[from] YamlError),
    #[error("failed to make the {0}")]
    Object(&'static str, #[source] serde_json::Error),
}

/// A permission, and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Permission {
    pub group: &'static str,
    pub resource: &'static str,
    /// Objects; none: all.
    pub names: &'static [&'static str],
    pub verbs: &'static [&'static str],
    pub reason: &'static str,
}

const fn allow(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Permission {
    Permission { group, resource, names: &[], verbs, reason }
}

impl Permission {
    const fn only(self, names: &'static [&'static str]) -> Permission {
        Permission { names, ..self }
    }
}

/// All that the operator may do where MiniClusters are. A test fails when it needs more, or less.
pub const PERMISSIONS: &[Permission] = &[
    allow("flux-framework.org", "miniclusters", &["list", "watch"], "the objects it serves"),
    allow("flux-framework.org", "miniclusters", &["delete"], "cleanup and ttlSecondsAfterFinished"),
    allow("flux-framework.org", "miniclusters/status", &["patch"], "to say what they are doing"),
    allow(
        "flux-framework.org",
        "miniclusters/finalizers",
        &["update"],
        "to be the owner that a foreground deletion waits for, where OwnerReferencesPermissionEnforcement is on",
    ),
    allow("batch", "jobs", &["list", "watch", "create", "patch"], "one a MiniCluster; patch: size and suspend"),
    allow("", "services", &["list", "watch", "create", "patch"], "the pods' names; patch: who shares one"),
    allow("", "pods", &["list", "watch"], "the state of the brokers"),
    allow("", "pods/status", &["patch"], "the label job-index, and which pods are followers, in one call"),
    allow("", "pods", &["create"], "the pod of spec.services"),
    allow("", "configmaps", &["create", "patch"], "what the agents need to know"),
    allow("", "secrets", &["create"], "the curve certificate, made once"),
    allow("", "configmaps", &["get"], "whose it is, if one of that name exists (only then, and only its metadata)"),
    allow("", "secrets", &["get"], "whose it is, if one of that name exists (only then, and only its metadata)"),
    allow("", "services", &["get"], "whose it is, if one of that name exists"),
    allow("batch", "jobs", &["get"], "whose it is, if one of that name exists"),
    allow("batch", "jobs", &["delete"], "one whose pods cannot mount the view's image: it is made anew, with a copy"),
    allow("", "pods", &["get"], "whose it is, if a services pod of that name exists"),
    allow("", "events", &["list"], "why a Job makes no pods, or a pod does not start, where nothing else says"),
    allow(
        "events.k8s.io",
        "events",
        &["create", "patch"],
        "what a person would want to know; patch: counts repetitions",
    ),
];

/// What it may do besides where MiniClusters are, for `spec.volumes` and for cleaning up.
pub const STORAGE_PERMISSIONS: &[Permission] = &[
    allow("", "persistentvolumeclaims", &["create"], "the claims on spec.volumes"),
    allow("", "persistentvolumeclaims", &["get", "delete"], "cleaning up: whose it is, then its end"),
    allow("", "pods", &["delete", "deletecollection"], "cleaning up: the services pod, and those of the completed Job"),
    allow("flux-framework.org", "miniclusters", &["get"], "whether that of a PersistentVolume is gone"),
];

/// What it may do with PersistentVolumes, which are in no namespace.
pub const VOLUME_PERMISSIONS: &[Permission] = &[
    allow("", "persistentvolumes", &["create"], "those of spec.volumes"),
    allow("", "persistentvolumes", &["get"], "whose it is, if one of that name exists"),
    allow("", "persistentvolumes", &["patch"], "to use one again that was kept (delete: false)"),
    allow("", "persistentvolumes", &["list", "watch", "delete"], "to delete those whose MiniClusters are gone"),
];

/// What it may do with nodes, which are in no namespace.
pub const NODE_PERMISSIONS: &[Permission] =
    &[allow("", "nodes", &["list", "watch"], "whether they can mount images: then no view is copied")];

/// What it may do in its own namespace besides.
pub const OWN_PERMISSIONS: &[Permission] =
    &[allow("coordination.k8s.io", "leases", &["get", "create", "patch"], "which of several operators leads")];

/// What the webhook may do in its own namespace.
pub const WEBHOOK_OWN_PERMISSIONS: &[Permission] = &[
    allow("", "secrets", &["create"], "the webhook's certificate, which all replicas share"),
    allow("", "secrets", &["get", "list", "watch", "update"], "its renewal").only(&[webhook::NAME]),
];

/// What the webhook may do in the whole cluster.
pub const WEBHOOK_PERMISSIONS: &[Permission] = &[allow(
    "apiextensions.k8s.io",
    "customresourcedefinitions",
    &["get", "list", "watch", "patch"],
    "who may sign the webhook's certificate: the caBundle of the one definition",
)
.only(&[migrate::CRD])];

/// The CustomResourceDefinition that is shipped, as YAML.
pub fn crd() -> Result<String, InstallError> {
    crd_of(&Definition { namespace: NAME.into(), without_conversion: false })
}

/// The CustomResourceDefinition as YAML.
pub fn crd_of(definition: &Definition) -> Result<String, InstallError> {
    let conversion = match definition.without_conversion {
        true => Conversion::None,
        false => Conversion::Webhook {
            client: WebhookClient::Service {
                namespace: definition.namespace.clone(),
                name: webhook::NAME.into(),
                path: webhook::PATH.into(),
                port: WEBHOOK_SERVICE_PORT,
            },
            ca_bundle: Vec::new(),
        },
    };
    Ok(yaml::document(&flux_shared::crd::definition::definition(&conversion)?)?)
}

/// Everything, in the order in which it can be applied.
pub fn manifests(settings: &Settings) -> Result<String, InstallError> {
    // The operator's pods run "restricted". Where MiniClusters live beside it, their authors' pods set the level.
    let labels = match settings.namespaced {
        true => json!({}),
        false => json!({ "pod-security.kubernetes.io/enforce": "restricted" }),
    };
    let namespace: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": settings.namespace, "labels": labels } }))
            .map_err(|e| InstallError::Object("Namespace", e))?;
    let account: ServiceAccount =
        serde_json::from_value(json!({ "metadata": { "name": NAME, "namespace": settings.namespace } }))
            .map_err(|e| InstallError::Object("ServiceAccount", e))?;
    let scope = settings.namespaced.then_some(settings.namespace.as_str());
    let own = Some(settings.namespace.as_str());
    // The webhook's authorities stand in an object of the whole cluster, and PersistentVolumes are in no namespace.
    let converts = !settings.namespaced;
    let definition = Definition { namespace: settings.namespace.clone(), without_conversion: !converts };
    let mut documents = vec![
        yaml::document(&namespace)?,
        crd_of(&definition)?,
        yaml::document(&account)?,
        role(NAME, scope, &[PERMISSIONS, STORAGE_PERMISSIONS].concat()),
        binding(NAME, scope, &settings.namespace),
        role("flux-operator-leader", own, OWN_PERMISSIONS),
        binding("flux-operator-leader", own, &settings.namespace),
    ];
    if converts {
        documents.extend([
            role("flux-operator-volumes", None, VOLUME_PERMISSIONS),
            binding("flux-operator-volumes", None, &settings.namespace),
            role("flux-operator-nodes", None, NODE_PERMISSIONS),
            binding("flux-operator-nodes", None, &settings.namespace),
            role(webhook::NAME, None, WEBHOOK_PERMISSIONS),
            binding(webhook::NAME, None, &settings.namespace),
            role(webhook::NAME, own, WEBHOOK_OWN_PERMISSIONS),
            binding(webhook::NAME, own, &settings.namespace),
            yaml::document(&volumes_policy()?)?,
            yaml::document(&volumes_policy_binding()?)?,
            yaml::document(&webhook_service(settings)?)?,
            yaml::document(&disruption_budget(settings)?)?,
        ]);
    }
    documents.push(yaml::document(&deployment(settings)?)?);
    Ok(yaml::stream(documents))
}

/// `spec.volumes` becomes PersistentVolumes, which are directories of nodes or disks with anybody's Secret: only for those who
/// may make them without us.
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

/// Where the API server finds the webhook.
fn webhook_service(settings: &Settings) -> Result<Service, InstallError> {
    let value = json!({
        "metadata": { "name": webhook::NAME, "namespace": settings.namespace, "labels": operator_labels() },
        "spec": {
            "selector": operator_labels(),
            "ports": [{ "name": "webhook", "port": WEBHOOK_SERVICE_PORT, "targetPort": "webhook" }],
        },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("Service", e))
}

/// One replica stays while nodes are drained: v1alpha1 cannot be read without.
fn disruption_budget(settings: &Settings) -> Result<PodDisruptionBudget, InstallError> {
    let value = json!({
        "metadata": { "name": NAME, "namespace": settings.namespace, "labels": operator_labels() },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": operator_labels() } },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("PodDisruptionBudget", e))
}

/// A Role of a namespace, or a ClusterRole, with its reasons as comments: text, since no object holds comments.
fn role(name: &str, namespace: Option<&str>, permissions: &[Permission]) -> String {
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let place = namespace.map(|namespace| format!("  namespace: {namespace}\n")).unwrap_or_default();
    let mut text =
        format!("apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n{place}rules:\n");
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

fn binding(name: &str, namespace: Option<&str>, account_namespace: &str) -> String {
    let prefix = if namespace.is_some() { "" } else { "Cluster" };
    let place = namespace.map(|namespace| format!("  namespace: {namespace}\n")).unwrap_or_default();
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: {prefix}RoleBinding\nmetadata:\n  name: {name}\n{place}\
         roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {prefix}Role\n  name: {name}\n\
         subjects:\n- kind: ServiceAccount\n  name: {NAME}\n  namespace: {account_namespace}\n"
    )
}

/// Pods of the scratch image, under the "restricted" Pod Security Standard. One leads; all convert, so there are two, on
/// different nodes if possible.
fn deployment(settings: &Settings) -> Result<Deployment, InstallError> {
    let labels = operator_labels();
    let converts = !settings.namespaced;
    let mut args = vec!["run".to_owned()];
    if settings.namespaced {
        args.push(format!("--namespace={}", settings.namespace));
    }
    let mut value = json!({
        "metadata": { "name": NAME, "namespace": settings.namespace, "labels": labels },
        "spec": {
            "replicas": if converts { 2 } else { 1 },
            "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "serviceAccountName": NAME,
                    "securityContext": {
                        "runAsNonRoot": true,
                        "runAsUser": 65532,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "enableServiceLinks": false,
                    "containers": [{
                        "name": "operator",
                        "image": settings.image,
                        "imagePullPolicy": "IfNotPresent",
                        "args": args,
                        "ports": [{ "name": "metrics", "containerPort": HEALTH_PORT }],
                        "readinessProbe": { "httpGet": { "path": "/readyz", "port": "metrics" } },
                        "livenessProbe": {
                            "httpGet": { "path": "/healthz", "port": "metrics" },
                            "periodSeconds": 20,
                            "timeoutSeconds": 5,
                        },
                        "env": [
                            { "name": "HEALTH_ADDRESS", "value": format!("0.0.0.0:{HEALTH_PORT}") },
                            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                            { "name": "LEASE_NAMESPACE", "value": settings.namespace },
                            { "name": "FLUX_AGENT_IMAGE", "value": settings.agent_image },
                            { "name": "FLUX_VIEW_IMAGE", "value": settings.view_image },
                            { "name": "FLUX_RESTFUL_REPOSITORY", "value": settings.restful_repository },
                            { "name": "FLUX_VIEW_SOURCE", "value": settings.view_source.name() },
                        ],
                        "resources": {
                            "requests": { "cpu": "50m", "memory": "32Mi" },
                            "limits": { "memory": "256Mi" },
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "capabilities": { "drop": ["ALL"] },
                            "readOnlyRootFilesystem": true,
                        },
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                    }],
                },
            },
        },
    });
    if converts {
        let pod = &mut value["spec"]["template"]["spec"];
        pod["affinity"] = json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": { "matchLabels": labels },
            },
        }] } });
        let container = &mut pod["containers"][0];
        for (list, entry) in [
            ("ports", json!({ "name": "webhook", "containerPort": webhook::PORT })),
            ("env", json!({ "name": "FLUX_OPERATOR_WEBHOOK", "value": format!("0.0.0.0:{}", webhook::PORT) })),
            ("env", json!({ "name": "POD_NAMESPACE", "value": settings.namespace })),
        ] {
            if let Some(list) = container[list].as_array_mut() {
                list.push(entry);
            }
        }
    }
    serde_json::from_value(value).map_err(|e| InstallError::Object("Deployment", e))
}
