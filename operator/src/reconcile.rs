//! One reconcile of a MiniCluster: brings its objects from the observed to the wanted state.
//!
//! ```text
//! observed (watches) ─► validate ─► decide ─► render ─► apply ─► status ─► one patch, events ─► when to reconcile next
//! ```
//!
//! Data that no watch delivers (gang APIs, events, specs too large for the cache) is read when it is needed
//! (`lookups`).
//!
//! The process may be killed after each step: the next reconcile repeats the decision, or does the rest.

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
use flux_operator_core::vocabulary::Reason;
use flux_operator_core::{previous_status, render, spans};
use flux_shared::crd::v1alpha2::{LostPod, MiniClusterStatus};
use flux_shared::validate::{DEFAULT_BACKOFF_LIMIT, Problem, ValidMiniCluster, is_lead_elsewhere};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::runtime::controller::Action;

use crate::reconcile::apply::ApplyError;
use crate::reconcile::context::Context;
use crate::reconcile::create::{Done, create_or_update, delete_gangs, join_index, seconds_left};
use crate::reconcile::diagnose::diagnose_and_mend;
use crate::reconcile::error::ReconcileError;
use crate::reconcile::finish::{clean_up, delete_or_time_left, end_services};

pub mod apply;
pub mod context;
mod create;
mod diagnose;
pub mod error;
mod finish;
pub mod job_first;
pub mod lookups;
pub mod random;

/// If carrying out the decision takes longer than this, the status reports that the API server is slow.
const SLOW_AFTER: Duration = Duration::from_secs(5);

/// Whether the MiniCluster is new and has no Job yet, or its spec was edited: this reconcile probably creates or
/// changes objects, and does not only write the status.
pub fn has_priority(object: &Cluster, context: &Context) -> bool {
    if is_managed_elsewhere(object) {
        return false;
    }
    match object.observed_generation() {
        // No status has been written yet.
        None => !context.index.has_job(&Key::of(object.meta())),
        generation => generation != object.meta().generation,
    }
}

/// Reconciles one MiniCluster.
pub async fn reconcile(object: Arc<Cluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let begin = Instant::now();
    let target = context.miniclusters.latest(Target::of(&object));
    let job = context.index.job_of(&target.key, &target.uid);
    let target = target.with_queueing_of(job.as_ref());
    let checked = target.validate(&context.options);
    if !target.is_deleting
        && !status::is_finished(&target.status)
        && let Some(cluster) = checked.as_ref().ok()
    {
        // From now on, the index remembers the Job and its leads if they are deleted. Decisions need their last state.
        join_index(&target, cluster, &context);
    }
    let known_status = with_losses(&target, &context);
    let decision = decide(
        &target,
        checked.as_ref().ok(),
        &known_status,
        &context.index.observed(&target.key),
    );
    let done = {
        let mut work = pin!(carry_out(
            &object,
            &decision,
            &target,
            &known_status,
            checked.as_ref().ok(),
            &context
        ));
        match tokio::time::timeout(SLOW_AFTER, work.as_mut()).await {
            Ok(done) => done,
            Err(_) => {
                let slow = Obstacle::slow_for(SLOW_AFTER.as_secs());
                let findings = Findings {
                    obstacle: Some(&slow),
                    ..Findings::default()
                };
                let after = new_status(&target, &known_status, &checked, findings, &context);
                // The work continues even if this status cannot be written.
                drop(write_status(&object, &target, &after, &context).await);
                work.await
            }
        }
    };
    match &done {
        Ok(Done::JobChanged) => context.miniclusters.note_job_changed(&target.uid, Instant::now()),
        Ok(Done::Restarted | Done::OutOfDate) => {}
        Ok(Done::All | Done::OutOfTime | Done::WaitsUntilDeadline(_)) => {
            return report(&object, &checked, &decision, done, &context, begin).await;
        }
        Err(error) => {
            if error.is_of_terminating_namespace() {
                context.terminating.note(&target.key.namespace, Timestamp::now());
            }
            return report(&object, &checked, &decision, done, &context, begin).await;
        }
    }
    // The next reconcile continues with the changed or newly read state.
    Ok(Action::requeue(
        context.miniclusters.after_change(&target.uid, Instant::now()),
    ))
}

