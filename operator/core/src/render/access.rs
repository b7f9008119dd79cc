//! Decides the fsGroup and the file modes of the runner's Secrets (such as the curve certificate). The runner can read
//! them, whatever its user is, and as few other users as possible can. Only the runner's container mounts these Secrets.
//!
//! The kubelet writes a Secret's files as root, with the volume's mode. A runner that is not root can read
//! them through the pod's fsGroup: the kubelet gives the files that group and lets it read them (mode 0400 becomes
//! 0440), and the container belongs to it.
//! But an fsGroup also makes the kubelet change the group of everything on PersistentVolumeClaims, CSI volumes and
//! other storage, which is the user's data. Such volumes come from the containers and from `spec.podTemplate`. So:
//!
//! | the runner | the pod has | then |
//! |---|---|---|
//! | any | an fsGroup from the spec | nothing is changed: the Secret's files get that group too |
//! | runs as root, according to the spec | any | nothing is changed: root can read mode 0400 |
//! | not root, or unknown (the image decides) | no volume with user data | fsGroup 65532 |
//! | not root, or unknown | a volume with user data | mode 0444 inside this one container |
//!
//! If the runner is root, it may have processes of other users: `fluxUser` and `spec.users`. A runner whose user is
//! unknown is usually root. So two rules keep Secrets that only root reads (passwords, the munge key) from them.
//! (With the RESTful API, the runner may be any user, so `spec.users` do not count.)
//!
//! - The agent passes the pod's groups on to `fluxUser`. So with this user and such a Secret, the fsGroup is
//!   [`SECRETS_GROUP`], which the agent does not pass on.
//! - Beside user data, these Secrets have mode 0400 if the runner's user is unknown and there are other users. With
//!   `spec.users`, which needs root, the certificate has it too.

use flux_shared::names::SECRETS_GROUP;
use flux_shared::overlay::Overlay;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext, Volume};
use serde_json::{Value, json};

/// The usual fsGroup if the spec has none. By convention this group is `nonroot`, and has no members in images.
const GROUP: i64 = 65532;
const OWNER_ONLY: i32 = 0o400;
const EVERYONE: i32 = 0o444;
/// Sources of volumes in which an fsGroup changes no user data: the kubelet makes their files for the pod, or leaves
/// their ownership as it is.
const UNCHANGED: [&str; 8] = [
    "configMap",
    "downwardAPI",
    "emptyDir",
    "hostPath",
    "image",
    "nfs",
    "projected",
    "secret",
];

/// How the pod's processes get access to its Secrets.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Access {
    /// None: the pod's fsGroup is left as it is.
    pub(super) fs_group: Option<i64>,
    /// Mode of the curve certificate.
    pub(super) curve: i32,
    /// Mode of the passwords of `spec.users`.
    pub(super) users: i32,
    /// Mode of the credentials of the RESTful API.
    pub(super) restful: i32,
    /// Mode of the munge key.
    pub(super) munge: i32,
}

impl Access {
    fn equal(fs_group: Option<i64>, mode: i32) -> Access {
        Access {
            fs_group,
            curve: mode,
            users: mode,
            restful: mode,
            munge: mode,
        }
    }
}

/// The users of the runner's processes that a spec names, and the Secrets of root.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Readers {
    /// `fluxUser`.
    has_flux_user: bool,
    /// `spec.users` without the RESTful API: only root reads their passwords. (With it, the runner, of any user, copies
    /// them for the API's server.)
    has_passwords_of_root: bool,
    has_munge_key: bool,
}

impl Readers {
    pub(super) fn of(cluster: &ValidMiniCluster) -> Readers {
        Readers {
            has_flux_user: cluster.runner.user.is_some(),
            has_passwords_of_root: !cluster.users.is_empty() && cluster.restful.is_none(),
            has_munge_key: cluster.flux.munge_secret.is_some(),
        }
    }
}

/// Whether the pod has data whose ownership an fsGroup would change. `volumes`: the user's, before the overlay.
pub(super) fn holds_user_data(
    volumes: &[Volume],
    overlay: Option<&Overlay>,
) -> Result<bool, serde_json::Error> {
    let mut template = json!({ "spec": { "volumes": serde_json::to_value(volumes)? } });
    if let Some(overlay) = overlay {
        template = overlay.over(template);
    }
    let volumes = template.pointer("/spec/volumes").and_then(Value::as_array);
    let mut fields = volumes
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .flat_map(|volume| volume.keys());
    // A source that is not known here may be storage.
    Ok(fields.any(|field| field != "name" && !UNCHANGED.contains(&field.as_str())))
}

/// fsGroup and modes, by the table in this module's doc.
pub(super) fn decide(
    pod: Option<&PodSecurityContext>,
    runner: Option<&SecurityContext>,
    holds_user_data: bool,
    readers: Readers,
) -> Access {
    let user = runner
        .and_then(|context| context.run_as_user)
        .or(pod.and_then(|context| context.run_as_user));
    if pod.is_some_and(|context| context.fs_group.is_some()) || user == Some(0) {
        return Access::equal(None, OWNER_ONLY);
    }
    let has_secrets_of_root = readers.has_passwords_of_root || readers.has_munge_key;
    if !holds_user_data {
        let is_group_withheld = user.is_none() && readers.has_flux_user && has_secrets_of_root;
        let group = if is_group_withheld {
            i64::from(SECRETS_GROUP)
        } else {
            GROUP
        };
        return Access::equal(Some(group), OWNER_ONLY);
    }
    let mut access = Access::equal(None, EVERYONE);
    // With a known user, no process has another one.
    if user.is_none() {
        if readers.has_passwords_of_root {
            (access.curve, access.users) = (OWNER_ONLY, OWNER_ONLY);
        }
        if readers.has_passwords_of_root || readers.has_flux_user {
            access.munge = OWNER_ONLY;
        }
    }
    access
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_readable_by_the_runner_and_few_others() {
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
            let found = decide(Some(&pod), Some(&runner), data, Readers::default());
            assert_eq!(found, Access::equal(fs_group, mode), "{pod:?} {runner:?} {data}");
        }
        assert_eq!(
            decide(None, None, false, Readers::default()),
            Access::equal(group, owner)
        );
    }
}
