//! Creates the missing objects of a MiniCluster, and changes the mutable fields of existing ones.

use std::time::Duration;

use flux_operator_core::decide::next_action::{self, Differences, NextAction, ServicesPod};
use flux_operator_core::observe::deleted::{Deleted, Propagation};
use flux_operator_core::observe::node::ViewNodes;
use flux_operator_core::observe::{Key, Observed};
use flux_operator_core::obstacle::Obstacle;
use flux_operator_core::render::elastic::begin_to_resize;
use flux_operator_core::render::overlaid::AppliedOverlay;
use flux_operator_core::render::refusal::{self, DryRun};
use flux_operator_core::render::services::Member;
use flux_operator_core::render::{self, RenderFacts};
use flux_operator_core::target::Target;
use flux_operator_core::vocabulary::Reason;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::error::ReconcileError;
use crate::reconcile::apply::ApplyError;
use crate::reconcile::context::Context;
use crate::reconcile::random;

mod gang;

pub(super) use gang::delete_all as delete_gangs;

/// Result of carrying out a decision.
pub(super) enum Done {
    /// Nothing more is to be done now.
    All,
    /// The Job was created, or deleted to be recreated. The next reconcile does the rest; other MiniClusters may
    /// go first.
    JobChanged,
    /// A restart was counted, and the earlier Job deleted.
    Restarted,
    /// Decide again: the cached Job or its pods differ from the API server's, or the Job is kept after all.
    OutOfDate,
    /// The next Job cannot be created yet. Unless it is created within this time, `deadlineSeconds` is over.
    WaitsUntilDeadline(Duration),
    /// No Job is created: earlier starts have used up `deadlineSeconds`.
    OutOfTime,
}

/// Creates missing objects, and updates the mutable fields of existing ones.
pub(super) async fn create_or_update(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    context: &Context,
) -> Result<Done, ReconcileError> {
    let observed = context.index.observed(&target.key);
    let headless = cluster.and_then(|cluster| context.index.headless(&next_action::headless_key(cluster)));
    let server_now = context.metrics.server_clock.now();
    let action = next_action::decide(target, cluster, &observed, headless.as_deref(), server_now);
    // Without a valid spec, the action is `Nothing`.
    let Some(cluster) = cluster else {
        return Ok(Done::All);
    };
    let seconds_left = seconds_left(target, cluster, &observed, context);
    if seconds_left == Some(0) {
        return Ok(Done::OutOfTime);
    }
    match action {
        NextAction::Nothing => Ok(seconds_left.map_or(Done::All, |seconds| {
            Done::WaitsUntilDeadline(Duration::from_secs(seconds))
        })),
        NextAction::WaitForPrevious { stuck } => {
            let message = format!(
                "Job {} of an earlier MiniCluster is still being deleted",
                target.key.name
            );
            Err(match stuck {
                Some(pod) => Obstacle::new(Reason::WaitingForPods, format!("{message}; {pod}")),
                None => Obstacle::new(Reason::WaitingForPrevious, message),
            }
            .into())
        }
        NextAction::WaitForPods { message, is_passing } => {
            // With `WaitingForPrevious`, the wait ends by itself, so it counts as no error and sets no `Stalled`.
            let reason = if is_passing {
                Reason::WaitingForPrevious
            } else {
                Reason::WaitingForPods
            };
            let message = format!("waits for earlier pods of this name: {message}");
            Err(Obstacle::new(reason, message).into())
        }
        NextAction::NameTaken => {
            let name = &target.key.name;
            let message = format!(
                "Job {name} was left behind by an earlier MiniCluster: delete it, or choose another name"
            );
            Err(Obstacle::new(Reason::NameTaken, message).into())
        }
        NextAction::Create { facts } => {
            if context
                .terminating
                .contains(&target.key.namespace, target.created, Timestamp::now())
            {
                return Err(ApplyError::NamespaceTerminating.into());
            }
            join_index(target, cluster, context);
            let facts = RenderFacts {
                gangs: gang::served(cluster, context).await?,
                deadline_left: seconds_left.and_then(|seconds| i64::try_from(seconds).ok()),
                ..facts
            };
            let objects = self::objects(cluster, &facts, context)?;
            gang::refuse_unserved(&objects)?;
            check_overlays(&objects, &target.key, context).await?;
            refuse_unsupported(&objects, context).await?;
            // Until the first Job exists, the spec can be edited.
            let has_editable_spec = target.status.maximum_size.is_none();
            if has_editable_spec && let Some(pod) = &objects.services_pod {
                // This pod is created after the Job.
                context.writer.check_services_pod(pod).await?;
            }
            if has_editable_spec && objects.has_fixed_objects_of_the_spec(cluster) {
                // These objects would stay as they are after an edit. So a dry run of the Job comes first: the API
                // server may refuse the Job, as a quota does.
                context.writer.check_job(&objects.job).await?;
            }
            gang::delete_earlier(&objects, target, &observed, context).await;
            let is_deleted = || context.miniclusters.is_deleted(&target.key, &target.uid);
            let result = context
                .writer
                .create_all(&context.index, &objects, &member(target, cluster), is_deleted)
                .await;
            gang::note_creation(&objects, &result, context).await;
            // Also if `result` is an error: the Job may have been created before that. The new Job stays if the
            // MiniCluster was deleted with `--cascade=orphan`.
            if context
                .miniclusters
                .is_deleted_with_objects(&target.key, &target.uid)
            {
                delete_late_job(target, context).await?;
            }
            result?;
            Ok(Done::JobChanged)
        }
        NextAction::RecreateJob { job_uid } => recreate_job(target, &job_uid, &observed, context).await,
        NextAction::Keep(differences) => {
            // The index copies the objects of a MiniCluster if they change while a reconcile holds them.
            drop(observed);
            join_index(target, cluster, context);
            update(target, cluster, differences, context).await?;
            Ok(Done::All)
        }
    }
}

