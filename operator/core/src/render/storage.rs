//! The volumes of `spec.volumes`: a PersistentVolume and the claim on it, bound to each other by name.
//!
//! The data are never deleted: the reclaim policy is always Retain. (To delete the data of a hostPath, Kubernetes
//! empties the directory on the machine of its controllers, whichever that is.) The field `delete` concerns only the
//! PersistentVolume, which the operator deletes.

use std::collections::BTreeMap;

use flux_shared::validate::{PersistentSource, ValidMiniCluster};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, HostPathVolumeSource, ObjectReference, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec, SecretReference,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{RenderFacts, hash, metadata};
use crate::labels;
use crate::labels::disk;

const STORAGE: &str = "storage";
const ACCESS_MODE: &str = "ReadWriteMany";

/// A PersistentVolume with its claim.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedVolume {
    pub volume: PersistentVolume,
    pub claim: PersistentVolumeClaim,
}

/// The PersistentVolumes and claims of a cluster.
pub fn volumes(cluster: &ValidMiniCluster, facts: &RenderFacts) -> Vec<RenderedVolume> {
    let render = |volume| RenderedVolume {
        volume: persistent(cluster, volume, facts),
        claim: claim(cluster, volume, facts),
    };
    cluster.volumes.iter().map(render).collect()
}

/// A volume of the spec. (The type needs another name here, since Kubernetes' type is called PersistentVolume, too.)
type Wanted = flux_shared::validate::PersistentVolume;

fn resource_list(wanted: &Wanted) -> BTreeMap<String, Quantity> {
    [(STORAGE.to_owned(), Quantity(wanted.capacity.0.clone()))].into()
}