/// Writes the status after `carry_out`, which may have failed. If the MiniCluster has ended, deletes what the
/// spec says. Returns when to reconcile next.
async fn report(
    object: &Cluster,
    checked: &Result<ValidMiniCluster, Vec<Problem>>,
    decision: &Decision,
    done: Result<Done, ReconcileError>,
    context: &Context,
    begin: Instant,
) -> Result<Action, ReconcileError> {
    // The status may have been written since the reconcile began.
    let target = context.miniclusters.latest(Target::of(object));
    let job = context.index.job_of(&target.key, &target.uid);
    let target = target.with_queueing_of(job.as_ref());
    let known_status = with_losses(&target, context);
    let ended_job = match (decision, &done) {
        (Decision::Ended { reason, message }, Ok(_)) => {
            Some(missing_job_as_ended(&target, reason, message, context))
        }
        (_, Ok(Done::OutOfTime)) => Some(missing_job_as_ended(
            &target,
            Reason::DeadlineExceeded.name(),
            "deadlineSeconds exceeded before it could restart",
            context,
        )),
        _ => None,
    };
    if ended_job.is_some()
        && let Ok(cluster) = checked
    {
        // The MiniCluster owns the gangs, so they were not deleted with the Job.
        delete_gangs(&target, cluster, context).await;
    }
    let diagnosis = diagnose_and_mend(&target, checked.as_ref().ok(), context).await;
    let warning = diagnosis
        .as_ref()
        .ok()
        .and_then(|diagnosis| diagnosis.as_ref()?.warning.as_ref());
    // The earlier error is shown: the later one may be its consequence.
    let error = done.as_ref().err().or(diagnosis.as_ref().err());
    let obstacle = error
        .filter(|error| is_shown(error, &target, context, begin))
        .map(ReconcileError::as_obstacle);
    let after = new_status(
        &target,
        &known_status,
        checked,
        Findings {
            obstacle: obstacle.as_ref(),
            ended_job: ended_job.as_ref(),
            warning,
        },
        context,
    );
    let written = write_status(object, &target, &after, context).await;
    let until_deadline = match done? {
        Done::WaitsUntilDeadline(left) => Some(left),
        _ => None,
    };
    let (diagnosis, until_written) = (diagnosis?, written?);
    // A missing permission or a policy may prevent the next two deletions for good. So their errors are returned only
    // after `clean_up`.
    let until_deleted = delete_or_time_left(&target, &after, context).await;
    // The stored status must say that the MiniCluster has ended. Later changes, such as the number of pods, can wait.
    let services_ended = if until_written.is_none() || status::is_finished(&target.status) {
        end_services(&target, &after, context).await
    } else {
        Ok(())
    };
    // `clean_up` patches the status `after`, so that must have been written.
    if until_written.is_none() {
        clean_up(&target, checked.as_ref().ok(), &after, context).await?;
    }
    let until_deleted = until_deleted?;
    services_ended?;
    context.miniclusters.clear_failures(&target.uid);
    // The operator's own status wakes no reconcile, so ask for one here if the new status makes another decision
    // necessary. (`gives_job_up`: a status after `SLOW_AFTER` may have said already that the view cannot be mounted.)
    let is_new = |says: fn(&MiniClusterStatus) -> bool| says(&after) && !says(&target.status);
    let observed = context.index.observed(&target.key);
    let gives_job_up = || {
        let mut jobs = observed.job.iter();
        *decision == Decision::Continue && jobs.any(|job| restart::is_given_up(&after, job))
    };
    let has_news = is_new(status::is_finished) || is_new(status::image_volume_failed) || gives_job_up();
    if has_news && decide(&target, checked.as_ref().ok(), &after, &observed) != Decision::Continue {
        return Ok(Action::requeue(
            context.miniclusters.after_change(&target.uid, Instant::now()),
        ));
    }
    // One second more, since `restart` counts whole seconds.
    let until_pods_overdue = matches!(decision, Decision::EndPods { .. })
        .then(|| Duration::from_secs(restart::TIME_TO_END.unsigned_abs() + 1));
    let until_events_due = diagnosis.map(|diagnosis| diagnosis.until_next_check);
    // Without another event, the status has to name a pod that is stuck in its deletion. After the end, it names none.
    let until_stuck = if status::is_finished(&after) {
        None
    } else {
        let pods = observed.pods.values().map(Box::as_ref);
        remaining::until_stuck(pods, context.metrics.server_clock.now())
    };
    Ok(requeue_after_shortest([
        until_written,
        until_events_due,
        until_pods_overdue,
        until_stuck,
        until_deleted,
        until_deadline,
    ]))
}

