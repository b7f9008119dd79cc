//! The pod's volumes: the operator's own, and the user's. Names of the user's volumes are only unique within their
//! container.

use std::collections::{BTreeMap, BTreeSet};

use flux_shared::names;
use flux_shared::overlay::Overlay;
use flux_shared::paths::{self, PodPaths};
use flux_shared::validate::{
    Mount, PullPolicy, ValidContainer, ValidMiniCluster, ValidSidecar, ViewContainer, VolumeSource,
};
use k8s_openapi::api::core::v1::{
    CSIVolumeSource, ConfigMapProjection, ConfigMapVolumeSource, DownwardAPIProjection,
    DownwardAPIVolumeFile, EmptyDirVolumeSource, HostPathVolumeSource, ImageVolumeSource, KeyToPath,
    ObjectFieldSelector, PersistentVolumeClaimVolumeSource, PodSecurityContext, ProjectedVolumeSource,
    SecretVolumeSource, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::access::Access;
use super::view::ViewFrom;
use super::{Options, none_if_empty};
use crate::labels;

/// Volume for the agent's binary.
const AGENT: &str = "flux-agent-bin";
/// Volume for the files that the runner's agent writes.
const CONFIG: &str = "flux-agent-config";
/// Volume that the containers see as `/opt/software`.
const SOFTWARE: &str = "flux-software";
/// Volume with the view's image.
pub const IMAGE: &str = "flux-view-image";
/// Volume with the runner's image. With a mounted view, the agent's init container reads this image's `/opt/software`,
/// because the containers see its packages and the view's in one folder.
const RUNNER_IMAGE: &str = "flux-runner-image";
/// Volume with the AgentSpec and the operator's request to end.
const SPEC: &str = "flux-agent-spec";
/// Volume with the curve certificate, by which brokers recognise each other.
const CURVE: &str = "flux-agent-curve";
/// Volume with the passwords of `spec.users`.
const USERS: &str = "flux-agent-users";
/// Volume with the credentials of the Flux RESTful API.
const RESTFUL: &str = "flux-agent-restful";
/// Volume for the home of containers whose image sets no usable HOME.
const HOME: &str = "flux-operator-home";
/// Volume with the user's Secret `flux.mungeSecret`.
const MUNGE: &str = "flux-munge";
/// The user of the agent's image (`images/agent.Containerfile`).
const AGENT_USER: i64 = 63617;

/// The user's volumes of a pod.
#[derive(Debug, Default)]
pub(super) struct UserVolumes {
    /// Each volume's name in the pod, and its source.
    volumes: Vec<(String, VolumeSource)>,
    /// The volume's name in the pod, by the container's name and the volume's key in it.
    names: BTreeMap<(String, String), String>,
    /// The claims that a container may write.
    written_claims: BTreeSet<String>,
}

impl UserVolumes {
    /// Collects the volumes. If two containers use the same key with the same source, they share one volume. If the
    /// sources differ, the second volume gets another name. No volume gets the name of `view`'s own. (The validation
    /// rejects the names of the operator's other volumes.)
    pub(super) fn of<'a>(
        view: &ViewContainer,
        containers: impl IntoIterator<Item = &'a ValidContainer>,
    ) -> UserVolumes {
        let mut all = UserVolumes::default();
        for container in containers {
            for mount in &container.mounts {
                let name = all.name_for(mount, &view.name);
                all.names
                    .insert((container.name.clone(), mount.name.clone()), name);
                if let VolumeSource::Claim(claim) = &mount.source
                    && !mount.read_only
                {
                    all.written_claims.insert(claim.clone());
                }
            }
        }
        all
    }

    /// The name in the pod of the volume that `mount` needs: any but `reserved`. Adds the volume if it is new.
    fn name_for(&mut self, mount: &Mount, reserved: &str) -> String {
        let mut number = 1;
        loop {
            let name = match number {
                1 => mount.name.clone(),
                _ => suffixed(&mount.name, number),
            };
            match self.volumes.iter_mut().find(|(other, _)| *other == name) {
                Some((_, source)) => {
                    if joins(source, &mount.source) {
                        return name;
                    }
                    number += 1;
                }
                None if name == reserved => number += 1,
                None => {
                    self.volumes.push((name.clone(), mount.source.clone()));
                    return name;
                }
            }
        }
    }

    /// The mounts of the user's volumes in this container.
    pub(super) fn mounts(&self, container: &ValidContainer) -> Vec<VolumeMount> {
        let name = |mount: &Mount| {
            self.names
                .get(&(container.name.clone(), mount.name.clone()))
                .cloned()
        };
        let mount = |mount: &Mount| VolumeMount {
            name: name(mount).unwrap_or_default(),
            mount_path: mount.path.clone(),
            read_only: mount.read_only.then_some(true),
            ..VolumeMount::default()
        };
        container.mounts.iter().map(mount).collect()
    }

    /// The volumes of a pod with this security context and overlay. With an fsGroup, the kubelet changes the group and
    /// modes of all files of a claim, unless the whole claim is read-only. So a claim that nothing in the pod may write
    /// is read-only.
    pub(super) fn volumes(
        &self,
        context: Option<&PodSecurityContext>,
        overlay: Option<&Overlay>,
    ) -> Vec<Volume> {
        let overlay = overlay.map(Overlay::value);
        let has_fs_group = context.is_some_and(|context| context.fs_group.is_some())
            || overlay.is_some_and(|overlay| overlay.pointer("/spec/securityContext/fsGroup").is_some());
        let is_read_only = |name: &str, claim: &str| {
            has_fs_group
                && !self.written_claims.contains(claim)
                && !overlay.is_some_and(|overlay| uses_volume(overlay, name, claim))
        };
        self.volumes
            .iter()
            .map(|(name, source)| {
                let mut volume = volume(name, source);
                if let Some(claim) = &mut volume.persistent_volume_claim {
                    claim.read_only = is_read_only(name, &claim.claim_name).then_some(true);
                }
                volume
            })
            .collect()
    }
}

