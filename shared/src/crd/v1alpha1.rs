//! `flux-framework.org/v1alpha1`: the older version of the API.
//!
//! It differs from v1alpha2 in what a missing field means. By default, Flux comes from the container's own image and
//! runs as the user flux, a cluster without a command serves the Flux RESTful API, and the pods are deleted when the
//! job has completed. Options of Flux are accepted in both places that this version had for them: the container and
//! the `flux` block. Fields that came with v1alpha2 have the same name and place here, so conversion between the
//! versions loses nothing (see `convert`).
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

pub use super::v1alpha2::{
    Archive, BurstedCluster, Bursting, Commands, Condition, ExistingVolume, FluxContainer, GROUP, KIND,
    LeadBroker, LifeCycle, Logging, MadeVolume, Network, Resources, Scheduler, SecretKey, Toleration, User,
    Volume,
};

/// This version.
pub const VERSION: &str = "v1alpha1";

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
fn connect_timeout() -> String {
    crate::flux_duration::DEFAULT_CONNECT_TIMEOUT.into()
}
fn log_level() -> i32 {
    6
}
fn submit_command() -> String {
    "flux submit".into()
}
fn install_root() -> String {
    "/usr".into()
}
fn branch() -> String {
    "main".into()
}
fn port() -> i32 {
    5000
}

