//! The conditions of the status: those of the documented API, such as `JobFinished`, and those that Kubernetes' tools
//! (`kubectl wait`, kstatus) expect, such as `Ready`.

use flux_shared::crd::v1alpha2::Condition;
use flux_shared::crd::v1alpha2::ConditionStatus::{self, False, True, Unknown};
use flux_shared::termination::{Ender, Termination};
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::jiff::Timestamp;

use super::outcome::Outcome;
use super::{CheckedSpec, Inputs, PodSummary, post, rfc3339, short};
use crate::decide::restart;
use crate::observe::job::JobSeen;
use crate::observe::pod::{DEFAULT_SCHEDULER, PodSeen, Trouble, is_about_mount};
use crate::observe::storage::DiskSeen;
use crate::render::VIEW_IMAGE_VOLUME;
use crate::render::elastic::Elastic;
use crate::vocabulary::{ConditionType, Reason};

/// A condition before its `lastTransitionTime` is known.
struct Statement {
    type_: ConditionType,
    status: ConditionStatus,
    reason: String,
    message: String,
    /// When it became true, if Kubernetes has recorded this.
    since: Option<Timestamp>,
}

impl Statement {
    fn new(
        type_: ConditionType,
        status: ConditionStatus,
        reason: impl Into<String>,
        message: impl Into<String>,
    ) -> Statement {
        Statement {
            type_,
            status,
            reason: reason.into(),
            message: message.into(),
            since: None,
        }
    }

    /// The condition of this type in the previous status.
    fn previous(inputs: &Inputs, type_: ConditionType) -> Option<Statement> {
        let condition = super::condition(inputs.previous, type_)?;
        Some(Statement::new(
            type_,
            condition.status,
            condition.reason.clone(),
            condition.message.clone(),
        ))
    }

    /// The condition of this type in the previous status, if that status is about the same start of the program.
    fn of_this_start(inputs: &Inputs, type_: ConditionType) -> Option<Statement> {
        if !post::is_previous_of_this_start(inputs) {
            return None;
        }
        Statement::previous(inputs, type_)
    }
}

/// State of the Job, on which most conditions depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobState {
    /// There is no Job.
    NotRequested,
    Suspended,
    Active,
    Completed,
    Failed,
}

impl JobState {
    fn of(job: Option<&JobSeen>) -> JobState {
        match job {
            None => JobState::NotRequested,
            Some(job) if job.complete.is_some() => JobState::Completed,
            Some(job) if job.failed.is_some() => JobState::Failed,
            Some(job) if job.is_suspended => JobState::Suspended,
            Some(_) => JobState::Active,
        }
    }

    fn is_finished(self) -> bool {
        matches!(self, JobState::Completed | JobState::Failed)
    }

    /// Reason and message for a condition whose status follows from this state alone.
    fn explanation(self) -> (Reason, &'static str) {
        match self {
            JobState::NotRequested => (Reason::NotRequested, "there is no Job yet"),
            JobState::Suspended => (Reason::Suspended, "the Job is suspended: it has no pods"),
            JobState::Active => (Reason::NotFinished, "the job has not ended"),
            JobState::Completed => (Reason::Completed, "the job has completed"),
            JobState::Failed => (Reason::Failed, "the job has failed"),
        }
    }

    /// A condition that is false, since the Job has not ended, or not in the way that the condition is about.
    fn not_ended(self, type_: ConditionType) -> Statement {
        // A suspended Job has not ended: the reason is that of an active one.
        let explained_state = if self == JobState::Suspended {
            JobState::Active
        } else {
            self
        };
        let (reason, message) = explained_state.explanation();
        Statement::new(type_, False, reason, message)
    }

    /// A condition that is true, with this reason and message, if the Job has ended in the `wanted` way.
    fn ended(
        self,
        type_: ConditionType,
        wanted: JobState,
        reason: impl Into<String>,
        message: &str,
    ) -> Statement {
        if self == wanted {
            Statement::new(type_, True, reason, message)
        } else {
            self.not_ended(type_)
        }
    }
}

