//! A MiniCluster is checked once, into a type that later steps read; all problems are reported, each with its field.
//!
//! ```text
//! Manifest ─► sizes, flux, pod, storage, containers (volumes), access ─► ValidMiniCluster (─► notes), or every Problem
//! ```
//!
//! What CEL rules of the CRD can say is said there too (`crd::definition`), so that the API server refuses it first.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::agent_spec::{LogFormat, Program, RemoteLead, SchedulerKind};
use crate::crd::v1alpha2::{Logging, Pod, Resources, SecretKey, headless_name};
use crate::curve::Certificate;
use crate::manifest::Manifest;
use crate::names;
use crate::overlay::Overlay;
use crate::quantity::Quantity;
use crate::words::Word;

mod access;
mod containers;
mod flux;
mod hints;
mod notes;
mod overlay;
mod pod;
mod program;
mod storage;
mod volumes;

#[cfg(feature = "crd")]
pub(crate) use flux::QUEUE_POLICIES;
#[cfg(feature = "crd")]
pub(crate) use pod::DNS_POLICIES;

/// The image of a container that names none, as upstream's schema has it.
pub const DEFAULT_IMAGE: &str = "ghcr.io/rse-ops/accounting:app-latest";
/// `backoffLimit` where none is given.
pub const DEFAULT_BACKOFF_LIMIT: i32 = 100;
/// Most pods of a cluster.
pub const MAX_SIZE: i32 = 10_000;
/// Most bytes of commands, scripts and snippets together: a ConfigMap holds 1 MiB.
pub const MAX_TEXT: usize = 900_000;

/// One thing that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Path from the object's root, such as `spec.containers[0].image`.
    pub field: String,
    /// What is wrong and how to put it right.
    pub message: String,
}

impl Problem {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { field: field.into(), message: message.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.field.is_empty() {
            true => write!(formatter, "{}", self.message),
            false => write!(formatter, "{}: {}", self.field, self.message),
        }
    }
}

/// Something that a user may want to know, though it is valid.
pub type Notice = Problem;

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

/// A MiniCluster that can be rendered without further questions.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidMiniCluster {
    pub name: String,
    pub namespace: String,
    pub size: u32,
    pub max_size: u32,
    pub min_size: Option<u32>,
    pub tasks: u32,
    pub interactive: bool,
    pub job_labels: BTreeMap<String, String>,
    pub deadline_seconds: Option<i64>,
    /// How often the whole cluster may start again for its lead's sake. 0: never.
    pub backoff_limit: i32,
    /// How often it may start again after a job that failed for a lost follower's sake.
    pub max_restarts: i32,
    pub cleanup: bool,
    /// Delete pods and made volumes when the cluster has finished.
    pub cleanup_pods: bool,
    pub ttl_seconds_after_finished: Option<i32>,
    pub suspend: Option<bool>,
    pub share_process_namespace: bool,
    pub archive: Option<String>,
    pub headless_name: String,
    pub disable_affinity: bool,
    /// Value of the node label kubernetes.io/arch.
    pub arch: Option<String>,
    pub view: ViewContainer,
    pub flux: FluxOptions,
    pub logging: Logging,
    pub log_format: LogFormat,
    pub pod: Pod,
    /// What lies over the template of its pods.
    pub pod_template: Option<Overlay>,
    /// What lies over the services pod.
    pub services_pod_template: Option<Overlay>,
    /// Users of every pod.
    pub users: Vec<ValidUser>,
    /// The lead serves the Flux RESTful API.
    pub restful: Option<Restful>,
    /// Volumes that the operator makes.
    pub volumes: Vec<PersistentVolume>,
    pub runner: Runner,
    pub sidecars: Vec<Sidecar>,
    pub services: Vec<ValidContainer>,
    /// Valid, but perhaps not what the user meant.
    pub notices: Vec<Notice>,
}

impl ValidMiniCluster {
    /// How often it may start again, after so many times.
    pub fn restarts_left(&self, used: u32) -> u32 {
        u32::try_from(self.backoff_limit).unwrap_or(0).saturating_sub(used)
    }
}

/// A user of every pod.
#[derive(Clone, PartialEq)]
pub struct ValidUser {
    pub name: String,
    /// None: the operator makes one at random.
    pub password: Option<String>,
}

