//! Every permission, with its reason.

use crate::labels;
use crate::webhook;
use crate::webhook::migrate;

/// A permission, and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Permission {
    pub group: &'static str,
    pub resource: &'static str,
    /// Objects; none: all.
    pub names: &'static [&'static str],
    pub verbs: &'static [&'static str],
    pub reason: &'static str,
}

pub(super) const fn allow(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Permission {
    Permission { group, resource, names: &[], verbs, reason }
}

impl Permission {
    pub(super) const fn only(self, names: &'static [&'static str]) -> Permission {
        Permission { names, ..self }
    }
}

/// All that the operator may do where MiniClusters are. A test fails when it needs more, or less.
pub const PERMISSIONS: &[Permission] = &[
    allow("flux-framework.org", "miniclusters", &["list", "watch"], "the objects it serves"),
    allow("flux-framework.org", "miniclusters", &["delete"], "cleanup and ttlSecondsAfterFinished"),
    allow("flux-framework.org", "miniclusters/status", &["patch"], "to say what they are doing"),
    allow(
        "flux-framework.org",
        "miniclusters/finalizers",
        &["update"],
        "to be the owner that a foreground deletion waits for, where OwnerReferencesPermissionEnforcement is on",
    ),
    allow("batch", "jobs", &["list", "watch", "create", "patch"], "one a MiniCluster; patch: size and suspend"),
    allow("", "services", &["list", "watch", "create", "patch"], "the pods' names; patch: who shares one"),
    allow("", "pods", &["list", "watch"], "the state of the brokers"),
    allow("", "pods/status", &["patch"], "the label job-index, and which pod is the lead, in one call"),
    allow("", "pods", &["create"], "the pod of spec.services"),
    allow("", "configmaps", &["create", "patch"], "what the agents need to know"),
    allow(
        "",
        "secrets",
        &["create"],
        "keys and passwords, made once: their names hold the uid, so none is ever looked up",
    ),
    allow("", "configmaps", &["get"], "whose it is, if one of that name exists (only then, and only its metadata)"),
    allow("", "services", &["get"], "whose it is, if one of that name exists"),
    allow("batch", "jobs", &["get"], "whose it is, if one of that name exists; how it is, before a start is counted"),
    allow(
        "batch",
        "jobs",
        &["delete"],
        "one to be made anew: its pods cannot mount the view's image, or its lead was lost",
    ),
    allow("batch", "jobs/status", &["patch"], "to end one that nothing may run again in: its lead was lost too often"),
    allow("", "pods", &["get"], "whose it is, if a services pod of that name exists"),
    allow("", "events", &["list"], "why a Job makes no pods, or a pod does not start, where nothing else says"),
    allow(
        "events.k8s.io",
        "events",
        &["create", "patch"],
        "what a person would want to know; patch: counts repetitions",
    ),
];

/// What it may do besides where MiniClusters are, for `spec.volumes` and for cleaning up.
pub const STORAGE_PERMISSIONS: &[Permission] = &[
    allow("", "persistentvolumeclaims", &["create"], "the claims on spec.volumes"),
    allow("", "persistentvolumeclaims", &["get", "patch"], "until it is bound; patch: to wake what binds it"),
    allow("", "persistentvolumeclaims", &["delete"], "cleaning up"),
    allow("", "pods", &["delete", "deletecollection"], "cleaning up: the services pod, and those of the completed Job"),
    allow(
        "flux-framework.org",
        "miniclusters",
        &["get"],
        "whether that of a PersistentVolume is gone; the whole of one that is large",
    ),
];

/// What it may do with PersistentVolumes, which are in no namespace.
pub const VOLUME_PERMISSIONS: &[Permission] = &[
    allow("", "persistentvolumes", &["create"], "those of spec.volumes"),
    allow("", "persistentvolumes", &["get"], "whose it is, if one of that name exists, and until it is bound"),
    allow("", "persistentvolumes", &["patch"], "to use one again that was kept (delete: false)"),
    allow("", "persistentvolumes", &["list", "watch", "delete"], "to delete those whose MiniClusters are gone"),
    allow("storage.k8s.io", "storageclasses", &["list", "watch"], "to say which one of a volume is not there"),
];

/// What it may do with nodes, which are in no namespace.
pub const NODE_PERMISSIONS: &[Permission] =
    &[allow("", "nodes", &["list", "watch"], "whether they can mount images: then no view is copied")];