/// All conditions of the new status.
pub(super) fn compute(inputs: &Inputs, summary: &PodSummary, outcome: &Outcome) -> Vec<Condition> {
    let state = JobState::of(inputs.job);
    let since = inputs.job.and_then(JobSeen::end_time);
    let valid = valid(inputs);
    let stalled = stalled(state, &valid, inputs, outcome);
    let finished = if state.is_finished() {
        Statement::new(
            ConditionType::JobFinished,
            True,
            outcome.reason.clone(),
            outcome.message.clone(),
        )
    } else {
        state.not_ended(ConditionType::JobFinished)
    };
    let is_suspended = state == JobState::Suspended;
    let suspended = if !is_suspended {
        (Reason::NotSuspended, "the Job is not suspended")
    } else if outcome.reason == Reason::Queued {
        (Reason::Queued, outcome.message.as_str())
    } else {
        state.explanation()
    };
    let ready = ready(state, summary, outcome);
    let reconciling = reconciling(state, summary, stalled.is_some(), &ready);
    let statements = [
        valid,
        requested(state, inputs, outcome),
        waiting(state, summary, outcome),
        running(state, summary),
        brokers(state, summary),
        Statement { since, ..finished },
        ready,
        Statement {
            since,
            ..state.ended(
                ConditionType::Complete,
                JobState::Completed,
                Reason::Completed,
                "the job ended with exit code 0",
            )
        },
        Statement {
            since,
            ..state.ended(
                ConditionType::Failed,
                JobState::Failed,
                outcome.reason.clone(),
                &outcome.message,
            )
        },
        Statement::new(
            ConditionType::Suspended,
            is_suspended.into(),
            suspended.0,
            suspended.1,
        ),
    ];
    let optional = view(inputs)
        .into_iter()
        .chain(volumes(inputs))
        .chain(archive(inputs, summary))
        .chain(post(inputs, summary))
        .chain(reconciling)
        .chain(stalled);
    statements
        .into_iter()
        .chain(optional)
        .map(|statement| with_transition_time(inputs, statement))
        .collect()
}

/// The condition JobRequested: whether the Job has been created.
fn requested(state: JobState, inputs: &Inputs, outcome: &Outcome) -> Statement {
    match state {
        JobState::NotRequested if !outcome.reason.is_empty() => Statement::new(
            ConditionType::JobRequested,
            False,
            outcome.reason.clone(),
            outcome.message.clone(),
        ),
        JobState::NotRequested => Statement::new(
            ConditionType::JobRequested,
            False,
            Reason::NotRequested,
            "the Job has not been created yet",
        ),
        _ => Statement::new(
            ConditionType::JobRequested,
            True,
            Reason::JobCreated,
            format!("Job {} was created", inputs.name),
        ),
    }
}

/// The condition JobWaitingForResources: whether some of the wanted pods do not run.
fn waiting(state: JobState, summary: &PodSummary, outcome: &Outcome) -> Statement {
    const TYPE: ConditionType = ConditionType::JobWaitingForResources;
    let waits = summary.running < summary.wanted.saturating_sub(summary.completed_followers);
    match state {
        JobState::Active if summary.lead_has_succeeded() => lead_does_not_run(TYPE),
        JobState::Active if waits && !outcome.reason.is_empty() => {
            Statement::new(TYPE, True, outcome.reason.clone(), outcome.message.clone())
        }
        JobState::Active if waits => Statement::new(TYPE, True, Reason::PodsStarting, progress(summary)),
        JobState::Active => Statement::new(TYPE, False, Reason::PodsRunning, progress(summary)),
        _ => Statement::new(TYPE, False, state.explanation().0, state.explanation().1),
    }
}

