//! What the operator keeps of a Service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Deserialize;

use super::controller_uid;
use crate::labels;
use crate::observe::partial::{NAME_MAX, Partial, UID_MAX};

/// A Service with its selector, but no other part of its spec.
pub type ServiceObject = Partial<Service, ServiceSpecPart>;

/// Most owners of one Service. Each adds about 250 bytes to an object of at most 1.5 MiB, and each new owner rewrites the
/// object.
pub const OWNERS_MAX: usize = 500;

/// Whether this is a headless Service of the operator: its label `HEADLESS` has its own name, it is no sidecar's
/// Service (which has the label `CLUSTER`), and only MiniClusters own it.
pub fn is_headless(metadata: &ObjectMeta) -> bool {
    let label = |key: &str| metadata.labels.as_ref().and_then(|all| all.get(key));
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    label(labels::HEADLESS).is_some_and(|name| Some(name) == metadata.name.as_ref())
        && label(labels::CLUSTER).is_none()
        && owners.iter().all(super::is_minicluster)
}

/// The part of a Service's spec that is read.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ServiceSpecPart {
    pub selector: Option<BTreeMap<String, String>>,
}

/// A Service as last seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServiceSeen {
    pub uid: String,
    pub controller_uid: Option<String>,
    pub is_deleting: bool,
    /// Name and uid of each MiniCluster that owns it, at most [`OWNERS_MAX`].
    pub owners: Vec<(String, String)>,
    /// Its selector selects index 0 only (`minimalService`).
    pub is_minimal: bool,
}

impl ServiceSeen {
    pub fn of(service: &ServiceObject) -> ServiceSeen {
        let (metadata, selector) = (&service.metadata, service.spec.selector.as_ref());
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        // Others may write owners, too, with any text.
        let is_real = |owner: &&OwnerReference| owner.name.len() <= NAME_MAX && owner.uid.len() <= UID_MAX;
        let owners = owners
            .iter()
            .filter(|owner| super::is_minicluster(owner))
            .filter(is_real)
            .take(OWNERS_MAX);
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

    /// Whether the MiniCluster with this uid owns it.
    pub fn is_owned_by(&self, uid: &str) -> bool {
        self.owners.iter().any(|(_, owner)| owner == uid)
    }

    /// Whether the MiniCluster with this uid can use the Service without a change. `minimal`: it needs a name only for
    /// its lead. The MiniCluster must own the Service, unless the Service already has [`OWNERS_MAX`] owners. (If all
    /// owners are deleted before the MiniCluster, the Service is created again.)
    pub fn serves(&self, uid: &str, minimal: bool) -> bool {
        let is_owned_or_full = self.owners.len() >= OWNERS_MAX || self.is_owned_by(uid);
        !self.is_deleting && is_owned_or_full && (!self.is_minimal || minimal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise one namespace's Services could fill the operator's memory.
    #[test]
    fn owners_of_a_service_are_bounded_in_number_and_length() {
        let owner = |name: &str, uid: &str| {
            serde_json::json!({
                "apiVersion": labels::API_VERSION, "kind": "MiniCluster", "name": name, "uid": uid,
            })
        };
        let long = "x".repeat(100_000);
        let mut owners = vec![owner(&long, "u"), owner("a", &long)];
        owners.extend((0..OWNERS_MAX + 10).map(|number| owner("mc", &number.to_string())));
        let metadata = serde_json::json!({ "ownerReferences": owners });
        let service = ServiceObject::new(
            serde_json::from_value(metadata).unwrap(),
            ServiceSpecPart::default(),
        );
        let seen = ServiceSeen::of(&service);
        assert_eq!(seen.owners.len(), OWNERS_MAX);
        assert!(seen.is_owned_by("0") && !seen.is_owned_by("u"));
        assert!(seen.serves("beyond", false), "it is full");
    }

    #[test]
    fn service_with_many_owners_takes_no_more() {
        let owners = |number: usize| {
            (0..number)
                .map(|index| (format!("mc-{index}"), format!("uid-{index}")))
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
