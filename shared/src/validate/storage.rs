//! Checks `spec.volumes`: for each, the operator creates a PersistentVolume and a claim.

use std::collections::BTreeMap;

use super::fields::{given, labels, object_name};
use super::report::Report;
use super::{PersistentSource, PersistentVolume, volumes};
use crate::crd::v1alpha2::{Container, HOST_PATH_CLASS, MadeVolume, MiniClusterSpec};
use crate::names;

/// The volumes of `spec.volumes`, checked. `cluster`: the MiniCluster's name.
pub(super) fn check(
    spec: &MiniClusterSpec,
    cluster: &str,
    namespace: &str,
    report: &mut Report,
) -> Vec<PersistentVolume> {
    let all = spec.containers.iter().chain(&spec.services);
    let mounted: Vec<&String> = all
        .flat_map(|container: &Container| container.volumes.keys())
        .collect();
    let mut volumes = Vec::new();
    for (key, volume) in &spec.volumes {
        let volume = &with_defaults(volume);
        let field = format!("spec.volumes[{key}]");
        volumes::check_name(&field, key, report);
        if !mounted.contains(&key) {
            report.notice(&field, "no container mounts it: name it in a container's volumes");
        }
        let Some(source) = source(&field, volume, report) else {
            continue;
        };
        report.take(
            format!("{field}.storageClass"),
            object_name(&volume.storage_class),
        );
        report.take(format!("{field}.capacity"), capacity(volume));
        labels(&format!("{field}.labels"), &volume.labels, report);
        annotations(&format!("{field}.annotations"), &volume.annotations, report);
        annotations(
            &format!("{field}.claimAnnotations"),
            &volume.claim_annotations,
            report,
        );
        volumes.push(PersistentVolume {
            key: key.clone(),
            name: names::persistent_volume(namespace, cluster, key),
            claim: names::volume_claim(cluster, key),
            storage_class: volume.storage_class.clone(),
            capacity: volume.capacity.clone(),
            labels: volume.labels.clone(),
            annotations: volume.annotations.clone(),
            claim_annotations: volume.claim_annotations.clone(),
            delete: volume.delete,
            source,
        });
    }
    check_handles(&volumes, report);
    volumes
}

/// The volume with its defaults in place of empty texts, which clients with Go types write for fields that are not set.
fn with_defaults(volume: &MadeVolume) -> MadeVolume {
    let (mut volume, usual) = (volume.clone(), MadeVolume::default());
    if volume.storage_class.is_empty() {
        volume.storage_class = usual.storage_class;
    }
    if volume.capacity.0.is_empty() {
        volume.capacity = usual.capacity;
    }
    if volume.secret_namespace.is_empty() {
        volume.secret_namespace = usual.secret_namespace;
    }
    volume
}

/// Checks that no two volumes have the same driver and handle: the kubelet (1.31) would mount them once, with the
/// attributes of one of them, or never.
fn check_handles(volumes: &[PersistentVolume], report: &mut Report) {
    for (i, volume) in volumes.iter().enumerate() {
        let Some((driver, handle)) = volume.source.disk() else {
            continue;
        };
        if let Some(other) = volumes[..i]
            .iter()
            .find(|other| other.source.disk() == Some((driver, handle)))
        {
            report.problem(
                format!("spec.volumes[{}].volumeHandle", volume.key),
                format!(
                    "is `{handle}`, as that of spec.volumes[{}] of the same driver: each needs its own (the default is the storage class)",
                    other.key
                ),
            );
        }
    }
}

/// Checks that the capacity is a quantity greater than 0.
fn capacity(volume: &MadeVolume) -> Result<(), String> {
    volume.capacity.check()?;
    let text = &volume.capacity.0;
    let number = text
        .split(|c: char| c.is_ascii_alphabetic())
        .next()
        .unwrap_or_default();
    if number.starts_with('-') || !number.contains(|c: char| matches!(c, '1'..='9')) {
        Err(format!("`{text}` must be greater than 0"))
    } else {
        Ok(())
    }
}

fn annotations(field: &str, annotations: &BTreeMap<String, String>, report: &mut Report) {
    for key in annotations.keys().filter(|key| !names::is_annotation_key(key)) {
        report.problem(format!("{field}[{key}]"), "is not an annotation's key");
    }
}

/// The directory or CSI volume of the PersistentVolume, checked. None: a field that it needs is missing or wrong.
fn source(field: &str, volume: &MadeVolume, report: &mut Report) -> Option<PersistentSource> {
    if volume.storage_class == HOST_PATH_CLASS {
        for (name, is_set) in [
            ("driver", given(&volume.driver).is_some()),
            ("volumeHandle", given(&volume.volume_handle).is_some()),
            ("volumeName", given(&volume.volume_name).is_some()),
            ("attributes", !volume.attributes.is_empty()),
            ("secret", given(&volume.secret).is_some()),
        ] {
            if is_set {
                report.problem(
                    format!("{field}.{name}"),
                    "is for CSI volumes: set storageClass, which is hostpath (a directory of the node)",
                );
            }
        }
        let path = given(&volume.path).unwrap_or_default();
        let path = report.take(format!("{field}.path"), volumes::host_path(&path))?;
        return Some(PersistentSource::HostPath(path));
    }
    // A CSI volume may have a `path` without effect: early schemas of the Go operator required one of every volume.
    let class = &volume.storage_class;
    let driver = given(&volume.driver);
    let secret = given(&volume.secret);
    if driver.is_none() {
        report.problem(
            format!("{field}.driver"),
            format!("is needed for storageClass {class}: the CSI driver that provides the volume"),
        );
    }
    for (name, value) in [("driver", &driver), ("secret", &secret)] {
        if let Some(value) = value {
            report.take(format!("{field}.{name}"), object_name(value));
        }
    }
    report.take(
        format!("{field}.secretNamespace"),
        object_name(&volume.secret_namespace),
    );
    let handle = match (given(&volume.volume_handle), given(&volume.volume_name)) {
        (Some(handle), Some(other)) if handle != other => {
            report.problem(
                format!("{field}.volumeName"),
                "is another spelling of volumeHandle: set only one",
            );
            handle
        }
        (handle, other) => handle.or(other).unwrap_or_else(|| class.clone()),
    };
    Some(PersistentSource::Csi {
        driver: driver?,
        handle,
        attributes: volume.attributes.clone(),
        secret: secret.map(|secret| (secret, volume.secret_namespace.clone())),
    })
}