/// The condition JobRunning: whether the lead's container runs.
fn running(state: JobState, summary: &PodSummary) -> Statement {
    const TYPE: ConditionType = ConditionType::JobRunning;
    match state {
        JobState::Active if summary.lead.is_some_and(|lead| lead.is_on_silent_node) => {
            let message = "the lead's node has stopped responding: whether its container runs is unknown";
            Statement::new(TYPE, Unknown, Reason::NodeLost, message)
        }
        JobState::Active if summary.lead_runs() => Statement::new(
            TYPE,
            True,
            Reason::LeadRunning,
            "the lead broker's container runs",
        ),
        JobState::Active => lead_does_not_run(TYPE),
        _ => Statement::new(TYPE, False, state.explanation().0, state.explanation().1),
    }
}

fn lead_does_not_run(type_: ConditionType) -> Statement {
    let message = "the lead broker's container does not run";
    Statement::new(type_, False, Reason::LeadNotRunning, message)
}

/// The condition JobMiniClusterReady: whether enough brokers are ready.
fn brokers(state: JobState, summary: &PodSummary) -> Statement {
    const TYPE: ConditionType = ConditionType::JobMiniClusterReady;
    match state {
        JobState::Active if summary.is_ready() => {
            Statement::new(TYPE, True, Reason::BrokersReady, readiness(summary))
        }
        JobState::Active => Statement::new(TYPE, False, Reason::BrokersNotReady, readiness(summary)),
        _ => Statement::new(TYPE, False, state.explanation().0, state.explanation().1),
    }
}

/// The condition Ready as kstatus and `kubectl wait` expect it. It stays true once the job has completed: otherwise
/// `kubectl wait` would never return.
fn ready(state: JobState, summary: &PodSummary, outcome: &Outcome) -> Statement {
    const TYPE: ConditionType = ConditionType::Ready;
    match state {
        JobState::Completed => Statement::new(
            TYPE,
            True,
            Reason::Completed,
            "the job has completed: nothing is left to do",
        ),
        JobState::Active if summary.is_ready() => {
            Statement::new(TYPE, True, Reason::BrokersReady, readiness(summary))
        }
        JobState::Active | JobState::NotRequested if !outcome.reason.is_empty() => {
            Statement::new(TYPE, False, outcome.reason.clone(), outcome.message.clone())
        }
        JobState::Suspended if outcome.reason == Reason::Queued => {
            Statement::new(TYPE, False, Reason::Queued, outcome.message.clone())
        }
        JobState::Active => Statement::new(TYPE, False, Reason::BrokersNotReady, readiness(summary)),
        _ => Statement::new(TYPE, False, state.explanation().0, state.explanation().1),
    }
}

/// The condition Reconciling: the MiniCluster is starting. By kstatus' convention it exists only while it is true.
fn reconciling(
    state: JobState,
    summary: &PodSummary,
    is_stalled: bool,
    ready: &Statement,
) -> Option<Statement> {
    const TYPE: ConditionType = ConditionType::Reconciling;
    match state {
        _ if is_stalled || ready.status == True || summary.lead_has_succeeded() => None,
        JobState::NotRequested if ready.reason != Reason::NotRequested => Some(Statement::new(
            TYPE,
            True,
            ready.reason.clone(),
            ready.message.clone(),
        )),
        JobState::NotRequested => Some(Statement::new(
            TYPE,
            True,
            Reason::NotRequested,
            "the Job is about to be created",
        )),
        JobState::Active => Some(Statement::new(
            TYPE,
            True,
            Reason::PodsStarting,
            progress(summary),
        )),
        _ => None,
    }
}

