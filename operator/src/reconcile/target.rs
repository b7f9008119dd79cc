//! The MiniCluster as the API server gave it, reduced to what a reconcile needs.

use flux_shared::crd::v1alpha2::{MiniClusterSpec, MiniClusterStatus};
use flux_shared::manifest::Manifest;
use flux_shared::queueing::Queueing;
use flux_shared::validate::{Problem, ValidMiniCluster, validate_and_note};
use kube::Resource;

use crate::observe::Key;
use crate::observe::cluster::{Cluster, version};
use crate::reconcile::render;

/// The MiniCluster of one reconcile.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub key: Key,
    pub uid: String,
    pub generation: Option<i64>,
    pub deleting: bool,
    /// Labels and annotations for a queue.
    pub queueing: Queueing,
    pub spec: Result<MiniClusterSpec, Vec<Problem>>,
    pub status: MiniClusterStatus,
    /// Whether it has a status at all.
    pub has_status: bool,
    pub resource_version: u64,
}

impl Target {
    pub fn of(object: &Cluster) -> Target {
        let metadata = object.meta();
        let (spec, status) = match &object.0 {
            Ok(cluster) => (Ok(cluster.spec.clone()), cluster.status.clone()),
            Err(invalid) => (Err(vec![Problem::new("", invalid.error.clone())]), None),
        };
        Target {
            key: Key::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation,
            deleting: metadata.deletion_timestamp.is_some(),
            queueing: Queueing::of(metadata.labels.as_ref(), metadata.annotations.as_ref()),
            spec,
            has_status: status.is_some(),
            status: status.unwrap_or_default(),
            resource_version: version(object),
        }
    }

    /// Hash of the fields of the spec that cannot change once the Job was created.
    pub fn spec_hash(&self) -> Option<String> {
        self.spec.as_ref().ok().map(render::spec_hash::of)
    }

    /// The checked spec, or every problem.
    pub fn validate(&self) -> Result<ValidMiniCluster, Vec<Problem>> {
        let spec = self.spec.clone()?;
        let (name, namespace) = (self.key.name.clone(), self.key.namespace.clone());
        validate_and_note(&Manifest { name, namespace, queueing: self.queueing.clone(), spec })
    }
}
