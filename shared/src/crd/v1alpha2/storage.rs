//! Volumes that the operator creates, and volumes that exist already.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{is_false, yes};
use crate::quantity::Quantity;

/// The storage class of volumes that are a directory of the node.
pub const HOST_PATH_CLASS: &str = "hostpath";

fn host_path_class() -> String {
    HOST_PATH_CLASS.into()
}
fn capacity() -> Quantity {
    Quantity("5Gi".into())
}
fn default_namespace() -> String {
    "default".into()
}
fn is_true(value: &bool) -> bool {
    *value
}

block! {
    /// A volume that the operator creates: a PersistentVolume and a claim on it, of mode ReadWriteMany.
    pub struct MadeVolume {
        /// Directory of the node (storageClass hostpath); created if missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// Storage class of the volume and its claim. hostpath: a directory of the node; any other: a CSI
        /// volume.
        #[serde(default = "host_path_class")]
        pub storage_class: String,
        /// Capacity of the volume, and request of its claim.
        #[serde(default = "capacity")]
        pub capacity: Quantity,
        /// Labels of the volume.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub labels: BTreeMap<String, String>,
        /// Annotations of the volume.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub annotations: BTreeMap<String, String>,
        /// Annotations of its claim.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub claim_annotations: BTreeMap<String, String>,
        /// Delete the PersistentVolume when the MiniCluster is deleted, or its pods are cleaned up; false:
        /// keep it, without its claim. The data are always kept. Default: true.
        #[serde(default = "yes", skip_serializing_if = "is_true")]
        pub delete: bool,
        /// Name of the CSI driver.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub driver: Option<String>,
        /// CSI handle of the volume. Default: the storage class.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub volume_handle: Option<String>,
        /// Alias of volumeHandle, for existing manifests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub volume_name: Option<String>,
        /// Attributes for the CSI driver.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub attributes: BTreeMap<String, String>,
        /// Name of a Secret for the CSI driver.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub secret: Option<String>,
        /// Namespace of that Secret.
        #[serde(default = "default_namespace")]
        pub secret_namespace: String,
    }
}

impl Default for MadeVolume {
    fn default() -> Self {
        MadeVolume {
            path: None,
            storage_class: host_path_class(),
            capacity: capacity(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            claim_annotations: BTreeMap::new(),
            delete: true,
            driver: None,
            volume_handle: None,
            volume_name: None,
            attributes: BTreeMap::new(),
            secret: None,
            secret_namespace: default_namespace(),
        }
    }
}

block! {
    /// A volume that exists already, and where it is mounted. Exactly one of claimName, configMapName,
    /// secretName.
    #[derive(Default)]
    pub struct ExistingVolume {
        /// Where it is mounted in the container.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// Name of a PersistentVolumeClaim.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub claim_name: Option<String>,
        /// Name of a ConfigMap.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub config_map_name: Option<String>,
        /// Name of a Secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub secret_name: Option<String>,
        /// Keys of the ConfigMap or Secret, each with its path below the mount. Default: all.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub items: BTreeMap<String, String>,
        /// Mount it read-only.
        #[serde(default, skip_serializing_if = "is_false")]
        pub read_only: bool,
    }
}