/// Asks for the next reconcile after the shortest of these times, if no watch reports a change before.
fn requeue_after_shortest<const COUNT: usize>(times: [Option<Duration>; COUNT]) -> Action {
    let shortest = times.into_iter().flatten().min();
    shortest.map_or_else(Action::await_change, Action::requeue)
}

/// Whether the status shows the error: at once if it is an obstacle, otherwise if it lasts or if the status shows it
/// already.
fn is_shown(error: &ReconcileError, target: &Target, context: &Context, begin: Instant) -> bool {
    let is_already_shown = || target.status.reason.as_deref() == Some(error.as_obstacle().reason.name());
    error.obstacle().is_some()
        || is_already_shown()
        || context
            .miniclusters
            .is_lasting(&target.uid, error, begin, Instant::now())
}

/// Shows in the status that reconciles are given up, if that lasts. Does nothing if the cache lacks the spec:
/// computing a status needs it, and reading it is part of the work that was given up.
pub async fn report_overload(object: &Cluster, context: &Context) {
    if cluster::left_out(object).is_some() {
        return;
    }
    let (target, error, now) = (
        context.miniclusters.latest(Target::of(object)),
        ReconcileError::TooManySlow,
        Instant::now(),
    );
    // When the reconcile began is not known here: `now` stands for it.
    if !context.miniclusters.is_lasting(&target.uid, &error, now, now) {
        return;
    }
    let (known_status, checked) = (with_losses(&target, context), target.validate(&context.options));
    let after = new_status(
        &target,
        &known_status,
        &checked,
        Findings {
            obstacle: Some(&error.as_obstacle()),
            ..Findings::default()
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
    known_status: &MiniClusterStatus,
    cluster: Option<&ValidMiniCluster>,
    context: &Context,
) -> Result<bool, ReconcileError> {
    let expected_job_uid = match decision {
        Decision::Continue => return Ok(true),
        // The status has counted the restart that replaces this Job, and the deletion names the Job's uid.
        Decision::Delete { job_uid } if restart::is_restart_counted(known_status, job_uid) => {
            return Ok(true);
        }
        Decision::Delete { job_uid } | Decision::KeepJob { job_uid } => Some(job_uid),
        Decision::Restart {
            job_uid, job_exists, ..
        } => job_exists.then_some(job_uid),
        // No further pod is asked to end now, so nothing is written.
        Decision::EndPods { pods, .. } if pods.is_empty() => return Ok(true),
        Decision::Fail { job_uid, .. } | Decision::EndPods { job_uid, .. } => Some(job_uid),
        Decision::Ended { .. } | Decision::Wait => None,
    };
    let job = context
        .writer
        .read_job(&context.index, &target.key, &target.uid)
        .await?;
    // A Job of this name that is not ours counts as none here. The attempt to create ours reports it.
    let job = job.filter(|job| job.is_of(&target.uid));
    if job.as_ref().map(|job| &job.uid) != expected_job_uid {
        return Ok(false);
    }
    let observed = context.index.observed(&target.key);
    // The Job that was just read may show that pods were removed by a suspension or a shrink, and not lost.
    let known_status = with_losses(target, context);
    let job_uid = observed
        .job
        .as_ref()
        .or(observed.last_job.as_deref())
        .map(|job| &job.uid)
        .or(known_status.job_uid.as_ref());
    let Some(job_uid) = job_uid.cloned() else {
        return Ok(decide(target, cluster, &known_status, &observed) == *decision);
    };
    // Whether a Job's program has begun also depends on the followers.
    let pods = if matches!(decision, Decision::Delete { .. } | Decision::KeepJob { .. }) {
        context.writer.read_pods_of(&target.key, &job_uid).await?
    } else {
        context.writer.read_leads(&target.key, &job_uid).await?
    };
    let current = observed.with_pods(&job_uid, pods);
    Ok(decide(target, cluster, &known_status, &current) == *decision)
}

/// Carries out a decision about the Job as a whole, or creates and changes what is missing or differs.
async fn carry_out(
    object: &Cluster,
    decision: &Decision,
    target: &Target,
    known_status: &MiniClusterStatus,
    cluster: Option<&ValidMiniCluster>,
    context: &Context,
) -> Result<Done, ReconcileError> {
    // Nothing can be created in a namespace that is being deleted, so its MiniClusters are not restarted or failed.
    let ends_or_restarts = !matches!(decision, Decision::Continue | Decision::Delete { .. });
    if ends_or_restarts
        && context
            .terminating
            .contains(&target.key.namespace, target.created, Timestamp::now())
    {
        return Err(ApplyError::NamespaceTerminating.into());
    }
    if !is_confirmed(decision, target, known_status, cluster, context).await? {
        tracing::info!("the cached state is out of date: reconciling again");
        return Ok(Done::OutOfDate);
    }
    match decision {
        Decision::Ended { .. } => Ok(Done::All),
        Decision::Restart {
            job_uid,
            job_exists,
            reason,
            message,
            limit,
        } => {
            let now = Timestamp::now();
            let after = restart::with_counted_restart(known_status, job_uid, reason, message, *limit, now);
            let after = status::restarting(after);
            // The old Job is deleted only after this write: an operator that is killed in between finds the Job's uid in
            // the status.
            if !write_if_unchanged(target, &after, context).await? {
                return Ok(Done::All);
            }
            tracing::info!(
                reason,
                message,
                count = after.restart_count,
                "restarting the MiniCluster"
            );
            // Before the deletion: if that fails, the next reconcile only repeats it, and writes no event.
            context
                .writer
                .write_events(object, events::of_restart(&after).as_slice())
                .await;
            if *job_exists {
                context.writer.delete_job(&target.key, job_uid).await?;
            }
            Ok(Done::Restarted)
        }
        Decision::Wait => {
            let observed = context.index.observed(&target.key);
            // The deadline also ends the wait for the pods of a Job that somebody deleted.
            if let Some(cluster) = cluster
                && seconds_left(target, cluster, &observed, context) == Some(0)
            {
                return Ok(Done::OutOfTime);
            }
            let (pods, now) = (observed.living(), context.metrics.server_clock.now());
            let description =
                remaining::describe(&pods, now).unwrap_or_else(|| "its pods still run".to_owned());
            let message = format!(
                "the Job was deleted, and the MiniCluster restarts when its pods have ended: {description}"
            );
            // Not `WaitingForPrevious`: by `WaitingForPods`, an operator that starts later knows that an operator ran
            // after the Job was deleted (`waits_for_pods`).
            let obstacle = if remaining::end_by_themselves(&pods, now) {
                Obstacle::wait(Reason::WaitingForPods, message)
            } else {
                Obstacle::new(Reason::WaitingForPods, message)
            };
            Err(obstacle.into())
        }
        Decision::Delete { job_uid } => context
            .writer
            .delete_job(&target.key, job_uid)
            .await
            .map(|()| Done::All)
            .map_err(Into::into),
        Decision::KeepJob { job_uid } => {
            let after = restart::without_mount_failure(known_status, job_uid);
            write_if_unchanged(target, &after, context).await?;
            tracing::info!(
                "keeps the Job, though a pod could not mount the view's image: its program may have begun"
            );
            Ok(Done::OutOfDate)
        }
        Decision::EndPods { pods, message, .. } => {
            let text = format!("{} {message}", previous_status::rfc3339(Timestamp::now()));
            for pod in pods {
                context.writer.end_pod(&target.key.namespace, pod, &text).await?;
            }
            tracing::info!(message, pods = pods.len(), "asked the other pods to end");
            Ok(Done::All)
        }
        Decision::Fail {
            job_uid,
            reason,
            message,
        } => {
            // The Job's other times are the control plane's.
            let now = previous_status::rfc3339(context.metrics.server_clock.now());
            let job = context.index.job(&target.key);
            // Only a suspended Job lacks a start time for longer than a moment.
            let has_start = job.is_none_or(|job| job.has_start || !job.is_suspended);
            context
                .writer
                .fail_job(
                    &target.key,
                    job_uid,
                    reason,
                    &previous_status::short(message),
                    &now,
                    has_start,
                )
                .await?;
            tracing::info!(reason, message, "ended the Job");
            Ok(Done::All)
        }
        Decision::Continue => create_or_update(target, cluster, context).await,
    }
}

/// Writes the status and its events, if anything differs. Two statuses may be delayed: one without news
/// (`patch::is_news`), and the MiniCluster's first one while its Job still lacks pods. Returns for how long; None if
/// nothing is left to write.
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
    let is_first_status = expects_pods && target.status.observed_generation.is_none();
    let allowed_delay =
        context
            .miniclusters
            .wait_to_write(&target.uid, expects_pods, is_first_status, Instant::now());
    let wanted = context
        .index
        .job_of(&target.key, &target.uid)
        .map_or(0, |job| job.completions);
    let may_wait = is_first_status || !patch::is_news(&target.status, after, wanted);
    let delay = if may_wait { allowed_delay } else { None };
    if delay.is_none() {
        if let Some(version) = context.writer.patch_status(&target.key, &change).await? {
            context
                .miniclusters
                .remember_status(target, version, after, Instant::now());
            record_time_to_ready(object, &target.status, after, context);
            trace_end(object, target, after, context);
        }
        context
            .writer
            .write_events(object, &events::between(&target.status, after))
            .await;
    }
    Ok(delay)
}

/// The status, with the lost pods that the watches have reported since it was written.
fn with_losses(target: &Target, context: &Context) -> MiniClusterStatus {
    let observed = context.index.observed(&target.key);
    let mut known_status = target.status.clone();
    let last_job = observed
        .last_job
        .as_deref()
        .filter(|last| last.is_of(&target.uid));
    let Some(job) = observed.job_of(&target.uid).or(last_job) else {
        return known_status;
    };
    // Losses of a Job that was given up must not count for the next Job: `with_counted_restart` has emptied the list.
    if restart::is_given_up(&known_status, job) {
        return known_status;
    }
    let now = previous_status::rfc3339(Timestamp::now());
    let is_new = |lost: &&LostPod| !target.status.lost_pods.iter().any(|pod| pod.name == lost.name);
    known_status
        .lost_pods
        .extend(observed.losses.iter().filter(is_new).map(|lost| LostPod {
            time: now.clone(),
            ..lost.clone()
        }));
    pod_end::shorten(&mut known_status.lost_pods);
    known_status
}

/// Decides what to do with the Job as a whole. Nothing if no decision can be made ([`observation`]), or if the Job of
/// its name is not the MiniCluster's own.
fn decide(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    known_status: &MiniClusterStatus,
    observed: &Observed,
) -> Decision {
    if observed.job.is_some() && observed.job_of(&target.uid).is_none() {
        return Decision::Continue;
    }
    observation(target, cluster, known_status, observed)
        .map_or(Decision::Continue, |observation| restart::decide(&observation))
}

/// The observed state of a MiniCluster's Job, or of its previous Job if there is none. None: the MiniCluster is being
/// deleted, its spec cannot be read, or it has never had a Job and its spec is not valid. (A spec may become invalid
/// while the Job runs: a later operator may be stricter, or be installed with fewer features.)
fn observation<'a>(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    known_status: &'a MiniClusterStatus,
    observed: &'a Observed,
) -> Option<Observation<'a>> {
    if target.is_deleting || (cluster.is_none() && known_status.maximum_size.is_none()) {
        return None;
    }
    let spec = target.spec.as_ref().ok()?;
    let pod = spec.pod.as_ref();
    let job = observed.job_of(&target.uid);
    let last_job = observed
        .last_job
        .as_deref()
        .filter(|last| last.is_of(&target.uid));
    let uid = job
        .or(last_job)
        .map(|job| job.uid.clone())
        .or_else(|| known_status.job_uid.clone());
    Some(Observation {
        status: known_status,
        is_spec_valid: cluster.is_some(),
        backoff_limit: spec.backoff_limit.unwrap_or(DEFAULT_BACKOFF_LIMIT),
        max_restarts: spec.max_restarts,
        lead_is_elsewhere: spec
            .flux
            .as_ref()
            .is_some_and(|flux| is_lead_elsewhere(flux, &target.key.name)),
        restarts_on_failure: pod.and_then(|pod| pod.restart_policy.as_deref()) == Some("OnFailure"),
        min_size: cluster.and_then(|cluster| cluster.min_size),
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
            .filter(|pod| uid.is_some() && pod.job_uid == uid)
            .collect(),
        now: Timestamp::now(),
    })
}