fn persistent(cluster: &ValidMiniCluster, wanted: &Wanted, facts: &RenderFacts) -> PersistentVolume {
    let mut spec = PersistentVolumeSpec {
        access_modes: Some(vec![ACCESS_MODE.into()]),
        capacity: Some(resource_list(wanted)),
        // Reserved: no other claim can bind to it.
        claim_ref: Some(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            namespace: Some(cluster.namespace.clone()),
            name: Some(wanted.claim.clone()),
            ..ObjectReference::default()
        }),
        persistent_volume_reclaim_policy: Some("Retain".into()),
        storage_class_name: Some(wanted.storage_class.clone()),
        volume_mode: Some("Filesystem".into()),
        ..PersistentVolumeSpec::default()
    };
    match &wanted.source {
        PersistentSource::HostPath(path) => {
            spec.host_path = Some(HostPathVolumeSource {
                path: path.clone(),
                // The API's documentation says that the directory is created if it is missing.
                type_: Some("DirectoryOrCreate".into()),
            });
        }
        PersistentSource::Csi {
            driver,
            handle,
            attributes,
            secret,
        } => {
            let secret = secret.clone();
            let secret = secret.map(|(name, namespace)| SecretReference {
                name: Some(name),
                namespace: Some(namespace),
            });
            spec.csi = Some(CSIPersistentVolumeSource {
                driver: driver.clone(),
                volume_handle: handle.clone(),
                volume_attributes: (!attributes.is_empty()).then(|| attributes.clone()),
                node_publish_secret_ref: secret.clone(),
                node_stage_secret_ref: secret.clone(),
                controller_publish_secret_ref: secret,
                ..CSIPersistentVolumeSource::default()
            });
        }
    }
    let mut all_labels = wanted.labels.clone();
    all_labels.extend(labels::of_object(&cluster.name));
    all_labels.insert(labels::NAMESPACE.into(), cluster.namespace.clone());
    let mut annotations = wanted.annotations.clone();
    annotations.insert(labels::RENDERED_HASH.into(), hash(&spec));
    if let Some(uid) = &facts.uid {
        annotations.insert(labels::OWNER.into(), uid.clone());
    }
    if let Some((driver, handle)) = wanted.source.disk() {
        annotations.insert(labels::DISK.into(), disk(driver, handle));
    }
    if !wanted.delete {
        annotations.insert(labels::KEEP.into(), "true".into());
    }
    let metadata = ObjectMeta {
        name: Some(wanted.name.clone()),
        labels: Some(all_labels),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    PersistentVolume {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

fn claim(cluster: &ValidMiniCluster, wanted: &Wanted, facts: &RenderFacts) -> PersistentVolumeClaim {
    let spec = PersistentVolumeClaimSpec {
        access_modes: Some(vec![ACCESS_MODE.into()]),
        resources: Some(VolumeResourceRequirements {
            requests: Some(resource_list(wanted)),
            limits: None,
        }),
        storage_class_name: Some(wanted.storage_class.clone()),
        volume_mode: Some("Filesystem".into()),
        volume_name: Some(wanted.name.clone()),
        ..PersistentVolumeClaimSpec::default()
    };
    let mut metadata = metadata(wanted.claim.clone(), cluster, facts);
    let mut annotations = wanted.claim_annotations.clone();
    annotations.insert(labels::RENDERED_HASH.into(), hash(&spec));
    metadata.annotations = Some(annotations);
    PersistentVolumeClaim {
        metadata,
        spec: Some(spec),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(volume: &str) -> RenderedVolume {
        let spec = format!(
            "volumes: {{data: {volume}}}\ncontainers: [{{image: a, command: b, volumes: {{data: {{path: /d}}}}}}]"
        );
        let facts = RenderFacts {
            uid: Some("u-1".into()),
            ..RenderFacts::default()
        };
        volumes(&crate::testing::cluster(&spec), &facts).remove(0)
    }

    #[test]
    fn a_directory_of_the_node_is_bound_to_its_claim_alone() {
        let rendered = rendered(
            "{path: /tmp/data, labels: {type: local}, annotations: {a: b}, claimAnnotations: {c: d}}",
        );
        let spec = rendered.volume.spec.unwrap();
        assert_eq!(spec.host_path.unwrap().path, "/tmp/data");
        let claim = spec.claim_ref.unwrap();
        assert_eq!(
            (claim.namespace.as_deref(), claim.name.as_deref()),
            (Some("ns"), Some("mc.data"))
        );
        assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Retain"));
        assert_eq!(spec.capacity.unwrap()["storage"].0, "5Gi");
        let metadata = rendered.volume.metadata;
        assert_eq!(metadata.name.as_deref(), Some("ns.mc.data"));
        assert_eq!(metadata.labels.unwrap()["type"], "local");
        let annotations = metadata.annotations.unwrap();
        assert_eq!(
            (annotations["a"].as_str(), annotations[labels::OWNER].as_str()),
            ("b", "u-1")
        );
        assert!(!annotations.contains_key(labels::KEEP) && !annotations.contains_key(labels::DISK));
        let claim = rendered.claim;
        assert_eq!(claim.metadata.name.as_deref(), Some("mc.data"));
        assert_eq!(claim.metadata.annotations.unwrap()["c"], "d");
        assert_eq!(claim.metadata.owner_references.unwrap()[0].uid, "u-1");
        let spec = claim.spec.unwrap();
        assert_eq!(spec.volume_name.as_deref(), Some("ns.mc.data"));
        assert_eq!(spec.storage_class_name.as_deref(), Some("hostpath"));
    }

    #[test]
    fn a_csi_volume_has_its_driver_handle_attributes_and_secret() {
        let whole = rendered(
            "{storageClass: csi-gcs, driver: gcs.csi.ofek.dev, secret: s, attributes: {mounter: geesefs}, capacity: 25Gi, delete: false}",
        );
        let csi = whole.volume.spec.unwrap().csi.unwrap();
        assert_eq!(
            (csi.driver.as_str(), csi.volume_handle.as_str()),
            ("gcs.csi.ofek.dev", "csi-gcs")
        );
        assert_eq!(csi.volume_attributes.unwrap()["mounter"], "geesefs");
        for secret in [
            csi.node_publish_secret_ref,
            csi.node_stage_secret_ref,
            csi.controller_publish_secret_ref,
        ] {
            let secret = secret.unwrap();
            assert_eq!(
                (secret.name.as_deref(), secret.namespace.as_deref()),
                (Some("s"), Some("default"))
            );
        }
        let bare = rendered("{storageClass: csi-gcs, driver: gcs.csi.ofek.dev}")
            .volume
            .spec
            .unwrap()
            .csi
            .unwrap();
        assert_eq!(
            (bare.volume_handle.as_str(), bare.node_publish_secret_ref),
            ("csi-gcs", None)
        );
        let annotations = whole.volume.metadata.annotations.unwrap();
        assert_eq!(
            (
                annotations[labels::KEEP].as_str(),
                annotations[labels::DISK].as_str()
            ),
            ("true", "gcs.csi.ofek.dev csi-gcs")
        );
    }
}
