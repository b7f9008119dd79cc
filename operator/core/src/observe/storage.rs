//! Storage in the cluster: the PersistentVolumes that the operator created for MiniClusters, and the storage classes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Key;
use crate::labels;
use crate::labels::disk;

/// The CSI volume behind a PersistentVolume that the operator created for a MiniCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Driver and handle ([`labels::disk`]). Two PersistentVolumes should not have the same: a node may mount one with
    /// the attributes and the Secret of the other.
    pub text: String,
    pub cluster: Key,
}

impl Disk {
    /// The disk of a PersistentVolume. None: it has no CSI driver, is being deleted, or was not created by the
    /// operator.
    pub fn of(metadata: &ObjectMeta) -> Option<Disk> {
        let label = |key: &str| metadata.labels.as_ref()?.get(key).cloned();
        if metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Disk {
            text: metadata.annotations.as_ref()?.get(labels::DISK)?.clone(),
            cluster: Key::new(label(labels::NAMESPACE)?, label(labels::CLUSTER)?),
        })
    }
}

/// A PersistentVolume that the operator deletes once its MiniCluster is gone. Kubernetes does not delete it, since a
/// namespaced object cannot own a cluster-scoped one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedVolume {
    pub name: String,
    pub uid: String,
    pub cluster: Key,
    /// Uid of the MiniCluster.
    pub owner: String,
}

impl OwnedVolume {
    /// What is kept of a PersistentVolume that has to be deleted with its MiniCluster. None: it has to be kept, is
    /// being deleted, or was not created by the operator.
    pub fn of(metadata: &ObjectMeta) -> Option<OwnedVolume> {
        if metadata.deletion_timestamp.is_some() || annotation(metadata, labels::KEEP).is_some() {
            return None;
        }
        Some(OwnedVolume {
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            cluster: cluster_of_volume(metadata)?,
            owner: annotation(metadata, labels::OWNER)?.to_owned(),
        })
    }
}

/// The PersistentVolumes that the operator deletes once their MiniClusters are gone.
#[derive(Debug, Default)]
pub(super) struct Volumes {
    by_name: HashMap<String, OwnedVolume>,
    /// Names of the PersistentVolumes, by the MiniCluster's uid.
    of_owner: HashMap<String, BTreeSet<String>>,
}

impl Volumes {
    /// Stores the current state of the PersistentVolume `name`. `volume`: None if the operator does not have to delete
    /// it with a MiniCluster, or if it no longer exists.
    pub(super) fn update(&mut self, name: &str, volume: Option<&OwnedVolume>) {
        if let Some(before) = self.by_name.remove(name)
            && let Some(names) = self.of_owner.get_mut(&before.owner)
        {
            names.remove(name);
            if names.is_empty() {
                self.of_owner.remove(&before.owner);
            }
        }
        if let Some(volume) = volume {
            self.of_owner
                .entry(volume.owner.clone())
                .or_default()
                .insert(name.to_owned());
            self.by_name.insert(name.to_owned(), volume.clone());
        }
    }

    /// Forgets the PersistentVolumes whose names are not in a complete list.
    pub(super) fn keep(&mut self, listed: &HashSet<String>) {
        let gone: Vec<String> = self
            .by_name
            .keys()
            .filter(|name| !listed.contains(*name))
            .cloned()
            .collect();
        for name in gone {
            self.update(&name, None);
        }
    }

    /// The PersistentVolumes of the MiniCluster with the uid `owner`.
    pub(super) fn of(&self, owner: &str) -> Vec<OwnedVolume> {
        let names = self.of_owner.get(owner).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name).cloned()).collect()
    }
}

/// The annotation with this key.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The MiniCluster that a PersistentVolume was created for. None: it lacks one of the annotation `OWNER` and the labels
/// `NAMESPACE` and `CLUSTER`, so the operator has not created it.
pub fn cluster_of_volume(metadata: &ObjectMeta) -> Option<Key> {
    let label = |key: &str| metadata.labels.as_ref()?.get(key).cloned();
    annotation(metadata, labels::OWNER)?;
    Some(Key::new(label(labels::NAMESPACE)?, label(labels::CLUSTER)?))
}

/// What is known of the storage classes.
#[derive(Debug, Default, PartialEq, Eq)]
enum Classes {
    #[default]
    NotListed,
    /// The operator has no permission to list them.
    Forbidden,
    /// The names of all.
    Listed(BTreeSet<String>),
}

