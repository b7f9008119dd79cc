//! Labels and annotations of the objects that the operator creates, and names that these objects share.
//!
//! Words: the agent is the entrypoint of each broker's container. The lead is the pod of index 0. The view is Flux with
//! its libraries, from an image of its own. The pods of a gang start all or none. A snippet is shell code in `commands`
//! of the spec.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Name of the init container that installs the agent.
pub const AGENT: &str = "flux-agent";
/// `apiVersion` of a MiniCluster.
pub const API_VERSION: &str = "flux-framework.org/v1alpha2";
/// The name of the operator's own objects, and of its namespace.
pub const OPERATOR: &str = "flux-operator";
/// The field manager of the operator's writes, and the value of the label `MANAGED_BY`. It is not
/// `flux-operator`, since that is also the name of FluxCD's operator, which has nothing to do with Flux Framework.
pub const MANAGER: &str = "flux-framework-flux-operator";
/// Kubernetes' usual label for the program that manages an object. It does not prove that this operator created
/// the object, since others may set the same value.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Label with the name of the MiniCluster that an object belongs to. The services pod has `SERVICES_OF` instead,
/// and the headless Service only `HEADLESS`, since several MiniClusters may share it.
pub const CLUSTER: &str = "flux-framework.org/minicluster";
/// Label with the name of the MiniCluster that a services pod belongs to. The services pod lacks `CLUSTER`, so
/// that the Services of sidecars, which select by `CLUSTER`, do not select it.
pub const SERVICES_OF: &str = "flux-framework.org/services-of";
/// Label with the name of the headless Service that gives a pod its DNS name. The Service selects its pods by this
/// label. All Services of the operator have it too, since the watches of pods and Services select by it.
pub const HEADLESS: &str = "flux-framework.org/headless";
/// Annotation with the hash of the rendered object (of a Job: of the fields that may change). If it differs
/// from the hash of the newly rendered object, the existing object is out of date.
pub const RENDERED_HASH: &str = "flux-framework.org/rendered-hash";
/// On the Job: the largest number of pods that the cluster can have, fixed when the Job was created.
pub const MAXIMUM_SIZE: &str = "flux-framework.org/maximum-size";
/// On the Job: the number of pods when the Job was created, or when its size was last changed before a start. The
/// ConfigMap has the same number: without `minSize`, the command waits for as many brokers.
pub const INITIAL_SIZE: &str = "flux-framework.org/initial-size";
/// On the Job: two hashes of fields of the MiniCluster's spec that cannot change once the Job exists
/// ([`Target::spec_hash`](crate::target::Target::spec_hash)).
pub const SPEC_HASH: &str = "flux-framework.org/spec-hash";
/// On the Job, if it was created for a queue, or its MiniCluster had labels or annotations for one: these, as JSON
/// (`Queueing`). Later changes count for the next Job only.
pub const QUEUEING: &str = "flux-framework.org/queueing";
/// On the Job, if the spec has pod templates: their hash (`render::overlay_hash`).
pub const OVERLAY_HASH: &str = "flux-framework.org/pod-template-hash";
/// On the Job, if its pods are a gang: API and name of the object that makes them one (`render::gang`).
pub const GANG: &str = "flux-framework.org/gang";
/// On the Job: how its pods get the view (`render::view`).
pub const VIEW: &str = "flux-framework.org/view";
/// Value of `VIEW` if the pods mount the view's image as a volume.
pub const VIEW_IS_MOUNTED: &str = "imageVolume";
/// On pods: names of the init containers that come from the user's pod template, separated by commas.
pub const USER_INIT: &str = "flux-framework.org/user-init-containers";
/// On pods, if the operator sends traces: the MiniCluster's span, as a W3C `traceparent`.
pub const TRACE: &str = "flux-framework.org/traceparent";
/// On a pod that has to end because a snippet of another pod failed: the time of the request (RFC 3339), a space,
/// and the cause. The agent reads it.
pub const END: &str = "flux-framework.org/end";
/// Label of a PersistentVolume, which is cluster-scoped: the MiniCluster's namespace.
pub const NAMESPACE: &str = "flux-framework.org/namespace";
/// Annotation of a PersistentVolume, which no namespaced object can own: the MiniCluster's uid.
pub const OWNER: &str = "flux-framework.org/owner-uid";
/// On a PersistentVolume that is kept when its MiniCluster is deleted. Only whether it exists counts, not its value.
pub const KEEP: &str = "flux-framework.org/keep";
/// On a PersistentVolume of a CSI driver: driver and handle ([`disk`]). Two volumes should not have the same: a node
/// may mount one with the attributes and the Secret of the other.
pub const DISK: &str = "flux-framework.org/disk";
/// On the claim of a PersistentVolume that the operator created, once both exist: the uid of the volume.
pub const VOLUME_UID: &str = "flux-framework.org/volume-uid";
/// Kubernetes' own label on the pods of an Indexed Job.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Kubernetes' own label on the pods of a Job: its uid.
pub const JOB_UID: &str = "batch.kubernetes.io/controller-uid";
/// A label that the documentation promises: `0` on the lead's pod, `services` on the services pod. Other pods lack it.
pub const JOB_INDEX: &str = "job-index";
/// Condition that the operator sets on the pod of index 0. The Job's failure policy recognises the lead by it.
pub const LEAD: &str = "flux-framework.org/Lead";
/// Label by which autoscalers select the pods of a MiniCluster.
pub const AUTOSCALER: &str = "hpa-selector";

