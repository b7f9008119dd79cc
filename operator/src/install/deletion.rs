//! The Job that deletes all MiniClusters before the chart deletes their definition, with an account of its own. Without the
//! chart, an administrator does that with kubectl.

use super::permissions::{Permission, allow};
use super::task::Task;
use super::{InstallError, Installation};

/// Name of the Job and of the objects that belong to it.
pub const DELETION: &str = "flux-operator-delete-miniclusters";

/// The Job's permissions. A test fails if it needs more, or fewer.
pub const DELETION_PERMISSIONS: &[Permission] = &[
    allow("flux-framework.org", "miniclusters", &["list", "delete"], "all of them; wait until they are gone"),
    allow("", "persistentvolumes", &["list", "delete"], "those created for them, except kept ones"),
];

/// The Job and the objects that it needs, in the order in which they can be applied.
pub fn deletion(settings: &Installation) -> Result<Vec<String>, InstallError> {
    let task = Task {
        name: DELETION,
        namespace: &settings.namespace,
        image: &settings.image,
        pull_policy: &settings.pull_policy,
        command: "delete-miniclusters",
        options: &["--all"],
        resources: settings.resources.clone(),
        pods: &settings.pods,
        retries: 2,
        permissions: DELETION_PERMISSIONS,
    };
    task.documents()
}
