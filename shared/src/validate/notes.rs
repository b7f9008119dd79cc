//! Notices about valid fields that have no effect, a certificate that is missing, and output or an archive that is lost.

use std::path::Path;

use serde_json::Value;

use super::containers::has_option_flags;
use super::fields::is_given;
use super::report::Report;
use super::{ValidMiniCluster, VolumeSource, assigned_variables, flux};
use crate::agent_spec::Program;
use crate::crd::v1alpha2::{Flux, FluxContainer, MiniClusterSpec};
use crate::names;

/// Adds the notices. `cleans_by_default`: the manifest is of v1alpha1 and does not set `cleanup`.
pub(super) fn check(
    spec: &MiniClusterSpec,
    cleans_by_default: bool,
    cluster: &ValidMiniCluster,
    report: &mut Report,
) {
    let (program, lead_is_elsewhere) = (&cluster.runner.program, cluster.flux.lead.is_some());
    let is_idle = lead_is_elsewhere || spec.interactive;
    if lead_is_elsewhere && cluster.archive.is_some() {
        report.notice(
            "spec.archive",
            "has no effect: the lead broker is in another cluster",
        );
    }
    let flux = &cluster.flux;
    if lead_is_elsewhere
        && flux.curve_cert.is_none()
        && flux.curve_cert_secret.is_none()
        // A broker.toml of the user's own names the certificate's file.
        && flux.broker_config.is_none()
    {
        report.notice(
            "spec.flux.curveCertSecret",
            "is missing: a random certificate is made for this MiniCluster, which the lead broker in another cluster does not accept",
        );
    }
    lost_archive(cluster, report);
    if is_idle
        && program.is_from_user()
        && let Some((field, container)) = flux::runner(spec)
    {
        let name = if container.command.iter().any(|text| !text.trim().is_empty()) {
            "command"
        } else {
            "commands.script"
        };
        let why = if lead_is_elsewhere {
            "the lead broker is in another cluster"
        } else {
            "the cluster is interactive"
        };
        report.notice(format!("{field}.{name}"), format!("is not run: {why}"));
    }
    if cleans_by_default && cluster.cleanup_pods && program.is_from_user() && !is_idle {
        report.notice(
            "spec.cleanup",
            "is not set, so v1alpha1 deletes the pods, and the output with them, when the job has completed: set cleanup: false to keep them",
        );
    }
    // Whether the agent submits the program as a job.
    let submits = match program {
        Program::Submit { .. } | Program::Batch { .. } | Program::BatchRaw { .. } => !is_idle,
        Program::Script { launch, .. } => !launch && !is_idle,
        Program::Launcher { .. } | Program::Persistent | Program::Diagnostics => false,
    };
    assigned_variables::check(spec, cluster, report);
    options(
        spec,
        cluster,
        submits,
        matches!(program, Program::BatchRaw { .. }),
        report,
    );
    let labels = spec
        .pod
        .iter()
        .flat_map(|pod| pod.labels.keys())
        .map(|key| ("pod.labels", key, &names::OWN_POD_LABELS[..]));
    for (field, key, operator_labels) in labels.chain(
        spec.job_labels
            .keys()
            .map(|key| ("jobLabels", key, &names::OWN_LABELS[..])),
    ) {
        if operator_labels.contains(&key.as_str()) {
            report.notice(
                format!("spec.{field}[{key}]"),
                "is overridden: the operator sets this label",
            );
        }
    }
}

/// Adds a notice about an archive in a folder that does not outlive the pod. A `post` snippet may copy it elsewhere.
fn lost_archive(cluster: &ValidMiniCluster, report: &mut Report) {
    let (runner, lead_is_elsewhere) = (&cluster.runner, cluster.flux.lead.is_some());
    let Some(path) = &cluster.archive else { return };
    if lead_is_elsewhere || runner.snippets.post.is_some() {
        return;
    }
    let mounts = runner.container.mounts.iter();
    let mounts = mounts.map(|mount| (mount.path.as_str(), is_empty_dir(&mount.source)));
    let overlays = cluster.pod_template.iter();
    // What the overlay mounts is not known here, and may outlive the pod.
    let of_overlay = overlays
        .flat_map(|overlay| overlay.mount_paths(&runner.container.name))
        .map(|path| (path, false));
    let nearest = mounts
        .chain(of_overlay)
        .filter(|(point, _)| Path::new(path).starts_with(point))
        .max_by_key(|(point, _)| Path::new(point).components().count());
    if nearest.is_none_or(|(_, is_empty_dir)| is_empty_dir) {
        report.notice(
            "spec.archive.path",
            format!(
                "{path} is on no volume that outlives the pods, so the state is lost with the lead: mount a claim above it"
            ),
        );
    }
}

