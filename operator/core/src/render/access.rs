//! The fsGroup and the file mode with which the runner can read the curve certificate, whatever its user is, and as few
//! others as possible.
//!
//! The kubelet writes a Secret's files as root, with the volume's mode. A runner that is not root can read
//! them through the pod's fsGroup: the kubelet gives the files that group, and the container belongs to it.
//! But an fsGroup also makes the kubelet change the group of everything on PersistentVolumeClaims and CSI
//! volumes, which are the user's data. So:
//!
//! | the runner | the pod has | then |
//! |---|---|---|
//! | any | an fsGroup from the spec | nothing is changed: the Secret's files get that group too |
//! | runs as root, according to the spec | any | nothing is changed: root can read mode 0400 |
//! | not root, or unknown (the image decides) | no claim, no CSI volume | fsGroup 65532 |
//! | not root, or unknown | a claim or a CSI volume | mode 0444 inside this one container |

use flux_shared::validate::{ValidMiniCluster, VolumeSource};
use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext};

/// The fsGroup if the spec has none. By convention this group is `nonroot`, and has no members in images.
const GROUP: i64 = 65532;
const OWNER_ONLY: i32 = 0o400;
const EVERYONE: i32 = 0o444;

/// How the pod's processes get access to its Secrets.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// None: the pod's fsGroup is left as it is.
    pub(super) fs_group: Option<i64>,
    /// Mode of the files of Secrets.
    pub(super) mode: i32,
}

/// Whether the pod mounts data whose ownership an fsGroup would change.
pub(super) fn holds_user_data(cluster: &ValidMiniCluster) -> bool {
    let sidecars = cluster.sidecars.iter().map(|sidecar| &sidecar.container);
    let mut mounts = sidecars
        .chain([&cluster.runner.container])
        .flat_map(|container| &container.mounts);
    mounts.any(|mount| matches!(mount.source, VolumeSource::Claim(_) | VolumeSource::Csi { .. }))
}

/// fsGroup and mode, by the table in this module's doc.
pub(super) fn decide(
    pod: Option<&PodSecurityContext>,
    runner: Option<&SecurityContext>,
    holds_user_data: bool,
) -> Access {
    let user = runner
        .and_then(|context| context.run_as_user)
        .or(pod.and_then(|context| context.run_as_user));
    if pod.is_some_and(|context| context.fs_group.is_some()) || user == Some(0) {
        return Access {
            fs_group: None,
            mode: OWNER_ONLY,
        };
    }
    if !holds_user_data {
        Access {
            fs_group: Some(GROUP),
            mode: OWNER_ONLY,
        }
    } else {
        Access {
            fs_group: None,
            mode: EVERYONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_is_readable_and_no_more() {
        let pod = |user, group| PodSecurityContext {
            run_as_user: user,
            fs_group: group,
            ..Default::default()
        };
        let runner = |user| SecurityContext {
            run_as_user: user,
            ..Default::default()
        };
        let (group, owner, everyone) = (Some(GROUP), OWNER_ONLY, EVERYONE);
        for (pod, runner, data, fs_group, mode) in [
            (pod(None, None), runner(None), false, group, owner),
            (pod(None, None), runner(None), true, None, everyone),
            (pod(None, None), runner(Some(0)), false, None, owner),
            (pod(Some(0), None), runner(None), true, None, owner),
            (pod(Some(0), None), runner(Some(1000)), false, group, owner),
            (pod(Some(1000), None), runner(Some(0)), true, None, owner),
            (pod(Some(1000), None), runner(None), true, None, everyone),
            (pod(None, Some(7)), runner(Some(1000)), true, None, owner),
            (pod(None, Some(7)), runner(None), false, None, owner),
        ] {
            let found = decide(Some(&pod), Some(&runner), data);
            assert_eq!(found, Access { fs_group, mode }, "{pod:?} {runner:?} {data}");
        }
        assert_eq!(
            decide(None, None, false),
            Access {
                fs_group: group,
                mode: owner
            }
        );
    }
}
