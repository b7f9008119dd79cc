//! Kubernetes objects of which only some parts are read. `managedFields`, which are often half of an object's bytes, are
//! never read.

use std::any::TypeId;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use flux_shared::crd::v1alpha2;
use flux_shared::queueing::QUEUE_NAME;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};

/// An object of kind K: its metadata without `managedFields`, and the parts of its spec and status that the types S and
/// T have.
#[derive(Debug, Clone, Deserialize)]
#[serde(bound = "S: Deserialize<'de> + Default, T: Deserialize<'de>")]
pub struct Partial<K, S = NotRead, T = NotRead> {
    #[serde(default, deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: S,
    pub status: Option<T>,
    #[serde(skip)]
    kind: PhantomData<fn() -> K>,
}

/// The type of a spec or status that is not read.
pub type NotRead = IgnoredAny;

impl<K, S, T> Partial<K, S, T> {
    /// An object without a status.
    pub fn new(metadata: ObjectMeta, spec: S) -> Partial<K, S, T> {
        Partial {
            metadata,
            spec,
            status: None,
            kind: PhantomData,
        }
    }
}

impl<K: Resource<DynamicType = ()>, S: 'static, T: 'static> Resource for Partial<K, S, T> {
    type DynamicType = ();
    type Scope = K::Scope;

    fn kind(dynamic: &()) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &()) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &()) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &()) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    /// Whether the API server is asked for the metadata alone: if neither spec nor status is read.
    fn metadata_api() -> bool {
        [TypeId::of::<S>(), TypeId::of::<T>()] == [TypeId::of::<NotRead>(); 2]
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// For `deserialize_with`: reads metadata without `managedFields`, since parsing these into a tree of values takes more
/// time than the rest. (`selfLink` is not read either: Kubernetes no longer sets it.)
pub fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        annotations: Option<BTreeMap<String, String>>,
        creation_timestamp: Option<Time>,
        deletion_grace_period_seconds: Option<i64>,
        deletion_timestamp: Option<Time>,
        finalizers: Option<Vec<String>>,
        generate_name: Option<String>,
        generation: Option<i64>,
        labels: Option<BTreeMap<String, String>>,
        name: Option<String>,
        namespace: Option<String>,
        owner_references: Option<Vec<OwnerReference>>,
        resource_version: Option<String>,
        uid: Option<String>,
    }
    let read = Metadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        annotations: read.annotations,
        creation_timestamp: read.creation_timestamp,
        deletion_grace_period_seconds: read.deletion_grace_period_seconds,
        deletion_timestamp: read.deletion_timestamp,
        finalizers: read.finalizers,
        generate_name: read.generate_name,
        generation: read.generation,
        labels: read.labels,
        managed_fields: None,
        name: read.name,
        namespace: read.namespace,
        owner_references: read.owner_references,
        resource_version: read.resource_version,
        self_link: None,
        uid: read.uid,
    })
}

/// Longest uid that is kept, in bytes. Kubernetes' uids have 36, but an owner reference may have any text.
pub(super) const UID_MAX: usize = 64;
/// Longest name of an object, in bytes.
pub(super) const NAME_MAX: usize = 253;

/// The uid of the owner that controls the object, cut to [`UID_MAX`]. None: no owner does.
pub fn controller_uid(metadata: &ObjectMeta) -> Option<&str> {
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    owners
        .iter()
        .find(|owner| owner.controller == Some(true))
        .map(|owner| cut(&owner.uid, UID_MAX))
}

/// The name of the queue in the object's label. None: there is no label, or an empty one.
pub(super) fn queue_of(metadata: &ObjectMeta) -> Option<&str> {
    let name = metadata.labels.as_ref()?.get(QUEUE_NAME)?;
    (!name.is_empty()).then_some(name)
}

/// The beginning of the text, up to this number of bytes.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Whether an owner is a MiniCluster, of any version. The group is compared too, since another group may have a kind
/// of this name.
pub fn is_minicluster(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split_once('/').map(|(group, _)| group);
    owner.kind == v1alpha2::KIND && group == Some(v1alpha2::GROUP)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn everything_but_managed_fields_is_read() {
        let owner = json!({ "apiVersion": "v1", "kind": "Job", "name": "j", "uid": "1", "controller": true });
        let time = "2026-11-25T10:00:00Z";
        let whole = json!({
            "annotations": { "a": "b" }, "creationTimestamp": time, "deletionGracePeriodSeconds": 30,
            "deletionTimestamp": time, "finalizers": ["f"], "generateName": "p-", "generation": 3,
            "labels": { "c": "d" }, "managedFields": [{ "manager": "m", "fieldsV1": { "f:metadata": {} } }],
            "name": "p-1", "namespace": "ns", "ownerReferences": [owner], "resourceVersion": "7", "uid": "u",
        });
        let pod =
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": whole, "spec": { "nodeName": "n" } });
        let read: Partial<Pod> = serde_json::from_value(pod).unwrap();
        let wanted: ObjectMeta = serde_json::from_value(whole.clone()).unwrap();
        assert!(wanted.managed_fields.is_some());
        assert_eq!(
            read.metadata,
            ObjectMeta {
                managed_fields: None,
                ..wanted
            }
        );
    }

    #[test]
    fn controllers_uid_is_cut_if_it_is_long() {
        let of = |uid: &str| {
            let owner =
                json!({ "apiVersion": "v1", "kind": "Job", "name": "j", "uid": uid, "controller": true });
            let metadata: ObjectMeta = serde_json::from_value(json!({ "ownerReferences": [owner] })).unwrap();
            controller_uid(&metadata).map(str::to_owned)
        };
        let uid = "0b5a8e4e-4c4e-4a57-9c3e-6d1d6a1c2f10";
        assert_eq!(of(uid).as_deref(), Some(uid));
        assert_eq!(of(&"é".repeat(100_000)).unwrap().len(), UID_MAX);
    }

    #[test]
    fn metadata_alone_is_asked_for_where_nothing_else_is_read() {
        assert!(Partial::<Pod>::metadata_api());
        assert!(!Partial::<Pod, Map<String, Value>>::metadata_api());
        assert!(!Partial::<Pod, NotRead, Map<String, Value>>::metadata_api());
    }

    #[test]
    fn missing_parts_of_an_object_are_read_as_empty() {
        let read: Partial<Pod> = serde_json::from_value(json!({})).unwrap();
        assert_eq!(read.metadata, ObjectMeta::default());
        assert!(read.status.is_none());
    }
}
