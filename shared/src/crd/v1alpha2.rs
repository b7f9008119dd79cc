//! `flux-framework.org/v1alpha2`: the fields, their units and defaults.
//!
//! Doc comments become the descriptions in the CRD, so they are written for users. The schema has the defaults of the
//! fields without `skip_serializing_if`. Every block is optional.
#![cfg_attr(
    feature = "crd",
    expect(
        clippy::duplicated_attributes,
        reason = "several columns have the same type and priority"
    )
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quantity::Quantity;

mod access;
mod container;
mod flux;
mod status;
mod storage;

pub use access::{FluxRestful, User};
pub use container::{Commands, Container, FluxUser, LifeCycle, Resources, SecretKey, Volume};
pub use flux::{BurstedCluster, Bursting, Flux, FluxContainer, LeadBroker, Scheduler};
pub(crate) use flux::{mount_path, submit_command, view_name};
pub use status::{Condition, ConditionStatus, LostPod, MiniClusterStatus, Restart, Timeline};
pub use storage::{ExistingVolume, HOST_PATH_CLASS, MadeVolume};

/// The API group.
pub const GROUP: &str = "flux-framework.org";
/// The version that this module defines.
pub const VERSION: &str = "v1alpha2";
/// The value of `managedBy` that means this operator.
pub const MANAGER: &str = "flux-framework.org/flux-operator";
/// The kind of the API's only objects.
pub const KIND: &str = "MiniCluster";

// The defaults of fields, and conditions for leaving a field out, which serde's attributes name.

fn yes() -> bool {
    true
}
fn one() -> i32 {
    1
}
fn is_false(value: &bool) -> bool {
    !*value
}
fn is_zero(value: &i32) -> bool {
    *value == 0
}
/// Default of `network.headlessName`.
pub fn headless_name() -> String {
    "flux-service".into()
}

/// A MiniCluster is a Flux instance in Kubernetes: an Indexed Job whose pod 0 is the lead broker and whose
/// other pods join it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(kube::CustomResource, schemars::JsonSchema))]
#[cfg_attr(
    feature = "crd",
    kube(
        group = "flux-framework.org",
        version = "v1alpha2",
        kind = "MiniCluster",
        plural = "miniclusters",
        singular = "minicluster",
        shortname = "mc",
        category = "all",
        namespaced,
        status = "MiniClusterStatus",
        derive = "PartialEq",
        scale(
            spec_replicas_path = ".spec.size",
            status_replicas_path = ".status.size",
            label_selector_path = ".status.selector"
        ),
        printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
        printcolumn(name = "Size", type_ = "integer", json_path = ".spec.size"),
        printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readySize"),
        printcolumn(name = "Exit", type_ = "integer", json_path = ".status.exitCode"),
        printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1),
        printcolumn(
            name = "Message",
            type_ = "string",
            json_path = ".status.message",
            priority = 1
        ),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[serde(rename_all = "camelCase")]
