//! Helpers of the unit tests.

use flux_shared::crd::v1alpha2::{Condition, ConditionStatus, MiniClusterStatus};
use flux_shared::validate::{ValidMiniCluster, validate};

use crate::observe::Key;
use crate::target::Target;
use crate::vocabulary::ConditionType;

/// The MiniCluster `mc` of generation 1, without a spec that can be read.
pub(crate) fn target(uid: &str, status: &MiniClusterStatus) -> Target {
    Target {
        key: Key::new("ns", "mc"),
        uid: uid.into(),
        created: None,
        generation: Some(1),
        is_deleting: false,
        queueing: Default::default(),
        has_queueing_changed: false,
        is_job_queued: false,
        spec: Err(Vec::new()),
        status: status.clone(),
        has_status: true,
        resource_version: 1,
    }
}

/// A condition of an earlier status.
pub(crate) fn condition(type_: ConditionType, status: ConditionStatus, reason: &str) -> Condition {
    Condition {
        type_: type_.into(),
        status,
        observed_generation: None,
        last_transition_time: "2026-01-01T00:00:00Z".into(),
        reason: reason.into(),
        message: String::new(),
    }
}

/// The valid MiniCluster `mc` with `spec` (YAML lines) and one container, unless `spec` has containers.
pub(crate) fn cluster(spec: &str) -> ValidMiniCluster {
    let containers = if spec.contains("containers:") {
        ""
    } else {
        "\n  containers: [{image: app:1, command: hostname}]"
    };
    let indented = spec.replace('\n', "\n  ");
    let text = format!(
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc, namespace: ns}}\nspec:\n  {indented}{containers}\n"
    );
    let manifest =
        flux_shared::manifest::parse(&text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
    validate(&manifest).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
}
