//! `flux-framework.org/v1alpha2`: the fields, their units and defaults.
//!
//! Doc comments become the descriptions in the CRD, so they are written for users. Defaults that are not the zero value
//! of their type stand in the schema; every block is optional.
#![cfg_attr(feature = "crd", expect(clippy::duplicated_attributes, reason = "columns of one type, of one priority"))]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quantity::Quantity;

mod access;
mod storage;

pub use access::{FluxRestful, User};
pub use storage::{ExistingVolume, HOST_PATH_CLASS, MadeVolume};

/// The API group.
pub const GROUP: &str = "flux-framework.org";
/// This version.
pub const VERSION: &str = "v1alpha2";
/// The kind.
pub const KIND: &str = "MiniCluster";

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
pub(crate) fn headless_name() -> String {
    "flux-service".into()
}
fn connect_timeout() -> String {
    "5s".into()
}
pub(crate) fn mount_path() -> String {
    crate::paths::DEFAULT_MOUNT_PATH.into()
}
pub(crate) fn view_name() -> String {
    "flux-view".into()
}
fn log_level() -> i32 {
    6
}
fn broker_port() -> i32 {
    8050
}
pub(crate) fn submit_command() -> String {
    "flux submit".into()
}

/// A MiniCluster is a Flux instance in Kubernetes: an Indexed Job whose pod 0 is the lead broker and whose other pods
/// join it.
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
        printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )
)]
#[serde(rename_all = "camelCase")]
pub struct MiniClusterSpec {
    /// Number of pods, each one broker. Also the number of brokers that must be online before the job starts, unless
    /// minSize is set. Can be changed while the cluster runs, up to maxSize.
    #[serde(default = "one")]
    pub size: i32,
    /// Largest number of pods that size may be raised to. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<i32>,
    /// Number of brokers that must be online before the job starts. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_size: Option<i32>,
    /// Total number of tasks of the job (`-n`). With at least as many tasks as pods also `-N size`; 0: `-N size` only.
    #[serde(default = "one")]
    pub tasks: i32,
    /// Start the broker without a program and keep it up, for `kubectl exec`. `flux shutdown` then ends it with 0.
    #[serde(default, skip_serializing_if = "is_false")]
    pub interactive: bool,
    /// The command launches Flux jobs itself: it is not wrapped in flux submit. Same as launcher on the Flux runner.
    #[serde(default, skip_serializing_if = "is_false")]
    pub launcher: bool,
    /// Labels of the Job object (not of its pods).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub job_labels: BTreeMap<String, String>,
    /// Longest time from the first start to the end, in seconds, however often it starts again. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<i64>,
    /// How often the whole MiniCluster may start again because its lead was lost (with its node, by a drain, by a delete),
    /// or its Job was deleted; also how often one follower that does not start is made again. Default: 100; 0: never.
    /// A failure of the command is never retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_limit: Option<i32>,
    /// How often the whole MiniCluster may start again after its job has failed because a follower was taken away while the
    /// job ran on it. May change at any time. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_restarts: i32,
    /// Delete the MiniCluster, and all that belongs to it, when it has finished.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cleanup: bool,
    /// When it has finished, delete its pods, and the volumes and claims that were made for volumes (a volume with
    /// delete: false stays). The MiniCluster and its status remain. v1alpha1's cleanup.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cleanup_pods: bool,
    /// Delete the MiniCluster this many seconds after it has finished. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Create the Job suspended, or suspend a running one: its pods go and come back when this is false again. Unset:
    /// left to others, such as a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Containers of a pod see each other's processes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub share_process_namespace: bool,
    /// Where to load the state of an earlier MiniCluster from, and save it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<Archive>,
    /// Network of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Options of Flux, and of the container that brings it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux: Option<Flux>,
    /// What the pods log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,
    /// Attributes of every pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
    /// A strategic merge patch on the template of the MiniCluster's pods, for every field of a pod or a container that
    /// has no place here. Lists with names are merged by them; `$patch: delete` takes an item away. What the operator and the agent
    /// rely on is refused, with the field that says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::overlay"))]
    pub pod_template: Option<serde_json::Value>,
    /// The same for the pod of services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::overlay"))]
    pub services_pod_template: Option<serde_json::Value>,
    /// Users to make on every pod, each with a password of 8 characters at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    /// Without a command, script or interactive: the lead serves the Flux RESTful API. Unset: it serves none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flux_restful: Option<FluxRestful>,
    /// Volumes that the operator makes, each with a PersistentVolume and a claim; containers name them in volumes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<String, MadeVolume>,
    /// Containers of every pod: exactly one runs Flux, the others serve it.
    pub containers: Vec<Container>,
    /// Containers of one more pod beside the cluster, `<name>-services`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Container>,
}