/// The disks and storage classes that have been seen.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// Disks by the name of their PersistentVolume.
    disks: BTreeMap<String, Disk>,
    /// The names of the PersistentVolumes of each disk.
    volumes_of: HashMap<String, BTreeSet<String>>,
    /// A list of PersistentVolumes was complete once.
    has_listed_disks: bool,
    classes: Classes,
}

/// What is known about a CSI volume of a MiniCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSeen {
    /// Its key in `spec.volumes`.
    pub key: String,
    pub driver: String,
    pub handle: String,
    /// Name of its storage class.
    pub class: String,
    /// Name of another PersistentVolume with the same driver and handle.
    pub shared_with: Option<String>,
    /// There is no storage class of that name. False if the operator may not list them.
    pub is_class_missing: bool,
}

impl Storage {
    /// Stores the disk of the PersistentVolume `volume`; None if it has none or no longer exists. If this is a change,
    /// returns the MiniClusters whose PersistentVolumes have the previous or the new disk.
    pub(super) fn update_disk(&mut self, volume: &str, disk: Option<Disk>) -> Vec<Key> {
        let before = self.disks.remove(volume);
        if let Some(before) = &before
            && let Some(volumes) = self.volumes_of.get_mut(&before.text)
        {
            volumes.remove(volume);
            if volumes.is_empty() {
                self.volumes_of.remove(&before.text);
            }
        }
        if let Some(disk) = &disk {
            self.volumes_of
                .entry(disk.text.clone())
                .or_default()
                .insert(volume.to_owned());
            self.disks.insert(volume.to_owned(), disk.clone());
        }
        if before == disk {
            return Vec::new();
        }
        let texts: BTreeSet<&str> = [&before, &disk]
            .into_iter()
            .flatten()
            .map(|disk| disk.text.as_str())
            .collect();
        let volumes = texts.into_iter().flat_map(|text| self.volumes_of(text));
        volumes
            .filter_map(|name| Some(self.disks.get(name)?.cluster.clone()))
            .collect()
    }

    /// The names of the PersistentVolumes of a disk.
    fn volumes_of(&self, disk: &str) -> impl Iterator<Item = &String> {
        self.volumes_of.get(disk).into_iter().flatten()
    }

    /// Forgets the disks of PersistentVolumes that are not in a complete list. Returns all MiniClusters with a disk:
    /// the first list may let `disks_of` answer for all of them.
    pub(super) fn keep_disks(&mut self, listed: &HashSet<String>) -> Vec<Key> {
        let gone: Vec<String> = self
            .disks
            .keys()
            .filter(|volume| !listed.contains(*volume))
            .cloned()
            .collect();
        for volume in gone {
            self.update_disk(&volume, None);
        }
        self.has_listed_disks = true;
        self.clusters()
    }

    /// Stores the names of all storage classes; None if the operator may not list them. If this is a change, returns
    /// all MiniClusters with a disk.
    pub(super) fn update_classes(&mut self, names: Option<BTreeSet<String>>) -> Vec<Key> {
        let classes = names.map_or(Classes::Forbidden, Classes::Listed);
        if self.classes == classes {
            return Vec::new();
        }
        self.classes = classes;
        self.clusters()
    }

    /// The MiniClusters with a disk.
    fn clusters(&self) -> Vec<Key> {
        self.disks.values().map(|disk| disk.cluster.clone()).collect()
    }

