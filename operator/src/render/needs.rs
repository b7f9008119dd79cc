//! What objects need of Kubernetes beyond the floor, 1.31. An older API server drops such a field without a word.

use crate::render::Objects;

/// The first minor version of Kubernetes 1 that has `resources` of a pod switched on.
const POD_RESOURCES: u32 = 34;

/// Whether the objects need more than the floor, so that the version has to be asked for.
pub fn beyond_floor(objects: &Objects) -> bool {
    unsupported(objects, 0).is_some()
}

/// Why Kubernetes 1.`minor` can't run the objects: the field, and the remedy.
pub fn unsupported(objects: &Objects, minor: u32) -> Option<String> {
    let pod = objects.job.spec.as_ref()?.template.spec.as_ref()?;
    (pod.resources.is_some() && minor < POD_RESOURCES).then(|| {
        format!(
            "spec.pod.resources: a pod has no resources of its own before Kubernetes 1.{POD_RESOURCES}, and this is 1.{minor}: \
             set the resources of its containers, or a runtimeClassName, whose overhead they then are"
        )
    })
}
