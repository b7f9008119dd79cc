//! The gang object of the pods: created before the Job, resized with the Job, and deleted when the Job is
//! replaced or the MiniCluster has ended without a Job. A MiniCluster that may not use gangs causes no calls.

use flux_operator_core::observe::Observed;
use flux_operator_core::observe::job::JobSeen;
use flux_operator_core::obstacle::Obstacle;
use flux_operator_core::render::Objects;
use flux_operator_core::render::gang::{GangApi, GangOf, GangRef, Served, api_for, count};
use flux_operator_core::target::Target;
use flux_operator_core::vocabulary::Reason;
use flux_shared::validate::{Gang, ValidMiniCluster};

use crate::reconcile::apply::ApplyError;
use crate::reconcile::context::Context;
use crate::reconcile::error::ReconcileError;

/// Which APIs the cluster serves, if this MiniCluster may use one.
pub(super) async fn served(cluster: &ValidMiniCluster, context: &Context) -> Result<Served, ReconcileError> {
    if !context.options.gang || cluster.gang == Gang::Off {
        return Ok(Served::default());
    }
    // With `gang: auto` any answer is enough, since the pods can start without a gang. With `gang: on` the answer must
    // have an API for this MiniCluster; a known answer without one is soon replaced by a new one.
    let is_enough = |served| cluster.gang == Gang::Auto || api_for(cluster, served).is_some();
    match context.reader.gangs(is_enough).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => {
            let message = format!(
                "the operator may not ask which APIs for gangs the cluster serves (ClusterRole system:discovery): {}",
                status.message
            );
            if cluster.gang == Gang::Auto {
                tracing::warn!("{message}; pods start one by one");
                return Ok(Served::default());
            }
            Err(ApplyError::NoPermission(Obstacle::new(Reason::Forbidden, message)).into())
        }
        result => result.map_err(ReconcileError::Gangs),
    }
}

/// Refuses a MiniCluster that asks for a gang if no served API supports it. Otherwise its pods would start
/// one by one.
pub(super) fn refuse_unserved(objects: &Objects) -> Result<(), ReconcileError> {
    match &objects.gang {
        GangOf::Unserved(why) => Err(Obstacle::new(Reason::GangUnavailable, why.to_string()).into()),
        GangOf::None | GangOf::Object(_) => Ok(()),
    }
}

/// Deletes the gangs of the MiniCluster's earlier Jobs, if the new Job has a gang. Makes no call if there was no
/// earlier Job. A failure is only logged, and the MiniCluster starts.
pub(super) async fn delete_earlier(
    objects: &Objects,
    target: &Target,
    observed: &Observed,
    context: &Context,
) {
    let GangOf::Object(object) = &objects.gang else {
        return;
    };
    // There was no earlier Job: the first one would have fixed `maximumSize` in the status.
    if target.status.maximum_size.is_none() && observed.last_job.is_none() {
        return;
    }
    delete_all_except(object.at.api, Some(&object.at.name), target, context).await;
}

/// Deletes the gangs of a MiniCluster that has ended without a Job. A failure is only logged: the gangs are
/// deleted with the MiniCluster.
pub(in crate::reconcile) async fn delete_all(target: &Target, cluster: &ValidMiniCluster, context: &Context) {
    if !context.options.gang {
        return;
    }
    match served(cluster, context)
        .await
        .map(|served| api_for(cluster, served))
    {
        Ok(Some(api)) => delete_all_except(api, None, target, context).await,
        Ok(None) => {}
        Err(error) => crate::health::log::warn("failed to find the API of gangs", &error),
    }
}

async fn delete_all_except(api: GangApi, kept: Option<&str>, target: &Target, context: &Context) {
    let deleted = context
        .writer
        .delete_gangs_except(&target.key, &target.uid, api, kept)
        .await;
    if let Err(error) = deleted {
        crate::health::log::warn("failed to delete the gangs of earlier Jobs", &error);
    }
}

/// Handles the result of creating the objects. If the gang's API no longer exists, the next reconcile looks
/// for another.
pub(super) async fn note_creation(objects: &Objects, result: &Result<(), ApplyError>, context: &Context) {
    let GangOf::Object(object) = &objects.gang else {
        return;
    };
    match result {
        Ok(()) => tracing::info!(gang = %object.at, "created the gang of the Job's pods"),
        Err(error) if error.is_not_found() => context.reader.forget_gangs().await,
        Err(_) => {}
    }
}

/// Deletes the gang of a Job that was deleted after an edit of the spec: the new spec may need another API, or no gang.
/// A failure is only logged: if the new Job has a gang of the same API, [`delete_earlier`] tries again.
pub(super) async fn delete_of_job(target: &Target, observed: &Observed, context: &Context) {
    let Some(at) = observed.job.as_ref().and_then(|job| gang_of(job, context)) else {
        return;
    };
    let deleted = context
        .writer
        .delete_gang(&target.key.namespace, &at, &target.uid)
        .await;
    if let Err(error) = deleted {
        crate::health::log::warn("failed to delete the gang of an edited Job", &error);
    }
}

/// The Job's gang. None: it has none, or this installation does not use gangs.
fn gang_of(job: &JobSeen, context: &Context) -> Option<GangRef> {
    // An operator that was reinstalled without gangs no longer has permission for them.
    if !context.options.gang {
        return None;
    }
    GangRef::read(job.gang.as_deref()?)
}

/// Another number of pods for a gang.
pub(super) struct Change {
    at: GangRef,
    pods: u32,
}

/// How the gang changes with the Job. Otherwise, after a shrink, the replacement of a lost pod would wait for more pods
/// than there are. When a MiniCluster grows, its first pods already run, and each new pod starts when there is room.
/// `job`: the Job before the change.
pub(super) fn change_for(
    cluster: &ValidMiniCluster,
    job: &JobSeen,
    size: u32,
    is_new_start: bool,
    context: &Context,
) -> Option<Change> {
    let at = gang_of(job, context)?;
    // The gang never has more pods than the command waits for: `minSize` or, without it, the size in the ConfigMap.
    let next_initial_size = if is_new_start {
        Some(size)
    } else {
        job.initial_size
    };
    let min_size = cluster.min_size.map(|size| job.capped(size));
    let limit = |initial_size: Option<u32>| min_size.or(initial_size);
    let before = count(limit(job.initial_size), job.completions);
    let pods = count(limit(next_initial_size), size);
    (job.is_resizing || before != pods).then_some(Change { at, pods })
}

/// Changes the number of pods in the gang.
pub(super) async fn resize(target: &Target, change: &Change, context: &Context) -> Result<(), ApplyError> {
    let Change { at, pods } = change;
    context
        .writer
        .resize_gang(&target.key.namespace, at, *pods, &target.uid)
        .await?;
    tracing::info!(pods, gang = %at, "changed the gang");
    Ok(())
}