/// The index of a pod of an Indexed Job. None: the label is missing or is not a number.
pub fn completion_index(metadata: &ObjectMeta) -> Option<u32> {
    metadata.labels.as_ref()?.get(COMPLETION_INDEX)?.parse().ok()
}

/// Whether this is the pod of `spec.services`. A broker's pod always has the label `CLUSTER`, even if its author also
/// sets `SERVICES_OF`.
pub fn is_services_pod(metadata: &ObjectMeta) -> bool {
    let has = |label: &str| {
        metadata
            .labels
            .as_ref()
            .is_some_and(|all| all.contains_key(label))
    };
    has(SERVICES_OF) && !has(CLUSTER)
}

/// Labels of an object other than a pod.
pub fn of_object(cluster: &str) -> BTreeMap<String, String> {
    let labels = [
        ("app.kubernetes.io/name", cluster),
        (MANAGED_BY, MANAGER),
        (CLUSTER, cluster),
    ];
    labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Labels of a pod: the user's, overridden by the operator's own. `headless`: the name of the headless Service.
pub fn of_pod(
    user: &BTreeMap<String, String>,
    cluster: &str,
    namespace: &str,
    headless: &str,
) -> BTreeMap<String, String> {
    let mut labels = user.clone();
    // The lead's pod gets this label once it exists, and the services pod from our caller. No other pod may have it, so
    // the user's value is dropped.
    labels.remove(JOB_INDEX);
    labels.extend(of_object(cluster));
    for (key, value) in [
        // The documentation promises this label, and the value of `app` below.
        ("namespace", namespace),
        (AUTOSCALER, cluster),
        ("app", "flux-operator"),
        (HEADLESS, headless),
    ] {
        labels.insert(key.into(), value.into());
    }
    labels
}

/// Label selector of the pods of a MiniCluster, for `status.selector`, which autoscalers read.
pub fn selector(cluster: &str) -> String {
    format!("{AUTOSCALER}={cluster}")
}

/// Value of the annotation `DISK`: driver and handle of a CSI volume, with a space between them.
pub fn disk(driver: &str, handle: &str) -> String {
    format!("{driver} {handle}")
}

#[cfg(test)]
mod tests {
    use flux_shared::names::{OWN_LABELS, OWN_POD_LABELS};

    use super::*;

    /// From these lists, `validate` knows which labels of the users it has to report as overridden.
    #[test]
    fn operator_labels_that_override_the_users_are_all_listed() {
        assert!(
            of_object("mc").keys().eq(OWN_LABELS.iter()),
            "{:?}",
            of_object("mc")
        );
        let mut pod = of_pod(&BTreeMap::new(), "mc", "ns", "flux-service");
        pod.insert(JOB_INDEX.into(), "0".into());
        assert!(pod.keys().eq(OWN_POD_LABELS.iter()), "{pod:?}");
    }
}
