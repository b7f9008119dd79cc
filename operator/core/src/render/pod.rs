//! The template of the Job's pods.

use flux_shared::derive;
use flux_shared::overlay::Overlay;
use flux_shared::validate::{ValidContainer, ValidMiniCluster};
use k8s_openapi::api::core::v1::{
    LocalObjectReference, PodSecurityContext, PodSpec, PodTemplateSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::view::ViewFrom;
use super::volumes::UserVolumes;
use super::{
    Options, RenderError, RenderFacts, access, containers, none_if_empty, placement, queueing, typed, volumes,
};
use crate::labels;

/// The pod template of the Job, before the overlay is applied. `restarts_left`: how many restarts `backoffLimit` still
/// allows.
pub(super) fn template(
    cluster: &ValidMiniCluster,
    options: &Options,
    facts: &RenderFacts,
    view: ViewFrom,
    restarts_left: u32,
) -> Result<PodTemplateSpec, RenderError> {
    let pod = &cluster.pod;
    let runner = &cluster.runner.container;
    let sidecars = cluster.sidecars.iter().map(|sidecar| &sidecar.container);
    let user_volumes = UserVolumes::of(&cluster.view, [runner].into_iter().chain(sidecars.clone()));
    let init_containers = containers::init(cluster, options, view, &user_volumes)?;
    let runner_container = containers::runner(cluster, view, &user_volumes, restarts_left)?;

    let context: Option<PodSecurityContext> =
        typed("spec.pod.securityContext", pod.security_context.as_ref())?;
    let volumes_of_user = user_volumes.volumes(context.as_ref(), cluster.pod_template.as_ref());
    let holds_user_data = access::holds_user_data(&volumes_of_user, cluster.pod_template.as_ref())
        .map_err(RenderError::Overlay)?;
    let access = access::decide(
        context.as_ref(),
        runner_container.security_context.as_ref(),
        holds_user_data,
        access::Readers::of(cluster),
    );
    let context = match access.fs_group {
        Some(group) => Some(PodSecurityContext {
            fs_group: Some(group),
            ..context.unwrap_or_default()
        }),
        None => context,
    };
    let mut all_volumes = volumes::own(cluster, options, facts.uid.as_deref(), view, &access);
    all_volumes.extend(volumes_of_user);

    let view_secret = if cluster.view.enabled {
        cluster.view.image_pull_secret.as_ref()
    } else {
        None
    };
    let mut spec = PodSpec {
        restart_policy: Some(pod.restart_policy.clone().unwrap_or_else(|| "Never".into())),
        affinity: placement::affinity(cluster),
        host_ipc: pod.host_ipc.then_some(true),
        host_pid: pod.host_pid.then_some(true),
        image_pull_secrets: pull_secrets(
            [view_secret].into_iter().chain(
                [runner]
                    .into_iter()
                    .chain(sidecars)
                    .map(|container| container.image_pull_secret.as_ref()),
            ),
        ),
        security_context: context,
        share_process_namespace: cluster.share_process_namespace.then_some(true),
        termination_grace_period_seconds: i64::try_from(cluster.grace_period()).ok(),
        ..shared_with_services(cluster, cluster.pod_template.as_ref())
    };
    // With a runtime class, `pod.resources` is the overhead. Without one, the API server rejects an overhead, and they
    // are the resources of the whole pod.
    let quantities = containers::quantities(&pod.resources);
    match pod.runtime_class_name {
        Some(_) => spec.overhead = quantities,
        None => {
            spec.resources = quantities.map(|limits| ResourceRequirements {
                requests: Some(limits.clone()),
                limits: Some(limits),
                claims: None,
            });
        }
    }
    spec.init_containers = Some(init_containers);
    spec.containers = vec![runner_container];
    spec.volumes = Some(all_volumes);
    Ok(PodTemplateSpec {
        metadata: Some(metadata(cluster)),
        spec: Some(spec),
    })
}

/// What the Job's pods and the services pod have in common. `overlay`: the one that is applied later. Here it only
/// shows whether the pod uses the node's network.
pub(super) fn shared_with_services(cluster: &ValidMiniCluster, overlay: Option<&Overlay>) -> PodSpec {
    let pod = &cluster.pod;
    PodSpec {
        automount_service_account_token: Some(pod.automount_service_account_token),
        // With host networking Kubernetes' default is the node's DNS, which does not know the other pods.
        dns_policy: pod
            .dns_policy
            .clone()
            .or_else(|| derive::has_host_network(overlay).then(|| "ClusterFirstWithHostNet".to_owned())),
        // Hundreds of variables about unrelated Services would slow every process down.
        enable_service_links: Some(false),
        node_selector: placement::node_selector(cluster),
        runtime_class_name: pod.runtime_class_name.clone(),
        scheduler_name: pod.scheduler_name.clone(),
        service_account_name: pod.service_account_name.clone(),
        subdomain: Some(cluster.headless_name.clone()),
        tolerations: placement::tolerations(cluster),
        ..PodSpec::default()
    }
}

fn metadata(cluster: &ValidMiniCluster) -> ObjectMeta {
    let annotations = queueing::of_pods(cluster);
    ObjectMeta {
        labels: Some(labels::of_pod(
            &cluster.pod.labels,
            &cluster.name,
            &cluster.namespace,
            &cluster.headless_name,
        )),
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..ObjectMeta::default()
    }
}

/// Pull secrets without repetition, in the order of the containers.
pub(super) fn pull_secrets<'a>(
    secrets: impl Iterator<Item = Option<&'a String>>,
) -> Option<Vec<LocalObjectReference>> {
    let mut names: Vec<&String> = Vec::new();
    for name in secrets.flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    none_if_empty(
        names
            .into_iter()
            .map(|name| LocalObjectReference { name: name.clone() })
            .collect(),
    )
}