block! {
    /// State kept between MiniClusters.
    pub struct Archive {
        /// A file on a volume that outlives the pods. Restored at the start if it exists; written at the end and on a
        /// stop, to a file beside it that takes its place once it is whole. The suffix names the format: .tar, .tgz,
        /// .tar.gz, .tar.bz2, .tar.xz or .zip.
        pub path: String,
    }
}

block! {
    /// Network of the pods.
    pub struct Network {
        /// Name of the headless Service. MiniClusters of one namespace may share it.
        #[serde(default = "headless_name")]
        pub headless_name: String,
        /// Do not ask for one pod a node in one zone. The default is a preference, not a requirement.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable_affinity: bool,
    }
}

impl Default for Network {
    fn default() -> Self {
        Network { headless_name: headless_name(), disable_affinity: false }
    }
}

block! {
    /// Options of Flux, and of the container that brings it.
    pub struct Flux {
        /// Architecture of the nodes, as in their label kubernetes.io/arch: amd64, arm64 (or arm).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub arch: Option<String>,
        /// The container that brings Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub container: Option<FluxContainer>,
        /// A follower whose broker has ended completes and is not started again.
        #[serde(default, skip_serializing_if = "is_false")]
        pub complete_workers: bool,
        /// Shape of the tree of brokers: kary:K, binomial, mincrit or mincrit:K. Default: flat.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub topology: Option<String>,
        /// The words in place of `flux submit`.
        #[serde(default = "submit_command")]
        pub submit_command: String,
        /// Flags added to submit and batch, such as -ompi=openmpi@5.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub option_flags: String,
        /// Level of the broker's messages on standard error, 0 (emergencies only) to 7 (debug). Quiet logging means 0.
        #[serde(default = "log_level")]
        pub log_level: i32,
        /// Words, separated by commas, put before the broker (`flux start --wrap`), on every pod.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub wrap: Option<String>,
        /// The scheduler.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scheduler: Option<Scheduler>,
        /// Make only the lead broker reachable by name: a Service for index 0 instead of a headless one for all.
        #[serde(default, skip_serializing_if = "is_false")]
        pub minimal_service: bool,
        /// The whole broker.toml, taken as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub broker_config: Option<String>,
        /// Parts of broker.toml, by name: TOML whose tables are merged over those of the agent's, such as queues, policy, exec
        /// and ingest. In the order of their names.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub configs: BTreeMap<String, String>,
        /// The curve certificate (as flux keygen writes it), to share one between clusters. Default: made once, at random.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub curve_cert: Option<String>,
        /// A Secret whose key curve.cert is the curve certificate, in place of curveCert.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub curve_cert_secret: Option<String>,
        /// Longest time of one attempt to connect to the parent broker, such as 5s; empty: the option is not given.
        #[serde(default = "connect_timeout")]
        pub connect_timeout: String,
        /// How long a follower's broker lives on without a heartbeat of the lead's, such as 60s; 0: for ever. Default: Flux's
        /// own, 5m. A pod that is gone is noticed sooner, by its connections.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub heartbeat_timeout: Option<String>,
        /// A follower gives up when its parent broker has not answered for so many seconds at the start. Default: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub parent_deadline_seconds: Option<i64>,
        /// A follower takes the lead for ended when its name has been gone from the DNS for so many seconds. Default: 30.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lead_gone_seconds: Option<i64>,
        /// A follower gives up on a lead that was there and has not answered for so many seconds. Default: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lead_silent_seconds: Option<i64>,
        /// Other clusters of the same Flux instance.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub bursting: Option<Bursting>,
        /// The documented place of bursting.leadBroker.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lead_broker: Option<LeadBroker>,
        /// With container.disable: the prefix of the image's own Flux, such as /opt/flux. Default: where PATH leads.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub install_root: Option<String>,
        /// Do not put the broker's socket at its known place.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable_socket: bool,
        /// Sidecars do not wait for the broker's socket.
        #[serde(default, skip_serializing_if = "is_false")]
        pub no_wait_socket: bool,
        /// A Secret, mounted at /etc/munge.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub munge_secret: Option<String>,
        /// Environment of the brokers, and so of the jobs; also set by flux-view.sh.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub environment: BTreeMap<String, String>,
    }
}

