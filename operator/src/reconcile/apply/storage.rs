//! PersistentVolumes and their claims. PersistentVolumes have no namespace, so a MiniCluster cannot own them
//! in Kubernetes: an annotation has the owner's uid. Claims have an owner reference, like all other objects.

use std::time::Duration;

use flux_operator_core::labels;
use flux_operator_core::observe::storage::{OwnedVolume, annotation, cluster_of_volume};
use flux_operator_core::observe::{Key, controller_uid};
use flux_operator_core::obstacle::Obstacle;
use flux_operator_core::render::storage::RenderedVolume;
use flux_operator_core::vocabulary::Reason;
use flux_shared::backoff;
use flux_shared::crd::v1alpha2::MiniCluster;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::Instant;

use super::{
    ApplyError, Creation, Metadata, Writer, api_error, delete_params, ignore_gone, name_taken,
    none_if_not_found, own_still_deleting, post_params, rendered_hash, still_deleting,
};

/// Longest time to wait until all volumes and claims of a MiniCluster are bound, shorter than `SLOW_AFTER`. If they
/// are not bound by then, nothing fails, but the pods may start later.
const BINDER_TIME: Duration = Duration::from_secs(3);
/// The first and the longest pause between reads of a volume or a claim that is to be bound.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(900);
/// A claim that still exists this long after its deletion is held by something, almost always by a pod.
const CLAIM_TIME: SignedDuration = SignedDuration::from_mins(1);

/// An existing PersistentVolume with the name we need.
#[derive(Debug, PartialEq, Eq)]
enum ExistingVolume {
    /// It belongs to this MiniCluster, as it should be.
    Ours,
    /// It belongs to this MiniCluster, but is from an earlier spec, which was edited before there was a Job; or
    /// somebody has deleted it. It is replaced.
    Outdated,
    /// Kept from an earlier MiniCluster of this name, with the same definition.
    Kept,
    /// Kept from an earlier MiniCluster of this name, with another directory, driver or size.
    KeptOther,
    /// It belongs to an earlier MiniCluster, and is being deleted or will be.
    Deleting,
    /// Not created by this operator for a MiniCluster of this name.
    Foreign,
}

/// How the existing volume `found` relates to the MiniCluster that needs `wanted`. `owner`: the MiniCluster's uid.
fn classify(found: &Metadata, wanted: &Metadata, owner: &str) -> ExistingVolume {
    let is_same = annotation(found, labels::RENDERED_HASH) == annotation(wanted, labels::RENDERED_HASH);
    let is_kept = annotation(found, labels::KEEP).is_some();
    let is_owned = annotation(found, labels::OWNER) == Some(owner);
    if cluster_of_volume(found).is_none_or(|key| Some(key) != cluster_of_volume(wanted)) {
        return ExistingVolume::Foreign;
    }
    let is_deleting = found.deletion_timestamp.is_some();
    match (is_owned, is_kept, is_same) {
        (true, _, true) if !is_deleting => ExistingVolume::Ours,
        (true, _, _) => ExistingVolume::Outdated,
        (false, _, _) if is_deleting => ExistingVolume::Deleting,
        (false, true, true) => ExistingVolume::Kept,
        (false, true, false) => ExistingVolume::KeptOther,
        (false, false, _) => ExistingVolume::Deleting,
    }
}

/// Waits until a volume or a claim is bound or cannot be read, or until `deadline`. With an unbound claim the scheduler
/// would put the pod aside, and write a warning.
async fn wait_until_bound<K>(api: &Api<K>, name: &str, deadline: Instant, phase: impl Fn(K) -> Option<String>)
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let wait = async {
        for reads in 1.. {
            tokio::time::sleep(backoff::after(reads, FIRST_PAUSE, LONGEST_PAUSE)).await;
            let is_unbound = |found: K| phase(found).is_none_or(|phase| phase != "Bound");
            if !api.get(name).await.is_ok_and(is_unbound) {
                return;
            }
        }
    };
    // After the deadline, the caller goes on as if the object were bound.
    drop(tokio::time::timeout_at(deadline, wait).await);
}

/// Why a claim that has to go does not go by itself: nobody deletes it, or a pod still uses it. None: it goes, or may
/// be about to go.
fn why_claim_stays(claim: &Metadata, now: Timestamp) -> Option<Obstacle> {
    let name = claim.name.as_deref().unwrap_or_default();
    let Some(requested) = &claim.deletion_timestamp else {
        // The garbage collector deletes a claim with an owner.
        let has_owner = claim
            .owner_references
            .as_ref()
            .is_some_and(|owners| !owners.is_empty());
        // Only a claim with this hash was created by the operator.
        let obstacle = if rendered_hash(claim).is_some() {
            let message = format!(
                "PersistentVolumeClaim {name} was left behind by an earlier MiniCluster: delete it, or choose another name"
            );
            Obstacle::new(Reason::NameTaken, message)
        } else {
            name_taken("PersistentVolumeClaim", name)
        };
        return (!has_owner).then_some(obstacle);
    };
    let is_late = now.duration_since(requested.0) >= CLAIM_TIME;
    let message = format!(
        "PersistentVolumeClaim {name} was deleted, and a pod may still use it: see `Used By` in kubectl describe pvc {name}"
    );
    is_late.then(|| Obstacle::new(Reason::WaitingForPods, message))
}