/// Whether an overlay mounts the volume, or has a volume with this claim: both may be for writing.
fn uses_volume(overlay: &Value, name: &str, claim: &str) -> bool {
    fn items(value: Option<&Value>) -> impl Iterator<Item = &Value> {
        value.and_then(Value::as_array).into_iter().flatten()
    }
    let of_spec = |list: &str| items(overlay.pointer(&format!("/spec/{list}")));
    let mut mounts = ["containers", "initContainers"]
        .into_iter()
        .flat_map(of_spec)
        .flat_map(|container| items(container.get("volumeMounts")));
    mounts.any(|mount| mount["name"] == name)
        || of_spec("volumes").any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim)
}

/// Whether a mount of `other` uses the volume with the source `known`. A CSI driver mounts a volume read-only only if
/// every container does: then `known` stays read-only.
fn joins(known: &mut VolumeSource, other: &VolumeSource) -> bool {
    match (known, other) {
        (
            VolumeSource::Csi {
                driver,
                attributes,
                read_only,
            },
            VolumeSource::Csi {
                driver: other_driver,
                attributes: other_attributes,
                read_only: other_read_only,
            },
        ) => {
            let is_same = driver == other_driver && attributes == other_attributes;
            *read_only &= !is_same || *other_read_only;
            is_same
        }
        (known, other) => *known == *other,
    }
}

/// `NAME-NUMBER`, with `name` cut so that the result is a valid label.
fn suffixed(name: &str, number: usize) -> String {
    let suffix = format!("-{number}");
    let room = names::LABEL_MAX - suffix.len();
    let kept = name.get(..room).unwrap_or(name).trim_end_matches('-');
    format!("{kept}{suffix}")
}

fn volume(name: &str, source: &VolumeSource) -> Volume {
    let mut volume = Volume {
        name: name.to_owned(),
        ..Volume::default()
    };
    let key_paths = |items: &BTreeMap<String, String>| {
        let item = |(key, path): (&String, &String)| KeyToPath {
            key: key.clone(),
            path: path.clone(),
            mode: None,
        };
        none_if_empty(items.iter().map(item).collect())
    };
    match source {
        VolumeSource::HostPath(path) => {
            volume.host_path = Some(HostPathVolumeSource {
                path: path.clone(),
                // The API's documentation says that the directory must exist.
                type_: Some("Directory".into()),
            });
        }
        VolumeSource::EmptyDir { memory, size_limit } => {
            volume.empty_dir = Some(EmptyDirVolumeSource {
                medium: memory.then(|| "Memory".into()),
                size_limit: size_limit.as_ref().map(|limit| Quantity(limit.0.clone())),
            });
        }
        VolumeSource::Claim(claim) => {
            volume.persistent_volume_claim = Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.clone(),
                read_only: None,
            });
        }
        VolumeSource::ConfigMap { name, items } => {
            volume.config_map = Some(ConfigMapVolumeSource {
                name: name.clone(),
                items: key_paths(items),
                ..ConfigMapVolumeSource::default()
            });
        }
        VolumeSource::Secret { name, items } => {
            volume.secret = Some(SecretVolumeSource {
                secret_name: Some(name.clone()),
                items: key_paths(items),
                ..SecretVolumeSource::default()
            });
        }
        VolumeSource::Csi {
            driver,
            attributes,
            read_only,
        } => {
            volume.csi = Some(CSIVolumeSource {
                driver: driver.clone(),
                volume_attributes: (!attributes.is_empty()).then(|| attributes.clone()),
                read_only: read_only.then_some(true),
                ..CSIVolumeSource::default()
            });
        }
    }
    volume
}