pub struct MiniClusterSpec {
    /// Number of pods; each runs one broker. Also the number of brokers that must be online before the job
    /// starts, unless minSize is set. Can be changed while the cluster runs, up to maxSize.
    #[serde(default = "one")]
    pub size: i32,
    /// Largest number of pods that size may be raised to. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<i32>,
    /// Number of brokers that must be online before the job starts. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_size: Option<i32>,
    /// Total number of tasks of the job (`-n`). `-N size` is added if there are at least as many tasks as pods,
    /// unless minSize is below size. With 0 there is no `-n`: the job asks for all nodes only, `-N size`, or
    /// `-N minSize` if minSize is below size. If flux.optionFlags has an option per resource, such as `--gpus-per-node`
    /// or `--tasks-per-node`, the default of 1 is left out.
    #[serde(default = "one")]
    pub tasks: i32,
    /// Start the broker without a program (diagnostics run anyway) and keep it up, for `kubectl exec`.
    /// `flux shutdown` then ends it with 0.
    #[serde(default, skip_serializing_if = "is_false")]
    pub interactive: bool,
    /// The command launches Flux jobs itself: it is not wrapped in flux submit. Same as launcher on the Flux
    /// runner.
    #[serde(default, skip_serializing_if = "is_false")]
    pub launcher: bool,
    /// Labels of the Job object (not of its pods).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub job_labels: BTreeMap<String, String>,
    /// Seconds from the start of the Job after which it is ended: waiting for nodes and images counts, and
    /// restarts share the time. A resumed Job begins again. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<i64>,
    /// How often the whole MiniCluster may be restarted because its lead was lost (its node failed or was
    /// drained, or its pod was deleted) or its Job was deleted; also how often one follower that does not
    /// start is recreated. Default: 100; 0: never. A failed command is retried only with pod.restartPolicy:
    /// OnFailure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_limit: Option<i32>,
    /// How often the whole MiniCluster may be restarted after its job failed because a follower was lost
    /// while the job ran on it. Can be changed at any time. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_restarts: i32,
    /// Delete the MiniCluster, and everything that belongs to it, when the job has finished.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cleanup: bool,
    /// When the job has completed (exit code 0), delete the pods, and the PersistentVolumes and claims that
    /// were created for volumes; a PersistentVolume with delete: false stays. After a failure everything
    /// stays. The MiniCluster and its status remain. In v1alpha1: cleanup.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cleanup_pods: bool,
    /// Delete the MiniCluster this many seconds after the job has finished. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Create the Job suspended, or suspend a running one: its pods are deleted, and created again when this
    /// is false. Unset: the Job's own suspend is left alone. No effect in a Kueue queue, which suspends and
    /// resumes the Job itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Controller that manages the MiniCluster, like managedBy of a Job. With another value than the default,
    /// such as kueue.x-k8s.io/multikueue, this operator ignores the MiniCluster. Cannot be changed. Default:
    /// flux-framework.org/flux-operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Share one process namespace among the containers of a pod.
    #[serde(default, skip_serializing_if = "is_false")]
    pub share_process_namespace: bool,
    /// File that Flux's state is restored from and saved to, so that a later MiniCluster can continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<Archive>,
    /// Network of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Options of Flux, and of the container that provides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux: Option<Flux>,
    /// What the pods log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,
    /// Attributes of every pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// Schedule all pods of the MiniCluster (minSize of them, if set) or none, so that two MiniClusters that
    /// each hold half of the nodes do not block each other: "on", "off" or "auto". Default: "auto", which is
    /// on if the operator is installed with gangs and the cluster has a gang API. Quote the value: YAML reads
    /// a bare on or off as true or false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<String>,
    /// A strategic merge patch on the template of the MiniCluster's pods, for pod and container fields that
    /// this spec lacks. Lists are merged by name; `$patch: delete` removes an item. Fields that the operator
    /// or the agent relies on cannot be patched: the error names the field to use instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::overlay"))]
    pub pod_template: Option<serde_json::Value>,
    /// A strategic merge patch on the template of the services pod, like podTemplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::overlay"))]
    pub services_pod_template: Option<serde_json::Value>,
    /// Users to create on every pod, which needs root. Each has a generated password, or a chosen one of 8
    /// characters at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    /// The Flux RESTful API, which the lead serves if the cluster has no command, script or diagnostics and is
    /// not interactive. Unset: not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux_restful: Option<FluxRestful>,
    /// Volumes that the operator creates, by name: each is a PersistentVolume and a claim. A container mounts
    /// one by naming it in its volumes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, MadeVolume>,
    /// Containers of every pod: exactly one runs Flux, the others are its sidecars.
    pub containers: Vec<Container>,
    /// Containers of one extra pod, `<name>-services`, which runs no broker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Container>,
}

impl MiniClusterSpec {
    /// Whether `containers[i]` runs Flux: a single container always does.
    pub fn runs_flux(&self, i: usize) -> bool {
        self.containers.len() == 1
            || self
                .containers
                .get(i)
                .is_some_and(|container| container.run_flux == Some(true))
    }

    /// Whether `managedBy` names another controller: this operator then ignores the MiniCluster.
    pub fn is_managed_elsewhere(&self) -> bool {
        self.managed_by
            .as_deref()
            .is_some_and(|name| !name.is_empty() && name != MANAGER)
    }
}

block! {
    /// State kept between MiniClusters.
    pub struct Archive {
        /// A file on a volume that outlives the pods. Restored at the start if it exists. Saved at the end
        /// and on a stop: written to a file beside it, which replaces it once complete. The suffix selects
        /// the format: .tar, .tgz, .tar.gz, .tar.bz2, .tar.xz or .zip.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub path: String,
    }
}

