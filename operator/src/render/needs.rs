//! What objects need of Kubernetes beyond the floor, 1.31. An older API server drops such a field without a word.

use crate::render::Objects;

/// The first minor version of Kubernetes 1 that has `resources` of a pod switched on.
const POD_RESOURCES: u32 = 34;

/// The first that has volumes of images switched on.
const IMAGE_VOLUMES: u32 = 35;

/// Whether the objects need more than the floor, so that the version has to be asked for. `nodes_mount_images`: every
/// node is new enough for that, and no API server is older than its nodes.
pub fn beyond_floor(objects: &Objects, nodes_mount_images: bool) -> bool {
    unsupported(objects, if nodes_mount_images { IMAGE_VOLUMES } else { 0 }).is_some()
}

/// Why Kubernetes 1.`minor` can't run the objects: the field, and the remedy.
pub fn unsupported(objects: &Objects, minor: u32) -> Option<String> {
    let pod = objects.job.spec.as_ref()?.template.spec.as_ref()?;
    if pod.resources.is_some() && minor < POD_RESOURCES {
        return Some(format!(
            "spec.pod.resources: a pod has no resources of its own before Kubernetes 1.{POD_RESOURCES}, and this is 1.{minor}: \
             set the resources of its containers, or a runtimeClassName, whose overhead they then are"
        ));
    }
    let mounts_image = pod.volumes.iter().flatten().any(|volume| volume.image.is_some());
    (mounts_image && minor < IMAGE_VOLUMES).then(|| {
        format!(
            "spec.flux.container.source: images are mounted since Kubernetes 1.{IMAGE_VOLUMES}, and this is 1.{minor}: \
             say copy, or auto, which copies here"
        )
    })
}

#[cfg(test)]
mod tests {
    use flux_shared::curve::Certificate;

    use super::*;
    use crate::render::{self, Facts, Options};

    #[test]
    fn what_an_older_api_server_would_drop_is_named_and_its_version_asked_for_only_then() {
        let objects = |spec: &str, nodes_mount_images: bool| {
            let facts = Facts { nodes_mount_images, ..Facts::default() };
            let key = Certificate::from_keys("mc", &[1; 32], &[2; 32]);
            render::objects(&crate::testing::cluster(spec), &Options::default(), &facts, key).unwrap()
        };
        let plain = objects("size: 1", false);
        assert!(!beyond_floor(&plain, false) && unsupported(&plain, 31).is_none());
        let resources = objects("pod: {resources: {cpu: 1}}", false);
        assert!(beyond_floor(&resources, false) && unsupported(&resources, 34).is_none());
        assert!(unsupported(&resources, 33).unwrap().starts_with("spec.pod.resources: "));

        let insisting = objects("flux: {container: {source: imageVolume}}", false);
        assert!(beyond_floor(&insisting, false) && unsupported(&insisting, 35).is_none());
        assert!(unsupported(&insisting, 34).unwrap().starts_with("spec.flux.container.source: "));
        assert!(!beyond_floor(&objects("size: 1", true), true), "it costs no call where the nodes are new enough");
    }
}