impl Default for Flux {
    fn default() -> Self {
        Flux {
            arch: None,
            container: None,
            complete_workers: false,
            topology: None,
            submit_command: submit_command(),
            option_flags: String::new(),
            log_level: log_level(),
            wrap: None,
            scheduler: None,
            minimal_service: false,
            broker_config: None,
            configs: BTreeMap::new(),
            curve_cert: None,
            curve_cert_secret: None,
            install_root: None,
            connect_timeout: connect_timeout(),
            heartbeat_timeout: None,
            parent_deadline_seconds: None,
            lead_gone_seconds: None,
            lead_silent_seconds: None,
            bursting: None,
            lead_broker: None,
            disable_socket: false,
            no_wait_socket: false,
            munge_secret: None,
            environment: BTreeMap::new(),
        }
    }
}

block! {
    /// The container that brings Flux as a view (a tree of links below one folder).
    pub struct FluxContainer {
        /// Image with the view; its libc must not be newer than that of the Flux runner's image. Default: set by the
        /// operator, ghcr.io/converged-computing/flux-view-rocky:tag-9.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// How the view comes into the pods: imageVolume mounts its image, read-only, and copies nothing (Kubernetes 1.35,
        /// containerd 2.1 or CRI-O 1.33); copy lets an init container copy it; auto takes the image volume where every
        /// node can. Default: as the operator was told, else auto.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub source: Option<String>,
        /// Name of the init container and of its volume.
        #[serde(default = "view_name")]
        pub name: String,
        /// Use the Flux of the Flux runner's own image instead.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable: bool,
        /// PYTHONPATH of the view. Default: its own site-packages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub python_path: Option<String>,
        /// Resources of the init containers, which install the agent and copy the view.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub resources: Option<Resources>,
        /// Working directory of the init container that copies the view.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub working_dir: Option<String>,
        /// Pull the image at every start.
        #[serde(default, skip_serializing_if = "is_false")]
        pub pull_always: bool,
        /// Secret to pull the image with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image_pull_secret: Option<String>,
        /// Where the view and all of Flux's files are in the pods.
        #[serde(default = "mount_path")]
        pub mount_path: String,
        /// Kubernetes' SecurityContext of the init container that copies the view.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::security_context"))]
        pub security_context: Option<Value>,
    }
}

impl Default for FluxContainer {
    fn default() -> Self {
        FluxContainer {
            image: None,
            source: None,
            name: view_name(),
            disable: false,
            python_path: None,
            resources: None,
            working_dir: None,
            pull_always: false,
            image_pull_secret: None,
            mount_path: mount_path(),
            security_context: None,
        }
    }
}

block! {
    /// The scheduler.
    #[derive(Default)]
    pub struct Scheduler {
        /// Queue policy of Fluxion: fcfs, easy, conservative or hybrid. Default: fcfs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub queue_policy: Option<String>,
        /// Use Flux's own simple scheduler (true) or Fluxion (false). Default: simple, but Fluxion with a queuePolicy or where
        /// the Flux runner asks for GPUs, if the view has it; without a view, what the image's Flux comes with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub simple: Option<bool>,
    }
}

block! {
    /// Other clusters of the same Flux instance.
    #[derive(Default)]
    pub struct Bursting {
        /// The lead broker, if it is in another cluster.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lead_broker: Option<LeadBroker>,
        /// The clusters that may join, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<BurstedCluster>,
        /// The whole list of hosts, in place of the one made from clusters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub hostlist: Option<String>,
    }
}

