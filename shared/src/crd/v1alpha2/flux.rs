//! The `flux` block: options of Flux, the container that provides it, and other clusters of the same instance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Resources, is_false};

fn connect_timeout() -> String {
    crate::flux_duration::DEFAULT_CONNECT_TIMEOUT.into()
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

block! {
    /// Options of Flux, and of the container that provides it.
    pub struct Flux {
        /// Architecture of the nodes, as in their label kubernetes.io/arch: amd64, arm64 (or arm).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub arch: Option<String>,
        /// The container that provides Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub container: Option<FluxContainer>,
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
        /// Flags added to `flux submit` and `flux batch`, such as --time-limit=60m.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub option_flags: String,
        /// Level of the broker's messages on standard error, 0 (emergencies only) to 7 (debug). logging.quiet
        /// sets 0, logging.zeromq 7.
        #[serde(default = "log_level")]
        pub log_level: i32,
        /// Command that runs the broker on every pod (`flux start --wrap`), its words separated by commas,
        /// such as strace,-f.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub wrap: Option<String>,
        /// The scheduler.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scheduler: Option<Scheduler>,
        /// The headless Service names only the lead, not all pods, if all MiniClusters that share it set this.
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
        /// With container.disable: the prefix of the image's own Flux, such as /opt/flux. Default: that of
        /// the `flux` on the PATH.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub install_root: Option<String>,
        /// Leave the broker's socket at Flux's default path: `local-<rank>` in its run directory.
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
            metrics_port: None,
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
    /// The container that provides Flux as a view (a tree of links below one folder).
    pub struct FluxContainer {
        /// Image with the view; its libc must not be newer than that of the Flux runner's image. Default: set
        /// by the operator, ghcr.io/converged-computing/flux-view-rocky:tag-9.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// How the view gets into the pods: imageVolume mounts its image read-only (Kubernetes 1.35,
        /// containerd 2.1 or CRI-O 1.33); copy copies it in an init container; auto mounts it if every node that the
        /// pods may use can, else copies it. Default: the operator's --view-source, else auto.
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
        /// Resources of the init containers, which install the agent and copy the view. Default: the cpu and
        /// memory of the Flux runner.
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
        /// Use Flux's own simple scheduler (true) or Fluxion (false). Default: Fluxion if the view has it
        /// and queuePolicy is set, configs has a table of Fluxion, or the pods have GPUs; else simple.
        /// Without a view: the default of the image's Flux.
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
        /// The clusters that may join, in rank order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<BurstedCluster>,
        /// All hosts of the instance as a hostlist, in rank order, instead of those from clusters.
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
        /// Number of hosts of its MiniCluster. Default: this cluster's largest size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub size: Option<i32>,
        /// Alias of bursting.hostlist, for existing manifests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub hostlist: Option<String>,
    }
}

impl LeadBroker {
    /// Whether a field has another value than the empty or the default one. Clients with Go types send the block even
    /// if its author has not set it.
    pub(crate) fn is_given(&self) -> bool {
        let is_text = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.trim().is_empty());
        let is_default = self.size.is_none_or(|size| size == 0) && [0, broker_port()].contains(&self.port);
        is_text(&self.name) || is_text(&self.address) || is_text(&self.hostlist) || !is_default
    }
}

block! {
    /// A cluster that may join.
    #[derive(Default)]
    pub struct BurstedCluster {
        /// Prefix of its hosts. Default: burst-N, N being its position from 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Number of its hosts. Default: this cluster's largest size.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub size: Option<i32>,
    }
}
