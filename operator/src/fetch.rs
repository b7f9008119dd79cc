//! The MiniCluster as the API server gave it, reduced to what a reconcile needs.

use flux_shared::crd::v1alpha2::{MiniCluster, MiniClusterSpec, MiniClusterStatus};
use flux_shared::manifest::Manifest;
use flux_shared::validate::{Problem, ValidMiniCluster, validate_and_note};
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};

use crate::observe::Key;

pub mod warning;

/// A MiniCluster, or one whose shape does not fit: it must not stop the others from being read.
pub type Cluster = DeserializeGuard<MiniCluster>;

/// What one reconcile is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub key: Key,
    pub uid: String,
    pub generation: Option<i64>,
    pub deleting: bool,
    pub spec: Result<MiniClusterSpec, Vec<Problem>>,
    pub status: MiniClusterStatus,
    pub resource_version: u64,
}

impl Target {
    pub fn of(object: &Cluster) -> Target {
        let metadata = object.meta();
        let (spec, status) = match &object.0 {
            Ok(cluster) => (Ok(cluster.spec.clone()), cluster.status.clone().unwrap_or_default()),
            Err(invalid) => (Err(vec![Problem::new("", invalid.error.clone())]), MiniClusterStatus::default()),
        };
        Target {
            key: Key::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation,
            deleting: metadata.deletion_timestamp.is_some(),
            spec,
            status,
            resource_version: version(object),
        }
    }

    /// The checked spec, or every problem.
    pub fn validate(&self) -> Result<ValidMiniCluster, Vec<Problem>> {
        let spec = self.spec.clone()?;
        validate_and_note(&Manifest { name: self.key.name.clone(), namespace: self.key.namespace.clone(), spec })
    }
}

/// The resourceVersion as a number, which it is by Kubernetes' API; 0 if some server disagrees.
pub fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0)
}
