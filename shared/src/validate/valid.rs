//! The checked types that later steps read.

mod in_pod;

use std::collections::BTreeMap;

use serde_json::Value;

use super::Notice;
use crate::agent_spec::{LogFormat, Program, RemoteLead, SchedulerKind};
use crate::choices::{Gang, ViewSource};
use crate::command_words::Word;
use crate::crd::v1alpha2::{Logging, Pod, Resources, SecretKey};
use crate::curve::Certificate;
use crate::names::DEFAULT_GRACE_PERIOD;
use crate::overlay::Overlay;
use crate::quantity::Quantity;
use crate::queueing::Queueing;

/// A valid MiniCluster. (Rendering may still refuse it, such as for a feature that the installation has switched off.)
#[derive(Debug, Clone, PartialEq)]
pub struct ValidMiniCluster {
    pub name: String,
    pub namespace: String,
    pub size: u32,
    /// `maxSize`; without it, the maximum that was fixed at creation, or else `size`.
    pub max_size: u32,
    pub min_size: Option<u32>,
    pub tasks: u32,
    pub interactive: bool,
    pub job_labels: BTreeMap<String, String>,
    /// Labels and annotations for a queue, including those given for the Job.
    pub queueing: Queueing,
    /// `maxSize` is given: the size may change while the cluster runs.
    pub resizes: bool,
    pub deadline_seconds: Option<i64>,
    /// How often the MiniCluster may restart after a lost lead or a deleted Job; 0 for never.
    pub backoff_limit: i32,
    /// How often the MiniCluster may restart after a job that failed because of a lost follower.
    pub max_restarts: i32,
    /// Once the job has finished, delete the MiniCluster and everything that belongs to it.
    pub cleanup: bool,
    /// Once the job has completed, delete its pods, the claims that were created for it, and the volumes with `delete`.
    pub cleanup_pods: bool,
    pub ttl_seconds_after_finished: Option<i32>,
    /// None: the operator does not change the Job's `suspend`.
    pub suspend: Option<bool>,
    pub share_process_namespace: bool,
    /// Absolute path of the archive of Flux's state.
    pub archive: Option<String>,
    pub headless_name: String,
    pub disable_affinity: bool,
    /// The nodes' architecture, as in their label kubernetes.io/arch. None: any.
    pub arch: Option<String>,
    pub view: ViewContainer,
    pub flux: FluxOptions,
    pub logging: Logging,
    pub log_format: LogFormat,
    pub pod: Pod,
    /// Whether all pods start or none.
    pub gang: Gang,
    /// The overlay of the Job's pod template.
    pub pod_template: Option<Overlay>,
    /// The overlay of the services pod.
    pub services_pod_template: Option<Overlay>,
    /// Users of every pod.
    pub users: Vec<ValidUser>,
    /// The Flux RESTful API, if the lead serves it.
    pub restful: Option<ValidRestful>,
    /// Volumes that the operator creates.
    pub volumes: Vec<PersistentVolume>,
    pub runner: ValidRunner,
    pub sidecars: Vec<ValidSidecar>,
    pub services: Vec<ValidContainer>,
    /// Notices about valid fields that may not have the effect that the user expects.
    pub notices: Vec<Notice>,
}

impl ValidMiniCluster {
    /// How often `backoffLimit` still lets the MiniCluster restart. `used`: the restarts that count towards it so far.
    pub fn restarts_left(&self, used: u32) -> u32 {
        u32::try_from(self.backoff_limit)
            .unwrap_or(0)
            .saturating_sub(used)
    }

    /// The user and group ids of a container of the Job's pods. The group is 0 if only the user is given. None: the
    /// image decides. As in Kubernetes, the container's security context precedes the pod's.
    pub fn run_as(&self, container: &ValidContainer) -> Option<(u32, u32)> {
        let contexts = [&container.security_context, &self.pod.security_context];
        let id = |name: &str| {
            let id = contexts
                .into_iter()
                .find_map(|context| context.as_ref()?.get(name)?.as_u64());
            u32::try_from(id?).ok()
        };
        Some((id("runAsUser")?, id("runAsGroup").unwrap_or(0)))
    }

    /// The pods' termination grace period in seconds.
    pub fn grace_period(&self) -> u64 {
        let given = self
            .pod
            .termination_grace_period_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        given.unwrap_or(DEFAULT_GRACE_PERIOD)
    }
}

/// A user of every pod.
#[derive(Clone, PartialEq)]
pub struct ValidUser {
    pub name: String,
    /// None: the operator generates one.
    pub password: Option<String>,
}

/// The Flux RESTful API.
#[derive(Clone, PartialEq)]
pub struct ValidRestful {
    pub branch: String,
    pub port: u16,
    /// None: the operator generates one.
    pub secret_key: Option<String>,
    pub username: String,
    /// None: the operator generates one.
    pub token: Option<String>,
}

/// The output leaves the password out.
impl std::fmt::Debug for ValidUser {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ValidUser")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The output leaves key and token out.
impl std::fmt::Debug for ValidRestful {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("ValidRestful");
        debug
            .field("branch", &self.branch)
            .field("port", &self.port)
            .field("username", &self.username);
        debug.finish_non_exhaustive()
    }
}

/// A volume that the operator creates, with its claim.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistentVolume {
    /// Its key in `spec.volumes`.
    pub key: String,
    /// Name of the PersistentVolume.
    pub name: String,
    /// Name of the claim.
    pub claim: String,
    pub storage_class: String,
    pub capacity: Quantity,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub claim_annotations: BTreeMap<String, String>,
    /// Delete it with the MiniCluster, or when its pods are cleaned up.
    pub delete: bool,
    pub source: PersistentSource,
}

