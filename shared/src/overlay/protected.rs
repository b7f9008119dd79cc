//! Finds changes by an overlay to parts of a pod that the operator or the agent relies on. Messages give the reason
//! and the remedy.

use serde_json::{Map, Value};

use super::strategic_merge::{PATCH, RETAIN_KEYS, directive};
use crate::names::{
    COMPLETION_INDEX, COMPLETION_INDEX_IS_SET, INDEX_DISRUPTIONS, INDEX_FAILURES, JOB_LABELS, OWN_POD_LABELS,
    POD_ADDRESS, reserved_annotation,
};
use crate::paths::{AGENT_FOLDER, is_within};
use crate::problem::Problem;

/// What a container of the rendered pod is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs Flux, with the agent as its entrypoint.
    Runner,
    /// A sidecar with the agent as its entrypoint.
    WrappedSidecar,
    /// A sidecar with its image's own entrypoint.
    Sidecar,
    /// A container of the services pod.
    Service,
    /// One of the operator's init containers.
    Own,
}

/// The rendered pod to which an overlay applies.
#[derive(Debug, Default)]
pub struct RenderedPod {
    /// Containers by name.
    pub containers: Vec<(String, ContainerKind)>,
    /// Names of the operator's volumes.
    pub own_volumes: Vec<String>,
    /// Paths of the operator's mounts: nothing may be mounted there or within.
    pub own_mounts: Vec<String>,
}

/// Fields of a pod that an overlay may not set, and why.
const POD_FIELDS: [(&str, &str); 9] = [
    ("hostname", "the pod is found by it"),
    (
        "subdomain",
        "the pod is found by it: set spec.network.headlessName",
    ),
    ("setHostnameAsFQDN", "the pod is found by its host name"),
    ("hostnameOverride", "the pod is found by its host name"),
    (
        "restartPolicy",
        "restarts depend on it: set spec.pod.restartPolicy",
    ),
    (
        "terminationGracePeriodSeconds",
        "the agent needs to know it: set spec.pod.terminationGracePeriodSeconds",
    ),
    (
        "activeDeadlineSeconds",
        "it would count as the loss of a pod: set spec.deadlineSeconds",
    ),
    (
        "securityContext",
        "access to the certificate depends on it: set spec.pod.securityContext",
    ),
    (
        "ephemeralContainers",
        "pod templates cannot have any: kubectl debug adds them",
    ),
];
/// Those of [`POD_FIELDS`] that an overlay of the services pod may not set either. The operator sets `hostname` and
/// `subdomain` of this pod for its DNS name, and its `restartPolicy` from `spec.pod`. The pod has neither the agent nor
/// the certificate, and belongs to no Job. So an overlay may set the other fields.
const SERVICES_POD_FIELDS: [&str; 6] = [
    "hostname",
    "subdomain",
    "setHostnameAsFQDN",
    "hostnameOverride",
    "restartPolicy",
    "ephemeralContainers",
];

/// Why `command` and `args` cannot be set.
const ENTRYPOINT: &str = "the agent is the entrypoint: set spec.containers[].command";
/// Fields that an overlay may not set in containers of `spec.containers`, and why.
const CONTAINER_FIELDS: [(&str, &str); 2] = [
    (
        "image",
        "how Flux gets into the pod depends on it: set spec.containers[].image",
    ),
    (
        "securityContext",
        "it decides who can write files that root runs: set spec.containers[].securityContext",
    ),
];
/// Further such fields in the container that runs Flux.
const RUNNER_FIELDS: [(&str, &str); 7] = [
    ("command", ENTRYPOINT),
    ("args", ENTRYPOINT),
    (
        "workingDir",
        "the agent needs to know it: set spec.containers[].workingDir",
    ),
    (
        "startupProbe",
        "the operator uses it to tell which brokers are ready; livenessProbe and readinessProbe can be set",
    ),
    (
        "terminationMessagePath",
        "the agent reports there how the job ended",
    ),
    (
        "terminationMessagePolicy",
        "the agent uses it to report how the job ended",
    ),
    (
        "restartPolicyRules",
        "the program would run again: set spec.backoffLimit and spec.maxRestarts",
    ),
];
/// A field that an overlay may not set in the runner and the sidecars, and why.
const RESTART_POLICY: (&str, &str) = (
    "restartPolicy",
    "with it the pod would not end with the container that runs Flux",
);
/// Most init containers that a user may add. Each may need a rule in the Job's failure policy, as do the operator's own,
/// and Kubernetes allows 20 rules.
const MOST_INIT_CONTAINERS: usize = 12;

