//! Checks the volumes of containers: each has one source.

use std::collections::BTreeMap;

use super::fields::{absolute, drop_empty, is_given, object_name};
use super::flux::OWN_VOLUMES;
use super::report::Report;
use super::{Mount, ViewContainer, VolumeSource};
use crate::crd::v1alpha2::{Container, ExistingVolume, MadeVolume, Volume};
use crate::names;
use crate::paths::{AGENT_FOLDER, SOFTWARE_DIR, SOFTWARE_STAGING, VIEW_IMAGE_MOUNT, is_within, own_folders};

/// Where empty directories are mounted that are in memory, or have no path.
const SHARED_MEMORY: &str = "/dev/shm";

/// What the check of a container needs to know of the rest of the spec.
pub(super) struct Surroundings<'a> {
    /// Name of the MiniCluster.
    pub(super) cluster: &'a str,
    pub(super) view: &'a ViewContainer,
    /// `spec.volumes`.
    pub(super) volumes: &'a BTreeMap<String, MadeVolume>,
}

/// The mounts of a container: its `volumes` and its `existingVolumes`, checked.
pub(super) fn check(
    field: &str,
    container: &Container,
    surroundings: &Surroundings<'_>,
    report: &mut Report,
) -> Vec<Mount> {
    let mut mounts: Vec<Mount> = Vec::new();
    let existing = container
        .existing_volumes
        .iter()
        .map(|(name, volume)| (name, existing(volume), "existingVolumes"));
    let volumes = container
        .volumes
        .iter()
        .map(|(name, volume)| (name, given_fields(volume), "volumes"));
    for (name, volume, list) in volumes.chain(existing) {
        let field = format!("{field}.{list}[{name}]");
        check_name(&field, name, report);
        // The view's volume has the name of its container.
        if *name == surroundings.view.name {
            report.problem(&field, "this name is reserved for the operator: choose another");
        }
        if mounts.iter().any(|mount| mount.name == *name) {
            report.problem(&field, "this name is in volumes as well: choose another");
        }
        let is_of_spec = list == "volumes" && surroundings.volumes.contains_key(name);
        let source = if is_of_spec {
            claim_of(&field, name, &volume, surroundings, report)
        } else {
            source(&field, &volume, list, report)
        };
        let Some(source) = source else { continue };
        let Some(path) = mount_path(&field, &volume, &source, report) else {
            continue;
        };
        let view = surroundings.view;
        // Without a view, the operator mounts nothing at /opt/software. The user may mount folders in it, but not at
        // it.
        let is_reserved = |folder: &&str| view.enabled || *folder != SOFTWARE_DIR || path == SOFTWARE_DIR;
        if is_within(
            &path,
            own_folders(&view.mount_path).into_iter().filter(is_reserved),
        ) {
            let why = format!("{path} is a mount path of the operator, or within one: choose another");
            report.problem(format!("{field}.path"), why);
        }
        if let Some(other) = mounts.iter().find(|mount| mount.path == path) {
            report.problem(
                format!("{field}.path"),
                format!("{path} is already the path of volume {}", other.name),
            );
        }
        mounts.push(Mount {
            name: name.clone(),
            path,
            read_only: volume.read_only,
            source,
        });
    }
    mounts
}

/// Reports mounts above folders of the operator, which are then mounted in the user's volume. `mounts`: those of
/// `container`, which is the runner or a sidecar. (The services pod has no such folders.)
pub(super) fn check_above_own(
    field: &str,
    container: &Container,
    mounts: &[Mount],
    view: &ViewContainer,
    report: &mut Report,
) {
    // The operator mounts these in any case, and those of `of_view` only for a view.
    let always = [view.mount_path.as_str(), AGENT_FOLDER];
    let of_view: &[&str] = if view.enabled {
        &[SOFTWARE_DIR, SOFTWARE_STAGING, VIEW_IMAGE_MOUNT]
    } else {
        &[]
    };
    let own: Vec<&str> = always.iter().chain(of_view).copied().collect();
    for mount in mounts {
        let path = mount.path.as_str();
        // A mount at such a folder or within it is reported by `check`.
        let is_inside = |folder: &&str| is_within(folder, [path]) && !is_within(path, [*folder]);
        let inside: Vec<&str> = own.iter().copied().filter(is_inside).collect();
        if inside.is_empty() {
            continue;
        }
        let list = if container.volumes.contains_key(&mount.name) {
            "volumes"
        } else {
            "existingVolumes"
        };
        let (field, folders) = (format!("{field}.{list}[{}].path", mount.name), inside.join(", "));
        let is_always_read_only = matches!(
            mount.source,
            VolumeSource::ConfigMap { .. } | VolumeSource::Secret { .. }
        );
        if is_always_read_only && inside.iter().any(|folder| always.contains(folder)) {
            let why = format!(
                "the operator mounts {folders} within {path}, which fails within a ConfigMap or a Secret: choose another path"
            );
            report.problem(field, why);
        } else if !matches!(mount.source, VolumeSource::EmptyDir { .. }) {
            let why = format!(
                "the operator mounts {folders} within {path}: this hides the volume's own folder of that name, or creates one in the volume. If it is missing and the volume is read-only, the pod does not start. To avoid this, choose another path"
            );
            report.notice(field, why);
        }
    }
}

