//! The conversion webhook's part of an installation: its own pods, account, memory limit and permissions, so that its
//! callers cannot affect the operator.

use flux_operator_core::yaml;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use serde_json::{Value, json};

use super::permissions::{WEBHOOK_OWN_PERMISSIONS, WEBHOOK_PERMISSIONS};
use super::{
    HEALTH_PORT, InstallError, Installation, Subject, WEBHOOK_SERVICE_PORT, binding, container_security_context,
    disruption_budget, pod_security_context, role, spread,
};
use crate::webhook::{NAME, PORT};

/// The name of the policy on the webhook's own writes.
const POLICY: &str = "flux-framework-flux-operator-webhook";
/// Name of the Secret that cert-manager writes.
const CERTIFICATE: &str = "flux-operator-webhook-certificate";
/// Where that Secret is mounted.
const DIRECTORY: &str = "/certificate";

pub(super) fn labels() -> Value {
    json!({ "app.kubernetes.io/name": super::NAME, "app.kubernetes.io/component": "webhook" })
}

/// Annotation of the CustomResourceDefinition by which cert-manager injects the CA bundle.
pub(super) fn inject_from(namespace: &str) -> (String, String) {
    ("cert-manager.io/inject-ca-from".to_owned(), format!("{namespace}/{NAME}"))
}

/// All objects of the webhook, in the order in which they can be applied.
pub(super) fn manifests(settings: &Installation) -> Result<Vec<String>, InstallError> {
    let namespace = settings.namespace.as_str();
    let who = Subject { account: NAME, namespace };
    let account = json!({
        "metadata": { "name": NAME, "namespace": namespace },
        "automountServiceAccountToken": !settings.cert_manager,
    });
    let account: ServiceAccount = typed("ServiceAccount", account)?;
    let mut documents = vec![yaml::document(&account)?];
    match settings.cert_manager {
        true => {
            for document in cert_manager(namespace) {
                documents.push(yaml::document(&document)?);
            }
        }
        false => documents.extend([
            role(NAME, None, WEBHOOK_PERMISSIONS),
            binding(NAME, None, who),
            role(NAME, Some(namespace), WEBHOOK_OWN_PERMISSIONS),
            binding(NAME, Some(namespace), who),
            yaml::document(&policy(namespace)?)?,
            yaml::document(&policy_binding()?)?,
        ]),
    }
    documents.push(yaml::document(&service(namespace)?)?);
    // v1alpha1 cannot be read without one.
    if settings.disruption_budget {
        documents.push(yaml::document(&disruption_budget(namespace, NAME, &labels())?)?);
    }
    documents.push(yaml::document(&deployment(settings)?)?);
    Ok(documents)
}

/// The policy that lets the webhook's account change nothing of the definition but the CA bundle. A permission cannot name
/// a field, and who takes over a process that listens on the network must not change what the API server stores, or who
/// converts it.
pub fn policy(namespace: &str) -> Result<ValidatingAdmissionPolicy, InstallError> {
    let is_same = |field: &str| format!("object.{field} == oldObject.{field}");
    // Either may be absent.
    let is_same_if_any = |folder: &str, field: &str, none: &str| {
        format!("object.{folder}.?{field}.orValue({none}) == oldObject.{folder}.?{field}.orValue({none})")
    };
    let is_same_map = |field: &str, none: &str| is_same_if_any("metadata", field, none);
    let client = "spec.conversion.webhook.clientConfig";
    let fields = [
        is_same("spec.group"),
        is_same("spec.names"),
        is_same("spec.scope"),
        is_same("spec.versions"),
        is_same("spec.conversion.strategy"),
        is_same("spec.conversion.webhook.conversionReviewVersions"),
        is_same_if_any(client, "service", "{}"),
        is_same_if_any(client, "url", "''"),
        is_same_map("labels", "{}"),
        is_same_map("annotations", "{}"),
        is_same_map("finalizers", "[]"),
        is_same_map("ownerReferences", "[]"),
    ];
    let value = json!({
        "metadata": { "name": POLICY, "labels": labels() },
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["apiextensions.k8s.io"],
                "apiVersions": ["v1"],
                "operations": ["UPDATE"],
                "resources": ["customresourcedefinitions"],
            }] },
            "matchConditions": [{
                "name": "webhook",
                "expression": format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{NAME}'"),
            }],
            "validations": [{
                "expression": fields.join(" && "),
                "reason": "Forbidden",
                "message": "the conversion webhook may change nothing but spec.conversion.webhook.clientConfig.caBundle",
            }],
        },
    });
    typed("ValidatingAdmissionPolicy", value)
}