/// The condition Stalled: the MiniCluster needs a user's action. By kstatus' convention it exists only while it is
/// true.
fn stalled(state: JobState, valid: &Statement, inputs: &Inputs, outcome: &Outcome) -> Option<Statement> {
    const TYPE: ConditionType = ConditionType::Stalled;
    // An obstacle that may end by itself needs no action.
    let obstacle = inputs
        .obstacle
        .filter(|obstacle| !obstacle.is_passing() && !obstacle.is_full_quota());
    match state {
        JobState::Completed => None,
        JobState::Failed => Some(Statement::new(
            TYPE,
            True,
            outcome.reason.clone(),
            state.explanation().1,
        )),
        // With these two reasons the Job runs on with its present size, so nothing is stalled.
        _ if valid.status == False
            && valid.reason != Reason::SizeBeyondMaximum
            && valid.reason != Reason::SizeHeldByQueue =>
        {
            Some(Statement::new(
                TYPE,
                True,
                valid.reason.clone(),
                "the spec cannot be used, or the Job does not match it: see the condition Valid",
            ))
        }
        _ => obstacle.map(|obstacle| Statement::new(TYPE, True, obstacle.reason, obstacle.message.clone())),
    }
}

/// The condition ViewMounted: whether the view's image could be mounted, if that was tried. A failure is kept, since it
/// makes later Jobs copy the view.
fn view(inputs: &Inputs) -> Option<Statement> {
    let statement = |status: ConditionStatus, reason: Reason, message: String| {
        Statement::new(ConditionType::ViewMounted, status, reason, message)
    };
    if super::image_volume_failed(inputs.previous) {
        return Statement::previous(inputs, ConditionType::ViewMounted);
    }
    let job = inputs.job?;
    if !job.mounts_view {
        return copied(inputs, job);
    }
    // Once the job may have begun, its pods are not replaced by pods that copy the view.
    let may_have_begun = || {
        super::has_been_ready(inputs.previous)
            || restart::may_have_begun(job, &inputs.pods, &inputs.gone, inputs.spec.min_size())
            || inputs.pods.iter().any(|pod| pod.exit.is_some())
    };
    Some(match failed_view_mount(inputs) {
        Some((pod, error)) if !may_have_begun() => statement(
            False,
            Reason::ImageVolumeFailed,
            format!(
                "{pod} could not mount the view's image, so the view is copied (flux.container.source: copy skips the attempt). The node's error: {error}"
            ),
        ),
        _ if inputs.nodes_mount_images => {
            statement(True, Reason::ImageVolume, "the view's image is mounted: nothing is copied".to_owned())
        }
        _ => statement(
            True,
            Reason::ImageVolumeUnsure,
            "the view's image is mounted as flux.container.source says, though not every node is known to support that (Kubernetes 1.35, containerd 2.1 or CRI-O 1.33); if a node cannot, the view is copied".to_owned(),
        ),
    })
}

/// The condition ViewMounted if the view is copied because of a node that cannot mount images while others can. The
/// Job's first status decides: nodes that are added or removed later do not change how the pods get the view.
fn copied(inputs: &Inputs, job: &JobSeen) -> Option<Statement> {
    let statement = |message: String| {
        Some(Statement::new(
            ConditionType::ViewMounted,
            False,
            Reason::ViewCopied,
            message,
        ))
    };
    if inputs.previous.job_uid.as_ref() == Some(&job.uid) {
        let before = super::condition(inputs.previous, ConditionType::ViewMounted)
            .filter(|condition| condition.reason == Reason::ViewCopied)?;
        return statement(before.message.clone());
    }
    let node = inputs.copied_for?;
    statement(format!(
        "the view is copied, since the pods may be put on {node}, which cannot mount images. To mount the view, keep the pods off such nodes (pod.nodeSelector, arch, a taint), or set flux.container.source: imageVolume"
    ))
}

