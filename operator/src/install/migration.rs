//! The Job that migrates in the cluster, with an account of its own: the operator itself may not write MiniClusters.

use clap::Args;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::json;

use super::permissions::{Permission, allow};
use super::{DEFAULT_IMAGE, InstallError, NAME, Who, binding, role};
use crate::webhook::migrate;
use crate::yaml;

/// The name of the Job and all that belongs to it.
pub const MIGRATION: &str = "flux-operator-migrate";

/// How to migrate.
#[derive(Debug, Clone, Args)]
pub struct Migration {
    /// Print a Job (with its account and permissions) that migrates in the cluster, and do nothing else
    #[arg(long)]
    pub manifests: bool,
    /// Image of the operator, for the Job; a digest is possible
    #[arg(long, default_value = DEFAULT_IMAGE)]
    pub image: String,
    /// Namespace of the Job
    #[arg(long, default_value = NAME)]
    pub namespace: String,
}

/// All that the Job may do. A test fails when it needs more, or less.
pub const MIGRATION_PERMISSIONS: &[Permission] = &[
    allow("apiextensions.k8s.io", "customresourcedefinitions", &["get"], "which versions are stored")
        .only(&[migrate::CRD]),
    allow("apiextensions.k8s.io", "customresourcedefinitions/status", &["patch"], "to say that v1alpha2 alone is")
        .only(&[migrate::CRD]),
    allow("flux-framework.org", "miniclusters", &["list", "patch"], "to write each one once more, as it is"),
];

/// The Job, and what it needs, in the order in which they can be applied.
pub fn migration(settings: &Migration) -> Result<String, InstallError> {
    let namespace = &settings.namespace;
    let account: ServiceAccount =
        serde_json::from_value(json!({ "metadata": { "name": MIGRATION, "namespace": namespace } }))
            .map_err(|e| InstallError::Object("ServiceAccount", e))?;
    let who = Who { account: MIGRATION, namespace };
    Ok(yaml::stream(vec![
        yaml::document(&account)?,
        role(MIGRATION, None, MIGRATION_PERMISSIONS),
        binding(MIGRATION, None, who),
        yaml::document(&job(settings)?)?,
    ]))
}

fn job(settings: &Migration) -> Result<Job, InstallError> {
    let value = json!({
        "metadata": { "name": MIGRATION, "namespace": settings.namespace },
        "spec": {
            "backoffLimit": 4,
            "template": { "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": MIGRATION,
                "enableServiceLinks": false,
                "securityContext": super::nobody(),
                "containers": [{
                    "name": "migrate",
                    "image": settings.image,
                    "imagePullPolicy": "IfNotPresent",
                    "args": ["migrate"],
                    "resources": { "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } },
                    "securityContext": super::without_privilege(),
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                }],
            } },
        },
    });
    serde_json::from_value(value).map_err(|e| InstallError::Object("Job", e))
}