/// Checks a volume's name, in a container or in the spec.
pub(super) fn check_name(field: &str, name: &str, report: &mut Report) {
    if !names::is_dns_label(name) {
        report.problem(
            field,
            "the volume's name must be lower case letters, digits and `-`, 63 at most",
        );
    }
    if OWN_VOLUMES.contains(&name) {
        report.problem(field, "this name is reserved for the operator: choose another");
    }
}

/// The volume with None for empty texts, so that `claim_of` can compare it with one that has only `path` and
/// `readOnly`.
fn given_fields(volume: &Volume) -> Volume {
    let mut volume = volume.clone();
    drop_empty(&mut [
        &mut volume.path,
        &mut volume.host_path,
        &mut volume.empty_dir_medium,
        &mut volume.claim_name,
        &mut volume.config_map_name,
        &mut volume.secret_name,
        &mut volume.csi_driver,
    ]);
    volume.empty_dir_size_limit = volume.empty_dir_size_limit.filter(|limit| !limit.0.is_empty());
    volume
}

/// An entry of `existingVolumes` as one of `volumes`.
fn existing(volume: &ExistingVolume) -> Volume {
    Volume {
        path: volume.path.clone(),
        claim_name: volume.claim_name.clone(),
        config_map_name: volume.config_map_name.clone(),
        secret_name: volume.secret_name.clone(),
        items: volume.items.clone(),
        read_only: volume.read_only,
        ..Volume::default()
    }
}

/// The source of a volume of `spec.volumes`: its claim.
fn claim_of(
    field: &str,
    name: &str,
    volume: &Volume,
    surroundings: &Surroundings<'_>,
    report: &mut Report,
) -> Option<VolumeSource> {
    let plain = Volume {
        path: volume.path.clone(),
        read_only: volume.read_only,
        ..Volume::default()
    };
    if *volume != plain {
        report.problem(
            field,
            format!(
                "is spec.volumes[{name}], so it has path and readOnly only: choose another name, or remove that one"
            ),
        );
        return None;
    }
    Some(VolumeSource::Claim(names::volume_claim(
        surroundings.cluster,
        name,
    )))
}

