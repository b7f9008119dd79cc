//! `flux-framework.org/v1alpha1`: the older version of the API. There are no types of it: its schema is made of that of
//! v1alpha2, and its objects are converted (see `convert`).
//!
//! It differs from v1alpha2 in what a missing field means. By default, Flux comes from the container's own image and
//! runs as the user flux, sidecars do not wait for the broker, a cluster without a command serves the Flux RESTful API,
//! and the pods are deleted when the job has completed. All fields have the same name and place in both versions, except
//! the `cleanup` fields.

use serde_json::{Value, json};

use super::definition::{DefinitionError, properties_at, schema_at};

/// Descriptions that differ from v1alpha2, by path.
const DESCRIPTIONS: &[(&str, &str)] = &[
    (
        "spec",
        "A MiniCluster is a Flux instance in Kubernetes: an Indexed Job whose pod 0 is the lead broker and whose\n\
         other pods join it. This is the older version, v1alpha1; v1alpha2 is the current one.",
    ),
    (
        "spec.cleanup",
        "When the job has completed (exit code 0), delete the pods, and the PersistentVolumes and claims that\n\
         were created for volumes; a PersistentVolume with delete: false stays. After a failure everything\n\
         stays. The MiniCluster and its status remain. In v1alpha2: cleanupPods.",
    ),
    (
        "spec.cleanupMiniCluster",
        "Delete the MiniCluster, and everything that belongs to it, when the job has finished. In v1alpha2:\n\
         cleanup.",
    ),
    ("spec.flux", "Options of Flux."),
    (
        "spec.flux.arch",
        "Architecture of the nodes, as in their label kubernetes.io/arch: amd64 or arm64 (arm means arm64).",
    ),
    (
        "spec.flux.container",
        "A container that provides Flux. Without this block, Flux comes from the image of the Flux runner.",
    ),
    (
        "spec.flux.installRoot",
        "Prefix of the image's own Flux, such as /opt/flux.",
    ),
    (
        "spec.flux.noWaitSocket",
        "Start the sidecars' commands without waiting for the broker's socket. Default: true.",
    ),
    (
        "spec.fluxRestful",
        "The Flux RESTful API, which the lead serves if the cluster has no command, script or diagnostics and\n\
         is not interactive.",
    ),
    (
        "spec.fluxRestful.branch",
        "Branch or tag of the API's repository.",
    ),
    (
        "spec.fluxRestful.disable",
        "Do not serve the API: without a command, the broker just stays up.",
    ),
    ("spec.fluxRestful.port", "Port that it listens on."),
    (
        "spec.pod.automountServiceAccountToken",
        "Mount the token of the ServiceAccount. Default: true.",
    ),
    ("status.jobid", super::definition::JOBID_DESCRIPTION),
];

/// Descriptions that differ from v1alpha2, by path, of containers and of services.
const CONTAINER_DESCRIPTIONS: &[(&str, &str)] = &[
    (
        "command",
        "On the Flux runner: the job's command, split into arguments with POSIX quoting; without one, the\n\
         lead serves the Flux RESTful API, unless interactive. On a sidecar: shell source. On a service:\n\
         replaces the image's entrypoint.",
    ),
    ("existingVolumes", "Volumes that exist already, by name."),
    (
        "fluxUser",
        "The user to run Flux as; created if missing, which needs root. Default: flux, with id 1000.",
    ),
    ("fluxUser.disable", "Run Flux as the container's own user."),
    ("fluxuser.disable", "Run Flux as the container's own user."),
    (
        "image",
        "Image; that of the Flux runner has Flux in it. Default: ghcr.io/rse-ops/accounting:app-latest.",
    ),
    (
        "securityContext",
        "privileged and addCapabilities; all of Kubernetes' SecurityContext is accepted.",
    ),
    (
        "volumes",
        "Volumes of spec.volumes, by name, and where they are mounted. A volume with a source of its own\n\
         need not be in spec.volumes.",
    ),
    (
        "workingDir",
        "Working directory; created if missing, and owned by the user that Flux runs as. Default: the\n\
         image's.",
    ),
];

/// Changes v1alpha2's schema, which has no bounds and rules yet, to that of v1alpha1.
pub(super) fn change(root: &mut Value) -> Result<(), DefinitionError> {
    let spec = properties_at(root, "spec")?;
    spec.shift_remove("cleanupPods");
    spec.insert("cleanup".into(), json!({ "type": "boolean", "default": true }));
    spec.insert("cleanupMiniCluster".into(), json!({ "type": "boolean" }));
    let jobid = json!({ "type": "string", "default": "" });
    properties_at(root, "status")?.insert("jobid".into(), jobid);
    for (path, description) in DESCRIPTIONS {
        schema_at(root, path)?.insert("description".into(), json!(description));
    }
    for list in ["containers", "services"] {
        for (path, description) in CONTAINER_DESCRIPTIONS {
            let schema = schema_at(root, &format!("spec.{list}.[].{path}"))?;
            schema.insert("description".into(), json!(description));
        }
    }
    for (path, default) in [
        ("spec.flux.installRoot", json!("/usr")),
        ("spec.fluxRestful.branch", json!("main")),
        ("spec.fluxRestful.port", json!(5000)),
    ] {
        let schema = schema_at(root, path)?;
        schema.shift_remove("nullable");
        schema.insert("default".into(), default);
    }
    schema_at(root, "spec.pod.automountServiceAccountToken")?.insert("nullable".into(), json!(true));
    Ok(())
}
