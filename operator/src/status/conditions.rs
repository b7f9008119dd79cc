//! The conditions. The documented types keep their names; Kubernetes' own habits (`kubectl wait`) stand beside them.

use flux_shared::crd::v1alpha2::Condition;
use k8s_openapi::jiff::Timestamp;

use super::outcome::Outcome;
use super::{Facts, Picture, VIEW_MOUNTED, VOLUMES_VALID, Verdict, rfc3339, short};
use crate::observe::job::JobSeen;
use crate::observe::pod::{PodSeen, Trouble};
use crate::observe::storage::DiskSeen;
use crate::render::VIEW_IMAGE_VOLUME;

/// What a condition is about to say.
struct Statement {
    type_: &'static str,
    is_true: bool,
    reason: String,
    message: String,
    /// Since when, if Kubernetes knows.
    since: Option<Timestamp>,
}

pub(super) fn conditions(picture: &Picture, facts: &Facts, outcome: &Outcome) -> Vec<Condition> {
    let job = picture.job;
    let finished = job.is_some_and(JobSeen::is_finished);
    let end = job.and_then(JobSeen::end_time);
    let active = job.is_some_and(|job| !finished && !job.suspended);
    // Why nothing can be true yet, or any more.
    let (idle_reason, idle_message) = match job {
        None if outcome.reason.is_empty() => ("NotRequested".to_owned(), "the Job has not been made yet".to_owned()),
        Some(job) if !finished && !job.suspended => ("Starting".to_owned(), progress(facts)),
        _ => (outcome.reason.clone(), outcome.message.clone()),
    };
    let say = |type_: &'static str, is_true: bool, reason: &str, message: &str| match is_true {
        true => Statement { type_, is_true, reason: reason.to_owned(), message: message.to_owned(), since: None },
        false => Statement { type_, is_true, reason: idle_reason.clone(), message: idle_message.clone(), since: None },
    };
    let waiting = active && facts.running < facts.wanted.saturating_sub(facts.left);
    let stuck = !outcome.reason.is_empty();
    let waits = match (waiting, stuck) {
        (true, true) => say("JobWaitingForResources", true, &outcome.reason, &outcome.message),
        (true, false) => say("JobWaitingForResources", true, "PodsStarting", &progress(facts)),
        (false, _) if active => Statement {
            type_: "JobWaitingForResources",
            is_true: false,
            reason: "PodsRunning".into(),
            message: progress(facts),
            since: None,
        },
        (false, _) => say("JobWaitingForResources", false, "", ""),
    };
    let ready = active && facts.is_ready();
    let runs = active && facts.lead_runs();
    let complete = job.is_some_and(|job| job.complete.is_some());
    let failed = job.is_some_and(|job| job.failed.is_some());
    let suspended = job.is_some_and(|job| job.suspended && !finished);
    let statements = [
        valid(picture),
        say("JobRequested", job.is_some(), "JobCreated", "the Job exists"),
        waits,
        say("JobRunning", runs, "LeadRunning", "the lead broker's container runs"),
        say("JobMiniClusterReady", ready, "BrokersReady", &progress(facts)),
        Statement { since: end, ..say("JobFinished", finished, &outcome.reason, &outcome.message) },
        say("Ready", ready, "BrokersReady", &progress(facts)),
        Statement { since: end, ..say("Complete", complete, "Completed", "the job ended with exit code 0") },
        Statement { since: end, ..say("Failed", failed, &outcome.reason, &outcome.message) },
        say("Suspended", suspended, "Suspended", "the Job is suspended: it has no pods"),
    ];
    let optional = view(picture, facts).into_iter().chain(volumes(picture));
    statements.into_iter().chain(optional).map(|statement| stamped(picture, statement)).collect()
}

/// Whether the view's image could be mounted, where it was tried. Once it could not, that is remembered.
fn view(picture: &Picture, facts: &Facts) -> Option<Statement> {
    let say = |is_true: bool, reason: &str, message: String| Statement {
        type_: VIEW_MOUNTED,
        is_true,
        reason: reason.to_owned(),
        message,
        since: None,
    };
    if super::image_volume_failed(picture.previous) {
        let before = super::condition(picture.previous, VIEW_MOUNTED)?;
        return Some(say(false, &before.reason, before.message.clone()));
    }
    picture.job.filter(|job| job.mounts_view)?;
    // Where the job may have begun, nothing is taken away from it.
    let begun = facts.lead.is_some_and(|lead| lead.ready) || picture.pods.iter().any(|pod| pod.exit.is_some());
    Some(match not_mounted(picture).filter(|_| !begun) {
        Some((who, error)) => say(
            false,
            "ImageVolumeFailed",
            format!(
                "{who} could not mount the view's image, so the view is copied: flux.container.source: copy does that at once; its node said: {error}"
            ),
        ),
        None if picture.nodes_mount_images => {
            say(true, "ImageVolume", "the view's image is mounted, once it is there: nothing is copied".to_owned())
        }
        None => say(
            true,
            "ImageVolumeUnsure",
            "the view's image is mounted as flux.container.source says, though not every node is known to be able to (Kubernetes 1.35, containerd 2.1 or CRI-O 1.33): if they can't, it will be copied".to_owned(),
        ),
    })
}