/// The operator's own volumes. `uid`: the MiniCluster's.
pub(super) fn own(
    cluster: &ValidMiniCluster,
    options: &Options,
    uid: Option<&str>,
    view: ViewFrom,
    access: &Access,
) -> Vec<Volume> {
    let empty = |name: &str| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    let secret = |name: &str, secret: &str, mode: i32| Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(mode),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    };
    // The volume of the mount path has the name of the view's container.
    let mut volumes = vec![empty(AGENT), empty(&cluster.view.name), empty(CONFIG)];
    match view {
        ViewFrom::Copy => volumes.push(empty(SOFTWARE)),
        ViewFrom::ImageVolume => {
            let runner = &cluster.runner.container;
            volumes.extend([
                empty(SOFTWARE),
                image(
                    IMAGE,
                    super::view::image(cluster, options),
                    cluster.view.pull_policy,
                ),
                image(RUNNER_IMAGE, &runner.image, runner.pull_policy),
            ]);
        }
        ViewFrom::OwnImage | ViewFrom::Nowhere => {}
    }
    volumes.push(Volume {
        name: SPEC.into(),
        projected: Some(spec_and_end(cluster)),
        ..Volume::default()
    });
    let own_curve = names::curve_secret(&cluster.name, uid);
    volumes.push(secret(
        CURVE,
        cluster.flux.curve_cert_secret.as_ref().unwrap_or(&own_curve),
        access.curve,
    ));
    if !cluster.users.is_empty() {
        volumes.push(secret(
            USERS,
            &names::users_secret(&cluster.name, uid),
            access.users,
        ));
    }
    if cluster.restful.is_some() {
        volumes.push(secret(
            RESTFUL,
            &names::restful_secret(&cluster.name, uid),
            access.restful,
        ));
    }
    volumes.push(empty(HOME));
    if let Some(munge) = &cluster.flux.munge_secret {
        volumes.push(secret(MUNGE, munge, access.munge));
    }
    volumes
}

/// The volume with the AgentSpec, and with a file that has the annotation by which the operator asks a pod to end.
fn spec_and_end(cluster: &ValidMiniCluster) -> ProjectedVolumeSource {
    let spec = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: names::config_map(&cluster.name),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let field = ObjectFieldSelector {
        field_path: format!("metadata.annotations['{}']", labels::END),
        ..ObjectFieldSelector::default()
    };
    let end = VolumeProjection {
        downward_api: Some(DownwardAPIProjection {
            items: Some(vec![DownwardAPIVolumeFile {
                path: paths::END_KEY.into(),
                field_ref: Some(field),
                ..DownwardAPIVolumeFile::default()
            }]),
        }),
        ..VolumeProjection::default()
    };
    ProjectedVolumeSource {
        sources: Some(vec![spec, end]),
        ..ProjectedVolumeSource::default()
    }
}