fn is_empty_dir(source: &VolumeSource) -> bool {
    matches!(source, VolumeSource::EmptyDir { .. })
}

/// Whether `block` is an object with a field.
fn has_values(block: &Value) -> bool {
    block.as_object().is_some_and(|fields| !fields.is_empty())
}

/// Adds notices about options without effect: options of submissions if nothing is submitted (`submits`), options of
/// the view if it is disabled, and options in broker.toml if the user gives the whole file. `is_raw`: the program is
/// the user's own batch script.
fn options(
    spec: &MiniClusterSpec,
    cluster: &ValidMiniCluster,
    submits: bool,
    is_raw: bool,
    report: &mut Report,
) {
    const NO_SUBMISSION: &str = "has no effect: the agent submits no job here";
    const BATCH_SCRIPT: &str = "has no effect: the agent submits the script by `flux batch`";
    const AROUND_BATCH: &str = "applies to the instance around the batch. The batch's own instance, which runs \
                                its jobs, does not read it";
    const OWN_BROKER_CONFIG: &str = "has no effect: brokerConfig is used as it is";
    const VIEW_DISABLED: &str = "has no effect with disable: no container provides Flux";
    let (usual, usual_view) = (Flux::default(), FluxContainer::default());
    let flux = spec.flux.as_ref().unwrap_or(&usual);
    let view = flux.container.as_ref().unwrap_or(&usual_view);
    let has_own_command = !flux.submit_command.is_empty() && flux.submit_command != usual.submit_command;
    // With the RESTful API the flags have an effect: they are defaults of its jobs.
    let has_unused_flags = !flux.option_flags.is_empty() && cluster.restful.is_none();
    let has_config = flux.broker_config.iter().any(|config| !config.trim().is_empty());
    let has_policy = flux
        .scheduler
        .iter()
        .any(|scheduler| is_given(&scheduler.queue_policy));
    let no_job = !submits;
    let is_batch = submits
        && matches!(
            cluster.runner.program,
            Program::Batch { .. } | Program::BatchRaw { .. }
        );
    for (is_unused, field, why) in [
        // 1 is the default.
        (no_job && spec.tasks != 1, "spec.tasks", NO_SUBMISSION),
        (no_job && has_unused_flags, "spec.flux.optionFlags", NO_SUBMISSION),
        (
            no_job && has_own_command,
            "spec.flux.submitCommand",
            NO_SUBMISSION,
        ),
        (
            submits && is_raw && has_own_command,
            "spec.flux.submitCommand",
            BATCH_SCRIPT,
        ),
        (
            no_job && spec.logging.iter().any(|logging| logging.debug),
            "spec.logging.debug",
            NO_SUBMISSION,
        ),
        (
            view.disable && is_given(&view.source),
            "spec.flux.container.source",
            VIEW_DISABLED,
        ),
        (
            view.disable && is_given(&view.python_path),
            "spec.flux.container.pythonPath",
            VIEW_DISABLED,
        ),
        (
            view.disable && is_given(&view.working_dir),
            "spec.flux.container.workingDir",
            VIEW_DISABLED,
        ),
        (
            view.disable && view.pull_always,
            "spec.flux.container.pullAlways",
            VIEW_DISABLED,
        ),
        (
            view.disable && is_given(&view.image_pull_secret),
            "spec.flux.container.imagePullSecret",
            VIEW_DISABLED,
        ),
        (
            view.disable && view.security_context.as_ref().is_some_and(has_values),
            "spec.flux.container.securityContext",
            VIEW_DISABLED,
        ),
        (
            has_config && has_policy,
            "spec.flux.scheduler.queuePolicy",
            OWN_BROKER_CONFIG,
        ),
        (
            is_batch && has_policy && !has_config,
            "spec.flux.scheduler.queuePolicy",
            AROUND_BATCH,
        ),
        (
            is_batch && !cluster.flux.configs.is_empty(),
            "spec.flux.configs",
            AROUND_BATCH,
        ),
        (
            has_config && is_given(&flux.heartbeat_timeout),
            "spec.flux.heartbeatTimeout",
            OWN_BROKER_CONFIG,
        ),
    ] {
        if is_unused {
            report.notice(field, why);
        }
    }
    if no_job
        && cluster.restful.is_none()
        && let Some((field, runner)) = flux::runner(spec)
        && has_option_flags(runner)
    {
        report.notice(format!("{field}.fluxOptionFlags"), NO_SUBMISSION);
    }
}
