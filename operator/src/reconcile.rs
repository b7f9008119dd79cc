//! One reconcile of a MiniCluster: brings its objects from the observed to the wanted state.
//!
//! ```text
//! observed (watches) ─► validate ─► decide ─► render ─► apply ─► status ─► one patch, events ─► when to look again
//! ```
//!
//! Data that no watch delivers (gang APIs, events, specs too large for the cache) is read when it is needed
//! (`lookups`).
//!
//! The process may be killed after each step: the next reconcile finds the same, or does the rest.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flux_operator_core::decide::restart::{self, Decision, Observation};
use flux_operator_core::decide::{ending, next_action, remaining};
use flux_operator_core::observe::cluster::{self, Cluster, is_managed_elsewhere};
use flux_operator_core::observe::job::{self, JobSeen};
use flux_operator_core::observe::node::ViewNodes;
use flux_operator_core::observe::pod::Trouble;
use flux_operator_core::observe::pod_end;
use flux_operator_core::observe::{Key, Observed};
use flux_operator_core::status::{self, CheckedSpec, Inputs, Obstacle, Panicked, events, patch};
use flux_operator_core::target::Target;
use flux_operator_core::vocabulary::{ConditionType, Reason};
use flux_operator_core::{previous_status, render, spans};
use flux_shared::crd::v1alpha2::{LostPod, MiniClusterStatus};
use flux_shared::validate::{Problem, ValidMiniCluster};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::runtime::controller::Action;

use crate::reconcile::apply::ApplyError;
use crate::reconcile::context::Context;
use crate::reconcile::create::{Done, create_or_update, delete_gangs, join_index};
use crate::reconcile::diagnose::diagnose_and_mend;
use crate::reconcile::error::ReconcileError;
use crate::reconcile::finish::{clean_up, delete_or_time_left, recreate_with_copied_view};

pub mod apply;
pub mod context;
mod create;
mod diagnose;
pub mod error;
mod finish;
pub mod job_first;
pub mod lookups;
pub mod random;

/// After so long without an answer to a call the status says so.
const SILENCE: Duration = Duration::from_secs(5);

/// Whether this reconcile may have to act, and not only to report: there is no Job yet, or the spec was
/// edited.
pub fn has_priority(object: &Cluster, context: &Context) -> bool {
    match object.observed_generation() {
        _ if is_managed_elsewhere(object) => false,
        None => !context.index.has_job(&Key::of(object.meta())),
        generation => generation != object.meta().generation,
    }
}

/// Reconciles one MiniCluster.
pub async fn reconcile(object: Arc<Cluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let begin = Instant::now();
    let target = context.statuses.latest(Target::of(&object));
    let job = context
        .index
        .job(&target.key)
        .filter(|job| job.is_of(&target.uid));
    let target = target.with_queueing_of(job.as_ref());
    let checked = target.validate(&context.options);
    if !target.is_deleting
        && !status::is_finished(&target.status)
        && let Some(cluster) = checked.as_ref().ok()
    {
        join_index(&target, cluster, &context);
    }
    let known = with_losses(&target, &context);
    let decision = decide(
        &target,
        checked.as_ref().ok(),
        &known,
        &context.index.observed(&target.key),
    );
    let done = {
        let mut work = pin!(carry_out(
            &object,
            &decision,
            &target,
            &known,
            checked.as_ref().ok(),
            &context
        ));
        match tokio::time::timeout(SILENCE, work.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                let silent = Obstacle::api_server_silent_for(SILENCE.as_secs());
                let news = News {
                    obstacle: Some(&silent),
                    ..News::default()
                };
                let after = new_status(&target, &known, &checked, news, &context);
                // A status that cannot be written either is no reason to end the work.
                drop(write_status(&object, &target, &after, &context).await);
                work.await
            }
        }
    };
    match &done {
        Ok(Done::MadeJob) => context.statuses.note_job_created(&target.uid, Instant::now()),
        Ok(Done::Restarted | Done::OutOfDate) => {}
        Ok(Done::All | Done::OutOfTime) => {
            return report(&object, &checked, &decision, done, &context, begin).await;
        }
        Err(error) => {
            if error.is_of_terminating_namespace() {
                context.terminating.note(&target.key.namespace, Instant::now());
            }
            return report(&object, &checked, &decision, done, &context, begin).await;
        }
    }
    Ok(Action::requeue(
        context.pauses.after_change(&target.key, Instant::now()),
    ))
}

