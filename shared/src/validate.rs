//! Checks a MiniCluster once. Later steps read the result, a [`ValidMiniCluster`]. All problems are reported, each with
//! its field.
//!
//! ```text
//! Manifest ─► validate ─► ValidMiniCluster with notices, or every Problem
//!             sizes, flux (metrics), pod, storage, containers (program, volumes), access, overlay, gang
//!          ─► validate_and_note: the same, and the notices of `notes`
//! ValidMiniCluster ─► hints
//! ```
//!
//! - A notice is about a valid field that may not have the effect that its user expects. The status shows it.
//! - `notes` finds notices that need the whole MiniCluster; the other modules find their own.
//! - A hint is about a valid spec whose effect may surprise. Only commands that are given a
//!   file show hints: `validate`, `dry-run` and `kubectl minicluster run`.
//!
//! Most checks that a CEL rule can express are in `crd::rules` as well, so that the API server rejects the object first.

use std::collections::BTreeMap;

use crate::agent_spec::LogFormat;
use crate::crd::v1alpha2::{Logging, MiniClusterSpec, Network, headless_name};
use crate::queueing::{Queueing, RelatedFields};
use crate::{agent_spec, hostlist, names};

mod access;
mod assigned_variables;
mod containers;
mod fields;
mod flux;
mod gang;
mod hints;
mod metrics;
mod notes;
mod overlay;
mod pod;
mod program;
mod report;
mod sizes;
mod storage;
mod valid;
mod volumes;

pub use crate::choices::{Gang, ViewSource};
pub use crate::problem::{Notice, Problem};
pub use containers::{DEFAULT_IMAGE, MAX_TEXT};
pub(crate) use fields::label_problems;
use fields::{given, labels};
pub use flux::is_lead_elsewhere;
use report::Report;
pub use sizes::MAX_SIZE;
pub use valid::{
    FluxOptions, Mount, PersistentSource, PersistentVolume, PullPolicy, ValidContainer, ValidMiniCluster,
    ValidRestful, ValidRunner, ValidSidecar, ValidUser, ViewContainer, VolumeSource,
};

/// Default of `backoffLimit`: that of the Go operator.
pub const DEFAULT_BACKOFF_LIMIT: i32 = 100;

/// A MiniCluster read from text or from the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub name: String,
    /// Namespace; `default` if the manifest names none.
    pub namespace: String,
    /// Labels and annotations for a queue.
    pub queueing: Queueing,
    /// Whether it is a v1alpha1 manifest without `cleanup`: its pods are deleted when the job has completed.
    pub cleans_by_default: bool,
    /// The maximum size that was fixed when its first Job was created. None: it has no Job yet, or that is not known.
    pub maximum_size: Option<u32>,
    pub spec: MiniClusterSpec,
}

/// Like [`validate`], with the notices of `notes` as well. The status and the commands that examine a manifest show
/// them; other callers need only the problems or the checked spec.
pub fn validate_and_note(manifest: &Manifest) -> Result<ValidMiniCluster, Vec<Problem>> {
    let mut cluster = validate(manifest)?;
    let mut report = Report::default();
    notes::check(&manifest.spec, manifest.cleans_by_default, &cluster, &mut report);
    cluster.notices.extend(report.notices);
    Ok(cluster)
}

