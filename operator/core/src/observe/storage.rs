//! Storage in the cluster: the PersistentVolumes that the operator created for MiniClusters, and the storage classes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Key;
use crate::labels;
use crate::labels::disk;

/// The CSI volume behind a PersistentVolume that the operator created for a MiniCluster.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Disk {
    /// Driver and handle ([`labels::disk`]). Two PersistentVolumes should not have the same: a node may mount one with
    /// the attributes and the Secret of the other.
    text: String,
    cluster: Key,
}

impl Disk {
    /// The disk of a PersistentVolume. None: it has no CSI driver, is being deleted, or was not created by the
    /// operator.
    fn of(metadata: &ObjectMeta) -> Option<Disk> {
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

/// What is known of a PersistentVolume. Both fields are None if it no longer exists.
#[derive(Debug, Clone, Default)]
pub(super) struct Volume {
    disk: Option<Disk>,
    owned: Option<OwnedVolume>,
}

impl Volume {
    pub(super) fn of(metadata: &ObjectMeta) -> Volume {
        Volume {
            disk: Disk::of(metadata),
            owned: OwnedVolume::of(metadata),
        }
    }
}

/// Names of PersistentVolumes in groups.
type Groups = HashMap<String, BTreeSet<String>>;

/// Moves a name from one group to another. None: it was in no group, or is in none now.
fn regroup(groups: &mut Groups, name: &str, before: Option<&String>, now: Option<&String>) {
    if let Some(before) = before
        && let Some(names) = groups.get_mut(before)
    {
        names.remove(name);
        if names.is_empty() {
            groups.remove(before);
        }
    }
    if let Some(now) = now {
        groups.entry(now.clone()).or_default().insert(name.to_owned());
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

/// The PersistentVolumes and storage classes that have been seen.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// PersistentVolumes by name.
    volumes: BTreeMap<String, Volume>,
    /// The names of the PersistentVolumes of each disk.
    of_disk: Groups,
    /// The names of the PersistentVolumes to delete with each MiniCluster, by its uid.
    of_owner: Groups,
    /// A list of PersistentVolumes was complete once.
    has_listed_volumes: bool,
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
    /// Stores the current state of the PersistentVolume `name`. If its disk has changed, returns the MiniClusters whose
    /// PersistentVolumes have the previous or the new disk.
    pub(super) fn update_volume(&mut self, name: &str, volume: Volume) -> Vec<Key> {
        let before = self.volumes.remove(name).unwrap_or_default();
        let texts = [&before, &volume].map(|volume| volume.disk.as_ref().map(|disk| &disk.text));
        regroup(&mut self.of_disk, name, texts[0], texts[1]);
        let owners = [&before, &volume].map(|volume| volume.owned.as_ref().map(|owned| &owned.owner));
        regroup(&mut self.of_owner, name, owners[0], owners[1]);
        if volume.disk.is_some() || volume.owned.is_some() {
            self.volumes.insert(name.to_owned(), volume.clone());
        }
        if before.disk == volume.disk {
            return Vec::new();
        }
        let texts = BTreeSet::from(texts).into_iter().flatten();
        let names = texts.filter_map(|text| self.of_disk.get(text)).flatten();
        names
            .filter_map(|name| Some(self.volumes.get(name)?.disk.as_ref()?.cluster.clone()))
            .collect()
    }

    /// Forgets the PersistentVolumes that are not in a complete list. Returns all MiniClusters with a disk: the first
    /// list may let `disks_of` answer for all of them.
    pub(super) fn keep_volumes(&mut self, listed: &HashSet<String>) -> Vec<Key> {
        let is_gone = |name: &&String| !listed.contains(*name);
        let gone: Vec<String> = self.volumes.keys().filter(is_gone).cloned().collect();
        for name in gone {
            self.update_volume(&name, Volume::default());
        }
        self.has_listed_volumes = true;
        self.clusters()
    }

    /// The PersistentVolumes to delete with the MiniCluster whose uid is `owner`.
    pub(super) fn of_owner(&self, owner: &str) -> Vec<OwnedVolume> {
        let names = self.of_owner.get(owner).into_iter().flatten();
        names
            .filter_map(|name| self.volumes.get(name)?.owned.clone())
            .collect()
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
        let disks = self.volumes.values().filter_map(|volume| volume.disk.as_ref());
        disks.map(|disk| disk.cluster.clone()).collect()
    }

    /// The CSI volumes of a MiniCluster. None: PersistentVolumes or storage classes have not been listed yet.
    pub(super) fn disks_of(&self, cluster: &ValidMiniCluster) -> Option<Vec<DiskSeen>> {
        if !self.has_listed_volumes || self.classes == Classes::NotListed {
            return None;
        }
        let disks = cluster.volumes.iter().filter_map(|volume| {
            let (driver, handle) = volume.source.disk()?;
            let text = disk(driver, handle);
            let mut names = self.of_disk.get(&text).into_iter().flatten();
            let other = names.find(|name| **name != volume.name);
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

    fn disk_of(cluster: &str, text: &str) -> Volume {
        Volume {
            disk: Some(Disk {
                text: text.into(),
                cluster: Key::new("ns", cluster),
            }),
            owned: None,
        }
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
        let owned = |name: &str, owner: &str| Volume {
            disk: None,
            owned: Some(orphan(name, owner)),
        };
        let mut storage = Storage::default();
        for (name, owner) in [("a", "1"), ("b", "1"), ("c", "2")] {
            storage.update_volume(name, owned(name, owner));
        }
        storage.update_volume("b", owned("b", "2"));
        assert_eq!(storage.of_owner("1"), [orphan("a", "1")]);
        storage.keep_volumes(&HashSet::from(["b".to_owned()]));
        assert_eq!(
            (storage.of_owner("1"), storage.of_owner("2")),
            (Vec::new(), vec![orphan("b", "2")])
        );
        storage.update_volume("b", Volume::default());
        assert!(storage.of_owner.is_empty());
    }

    #[test]
    fn clusters_sharing_a_disk_are_notified_of_each_change() {
        let mut storage = Storage::default();
        assert_eq!(names(&storage.update_volume("pv-a", disk_of("a", "d 1"))), ["a"]);
        assert_eq!(names(&storage.update_volume("pv-b", disk_of("b", "d 2"))), ["b"]);
        assert_eq!(
            names(&storage.update_volume("pv-c", disk_of("c", "d 1"))),
            ["a", "c"]
        );
        assert!(
            storage.update_volume("pv-c", disk_of("c", "d 1")).is_empty(),
            "no news"
        );
        assert_eq!(names(&storage.update_volume("pv-c", Volume::default())), ["a"]);
        assert!(storage.update_volume("unknown", Volume::default()).is_empty());
        assert_eq!(
            names(&storage.keep_volumes(&HashSet::from(["pv-a".to_owned()]))),
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
            assert_eq!(storage.update_volume(name, disk_of("mc", name)).len(), 1);
        }
        storage.keep_volumes(&HashSet::new());
        assert!(storage.volumes.is_empty() && storage.of_disk.is_empty());
        assert!(begin.elapsed().as_secs() < 20, "it took {:?}", begin.elapsed());
    }

    #[test]
    fn shared_disks_are_unknown_until_all_is_listed() {
        let spec = "volumes: {data: {storageClass: fast, driver: d, volumeHandle: h, secret: s}, here: {path: /d}}\n\
                    containers: [{image: a, command: b, volumes: {data: {path: /d}, here: {path: /e}}}]";
        let cluster = crate::testing::cluster(spec);
        let mut storage = Storage::default();
        storage.update_volume("ns.mc.data", disk_of("mc", "d h"));
        storage.update_volume("other", disk_of("other", "d h"));
        assert_eq!(storage.disks_of(&cluster), None);
        storage.keep_volumes(&HashSet::from(["ns.mc.data".to_owned(), "other".to_owned()]));
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
        storage.update_volume("other", Volume::default());
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