/// Writes the status after a decision was carried out, or was not, and does what follows the end.
async fn report(
    object: &Cluster,
    checked: &Result<ValidMiniCluster, Vec<Problem>>,
    decision: &Decision,
    done: Result<Done, ReconcileError>,
    context: &Context,
    begin: Instant,
) -> Result<Action, ReconcileError> {
    // A status may have been written meanwhile.
    let target = context.statuses.latest(Target::of(object));
    let job = context
        .index
        .job(&target.key)
        .filter(|job| job.is_of(&target.uid));
    let target = target.with_queueing_of(job.as_ref());
    let known = with_losses(&target, context);
    let ended_job = match (decision, &done) {
        (Decision::Ended { reason, message }, Ok(_)) => Some(as_ended(&target, reason, message)),
        (_, Ok(Done::OutOfTime)) => Some(as_ended(
            &target,
            Reason::DeadlineExceeded.name(),
            "deadlineSeconds exceeded before it could restart",
        )),
        _ => None,
    };
    let look = diagnose_and_mend(&target, checked.as_ref().ok(), context).await;
    let warning = look.as_ref().ok().and_then(|look| look.as_ref()?.0.as_ref());
    // The first that failed comes first: what follows from it may pass with it.
    let error = done.as_ref().err().or(look.as_ref().err());
    let obstacle = error
        .filter(|error| is_told(error, &target, context, begin))
        .map(ReconcileError::as_obstacle);
    let after = new_status(
        &target,
        &known,
        checked,
        News {
            obstacle: obstacle.as_ref(),
            ended_job: ended_job.as_ref(),
            warning,
        },
        context,
    );
    let written = write_status(object, &target, &after, context).await;
    done?;
    let (look, later) = (look?, written?);
    if later.is_none() {
        clean_up(&target, checked.as_ref().ok(), &after, context).await?;
        recreate_with_copied_view(&target, &after, context).await?;
    }
    let until_deleted = delete_or_time_left(&target, &after, context).await?;
    context.pauses.clear(&target.key);
    // No watch reports the operator's own status as news.
    let is_over = previous_status::is_finished(&after) && !previous_status::is_finished(&target.status);
    let observed = context.index.observed(&target.key);
    if is_over && decide(&target, checked.as_ref().ok(), &after, &observed) != Decision::Continue {
        return Ok(Action::requeue(
            context.pauses.after_change(&target.key, Instant::now()),
        ));
    }
    let until_given_up = matches!(decision, Decision::EndPods { .. })
        .then(|| Duration::from_secs(restart::TIME_TO_END.unsigned_abs() + 1));
    let until_looked = look.map(|(_, wait)| wait);
    Ok(next_look([later, until_looked, until_given_up, until_deleted]))
}

/// The next reconcile without a change: after the shortest of these times.
fn next_look(times: [Option<Duration>; 4]) -> Action {
    let soonest = times.into_iter().flatten().min();
    soonest.map_or_else(Action::await_change, Action::requeue)
}

/// Whether the status shows the error: at once if a person can remove its cause, otherwise if it lasts or if the
/// status shows it already.
fn is_told(error: &ReconcileError, target: &Target, context: &Context, begin: Instant) -> bool {
    let is_said = || target.status.reason.as_deref() == Some(error.as_obstacle().reason.name());
    error.obstacle().is_some()
        || is_said()
        || context
            .pauses
            .is_lasting(&target.key, error, begin, Instant::now())
}