/// The condition VolumesValid: whether the CSI volumes, if any, have handles of their own and existing storage classes.
/// It does not delay the start: a shared handle may be intended, and a volume is bound to its claim even without its
/// class.
fn volumes(inputs: &Inputs) -> Option<Statement> {
    let statement = |status: ConditionStatus, reason: Reason, message: String| {
        Some(Statement::new(
            ConditionType::VolumesValid,
            status,
            reason,
            message,
        ))
    };
    // The volumes are not known: they are not listed yet, or the spec is not valid.
    let Some(disks) = &inputs.disks else {
        return Statement::previous(inputs, ConditionType::VolumesValid);
    };
    let shared: Vec<String> = disks.iter().filter_map(problem_of_shared_handle).collect();
    let unknown = disks.iter().filter(|disk| disk.is_class_missing).map(|disk| {
        format!(
            "spec.volumes[{}].storageClass: there is no StorageClass {}: `kubectl get storageclasses` lists them; if the name is right, create it",
            disk.key, disk.class
        )
    });
    let reason = if shared.is_empty() {
        Reason::UnknownStorageClass
    } else {
        Reason::SharedHandle
    };
    let problems: Vec<String> = shared.into_iter().chain(unknown).collect();
    match (disks.is_empty(), problems.is_empty()) {
        (true, _) => None,
        (false, true) => statement(
            True,
            Reason::Valid,
            "each CSI volume has its own handle and an existing storage class".to_owned(),
        ),
        (false, false) => statement(False, reason, problems.join("; ")),
    }
}

/// The condition ArchiveSaved, if the spec has an archive and the lead has reported. It does not change the job's
/// result. If the lead is in another cluster, none of these pods writes an archive.
fn archive(inputs: &Inputs, summary: &PodSummary) -> Option<Statement> {
    let CheckedSpec::Valid(cluster) = inputs.spec else {
        return None;
    };
    if cluster.flux.lead.is_some() {
        return None;
    }
    let path = cluster.archive.as_deref()?;
    let statement = |status: ConditionStatus, reason: Reason, message: String| {
        Some(Statement::new(
            ConditionType::ArchiveSaved,
            status,
            reason,
            message,
        ))
    };
    let not_saved = |why: &str| {
        statement(
            False,
            Reason::NotSaved,
            format!("the archive {path} was not saved: {why}"),
        )
    };
    // How the lead ended has not been seen yet, or its pod no longer exists.
    let Some(exit) = summary.lead.and_then(|lead| lead.exit.as_ref()) else {
        return Statement::of_this_start(inputs, ConditionType::ArchiveSaved);
    };
    match &exit.termination {
        // The agent failed, perhaps before it knew whether there is an archive.
        Some(termination) if termination.by == Ender::Agent && termination.program_code.is_none() => {
            not_saved("the job did not run")
        }
        Some(Termination {
            archive_not_saved: Some(why),
            ..
        }) => not_saved(why),
        // Until it has saved the archive, the agent reports `archive_not_saved`.
        Some(_) => statement(
            True,
            Reason::Saved,
            format!("the state of Flux was saved to {path}"),
        ),
        None => not_saved(&format!(
            "the lead exited with {} without reporting whether it saved",
            exit.code
        )),
    }
}

/// The condition PostSucceeded, once a pod has reported. It does not change the job's result.
fn post(inputs: &Inputs, summary: &PodSummary) -> Option<Statement> {
    let CheckedSpec::Valid(cluster) = inputs.spec else {
        return None;
    };
    cluster.runner.snippets.post.as_ref()?;
    if let Some(failure) = post::failure(inputs) {
        return Some(Statement::new(
            ConditionType::PostSucceeded,
            False,
            Reason::PostFailed,
            failure,
        ));
    }
    let before = Statement::of_this_start(inputs, ConditionType::PostSucceeded);
    // How the lead ended has not been seen yet, or its pod no longer exists.
    if before.is_some() && summary.lead.is_none_or(|lead| lead.exit.is_none()) {
        return before;
    }
    let termination = summary.lead?.exit.as_ref()?.termination.as_ref()?;
    // `post` runs after the program. A failed `post` was handled above. (`Ender::Program` is also reported if no program
    // was to run.)
    let has_run = termination.by == Ender::Program && termination.program_code.is_some();
    has_run.then(|| {
        Statement::new(
            ConditionType::PostSucceeded,
            True,
            Reason::PostCompleted,
            "post ended with exit code 0",
        )
    })
}

