//! Deletes objects after a job has ended: the services pod, pods and volumes (`cleanupPods`), or the MiniCluster
//! (`cleanup`, `ttlSecondsAfterFinished`).

use std::time::{Duration, Instant};

use flux_operator_core::decide::next_action;
use flux_operator_core::render::{self, RenderFacts};
use flux_operator_core::status::{self, patch};
use flux_operator_core::target::Target;
use flux_shared::crd::v1alpha2::MiniClusterStatus;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::jiff::Timestamp;

use super::error::ReconcileError;
use crate::reconcile::context::Context;

/// When to reconcile again if the MiniCluster is not deleted because it has changed since it was read. Usually the
/// watch reports the change sooner.
const PAUSE_AFTER_EDIT: Duration = Duration::from_secs(5);

/// Deletes the services pod of a MiniCluster that has ended.
pub(super) async fn end_services(
    target: &Target,
    after: &MiniClusterStatus,
    context: &Context,
) -> Result<(), ReconcileError> {
    let observed = context.index.observed(&target.key);
    if let Some(uid) = next_action::services_pod_to_end(target, after, &observed) {
        context.writer.delete_services_pod(&target.key, &uid).await?;
        tracing::info!("deleted the services pod: the MiniCluster has ended");
    }
    Ok(())
}

/// Deletes pods and volumes of a completed job (`cleanupPods`), then sets the status. If the operator is killed in
/// between, the next one repeats this. If the spec has been edited, does nothing: the watch reports the edit.
pub(super) async fn clean_up(
    target: &Target,
    cluster: Option<&ValidMiniCluster>,
    after: &MiniClusterStatus,
    context: &Context,
) -> Result<(), ReconcileError> {
    if target.is_deleting {
        return Ok(());
    }
    let (Ok(spec), Some(cluster)) = (&target.spec, cluster) else {
        return Ok(());
    };
    let observed = context.index.observed(&target.key);
    let Some(job) = observed.job_of(&target.uid) else {
        return Ok(());
    };
    // If the whole MiniCluster is deleted now, `delete_or_time_left` does that, and nothing else has to be cleaned up.
    let now = context.metrics.server_clock.now();
    let is_deleted_now = next_action::seconds_to_live(spec, after, now) == Some(0);
    if is_deleted_now || !next_action::is_to_be_cleaned_up(spec, after, &observed, &job.uid) {
        return Ok(());
    }
    // Volumes depend on no other facts.
    let facts = RenderFacts {
        uid: Some(target.uid.clone()),
        ..RenderFacts::default()
    };
    let volumes = render::storage::volumes(cluster, &facts);
    let job_uid = job.uid.clone();
    // Not held while the pods are deleted: the index would have to copy the objects at the next change.
    drop(observed);
    if context.writer.version_if_unedited(target).await?.is_none() {
        return Ok(());
    }
    context
        .writer
        .clean_up(&target.key, &job_uid, &volumes, &target.uid)
        .await?;
    let cleaned = status::cleaned_up(after, Timestamp::now());
    if let Some(change) = patch::build(target, after, &cleaned).map_err(ReconcileError::Status)?
        && let Some(version) = context.writer.patch_status(&target.key, &change).await?
    {
        context
            .miniclusters
            .remember_status(target, version, &cleaned, Instant::now());
        tracing::info!("deleted pods and volumes (cleanupPods): the job has completed");
    }
    Ok(())
}

/// Deletes a finished MiniCluster: at once with `cleanup`, otherwise when its `ttlSecondsAfterFinished` has passed.
/// Returns what is left of that time, or `PAUSE_AFTER_EDIT`. None: it is being deleted, has not finished, or stays.
pub(super) async fn delete_or_time_left(
    target: &Target,
    after: &MiniClusterStatus,
    context: &Context,
) -> Result<Option<Duration>, ReconcileError> {
    if target.is_deleting {
        return Ok(None);
    }
    let Some(spec) = target.spec.as_ref().ok() else {
        return Ok(None);
    };
    // The Job's end was measured by the control plane's clock, which may differ from this process's.
    match next_action::seconds_to_live(spec, after, context.metrics.server_clock.now()) {
        None => Ok(None),
        Some(0) => {
            let version = context.writer.version_if_unedited(target).await?;
            if let Some(version) = version
                && context.writer.delete_minicluster(&target.key, version).await?
            {
                tracing::info!("deleted the finished MiniCluster (cleanup, or ttlSecondsAfterFinished)");
                return Ok(None);
            }
            Ok(Some(PAUSE_AFTER_EDIT))
        }
        Some(seconds) => Ok(Some(Duration::from_secs(seconds))),
    }
}