/// The pull secrets of containers.
pub(super) fn pull_secrets_of(containers: &[ValidContainer]) -> Option<Vec<LocalObjectReference>> {
    pull_secrets(
        containers
            .iter()
            .map(|container| container.image_pull_secret.as_ref()),
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Container;
    use serde_json::json;

    use super::super::services_pod;
    use super::*;

    #[test]
    fn host_network_pods_use_cluster_dns_unless_overridden() {
        let policies = |pod: &str, brokers: bool, services: bool| {
            let cluster = crate::testing::cluster(&format!(
                "pod: {pod}\npodTemplate: {{spec: {{hostNetwork: {brokers}}}}}\nservicesPodTemplate: {{spec: {{hostNetwork: {services}}}}}\n\
                 services: [{{image: db, name: db}}]"
            ));
            let facts = RenderFacts::default();
            let broker = template(&cluster, &Options::default(), &facts, ViewFrom::Copy, 0)
                .unwrap()
                .spec
                .unwrap();
            let services = services_pod::build(&cluster, &facts)
                .unwrap()
                .unwrap()
                .spec
                .unwrap();
            (broker.dns_policy, services.dns_policy)
        };
        let of_cluster = || Some("ClusterFirstWithHostNet".to_owned());
        assert_eq!(policies("{}", true, false), (of_cluster(), None));
        assert_eq!(policies("{}", false, true), (None, of_cluster()));
        let own = || Some("Default".to_owned());
        assert_eq!(policies("{dnsPolicy: Default}", true, true), (own(), own()));
    }

    /// Who may write where: the agent's binary, what the runner's agent writes, and the folders that init
    /// containers made.
    #[test]
    fn volumes_that_root_runs_from_are_read_only_elsewhere() {
        let containers = "containers: [{image: a, runFlux: true, securityContext: {runAsUser: 7}}, {image: b, name: b, command: c}, {image: c, name: c}]";
        for (user, view) in [0, 1000]
            .into_iter()
            .flat_map(|user| ALL_VIEWS.map(|view| (user, view)))
        {
            let disable = view == ViewFrom::Nowhere;
            let spec = format!(
                "flux: {{container: {{disable: {disable}}}}}\npod: {{securityContext: {{runAsUser: {user}}}}}\n{containers}"
            );
            let pod = template(
                &crate::testing::cluster(&spec),
                &Options::default(),
                &RenderFacts::default(),
                view,
                0,
            )
            .unwrap()
            .spec
            .unwrap();
            let all: Vec<_> = pod
                .init_containers
                .iter()
                .flatten()
                .chain(&pod.containers)
                .collect();
            let own = match view {
                ViewFrom::Copy => 3,
                ViewFrom::OwnImage => 2,
                ViewFrom::ImageVolume | ViewFrom::Nowhere => 1,
            };
            assert_eq!(all.len(), 3 + own);
            for container in all {
                let is = |name: &str| container.name == name;
                let is_ours = is("flux-agent") || is("flux-view") || is("flux-software");
                let is_runner = !is_ours && !is("b") && !is("c");
                // Root runs the agent by its own path, never by the link below the mount path.
                assert!(
                    !container
                        .command
                        .iter()
                        .flatten()
                        .any(|word| word.starts_with("/mnt/flux/"))
                );
                for mount in container.volume_mounts.iter().flatten() {
                    let read_only = mount.read_only == Some(true);
                    let of_folder = mount.sub_path.is_some();
                    let allowed = match mount.name.as_str() {
                        "flux-agent-bin" => read_only != is("flux-agent"),
                        "flux-agent-config" => !is_ours && read_only != is_runner,
                        // The sidecars run programs of this folder. The runner's user may be another one, so it must not
                        // replace them.
                        "flux-software" => is_ours || (of_folder && read_only),
                        // The pod's user owns this folder. The sidecars run as this user, and must not replace what the
                        // runner, as another user, runs.
                        "flux-view" if user != 0 => is_ours || (of_folder && read_only),
                        "flux-view" => is_ours || of_folder,
                        "flux-operator-home" => of_folder,
                        _ => read_only,
                    };
                    assert!(allowed, "{view:?} {user} {}: {mount:?}", container.name);
                }
            }
        }
    }

    const ALL_VIEWS: [ViewFrom; 4] = [
        ViewFrom::Copy,
        ViewFrom::ImageVolume,
        ViewFrom::OwnImage,
        ViewFrom::Nowhere,
    ];

    fn spec_of(spec: &str, view: ViewFrom) -> PodSpec {
        let cluster = crate::testing::cluster(spec);
        let template = template(&cluster, &Options::default(), &RenderFacts::default(), view, 0);
        template.unwrap().spec.unwrap()
    }

    #[test]
    fn pod_has_no_own_fs_group_if_a_volume_holds_user_data() {
        let container = |volume: &str| format!("containers: [{{image: a, volumes: {{data: {volume}}}}}]");
        let overlay = |volume: &str| format!("podTemplate: {{spec: {{volumes: [{volume}]}}}}");
        let claim = "{name: data, persistentVolumeClaim: {claimName: c}}";
        let sidecar = "containers: [{image: a, runFlux: true}, {image: b, name: b, volumes: {data: {path: /d, claimName: c}}}]";
        for spec in [
            container("{path: /d, claimName: c}"),
            container("{path: /d, csiDriver: c}"),
            "volumes: {data: {path: /srv, capacity: 1Gi}}\n".to_owned() + &container("{path: /d}"),
            sidecar.to_owned(),
            overlay(claim),
            overlay("{name: data, csi: {driver: c}}"),
            overlay("{name: data, ephemeral: {volumeClaimTemplate: {spec: {}}}}"),
            overlay("{name: data, iscsi: {iqn: i}}"),
            // The overlay replaces the source.
            overlay("{name: data, emptyDir: null, persistentVolumeClaim: {claimName: c}}")
                + "\n"
                + &container("{path: /d, emptyDir: true}"),
        ] {
            let pod = spec_of(&spec, ViewFrom::Copy);
            assert_eq!(pod.security_context, None, "{spec}");
            let volumes = pod.volumes.unwrap();
            let curve = volumes.iter().find(|volume| volume.name == "flux-agent-curve");
            let mode = curve.and_then(|volume| volume.secret.as_ref()?.default_mode);
            assert_eq!(mode, Some(0o444), "{spec}");
        }
        for spec in [
            container("{path: /d, hostPath: /d}"),
            overlay("{name: data, emptyDir: {}}, {name: more, nfs: {server: s, path: /d}}"),
            overlay("{name: data, $patch: delete}") + "\n" + &container("{path: /d, claimName: c}"),
        ] {
            let context = spec_of(&spec, ViewFrom::Copy).security_context;
            assert_eq!(
                context.and_then(|context| context.fs_group),
                Some(65532),
                "{spec}"
            );
        }
    }

    /// The fsGroup, and the modes of the certificate, the passwords and the munge key.
    #[test]
    fn secrets_of_root_are_withheld_from_jobs() {
        let modes = |spec: &str| {
            let pod = spec_of(spec, ViewFrom::Copy);
            let volumes = pod.volumes.unwrap();
            let mode = |name: &str| {
                let volume = volumes.iter().find(|volume| volume.name == name)?;
                volume.secret.as_ref()?.default_mode
            };
            let group = pod.security_context.and_then(|context| context.fs_group);
            let modes = ["flux-agent-curve", "flux-agent-users", "flux-munge"].map(mode);
            (group, modes)
        };
        let claim = "volumes: {data: {path: /d, claimName: c}}";
        let container = |fields: &str| format!("containers: [{{image: a, command: c, {fields}}}]\n");
        let (users, munge) = ("users: [{name: ada}]\n", "flux: {mungeSecret: key}\n");
        let served =
            "containers: [{image: a, fluxUser: {name: flux}}]\nusers: [{name: ada}]\nfluxRestful: {}\n";
        let flux = "fluxUser: {name: flux}";
        let (closed, open) = (Some(0o400), Some(0o444));
        for (spec, group, expected) in [
            // Flux's user gets the pod's groups, but not this one.
            (container(flux) + users, Some(65531), [closed, closed, None]),
            (container(flux) + munge, Some(65531), [closed, None, closed]),
            // Flux's user has a copy of each of these Secrets.
            (container(flux), Some(65532), [closed, None, None]),
            (served.to_owned(), Some(65532), [closed, closed, None]),
            // All processes have the same user, or nobody gets the pod's groups.
            (
                container(&format!("{flux}, securityContext: {{runAsUser: 7}}")) + munge,
                Some(65532),
                [closed, None, closed],
            ),
            (container("") + users + munge, Some(65532), [closed; 3]),
            // An fsGroup would change the claim's files.
            (container(claim) + users + munge, None, [closed; 3]),
            (
                container(&format!("{flux}, {claim}")) + munge,
                None,
                [open, None, closed],
            ),
            (container(claim) + munge, None, [open, None, open]),
            (
                container(&format!("{claim}, securityContext: {{runAsUser: 7}}")) + users + munge,
                None,
                [open; 3],
            ),
        ] {
            assert_eq!(modes(&spec), (group, expected), "{spec}");
        }
    }

    /// Kubernetes' class Guaranteed takes equal requests and limits of cpu and memory, of every container.
    #[test]
    fn pod_can_be_of_class_guaranteed_with_each_view_source() {
        let same = "resources: {requests: {cpu: 2, memory: 1Gi}, limits: {cpu: 2, memory: 1Gi}}";
        for flux in ["", "container: {disable: true}"] {
            let spec = format!(
                "flux: {{{flux}}}\ncontainers: [{{image: a, runFlux: true, {same}}}, {{image: b, name: b, {same}}}]"
            );
            for view in ALL_VIEWS {
                let pod = spec_of(&spec, view);
                for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
                    let resources = container.resources.clone().unwrap_or_default();
                    assert!(
                        resources.limits.is_some() && resources.limits == resources.requests,
                        "{view:?}: {}",
                        container.name
                    );
                }
            }
        }
    }

    /// A quota on cpu or memory rejects a pod if one of its containers lacks them.
    #[test]
    fn own_init_containers_have_runner_resources_unless_given() {
        let init = |flux: &str, runner: &str, view| {
            let spec = format!("flux: {{{flux}}}\ncontainers: [{{image: a, resources: {{{runner}}}}}]");
            let pod = spec_of(&spec, view);
            let of = |container: Container| serde_json::to_value(container.resources).unwrap();
            pod.init_containers
                .unwrap()
                .into_iter()
                .map(of)
                .collect::<Vec<_>>()
        };
        let given = "container: {resources: {requests: {cpu: 1}}}";
        for (flux, runner, wanted) in [
            ("", "", json!(null)),
            (
                "",
                "requests: {cpu: 2, memory: 1Gi}",
                json!({ "requests": { "cpu": "2", "memory": "1Gi" } }),
            ),
            // The API server takes a limit for the request.
            (
                "",
                "limits: {cpu: 2, nvidia.com/gpu: 1}",
                json!({ "limits": { "cpu": "2" } }),
            ),
            ("", "limits: {nvidia.com/gpu: 1}", json!(null)),
            (
                given,
                "requests: {cpu: 2, memory: 1Gi}",
                json!({ "requests": { "cpu": "1" } }),
            ),
        ] {
            for view in ALL_VIEWS {
                let all = init(flux, runner, view);
                assert!(
                    !all.is_empty() && all.iter().all(|one| *one == wanted),
                    "{view:?} {runner}: {all:?}"
                );
            }
        }
    }
}