/// What is wrong with a CSI volume whose handle another PersistentVolume has, too. None: no other has it.
fn problem_of_shared_handle(disk: &DiskSeen) -> Option<String> {
    let DiskSeen {
        key,
        driver,
        handle,
        shared_with,
        ..
    } = disk;
    let other = shared_with.as_ref()?;
    Some(format!(
        "spec.volumes[{key}].volumeHandle: PersistentVolume {other} has the handle `{handle}` of driver {driver}, too, so a node may mount one with the attributes and the Secret of the other: give each a volumeHandle of its own, or let both mount one claim by existingVolumes"
    ))
}

/// The pod that could not mount the view's image, and the error. The error is from the container runtime, which could
/// not create the first container, or from a kubelet that does not support image volumes and would leave the pod in
/// ContainerCreating forever. An image that cannot be pulled does not count: a copy would need it too.
fn failed_view_mount<'a>(inputs: &'a Inputs) -> Option<(String, &'a str)> {
    let by_runtime = |pod: &&'a PodSeen| {
        let error = pod
            .creation_failure
            .as_deref()
            .filter(|error| is_about_mount(error))?;
        Some((format!("pod {}", pod.index), error))
    };
    // The kubelet's message has the volume's name in double quotes, as `{:?}` writes it.
    let is_unsupported = |warning: &&Trouble| {
        warning.reason == Reason::FailedMount
            && warning.message.contains(&format!("{VIEW_IMAGE_VOLUME:?}"))
            && warning.message.contains("no volume plugin matched")
    };
    let by_kubelet = inputs
        .warning
        .filter(is_unsupported)
        .map(|warning| ("a pod".to_owned(), warning.message.as_str()));
    inputs.pods.iter().find_map(by_runtime).or(by_kubelet)
}

/// Numbers of pods by state, for messages.
fn progress(summary: &PodSummary) -> String {
    let PodSummary {
        scheduled,
        running,
        ready,
        wanted,
        completed_followers,
        ..
    } = summary;
    let completed = if *completed_followers > 0 {
        format!(", {completed_followers} completed")
    } else {
        String::new()
    };
    format!("{scheduled}/{wanted} pods scheduled, {running} running, {ready} ready{completed}")
}

/// The message of the status during a start in which nothing is wrong. None: no start is in progress. It names a
/// scheduler that has not looked at a pod, unless this is Kubernetes' default scheduler.
pub(super) fn awaited(inputs: &Inputs, summary: &PodSummary) -> Option<String> {
    if JobState::of(inputs.job) != JobState::Active || summary.is_complete() {
        return None;
    }
    let mut unseen = inputs
        .pods
        .iter()
        .filter(|pod| pod.is_unnoticed && !pod.is_deleting);
    let other = unseen.find_map(|pod| pod.scheduler.as_deref().filter(|name| *name != DEFAULT_SCHEDULER));
    let other = other.map(|name| format!("; scheduler {name} has not looked at all of them yet"));
    Some(progress(summary) + &other.unwrap_or_default())
}

/// How many brokers are ready, and how many are enough, for messages.
fn readiness(summary: &PodSummary) -> String {
    let PodSummary {
        ready,
        wanted,
        completed_followers,
        ..
    } = summary;
    let needed = summary.needed();
    let completed = if *completed_followers > 0 {
        format!(", {completed_followers} completed")
    } else {
        String::new()
    };
    let enough = if needed < *wanted {
        let verb = if needed == 1 { "is" } else { "are" };
        format!(" ({needed} {verb} enough)")
    } else {
        String::new()
    };
    let lead = if *ready >= needed && !summary.is_ready() {
        ", but not the lead"
    } else {
        ""
    };
    format!("{ready} of {wanted} brokers are ready{completed}{lead}{enough}")
}