impl RenderedPod {
    /// Whether this is the services pod.
    fn is_services(&self) -> bool {
        self.containers
            .iter()
            .any(|(_, kind)| *kind == ContainerKind::Service)
    }

    /// The kind of the container with this name. None: the overlay adds it.
    fn kind_of(&self, name: &str) -> Option<ContainerKind> {
        self.containers
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, kind)| *kind)
    }

    /// Problems with everything in a well-formed overlay that it may not change.
    pub(super) fn problems(&self, field: &str, overlay: &Value) -> Vec<Problem> {
        let mut found = Found::default();
        for (key, value) in members(overlay) {
            let path = format!("{field}.{key}");
            match key.as_str() {
                "metadata" => self.metadata(&path, value, &mut found),
                "spec" => self.spec(&path, value, &mut found),
                PATCH | RETAIN_KEYS => found.add(path, REMOVES_FIELDS),
                _ => found.add(
                    path,
                    "no such field: it has metadata and spec, as a Job's template has them",
                ),
            }
        }
        found.0
    }

    fn metadata(&self, path: &str, metadata: &Value, found: &mut Found) {
        found.reject_removal(path, metadata);
        for (key, value) in members(metadata) {
            let path = format!("{path}.{key}");
            match key.as_str() {
                "annotations" => {
                    found.reject_removal(&path, value);
                    for (key, _) in members(value) {
                        if let Some(why) = reserved_annotation(key) {
                            found.add(format!("{path}[{key}]"), why);
                        }
                    }
                }
                "labels" => {
                    found.reject_removal(&path, value);
                    for (key, _) in members(value) {
                        let is_operators =
                            OWN_POD_LABELS.contains(&key.as_str()) || key.starts_with("flux-framework.org/");
                        let of_job = JOB_LABELS.contains(&key.as_str());
                        if is_operators {
                            found.add(
                                format!("{path}[{key}]"),
                                "is set by the operator: Services and the status rely on it",
                            );
                        } else if of_job || key.starts_with("batch.kubernetes.io/") {
                            found.add(
                                format!("{path}[{key}]"),
                                "is set by Kubernetes: the Job finds its pods by it",
                            );
                        }
                    }
                }
                // `reject_removal` has rejected them above.
                PATCH | RETAIN_KEYS => {}
                "finalizers" => found.add(path, "the pods would never be deleted"),
                // Kubernetes' tools write `creationTimestamp: null`.
                _ if value.is_null() => {}
                _ => found.add(
                    path,
                    "is set by Kubernetes: only labels and annotations can be set",
                ),
            }
        }
    }

    fn spec(&self, path: &str, spec: &Value, found: &mut Found) {
        found.reject_removal(path, spec);
        let is_services = self.is_services();
        for (key, value) in members(spec) {
            let path = format!("{path}.{key}");
            match key.as_str() {
                "containers" | "initContainers" => self.containers(&path, key, value, found),
                "volumes" => {
                    found.reject_list_removal(&path, value);
                    for (i, item) in items(value) {
                        if text(item, "name")
                            .is_some_and(|name| self.own_volumes.iter().any(|own| own == name))
                        {
                            found.add(
                                format!("{path}[{i}]"),
                                "is a volume of the operator: choose another name",
                            );
                        }
                    }
                }
                key if is_empty_context(key, value) => {}
                key => {
                    let is_protected = |(name, _): &&(&str, &str)| {
                        *name == key && (!is_services || SERVICES_POD_FIELDS.contains(name))
                    };
                    if let Some((_, why)) = POD_FIELDS.iter().find(is_protected) {
                        found.add(path, *why);
                    }
                }
            }
        }
    }

    fn containers(&self, path: &str, list: &str, value: &Value, found: &mut Found) {
        found.reject_list_removal(path, value);
        let is_new = |item: &Value| text(item, "name").is_some_and(|name| self.kind_of(name).is_none());
        // The services pod belongs to no Job.
        if list == "initContainers"
            && !self.is_services()
            && items(value).filter(|(_, item)| is_new(item)).count() > MOST_INIT_CONTAINERS
        {
            let why = format!(
                "at most {MOST_INIT_CONTAINERS} of your own: each needs a rule in the Job's failure policy"
            );
            found.add(path, why);
        }
        for (i, item) in items(value) {
            let path = format!("{path}[{i}]");
            let name = text(item, "name").unwrap_or_default();
            let kind = self.kind_of(name);
            if kind.is_some() && directive(item).is_some() {
                found.add(
                    path,
                    "is needed: to do without it, remove it from spec.containers or spec.services",
                );
                continue;
            }
            if kind.is_some() && has_retain_keys(item) {
                found.add(path, REMOVES_FIELDS);
                continue;
            }
            let is_init = list == "initContainers";
            match kind {
                Some(ContainerKind::Own) => {
                    found.add(path, "is a container of the operator: set spec.flux.container, which has its resources, or choose another name");
                    continue;
                }
                Some(ContainerKind::Sidecar | ContainerKind::WrappedSidecar) if !is_init => {
                    found.add(
                        path,
                        "is one of the pod's initContainers, since it ends with Flux: put it there",
                    );
                    continue;
                }
                Some(ContainerKind::Runner | ContainerKind::Service) if is_init => {
                    found.add(path, "is one of the pod's containers: put it there");
                    continue;
                }
                // An item with a directive adds no container.
                None if !is_init && directive(item).is_none() => {
                    found.add(
                        format!("{path}.name"),
                        format!(
                            "`{name}` is not a container of the pod: add it to spec.{}, or lay it over one of {}",
                            if self.is_services() { "services" } else { "containers" },
                            self.names(&[ContainerKind::Runner, ContainerKind::Service]).join(", "),
                        ),
                    );
                    continue;
                }
                _ => {}
            }
            self.container(&path, item, kind, found);
        }
    }

    fn container(&self, path: &str, container: &Value, kind: Option<ContainerKind>, found: &mut Found) {
        let fields: &[&[(&str, &str)]] = match kind {
            Some(ContainerKind::Runner) => &[&CONTAINER_FIELDS, &RUNNER_FIELDS, &[RESTART_POLICY]],
            Some(ContainerKind::WrappedSidecar) => &[
                &CONTAINER_FIELDS,
                &[("command", ENTRYPOINT), ("args", ENTRYPOINT), RESTART_POLICY],
            ],
            Some(ContainerKind::Sidecar) => &[&CONTAINER_FIELDS, &[RESTART_POLICY]],
            Some(ContainerKind::Service | ContainerKind::Own) | None => &[],
        };
        for (key, value) in members(container).filter(|(key, value)| !is_empty_context(key, value)) {
            let path = format!("{path}.{key}");
            if let Some((_, why)) = fields.iter().copied().flatten().find(|(name, _)| *name == key) {
                found.add(path, *why);
                continue;
            }
            match key.as_str() {
                "volumeMounts" => self.mounts(&path, value, kind, found),
                "env" if kind == Some(ContainerKind::Runner) => {
                    found.reject_list_removal(&path, value);
                    for (i, item) in items(value) {
                        let set_by_operator = [INDEX_FAILURES.0, INDEX_DISRUPTIONS.0, POD_ADDRESS.0];
                        let why = match text(item, "name") {
                            Some(COMPLETION_INDEX) => COMPLETION_INDEX_IS_SET,
                            Some(name) if set_by_operator.contains(&name) => {
                                "is set by the operator: the agent counts starts and finds its address by it"
                            }
                            _ => continue,
                        };
                        found.add(format!("{path}[{i}]"), why);
                    }
                }
                "resources" if kind == Some(ContainerKind::Runner) => {
                    let protected = members(value).filter(|(key, _)| {
                        matches!(key.as_str(), "limits" | "requests" | PATCH | RETAIN_KEYS)
                    });
                    for (key, _) in protected {
                        let why = "the agent needs to know its GPUs: set spec.containers[].resources; claims can be set";
                        found.add(format!("{path}.{key}"), why);
                    }
                    if value.is_null() {
                        found.add(path, REMOVES_FIELDS);
                    }
                }
                _ => {}
            }
        }
    }

    fn mounts(&self, path: &str, mounts: &Value, kind: Option<ContainerKind>, found: &mut Found) {
        // A container that the overlay adds (None) has no mounts of the operator.
        if kind.is_some() {
            found.reject_list_removal(path, mounts);
        }
        for (i, item) in items(mounts) {
            let path = format!("{path}[{i}]");
            if text(item, "name").is_some_and(|name| self.own_volumes.iter().any(|own| own == name)) {
                found.add(
                    format!("{path}.name"),
                    "is a volume of the operator, which mounts it where it is needed",
                );
            }
            let Some(place) = text(item, "mountPath") else {
                continue;
            };
            let parts: Vec<&str> = place
                .split('/')
                .filter(|part| !part.is_empty() && *part != ".")
                .collect();
            let plain = format!("/{}", parts.join("/"));
            // The services pod has no `own_mounts`: in it, only `AGENT_FOLDER` is refused.
            if is_within(
                &plain,
                self.own_mounts.iter().map(String::as_str).chain([AGENT_FOLDER]),
            ) {
                found.add(
                    format!("{path}.mountPath"),
                    format!("{plain} is a mount path of the operator: choose another"),
                );
            } else if parts.contains(&"..") {
                found.add(format!("{path}.mountPath"), "must be a path without `..`");
            }
        }
    }

    /// Names of the containers of these kinds.
    fn names(&self, kinds: &[ContainerKind]) -> Vec<&str> {
        self.containers
            .iter()
            .filter(|(_, kind)| kinds.contains(kind))
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

/// The message about removing or replacing an object or list of the operator's.
const REMOVES_FIELDS: &str = "would remove fields that the pod needs: set only the fields to change";

/// The problems so far.
#[derive(Default)]
struct Found(Vec<Problem>);

impl Found {
    fn add(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.0.push(Problem::new(field, why));
    }

    /// Rejects the removal or replacement of an object in which the operator sets fields, also by another type.
    fn reject_removal(&mut self, path: &str, value: &Value) {
        if directive(value).is_some() || has_retain_keys(value) || value.is_null() {
            self.add(path, REMOVES_FIELDS);
        } else if !value.is_object() {
            self.add(path, "must be an object");
        }
    }

    /// Rejects the removal or replacement of a list in which the operator sets items, also by another type.
    fn reject_list_removal(&mut self, path: &str, value: &Value) {
        let replaces = items(value).any(|(_, item)| directive(item) == Some("replace"));
        if replaces || !value.is_array() {
            self.add(
                path,
                if value.is_null() || replaces {
                    REMOVES_FIELDS
                } else {
                    "must be a list"
                },
            );
        }
    }
}

/// Whether the object has `$retainKeys`, which removes every key that it does not name.
fn has_retain_keys(value: &Value) -> bool {
    value.get(RETAIN_KEYS).is_some()
}

/// Whether the field is an empty `securityContext`, as Kubernetes' tools write it. It changes nothing.
fn is_empty_context(key: &str, value: &Value) -> bool {
    key == "securityContext" && value.as_object().is_some_and(Map::is_empty)
}

/// The fields of an object; none for another value.
fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

/// The items of a list with their positions; none for another value.
fn items(value: &Value) -> impl Iterator<Item = (usize, &Value)> {
    value.as_array().into_iter().flatten().enumerate()
}

/// The text in the field `key` of an object.
fn text<'a>(item: &'a Value, key: &str) -> Option<&'a str> {
    item.get(key)?.as_str()
}
