//! What one container of a pod will do, as data. `run` executes this value and `dry-run` prints it: there is
//! only one planner.
//!
//! ```text
//! (AgentSpec, Facts) ─► plan ─► Plan { steps } ─► execute, in order ─► exit code
//! ```
//!
//! Pure: no files, environment, network or clock here. The facts about the host are passed in as `Facts`.
//! The JSON form of these types is the documented output of `dry-run --format json` (version [`VERSION`]).

mod accounts;
mod archive;
mod batch;
mod binding;
mod broker;
mod curve;
mod discovery;
mod environment;
mod environment_change;
mod error;
mod follower;
mod from_environment;
mod hosts;
mod identity;
mod instance;
mod launch;
mod lead;
mod munge;
mod node_network;
mod notices;
mod options;
mod program;
mod python;
mod queues;
mod resolved;
mod resources;
mod restful;
mod runner;
mod scheduler;
mod search_paths;
mod shell_defaults;
pub mod shell_quote;
mod sidecar;
mod snippet_variables;
mod snippets;
mod sourced_files;
mod step;
mod user;

use flux_shared::agent_spec::{AgentSpec, FluxSettings, LogFormat, Trace};
use flux_shared::trace::TRACED_PODS;
use serde::Serialize;

use crate::facts::Facts;

pub use crate::owner::{Mode, Owner};
pub use archive::{DUMP_WILDCARD, RESTORE};
pub use binding::Binding;
pub use environment_change::EnvChange;
use environment_change::set;
pub use error::PlanError;
pub use from_environment::FromEnvironment;
pub use identity::Identity;
pub use instance::Instance;
pub use launch::{
    AtEnd, BrokerAddress, FluxLookup, InstancePart, Launch, Metrics, RunAs, SignalTarget, Stdout,
};
use resolved::Resolved;
pub use snippet_variables::BROKER_OPTIONS;
pub use step::{Content, Snippet, SnippetPhase, SnippetResources, SnippetShell, Step};

/// Version of the JSON form.
pub const VERSION: u32 = 2;

/// Default of [`Waits::lead_gone`], in seconds (arbitrary).
const DEFAULT_LEAD_GONE: u64 = 30;

/// What one container will do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Version of the JSON form: [`VERSION`].
    pub version: u32,
    /// Name of the MiniCluster.
    pub cluster: String,
    /// The container's role.
    pub role: Role,
    /// The pod's completion index.
    pub index: u32,
    /// The pod's host name, as Flux knows it.
    pub hostname: String,
    /// The broker's rank: its position in the hostlist. None for a sidecar.
    pub rank: Option<u32>,
    /// What the agent itself logs.
    pub log: Log,
    /// The trace (OpenTelemetry) that the container is part of. With a trace, the container adds its timeline to its
    /// termination message. None: no trace, a sidecar, or not one of the first pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// How long a follower waits. Empty for other roles.
    #[serde(skip_serializing_if = "Waits::is_empty")]
    pub waits: Waits,
    /// Seconds from a stop until the agent kills the programs and snippets that still run. None: the grace period is
    /// unknown, so only the kubelet kills them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_after: Option<f64>,
    /// Whether tasks are bound to cores by default; none for a sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// Notices for people, one line each: where the plan differs from what the spec seems to ask for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// The container to plan for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodContainer {
    /// The container that runs Flux.
    Runner,
    /// A sidecar, by name.
    Sidecar(String),
}