impl Writer {
    fn persistent_volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// Creates missing claims and volumes of a MiniCluster, and waits until all are bound, at most for `BINDER_TIME`.
    pub(super) async fn create_volumes(
        &self,
        volumes: &[RenderedVolume],
        owner: &str,
    ) -> Result<(), ApplyError> {
        let deadline = Instant::now() + BINDER_TIME;
        // Concurrently, since all have one deadline: one or two that are never bound do not use up the others' time.
        futures::stream::iter(volumes.iter().map(Ok))
            .try_for_each_concurrent(3, |volume| self.create_volume(volume, owner, deadline))
            .await
    }

    /// Like [`Writer::try_create_volume`]. If earlier objects have to go first, and do not go by themselves because of
    /// the claim, the error says so.
    async fn create_volume(
        &self,
        rendered: &RenderedVolume,
        owner: &str,
        deadline: Instant,
    ) -> Result<(), ApplyError> {
        let created = self.try_create_volume(rendered, owner, deadline).await;
        if !matches!(&created, Err(ApplyError::Obstacle(obstacle)) if obstacle.is_wait()) {
            return created;
        }
        let claim = self.find_claim(&Key::of(&rendered.claim.metadata)).await?;
        match claim.and_then(|claim| why_claim_stays(&claim, Timestamp::now())) {
            Some(obstacle) => Err(obstacle.into()),
            None => created,
        }
    }

    /// Creates a claim and its volume, unless they exist and are ours, and waits until they are bound or until
    /// `deadline`.
    ///
    /// The order matters. After a conflict between two of its own writes, Kubernetes' binder looks again only
    /// 15 s later. Such a conflict happens if it finds a volume that is reserved for a claim, but without the
    /// claim's uid. So the claim is created first, and the volume is reserved for its uid. When the binder
    /// has bound the volume, a change of the claim makes the binder look at the claim.
    async fn try_create_volume(
        &self,
        rendered: &RenderedVolume,
        owner: &str,
        deadline: Instant,
    ) -> Result<(), ApplyError> {
        // First, so that no claim of ours is created for somebody else's volume of that name.
        let existing_uid = self.find_or_clear_volume(rendered, owner).await?;
        let key = Key::of(&rendered.claim.metadata);
        let claim_uid = match self.create(&rendered.claim, owner).await? {
            Creation::Existed(existing)
                if rendered_hash(&existing) != rendered_hash(&rendered.claim.metadata) =>
            {
                self.delete_claim(&key, existing.uid).await?;
                return Err(own_still_deleting("PersistentVolumeClaim", &key.name).into());
            }
            Creation::Existed(claim) | Creation::Created(claim) => claim.uid,
        };
        let volume_uid = self
            .create_or_reserve_volume(&rendered.volume, owner, existing_uid, claim_uid.as_ref())
            .await?;
        wait_until_bound(
            &self.persistent_volumes(),
            &rendered.volume.name_any(),
            deadline,
            |volume| volume.status?.phase,
        )
        .await;
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        // The operator never reads this annotation: it is the change that makes the binder look at the claim.
        let change =
            json!({ "metadata": { "uid": claim_uid, "annotations": { labels::VOLUME_UID: volume_uid } } });
        let patched = api
            .patch_metadata(
                &key.name,
                &PatchParams::apply(labels::MANAGER),
                &Patch::Merge(change),
            )
            .await;
        patched.map_err(|error| api_error::<PersistentVolumeClaim>("patch", &key.name, error))?;
        wait_until_bound(&api, &key.name, deadline, |claim| claim.status?.phase).await;
        Ok(())
    }

