//! `gang`: whether all pods start or none.

use std::collections::BTreeMap;

use super::fields::given;
use super::report::Report;
use crate::choices::Gang;
use crate::crd::v1alpha2::{MiniClusterSpec, Pod};
use crate::overlay::Overlay;

/// By which a pod belongs to a group of the user's own: Kubernetes' fields, scheduler-plugins' label,
/// Volcano's annotation.
const FIELDS: [&str; 2] = ["schedulingGroup", "workloadRef"];
const LABEL: &str = "scheduling.x-k8s.io/pod-group";
const ANNOTATION: &str = "scheduling.k8s.io/group-name";

/// `spec.gang`, checked. Pods with a group of their own mean `off` and contradict `on`.
pub(super) fn check(spec: &MiniClusterSpec, pods: Option<&Overlay>, report: &mut Report) -> Gang {
    let gang = given(&spec.gang)
        .and_then(|name| report.take("spec.gang", name.parse()))
        .unwrap_or_default();
    match (own_group(spec, pods), gang) {
        (Some(field), Gang::On) => {
            let message = format!(
                "`on` creates a group for the pods, and {field} puts them into another: remove one of the two"
            );
            report.problem("spec.gang", message);
            Gang::On
        }
        (Some(_), _) => Gang::Off,
        (None, gang) => gang,
    }
}

/// The field that names a group of the user's own, if there is one.
fn own_group(spec: &MiniClusterSpec, pods: Option<&Overlay>) -> Option<String> {
    let over = |path: &[&str]| {
        let found = path
            .iter()
            .try_fold(pods?.value(), |value, part| value.get(part))?;
        (!found.is_null()).then(|| format!("spec.podTemplate.{}", path.join(".")))
    };
    let pod = spec.pod.as_ref();
    let has =
        |all: fn(&Pod) -> &BTreeMap<String, String>, key| pod.is_some_and(|pod| all(pod).contains_key(key));
    FIELDS
        .into_iter()
        .find_map(|field| over(&["spec", field]))
        .or_else(|| over(&["metadata", "labels", LABEL]))
        .or_else(|| over(&["metadata", "annotations", ANNOTATION]))
        .or_else(|| has(|pod| &pod.labels, LABEL).then(|| format!("spec.pod.labels[{LABEL}]")))
        .or_else(|| {
            has(|pod| &pod.annotations, ANNOTATION).then(|| format!("spec.pod.annotations[{ANNOTATION}]"))
        })
}