/// What it may do besides where MiniClusters are, if it makes NetworkPolicies for them.
pub const NETWORK_PERMISSIONS: &[Permission] = &[
    allow("networking.k8s.io", "networkpolicies", &["create"], "who reaches the brokers of a MiniCluster"),
    allow("networking.k8s.io", "networkpolicies", &["get"], "whose it is, if one of that name exists"),
];

/// What it may do besides where MiniClusters are, if they may be in queues of Kueue's.
pub const KUEUE_PERMISSIONS: &[Permission] =
    &[allow("kueue.x-k8s.io", "workloads", &["list"], "why a Job waits in its queue")];

/// What it may do besides where MiniClusters are, if their pods may be gangs. Workload is Kubernetes 1.35's, PodGroup that of later
/// ones, of scheduler-plugins and of Volcano.
pub const GANG_PERMISSIONS: &[Permission] = &[
    allow("scheduling.k8s.io", "workloads", &["create"], "all pods or none, on Kubernetes 1.35"),
    allow("scheduling.k8s.io", "workloads", &["get"], "whose it is, if one of that name exists"),
    allow(
        "scheduling.k8s.io",
        "workloads",
        &["delete"],
        "one to be made anew: of another size, or of a Job that is gone",
    ),
    allow("scheduling.k8s.io", "podgroups", &["create"], "all pods or none"),
    allow("scheduling.k8s.io", "podgroups", &["get"], "whose it is, if one of that name exists"),
    allow("scheduling.k8s.io", "podgroups", &["patch", "delete"], "its size; delete: of a Job that is gone"),
    allow("scheduling.x-k8s.io", "podgroups", &["create"], "the same by scheduler-plugins"),
    allow("scheduling.x-k8s.io", "podgroups", &["get"], "whose it is, if one of that name exists"),
    allow("scheduling.x-k8s.io", "podgroups", &["patch", "delete"], "its size; delete: of a Job that is gone"),
    allow("scheduling.volcano.sh", "podgroups", &["create"], "the same by Volcano"),
    allow("scheduling.volcano.sh", "podgroups", &["get"], "whose it is, if one of that name exists"),
    allow("scheduling.volcano.sh", "podgroups", &["patch", "delete"], "its size; delete: of a Job that is gone"),
];

/// What people may do who may look at a namespace.
pub(super) const VIEW_PERMISSIONS: &[Permission] = &[
    allow(
        "flux-framework.org",
        "miniclusters",
        &["get", "list", "watch"],
        "passwords that stand in a spec as well: who leaves them out has them made, into Secrets",
    ),
    allow("flux-framework.org", "miniclusters/status", &["get"], "what they are doing"),
    allow("flux-framework.org", "miniclusters/scale", &["get"], "their sizes"),
];

/// What people may do who may make pods in a namespace.
pub(super) const EDIT_PERMISSIONS: &[Permission] = &[
    allow(
        "flux-framework.org",
        "miniclusters",
        &["create", "update", "patch", "delete", "deletecollection"],
        "as pods, which they become",
    ),
    allow("flux-framework.org", "miniclusters/scale", &["update", "patch"], "their sizes"),
];

/// What it may do in its own namespace besides.
pub const OWN_PERMISSIONS: &[Permission] = &[
    allow("coordination.k8s.io", "leases", &["get", "create", "patch"], "which of several operators leads"),
    allow("apps", "deployments", &["get"], "the Lease's owner, so that both go together").only(&[labels::OPERATOR]),
];

/// What the webhook may do in its own namespace.
pub const WEBHOOK_OWN_PERMISSIONS: &[Permission] = &[
    allow("", "secrets", &["create"], "the webhook's certificate, which all replicas share"),
    allow("", "secrets", &["get", "list", "watch", "update"], "its renewal").only(&[webhook::NAME]),
    allow("apps", "deployments", &["get"], "the Secret's owner, so that both go together").only(&[webhook::NAME]),
];

/// What the webhook may do in the whole cluster.
pub const WEBHOOK_PERMISSIONS: &[Permission] = &[allow(
    "apiextensions.k8s.io",
    "customresourcedefinitions",
    &["get", "list", "watch", "patch"],
    "who may sign the webhook's certificate: the caBundle of the one definition",
)
.only(&[migrate::CRD])];