    /// The uid of an existing volume that may be used. None: no volume has the name. Deletes an outdated
    /// volume of ours, and returns an obstacle until it no longer exists.
    async fn find_or_clear_volume(
        &self,
        rendered: &RenderedVolume,
        owner: &str,
    ) -> Result<Option<String>, ApplyError> {
        let wanted = &rendered.volume;
        let name = wanted.name_any();
        let found = match none_if_not_found(self.persistent_volumes().get_metadata(&name).await) {
            Ok(Some(found)) => found.metadata,
            Ok(None) => return Ok(None),
            Err(error) => return Err(api_error::<PersistentVolume>("get", &name, error)),
        };
        match classify(&found, &wanted.metadata, owner) {
            ExistingVolume::Ours | ExistingVolume::Kept => Ok(found.uid),
            ExistingVolume::Foreign => Err(name_taken("PersistentVolume", &name).into()),
            ExistingVolume::Deleting => Err(still_deleting("PersistentVolume", &name).into()),
            ExistingVolume::KeptOther => {
                let message = format!(
                    "PersistentVolume {name} was kept from an earlier MiniCluster (delete: false) and differs from this one: delete it, or choose another name"
                );
                Err(Obstacle::new(Reason::NameTaken, message).into())
            }
            ExistingVolume::Outdated => {
                // Kubernetes keeps a bound volume until its claim is gone.
                self.delete_own_claim(rendered, owner).await?;
                self.delete_volume(&name, found.uid).await?;
                Err(own_still_deleting("PersistentVolume", &name).into())
            }
        }
    }

    /// Creates a volume for the claim with this uid, or reserves the existing one for it; returns the
    /// volume's uid.
    async fn create_or_reserve_volume(
        &self,
        wanted: &PersistentVolume,
        owner: &str,
        existing_uid: Option<String>,
        claim_uid: Option<&String>,
    ) -> Result<Option<String>, ApplyError> {
        let (api, name) = (self.persistent_volumes(), wanted.name_any());
        if let Some(uid) = existing_uid {
            // A kept volume is still bound to its former claim, which no longer exists. This MiniCluster may keep it, or not.
            let keep = annotation(&wanted.metadata, labels::KEEP);
            let change = json!({
                "metadata": { "uid": uid, "annotations": { labels::OWNER: owner, labels::KEEP: keep } },
                "spec": { "claimRef": { "uid": claim_uid, "resourceVersion": null } },
            });
            let patched = api
                .patch_metadata(&name, &PatchParams::apply(labels::MANAGER), &Patch::Merge(change))
                .await;
            patched.map_err(|error| api_error::<PersistentVolume>("patch", &name, error))?;
            return Ok(Some(uid));
        }
        let mut wanted = wanted.clone();
        if let Some(claim_ref) = wanted.spec.as_mut().and_then(|spec| spec.claim_ref.as_mut()) {
            claim_ref.uid = claim_uid.cloned();
        }
        let created = api.create(&post_params(), &wanted).await;
        let created = created.map_err(|error| api_error::<PersistentVolume>("create", &name, error))?;
        Ok(created.uid())
    }

    async fn delete_volume(&self, name: &str, uid: Option<String>) -> Result<(), ApplyError> {
        let deleted = self
            .persistent_volumes()
            .delete(name, &delete_params(uid))
            .await
            .map(drop);
        ignore_gone(deleted).map_err(|error| api_error::<PersistentVolume>("delete", name, error))
    }

