//! Checks `gang`: whether all pods start or none.

use std::collections::BTreeMap;

use super::fields::given;
use super::report::Report;
use crate::choices::Gang;
use crate::crd::v1alpha2::{MiniClusterSpec, Pod};
use crate::overlay::Overlay;

/// What puts a pod into a group of the user's own: fields of Kubernetes, a label of scheduler-plugins, an annotation of
/// Volcano.
const FIELDS: [&str; 2] = ["schedulingGroup", "workloadRef"];
const LABEL: &str = "scheduling.x-k8s.io/pod-group";
const ANNOTATION: &str = "scheduling.k8s.io/group-name";

/// `spec.gang`, checked. If the user puts the pods into a group, the result is `off`, and `on` is a problem.
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

/// The path of the field with which the user puts the pods into a group, if there is one.
fn own_group(spec: &MiniClusterSpec, pods: Option<&Overlay>) -> Option<String> {
    let in_overlay = |path: &[&str]| {
        let found = path
            .iter()
            .try_fold(pods?.value(), |value, part| value.get(part))?;
        (!found.is_null()).then(|| format!("spec.podTemplate.{}", path.join(".")))
    };
    let pod = spec.pod.as_ref();
    let has =
        |map: fn(&Pod) -> &BTreeMap<String, String>, key| pod.is_some_and(|pod| map(pod).contains_key(key));
    FIELDS
        .into_iter()
        .find_map(|field| in_overlay(&["spec", field]))
        .or_else(|| in_overlay(&["metadata", "labels", LABEL]))
        .or_else(|| in_overlay(&["metadata", "annotations", ANNOTATION]))
        .or_else(|| has(|pod| &pod.labels, LABEL).then(|| format!("spec.pod.labels[{LABEL}]")))
        .or_else(|| {
            has(|pod| &pod.annotations, ANNOTATION).then(|| format!("spec.pod.annotations[{ANNOTATION}]"))
        })
}
