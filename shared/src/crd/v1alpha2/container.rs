//! A container: image, command, environment, user, snippets and volumes. `block!` (`crd.rs`) derives what each type of
//! the CRD needs, with names in camelCase.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ExistingVolume, is_false};
use crate::quantity::Quantity;

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
        /// Name; required, except for the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Image. Default: ghcr.io/rse-ops/accounting:app-latest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// Number of cores that Flux manages on every node: 0 to cores-1. Default: all that the container may
        /// use.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cores: Option<i32>,
        /// On the Flux runner: the job's command, split into arguments with POSIX quoting; without one (or
        /// commands.script), the cluster stays up. On a sidecar: shell source. On a service: replaces the image's
        /// entrypoint.
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
        /// Shell source, run before commands.pre.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_command: Option<String>,
        /// Instead of the command: report the overlay, attributes and log of the instance, then stay up.
        #[serde(default, skip_serializing_if = "is_false")]
        pub diagnostics: bool,
        /// The user to run Flux as; created if missing, which needs root. Default: the container's own user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_user: Option<FluxUser>,
        /// The same as flux.optionFlags, on the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_option_flags: Option<String>,
        /// The same as flux.logLevel, on the Flux runner.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_log_level: Option<i32>,
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
        /// Volumes, by name. A volume without a source is the one of the same name in spec.volumes.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub volumes: BTreeMap<String, Volume>,
        /// Existing claims, ConfigMaps and Secrets to mount, by name. The same can be written in volumes.
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
        /// User id, if the user must be created. Default: 1000.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub uid: Option<i64>,
        /// Run Flux as the container's own user, as without this block.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable: bool,
    }
}

block! {
    /// Lifecycle hooks of the container: commands, split into arguments with POSIX quoting.
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
    /// Shell snippets, run in the image's own shell (bash, else sh); what one sets, the next ones see.
    #[derive(Default)]
    pub struct Commands {
        /// Runs first, on every pod.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub init: Option<String>,
        /// On every pod, before Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre: Option<String>,
        // Existing manifests escape `$`, because the Go operator wrote scripts into a shell's text.
        /// A script to run instead of command; `\$` becomes `$`. Without a `#!`, the image's shell runs it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub script: Option<String>,
        /// On the lead, before Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub broker_pre: Option<String>,
        /// Alias of brokerPre, for existing manifests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_broker: Option<String>,
        /// On the followers, before Flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub worker_pre: Option<String>,
        /// Alias of workerPre, for existing manifests.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub pre_worker: Option<String>,
        /// After Flux has ended; on a sidecar, after its command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub post: Option<String>,
        /// Command put before submit, batch, the launcher's command, the broker and the followers' start.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub prefix: Option<String>,
        /// On sidecars, before the wait for the broker's socket.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub service_pre: Option<String>,
        /// Run Flux as the container's own user (root), even with fluxUser.
        #[serde(default, skip_serializing_if = "is_false")]
        pub run_flux_as_root: bool,
    }
}

block! {
    /// A volume and where it is mounted. It has one source at most; without one it is the volume of the same
    /// name in spec.volumes.
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
        /// memory: the directory is kept in memory and mounted at /dev/shm.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub empty_dir_medium: Option<String>,
        /// Largest size of the empty directory, such as 64Gi.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub empty_dir_size_limit: Option<Quantity>,
        /// Name of a PersistentVolumeClaim.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub claim_name: Option<String>,
        /// Name of a ConfigMap.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub config_map_name: Option<String>,
        /// Keys of the ConfigMap or Secret, each with its path below the mount. Default: all.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub items: BTreeMap<String, String>,
        /// Name of a Secret.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub secret_name: Option<String>,
        /// Mount it read-only.
        #[serde(default, skip_serializing_if = "is_false")]
        pub read_only: bool,
        /// Name of a CSI driver, for an ephemeral volume.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub csi_driver: Option<String>,
        /// Attributes for the CSI driver.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub csi_driver_attributes: BTreeMap<String, String>,
    }
}