/// Checks a MiniCluster. The error has every problem.
pub fn validate(manifest: &Manifest) -> Result<ValidMiniCluster, Vec<Problem>> {
    let spec = &manifest.spec;
    let mut report = Report::default();
    let sizes = sizes::check(spec, manifest.maximum_size, &manifest.name, &mut report);
    let network = network(spec, &mut report);
    job_fields(spec, &mut report);
    let archive = archive(spec, &mut report);
    let flux = flux::check(spec, &manifest.name, sizes, &mut report);
    let view = flux::view(spec, &mut report);
    let pod = pod::check(spec.pod.clone().unwrap_or_default(), &manifest.name, &mut report);
    if pod.host_pid && spec.share_process_namespace {
        report.problem(
            "spec.shareProcessNamespace",
            "does not go with pod.hostPID, by which the containers see all processes of the node: leave one out",
        );
    }
    let volumes = storage::check(spec, &manifest.name, &manifest.namespace, &mut report);
    let mut parts = containers::check(spec, &manifest.name, &view, flux.wait_socket, &mut report);
    let users = access::users(spec, parts.runner.as_ref(), &mut report);
    let restful = access::restful(spec, parts.runner.as_mut(), flux.lead.is_some(), &mut report);
    if let Some(runner) = &parts.runner {
        program::check_submission(spec, &runner.program, &flux, &mut report);
    }
    metrics::check_restful(flux.metrics_port, restful.as_ref(), &mut report);
    let port_of_restful = restful.as_ref().map(|restful| restful.port);
    let ports = [
        (metrics::FIELD, flux.metrics_port),
        ("spec.fluxRestful.port", port_of_restful),
    ];
    let ports = ports
        .into_iter()
        .filter_map(|(field, port)| Some((field.to_owned(), port?)));
    for (field, port) in ports.chain(ports_of_sidecars(spec)) {
        if is_brokers_port(port, &flux, &manifest.name, sizes) {
            report.problem(field, format!("{port} is the brokers' own port: choose another"));
        }
    }
    let arch = pod::arch(spec, &pod, &mut report);
    let (pod_template, services_pod_template) = overlay::check(spec, &view, &parts, &mut report);
    let gang = gang::check(spec, pod_template.as_ref(), &mut report);
    let queueing = queueing(manifest, sizes, &pod.annotations, &mut report);
    let (logging, log_format) = logging(spec, &mut report);
    let runner = match parts.runner {
        Some(runner) if report.problems.is_empty() => runner,
        _ => return Err(report.problems),
    };
    Ok(ValidMiniCluster {
        name: manifest.name.clone(),
        namespace: manifest.namespace.clone(),
        size: sizes.size,
        max_size: sizes.max_size,
        min_size: sizes.min_size,
        // Not negative: `sizes` has reported that.
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

/// Checks the network block, and returns it with its defaults.
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
    for (i, container) in spec.containers.iter().enumerate() {
        // Only sidecars have a Service.
        let has_service = !spec.runs_flux(i) && !container.ports.is_empty();
        if has_service && container.name.as_ref() == Some(&network.headless_name) {
            report.problem(
                format!("spec.containers[{i}].name"),
                format!(
                    "must not be `{}`: the headless Service has this name (network.headlessName), and the sidecar's Service needs it",
                    network.headless_name
                ),
            );
        }
    }
    network
}

/// The ports of the sidecars, with their fields.
fn ports_of_sidecars(spec: &MiniClusterSpec) -> impl Iterator<Item = (String, u16)> {
    let containers = spec.containers.iter().enumerate();
    containers
        .filter(|(i, _)| !spec.runs_flux(*i))
        .flat_map(|(i, container)| container.ports.iter().map(move |port| (i, *port)))
        .filter_map(|(i, port)| Some((format!("spec.containers[{i}].ports"), u16::try_from(port).ok()?)))
}

/// Whether a broker of the instance listens on this port. Only brokers with children listen, and the lead has some
/// unless it is the only broker. With `brokerConfig`, the user chooses the port.
fn is_brokers_port(port: u16, flux: &FluxOptions, name: &str, sizes: sizes::Sizes) -> bool {
    let is_only_broker = || {
        let hosts = hostlist::of_instance(flux.hostlist.as_deref(), name, sizes.max_size);
        hostlist::expand(&hosts).is_ok_and(|hosts| hosts.len() == 1)
    };
    port == agent_spec::BrokerNetwork::default().port && flux.broker_config.is_none() && !is_only_broker()
}

/// Whether `maxSize` is given (0 counts as left out): the size may change while the cluster runs.
fn resizes(spec: &MiniClusterSpec) -> bool {
    spec.max_size.is_some_and(|max| max != 0)
}

/// Checks the labels and annotations for a queue, and returns them with the labels for it in `spec.jobLabels`.
fn queueing(
    manifest: &Manifest,
    sizes: sizes::Sizes,
    pod_annotations: &BTreeMap<String, String>,
    report: &mut Report,
) -> Queueing {
    let spec = &manifest.spec;
    let related = RelatedFields {
        min_size: sizes.min_size,
        resizes: resizes(spec),
        job_labels: &spec.job_labels,
        pod_annotations,
    };
    let (queueing, problems) = manifest.queueing.clone().check(&related);
    report.problems.extend(problems);
    report.notices.extend(queueing.notices(&related));
    if queueing.queue().is_some() && spec.suspend.is_some() {
        report.notices.push(crate::queueing::suspend_without_effect());
    }
    queueing
}

/// The logging block with its defaults, and its format, checked.
fn logging(spec: &MiniClusterSpec, report: &mut Report) -> (Logging, LogFormat) {
    let logging = spec.logging.clone().unwrap_or_default();
    let format = given(&logging.format).and_then(|name| report.take("spec.logging.format", name.parse()));
    (logging, format.unwrap_or_default())
}

/// Checks `managedBy`.
fn managed_by(spec: &MiniClusterSpec, report: &mut Report) {
    let Some(name) = given(&spec.managed_by) else {
        return;
    };
    let is_name = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte))
    };
    let is_valid =
        |(domain, path): (&str, &str)| names::is_dns_subdomain(domain) && !path.is_empty() && is_name(path);
    if name.len() > 63 || !name.split_once('/').is_some_and(is_valid) {
        report.problem(
            "spec.managedBy",
            "must be a domain, `/` and a path, such as kueue.x-k8s.io/multikueue, 63 characters at most; leave it out for this operator",
        );
    }
}

/// Checks `managedBy`, the Job's labels, times and restart limits.
fn job_fields(spec: &MiniClusterSpec, report: &mut Report) {
    managed_by(spec, report);
    labels("spec.jobLabels", &spec.job_labels, report);
    if spec.deadline_seconds.is_some_and(|seconds| seconds < 1) {
        report.problem(
            "spec.deadlineSeconds",
            "must be 1 or more; leave it out for no deadline",
        );
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

/// Checks the path of the archive of Flux's state.
fn archive(spec: &MiniClusterSpec, report: &mut Report) -> Option<String> {
    let archive = spec
        .archive
        .as_ref()
        .map(|archive| archive.path.clone())
        .filter(|path| !path.is_empty());
    let is_plain = |letter: char| {
        let is_read_by_shell = "\"'`\\$&|;<>()*?[]{}!#".contains(letter);
        !letter.is_whitespace() && !letter.is_control() && !is_read_by_shell
    };
    if let Some(path) = &archive {
        if !path.starts_with('/') || path.ends_with('/') {
            report.problem(
                "spec.archive.path",
                "must be the absolute path of a file, such as /state/archive.tgz",
            );
        } else if !path.chars().all(is_plain) {
            report.problem(
                "spec.archive.path",
                "must have no blank, quote or other character that a shell reads: Flux passes it to one without quotes",
            );
        } else if names::archive_suffix(path).is_none() {
            let suffixes = names::ARCHIVE_SUFFIXES.join(", ");
            report.problem(
                "spec.archive.path",
                format!("must end in one of {suffixes}: Flux knows the format by it"),
            );
        }
    }
    archive
}

#[cfg(test)]
mod tests;