/// Shows in the status that a reconcile was given up, if that lasts. Not if the cache does not have the spec: the
/// status needs it, and reading it is what has to wait.
pub async fn report_overload(object: &Cluster, context: &Context) {
    if cluster::left_out(object).is_some() {
        return;
    }
    let (target, error, now) = (
        context.statuses.latest(Target::of(object)),
        ReconcileError::Crowd,
        Instant::now(),
    );
    if !context.pauses.is_lasting(&target.key, &error, now, now) {
        return;
    }
    let (known, checked) = (with_losses(&target, context), target.validate(&context.options));
    let after = new_status(
        &target,
        &known,
        &checked,
        News {
            obstacle: Some(&error.as_obstacle()),
            ..News::default()
        },
        context,
    );
    if let Err(error) = write_status(object, &target, &after, context).await {
        crate::health::log::warn("failed to write a status", &error);
    }
}

/// Whether a decision about the whole MiniCluster still holds with the API server's current state. The watches may
/// not have delivered everything yet.
async fn is_confirmed(
    decision: &Decision,
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    known: &MiniClusterStatus,
    context: &Context,
) -> Result<bool, ReconcileError> {
    let expected = match decision {
        Decision::Continue | Decision::Delete { .. } => return Ok(true),
        Decision::Restart {
            job_uid, is_there, ..
        } => is_there.then_some(job_uid),
        Decision::EndPods { pods, .. } if pods.is_empty() => return Ok(true),
        Decision::Fail { job_uid, .. } | Decision::EndPods { job_uid, .. } => Some(job_uid),
        Decision::Ended { .. } | Decision::Wait => None,
    };
    let job = context
        .writer
        .read_job(&context.index, &target.key, &target.uid)
        .await?;
    // The creation reports a Job of this name that is not ours.
    let job = job.filter(|job| job.is_of(&target.uid));
    if job.as_ref().map(|job| &job.uid) != expected {
        return Ok(false);
    }
    let observed = context.index.observed(&target.key);
    let last = observed
        .job
        .as_ref()
        .or(observed.last_job.as_deref())
        .map(|job| &job.uid)
        .or(known.job_uid.as_ref());
    let Some(uid) = last.cloned() else {
        return Ok(decide(target, cluster, known, &observed) == *decision);
    };
    let now = observed.with_leads(&uid, context.writer.read_leads(&target.key, &uid).await?);
    Ok(decide(target, cluster, known, &now) == *decision)
}

/// Carries out a decision about the Job as a whole, or creates and changes what is missing or differs.
async fn carry_out(
    object: &Cluster,
    decision: &Decision,
    target: &Target,
    known: &MiniClusterStatus,
    cluster: Option<&ValidMiniCluster>,
    context: &Context,
) -> Result<Done, ReconcileError> {
    let is_of_end = !matches!(decision, Decision::Continue | Decision::Delete { .. });
    if is_of_end
        && context
            .terminating
            .contains(&target.key.namespace, Instant::now())
    {
        return Err(ApplyError::NamespaceTerminating.into());
    }
    if !is_confirmed(decision, target, cluster, known, context).await? {
        tracing::info!("what was seen last is out of date: reconciling again");
        return Ok(Done::OutOfDate);
    }
    match decision {
        Decision::Ended { .. } => {
            delete_gangs(target, cluster, context).await;
            Ok(Done::All)
        }
        Decision::Restart { .. } => restart_as_new_job(object, target, known, decision, context).await,
        Decision::Wait => {
            let observed = context.index.observed(&target.key);
            let pods =
                remaining::describe(&observed.living()).unwrap_or_else(|| "its pods still run".to_owned());
            let message =
                format!("the Job was deleted, and the MiniCluster restarts when its pods have ended: {pods}");
            Err(ApplyError::from(Obstacle {
                reason: Reason::WaitingForPods,
                message,
            })
            .into())
        }
        Decision::Delete { job_uid } => context
            .writer
            .delete_job(&target.key, job_uid)
            .await
            .map(|()| Done::All)
            .map_err(Into::into),
        Decision::EndPods { pods, message, .. } => {
            let text = format!("{} {message}", previous_status::rfc3339(Timestamp::now()));
            for pod in pods {
                context.writer.end_pod(&target.key.namespace, pod, &text).await?;
            }
            tracing::info!(message, pods = pods.len(), "told the other pods to end");
            Ok(Done::All)
        }
        Decision::Fail {
            job_uid,
            reason,
            message,
        } => {
            let now = previous_status::rfc3339(Timestamp::now());
            tracing::info!(reason, message, "ended the Job");
            let failed = context
                .writer
                .fail_job(
                    &target.key,
                    job_uid,
                    reason,
                    &previous_status::short(message),
                    &now,
                )
                .await;
            failed.map(|()| Done::All).map_err(Into::into)
        }
        Decision::Continue => create_or_update(target, cluster, context).await,
    }
}

