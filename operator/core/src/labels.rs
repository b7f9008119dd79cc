//! Labels and annotations of our objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The init container that installs the agent.
pub const AGENT: &str = "flux-agent";
/// `apiVersion` of a MiniCluster.
pub const API_VERSION: &str = "flux-framework.org/v1alpha2";
/// The name of the operator's own objects, and of its namespace.
pub const OPERATOR: &str = "flux-operator";
/// The one field manager of all our writes, and the value of the managed-by label. Not `flux-operator`:
/// FluxCD's operator, which has nothing to do with Flux Framework, is called so too.
pub const MANAGER: &str = "flux-framework-flux-operator";
/// The usual label for the managing program, for people only. The operator does not rely on it: another
/// operator may have our name.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The MiniCluster that an object belongs to. Every object of ours has this label or one of the next two.
pub const CLUSTER: &str = "flux-framework.org/minicluster";
/// The MiniCluster that a services pod belongs to, in place of the label of its brokers.
pub const SERVICES_OF: &str = "flux-framework.org/services-of";
/// The headless Service that gives a pod its name; its selector. Also on all Services, whose watch selects by
/// it.
pub const HEADLESS: &str = "flux-framework.org/headless";
/// Hash of the rendered object: if it differs, the object has to be written again.
pub const RENDERED_HASH: &str = "flux-framework.org/rendered-hash";
/// On the Job: the largest size of the cluster, fixed when it was made.
pub const MAXIMUM_SIZE: &str = "flux-framework.org/maximum-size";
/// On the Job: the size when it was made.
pub const INITIAL_SIZE: &str = "flux-framework.org/initial-size";
/// On the Job: hash of the fields of the MiniCluster's spec that cannot change once there is a Job
/// ([`Target::spec_hash`](crate::target::Target::spec_hash)).
pub const SPEC_HASH: &str = "flux-framework.org/spec-hash";
/// On the Job, if the MiniCluster has labels or annotations for a queue: those that the Job was made with, as
/// JSON (`Queueing`). Later changes count for the next Job only.
pub const QUEUEING: &str = "flux-framework.org/queueing";
/// On the Job, if the spec has pod templates: their hash (`render::overlay_hash`).
pub const OVERLAY_HASH: &str = "flux-framework.org/pod-template-hash";
/// On the Job, if its pods are a gang: API and name of the gang's object (`render::gang`).
pub const GANG: &str = "flux-framework.org/gang";
/// On the Job: how the view comes into its pods (`render::view`).
pub const VIEW: &str = "flux-framework.org/view";
/// Value of `VIEW` where the view's image is mounted.
pub const VIEW_IS_MOUNTED: &str = "imageVolume";
/// On pods: names of the init containers that come from the user's pod template, separated by commas.
pub const USER_INIT: &str = "flux-framework.org/user-init-containers";
/// On pods, if the operator sends traces: their MiniCluster's span, in the form of `traceparent`.
pub const TRACE: &str = "flux-framework.org/traceparent";
/// On a pod that is to end because a snippet of another pod's failed: since when, and why. The agent reads
/// it.
pub const END: &str = "flux-framework.org/end";
/// On a PersistentVolume, which is cluster-scoped: its MiniCluster's namespace.
pub const NAMESPACE: &str = "flux-framework.org/namespace";
/// On a PersistentVolume, which no namespaced object can own: its MiniCluster's uid.
pub const OWNER: &str = "flux-framework.org/owner-uid";
/// On a PersistentVolume that is kept when its MiniCluster is deleted.
pub const KEEP: &str = "flux-framework.org/keep";
/// On a PersistentVolume of a CSI driver: driver and handle, which two volumes should not share.
pub const DISK: &str = "flux-framework.org/disk";
/// On the claim of a PersistentVolume that the operator created, once both exist: the volume's uid.
pub const VOLUME_UID: &str = "flux-framework.org/volume-uid";
/// Kubernetes' own label on the pods of an Indexed Job.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Kubernetes' own label on the pods of a Job: its uid.
pub const JOB_UID: &str = "batch.kubernetes.io/controller-uid";
/// The documented label with a pod's index.
pub const JOB_INDEX: &str = "job-index";
/// A condition of the lead's pod, by which the Job's failure policy knows it: if that pod fails, the Job
/// fails.
pub const LEAD: &str = "flux-framework.org/Lead";
/// Label by which autoscalers select the pods.
pub const AUTOSCALER: &str = "hpa-selector";

/// The index of a pod of an Indexed Job.
pub fn completion_index(metadata: &ObjectMeta) -> Option<u32> {
    metadata.labels.as_ref()?.get(COMPLETION_INDEX)?.parse().ok()
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

/// Labels of a pod: the user's, and over them ours.
pub fn of_pod(
    user: &BTreeMap<String, String>,
    cluster: &str,
    namespace: &str,
    headless: &str,
) -> BTreeMap<String, String> {
    let mut labels = user.clone();
    // Only on the lead: of no use on other pods.
    labels.remove(JOB_INDEX);
    labels.extend(of_object(cluster));
    for (key, value) in [
        ("namespace", namespace),
        (AUTOSCALER, cluster),
        ("app", "flux-operator"),
        (HEADLESS, headless),
    ] {
        labels.insert(key.into(), value.into());
    }
    labels
}

/// Selector of the pods of a MiniCluster, for its status.
pub fn selector(cluster: &str) -> String {
    format!("{AUTOSCALER}={cluster}")
}

/// Driver and handle of a CSI volume as one text, as the annotation `DISK` has it.
pub fn disk(driver: &str, handle: &str) -> String {
    format!("{driver} {handle}")
}

#[cfg(test)]
mod tests {
    use flux_shared::names::{OWN_LABELS, OWN_POD_LABELS};

    use super::*;

    /// Users are told by those lists that their own values do not count.
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