/// Whether a queue keeps the Job from getting the size in the spec.
fn queue_holds_size(cluster: &ValidMiniCluster, job: &JobSeen) -> bool {
    let is_over = job.is_finished() || job.is_deleting;
    !is_over
        && cluster.size != job.completions
        && Elastic::of(cluster, cluster.size, job).is_held_by_queue(job)
}

/// The condition Valid: whether the spec can be used, and whether the Job matches it.
fn valid(inputs: &Inputs) -> Statement {
    let maximum = super::maximum_size(inputs).map(i64::from);
    let (status, reason, message) = match (inputs.spec, maximum) {
        (CheckedSpec::Invalid(problems), _) => {
            let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            (False, Reason::Invalid, lines.join("; "))
        }
        (CheckedSpec::Valid(_), _) if inputs.obstacle.is_some_and(|obstacle| obstacle.reason == Reason::PodTemplateRefused) => {
            (False, Reason::PodTemplateRefused, inputs.obstacle.map(|obstacle| obstacle.message.clone()).unwrap_or_default())
        }
        (CheckedSpec::Valid(cluster), _) if inputs.overlay_differs(cluster) => (
            False,
            Reason::ChangedTooLate,
            "spec.podTemplate or spec.servicesPodTemplate was changed after the pods were created, so the earlier one runs: delete and recreate the MiniCluster to run the current one".to_owned(),
        ),
        (CheckedSpec::Valid(_), _) if inputs.changed_too_late() => (
            False,
            Reason::ChangedTooLate,
            "the spec was changed while its Job was being created, so the Job runs the earlier spec: delete and recreate the MiniCluster to run the current one".to_owned(),
        ),
        (CheckedSpec::Valid(cluster), Some(maximum)) if i64::from(cluster.size) > maximum => (
            False,
            Reason::SizeBeyondMaximum,
            format!(
                "spec.size: is {}, but this cluster can have {maximum} pods at most, fixed when it was created; its size is unchanged: lower spec.size, or recreate it with a larger maxSize",
                cluster.size
            ),
        ),
        (CheckedSpec::Valid(cluster), _) if inputs.job.is_some_and(|job| queue_holds_size(cluster, job)) => (
            False,
            Reason::SizeHeldByQueue,
            format!(
                "spec.size: is {}, but the queue has admitted {} pods, and would evict the Job to change that. The new size takes effect if the queue evicts it; to resize a running cluster, create it with maxSize",
                cluster.size,
                inputs.job.map_or(0, |job| job.completions)
            ),
        ),
        (CheckedSpec::Valid(cluster), _) if !cluster.notices.is_empty() => {
            let lines: Vec<String> = cluster.notices.iter().map(ToString::to_string).collect();
            (True, Reason::ValidWithNotes, lines.join("; "))
        }
        (CheckedSpec::Valid(_), _) => (True, Reason::Valid, "every field can be used".to_owned()),
    };
    Statement::new(ConditionType::Valid, status, reason, message)
}

/// The condition, with the time of the last change of its status.
fn with_transition_time(inputs: &Inputs, statement: Statement) -> Condition {
    let status = statement.status;
    let previous =
        super::condition(inputs.previous, statement.type_).filter(|previous| previous.status == status);
    let since = match previous {
        Some(previous) => previous.last_transition_time.clone(),
        None if status == True => rfc3339(statement.since.unwrap_or(inputs.now)),
        None => rfc3339(inputs.now),
    };
    Condition {
        type_: statement.type_.into(),
        status,
        observed_generation: inputs.generation,
        last_transition_time: since,
        // By Kubernetes' convention, a condition always has a reason.
        reason: if statement.reason.is_empty() {
            Reason::None.into()
        } else {
            statement.reason
        },
        message: short(&statement.message),
    }
}