/// Writes a status that belongs to a decision, if nobody has changed the MiniCluster since: a restart must not be counted
/// twice. Returns false if the MiniCluster no longer exists.
async fn write_if_unchanged(
    target: &Target,
    after: &MiniClusterStatus,
    context: &Context,
) -> Result<bool, ReconcileError> {
    let Some(change) = patch::build(target, &target.status, after).map_err(ReconcileError::Status)? else {
        return Ok(true);
    };
    let written = context
        .writer
        .patch_status_if_unchanged(&target.key, target.resource_version, &change)
        .await?;
    let Some(version) = written else {
        return Ok(false);
    };
    context
        .miniclusters
        .remember_status(target, version, after, Instant::now());
    Ok(true)
}

/// A Job that no longer exists, with the final condition that it would have now.
fn missing_job_as_ended(target: &Target, reason: &str, message: &str, context: &Context) -> JobSeen {
    let condition = job::TrueCondition {
        reason: reason.to_owned(),
        message: message.to_owned(),
        // `ttlSecondsAfterFinished` is counted from this time by the same clock.
        since: Some(context.metrics.server_clock.now()),
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

/// Whether the Job controller still creates pods, and no problem is known.
fn expects_pods(target: &Target, after: &MiniClusterStatus, context: &Context) -> bool {
    let observed = context.index.observed(&target.key);
    let job = observed
        .job_of(&target.uid)
        .filter(|job| !job.is_finished() && !job.is_suspended && !job.is_deleting);
    let pod_count = |job: &JobSeen| observed.pods_of(job).count();
    let lacks_pods = |job: &JobSeen| {
        job.start_time.is_none() || pod_count(job) < usize::try_from(job.completions).unwrap_or(0)
    };
    after.reason.is_none() && job.is_some_and(lacks_pods)
}

/// Reports a panic in the status, with its source line. The new status does not depend on the spec,
/// which may be the cause.
pub async fn report_panic(object: &Cluster, context: &Context, panicked: &Panicked) {
    let target = context.miniclusters.latest(Target::of(object));
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
            .miniclusters
            .remember_status(&target, version, &after, Instant::now()),
        Ok(None) => return,
        Err(error) => crate::health::log::warn("failed to write a status", &error),
    }
    context
        .writer
        .write_events(object, &events::between(&target.status, &after))
        .await;
}

/// Records in the metrics how long it took until the MiniCluster was ready, if it is ready for the first time.
fn record_time_to_ready(
    object: &Cluster,
    before: &MiniClusterStatus,
    after: &MiniClusterStatus,
    context: &Context,
) {
    // `has_been_ready` reads the timeline, which begins anew with each restart. So only a MiniCluster that has never
    // restarted is ready for the first time.
    if previous_status::has_been_ready(after)
        && !previous_status::has_been_ready(before)
        && after.restart_count == 0
        && let Some(created) = object.meta().creation_timestamp.as_ref()
    {
        let time = context.metrics.server_clock.now().duration_since(created.0);
        context
            .metrics
            .ready_after(Duration::try_from(time).unwrap_or_default());
    }
}

/// Sends the spans of a MiniCluster that has just ended, if traces are wanted.
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

/// Whether the obstacle is that the Job lacks the label by which the operator watches it.
fn is_about_missing_label(obstacle: Option<&Obstacle>) -> bool {
    obstacle.is_some_and(|obstacle| obstacle.reason == Reason::JobUnlabelled)
}

/// Findings of a reconcile that no watch delivers.
#[derive(Debug, Clone, Copy, Default)]
struct Findings<'a> {
    obstacle: Option<&'a Obstacle>,
    /// The final state of a Job that no longer exists.
    ended_job: Option<&'a JobSeen>,
    warning: Option<&'a Trouble>,
}

