//! Why no plan can be made.

use flux_shared::exit::Category;
use flux_shared::topology::InvalidTopology;

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error("failed to find host `{host}` in the hostlist {hostlist}")]
    NotInHostlist { host: String, hostlist: String },
    #[error(
        "failed to find the pod's rank: it has its node's host name `{host}`, and no completion index is set"
    )]
    NoIndex { host: String },
    #[error("failed to read the hostlist: {0}")]
    Hostlist(String),
    #[error(transparent)]
    Topology(#[from] InvalidTopology),
    #[error("failed to set the quorum: {quorum} of {hosts} brokers")]
    Quorum { quorum: u32, hosts: usize },
    #[error("failed to find Flux: {0} does not exist")]
    FluxMissing(String),
    #[error("failed to find Fluxion in {0}")]
    FluxionMissing(String),
    #[error("failed to find a shell for {0}")]
    ShellMissing(String),
    #[error("failed to find container `{0}` in the spec")]
    UnknownSidecar(String),
    #[error("failed to use {option} {variable}: {why}")]
    Variable {
        /// The option of `flux-agent run` that names the variable, such as `--name-from-env`.
        option: &'static str,
        variable: String,
        why: String,
    },
    #[error("failed to write {file}")]
    Render {
        file: &'static str,
        source: SerializationError,
    },
}

/// A file's content could not be merged or serialized.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct SerializationError(pub String);

impl PlanError {
    /// The PATH has no `flux`.
    pub fn flux_not_on_path() -> PlanError {
        PlanError::FluxMissing("`flux` on the PATH".into())
    }

    /// The category, which decides the container's exit code.
    pub fn category(&self) -> Category {
        match self {
            PlanError::NotInHostlist { .. }
            | PlanError::NoIndex { .. }
            | PlanError::Hostlist(_)
            | PlanError::Topology(_)
            | PlanError::Quorum { .. }
            | PlanError::UnknownSidecar(_)
            | PlanError::Variable { .. } => Category::SpecInvalid,
            PlanError::FluxMissing(_) | PlanError::FluxionMissing(_) => Category::ViewMissing,
            PlanError::ShellMissing(_) => Category::ShellMissing,
            PlanError::Render { .. } => Category::Internal,
        }
    }

    /// The remedy, for the person who reads the error.
    pub fn hint(&self) -> &'static str {
        match self {
            PlanError::NotInHostlist { .. } => {
                "the pod's host name must be `<name>-<index>`: remove hostname and setHostnameAsFQDN from the pod, or add the host to the list. A pod with hostNetwork has its node's name: set network.host_network in the spec (from a MiniCluster, the operator does)"
            }
            PlanError::NoIndex { .. } => {
                "network.host_network needs a completion index: set the Job's completionMode to Indexed, or JOB_COMPLETION_INDEX in the container's env"
            }
            PlanError::Hostlist(_) => "write it like mc-[0-3],other",
            PlanError::Topology(_) => "use kary:K, mincrit, mincrit:K, binomial or custom",
            PlanError::Quorum { .. } => "the quorum must be 1 to the number of hosts",
            PlanError::FluxMissing(_) => {
                "with the view enabled its image must contain Flux for this architecture; with `flux.container.disable` the container's image must have `flux` on its PATH, a snippet such as `pre` must put it there, or `flux.installRoot` must be the prefix of its Flux"
            }
            PlanError::FluxionMissing(_) => "use a view with flux-sched, or leave out scheduler",
            PlanError::ShellMissing(_) => {
                "use an image with /bin/sh, or leave out snippets, scripts and batch"
            }
            PlanError::UnknownSidecar(_) => {
                "the container's argument must be the name of a sidecar in the MiniCluster"
            }
            PlanError::Variable { .. } => {
                "set the variable in the container's env: from a label by `valueFrom.fieldRef`, or to a value"
            }
            PlanError::Render { .. } => "this is a bug in flux-agent: please report it with the spec",
        }
    }
}