    /// The CSI volumes of a MiniCluster. None: PersistentVolumes or storage classes have not been listed yet.
    pub(super) fn disks_of(&self, cluster: &ValidMiniCluster) -> Option<Vec<DiskSeen>> {
        if !self.has_listed_disks || self.classes == Classes::NotListed {
            return None;
        }
        let disks = cluster.volumes.iter().filter_map(|volume| {
            let (driver, handle) = volume.source.disk()?;
            let text = disk(driver, handle);
            let other = self.volumes_of(&text).find(|name| **name != volume.name);
            Some(DiskSeen {
                key: volume.key.clone(),
                driver: driver.to_owned(),
                handle: handle.to_owned(),
                class: volume.storage_class.clone(),
                shared_with: other.cloned(),
                is_class_missing: matches!(&self.classes, Classes::Listed(all) if !all.contains(&volume.storage_class)),
            })
        });
        Some(disks.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk_of(cluster: &str, text: &str) -> Option<Disk> {
        Some(Disk {
            text: text.into(),
            cluster: Key::new("ns", cluster),
        })
    }

    fn names(keys: &[Key]) -> Vec<&str> {
        keys.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn volume_is_of_its_owner_until_it_is_gone_or_not_listed() {
        let orphan = |name: &str, owner: &str| OwnedVolume {
            name: name.into(),
            uid: "u".into(),
            cluster: Key::new("ns", "mc"),
            owner: owner.into(),
        };
        let mut volumes = Volumes::default();
        for (name, owner) in [("a", "1"), ("b", "1"), ("c", "2")] {
            volumes.update(name, Some(&orphan(name, owner)));
        }
        volumes.update("b", Some(&orphan("b", "2")));
        assert_eq!(volumes.of("1"), [orphan("a", "1")]);
        volumes.keep(&HashSet::from(["b".to_owned()]));
        assert_eq!(
            (volumes.of("1"), volumes.of("2")),
            (Vec::new(), vec![orphan("b", "2")])
        );
        volumes.update("b", None);
        assert_eq!(volumes.of_owner.len(), 0);
    }

    #[test]
    fn clusters_sharing_a_disk_are_notified_of_each_change() {
        let mut storage = Storage::default();
        assert_eq!(names(&storage.update_disk("pv-a", disk_of("a", "d 1"))), ["a"]);
        assert_eq!(names(&storage.update_disk("pv-b", disk_of("b", "d 2"))), ["b"]);
        assert_eq!(
            names(&storage.update_disk("pv-c", disk_of("c", "d 1"))),
            ["a", "c"]
        );
        assert!(
            storage.update_disk("pv-c", disk_of("c", "d 1")).is_empty(),
            "no news"
        );
        assert_eq!(names(&storage.update_disk("pv-c", None)), ["a"]);
        assert!(storage.update_disk("unknown", None).is_empty());
        assert_eq!(
            names(&storage.keep_disks(&HashSet::from(["pv-a".to_owned()]))),
            ["a"]
        );
    }

    /// The updates of a long list take about a second. With a walk over all disks for each, they took minutes.
    #[test]
    fn disk_is_updated_without_a_walk_over_all_others() {
        let mut storage = Storage::default();
        let names: Vec<String> = (0..50_000).map(|number| format!("pv-{number}")).collect();
        let begin = std::time::Instant::now();
        for name in &names {
            assert_eq!(storage.update_disk(name, disk_of("mc", name)).len(), 1);
        }
        storage.keep_disks(&HashSet::new());
        assert!(storage.disks.is_empty() && storage.volumes_of.is_empty());
        assert!(begin.elapsed().as_secs() < 20, "it took {:?}", begin.elapsed());
    }

    #[test]
    fn shared_disks_are_unknown_until_all_is_listed() {
        let spec = "volumes: {data: {storageClass: fast, driver: d, volumeHandle: h, secret: s}, here: {path: /d}}\n\
                    containers: [{image: a, command: b, volumes: {data: {path: /d}, here: {path: /e}}}]";
        let cluster = crate::testing::cluster(spec);
        let mut storage = Storage::default();
        storage.update_disk("ns.mc.data", disk_of("mc", "d h"));
        storage.update_disk("other", disk_of("other", "d h"));
        assert_eq!(storage.disks_of(&cluster), None);
        storage.keep_disks(&HashSet::from(["ns.mc.data".to_owned(), "other".to_owned()]));
        assert_eq!(storage.disks_of(&cluster), None);
        assert_eq!(
            names(&storage.update_classes(Some(BTreeSet::new()))),
            ["mc", "other"]
        );
        let seen = storage.disks_of(&cluster).unwrap();
        assert_eq!(
            (
                seen.len(),
                seen[0].shared_with.as_deref(),
                seen[0].is_class_missing
            ),
            (1, Some("other"), true)
        );
        storage.update_classes(Some(BTreeSet::from(["fast".to_owned()])));
        storage.update_disk("other", None);
        let seen = storage.disks_of(&cluster).unwrap();
        assert_eq!(
            (seen[0].shared_with.as_deref(), seen[0].is_class_missing),
            (None, false),
            "its own PersistentVolume does not count"
        );
        assert!(
            storage
                .update_classes(Some(BTreeSet::from(["fast".to_owned()])))
                .is_empty(),
            "no news"
        );
        storage.update_classes(None);
        assert!(
            !storage.disks_of(&cluster).unwrap()[0].is_class_missing,
            "it is not known which classes exist"
        );
    }
}
