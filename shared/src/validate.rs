//! A MiniCluster is checked once, into a type that later steps read; all problems are reported, each with its field.
//!
//! ```text
//! Manifest ─► sizes, flux, pod, storage, containers (volumes), access ─► ValidMiniCluster (─► notes), or every Problem
//! ```
//!
//! What CEL rules of the CRD can say is said there too (`crd::definition`), so that the API server refuses it first.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::agent_spec::LogFormat;
use crate::crd::v1alpha2::{Logging, MiniClusterSpec, Network, Resources, headless_name};
use crate::names;
use crate::quantity::Quantity;
use crate::queueing::{Asked, Queueing};

mod access;
mod containers;
mod flux;
mod gang;
mod hints;
mod metrics;
mod notes;
mod overlay;
mod pod;
mod program;
mod storage;
mod valid;
mod volumes;

pub use crate::choices::{Gang, ViewSource};
pub use crate::problem::{Notice, Problem};
pub use valid::{
    FluxOptions, Mount, PersistentSource, PersistentVolume, PullPolicy, Restful, Runner, Sidecar, ValidContainer,
    ValidMiniCluster, ValidUser, ViewContainer, VolumeSource,
};

/// The image of a container that names none, as upstream's schema has it.
pub const DEFAULT_IMAGE: &str = "ghcr.io/rse-ops/accounting:app-latest";
/// `backoffLimit` where none is given.
pub const DEFAULT_BACKOFF_LIMIT: i32 = 100;
/// Most pods of a cluster.
pub const MAX_SIZE: i32 = 10_000;
/// Most bytes of commands, scripts and snippets together: a ConfigMap holds 1 MiB.
pub const MAX_TEXT: usize = 900_000;

/// A MiniCluster read from text or from the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub name: String,
    /// Empty in the manifest: `default`.
    pub namespace: String,
    /// Of its labels and annotations, those that are a queue's.
    pub queueing: Queueing,
    pub spec: MiniClusterSpec,
}

/// Collects problems with the path of where it stands.
#[derive(Debug, Default)]
struct Report {
    problems: Vec<Problem>,
    notices: Vec<Notice>,
}

impl Report {
    fn problem(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem::new(field, message));
    }

    fn notice(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.notices.push(Problem::new(field, message));
    }

    /// `value`, or a problem.
    fn take<T>(&mut self, field: impl Into<String>, value: Result<T, String>) -> Option<T> {
        value.map_err(|message| self.problem(field, message)).ok()
    }
}

/// The same as [`validate`], with notices of what has no effect as it stands. For the operator: the agent's dry-run shows
/// what is done instead.
pub fn validate_and_note(manifest: &Manifest) -> Result<ValidMiniCluster, Vec<Problem>> {
    let mut cluster = validate(manifest)?;
    let mut report = Report::default();
    notes::tell(&manifest.spec, &cluster, &mut report);
    cluster.notices.extend(report.notices);
    Ok(cluster)
}

/// The checked MiniCluster, or every problem.
pub fn validate(manifest: &Manifest) -> Result<ValidMiniCluster, Vec<Problem>> {
    let spec = &manifest.spec;
    let mut report = Report::default();
    let sizes = sizes(manifest, &mut report);
    let network = network(spec, &mut report);
    limits(spec, &mut report);
    let archive = archive(spec, &mut report);
    let flux = flux::check(spec, &manifest.name, sizes, &mut report);
    let view = flux::view(spec, &mut report);
    let pod = pod::check(spec.pod.clone().unwrap_or_default(), &mut report);
    let volumes = storage::check(spec, &manifest.name, &manifest.namespace, &mut report);
    let mut parts = containers::check(spec, &manifest.name, &view, flux.wait_socket, &mut report);
    let users = access::users(spec, parts.runner.as_ref(), &mut report);
    let restful = access::restful(spec, parts.runner.as_mut(), flux.lead.is_some(), &mut report);
    let arch = pod::arch(spec, &pod, &mut report);
    let (pod_template, services_pod_template) = overlay::check(spec, &view, &parts, &mut report);
    let gang = gang::check(spec, pod_template.as_ref(), &mut report);
    let queueing = queueing(manifest, sizes, &pod.annotations, &mut report);
    let (logging, log_format) = logging(spec, &mut report);
    let Some(runner) = parts.runner.filter(|_| report.problems.is_empty()) else {
        return Err(report.problems);
    };
    Ok(ValidMiniCluster {
        name: manifest.name.clone(),
        namespace: manifest.namespace.clone(),
        size: sizes.size,
        max_size: sizes.max_size,
        min_size: sizes.min_size,
        tasks: spec.tasks.unsigned_abs(),
        interactive: spec.interactive,
        job_labels: spec.job_labels.clone(),
        queueing,
        resizes: resizes(spec),
        deadline_seconds: spec.deadline_seconds,
        backoff_limit: spec.backoff_limit.unwrap_or(DEFAULT_BACKOFF_LIMIT),
        max_restarts: spec.max_restarts,
        cleanup: spec.cleanup,
        cleanup_pods: spec.cleanup_pods,
        ttl_seconds_after_finished: spec.ttl_seconds_after_finished,
        suspend: spec.suspend,
        share_process_namespace: spec.share_process_namespace,
        archive,
        headless_name: network.headless_name,
        disable_affinity: network.disable_affinity,
        arch,
        view,
        flux,
        logging,
        log_format,
        pod,
        gang,
        pod_template,
        services_pod_template,
        users,
        restful,
        volumes,
        runner,
        sidecars: parts.sidecars,
        services: parts.services,
        notices: report.notices,
    })
}