/// Whether the volumes of CSI drivers are what their author means, where there are any. Nothing waits for it: shared disks
/// may work, and a volume is bound to its claim without its class.
fn volumes(picture: &Picture) -> Option<Statement> {
    let say = |is_true: bool, reason: &str, message: String| {
        let (type_, reason) = (VOLUMES_VALID, reason.to_owned());
        Some(Statement { type_, is_true, reason, message, since: None })
    };
    let Some(disks) = &picture.disks else {
        let before = super::condition(picture.previous, VOLUMES_VALID)?;
        return say(before.status == "True", &before.reason, before.message.clone());
    };
    let shared: Vec<String> = disks.iter().filter_map(shared).collect();
    let unknown = disks.iter().filter(|disk| disk.is_class_missing).map(|disk| {
        format!(
            "spec.volumes[{}].storageClass: there is no StorageClass {}: `kubectl get storageclasses` lists them; if the name is right, make one",
            disk.key, disk.class
        )
    });
    let reason = if shared.is_empty() { "UnknownStorageClass" } else { "SharedHandle" };
    let problems: Vec<String> = shared.into_iter().chain(unknown).collect();
    match (disks.is_empty(), problems.is_empty()) {
        (true, _) => None,
        (false, true) => {
            say(true, "Valid", "each has a handle of its own and a storage class that is there".to_owned())
        }
        (false, false) => say(false, reason, problems.join("; ")),
    }
}

fn shared(disk: &DiskSeen) -> Option<String> {
    let DiskSeen { key, driver, handle, shared_with, .. } = disk;
    let other = shared_with.as_ref()?;
    Some(format!(
        "spec.volumes[{key}].volumeHandle: PersistentVolume {other} has the handle `{handle}` of driver {driver}, too, so a node may mount one with the attributes and the Secret of the other: give each a volumeHandle of its own, or let both mount one claim by existingVolumes"
    ))
}

/// Who could not mount the view's image, and what was said: by the runtime, which could not make the first container, or
/// by a kubelet that does not know such volumes and would leave the pod in ContainerCreating for ever. (An image that
/// cannot be pulled is no reason to copy: the copy would need it as well.)
fn not_mounted<'a>(picture: &'a Picture) -> Option<(String, &'a str)> {
    let by_runtime = |pod: &&'a PodSeen| Some((format!("pod {}", pod.index), pod.not_made.as_deref()?));
    let is_unknown = |warning: &&Trouble| {
        warning.reason == "FailedMount"
            && warning.message.contains(&format!("{VIEW_IMAGE_VOLUME:?}"))
            && warning.message.contains("no volume plugin matched")
    };
    let by_kubelet = picture.warning.filter(is_unknown).map(|warning| ("a pod".to_owned(), warning.message.as_str()));
    picture.pods.iter().find_map(by_runtime).or(by_kubelet)
}

fn progress(facts: &Facts) -> String {
    let Facts { scheduled, running, ready, wanted, left, .. } = facts;
    let left = if *left > 0 { format!(", {left} have completed") } else { String::new() };
    format!("of {wanted} pods {scheduled} have a node, {running} run, {ready} are ready{left}")
}

fn valid(picture: &Picture) -> Statement {
    let maximum = picture.previous.maximum_size.map(i64::from);
    let maximum = maximum.or(picture.job.and_then(|job| job.maximum_size).map(i64::from));
    let (is_true, reason, message) = match (picture.verdict, maximum) {
        (Verdict::Invalid(problems), _) => {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            (false, "Invalid", lines.join("; "))
        }
        (Verdict::Valid(cluster), Some(maximum)) if i64::from(cluster.size) > maximum => (
            false,
            "SizeBeyondMaximum",
            format!(
                "spec.size: is {}, but the cluster was made for {maximum} at most, and stays as it is: lower it, or make a new one with a larger maxSize",
                cluster.size
            ),
        ),
        (Verdict::Valid(cluster), _) if !cluster.notices.is_empty() => {
            let lines: Vec<String> = cluster.notices.iter().map(ToString::to_string).collect();
            (true, "ValidWithNotes", lines.join("; "))
        }
        (Verdict::Valid(_), _) => (true, "Valid", "every field can be used".to_owned()),
    };
    Statement { type_: "Valid", is_true, reason: reason.to_owned(), message, since: None }
}

/// The condition with the time since when its status has been so.
fn stamped(picture: &Picture, statement: Statement) -> Condition {
    let status = if statement.is_true { "True" } else { "False" };
    let previous = super::condition(picture.previous, statement.type_).filter(|previous| previous.status == status);
    let since = match previous {
        Some(previous) => previous.last_transition_time.clone(),
        None => rfc3339(statement.since.filter(|_| statement.is_true).unwrap_or(picture.now)),
    };
    Condition {
        type_: statement.type_.to_owned(),
        status: status.to_owned(),
        observed_generation: picture.generation,
        last_transition_time: since,
        reason: if statement.reason.is_empty() { "None".to_owned() } else { statement.reason },
        message: short(&statement.message),
    }
}
