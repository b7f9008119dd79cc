//! What the operator keeps of a Service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::controller_uid;
use crate::labels;
use crate::observe::partial::Partial;

/// A Service without most of its specification.
pub type ServiceObject = Partial<Service, Selected>;

/// Most owners of one Service: each adds 250 bytes to an object of at most 1.5 MiB, which is rewritten for
/// each.
pub const OWNERS_MAX: usize = 500;

/// Whether a Service is a headless one of ours: it has the label with our domain, with its own name as value,
/// and only MiniClusters own it.
pub fn is_headless(metadata: &ObjectMeta) -> bool {
    let label = |key: &str| metadata.labels.as_ref().and_then(|all| all.get(key));
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    label(labels::HEADLESS).is_some_and(|name| Some(name) == metadata.name.as_ref())
        && label(labels::CLUSTER).is_none()
        && owners.iter().all(super::is_minicluster)
}

/// The part of a Service's spec that is read.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Selected {
    pub selector: Option<BTreeMap<String, String>>,
}

/// A Service, as seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceSeen {
    pub uid: String,
    pub controller_uid: Option<String>,
    pub is_deleting: bool,
    /// Name and uid of the MiniClusters that own it.
    pub owners: Vec<(String, String)>,
    /// Its selector takes index 0 only.
    pub is_minimal: bool,
}

impl ServiceSeen {
    pub fn of(service: &ServiceObject) -> ServiceSeen {
        let (metadata, selector) = (&service.metadata, service.spec.selector.as_ref());
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let owners = owners.iter().filter(|owner| super::is_minicluster(owner));
        ServiceSeen {
            uid: super::uid(metadata),
            controller_uid: controller_uid(metadata).map(str::to_owned),
            is_deleting: metadata.deletion_timestamp.is_some(),
            owners: owners
                .map(|owner| (owner.name.clone(), owner.uid.clone()))
                .collect(),
            is_minimal: selector.is_some_and(|selector| selector.contains_key(labels::COMPLETION_INDEX)),
        }
    }

    pub fn is_owned_by(&self, uid: &str) -> bool {
        self.owners.iter().any(|(_, owner)| owner == uid)
    }

    /// Whether the Service names the pods of this MiniCluster and is owned by it, or has the most owners
    /// allowed: should all of these go first, it is created again for the MiniClusters that are left.
    pub fn serves(&self, uid: &str, minimal: bool) -> bool {
        let is_kept = self.owners.len() >= OWNERS_MAX || self.is_owned_by(uid);
        !self.is_deleting && is_kept && (!self.is_minimal || minimal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_with_many_owners_takes_no_more() {
        let owners = |number: usize| {
            (0..number)
                .map(|it| (format!("mc-{it}"), format!("uid-{it}")))
                .collect()
        };
        let few = ServiceSeen {
            owners: owners(2),
            ..ServiceSeen::default()
        };
        assert!(few.serves("uid-1", false) && !few.serves("another", false));
        let many = ServiceSeen {
            owners: owners(OWNERS_MAX),
            ..ServiceSeen::default()
        };
        assert!(many.serves("another", false));
        assert!(
            !ServiceSeen {
                is_minimal: true,
                ..many
            }
            .serves("another", false)
        );
    }
}