/// Deletes a Job that was created while its MiniCluster was deleted. When the watch reported the deletion,
/// the Job was not in the index yet.
async fn delete_late_job(target: &Target, context: &Context) -> Result<(), ReconcileError> {
    let Some(job) = context.index.job_of(&target.key, &target.uid) else {
        return Ok(());
    };
    let late = Deleted {
        cluster: target.key.clone(),
        job: job.uid,
        propagation: Propagation::Background,
    };
    Ok(context.writer.end_deleted(&late).await?)
}

/// Deletes the Job of an earlier spec, if nothing has started in it.
async fn recreate_job(
    target: &Target,
    job_uid: &str,
    observed: &Observed,
    context: &Context,
) -> Result<Done, ReconcileError> {
    // Read from the API server, since the watches may lag behind.
    let job = context
        .writer
        .read_job(&context.index, &target.key, &target.uid)
        .await?;
    // `has_ended_pods` also covers pods that no longer exist, `has_begun` only those that exist.
    let is_untouched = job.is_some_and(|job| job.uid == job_uid && !job.has_ended_pods);
    if !is_untouched || context.writer.has_begun(&target.key, job_uid).await? {
        return Ok(Done::All);
    }
    context.writer.delete_job(&target.key, job_uid).await?;
    // After the Job: if the Job could not be deleted, and the user took the edit back, its pods would wait for the gang.
    gang::delete_of_job(target, observed, context).await;
    tracing::info!("deleted the Job to recreate it: the spec was edited before anything had started");
    Ok(Done::JobChanged)
}

/// For a MiniCluster that has its Job: updates the Job's mutable fields, and creates the other missing objects.
async fn update(
    target: &Target,
    cluster: &ValidMiniCluster,
    differences: Differences,
    context: &Context,
) -> Result<(), ReconcileError> {
    let changed = change_job(target, cluster, &differences, context).await;
    if let Err(error) = &changed
        && error.obstacle().is_none()
    {
        return changed;
    }
    // Also if the API server refuses to change the Job, which may last: the pods need the other objects.
    let created = create_missing(target, cluster, differences, context).await;
    changed.and(created)
}

/// Updates the Job's mutable fields, if they differ.
async fn change_job(
    target: &Target,
    cluster: &ValidMiniCluster,
    differences: &Differences,
    context: &Context,
) -> Result<(), ReconcileError> {
    let Differences {
        facts,
        job_uid,
        elastic,
        is_new_start,
        ..
    } = differences;
    let is_new_start = *is_new_start;
    let Some(elastic) = *elastic else { return Ok(()) };
    let Some(job) = context.index.job(&target.key) else {
        return Ok(());
    };
    // By the hash that was applied last, `patch` finds out whether `suspend` has changed in the spec. Only then it
    // sets `suspend`: somebody else may have resumed the Job.
    let maximum = facts.maximum_size.unwrap_or(elastic.size);
    let fields = elastic.patch(cluster, job_uid, &job, maximum, is_new_start);
    let gang = gang::change_for(cluster, &job, elastic.size, is_new_start, context);
    if (is_new_start || gang.is_some()) && !job.is_resizing {
        let mark = begin_to_resize(job_uid, &job);
        context
            .writer
            .patch_job(&context.index, &target.key, &mark)
            .await?;
    }
    // Before the Job: once the Job has the size, nothing would write the ConfigMap any more.
    if is_new_start {
        let facts = RenderFacts {
            initial_size: Some(elastic.size),
            ..facts.clone()
        };
        let objects = objects(cluster, &facts, context)?;
        context
            .writer
            .resize_config_map(&objects.config_map, elastic.size, maximum, &target.uid)
            .await?;
    }
    if let Some(change) = gang {
        gang::resize(target, &change, context).await?;
    }
    if job.is_suspended && job.has_start && fields["spec"]["suspend"] == false {
        context.writer.forget_start(&target.key, job_uid).await?;
    }
    context
        .writer
        .patch_job(&context.index, &target.key, &fields)
        .await?;
    tracing::info!(size = elastic.size, suspend = elastic.suspend, "changed the Job");
    Ok(())
}

