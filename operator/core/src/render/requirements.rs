//! Checks what the rendered objects require: a version of Kubernetes, and a size that the API server accepts. Some
//! fields need a Kubernetes newer than 1.31, the oldest supported one. An older API server drops them silently.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PodSpec;

use crate::render::Objects;

/// The first minor version of Kubernetes 1 that enables image volumes by default.
const IMAGE_VOLUMES: u32 = 35;
/// The first minor version with which the operator mounts images if the feature gate ImageVolume is enabled: image
/// volumes are beta since this version.
const IMAGE_VOLUMES_BETA: u32 = 33;
/// Most bytes of a ConfigMap's values.
const CONFIG_MAP_MAX: usize = 1 << 20;

/// Why the AgentSpec does not fit into its ConfigMap, and the remedy. None: it fits. (The user's text is longer in
/// the AgentSpec than in the spec, because it is quoted.)
pub fn too_large(objects: &Objects) -> Option<String> {
    let bytes: usize = objects
        .config_map
        .data
        .iter()
        .flat_map(|data| data.values())
        .map(String::len)
        .sum();
    (bytes > CONFIG_MAP_MAX).then(|| {
        format!(
            "spec: the agent's spec has {bytes} bytes with its quoting, and a ConfigMap holds {CONFIG_MAP_MAX}: put scripts and \
             other large texts on a volume"
        )
    })
}

/// A field that an older Kubernetes would drop.
struct Need {
    /// The first minor version of Kubernetes 1 that enables it by default.
    minor: u32,
    field: &'static str,
    /// What that version brings, as a clause that `since Kubernetes 1.N` completes.
    since: &'static str,
    /// What to do on an older version.
    remedy: &'static str,
}

/// The fields of a pod that an older Kubernetes would drop. `keeps_images`: a dry run has shown that the API
/// server keeps image volumes.
fn needs(pod: &PodSpec, keeps_images: bool) -> impl Iterator<Item = Need> {
    // `usual` is Kubernetes' default. If a field with this value is dropped, nothing changes.
    let differs = |value: Option<&str>, usual: &str| value.is_some_and(|value| value != usual);
    let mut containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let context = pod.security_context.as_ref();
    let table = [
        (
            pod.resources.is_some(),
            Need {
                minor: 34,
                field: "spec.pod.resources",
                since: "pod-level resources exist only",
                remedy: "set the resources of its containers instead; or set spec.pod.runtimeClassName: then spec.pod.resources become the pod's overhead",
            },
        ),
        (
            has_image(pod) && !keeps_images,
            Need {
                minor: IMAGE_VOLUMES,
                field: "spec.flux.container.source",
                since: "image volumes are enabled by default only",
                remedy: "set copy, or auto, which copies here (from 1.33, imageVolume works if the API server's feature gate ImageVolume is enabled)",
            },
        ),
        (
            containers.any(|container| {
                differs(
                    container
                        .security_context
                        .as_ref()
                        .and_then(|context| context.proc_mount.as_deref()),
                    "Default",
                )
            }),
            Need {
                minor: 33,
                field: "securityContext.procMount of a container",
                since: "it is supported only",
                remedy: "leave it out",
            },
        ),
        (
            differs(
                context.and_then(|context| context.supplemental_groups_policy.as_deref()),
                "Merge",
            ),
            Need {
                minor: 33,
                field: "spec.pod.securityContext.supplementalGroupsPolicy",
                since: "it is supported only",
                remedy: "leave it out, or set Merge",
            },
        ),
        (
            differs(
                context.and_then(|context| context.se_linux_change_policy.as_deref()),
                "MountOption",
            ),
            Need {
                minor: 33,
                field: "spec.pod.securityContext.seLinuxChangePolicy",
                since: "it is supported only",
                remedy: "leave it out",
            },
        ),
    ];
    table
        .into_iter()
        .filter_map(|(is_used, need)| is_used.then_some(need))
}

fn has_image(pod: &PodSpec) -> bool {
    pod.volumes.iter().flatten().any(|volume| volume.image.is_some())
}

/// Whether a Job has image volumes.
pub fn mounts_image(job: &Job) -> bool {
    job.spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref())
        .is_some_and(has_image)
}