/// The Service that names the pods, and whether they are kept apart.
fn network(spec: &MiniClusterSpec, report: &mut Report) -> Network {
    let mut network = spec.network.clone().unwrap_or_default();
    if network.headless_name.is_empty() {
        network.headless_name = headless_name();
    }
    if !names::is_service_name(&network.headless_name) {
        report.problem(
            "spec.network.headlessName",
            "must be a Service name: lower case letters, digits and `-`, beginning with a letter, 63 at most",
        );
    }
    network
}

/// Whether its size is meant to change.
fn resizes(spec: &MiniClusterSpec) -> bool {
    spec.max_size.is_some_and(|max| max != 0)
}

/// What a queue is told.
fn queueing(
    manifest: &Manifest,
    sizes: Sizes,
    pod_annotations: &BTreeMap<String, String>,
    report: &mut Report,
) -> Queueing {
    let spec = &manifest.spec;
    labels("metadata.labels", &manifest.queueing.labels, report);
    let asked = Asked {
        size: sizes.size,
        min_size: sizes.min_size,
        resizes: resizes(spec),
        job_labels: &spec.job_labels,
        pod_annotations,
    };
    let (queueing, problems) = manifest.queueing.clone().check(&asked);
    report.problems.extend(problems);
    if queueing.queue().is_some() && spec.suspend.is_some() {
        report.notice("spec.suspend", "has no effect in a queue, which alone suspends and resumes what waits in it");
    }
    queueing
}

fn logging(spec: &MiniClusterSpec, report: &mut Report) -> (Logging, LogFormat) {
    let logging = spec.logging.clone().unwrap_or_default();
    let format = given(&logging.format).and_then(|name| report.take("spec.logging.format", name.parse()));
    (logging, format.unwrap_or_default())
}

/// Who serves it.
fn managed_by(spec: &MiniClusterSpec, report: &mut Report) {
    let Some(name) = given(&spec.managed_by) else { return };
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte));
    let is_good = |(domain, path): (&str, &str)| names::is_dns_subdomain(domain) && !path.is_empty() && is_name(path);
    if name.len() > 63 || !name.split_once('/').is_some_and(is_good) {
        report.problem(
            "spec.managedBy",
            "must be a domain, `/` and a path, such as kueue.x-k8s.io/multikueue, 63 characters at most; leave it out for this operator",
        );
    }
}

/// How long, how often, and the Job's labels.
fn limits(spec: &MiniClusterSpec, report: &mut Report) {
    managed_by(spec, report);
    labels("spec.jobLabels", &spec.job_labels, report);
    if spec.deadline_seconds.is_some_and(|seconds| seconds < 1) {
        report.problem("spec.deadlineSeconds", "must be 1 or more; leave it out for no deadline");
    }
    if spec.backoff_limit.is_some_and(|limit| limit < 0) {
        report.problem("spec.backoffLimit", "must be 0 or more");
    }
    if spec.max_restarts < 0 {
        report.problem("spec.maxRestarts", "must be 0 or more");
    }
    if spec.ttl_seconds_after_finished.is_some_and(|seconds| seconds < 0) {
        report.problem("spec.ttlSecondsAfterFinished", "must be 0 or more");
    }
}

/// The file that Flux's state is kept in.
fn archive(spec: &MiniClusterSpec, report: &mut Report) -> Option<String> {
    let archive = spec.archive.as_ref().map(|archive| archive.path.clone()).filter(|path| !path.is_empty());
    if let Some(path) = &archive {
        if !path.starts_with('/') || path.ends_with('/') {
            report.problem("spec.archive.path", "must be the absolute path of a file, such as /state/archive.tgz");
        } else if names::archive_suffix(path).is_none() {
            let suffixes = names::ARCHIVE_SUFFIXES.join(", ");
            report.problem("spec.archive.path", format!("must end in one of {suffixes}: Flux knows the format by it"));
        }
    }
    archive
}

/// The sizes, as far as they are usable.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    size: u32,
    max_size: u32,
    min_size: Option<u32>,
}