block! {
    /// A lead broker in another cluster.
    pub struct LeadBroker {
        /// Name of its MiniCluster.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Host name or address at which this cluster reaches it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub address: Option<String>,
        /// Port at which this cluster reaches it.
        #[serde(default = "broker_port")]
        pub port: i32,
        /// Number of hosts of its MiniCluster. Default: this cluster's size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub size: Option<i32>,
        /// The documented place of bursting.hostlist.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub hostlist: Option<String>,
    }
}

block! {
    /// A cluster that may join.
    #[derive(Default)]
    pub struct BurstedCluster {
        /// Prefix of its hosts. Default: burst-N, N being its position from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Number of its hosts. Default: this cluster's size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub size: Option<i32>,
    }
}

block! {
    /// What the pods log.
    pub struct Logging {
        /// Only the job's own output (errors still show).
        #[serde(default, skip_serializing_if = "is_false")]
        pub quiet: bool,
        /// A snippet that fails ends the pod with its code; false: it is reported and passed over.
        #[serde(default = "yes")]
        pub strict: bool,
        /// Report the wall time of flux start and of the job (lines that begin with FLUXTIME).
        #[serde(default, skip_serializing_if = "is_false")]
        pub timed: bool,
        /// More about the submission of the job (-vvv), or the events of a batch. Not with quiet.
        #[serde(default, skip_serializing_if = "is_false")]
        pub debug: bool,
        /// Messages of ZeroMQ's connections.
        #[serde(default, skip_serializing_if = "is_false")]
        pub zeromq: bool,
        /// How the agent's own lines look: text (default), or json, an object a line.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub format: Option<String>,
    }
}

impl Default for Logging {
    fn default() -> Self {
        Logging { quiet: false, strict: true, timed: false, debug: false, zeromq: false, format: None }
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
        /// Never (default) or OnFailure. With OnFailure a user's failure is retried by the kubelet, up to backoffLimit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub restart_policy: Option<String>,
        /// Time between the order to stop and the end by force, in seconds: for the program to tidy up, and for the archive
        /// to be written. Default: 30.
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
        /// Kubernetes' dnsPolicy: ClusterFirst (default), ClusterFirstWithHostNet or Default (None takes name servers, which
        /// there is no field for).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub dns_policy: Option<String>,
    }
}

block! {
    /// A taint that the pods tolerate.
    #[derive(Default)]
    pub struct Toleration {
        /// Key of the taint; empty with operator Exists: every taint.
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
        /// How long an evicted pod may stay, in seconds, with NoExecute.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub toleration_seconds: Option<i64>,
    }
}

block! {
    /// Requests and limits.
    #[derive(Default)]
    pub struct Resources {
        /// Limits, such as memory: 500M, cpu: 4, nvidia.com/gpu: 1.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub limits: BTreeMap<String, Quantity>,
        /// Requests.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub requests: BTreeMap<String, Quantity>,
    }
}