/// Whether Kubernetes 1.`minor` keeps the Job's image volumes only if a feature gate is enabled. The version does not
/// show this: a dry run does.
pub fn needs_image_volume_gate(objects: &Objects, minor: u32) -> bool {
    (IMAGE_VOLUMES_BETA..IMAGE_VOLUMES).contains(&minor) && mounts_image(&objects.job)
}

/// Whether the objects may need a newer Kubernetes than the oldest supported one, so that its version has to be looked
/// up. With `has_node_for_images`, a node is new enough for image volumes, and no API server is older than its nodes.
pub fn needs_version_check(objects: &Objects, has_node_for_images: bool) -> bool {
    // 0 is older than every version that a field needs. false: no dry run was made yet.
    let minor = if has_node_for_images { IMAGE_VOLUMES } else { 0 };
    unsupported(objects, minor, false).is_some()
}

/// Why Kubernetes 1.`minor` cannot run the objects: the field, and the remedy. None: it can. `keeps_images`: a dry run
/// has shown that the API server keeps image volumes.
pub fn unsupported(objects: &Objects, minor: u32, keeps_images: bool) -> Option<String> {
    let jobs_pod = objects
        .job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let services_pod = objects.services_pod.as_ref().and_then(|pod| pod.spec.as_ref());
    let Need {
        minor: first,
        field,
        since,
        remedy,
    } = jobs_pod
        .into_iter()
        .chain(services_pod)
        .flat_map(|pod| needs(pod, keeps_images))
        .find(|need| minor < need.minor)?;
    Some(format!(
        "{field}: {since} since Kubernetes 1.{first}, and this is 1.{minor}: {remedy}"
    ))
}

#[cfg(test)]
mod tests {
    use flux_shared::curve::Certificate;

    use super::*;
    use crate::render::{self, Options, RenderFacts};

    #[test]
    fn fields_dropped_by_older_api_server_are_named() {
        let objects = |spec: &str, nodes_mount_images: bool| {
            let facts = RenderFacts {
                nodes_mount_images,
                ..RenderFacts::default()
            };
            let key = Certificate::from_keys("mc", &[1; 32], &[2; 32]);
            render::objects(&crate::testing::cluster(spec), &Options::default(), &facts, key).unwrap()
        };
        let plain = objects("size: 1", false);
        assert!(!needs_version_check(&plain, false) && unsupported(&plain, 31, false).is_none());
        let resources = objects("pod: {resources: {cpu: 1}}", false);
        assert!(needs_version_check(&resources, false) && unsupported(&resources, 34, false).is_none());
        assert!(
            unsupported(&resources, 33, false)
                .unwrap()
                .starts_with("spec.pod.resources: ")
        );

        let masked = objects(
            "containers: [{image: a, securityContext: {procMount: Unmasked}}]",
            false,
        );
        assert!(needs_version_check(&masked, false) && unsupported(&masked, 33, false).is_none());
        assert!(
            unsupported(&masked, 32, false)
                .unwrap()
                .starts_with("securityContext.procMount of a container: ")
        );
        let service = objects(
            "services: [{image: a, name: a, securityContext: {procMount: Unmasked}}]",
            false,
        );
        assert!(needs_version_check(&service, false) && unsupported(&service, 32, false).is_some());
        assert!(!needs_version_check(
            &objects(
                "containers: [{image: a, securityContext: {procMount: Default}}]",
                false
            ),
            false
        ));

        let insisting = objects("flux: {container: {source: imageVolume}}", false);
        assert!(needs_version_check(&insisting, false) && unsupported(&insisting, 35, false).is_none());
        let why = unsupported(&insisting, 34, false).unwrap();
        assert!(
            why.starts_with("spec.flux.container.source: ") && why.contains("feature gate ImageVolume"),
            "{why}"
        );
        assert!(
            unsupported(&insisting, 34, true).is_none(),
            "the feature gate is enabled"
        );
        let needs_gate = |minor| needs_image_volume_gate(&insisting, minor);
        assert!(!needs_gate(32) && needs_gate(33) && needs_gate(34) && !needs_gate(35));
        assert!(!needs_image_volume_gate(&plain, 34));
        assert!(
            !needs_version_check(&objects("size: 1", true), true),
            "a node is new enough, so the API server is, too"
        );
    }
}