/// What a PersistentVolume refers to.
#[derive(Debug, Clone, PartialEq)]
pub enum PersistentSource {
    /// A directory of the node, created if it is missing.
    HostPath(String),
    /// A volume of a CSI driver.
    Csi {
        driver: String,
        handle: String,
        attributes: BTreeMap<String, String>,
        /// The driver's Secret and its namespace; none: the driver needs none.
        secret: Option<(String, String)>,
    },
}

impl PersistentSource {
    /// The CSI driver and the volume's handle, which no other volume should have. None for a directory.
    pub fn disk(&self) -> Option<(&str, &str)> {
        match self {
            PersistentSource::HostPath(_) => None,
            PersistentSource::Csi { driver, handle, .. } => Some((driver, handle)),
        }
    }
}

/// The container that provides Flux.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewContainer {
    /// Flux comes from a view; false: from the runner's own image.
    pub enabled: bool,
    /// Prefix of the image's own Flux, without a view. None: the agent finds it.
    pub install_root: Option<String>,
    /// None: the operator's default.
    pub image: Option<String>,
    /// None: the operator's `--view-source`.
    pub source: Option<ViewSource>,
    /// Name of the init container and of the volume.
    pub name: String,
    pub python_path: Option<String>,
    pub resources: Resources,
    pub working_dir: Option<String>,
    pub pull_policy: PullPolicy,
    pub image_pull_secret: Option<String>,
    pub mount_path: String,
    pub security_context: Option<Value>,
}

/// Options of Flux, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct FluxOptions {
    pub complete_workers: bool,
    pub topology: Option<String>,
    pub submit_command: Vec<String>,
    pub option_flags: Vec<String>,
    pub log_level: u8,
    pub wrap: Option<String>,
    pub scheduler: Option<SchedulerKind>,
    pub queue_policy: Option<String>,
    pub minimal_service: bool,
    pub broker_config: Option<String>,
    pub configs: BTreeMap<String, String>,
    pub curve_cert: Option<Certificate>,
    /// The user's Secret with the certificate, in place of the operator's.
    pub curve_cert_secret: Option<String>,
    pub connect_timeout: Option<String>,
    pub heartbeat_timeout: Option<String>,
    /// How long a follower waits for its parent broker at the start, in seconds.
    pub parent_deadline: Option<u64>,
    /// How long the lead's DNS name may be missing before a follower exits, in seconds.
    pub lead_gone: Option<u64>,
    /// How long a lead that has answered before may be silent before a follower exits, in seconds.
    pub lead_silent: Option<u64>,
    /// Port on which the lead serves the instance's metrics.
    pub metrics_port: Option<u16>,
    pub disable_socket: bool,
    pub wait_socket: bool,
    pub munge_secret: Option<String>,
    pub environment: BTreeMap<String, String>,
    /// All hosts of the instance. None: those of this cluster.
    pub hostlist: Option<String>,
    /// The lead broker, if it is in another cluster.
    pub lead: Option<RemoteLead>,
}

/// When to pull an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub const fn name(self) -> &'static str {
        match self {
            PullPolicy::Always => "Always",
            PullPolicy::IfNotPresent => "IfNotPresent",
            PullPolicy::Never => "Never",
        }
    }
}

/// Fields that every container has.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidContainer {
    pub name: String,
    pub image: String,
    pub resources: Resources,
    pub image_pull_secret: Option<String>,
    pub working_dir: Option<String>,
    pub pull_policy: PullPolicy,
    pub environment: BTreeMap<String, String>,
    pub secrets: BTreeMap<String, SecretKey>,
    pub ports: Vec<u16>,
    pub post_start: Option<Vec<String>>,
    pub pre_stop: Option<Vec<String>>,
    pub mounts: Vec<Mount>,
    /// Kubernetes' SecurityContext.
    pub security_context: Option<Value>,
    /// Command in place of the image's entrypoint (services).
    pub entrypoint: Option<Vec<String>>,
}

/// A volume mounted in a container.
#[derive(Debug, Clone, PartialEq)]
pub struct Mount {
    /// The name that the user gave the volume: unique in the container, not in the pod.
    pub name: String,
    pub path: String,
    pub read_only: bool,
    pub source: VolumeSource,
}

/// Where a volume comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeSource {
    HostPath(String),
    EmptyDir {
        memory: bool,
        size_limit: Option<Quantity>,
    },
    /// Name of a PersistentVolumeClaim.
    Claim(String),
    ConfigMap {
        name: String,
        items: BTreeMap<String, String>,
    },
    Secret {
        name: String,
        items: BTreeMap<String, String>,
    },
    Csi {
        driver: String,
        attributes: BTreeMap<String, String>,
        read_only: bool,
    },
}

/// The container that runs Flux.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidRunner {
    pub container: ValidContainer,
    pub program: Program,
    pub prefix: Vec<Word>,
    pub cores: Option<u32>,
    pub logs: Option<String>,
    pub user: Option<crate::agent_spec::RunnerUser>,
    pub snippets: crate::agent_spec::Snippets,
}

/// A container beside the runner.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidSidecar {
    pub container: ValidContainer,
    /// What the agent does in it, if the agent is its entrypoint. None: it has its image's own entrypoint.
    pub wrapped: Option<crate::agent_spec::Sidecar>,
}