fn policy_binding() -> Result<ValidatingAdmissionPolicyBinding, InstallError> {
    let value = json!({
        "metadata": { "name": POLICY, "labels": labels() },
        "spec": { "policyName": POLICY, "validationActions": ["Deny"] },
    });
    typed("ValidatingAdmissionPolicyBinding", value)
}

fn typed<T: serde::de::DeserializeOwned>(kind: &'static str, value: Value) -> Result<T, InstallError> {
    serde_json::from_value(value).map_err(|error| InstallError::Object(kind, error))
}

/// Issuers and certificates of cert-manager. The authority stays when the certificate is renewed, so that the CRD's CA
/// bundle does not change.
fn cert_manager(namespace: &str) -> [Value; 4] {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": { "name": name, "namespace": namespace },
            "spec": spec,
        })
    };
    let authority = "flux-operator-webhook-authority";
    [
        object("Issuer", "flux-operator-webhook-self-signed", json!({ "selfSigned": {} })),
        object(
            "Certificate",
            authority,
            json!({
                "isCA": true, "commonName": authority, "secretName": authority, "duration": "87600h",
                "privateKey": { "algorithm": "ECDSA", "size": 256 },
                "issuerRef": { "kind": "Issuer", "name": "flux-operator-webhook-self-signed" },
            }),
        ),
        object("Issuer", authority, json!({ "ca": { "secretName": authority } })),
        object(
            "Certificate",
            NAME,
            json!({
                "secretName": CERTIFICATE,
                "dnsNames": [format!("{NAME}.{namespace}.svc"), format!("{NAME}.{namespace}.svc.cluster.local")],
                "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
                "issuerRef": { "kind": "Issuer", "name": authority },
            }),
        ),
    ]
}

/// The webhook's Service, which the API server calls.
fn service(namespace: &str) -> Result<Service, InstallError> {
    typed(
        "Service",
        json!({
            "metadata": { "name": NAME, "namespace": namespace, "labels": labels() },
            "spec": {
                "selector": labels(),
                "ports": [{ "name": "webhook", "port": WEBHOOK_SERVICE_PORT, "targetPort": "webhook" }],
            },
        }),
    )
}

/// The webhook's Deployment: two replicas, on different nodes if possible. A replica that is to end serves until nobody
/// calls it any more: for its `preStop`, then for 10 s.
fn deployment(settings: &Installation) -> Result<Deployment, InstallError> {
    let mut args = vec!["webhook".to_owned()];
    if settings.cert_manager {
        args.push(format!("--certificate={DIRECTORY}"));
    }
    let mut value = json!({
        "metadata": { "name": NAME, "namespace": settings.namespace, "labels": labels() },
        "spec": {
            "replicas": 2,
            "strategy": { "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 } },
            "selector": { "matchLabels": labels() },
            "template": {
                "metadata": { "labels": labels() },
                "spec": {
                    "serviceAccountName": NAME,
                    "securityContext": pod_security_context(),
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": 60,
                    "containers": [{
                        "name": "webhook",
                        "image": settings.image,
                        "imagePullPolicy": settings.pull_policy,
                        "args": args,
                        "ports": [
                            { "name": "webhook", "containerPort": PORT },
                            { "name": "health", "containerPort": HEALTH_PORT },
                        ],
                        "readinessProbe": { "httpGet": { "path": "/readyz", "port": "health" }, "periodSeconds": 5 },
                        "livenessProbe": {
                            "httpGet": { "path": "/healthz", "port": "health" },
                            "periodSeconds": 20,
                            "timeoutSeconds": 5,
                        },
                        "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } },
                        "env": [
                            { "name": "HEALTH_ADDRESS", "value": format!("[::]:{HEALTH_PORT}") },
                            { "name": "POD_NAMESPACE", "value": settings.namespace },
                        ],
                        // Bodies and their answers are bounded to a good half of it (webhook/limits.rs).
                        "resources": settings.webhook_resources,
                        "securityContext": container_security_context(),
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                    }],
                },
            },
        },
    });
    let pod = &mut value["spec"]["template"]["spec"];
    super::set_placement(pod, &settings.pods, Some(spread(&labels())));
    if settings.cert_manager {
        pod["volumes"] = json!([{ "name": "certificate", "secret": { "secretName": CERTIFICATE } }]);
        let mount = json!([{ "name": "certificate", "mountPath": DIRECTORY, "readOnly": true }]);
        pod["containers"][0]["volumeMounts"] = mount;
    }
    typed("Deployment", value)
}
