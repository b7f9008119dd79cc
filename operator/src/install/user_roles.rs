//! Roles for people, aggregated into Kubernetes' roles view, edit and admin.

use super::permissions::{EDIT_PERMISSIONS, VIEW_PERMISSIONS};
use super::role_with_labels;

/// ClusterRoles that are aggregated into Kubernetes' `view` (read MiniClusters), and into `edit` and `admin` (create them:
/// these roles may create pods).
pub(super) fn roles() -> [String; 2] {
    let aggregate = |to: &[&str]| -> String {
        let label = |role: &&str| format!("    rbac.authorization.k8s.io/aggregate-to-{role}: \"true\"\n");
        format!("  labels:\n{}", to.iter().map(label).collect::<String>())
    };
    [
        role_with_labels("miniclusters-view", None, &aggregate(&["view"]), VIEW_PERMISSIONS),
        role_with_labels("miniclusters-edit", None, &aggregate(&["edit", "admin"]), EDIT_PERMISSIONS),
    ]
}