/// Creates the missing objects of a MiniCluster that has its Job, and deletes an outdated services pod.
async fn create_missing(
    target: &Target,
    cluster: &ValidMiniCluster,
    differences: Differences,
    context: &Context,
) -> Result<(), ReconcileError> {
    let Differences {
        facts,
        must_join,
        services,
        services_pod,
        ..
    } = differences;
    if must_join {
        let service = next_action::headless_key(cluster);
        context
            .writer
            .join(&context.index, &service, &member(target, cluster))
            .await?;
    }
    if let ServicesPod::Delete(uid) = &services_pod {
        context.writer.delete_services_pod(&target.key, uid).await?;
        tracing::info!("deleted the services pod: the Job is suspended, or the pod was lost");
    }
    let must_create_pod = services_pod == ServicesPod::Create;
    if !services.is_empty() || must_create_pod {
        let objects = objects(cluster, &facts, context)?;
        for service in objects.services.iter().filter(|service| {
            service
                .metadata
                .name
                .as_ref()
                .is_some_and(|name| services.contains(name))
        }) {
            context
                .writer
                .create_service(&context.index, service, &target.uid)
                .await?;
        }
        if must_create_pod && let Some(pod) = objects.services_pod {
            context
                .writer
                .create_services_pod(&context.index, &pod, &target.uid)
                .await?;
        }
    }
    Ok(())
}

/// Seconds left of `deadlineSeconds` while the MiniCluster waits for its next Job. None: no deadline ends this wait.
pub(super) fn seconds_left(
    target: &Target,
    cluster: &ValidMiniCluster,
    observed: &Observed,
    context: &Context,
) -> Option<u64> {
    let deadline = next_action::deadline_of_next_job(target, cluster, observed)?;
    // The start was measured by the control plane's clock, which may differ from this process's.
    let now = context.metrics.server_clock.now();
    Some(u64::try_from(deadline.as_second() - now.as_second()).unwrap_or(0))
}

/// Renders all objects of the MiniCluster, with new random keys and passwords.
pub(super) fn objects(
    cluster: &ValidMiniCluster,
    facts: &RenderFacts,
    context: &Context,
) -> Result<render::Objects, ReconcileError> {
    let nodes = context.index.view_nodes(|| render::placement::of_pods(cluster));
    let facts = RenderFacts {
        nodes_mount_images: nodes == ViewNodes::Mount,
        ..facts.clone()
    };
    Ok(render::objects(
        cluster,
        &context.options,
        &facts,
        random::generate(cluster)?,
    )?)
}

/// Lets the API server check the pod templates by a dry run, before anything is created. Without templates, no
/// call is made.
async fn check_overlays(
    objects: &render::Objects,
    key: &Key,
    context: &Context,
) -> Result<(), ReconcileError> {
    if let Some(applied) = &objects.job.applied {
        let answer = context.writer.dry_run_overlay::<Job>(applied, key).await?;
        check_answer(applied, &answer)?;
    }
    if let Some(applied) = objects.services_pod.as_ref().and_then(|pod| pod.applied.as_ref()) {
        let answer = context.writer.dry_run_overlay::<Pod>(applied, key).await?;
        check_answer(applied, &answer)?;
    }
    Ok(())
}

/// Refuses an overlay if the answer to the dry run shows a problem in it.
fn check_answer(applied: &AppliedOverlay, answer: &DryRun) -> Result<(), ReconcileError> {
    match refusal::problem(applied, answer) {
        Some(problem) => Err(Obstacle::new(Reason::PodTemplateRefused, problem.to_string()).into()),
        None => Ok(()),
    }
}

/// Refuses objects with fields that this Kubernetes would drop, or that are too large.
async fn refuse_unsupported(objects: &render::Objects, context: &Context) -> Result<(), ReconcileError> {
    if let Some(message) = render::requirements::too_large(objects) {
        return Err(Obstacle::new(Reason::TooLarge, message).into());
    }
    if !render::requirements::needs_version_check(objects, context.index.has_node_for_images()) {
        return Ok(());
    }
    let minor = context
        .reader
        .kubernetes_minor()
        .await
        .map_err(ReconcileError::Version)?;
    // If this depends on a feature gate, a dry run shows whether the API server keeps image volumes.
    let keeps_images = render::requirements::needs_image_volume_gate(objects, minor) && {
        let kept = context
            .writer
            .dry_run(&objects.job.rendered, &objects.job)
            .await?;
        render::requirements::mounts_image(&kept)
    };
    match render::requirements::unsupported(objects, minor, keeps_images) {
        Some(message) => Err(Obstacle::new(Reason::Unsupported, message).into()),
        None => Ok(()),
    }
}

fn member(target: &Target, cluster: &ValidMiniCluster) -> Member {
    Member {
        name: cluster.name.clone(),
        uid: target.uid.clone(),
        minimal: cluster.flux.minimal_service,
    }
}

/// Notes in the index that the MiniCluster uses its headless Service, so that it is reconciled when that Service is
/// deleted. For a MiniCluster that is noted, the index also remembers deleted Jobs and lead pods (`last_job`,
/// `gone_leads`).
pub(super) fn join_index(target: &Target, cluster: &ValidMiniCluster, context: &Context) {
    context
        .index
        .join(&next_action::headless_key(cluster), &target.key.name);
}