/// The source of a volume, checked. `list`: the field of the container that has the volume.
fn source(field: &str, volume: &Volume, list: &str, report: &mut Report) -> Option<VolumeSource> {
    let sources = [
        ("hostPath", is_given(&volume.host_path)),
        ("emptyDir", volume.empty_dir),
        ("claimName", is_given(&volume.claim_name)),
        ("configMapName", is_given(&volume.config_map_name)),
        ("secretName", is_given(&volume.secret_name)),
        ("csiDriver", is_given(&volume.csi_driver)),
    ];
    let named: Vec<&str> = sources
        .iter()
        .filter(|(_, is_set)| *is_set)
        .map(|(name, _)| *name)
        .collect();
    if named.len() != 1 {
        let what = if named.is_empty() {
            "has no source".to_owned()
        } else {
            format!("has {}", named.join(" and "))
        };
        let names = match list {
            "existingVolumes" => "claimName, configMapName, secretName".to_owned(),
            _ => sources.map(|(name, _)| name).join(", "),
        };
        let elsewhere = if list == "volumes" && named.is_empty() {
            ", or define a volume of this name in spec.volumes"
        } else {
            ""
        };
        report.problem(field, format!("{what}: set exactly one of {names}{elsewhere}"));
        return None;
    }
    let only_with = |is_set: bool, key: &str, sources: &[&str], report: &mut Report| {
        if is_set && !sources.contains(&named[0]) {
            report.problem(
                format!("{field}.{key}"),
                format!("goes with {} only", sources.join(" or ")),
            );
        }
    };
    only_with(
        is_given(&volume.empty_dir_medium),
        "emptyDirMedium",
        &["emptyDir"],
        report,
    );
    only_with(
        volume.empty_dir_size_limit.is_some(),
        "emptyDirSizeLimit",
        &["emptyDir"],
        report,
    );
    only_with(
        !volume.items.is_empty(),
        "items",
        &["configMapName", "secretName"],
        report,
    );
    only_with(
        !volume.csi_driver_attributes.is_empty(),
        "csiDriverAttributes",
        &["csiDriver"],
        report,
    );
    for (key, path) in &volume.items {
        if path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..") {
            report.problem(
                format!("{field}.items[{key}]"),
                "must be a path below the mount, without `..`",
            );
        }
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Some(match named[0] {
        "hostPath" => VolumeSource::HostPath(
            report.take(format!("{field}.hostPath"), host_path(&text(&volume.host_path)))?,
        ),
        "emptyDir" => empty_dir(field, volume, report)?,
        "claimName" => VolumeSource::Claim(named_object(field, "claimName", &volume.claim_name, report)?),
        "configMapName" => VolumeSource::ConfigMap {
            name: named_object(field, "configMapName", &volume.config_map_name, report)?,
            items: volume.items.clone(),
        },
        "secretName" => VolumeSource::Secret {
            name: named_object(field, "secretName", &volume.secret_name, report)?,
            items: volume.items.clone(),
        },
        _ => VolumeSource::Csi {
            driver: named_object(field, "csiDriver", &volume.csi_driver, report)?,
            attributes: volume.csi_driver_attributes.clone(),
            read_only: volume.read_only,
        },
    })
}

/// Checks the path of a directory of the node.
pub(super) fn host_path(path: &str) -> Result<String, String> {
    if path.starts_with('/') && !path.split('/').any(|part| part == "..") {
        Ok(path.to_owned())
    } else {
        Err(format!("`{path}` must be an absolute path without `..`"))
    }
}

/// Checks the name of an object in the field `key` of the volume.
fn named_object(field: &str, key: &str, name: &Option<String>, report: &mut Report) -> Option<String> {
    let name = name.clone().unwrap_or_default();
    report
        .take(format!("{field}.{key}"), object_name(&name))
        .map(|()| name)
}

fn empty_dir(field: &str, volume: &Volume, report: &mut Report) -> Option<VolumeSource> {
    if let Some(limit) = &volume.empty_dir_size_limit {
        report.take(format!("{field}.emptyDirSizeLimit"), limit.check());
    }
    let medium = volume.empty_dir_medium.as_deref().unwrap_or_default();
    let memory = medium.eq_ignore_ascii_case("memory");
    if !memory && !medium.is_empty() {
        report.problem(
            format!("{field}.emptyDirMedium"),
            format!("is `{medium}`, must be memory, or left out"),
        );
        return None;
    }
    Some(VolumeSource::EmptyDir {
        memory,
        size_limit: volume.empty_dir_size_limit.clone(),
    })
}

/// Where the volume is mounted, checked. An empty directory without a path is at [`SHARED_MEMORY`]; one in memory is
/// always there.
fn mount_path(field: &str, volume: &Volume, source: &VolumeSource, report: &mut Report) -> Option<String> {
    let path = volume.path.as_deref().unwrap_or_default();
    match source {
        VolumeSource::EmptyDir { memory: true, .. } => {
            if !path.is_empty() && report.take(format!("{field}.path"), absolute(path))? != SHARED_MEMORY {
                report.notice(
                    format!("{field}.path"),
                    format!("is not used: memory is mounted at {SHARED_MEMORY}"),
                );
            }
            Some(SHARED_MEMORY.to_owned())
        }
        VolumeSource::EmptyDir { memory: false, .. } if path.is_empty() => Some(SHARED_MEMORY.to_owned()),
        _ if path.is_empty() => {
            report.problem(
                format!("{field}.path"),
                "is needed: where the volume is mounted in the container",
            );
            None
        }
        _ => report.take(format!("{field}.path"), absolute(path)),
    }
}