/// Writes the status and its events, if anything differs. A change of numbers alone may be put off; returns
/// for how long.
async fn write_status(
    object: &Cluster,
    target: &Target,
    after: &MiniClusterStatus,
    context: &Context,
) -> Result<Option<Duration>, ReconcileError> {
    let Some(change) = patch::build(target, &target.status, after).map_err(ReconcileError::Status)? else {
        return Ok(None);
    };
    let expects_pods = expects_pods(target, after, context);
    let is_first_of_job = expects_pods && target.status.observed_generation.is_none();
    let wait = context
        .statuses
        .wait_to_write(&target.uid, expects_pods, is_first_of_job, Instant::now());
    let may_wait = is_first_of_job || !patch::is_news(&target.status, after);
    let later = if may_wait { wait } else { None };
    if later.is_none() {
        if let Some(version) = context.writer.patch_status(&target.key, &change).await? {
            context.statuses.remember(target, version, after, Instant::now());
            count_ready(object, &target.status, after, context);
            trace_end(object, target, after, context);
        }
        context
            .writer
            .write_events(object, &events::between(&target.status, after))
            .await;
    }
    Ok(later)
}

/// The status, with the pods that the watches have seen go since it was written.
fn with_losses(target: &Target, context: &Context) -> MiniClusterStatus {
    let observed = context.index.observed(&target.key);
    let mut known = target.status.clone();
    let last_job = observed
        .last_job
        .as_deref()
        .filter(|last| last.is_of(&target.uid));
    let Some(job) = observed.job_of(&target.uid).or(last_job) else {
        return known;
    };
    if restart::is_given_up(&known, job) {
        return known;
    }
    let now = previous_status::rfc3339(Timestamp::now());
    let is_new = |lost: &&LostPod| !target.status.lost_pods.iter().any(|pod| pod.name == lost.name);
    known
        .lost_pods
        .extend(observed.losses.iter().filter(is_new).map(|lost| LostPod {
            time: now.clone(),
            ..lost.clone()
        }));
    while known.lost_pods.len() > pod_end::LOST_KEPT {
        let follower = known
            .lost_pods
            .iter()
            .position(|lost| lost.index > 0)
            .unwrap_or(0);
        known.lost_pods.remove(follower);
    }
    known
}

fn decide(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    known: &MiniClusterStatus,
    observed: &Observed,
) -> Decision {
    if target.is_deleting {
        return Decision::Continue;
    }
    let Some(cluster) = cluster else {
        return Decision::Continue;
    };
    if observed.job.is_some() && observed.job_of(&target.uid).is_none() {
        return Decision::Continue;
    }
    restart::decide(&observation(target, cluster, known, observed))
}

/// The observed state of a MiniCluster's Job, or of the last one if there is none any more.
fn observation<'a>(
    target: &Target,
    cluster: &ValidMiniCluster,
    known: &'a MiniClusterStatus,
    observed: &'a Observed,
) -> Observation<'a> {
    let job = observed.job_of(&target.uid);
    let last_job = observed
        .last_job
        .as_deref()
        .filter(|last| last.is_of(&target.uid));
    let uid = job
        .or(last_job)
        .map(|job| job.uid.clone())
        .or_else(|| known.job_uid.clone());
    Observation {
        status: known,
        backoff_limit: cluster.backoff_limit,
        max_restarts: cluster.max_restarts,
        restarts_on_failure: cluster.pod.restart_policy.as_deref() == Some("OnFailure"),
        job,
        last_job,
        pods: observed
            .pods
            .values()
            .map(Box::as_ref)
            .filter(|pod| uid.is_some() && pod.job_uid == uid)
            .collect(),
        gone: observed
            .gone_leads
            .iter()
            .filter(|pod| pod.job_uid == uid)
            .collect(),
        now: Timestamp::now(),
    }
}