block! {
    /// Network of the pods.
    pub struct Network {
        /// Name of the headless Service. MiniClusters of one namespace may share it.
        #[serde(default = "headless_name")]
        pub headless_name: String,
        /// Turn off the default preference (not a requirement) for one pod per node, all in one zone.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable_affinity: bool,
    }
}

impl Default for Network {
    fn default() -> Self {
        Network {
            headless_name: headless_name(),
            disable_affinity: false,
        }
    }
}

block! {
    /// What the pods log.
    #[derive(Default)]
    pub struct Logging {
        /// Only the job's own output (errors and warnings still show).
        #[serde(default, skip_serializing_if = "is_false")]
        pub quiet: bool,
        /// If a command fails in a snippet that runs before the program, the pod ends with its exit code
        /// (errexit and pipefail). false: the failure is reported and ignored. If you set true yourself, `post`
        /// is strict as well: if the job ended with 0 and `post` fails on the lead, the exit code of `post` is
        /// the result. Default: true, unless the installation sets another (`snippets.strict`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub strict: Option<bool>,
        /// Report the wall time of flux start and of the job (lines that begin with FLUXTIME). No effect with quiet.
        #[serde(default, skip_serializing_if = "is_false")]
        pub timed: bool,
        /// Log more about the submission of the job (-vvv), or the events of a batch. No effect with quiet.
        #[serde(default, skip_serializing_if = "is_false")]
        pub debug: bool,
        /// Log the events of ZeroMQ connections between brokers.
        #[serde(default, skip_serializing_if = "is_false")]
        pub zeromq: bool,
        /// Format of the agent's own log lines: text (default), or json, one object per line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub format: Option<String>,
    }
}

block! {
    /// Attributes of every pod.
    #[derive(Default)]
    pub struct Pod {
        /// Labels of the pods. The operator's own labels win.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub labels: BTreeMap<String, String>,
        /// Annotations of the pods.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub annotations: BTreeMap<String, String>,
        /// Resources of the whole pod: its overhead with a runtimeClassName, else its requests and limits.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub resources: BTreeMap<String, Quantity>,
        /// Name of the scheduler.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scheduler_name: Option<String>,
        /// Name of the ServiceAccount.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service_account_name: Option<String>,
        /// Never (default) or OnFailure. With OnFailure the kubelet restarts a failed command, up to
        /// backoffLimit times.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub restart_policy: Option<String>,
        /// Seconds from SIGTERM to SIGKILL when a pod is stopped: for the program to clean up and the archive
        /// to be saved. Default: 30.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub termination_grace_period_seconds: Option<i64>,
        /// Name of the RuntimeClass.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub runtime_class_name: Option<String>,
        /// Mount the token of the ServiceAccount.
        #[serde(default, skip_serializing_if = "is_false")]
        pub automount_service_account_token: bool,
        /// Labels that the nodes must have.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub node_selector: BTreeMap<String, String>,
        /// Use the host's IPC namespace.
        #[serde(default, rename = "hostIPC", skip_serializing_if = "is_false")]
        pub host_ipc: bool,
        /// Use the host's process ids.
        #[serde(default, rename = "hostPID", skip_serializing_if = "is_false")]
        pub host_pid: bool,
        /// Kubernetes' PodSecurityContext.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::pod_security_context"))]
        pub security_context: Option<Value>,
        /// Taints that the pods tolerate.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub tolerations: Vec<Toleration>,
        /// Labels that the nodes must have, each with the values allowed.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub node_affinity: BTreeMap<String, Vec<String>>,
        /// Kubernetes' dnsPolicy: ClusterFirst (default), ClusterFirstWithHostNet (the default with
        /// podTemplate's hostNetwork) or Default. None is not supported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub dns_policy: Option<String>,
    }
}

block! {
    /// A taint that the pods tolerate.
    #[derive(Default)]
    pub struct Toleration {
        /// Key of the taint. Empty, with operator Exists: every taint.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub key: Option<String>,
        /// Equal (default) or Exists.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub operator: Option<String>,
        /// Value of the taint.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub value: Option<String>,
        /// NoSchedule, PreferNoSchedule or NoExecute; unset: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub effect: Option<String>,
        /// With NoExecute: seconds a pod may stay on a node that gets the taint. Default: no limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub toleration_seconds: Option<i64>,
    }
}
