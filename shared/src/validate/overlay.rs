//! Checks the pod overlays: they must be well formed, and not change what the operator or the agent relies on.

use serde_json::Value;

use super::ViewContainer;
use super::containers::Parts;
use super::flux::OWN_VOLUMES;
use super::report::Report;
use crate::crd::v1alpha2::MiniClusterSpec;
use crate::names::{AGENT_CONTAINER, SOFTWARE_CONTAINER};
use crate::overlay::{ContainerKind, Overlay, RenderedPod};
use crate::paths;

/// Checks `podTemplate` and `servicesPodTemplate`.
pub(super) fn check(
    spec: &MiniClusterSpec,
    view: &ViewContainer,
    parts: &Parts,
    report: &mut Report,
) -> (Option<Overlay>, Option<Overlay>) {
    let brokers = checked(
        "spec.podTemplate",
        &spec.pod_template,
        || pod(view, parts),
        report,
    );
    let services = &parts.services;
    let containers = || {
        services
            .iter()
            .map(|service| (service.name.clone(), ContainerKind::Service))
            .collect()
    };
    let field = "spec.servicesPodTemplate";
    let services_pod = checked(
        field,
        &spec.services_pod_template,
        || RenderedPod {
            containers: containers(),
            ..RenderedPod::default()
        },
        report,
    );
    if services_pod.is_some() && spec.services.is_empty() {
        report.problem(
            field,
            "has no effect: there is no services pod without spec.services",
        );
    }
    (brokers, services_pod)
}

/// Checks the overlay in `field`; an empty one counts as none. `pod`: the rendered pod that it applies to.
fn checked(
    field: &str,
    value: &Option<Value>,
    pod: impl Fn() -> RenderedPod,
    report: &mut Report,
) -> Option<Overlay> {
    let value = value
        .as_ref()
        .filter(|value| value.as_object().is_none_or(|map| !map.is_empty()))?;
    match Overlay::checked(field, value, &pod()) {
        Ok(overlay) => Some(overlay),
        Err(problems) => {
            report.problems.extend(problems);
            None
        }
    }
}

/// What the check of an overlay needs to know of the Job's rendered pods.
fn pod(view: &ViewContainer, parts: &Parts) -> RenderedPod {
    let runner = parts
        .runner
        .iter()
        .map(|runner| (runner.container.name.clone(), ContainerKind::Runner));
    let sidecars = parts.sidecars.iter().map(|sidecar| {
        let kind = if sidecar.wrapped.is_some() {
            ContainerKind::WrappedSidecar
        } else {
            ContainerKind::Sidecar
        };
        (sidecar.container.name.clone(), kind)
    });
    let operators_containers =
        [AGENT_CONTAINER, &view.name, SOFTWARE_CONTAINER].map(|name| (name.to_owned(), ContainerKind::Own));
    // `own_folders` lacks these, since a volume of `spec.containers[]` may replace the operator's mount there. An
    // overlay's mount cannot replace it: mounts of the same path are merged. So the check refuses it.
    let other_mounts = [paths::FALLBACK_HOME, paths::MUNGE_DIR];
    let own_mounts = paths::own_folders(&view.mount_path)
        .into_iter()
        .chain(other_mounts);
    RenderedPod {
        containers: runner.chain(sidecars).chain(operators_containers).collect(),
        own_volumes: OWN_VOLUMES
            .iter()
            .map(|name| (*name).to_owned())
            // The view's volume has the name of its container.
            .chain([view.name.clone()])
            .collect(),
        own_mounts: own_mounts.map(str::to_owned).collect(),
    }
}