/// Counts a restart in the status, and only then deletes the Job that it replaces: an operator that is killed
/// in between finds the Job's uid in the status.
async fn restart_as_new_job(
    object: &Cluster,
    target: &Target,
    known: &MiniClusterStatus,
    decision: &Decision,
    context: &Context,
) -> Result<Done, ReconcileError> {
    let Decision::Restart {
        job_uid,
        is_there,
        reason,
        message,
        limit,
    } = decision
    else {
        return Ok(Done::All);
    };
    let after = restart::with_counted_restart(known, job_uid, reason, message, *limit, Timestamp::now());
    let after = status::restarting(after);
    if let Some(change) = patch::build(target, &target.status, &after).map_err(ReconcileError::Status)? {
        let counted = context
            .writer
            .patch_status_if_unchanged(&target.key, target.resource_version, &change)
            .await?;
        let Some(version) = counted else {
            return Ok(Done::All);
        };
        context.statuses.remember(target, version, &after, Instant::now());
    }
    tracing::info!(
        reason,
        message,
        count = after.restart_count,
        "restarting the MiniCluster"
    );
    if *is_there {
        context.writer.delete_job(&target.key, job_uid).await?;
    }
    context
        .writer
        .write_events(object, events::of_restart(&after).as_slice())
        .await;
    Ok(Done::Restarted)
}

/// A Job that has ended and no longer exists, with the condition that it would have.
fn as_ended(target: &Target, reason: &str, message: &str) -> JobSeen {
    let now = Timestamp::now();
    let condition = job::TrueCondition {
        reason: reason.to_owned(),
        message: message.to_owned(),
        since: Some(now),
    };
    let is_complete = *reason == Reason::Completed;
    JobSeen {
        uid: target.status.job_uid.clone().unwrap_or_default(),
        owner_uid: Some(target.uid.clone()),
        maximum_size: target
            .status
            .maximum_size
            .and_then(|size| u32::try_from(size).ok()),
        complete: is_complete.then(|| condition.clone()),
        failed: (!is_complete).then_some(condition),
        ..JobSeen::default()
    }
}

/// Whether the Job controller is still making pods, and nothing is known to be in its way.
fn expects_pods(target: &Target, after: &MiniClusterStatus, context: &Context) -> bool {
    let observed = context.index.observed(&target.key);
    let job = observed
        .job_of(&target.uid)
        .filter(|job| !job.is_finished() && !job.is_suspended && !job.is_deleting);
    let pod_count = |job: &JobSeen| observed.pods_of(job).count();
    let comes = |job: &JobSeen| {
        job.start_time.is_none() || pod_count(job) < usize::try_from(job.completions).unwrap_or(0)
    };
    after.reason.is_none() && job.is_some_and(comes)
}

/// Reports a panic in the status, and where it was. The spec is not read: it may be the cause.
pub async fn report_panic(object: &Cluster, context: &Context, panicked: &Panicked) {
    let target = context.statuses.latest(Target::of(object));
    let after = status::panicked(&target.status, target.generation, panicked, Timestamp::now());
    let change = match patch::build(&target, &target.status, &after) {
        Ok(Some(change)) => change,
        Ok(None) => return,
        Err(error) => {
            crate::health::log::warn("failed to write a status", &error);
            return;
        }
    };
    match context.writer.patch_status(&target.key, &change).await {
        Ok(Some(version)) => context
            .statuses
            .remember(&target, version, &after, Instant::now()),
        Ok(None) => return,
        Err(error) => crate::health::log::warn("failed to write a status", &error),
    }
    context
        .writer
        .write_events(object, &events::between(&target.status, &after))
        .await;
}

