//! The Job that deletes all MiniClusters before the chart deletes their definition, with an account of its own. Without the chart
//! a person does that, by kubectl.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::json;

use super::permissions::{Permission, allow};
use super::{InstallError, Installation, Who, binding, place, role};
use crate::yaml;

/// The name of the Job and all that belongs to it.
pub const DELETION: &str = "flux-operator-delete-miniclusters";

/// All that the Job may do. A test fails when it needs more, or less.
pub const DELETION_PERMISSIONS: &[Permission] = &[
    allow("flux-framework.org", "miniclusters", &["list", "delete"], "all of them, and whether they are gone"),
    allow("", "persistentvolumes", &["list", "delete"], "those that were made for them, and are not to be kept"),
];

/// The Job, and what it needs, in the order in which they can be applied.
pub fn deletion(settings: &Installation) -> Result<Vec<String>, InstallError> {
    let namespace = &settings.namespace;
    let account: ServiceAccount =
        serde_json::from_value(json!({ "metadata": { "name": DELETION, "namespace": namespace } }))
            .map_err(|e| InstallError::Object("ServiceAccount", e))?;
    let who = Who { account: DELETION, namespace };
    Ok(vec![
        yaml::document(&account)?,
        role(DELETION, None, DELETION_PERMISSIONS),
        binding(DELETION, None, who),
        yaml::document(&job(settings)?)?,
    ])
}

fn job(settings: &Installation) -> Result<Job, InstallError> {
    let mut value = json!({
        "metadata": { "name": DELETION, "namespace": settings.namespace },
        "spec": {
            "backoffLimit": 2,
            "template": { "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": DELETION,
                "enableServiceLinks": false,
                "securityContext": super::nobody(),
                "containers": [{
                    "name": "delete-miniclusters",
                    "image": settings.image,
                    "imagePullPolicy": settings.pull_policy,
                    "args": ["delete-miniclusters", "--all"],
                    "resources": settings.resources,
                    "securityContext": super::without_privilege(),
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                }],
            } },
        },
    });
    place(&mut value["spec"]["template"]["spec"], &settings.pods, None);
    serde_json::from_value(value).map_err(|e| InstallError::Object("Job", e))
}