/// What the Flux RESTful API needs.
#[derive(Clone, PartialEq)]
pub struct Restful {
    pub branch: String,
    pub port: u16,
    /// None: the operator makes one at random.
    pub secret_key: Option<String>,
    pub username: String,
    /// None: the operator makes one at random.
    pub token: Option<String>,
}

/// Without the password.
impl std::fmt::Debug for ValidUser {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("ValidUser").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Without key and token.
impl std::fmt::Debug for Restful {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Restful");
        debug.field("branch", &self.branch).field("port", &self.port).field("username", &self.username);
        debug.finish_non_exhaustive()
    }
}

/// A volume that the operator makes, with its claim.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentVolume {
    /// Its key in `spec.volumes`.
    pub key: String,
    /// Name of the PersistentVolume.
    pub name: String,
    /// Name of the claim.
    pub claim: String,
    pub storage_class: String,
    pub capacity: Quantity,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub claim_annotations: BTreeMap<String, String>,
    /// Delete it with the MiniCluster.
    pub delete: bool,
    pub source: PersistentSource,
}

/// What a PersistentVolume is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum PersistentSource {
    /// A directory of the node, made if it is missing.
    HostPath(String),
    /// A volume of a CSI driver.
    Csi {
        driver: String,
        handle: String,
        attributes: BTreeMap<String, String>,
        /// The driver's Secret and its namespace; none: the driver needs none.
        secret: Option<(String, String)>,
    },
}

impl PersistentSource {
    /// What must be one volume's alone: a CSI driver and its handle.
    pub fn disk(&self) -> Option<(&str, &str)> {
        match self {
            PersistentSource::HostPath(_) => None,
            PersistentSource::Csi { driver, handle, .. } => Some((driver, handle)),
        }
    }
}

/// The container that brings Flux.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewContainer {
    pub enabled: bool,
    /// Prefix of the image's own Flux, without a view.
    pub install_root: Option<String>,
    /// None: the operator's default.
    pub image: Option<String>,
    /// None: as the operator was told.
    pub source: Option<ViewSource>,
    /// Name of the init container and of the volume.
    pub name: String,
    pub python_path: Option<String>,
    pub resources: Resources,
    pub working_dir: Option<String>,
    pub pull_policy: PullPolicy,
    pub image_pull_secret: Option<String>,
    pub mount_path: String,
    pub security_context: Option<Value>,
}

/// How the view comes into the pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ViewSource {
    /// An image volume where every node can mount one, else a copy.
    #[default]
    Auto,
    ImageVolume,
    Copy,
}

impl ViewSource {
    const ALL: [ViewSource; 3] = [ViewSource::Auto, ViewSource::ImageVolume, ViewSource::Copy];
    pub const NAMES: &'static [&'static str] = &[Self::ALL[0].name(), Self::ALL[1].name(), Self::ALL[2].name()];

    pub const fn name(self) -> &'static str {
        match self {
            ViewSource::Auto => "auto",
            ViewSource::ImageVolume => "imageVolume",
            ViewSource::Copy => "copy",
        }
    }
}

impl std::str::FromStr for ViewSource {
    type Err = String;

    fn from_str(name: &str) -> Result<ViewSource, String> {
        let found = ViewSource::ALL.into_iter().find(|source| source.name() == name);
        found.ok_or_else(|| format!("must be one of {}", ViewSource::NAMES.join(", ")))
    }
}

/// Options of Flux, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct FluxOptions {
    pub complete_workers: bool,
    pub topology: Option<String>,
    pub submit_command: Vec<String>,
    pub option_flags: Vec<String>,
    pub log_level: u8,
    pub wrap: Option<String>,
    pub scheduler: Option<SchedulerKind>,
    pub queue_policy: Option<String>,
    pub minimal_service: bool,
    pub broker_config: Option<String>,
    pub configs: BTreeMap<String, String>,
    pub curve_cert: Option<Certificate>,
    /// The user's Secret with the certificate, in place of the operator's.
    pub curve_cert_secret: Option<String>,
    pub connect_timeout: Option<String>,
    pub heartbeat_timeout: Option<String>,
    /// Seconds, as the next two.
    pub parent_deadline: Option<u64>,
    pub lead_gone: Option<u64>,
    pub lead_silent: Option<u64>,
    pub disable_socket: bool,
    pub wait_socket: bool,
    pub munge_secret: Option<String>,
    pub environment: BTreeMap<String, String>,
    /// All hosts of the instance; none: this cluster's own.
    pub hostlist: Option<String>,
    pub lead: Option<RemoteLead>,
}

