//! Writes outside of the reconciles: labels of lead pods, and the deletion of objects whose MiniCluster is deleted.

use flux_operator_core::observe::Unlabelled;
use flux_operator_core::observe::cluster::Cluster;
use flux_operator_core::observe::deleted::Deleted;
use flux_operator_core::observe::storage::OwnedVolume;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use tokio::sync::mpsc;

use crate::api::retry;
use crate::reconcile::apply::ApplyError;
use crate::reconcile::context::Context;

/// Most items of each queue below that are written at the same time. Few, since no reconcile waits for these writes.
const BACKGROUND_WRITES: usize = 4;

/// Deletes PersistentVolumes whose MiniClusters are gone. Kubernetes' garbage collector does not: a
/// cluster-scoped object cannot be owned by a namespaced one.
pub(super) async fn sweep(
    context: &Context,
    store: &Store<Cluster>,
    orphans: mpsc::UnboundedReceiver<OwnedVolume>,
) {
    // Before the first list the store is empty, and each volume would cost a call.
    if store.wait_until_ready().await.is_err() {
        return;
    }
    let delete = |orphan: OwnedVolume| async move {
        // The store saves a call: `Writer::sweep` asks the API server before it deletes.
        let key = ObjectRef::new(&orphan.cluster.name).within(&orphan.cluster.namespace);
        if store
            .get(&key)
            .is_some_and(|cluster| cluster.uid().as_deref() == Some(&orphan.owner))
        {
            Ok(())
        } else {
            context.writer.sweep(&orphan).await
        }
    };
    retry::run_queue(
        orphans,
        BACKGROUND_WRITES,
        "failed to delete a PersistentVolume; retrying",
        delete,
    )
    .await;
}

/// Writes on lead pods the label that the documentation promises, and the condition by which the Job's failure policy
/// recognises the lead. One call for each pod does both.
pub(super) async fn label_leads(context: &Context, unlabelled: mpsc::UnboundedReceiver<Unlabelled>) {
    let write = |pod: Unlabelled| async move {
        // Creating Jobs is more urgent than labels.
        context.job_first.wait_for_jobs().await;
        context.writer.label_lead(&pod).await
    };
    retry::run_queue(
        unlabelled,
        BACKGROUND_WRITES,
        "failed to label a pod; retrying",
        write,
    )
    .await;
}

/// Deletes Jobs and pods of deleted MiniClusters, all pods at once. If the API server refuses this, the garbage
/// collector deletes them: it stops the brokers one after the other, while the job still runs.
pub(super) async fn end_deleted(context: &Context, deleted: mpsc::UnboundedReceiver<Deleted>) {
    let delete = |deleted: Deleted| async move {
        match context.writer.end_deleted(&deleted).await {
            Err(ApplyError::Obstacle(obstacle) | ApplyError::NoPermission(obstacle)) => {
                tracing::warn!(
                    "the pods of a deleted MiniCluster end one after the other: {}",
                    obstacle.message
                );
                Ok(())
            }
            result => result,
        }
    };
    let failed = "failed to delete the pods of a deleted MiniCluster; retrying";
    retry::run_queue(deleted, BACKGROUND_WRITES, failed, delete).await;
}