fn sizes(manifest: &Manifest, report: &mut Report) -> Sizes {
    let spec = &manifest.spec;
    if spec.size < 1 || spec.size > MAX_SIZE {
        report.problem("spec.size", format!("must be 1 to {MAX_SIZE}"));
    }
    let max_size = spec.max_size.filter(|max| *max != 0).unwrap_or(spec.size);
    if max_size < spec.size {
        report.problem("spec.maxSize", "must not be smaller than size");
    }
    if max_size > MAX_SIZE {
        report.problem("spec.maxSize", format!("must be {MAX_SIZE} at most"));
    }
    let min_size = spec.min_size.filter(|min| *min != 0);
    if min_size.is_some_and(|min| min < 0 || min > spec.size) {
        report.problem("spec.minSize", "must be 1 to size");
    }
    if spec.tasks < 0 {
        report.problem("spec.tasks", "must be 0 or more; 0 asks for nodes only (-N size)");
    }
    let usable = |size: i32| size.clamp(1, MAX_SIZE).unsigned_abs();
    let (length, limit) = (manifest.name.chars().count(), names::cluster_name_max(usable(max_size)));
    if length > limit {
        report.problem(
            "metadata.name",
            format!("is too long: {length} characters, must be {limit} at most, so that hosts and Services can be named after it"),
        );
    } else if !names::is_dns_label(&manifest.name) || !manifest.name.starts_with(|c: char| c.is_ascii_lowercase()) {
        report.problem(
            "metadata.name",
            "must be lower case letters, digits and `-`, beginning with a letter: it names hosts and Services",
        );
    }
    Sizes { size: usable(spec.size), max_size: usable(max_size.max(spec.size)), min_size: min_size.map(usable) }
}

/// What was given: an empty text is as one that is left out.
fn given(text: &Option<String>) -> Option<String> {
    text.clone().filter(|text| !text.is_empty())
}

/// Whether it was.
fn is_given(text: &Option<String>) -> bool {
    text.as_deref().is_some_and(|text| !text.is_empty())
}

/// The same of several texts, in place.
fn drop_empty(texts: &mut [&mut Option<String>]) {
    for text in texts.iter_mut().filter(|text| text.as_deref() == Some("")) {
        **text = None;
    }
}

fn labels(field: &str, labels: &BTreeMap<String, String>, report: &mut Report) {
    for (key, value) in labels {
        if !names::is_label_key(key) {
            report.problem(format!("{field}[{key}]"), "is not a label's key");
        }
        if !names::is_label_value(value) {
            report.problem(
                format!("{field}[{key}]"),
                format!("`{value}` is not a label's value: 63 letters, digits, `-`, `_`, `.` at most"),
            );
        }
    }
}

fn quantities(field: &str, quantities: &BTreeMap<String, Quantity>, report: &mut Report) {
    for (key, quantity) in quantities {
        report.take(format!("{field}[{key}]"), quantity.check());
        if !names::is_label_key(key) {
            report
                .problem(format!("{field}[{key}]"), "is not the name of a resource, such as memory or nvidia.com/gpu");
        }
    }
}

fn resources(field: &str, resources: &Option<Resources>, report: &mut Report) -> Resources {
    let resources = resources.clone().unwrap_or_default();
    quantities(&format!("{field}.limits"), &resources.limits, report);
    quantities(&format!("{field}.requests"), &resources.requests, report);
    resources
}

/// An absolute path without `..`, not `/` itself.
fn absolute(path: &str) -> Result<String, String> {
    let clean = path.trim_end_matches('/');
    match clean.starts_with('/') && clean.len() > 1 && !clean.split('/').any(|part| part == ".." || part == ".") {
        true if !clean.contains(':') => Ok(clean.to_owned()),
        _ => Err(format!("`{path}` must be an absolute path, not `/`, without `..` and `:`")),
    }
}

fn object_name(name: &str) -> Result<(), String> {
    match names::is_dns_subdomain(name) {
        true => Ok(()),
        false => Err(format!("`{name}` cannot be the name of an object: lower case letters, digits, `-` and `.`")),
    }
}

/// A SecurityContext in Kubernetes' shape; the older addCapabilities becomes capabilities.add.
fn security_context(field: &str, value: &Option<Value>, report: &mut Report) -> Option<Value> {
    let mut map = match value {
        None | Some(Value::Null) => return None,
        Some(Value::Object(map)) => map.clone(),
        Some(_) => {
            report.problem(field, "must be an object, as Kubernetes' securityContext");
            return None;
        }
    };
    if let Some(older) = map.shift_remove("addCapabilities") {
        let capabilities = map.entry("capabilities").or_insert_with(|| Value::Object(serde_json::Map::new()));
        match (older, capabilities) {
            (Value::Array(names), Value::Object(capabilities)) if names.iter().all(Value::is_string) => {
                if capabilities.insert("add".into(), Value::Array(names)).is_some() {
                    report.problem(field, "has both addCapabilities and capabilities.add: use one");
                }
            }
            _ => report.problem(field, "addCapabilities must be a list of strings"),
        }
    }
    let value = Value::Object(map);
    #[cfg(feature = "crd")]
    if let Err(error) = serde_json::from_value::<k8s_openapi::api::core::v1::SecurityContext>(value.clone()) {
        report.problem(field, error.to_string());
    }
    Some(value)
}

#[cfg(test)]
mod tests;