    async fn delete_claim(&self, claim: &Key, uid: Option<String>) -> Result<(), ApplyError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let deleted = api.delete(&claim.name, &delete_params(uid)).await.map(drop);
        ignore_gone(deleted).map_err(|error| api_error::<PersistentVolumeClaim>("delete", &claim.name, error))
    }

    /// Deletes the claim of this name if it belongs to the MiniCluster with the uid `owner`.
    async fn delete_own_claim(&self, rendered: &RenderedVolume, owner: &str) -> Result<(), ApplyError> {
        let claim = Key::of(&rendered.claim.metadata);
        let found = self.find_claim(&claim).await?;
        match found.filter(|found| controller_uid(found) == Some(owner)) {
            Some(found) => self.delete_claim(&claim, found.uid).await,
            None => Ok(()),
        }
    }

    async fn find_claim(&self, claim: &Key) -> Result<Option<Metadata>, ApplyError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let found = none_if_not_found(api.get_metadata(&claim.name).await);
        let found = found.map_err(|error| api_error::<PersistentVolumeClaim>("get", &claim.name, error))?;
        Ok(found.map(|found| found.metadata))
    }

    /// Deletes what a completed MiniCluster leaves (`cleanupPods`): the Job's pods, claims, and volumes. `job` and
    /// `owner` (the MiniCluster) are uids.
    pub async fn clean_up(
        &self,
        cluster: &Key,
        job: &str,
        volumes: &[RenderedVolume],
        owner: &str,
    ) -> Result<(), ApplyError> {
        self.delete_pods(cluster, job).await?;
        for volume in volumes {
            self.delete_claim_and_volume(volume, owner).await?;
        }
        Ok(())
    }

    /// Deletes the claim and the volume of a completed MiniCluster. A volume that is to be kept stays.
    async fn delete_claim_and_volume(
        &self,
        rendered: &RenderedVolume,
        owner: &str,
    ) -> Result<(), ApplyError> {
        self.delete_own_claim(rendered, owner).await?;
        let name = rendered.volume.name_any();
        let found = none_if_not_found(self.persistent_volumes().get_metadata(&name).await);
        let found = found.map_err(|error| api_error::<PersistentVolume>("get", &name, error))?;
        // `OwnedVolume::of` returns None for a volume that is to be kept.
        match found
            .and_then(|found| OwnedVolume::of(&found.metadata))
            .filter(|found| found.owner == owner)
        {
            Some(found) => self.delete_volume(&name, Some(found.uid)).await,
            None => Ok(()),
        }
    }

    /// Deletes a volume whose MiniCluster no longer exists. Asks the API server for the MiniCluster first.
    pub async fn sweep(&self, volume: &OwnedVolume) -> Result<(), ApplyError> {
        let api: Api<MiniCluster> = Api::namespaced(self.client.clone(), &volume.cluster.namespace);
        let found = none_if_not_found(api.get_metadata(&volume.cluster.name).await);
        let found = found.map_err(|error| api_error::<MiniCluster>("get", &volume.cluster.name, error))?;
        if found.is_some_and(|found| found.metadata.uid.as_deref() == Some(&volume.owner)) {
            return Ok(());
        }
        self.delete_volume(&volume.name, Some(volume.uid.clone())).await?;
        tracing::info!(
            volume = volume.name,
            "deleted the PersistentVolume of a deleted MiniCluster"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

    use super::*;

    fn metadata(owner: &str, hash: &str, is_kept: bool) -> Metadata {
        let mut annotations = std::collections::BTreeMap::from([
            (labels::OWNER.to_owned(), owner.to_owned()),
            (labels::RENDERED_HASH.to_owned(), hash.to_owned()),
        ]);
        if is_kept {
            annotations.insert(labels::KEEP.into(), "true".into());
        }
        let mut all = labels::of_object("mc");
        all.insert(labels::NAMESPACE.into(), "ns".into());
        Metadata {
            labels: Some(all),
            annotations: Some(annotations),
            ..Metadata::default()
        }
    }

    #[test]
    fn claim_that_stays_is_named_with_its_cause() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
        let why = |owner: Option<OwnerReference>, deleted_for: Option<i64>| {
            let claim = Metadata {
                name: Some("mc.data".into()),
                owner_references: owner.map(|owner| vec![owner]),
                deletion_timestamp: deleted_for.map(|seconds| Time(now - SignedDuration::from_secs(seconds))),
                ..Metadata::default()
            };
            why_claim_stays(&claim, now).map(|obstacle| {
                assert!(
                    obstacle.message.contains("mc.data") && !obstacle.is_passing(),
                    "{obstacle}"
                );
                obstacle.reason
            })
        };
        let owner = || Some(OwnerReference::default());
        assert_eq!(why(None, None), Some(Reason::NameTaken), "--cascade=orphan");
        assert_eq!(
            why(owner(), None),
            None,
            "the garbage collector is about to delete it"
        );
        for owner in [None, owner()] {
            assert_eq!(why(owner.clone(), Some(59)), None);
            assert_eq!(why(owner, Some(60)), Some(Reason::WaitingForPods));
        }
    }

    #[test]
    fn existing_volume_is_classified_by_owner_hash_and_keep() {
        let wanted = metadata("new", "h", false);
        let is = |found: Metadata| classify(&found, &wanted, "new");
        assert_eq!(is(metadata("new", "h", false)), ExistingVolume::Ours);
        assert_eq!(is(metadata("new", "other", false)), ExistingVolume::Outdated);
        assert_eq!(is(metadata("old", "h", false)), ExistingVolume::Deleting);
        assert_eq!(is(metadata("old", "h", true)), ExistingVolume::Kept);
        assert_eq!(is(metadata("old", "other", true)), ExistingVolume::KeptOther);
        assert_eq!(
            is(Metadata {
                labels: None,
                ..metadata("new", "h", false)
            }),
            ExistingVolume::Foreign
        );
        // FluxCD's operator has our name, and labels its objects with it.
        let theirs = [(labels::MANAGED_BY.to_owned(), "flux-operator".to_owned())];
        assert_eq!(
            is(Metadata {
                labels: Some(theirs.into()),
                ..metadata("new", "h", false)
            }),
            ExistingVolume::Foreign
        );
        let deleted = |metadata: Metadata| Metadata {
            deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)),
            ..metadata
        };
        assert_eq!(is(deleted(metadata("old", "h", true))), ExistingVolume::Deleting);
        for hash in ["h", "other"] {
            assert_eq!(
                is(deleted(metadata("new", hash, false))),
                ExistingVolume::Outdated,
                "its claim, which is also this MiniCluster's, keeps it"
            );
        }
    }
}
