//! The Job that migrates in the cluster, with an account of its own: the operator itself may not write MiniClusters.

use clap::Args;
use flux_operator_core::yaml;
use serde_json::json;

use super::permissions::{Permission, allow};
use super::task::Task;
use super::{DEFAULT_IMAGE, InstallError, NAME, Pods};
use crate::webhook::migrate;

/// Name of the Job and of the objects that belong to it.
pub const MIGRATION: &str = "flux-operator-migrate";

/// Arguments of `migrate`.
#[derive(Debug, Clone, Args)]
pub struct Migration {
    /// Only print a Job (with its account and permissions) that migrates in the cluster
    #[arg(long)]
    pub manifests: bool,
    /// Image of the operator, for the Job, with a tag or a digest
    #[arg(long, default_value = DEFAULT_IMAGE)]
    pub image: String,
    /// Namespace of the Job
    #[arg(long, default_value = NAME)]
    pub namespace: String,
}

/// The Job's permissions. A test fails if it needs more, or fewer.
pub const MIGRATION_PERMISSIONS: &[Permission] = &[
    allow("apiextensions.k8s.io", "customresourcedefinitions", &["get"], "which versions are stored")
        .only(&[migrate::CRD]),
    allow(
        "apiextensions.k8s.io",
        "customresourcedefinitions/status",
        &["patch"],
        "patch: set storedVersions to v1alpha2 alone",
    )
    .only(&[migrate::CRD]),
    allow("flux-framework.org", "miniclusters", &["list", "patch"], "to rewrite each one unchanged"),
];

/// The Job and the objects that it needs, in the order in which they can be applied.
pub fn migration(settings: &Migration) -> Result<String, InstallError> {
    let task = Task {
        name: MIGRATION,
        namespace: &settings.namespace,
        image: &settings.image,
        pull_policy: "IfNotPresent",
        command: "migrate",
        options: &[],
        resources: json!({ "requests": { "cpu": "50m", "memory": "32Mi" }, "limits": { "memory": "256Mi" } }),
        pods: &Pods::default(),
        retries: 4,
        permissions: MIGRATION_PERMISSIONS,
    };
    Ok(yaml::stream(task.documents()?))
}
