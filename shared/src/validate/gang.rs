//! Whether all pods start or none.

use super::{Report, given};
use crate::choices::Gang;
use crate::crd::v1alpha2::MiniClusterSpec;
use crate::overlay::Overlay;

/// Fields of a pod by which it belongs to a group: in an overlay they are somebody's own gang.
const GROUPS: [&str; 2] = ["schedulingGroup", "workloadRef"];

/// What was asked for; an overlay with a group of its own is as `off`, and does not go with `on`.
pub(super) fn check(spec: &MiniClusterSpec, pods: Option<&Overlay>, report: &mut Report) -> Gang {
    let gang = given(&spec.gang).and_then(|name| report.take("spec.gang", name.parse())).unwrap_or_default();
    let own = |name: &&str| pods.is_some_and(|it| it.value().pointer(&format!("/spec/{name}")).is_some());
    match (GROUPS.into_iter().find(own), gang) {
        (Some(name), Gang::On) => {
            let message =
                format!("makes a group of its own, and spec.podTemplate.spec.{name} names another: give one of them");
            report.problem("spec.gang", message);
            Gang::On
        }
        (Some(_), _) => Gang::Off,
        (None, gang) => gang,
    }
}