/// Plans what the container does on the host that `facts` describe.
pub fn build(spec: &AgentSpec, facts: &Facts, container: &PodContainer) -> Result<Plan, PlanError> {
    let mut resolved = Resolved::new(spec, facts)?;
    // `sidecar_command`: the value of `$command` in a sidecar's snippets. In the runner's, it is the spec's program.
    let (role, steps, sidecar_command) = match container {
        PodContainer::Sidecar(name) => {
            let sidecar = spec
                .sidecars
                .get(name)
                .ok_or_else(|| PlanError::UnknownSidecar(name.clone()))?;
            resolved.use_sidecar_identity();
            (
                Role::Sidecar(name.clone()),
                sidecar::steps(&resolved, name, sidecar)?,
                Some(sidecar.command.as_deref().unwrap_or("")),
            )
        }
        PodContainer::Runner if resolved.is_lead() => (Role::Lead, lead::steps(&resolved)?, None),
        PodContainer::Runner => (Role::Follower, follower::steps(&resolved)?, None),
    };
    let mut steps = snippets::in_one_shell(&resolved, steps, sidecar_command)?;
    if matches!(container, PodContainer::Runner) {
        // The last step writes a note. By this note, the sidecars know that Flux has ended.
        steps.extend(sidecar::note_end(&resolved));
    }
    let logging = &spec.logging;
    Ok(Plan {
        version: VERSION,
        cluster: spec.name.clone(),
        index: resolved.index(),
        rank: (!matches!(role, Role::Sidecar(_))).then_some(resolved.rank),
        waits: if role == Role::Follower {
            Waits::of(&resolved)
        } else {
            Waits::default()
        },
        kill_after: resolved::kill_after(facts),
        binding: matches!(container, PodContainer::Runner).then(|| resolved.binding.clone()),
        role,
        hostname: resolved.hostname.clone(),
        log: Log {
            quiet: logging.quiet,
            timed: logging.timed && !logging.quiet,
            format: logging.format,
        },
        trace: if resolved.index() < TRACED_PODS && matches!(container, PodContainer::Runner) {
            spec.trace.clone()
        } else {
            None
        },
        // They are about the runner, whose image and user a sidecar need not share.
        notices: match container {
            PodContainer::Runner => notices::of(&resolved),
            PodContainer::Sidecar(_) => Vec::new(),
        },
        steps,
    })
}

/// The completion index of the pod that `facts` describe.
pub fn index_of(spec: &AgentSpec, facts: &Facts) -> Result<u32, PlanError> {
    Ok(Resolved::new(spec, facts)?.index())
}

impl Plan {
    /// The plan with the waits of the container's command line, which override the spec's.
    pub fn with_waits(mut self, overrides: Waits) -> Plan {
        if self.role == Role::Follower {
            self.waits = Waits {
                parent_deadline: overrides.parent_deadline.or(self.waits.parent_deadline),
                // None: a missing DNS name does not end this pod, whatever the command line says.
                lead_gone: self
                    .waits
                    .lead_gone
                    .map(|planned| overrides.lead_gone.unwrap_or(planned)),
                lead_silent: overrides.lead_silent.or(self.waits.lead_silent),
            };
        }
        self
    }
}

/// The role of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Rank 0: starts the instance and runs the program.
    Lead,
    /// Any other broker. It connects to a parent broker.
    Follower,
    /// A sidecar, by name.
    Sidecar(String),
}

/// What the agent itself logs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Log {
    /// Only warnings and errors.
    pub quiet: bool,
    /// Also the FLUXTIME lines and the table of stages.
    pub timed: bool,
    #[serde(skip_serializing_if = "LogFormat::is_text")]
    pub format: LogFormat,
}

/// How long a follower waits, in seconds; none: without a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// Seconds to wait for the parent at the start before the follower exits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_deadline: Option<u64>,
    /// Seconds that the lead's DNS name may be missing, after the lead was up, before the follower exits. None: a
    /// missing name does not end the follower, for example because the lead may restart and has no name meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead_gone: Option<u64>,
    /// Seconds that a lead that has answered before may be silent before the follower exits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead_silent: Option<u64>,
}

impl Waits {
    fn of(resolved: &Resolved) -> Waits {
        let FluxSettings {
            parent_deadline,
            lead_gone,
            lead_silent,
            ..
        } = resolved.spec.flux;
        let lead_gone = follower::ends_with_lead(resolved).then(|| lead_gone.unwrap_or(DEFAULT_LEAD_GONE));
        Waits {
            parent_deadline,
            lead_gone,
            lead_silent,
        }
    }

    fn is_empty(&self) -> bool {
        *self == Waits::default()
    }
}

#[cfg(test)]
mod tests;
