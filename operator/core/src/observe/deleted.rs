//! MiniClusters that are being deleted or were deleted, and whether Kubernetes deletes the objects that they own. If it
//! does, the operator deletes the Job and all its pods first, at once: the garbage collector would stop the brokers one
//! after the other, while the job still runs.

use std::collections::HashSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Key;

/// Kubernetes' finalizer on an object that is deleted after the objects that it owns (`--cascade=foreground`).
const FOREGROUND: &str = "foregroundDeletion";
/// Kubernetes' finalizer on an object that is deleted while the objects that it owns are kept (`--cascade=orphan`).
const ORPHAN: &str = "orphan";

/// Whether Kubernetes keeps the objects that the deleted object owns (`--cascade=orphan`).
pub fn is_orphaning(metadata: &ObjectMeta) -> bool {
    has(metadata, ORPHAN)
}

/// Whether this is one of the two finalizers by which Kubernetes notes what happens to the objects that a deleted object
/// owns.
pub fn is_of_cascade(finalizer: &str) -> bool {
    [FOREGROUND, ORPHAN].contains(&finalizer)
}

fn has(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|name| name == finalizer)
}

/// Whether Kubernetes deletes an owner after the objects that it owns (foreground) or before them (background).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Foreground,
    Background,
}

/// A Job whose MiniCluster is being deleted or was deleted. The Job and its pods have to be deleted too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleted {
    pub cluster: Key,
    /// The Job's uid.
    pub job: String,
    pub propagation: Propagation,
}

/// Finds the MiniClusters whose objects Kubernetes deletes, from the events of the watch. Returns each only once.
#[derive(Debug, Default)]
pub struct Deletions {
    /// Uids of MiniClusters that were already returned, or whose objects are kept.
    settled: HashSet<String>,
}

impl Deletions {
    /// Handles an event about a MiniCluster that exists. Returns how its objects are deleted. None: they are not
    /// deleted (yet), or this was returned before.
    pub fn seen(&mut self, metadata: &ObjectMeta) -> Option<Propagation> {
        metadata.deletion_timestamp.as_ref()?;
        let uid = metadata.uid.clone()?;
        if is_orphaning(metadata) {
            self.settled.insert(uid);
            return None;
        }
        // If only somebody else's finalizers keep the MiniCluster, Kubernetes deletes its objects later.
        (has(metadata, FOREGROUND) && self.settled.insert(uid)).then_some(Propagation::Foreground)
    }

    /// Handles the event that a MiniCluster no longer exists. Returns how its objects are deleted. None: they are kept,
    /// or this was returned before.
    pub fn gone(&mut self, metadata: &ObjectMeta) -> Option<Propagation> {
        let is_settled = metadata.uid.as_ref().is_some_and(|uid| self.settled.remove(uid));
        (!is_settled).then_some(Propagation::Background)
    }

    /// Forgets a MiniCluster that no longer exists, also if the watch has not reported its deletion.
    pub fn forget(&mut self, uid: &str) {
        self.settled.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(finalizers: &[&str], is_deleting: bool) -> ObjectMeta {
        let time = is_deleting.then_some("2026-01-01T00:00:00Z");
        serde_json::from_value(
            serde_json::json!({ "uid": "u", "finalizers": finalizers, "deletionTimestamp": time }),
        )
        .unwrap()
    }

    #[test]
    fn deletion_is_returned_once_unless_it_orphans_the_objects() {
        let mut deletions = Deletions::default();
        assert_eq!(deletions.seen(&metadata(&[], false)), None);
        assert_eq!(
            deletions.gone(&metadata(&[], false)),
            Some(Propagation::Background)
        );

        assert_eq!(
            deletions.seen(&metadata(&["theirs"], true)),
            None,
            "somebody's finalizer holds it"
        );
        assert_eq!(
            deletions.gone(&metadata(&[], true)),
            Some(Propagation::Background)
        );

        assert_eq!(
            deletions.seen(&metadata(&[FOREGROUND], true)),
            Some(Propagation::Foreground)
        );
        assert_eq!(deletions.seen(&metadata(&[FOREGROUND], true)), None);
        assert_eq!(deletions.gone(&metadata(&[], true)), None);

        assert_eq!(deletions.seen(&metadata(&[ORPHAN], true)), None);
        assert_eq!(deletions.gone(&metadata(&[], true)), None, "its Job goes on");
        assert!(deletions.settled.is_empty());

        deletions.seen(&metadata(&[ORPHAN], true));
        deletions.forget("u");
        assert!(deletions.settled.is_empty());
    }
}
