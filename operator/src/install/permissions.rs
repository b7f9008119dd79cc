//! Every permission, with its reason.

use flux_operator_core::labels;

use crate::webhook;
use crate::webhook::migrate;

/// A permission, and what it is for.
#[derive(Debug, Clone, Copy)]
pub struct Permission {
    pub group: &'static str,
    pub resource: &'static str,
    /// Names of objects; empty for all.
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

/// The operator's permissions in namespaces of MiniClusters. A test fails if it needs more, or fewer.
pub const PERMISSIONS: &[Permission] = &[
    allow("flux-framework.org", "miniclusters", &["list", "watch"], "the objects it reconciles"),
    allow("flux-framework.org", "miniclusters", &["delete"], "cleanup and ttlSecondsAfterFinished"),
    allow("flux-framework.org", "miniclusters/status", &["patch"], "their status"),
    allow(
        "flux-framework.org",
        "miniclusters/finalizers",
        &["update"],
        "owner references with blockOwnerDeletion, if OwnerReferencesPermissionEnforcement is on",
    ),
    allow("batch", "jobs", &["list", "watch", "create", "patch"], "one for each MiniCluster; patch: size and suspend"),
    allow(
        "",
        "services",
        &["list", "watch", "create", "patch"],
        "the pods' DNS names; patch: the owners of a shared one",
    ),
    allow("", "pods", &["list", "watch"], "the state of the brokers"),
    allow(
        "",
        "pods/status",
        &["patch"],
        "one patch per lead: the label job-index, and that it is the lead; up to 16 after a snippet failed: an annotation to end",
    ),
    allow("", "configmaps", &["create", "patch"], "the spec of the agents"),
    allow(
        "",
        "secrets",
        &["create"],
        "keys and passwords, created once: their names contain the uid, so none is ever read",
    ),
    allow("", "configmaps", &["get"], "the owner of an existing one of that name (only its metadata)"),
    allow("", "services", &["get"], "the owner of an existing one of that name"),
    allow(
        "batch",
        "jobs",
        &["get"],
        "the owner of an existing one of that name; its state before a restart is counted",
    ),
    allow(
        "batch",
        "jobs",
        &["delete"],
        "to recreate it: its pods cannot mount the view's image, or its lead was lost; that of a deleted MiniCluster",
    ),
    allow("batch", "jobs/status", &["patch"], "to fail one whose lead was lost too often"),
    allow(
        "",
        "pods",
        &["deletecollection"],
        "all pods of a MiniCluster that is deleted, or has completed (cleanupPods), with one call",
    ),
    allow("", "events", &["list"], "why a Job creates no pods, or why a pod does not start, if no status says"),
    allow("events.k8s.io", "events", &["create", "patch"], "events of a MiniCluster; patch: repetitions"),
];

/// Its permission to read a MiniCluster past its cache.
pub const WHOLE_PERMISSIONS: &[Permission] = &[allow(
    "flux-framework.org",
    "miniclusters",
    &["get"],
    "whether the owner of a PersistentVolume is gone; the full spec of a large one",
)];

/// Its further permissions in namespaces of MiniClusters, if these may have services.
pub const SERVICES_PERMISSIONS: &[Permission] = &[
    allow("", "pods", &["create"], "the pod of spec.services"),
    allow("", "pods", &["get"], "the owner of an existing services pod of that name"),
    allow("", "pods", &["delete"], "the services pod of a suspended Job; cleaning up: that pod"),
];

/// Its further permissions in namespaces of MiniClusters, for `spec.volumes`.
pub const STORAGE_PERMISSIONS: &[Permission] = &[
    allow("", "persistentvolumeclaims", &["create"], "claims for spec.volumes"),
    allow("", "persistentvolumeclaims", &["get", "patch"], "wait until bound; patch triggers binding"),
    allow("", "persistentvolumeclaims", &["delete"], "cleaning up"),
];

/// Its permissions on PersistentVolumes, which are cluster-scoped.
pub const VOLUME_PERMISSIONS: &[Permission] = &[
    allow("", "persistentvolumes", &["create"], "volumes of spec.volumes"),
    allow("", "persistentvolumes", &["get"], "the owner of an existing one of that name; wait until bound"),
    allow("", "persistentvolumes", &["patch"], "to reuse one that was kept (delete: false)"),
    allow("", "persistentvolumes", &["list", "watch", "delete"], "to delete those whose MiniCluster is gone"),
    allow("storage.k8s.io", "storageclasses", &["list", "watch"], "to report a storage class that does not exist"),
];

/// Its permissions on nodes, which are cluster-scoped.
pub const NODE_PERMISSIONS: &[Permission] =
    &[allow("", "nodes", &["list", "watch"], "whether they can mount images, so that no view is copied")];

/// Its further permissions in namespaces of MiniClusters, if it creates NetworkPolicies for them.
pub const NETWORK_PERMISSIONS: &[Permission] = &[
    allow("networking.k8s.io", "networkpolicies", &["create"], "restrict access to a MiniCluster's brokers"),
    allow("networking.k8s.io", "networkpolicies", &["get"], "the owner of an existing one of that name"),
];

/// Its further permissions in namespaces of MiniClusters, if Kueue may queue them.
pub const KUEUE_PERMISSIONS: &[Permission] =
    &[allow("kueue.x-k8s.io", "workloads", &["list"], "why a Job waits in its queue")];

/// Its further permissions in namespaces of MiniClusters, if their pods may be gangs. Workload is the API of Kubernetes
/// 1.35; PodGroup that of later versions, of scheduler-plugins and of Volcano.
pub const GANG_PERMISSIONS: &[Permission] = &[
    allow("scheduling.k8s.io", "workloads", &["create"], "gangs on Kubernetes 1.35"),
    allow("scheduling.k8s.io", "workloads", &["get"], "the owner of an existing one of that name"),
    allow("scheduling.k8s.io", "workloads", &["list"], "those of earlier Jobs"),
    allow("scheduling.k8s.io", "workloads", &["delete"], "to recreate it with another size; or its Job is gone"),
    allow("scheduling.k8s.io", "podgroups", &["create"], "gangs on later Kubernetes"),
    allow("scheduling.k8s.io", "podgroups", &["get"], "the owner of an existing one of that name"),
    allow("scheduling.k8s.io", "podgroups", &["list"], "those of earlier Jobs"),
    allow("scheduling.k8s.io", "podgroups", &["patch", "delete"], "its size; delete: its Job is gone"),
    allow("scheduling.x-k8s.io", "podgroups", &["create"], "gangs of scheduler-plugins"),
    allow("scheduling.x-k8s.io", "podgroups", &["get"], "the owner of an existing one of that name"),
    allow("scheduling.x-k8s.io", "podgroups", &["list"], "those of earlier Jobs"),
    allow("scheduling.x-k8s.io", "podgroups", &["patch", "delete"], "its size; delete: its Job is gone"),
    allow("scheduling.volcano.sh", "podgroups", &["create"], "gangs of Volcano"),
    allow("scheduling.volcano.sh", "podgroups", &["get"], "the owner of an existing one of that name"),
    allow("scheduling.volcano.sh", "podgroups", &["list"], "those of earlier Jobs"),
    allow("scheduling.volcano.sh", "podgroups", &["patch", "delete"], "its size; delete: its Job is gone"),
];

/// Permissions on MiniClusters for people with the role `view` in a namespace.
pub(super) const VIEW_PERMISSIONS: &[Permission] = &[
    allow(
        "flux-framework.org",
        "miniclusters",
        &["get", "list", "watch"],
        "includes passwords given in a spec; those left out are generated into Secrets",
    ),
    allow("flux-framework.org", "miniclusters/status", &["get"], "their status"),
    allow("flux-framework.org", "miniclusters/scale", &["get"], "their sizes"),
];

/// Permissions on MiniClusters for people who may create pods in a namespace.
pub(super) const EDIT_PERMISSIONS: &[Permission] = &[
    allow(
        "flux-framework.org",
        "miniclusters",
        &["create", "update", "patch", "delete", "deletecollection"],
        "as for pods: creating a MiniCluster creates pods",
    ),
    allow("flux-framework.org", "miniclusters/scale", &["update", "patch"], "their sizes"),
];

/// The operator's further permissions in its own namespace.
pub const OWN_PERMISSIONS: &[Permission] = &[
    allow("coordination.k8s.io", "leases", &["get", "create", "patch"], "leader election"),
    allow("apps", "deployments", &["get"], "owner of the Lease, so that both are deleted together")
        .only(&[labels::OPERATOR]),
];

/// The webhook's permissions in its own namespace.
pub const WEBHOOK_OWN_PERMISSIONS: &[Permission] = &[
    allow("", "secrets", &["create"], "the webhook's certificate, shared by all replicas"),
    allow("", "secrets", &["get", "list", "watch", "update"], "renewal of the certificate").only(&[webhook::NAME]),
    allow("apps", "deployments", &["get"], "owner of the Secret, so that both are deleted together")
        .only(&[webhook::NAME]),
];

/// The webhook's permissions in the whole cluster.
pub const WEBHOOK_PERMISSIONS: &[Permission] = &[allow(
    "apiextensions.k8s.io",
    "customresourcedefinitions",
    &["get", "list", "watch", "patch"],
    "publish the webhook's CA in the CRD's caBundle",
)
.only(&[migrate::CRD])];