block! {
    /// A container.
    #[derive(Default)]
    pub struct Container {
        /// Name; required but for the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Image. Default: ghcr.io/rse-ops/accounting:app-latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// Cores that Flux manages on every node: 0 to cores-1. Default: those that the container may use.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cores: Option<i32>,
        /// On the Flux runner: the job's command, split into words with POSIX quoting; none keeps the cluster up. On a
        /// sidecar: shell source. On a service: words in place of the image's entrypoint.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub command: Option<String>,
        /// Requests and limits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub resources: Option<Resources>,
        /// Secret to pull the image with.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image_pull_secret: Option<String>,
        /// Working directory. Default: the image's.
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
        /// Environment.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub environment: BTreeMap<String, String>,
        /// Environment from Secrets: variable to Secret and key.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub secrets: BTreeMap<String, SecretKey>,
        /// TCP ports. A sidecar with ports gets a Service of its name.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub ports: Vec<i32>,
        /// Shell source, run before commands.pre.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_command: Option<String>,
        /// Instead of the command: report the overlay, attributes and log of the instance, then stay up.
        #[serde(default, skip_serializing_if = "is_false")]
        pub diagnostics: bool,
        /// The user to run Flux as; made if missing (which takes root). Default: the container's own user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_user: Option<FluxUser>,
        /// The same as flux.optionFlags, on the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_option_flags: Option<String>,
        /// The same as flux.logLevel, on the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_log_level: Option<i32>,
        /// The documented spelling of fluxUser.
        #[serde(default, rename = "fluxuser", skip_serializing_if = "Option::is_none")]
        pub fluxuser: Option<FluxUser>,
        /// The command goes straight to flux start, not wrapped in flux submit.
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
        /// Hooks of the container.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub life_cycle: Option<LifeCycle>,
        /// Snippets and wrappers around the start of Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub commands: Option<Commands>,
        /// Volumes, by name. One of no source is that of its name in the spec's volumes.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub volumes: BTreeMap<String, Volume>,
        /// Volumes that exist already, by name: another place for those of volumes with a claim, ConfigMap or Secret.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub existing_volumes: BTreeMap<String, ExistingVolume>,
        /// Kubernetes' SecurityContext; the older addCapabilities is accepted as well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "crd", schemars(schema_with = "crate::crd::schemas::security_context"))]
        pub security_context: Option<Value>,
        /// Keep the image's own entrypoint (sidecars).
        #[serde(default, skip_serializing_if = "is_false")]
        pub no_wrap_entrypoint: bool,
    }
}

block! {
    /// A key of a Secret.
    pub struct SecretKey {
        /// Name of the Secret.
        pub name: String,
        /// Key in it.
        pub key: String,
    }
}

block! {
    /// The user that Flux runs as.
    #[derive(Default)]
    pub struct FluxUser {
        /// User name. Default: flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// User id, if the user must be made. Default: 1000.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<i64>,
        /// Run Flux as the container's own user, as without this block.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable: bool,
    }
}

block! {
    /// Hooks of the container: words with POSIX quoting.
    #[derive(Default)]
    pub struct LifeCycle {
        /// Run after the container has started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub post_start_exec: Option<String>,
        /// Run before the container is stopped.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_stop_exec: Option<String>,
    }
}

block! {
    /// Shell snippets, run in the image's own shell (bash, else sh); what one sets, the next one sees.
    #[derive(Default)]
    pub struct Commands {
        /// Before everything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub init: Option<String>,
        /// On every pod, before Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre: Option<String>,
        /// A program, in place of command; `\$` becomes `$`, all else is kept byte for byte.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub script: Option<String>,
        /// On the lead, before Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub broker_pre: Option<String>,
        /// The documented spelling of brokerPre.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_broker: Option<String>,
        /// On the followers, before Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub worker_pre: Option<String>,
        /// The documented spelling of workerPre.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_worker: Option<String>,
        /// After Flux has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub post: Option<String>,
        /// Words put before submit, batch, the launcher's command, the broker and the followers' start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub prefix: Option<String>,
        /// On sidecars, before they wait for the broker's socket.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service_pre: Option<String>,
        /// Run Flux as root, even with fluxUser.
        #[serde(default, skip_serializing_if = "is_false")]
        pub run_flux_as_root: bool,
    }
}

block! {
    /// A volume and where it is mounted. Exactly one source, or none: that of its name in the spec's volumes.
    #[derive(Default)]
    pub struct Volume {
        /// Where it is mounted in the container.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub path: Option<String>,
        /// A directory of the node; it must exist.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub host_path: Option<String>,
        /// An empty directory that lives as long as the pod.
        #[serde(default, skip_serializing_if = "is_false")]
        pub empty_dir: bool,
        /// memory: kept in memory, and mounted at /dev/shm.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub empty_dir_medium: Option<String>,
        /// Largest size of the empty directory, such as 64Gi.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub empty_dir_size_limit: Option<Quantity>,
        /// A PersistentVolumeClaim.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub claim_name: Option<String>,
        /// A ConfigMap.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub config_map_name: Option<String>,
        /// Keys of the ConfigMap or Secret, each with its path below the mount. Default: all.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub items: BTreeMap<String, String>,
        /// A Secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub secret_name: Option<String>,
        /// Mount it read-only.
        #[serde(default, skip_serializing_if = "is_false")]
        pub read_only: bool,
        /// A CSI driver, for an ephemeral volume.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub csi_driver: Option<String>,
        /// Attributes for the CSI driver.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub csi_driver_attributes: BTreeMap<String, String>,
    }
}