/// A MiniCluster is a Flux instance in Kubernetes: an Indexed Job whose pod 0 is the lead broker and whose
/// other pods join it. This is the older version, v1alpha1; v1alpha2 is the current one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(kube::CustomResource, schemars::JsonSchema))]
#[cfg_attr(
    feature = "crd",
    kube(
        group = "flux-framework.org",
        version = "v1alpha1",
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
    /// `-N minSize` if minSize is below size.
    #[serde(default = "one")]
    pub tasks: i32,
    /// Start the broker without a program and keep it up, for `kubectl exec`. `flux shutdown` then ends it
    /// with 0.
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
    /// When the job has completed (exit code 0), delete the pods, and the PersistentVolumes and claims that
    /// were created for volumes; a PersistentVolume with delete: false stays. After a failure everything
    /// stays. The MiniCluster and its status remain. In v1alpha2: cleanupPods.
    #[serde(default = "yes")]
    pub cleanup: bool,
    /// Delete the MiniCluster, and everything that belongs to it, when the job has finished. In v1alpha2:
    /// cleanup.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cleanup_mini_cluster: bool,
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
    /// Options of Flux.
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
    /// Users to create on every pod, each with a generated password, or a chosen one of 8 characters at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    /// The Flux RESTful API, which the lead serves if the cluster has no command or script and is not
    /// interactive.
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

block! {
    /// Options of Flux.
    pub struct Flux {
        /// Architecture of the nodes, as in their label kubernetes.io/arch: amd64 or arm64 (arm means arm64).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub arch: Option<String>,
        /// A container that provides Flux. Without this block, Flux comes from the image of the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub container: Option<FluxContainer>,
        /// Prefix of the image's own Flux, such as /opt/flux.
        #[serde(default = "install_root")]
        pub install_root: String,
        /// A follower completes when its broker ends: the broker is not restarted. (With pod.restartPolicy
        /// OnFailure it is.)
        #[serde(default, skip_serializing_if = "is_false")]
        pub complete_workers: bool,
        /// Shape of the tree of brokers: kary:K, binomial, mincrit or mincrit:K. Default: kary:256.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub topology: Option<String>,
        /// Command in place of `flux submit`.
        #[serde(default = "submit_command")]
        pub submit_command: String,
        /// Flags added to `flux submit` and `flux batch`, such as -ompi=openmpi@5.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub option_flags: String,
        /// Level of the broker's messages on standard error, 0 (emergencies only) to 7 (debug). logging.quiet
        /// sets 0.
        #[serde(default = "log_level")]
        pub log_level: i32,
        /// Command that runs the broker on every pod (`flux start --wrap`), its words separated by commas,
        /// such as strace,-f.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub wrap: Option<String>,
        /// The scheduler.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scheduler: Option<Scheduler>,
        /// Create a Service for the lead only, instead of a headless Service for all pods.
        #[serde(default, skip_serializing_if = "is_false")]
        pub minimal_service: bool,
        /// The whole broker.toml, used as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub broker_config: Option<String>,
        /// Parts of broker.toml, by name: TOML whose tables, such as queues, policy, exec and ingest, are
        /// merged over the agent's in the order of the names.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub configs: BTreeMap<String, String>,
        /// The curve certificate (as flux keygen writes it), to share one between clusters. Default:
        /// generated once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub curve_cert: Option<String>,
        /// A Secret whose key curve.cert is the curve certificate, in place of curveCert.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub curve_cert_secret: Option<String>,
        /// Timeout of one attempt to connect to the parent broker, such as 5s; empty: Flux's own.
        #[serde(default = "connect_timeout")]
        pub connect_timeout: String,
        /// How long a follower's broker keeps running without a heartbeat from the lead, such as 60s; 0: no
        /// limit. Default: Flux's own, 5m. The operator ends the pods of a lost lead sooner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub heartbeat_timeout: Option<String>,
        /// Seconds a follower waits for its parent broker at the start before it exits. Default: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub parent_deadline_seconds: Option<i64>,
        /// Seconds the lead's DNS name may be missing before a follower exits. Default: 30.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lead_gone_seconds: Option<i64>,
        /// Seconds a lead that has answered before may be silent before a follower exits. Default: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lead_silent_seconds: Option<i64>,
        /// Port on which the lead serves metrics of the instance (nodes, cores, jobs by state): for
        /// Prometheus at /metrics, as JSON at /metrics.json. Without authentication. Default: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub metrics_port: Option<i32>,
        /// Other clusters of the same Flux instance.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub bursting: Option<Bursting>,
        /// Alias of bursting.leadBroker, for existing manifests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lead_broker: Option<LeadBroker>,
        /// Leave the broker's socket at Flux's default path, which other containers do not see.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable_socket: bool,
        /// Start the sidecars' commands without waiting for the broker's socket.
        #[serde(default, skip_serializing_if = "is_false")]
        pub no_wait_socket: bool,
        /// Secret to mount at /etc/munge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub munge_secret: Option<String>,
        /// Environment of the brokers, and so of the jobs; also set by flux-view.sh.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub environment: BTreeMap<String, String>,
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
        /// Mount the token of the ServiceAccount. Default: true.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub automount_service_account_token: Option<bool>,
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
    /// A container.
    #[derive(Default)]
    pub struct Container {
        /// Name; required, except for the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Image; that of the Flux runner has Flux in it. Default: ghcr.io/rse-ops/accounting:app-latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// Number of cores that Flux manages on every node: 0 to cores-1. Default: all that the container may
        /// use.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cores: Option<i32>,
        /// On the Flux runner: the job's command, split into arguments with POSIX quoting; without one, the
        /// lead serves the Flux RESTful API, unless interactive. On a sidecar: shell source. On a service:
        /// replaces the image's entrypoint.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub command: Option<String>,
        /// Requests and limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub resources: Option<Resources>,
        /// Secret to pull the image with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image_pull_secret: Option<String>,
        /// Working directory; created if missing, and owned by the user that Flux runs as. Default: the
        /// image's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub working_dir: Option<String>,
        /// Pull the image at every start.
        #[serde(default, skip_serializing_if = "is_false")]
        pub pull_always: bool,
        /// Kubernetes' imagePullPolicy: Always, IfNotPresent or Never. pullAlways wins.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image_pull_policy: Option<String>,
        /// This container runs Flux. Default: true if it is the only one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub run_flux: Option<bool>,
        /// Environment variables. As in a pod, `$(NAME)` in a value stands for an earlier variable (in the order of
        /// their names) or for a variable of `secrets`, and `$$` for `$`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub environment: BTreeMap<String, String>,
        /// Environment variables from Secrets: each names a Secret and a key in it.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub secrets: BTreeMap<String, SecretKey>,
        /// TCP ports. A sidecar with ports gets a Service of its name.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub ports: Vec<i32>,
        /// The same as flux.optionFlags, on the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_option_flags: Option<String>,
        /// The same as flux.logLevel, on the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_log_level: Option<i32>,
        /// Shell source, run before commands.pre.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_command: Option<String>,
        /// Instead of the command: report the overlay, attributes and log of the instance, then stay up.
        #[serde(default, skip_serializing_if = "is_false")]
        pub diagnostics: bool,
        /// The user to run Flux as; created if missing. Default: flux, with id 1000.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_user: Option<FluxUser>,
        /// Alias of fluxUser, for existing manifests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub fluxuser: Option<FluxUser>,
        /// Pass the command to flux start without flux submit: the command launches Flux jobs itself.
        #[serde(default, skip_serializing_if = "is_false")]
        pub launcher: bool,
        /// Each line of the command is one job of a flux batch.
        #[serde(default, skip_serializing_if = "is_false")]
        pub batch: bool,
        /// With batch: the command is the batch script itself.
        #[serde(default, skip_serializing_if = "is_false")]
        pub batch_raw: bool,
        /// With batch: directory for the jobs' output. Default: /tmp/fluxout.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub logs: Option<String>,
        /// Lifecycle hooks of the container.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub life_cycle: Option<LifeCycle>,
        /// Snippets and wrappers around the start of Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub commands: Option<Commands>,
        /// Volumes of spec.volumes, by name, and where they are mounted. A volume with a source of its own
        /// need not be in spec.volumes.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub volumes: BTreeMap<String, Volume>,
        /// Volumes that exist already, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub existing_volumes: BTreeMap<String, ExistingVolume>,
        /// privileged and addCapabilities; all of Kubernetes' SecurityContext is accepted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::security_context"))]
        pub security_context: Option<Value>,
        /// Keep the image's own entrypoint (sidecars).
        #[serde(default, skip_serializing_if = "is_false")]
        pub no_wrap_entrypoint: bool,
    }
}

block! {
    /// The user that Flux runs as.
    pub struct FluxUser {
        /// User name. Default: flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// User id, if the user must be created. Default: 1000.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<i64>,
        /// Run Flux as the container's own user.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable: bool,
    }
}

block! {
    /// The Flux RESTful API, to submit jobs over HTTP.
    pub struct FluxRestful {
        /// Do not serve the API: without a command, the broker just stays up.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable: bool,
        /// Branch or tag of the API's repository.
        #[serde(default = "branch")]
        pub branch: String,
        /// Port that it listens on.
        #[serde(default = "port")]
        pub port: i32,
        /// Key that encodes the payloads. Default: generated. Stored in the Secret that
        /// status.fluxRestfulSecret names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub secret_key: Option<String>,
        /// User name of its clients. Default: flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub username: Option<String>,
        /// Token (password) of the user `username`. Default: generated. Stored in the Secret that
        /// status.fluxRestfulSecret names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub token: Option<String>,
    }
}

block! {
    /// What the MiniCluster is doing.
    #[derive(Default)]
    pub struct MiniClusterStatus {
        /// Always empty; kept for clients of 2023.
        #[serde(default)]
        pub jobid: String,
        /// All else is as in v1alpha2.
        #[serde(flatten)]
        pub status: super::v1alpha2::MiniClusterStatus,
    }
}