fn image(name: &str, reference: &str, pull: PullPolicy) -> Volume {
    let source = ImageVolumeSource {
        reference: Some(reference.to_owned()),
        pull_policy: Some(pull.name().into()),
    };
    Volume {
        name: name.to_owned(),
        image: Some(source),
        ..Volume::default()
    }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

/// Mounts of the init container that installs the agent. No other container may write to the first mount, which has the
/// agent's binary. If the view is mounted, or if there is no view, no other init container fills the view's volume, so
/// this one does. With a mounted view, the volume gets links into the image. Without a view, it gets only the
/// documented links, such as `flux-view.sh`. The runner's agent writes their files later.
pub(super) fn for_install(cluster: &ValidMiniCluster, view: ViewFrom) -> Vec<VolumeMount> {
    let mut mounts = vec![mount(AGENT, paths::AGENT_DIR, false)];
    if matches!(view, ViewFrom::ImageVolume | ViewFrom::Nowhere) {
        mounts.push(mount(&cluster.view.name, paths::MOUNT_STAGING, false));
    }
    if let Some(image) = image_mount(view) {
        mounts.extend([
            image,
            mount(RUNNER_IMAGE, paths::RUNNER_IMAGE_MOUNT, true),
            mount(SOFTWARE, paths::SOFTWARE_STAGING, false),
        ]);
    }
    mounts
}

/// The mount of the view's whole image. A subPath would not do: the view's folder is behind an absolute link, which a
/// subPath cannot follow.
fn image_mount(view: ViewFrom) -> Option<VolumeMount> {
    (view == ViewFrom::ImageVolume).then(|| mount(IMAGE, paths::VIEW_IMAGE_MOUNT, true))
}

/// Mounts of the init container that adds the packages of the runner's image to the volume for `/opt/software`, if the
/// view is copied. It runs the runner's image, so `/opt/software` itself has these packages.
pub(super) fn for_software() -> Vec<VolumeMount> {
    vec![
        mount(AGENT, paths::AGENT_DIR, true),
        mount(SOFTWARE, paths::SOFTWARE_STAGING, false),
    ]
}

/// Mounts of the init container that copies or links the view. In this container, `/opt/software` itself is that of the
/// image.
pub(super) fn for_view(cluster: &ValidMiniCluster, view: ViewFrom) -> Vec<VolumeMount> {
    let mut mounts = vec![
        mount(AGENT, paths::AGENT_DIR, true),
        mount(&cluster.view.name, paths::MOUNT_STAGING, false),
    ];
    if view == ViewFrom::Copy {
        mounts.push(mount(SOFTWARE, paths::SOFTWARE_STAGING, false));
    }
    mounts
}

/// The operator's mounts in a sidecar. The files that the runner's agent writes are read-only there.
pub(super) fn for_sidecar(
    cluster: &ValidMiniCluster,
    view: ViewFrom,
    sidecar: &ValidSidecar,
) -> Vec<VolumeMount> {
    let mut mounts = for_runner_or_sidecar(cluster, view, &sidecar.container);
    mounts.push(mount(CONFIG, &paths_of(cluster).config_root(), true));
    // In such a sidecar the agent is the entrypoint, and reads the AgentSpec.
    if sidecar.wrapped.is_some() {
        mounts.push(mount(SPEC, paths::SPEC_DIR, true));
    }
    mounts
}

/// The operator's mounts in the runner and in sidecars. Of a volume that an init container fills, they get only a
/// folder: every user may write to a volume's root, but the folder belongs to the init container's user.
fn for_runner_or_sidecar(
    cluster: &ValidMiniCluster,
    view: ViewFrom,
    container: &ValidContainer,
) -> Vec<VolumeMount> {
    let is_shared = is_shared_by_users(cluster, view);
    let mut mounts = vec![
        mount(AGENT, paths::AGENT_DIR, true),
        folder(
            paths::MOUNT_FOLDER,
            mount(&cluster.view.name, paths_of(cluster).mount(), is_shared),
        ),
    ];
    mounts.extend(image_mount(view));
    if view == ViewFrom::Copy {
        // The volume's other folder, `/opt/software` below, has links to the packages in this one.
        mounts.push(folder(
            paths::PACKAGES_FOLDER,
            mount(SOFTWARE, paths::COPIED_PACKAGES, true),
        ));
    }
    if matches!(view, ViewFrom::Copy | ViewFrom::ImageVolume) {
        // With a copied view, this folder belongs to the runner's user. Sidecars of other users need not trust that
        // user. With a mounted view, the folder has the same creator as the view's.
        let read_only = !cluster.sidecars.is_empty() || (view == ViewFrom::ImageVolume && is_shared);
        mounts.push(folder(
            paths::SOFTWARE_FOLDER,
            mount(SOFTWARE, paths::SOFTWARE_DIR, read_only),
        ));
    }
    // Programs execute files in their home, such as .bashrc. So each container has a home of its own.
    let home = mount(HOME, paths::FALLBACK_HOME, false);
    mounts.push(if cluster.sidecars.is_empty() {
        home
    } else {
        folder(&container.name, home)
    });
    mounts
}

/// Whether the init container that creates the view's folder runs as a user who is not root, and the pod has processes
/// of this user and of another one. Then the first could replace files that the second runs. (Root may change everything
/// anyway.) A user that only an image names is not known here, except the agent's.
fn is_shared_by_users(cluster: &ValidMiniCluster, view: ViewFrom) -> bool {
    let user = |context: &Option<serde_json::Value>| {
        context
            .as_ref()
            .and_then(|context| context.get("runAsUser")?.as_i64())
    };
    let pod = user(&cluster.pod.security_context);
    let creator = match view {
        ViewFrom::Copy | ViewFrom::OwnImage => user(&cluster.view.security_context).or(pod),
        ViewFrom::ImageVolume | ViewFrom::Nowhere => pod.or(Some(AGENT_USER)),
    };
    let Some(creator) = creator.filter(|uid| *uid != 0) else {
        return false;
    };
    let runner = user(&cluster.runner.container.security_context).or(pod);
    let sidecars = cluster.sidecars.iter();
    let sidecars = sidecars.map(|sidecar| user(&sidecar.container.security_context).or(pod));
    let mut users: Vec<Option<i64>> = sidecars.chain([runner]).collect();
    // A process can change to the pod's user, even if every container names another one.
    users.extend(pod.map(Some));
    let is_runner_root = runner.is_none_or(|uid| uid == 0);
    if is_runner_root && let Some(flux_user) = &cluster.runner.user {
        users.push(Some(flux_user.uid.into()));
    }
    // The agent gives `spec.users` free uids from 1001 up, so one may be that of a creator whom the spec names.
    let may_be_assigned = !cluster.users.is_empty() && creator != AGENT_USER;
    let has_creator = users.contains(&Some(creator)) || may_be_assigned;
    has_creator && users.iter().any(|uid| *uid != Some(creator))
}

/// The mount, but only of this folder in the volume.
fn folder(path: &str, mount: VolumeMount) -> VolumeMount {
    VolumeMount {
        sub_path: Some(path.to_owned()),
        ..mount
    }
}

/// The operator's mounts in the container that runs Flux. Only this container gets the curve certificate.
pub(super) fn for_runner(cluster: &ValidMiniCluster, view: ViewFrom) -> Vec<VolumeMount> {
    let mut mounts = for_runner_or_sidecar(cluster, view, &cluster.runner.container);
    mounts.push(mount(CONFIG, &paths_of(cluster).config_root(), false));
    mounts.push(mount(SPEC, paths::SPEC_DIR, true));
    mounts.push(mount(CURVE, paths::CURVE_DIR, true));
    if !cluster.users.is_empty() {
        mounts.push(mount(USERS, paths::USERS_DIR, true));
    }
    if cluster.restful.is_some() {
        mounts.push(mount(RESTFUL, paths::RESTFUL_DIR, true));
    }
    if cluster.flux.munge_secret.is_some() {
        mounts.push(mount(MUNGE, paths::MUNGE_DIR, true));
    }
    mounts
}

/// The operator's mounts in `container` and the user's. If both have the same path, the user's wins. If a mount of the
/// user (also one of `spec.podTemplate`, which is merged later) is above the home, the home moves: a container runtime
/// would create its mount point in the user's volume.
pub(super) fn merged(
    cluster: &ValidMiniCluster,
    container: &str,
    own: Vec<VolumeMount>,
    user: Vec<VolumeMount>,
) -> Vec<VolumeMount> {
    let is_path_free = |mount: &VolumeMount| !user.iter().any(|other| other.mount_path == mount.mount_path);
    let mut mounts: Vec<VolumeMount> = own.into_iter().filter(is_path_free).collect();
    if let Some(home) = mounts
        .iter_mut()
        .find(|mount| mount.mount_path == paths::FALLBACK_HOME)
    {
        let of_overlay = cluster.pod_template.iter();
        let of_overlay = of_overlay.flat_map(|overlay| overlay.mount_paths(container));
        let all = user
            .iter()
            .map(|mount| mount.mount_path.as_str())
            .chain(of_overlay);
        home.mount_path = paths::home_beside(all).into();
    }
    mounts.extend(user);
    mounts
}

pub(super) fn paths_of(cluster: &ValidMiniCluster) -> PodPaths {
    PodPaths::new(&cluster.view.mount_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_of_the_agents_image_is_known() {
        let containerfile = include_str!("../../../../images/agent.Containerfile");
        assert!(containerfile.contains(&format!("\nUSER {AGENT_USER}:{AGENT_USER}\n")));
    }

    #[test]
    fn csi_volume_of_two_containers_is_one_though_one_only_reads() {
        let container = |volume: &str| {
            let spec = format!("containers: [{{image: app:1, volumes: {{data: {volume}}}}}]");
            crate::testing::cluster(&spec).runner.container
        };
        let reads = container("{path: /data, csiDriver: c, readOnly: true}");
        let writes = container("{path: /data, csiDriver: c}");
        let of_other = container("{path: /data, csiDriver: other, readOnly: true}");
        let rendered = |containers: [&ValidContainer; 3]| {
            let all = UserVolumes::of(&view("flux-view"), containers);
            let csi = |volume: Volume| (volume.name, volume.csi.unwrap().read_only);
            all.volumes(None, None).into_iter().map(csi).collect::<Vec<_>>()
        };
        let volume = |name: &str, read_only: Option<bool>| (name.to_owned(), read_only);
        let of_two = [volume("data", None), volume("data-2", Some(true))];
        assert_eq!(rendered([&reads, &of_other, &writes]), of_two);
        assert_eq!(rendered([&writes, &reads, &of_other]), of_two);
        let read_only = [volume("data", Some(true)), volume("data-2", Some(true))];
        assert_eq!(rendered([&reads, &reads, &of_other]), read_only);
        assert_eq!(
            UserVolumes::of(&view("flux-view"), [&reads]).mounts(&reads)[0].read_only,
            Some(true)
        );
    }

    fn view(name: &str) -> ViewContainer {
        crate::testing::cluster(&format!("size: 1\nflux: {{container: {{name: {name}}}}}")).view
    }

    fn container(name: &str, mounts: &[(&str, VolumeSource)]) -> ValidContainer {
        let mut container = crate::testing::cluster("size: 1").runner.container;
        container.name = name.into();
        let mount = |(key, source): &(&str, VolumeSource)| Mount {
            name: (*key).into(),
            path: format!("/{key}"),
            read_only: false,
            source: source.clone(),
        };
        container.mounts = mounts.iter().map(mount).collect();
        container
    }

    #[test]
    fn one_key_with_two_sources_makes_two_volumes() {
        let claim = |name: &str| VolumeSource::Claim(name.into());
        let a = container("a", &[("data", claim("one")), ("more", claim("two"))]);
        let b = container(
            "b",
            &[
                ("data", claim("other")),
                ("data-2", claim("third")),
                ("more", claim("two")),
            ],
        );
        let all = UserVolumes::of(&view("flux-view"), [&a, &b]);
        let names: Vec<String> = all
            .volumes(None, None)
            .into_iter()
            .map(|volume| volume.name)
            .collect();
        assert_eq!(names, ["data", "more", "data-2", "data-2-2"]);
        let mounts = |container| {
            all.mounts(container)
                .into_iter()
                .map(|mount| mount.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(mounts(&a), ["data", "more"]);
        assert_eq!(mounts(&b), ["data-2", "data-2-2", "more"]);
    }

    #[test]
    fn second_source_does_not_take_the_name_of_the_view() {
        let claim = |name: &str| VolumeSource::Claim(name.into());
        let a = container("a", &[("data", claim("one"))]);
        let b = container("b", &[("data", claim("other"))]);
        let all = UserVolumes::of(&view("data-2"), [&a, &b]);
        let names: Vec<String> = all
            .volumes(None, None)
            .into_iter()
            .map(|volume| volume.name)
            .collect();
        assert_eq!(names, ["data", "data-3"]);
    }

    #[test]
    fn read_only_claim_keeps_its_files_despite_fs_group() {
        // The claims of both pods that are read-only as a whole.
        let read_only_claims = |spec: &str| -> Vec<String> {
            let cluster = crate::testing::cluster(&format!("size: 1\n{spec}"));
            let facts = crate::render::RenderFacts::default();
            let broker =
                super::super::pod::template(&cluster, &Options::default(), &facts, ViewFrom::Copy, 0);
            let services = super::super::services_pod::build(&cluster, &facts).unwrap();
            let specs = broker
                .unwrap()
                .spec
                .into_iter()
                .chain(services.and_then(|pod| pod.spec));
            specs
                .flat_map(|spec| spec.volumes.unwrap_or_default())
                .filter_map(|volume| volume.persistent_volume_claim)
                .filter(|claim| claim.read_only == Some(true))
                .map(|claim| claim.claim_name)
                .collect()
        };
        let group = "pod: {securityContext: {fsGroup: 7}}";
        let container = |name: &str, volumes: &str| {
            format!(
                "{{image: a, name: {name}, runFlux: {}, volumes: {{{volumes}}}}}",
                name == "a"
            )
        };
        let mount = |key: &str, read_only: bool| {
            format!("{key}: {{path: /{key}, claimName: data, readOnly: {read_only}}}")
        };
        let one = format!("containers: [{}]", container("a", &mount("d", true)));
        let two = |second: &str| {
            format!(
                "{group}\ncontainers: [{}, {}]",
                container("a", &mount("d", true)),
                container("b", second)
            )
        };
        assert_eq!(read_only_claims(&format!("{group}\n{one}")), ["data"]);
        assert_eq!(read_only_claims(&two(&mount("d", true))), ["data"]);
        assert!(read_only_claims(&two(&mount("d", false))).is_empty());
        // Kubernetes mounts a claim once in a pod, also if two volumes name it.
        assert!(read_only_claims(&two(&mount("e", false))).is_empty());
        assert!(read_only_claims(&one).is_empty(), "no fsGroup changes it");

        let overlaid = |overlay: &str| format!("{group}\n{one}\npodTemplate: {{spec: {{{overlay}}}}}");
        assert_eq!(read_only_claims(&overlaid("priorityClassName: p")), ["data"]);
        let mounted = "containers: [{name: a, volumeMounts: [{name: d, mountPath: /w}]}]";
        assert!(read_only_claims(&overlaid(mounted)).is_empty());
        let claimed = "volumes: [{name: w, persistentVolumeClaim: {claimName: data}}]";
        assert!(read_only_claims(&overlaid(claimed)).is_empty());

        let services = |read_only: bool| {
            let service = format!("{{image: s, name: s, volumes: {{{}}}}}", mount("d", read_only));
            format!("containers: [{{image: a}}]\nservices: [{service}]")
        };
        assert_eq!(
            read_only_claims(&format!("{group}\n{}", services(true))),
            ["data"]
        );
        assert!(read_only_claims(&format!("{group}\n{}", services(false))).is_empty());
        let overlay = "servicesPodTemplate: {spec: {securityContext: {fsGroup: 7}}}";
        assert_eq!(
            read_only_claims(&format!("{overlay}\n{}", services(true))),
            ["data"]
        );
        assert!(read_only_claims(&services(true)).is_empty());

        let own = |read_only: bool| {
            let mount =
                format!("containers: [{{image: a, volumes: {{v: {{path: /v, readOnly: {read_only}}}}}}}]");
            format!("{group}\nvolumes: {{v: {{storageClass: hostpath, path: /tmp/v}}}}\n{mount}")
        };
        assert_eq!(read_only_claims(&own(true)).len(), 1);
        assert!(read_only_claims(&own(false)).is_empty());
    }

    /// A job that owns the folder could replace what root runs from it.
    #[test]
    fn view_of_the_jobs_user_is_read_only_beside_root() {
        use ViewFrom::{Copy, ImageVolume, Nowhere, OwnImage};
        let context = |uid: u32| format!("securityContext: {{runAsUser: {uid}}}");
        let view = |uid: u32| format!("flux: {{container: {{{}}}}}", context(uid));
        let pod = |uid: u32| format!("pod: {{{}}}", context(uid));
        let app = |fields: &str| format!("containers: [{{image: a, {fields}}}]");
        let flux_user = |uid: u32| format!("fluxUser: {{uid: {uid}}}");
        let job = |uid: u32| app(&flux_user(uid));
        let root_with_job = |uid: u32| app(&format!("{}, {}", context(0), flux_user(uid)));
        let sidecar = |uid: u32| {
            format!(
                "containers: [{{image: a, runFlux: true}}, {{image: b, name: b, {}}}]",
                context(uid)
            )
        };
        let users = "users: [{name: ada}]".to_owned();
        let cases = [
            ([view(7), job(7)], vec![Copy, OwnImage]),
            ([view(7), root_with_job(7)], vec![Copy, OwnImage]),
            ([view(7), sidecar(7)], vec![Copy, OwnImage]),
            ([view(7), users], vec![Copy, OwnImage]),
            (
                [pod(7), app(&context(0))],
                vec![Copy, OwnImage, ImageVolume, Nowhere],
            ),
            (
                [pod(7), root_with_job(7)],
                vec![Copy, OwnImage, ImageVolume, Nowhere],
            ),
            ([view(0), job(63617)], vec![ImageVolume, Nowhere]),
            ([view(0), sidecar(63617)], vec![ImageVolume, Nowhere]),
            // No job has the creator's user, or every process has it.
            ([view(7), job(8)], vec![]),
            ([view(7), app("command: b")], vec![]),
            ([view(0), job(7)], vec![]),
            ([pod(7), job(8)], vec![]),
        ];
        for (lines, shared) in cases {
            let spec = format!("size: 1\n{}", lines.join("\n"));
            let cluster = crate::testing::cluster(&spec);
            for view in [Copy, OwnImage, ImageVolume, Nowhere] {
                for mount in for_runner(&cluster, view) {
                    let expected = match mount.name.as_str() {
                        "flux-view" => shared.contains(&view),
                        SOFTWARE if view == ImageVolume => {
                            shared.contains(&view) || !cluster.sidecars.is_empty()
                        }
                        _ => continue,
                    };
                    assert_eq!(
                        mount.read_only == Some(true),
                        expected,
                        "{view:?} {mount:?} {spec}"
                    );
                }
            }
        }
    }

    #[test]
    fn home_moves_out_of_a_users_volume() {
        let homes_with = |volumes: &str, overlay: &str| -> Vec<(String, String)> {
            let container =
                |fields: &str| format!("{{image: app, command: c, volumes: {{{volumes}}}, {fields}}}");
            let cluster = crate::testing::cluster(&format!(
                "size: 1\ncontainers: [{}, {}]\n{overlay}",
                container("name: app, runFlux: true"),
                container("name: other")
            ));
            let (runner, sidecar) = (&cluster.runner.container, &cluster.sidecars[0]);
            let users = UserVolumes::of(&cluster.view, [runner, &sidecar.container]);
            let of_runner = merged(
                &cluster,
                &runner.name,
                for_runner(&cluster, ViewFrom::Copy),
                users.mounts(runner),
            );
            let of_sidecar = merged(
                &cluster,
                "other",
                for_sidecar(&cluster, ViewFrom::Copy, sidecar),
                users.mounts(&sidecar.container),
            );
            let homes = of_runner.into_iter().chain(of_sidecar);
            let homes = homes.filter(|mount| mount.name == HOME);
            homes
                .map(|mount| (mount.mount_path, mount.sub_path.unwrap()))
                .collect()
        };
        let at = |path: &str| ["app", "other"].map(|container| (path.to_owned(), container.to_owned()));
        assert_eq!(
            homes_with("homes: {path: /homes, claimName: homes}", ""),
            at("/home/flux-operator")
        );
        assert_eq!(
            homes_with("homes: {path: /home/user, claimName: homes}", ""),
            at("/home/flux-operator")
        );
        assert_eq!(
            homes_with("homes: {path: /home, claimName: homes}", ""),
            at("/etc/flux-agent/home")
        );
        assert_eq!(
            homes_with("homes: {path: /home/flux-operator, claimName: homes}", ""),
            []
        );
        let overlaid = |fields: &str| {
            let mount = |container: &str| {
                format!("[{{name: {container}, volumeMounts: [{{name: homes, mountPath: /home/{fields}}}]}}]")
            };
            format!(
                "podTemplate: {{spec: {{containers: {}, initContainers: {}}}}}",
                mount("app"),
                mount("other")
            )
        };
        assert_eq!(homes_with("", &overlaid("")), at("/etc/flux-agent/home"));
        assert_eq!(homes_with("", &overlaid("ada")), at("/home/flux-operator"));
        assert_eq!(
            homes_with("", &overlaid(", $patch: delete")),
            at("/home/flux-operator")
        );
    }

    #[test]
    fn long_volume_name_is_cut_for_its_number() {
        let name = suffixed(&"a".repeat(63), 12);
        assert!(names::is_dns_label(&name) && name.ends_with("-12"));
    }
}