/// When to pull an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub const fn name(self) -> &'static str {
        match self {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        }
    }
}

/// What every container has.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidContainer {
    pub name: String,
    pub image: String,
    pub resources: Resources,
    pub image_pull_secret: Option<String>,
    pub working_dir: Option<String>,
    pub pull_policy: PullPolicy,
    pub environment: BTreeMap<String, String>,
    pub secrets: BTreeMap<String, SecretKey>,
    pub ports: Vec<u16>,
    pub post_start: Option<Vec<String>>,
    pub pre_stop: Option<Vec<String>>,
    pub mounts: Vec<Mount>,
    /// Kubernetes' SecurityContext.
    pub security_context: Option<Value>,
    /// Words in place of the image's entrypoint (services).
    pub entrypoint: Option<Vec<String>>,
}

impl ValidContainer {
    /// The user that its security context asks for, and the group, which is 0 where none is asked for.
    pub fn run_as(&self) -> Option<(u32, u32)> {
        let context = self.security_context.as_ref()?;
        let id = |name: &str| context.get(name)?.as_u64().and_then(|id| u32::try_from(id).ok());
        Some((id("runAsUser")?, id("runAsGroup").unwrap_or(0)))
    }
}

/// A volume of the pod at its place in one container.
#[derive(Debug, Clone, PartialEq)]
pub struct Mount {
    /// The user's key; unique in the container, not in the pod.
    pub name: String,
    pub path: String,
    pub read_only: bool,
    pub source: VolumeSource,
}

/// Where a volume comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeSource {
    HostPath(String),
    EmptyDir { memory: bool, size_limit: Option<Quantity> },
    Claim(String),
    ConfigMap { name: String, items: BTreeMap<String, String> },
    Secret { name: String, items: BTreeMap<String, String> },
    Csi { driver: String, attributes: BTreeMap<String, String>, read_only: bool },
}

/// The container that runs Flux.
#[derive(Debug, Clone, PartialEq)]
pub struct Runner {
    pub container: ValidContainer,
    pub program: Program,
    pub prefix: Vec<Word>,
    pub cores: Option<u32>,
    pub logs: Option<String>,
    pub user: Option<crate::agent_spec::User>,
    pub snippets: crate::agent_spec::Snippets,
}

/// A container beside the runner.
#[derive(Debug, Clone, PartialEq)]
pub struct Sidecar {
    pub container: ValidContainer,
    /// Its entrypoint is the agent with this spec; none: the image's own entrypoint.
    pub wrapped: Option<crate::agent_spec::Sidecar>,
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
    labels("spec.jobLabels", &spec.job_labels, &mut report);
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
    let archive = spec.archive.as_ref().map(|archive| archive.path.clone()).filter(|path| !path.is_empty());
    if let Some(path) = &archive {
        if !path.starts_with('/') || path.ends_with('/') {
            report.problem("spec.archive.path", "must be the absolute path of a file, such as /state/archive.tgz");
        } else if names::archive_suffix(path).is_none() {
            let suffixes = names::ARCHIVE_SUFFIXES.join(", ");
            report.problem("spec.archive.path", format!("must end in one of {suffixes}: Flux knows the format by it"));
        }
    }
    let flux = flux::check(spec, &manifest.name, sizes, &mut report);
    let view = flux::view(spec, &mut report);
    let pod = pod::check(spec.pod.clone().unwrap_or_default(), &mut report);
    let volumes = storage::check(spec, &manifest.name, &manifest.namespace, &mut report);
    let mut parts = containers::check(spec, &manifest.name, &view, flux.wait_socket, &mut report);
    let users = access::users(spec, parts.runner.as_ref(), &mut report);
    let restful = access::restful(spec, parts.runner.as_ref(), flux.lead.is_some(), &mut report);
    if let (Some(restful), Some(runner)) = (&restful, &mut parts.runner)
        && !runner.container.ports.contains(&restful.port)
    {
        runner.container.ports.push(restful.port);
    }
    let arch = pod::arch(spec, &pod, &mut report);
    let (pod_template, services_pod_template) = overlay::check(spec, &view, &parts, &mut report);
    let logging = spec.logging.clone().unwrap_or_default();
    let log_format = given(&logging.format).and_then(|name| report.take("spec.logging.format", name.parse()));
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
        log_format: log_format.unwrap_or_default(),
        pod,
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