fn count_ready(object: &Cluster, before: &MiniClusterStatus, after: &MiniClusterStatus, context: &Context) {
    let is_ready = |status| previous_status::is_true(status, ConditionType::JobMiniClusterReady);
    if is_ready(after)
        && !is_ready(before)
        && let Some(created) = object.meta().creation_timestamp.as_ref()
    {
        let time = Timestamp::now().duration_since(created.0);
        context
            .metrics
            .ready_after(Duration::try_from(time).unwrap_or_default());
    }
}

/// Sends the root span of its trace once a MiniCluster has ended.
fn trace_end(object: &Cluster, target: &Target, after: &MiniClusterStatus, context: &Context) {
    if !context.traces.are_wanted() || status::is_finished(&target.status) || !status::is_finished(after) {
        return;
    }
    let created = object.meta().creation_timestamp.as_ref();
    let traced = created.and_then(|created| spans::build(&target.key, &target.uid, created.0, after));
    if let Some(traced) = traced {
        context.traces.send(traced);
    }
}

fn is_unlabelled(obstacle: Option<&Obstacle>) -> bool {
    obstacle.is_some_and(|obstacle| obstacle.reason == Reason::JobUnlabelled)
}

/// Findings of a reconcile that no watch delivers.
#[derive(Debug, Clone, Copy, Default)]
struct News<'a> {
    obstacle: Option<&'a Obstacle>,
    /// The Job that has ended and is gone.
    ended_job: Option<&'a JobSeen>,
    warning: Option<&'a Trouble>,
}

/// Computes the status as it should be now.
fn new_status(
    target: &Target,
    known: &MiniClusterStatus,
    checked: &Result<ValidMiniCluster, Vec<Problem>>,
    news: News,
    context: &Context,
) -> MiniClusterStatus {
    let News {
        obstacle,
        ended_job,
        warning,
    } = news;
    let observed = context.index.observed(&target.key);
    let cluster = checked.as_ref().ok();
    let nodes = context
        .index
        .view_nodes(|| cluster.map(render::placement::of_pods).unwrap_or_default());
    let copied_for = match &nodes {
        ViewNodes::Old(node)
            if cluster.is_some_and(|cluster| render::view::depends_on_nodes(cluster, &context.options)) =>
        {
            Some(node.clone())
        }
        _ => None,
    };
    // A Job without its label is not watched: use its last observed state.
    let unseen = || {
        observed
            .last_job
            .as_deref()
            .filter(|last| last.is_of(&target.uid) && is_unlabelled(obstacle))
    };
    let current_job = observed
        .job_of(&target.uid)
        .filter(|job| !next_action::is_being_recreated(known, job, &observed))
        .or_else(unseen)
        .map(|job| restart::without_end_if_given_up(known, job));
    let decided = current_job.as_deref().map(|job| match checked {
        Ok(cluster) if !target.is_deleting => {
            ending::with_decided_end(&observation(target, cluster, known, &observed), job)
        }
        _ => Cow::Borrowed(job),
    });
    let job = ended_job.or(decided.as_deref());
    status::without_panic(status::compute(&Inputs {
        name: &target.key.name,
        generation: target.generation,
        is_deleting: target.is_deleting,
        spec: match checked {
            Ok(cluster) => CheckedSpec::Valid(cluster),
            Err(problems) => CheckedSpec::Invalid(problems),
        },
        previous: known,
        job,
        spec_hash: target.spec_hash().as_deref(),
        pods: job.map(|job| observed.pods_of(job).collect()).unwrap_or_default(),
        gone: observed
            .gone_leads
            .iter()
            .filter(|pod| job.is_some_and(|job| pod.job_uid.as_ref() == Some(&job.uid)))
            .collect(),
        obstacle,
        nodes_mount_images: nodes == ViewNodes::Mount,
        copied_for: copied_for.as_deref(),
        disks: checked
            .as_ref()
            .ok()
            .and_then(|cluster| context.index.disks_of(cluster)),
        warning,
        now: Timestamp::now(),
    }))
}

#[cfg(test)]
mod tests;