block! {
    /// What the MiniCluster is doing.
    #[derive(Default)]
    pub struct MiniClusterStatus {
        /// One word: Invalid, Pending, Starting, Running, Suspended, Completed, Failed or Terminating.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub phase: Option<String>,
        /// Number of pods that exist and have not ended.
        #[serde(default)]
        pub size: i32,
        /// Number of pods whose Flux runner is ready.
        #[serde(default)]
        pub ready_size: i32,
        /// Largest size allowed, fixed when the cluster was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub maximum_size: Option<i32>,
        /// Selector of the pods, for autoscalers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub selector: Option<String>,
        /// The generation of the spec that this status describes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub observed_generation: Option<i64>,
        /// When the Job started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub start_time: Option<String>,
        /// When it ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub completion_time: Option<String>,
        /// When each step of the last start was reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeline: Option<Timeline>,
        /// Exit code of the lead, 128 + n for signal n.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub exit_code: Option<i32>,
        /// The signal that ended the lead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub signal: Option<i32>,
        /// Index of the pod that failed first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub failed_index: Option<i32>,
        /// Why, in one word.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// Why, in one sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub message: Option<String>,
        /// How often it was started again, in all: each start is told in restarts.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub restart_count: i32,
        /// How many of these starts count towards backoffLimit.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub backoff_limit_used: i32,
        /// How many of these starts count towards maxRestarts.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub max_restarts_used: i32,
        /// How many of these starts were the kubelet's, of the lead's container of the present Job (restartPolicy
        /// OnFailure).
        #[serde(default, skip_serializing_if = "is_zero")]
        pub container_restarts: i32,
        /// The last 20 starts after the first one, the latest last, and why.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub restarts: Vec<Restart>,
        /// Pods that were taken away since the last start, the latest last: 8 at most.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub lost_pods: Vec<LostPod>,
        /// Uid of the Job that runs it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub job_uid: Option<String>,
        /// Secret with the passwords of users, one key each.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub users_secret: Option<String>,
        /// Secret with the Flux RESTful API's key, user and token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_restful_secret: Option<String>,
        /// Conditions, each of its own type.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
    }
}

block! {
    /// A start after the first one.
    pub struct Restart {
        /// When it was decided.
        pub time: String,
        /// Why, in one word: LeadLost, PodLost, JobDeleted, Suspended or the reason why the lead did not start.
        pub reason: String,
        /// Which pod was lost, on which node, and what took it.
        pub message: String,
        /// Uid of the Job that was given up, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub job_uid: Option<String>,
    }
}

block! {
    /// A pod that was taken away.
    #[derive(Default)]
    pub struct LostPod {
        /// Its name.
        pub name: String,
        /// Its completion index; 0 is the lead.
        #[serde(default)]
        pub index: i32,
        /// Its node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub node: Option<String>,
        /// What took it, in one word.
        pub reason: String,
        /// What took it, in one sentence.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub message: String,
        /// When that was first seen.
        pub time: String,
    }
}

block! {
    /// The steps of a start, after `metadata.creationTimestamp` and `startTime`. What the agents did in between stands in their
    /// pods' logs.
    #[derive(Default)]
    pub struct Timeline {
        /// Every pod has a node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scheduled: Option<String>,
        /// The lead's container runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub running: Option<String>,
        /// Enough brokers are ready, as the condition Ready says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ready: Option<String>,
    }
}

block! {
    /// One aspect of the state, as Kubernetes' own conditions.
    pub struct Condition {
        /// Name of the condition.
        #[serde(rename = "type")]
        pub type_: String,
        /// True, False or Unknown.
        pub status: String,
        /// The generation of the spec that it describes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub observed_generation: Option<i64>,
        /// When the status last changed.
        pub last_transition_time: String,
        /// Why, in one word.
        pub reason: String,
        /// Why, in a sentence.
        pub message: String,
    }
}