/// Computes the status as it should be now.
fn new_status(
    target: &Target,
    known_status: &MiniClusterStatus,
    checked: &Result<ValidMiniCluster, Vec<Problem>>,
    findings: Findings,
    context: &Context,
) -> MiniClusterStatus {
    let Findings {
        obstacle,
        ended_job,
        warning,
    } = findings;
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
    let unwatched_job = || {
        observed
            .last_job
            .as_deref()
            .filter(|last| last.is_of(&target.uid) && is_about_missing_label(obstacle))
    };
    let current_job = observed
        .job_of(&target.uid)
        .filter(|job| !next_action::is_being_recreated(known_status, job, &observed))
        .or_else(unwatched_job)
        .map(|job| restart::without_end_if_given_up(known_status, job));
    let observation = observation(target, cluster, known_status, &observed);
    let current_job = current_job.as_deref().map(|job| match &observation {
        Some(observation) => ending::with_decided_end(observation, job, context.metrics.server_clock.now()),
        None => Cow::Borrowed(job),
    });
    let job = ended_job.or(current_job.as_deref());
    status::without_panic(status::compute(&Inputs {
        name: &target.key.name,
        generation: target.generation,
        is_deleting: target.is_deleting,
        spec: match checked {
            Ok(cluster) => CheckedSpec::Valid(cluster),
            Err(problems) => CheckedSpec::Invalid(problems),
        },
        view_image: cluster.map_or("", |cluster| render::view::image(cluster, &context.options)),
        previous: known_status,
        job,
        spec_hash: target.spec_hash().as_deref(),
        pods: job.map(|job| observed.pods_of(job).collect()).unwrap_or_default(),
        gone: job
            .map(|job| observed.gone_leads_of(job).collect())
            .unwrap_or_default(),
        services_pod: observed.services_pod_of(&target.uid),
        obstacle,
        nodes_mount_images: nodes == ViewNodes::Mount,
        copied_for: copied_for.as_deref(),
        disks: checked
            .as_ref()
            .ok()
            .and_then(|cluster| context.index.disks_of(cluster)),
        warning,
        now: Timestamp::now(),
        server_now: context.metrics.server_clock.now(),
    }))
}

#[cfg(test)]
mod tests;
