//! What one container of a pod will do, as data. `run` executes this value and `dry-run` prints it: there is no other.
//!
//! ```text
//! (AgentSpec, Facts) ─► plan ─► Plan { steps } ─► execute, in order ─► exit code
//! ```
//!
//! Pure: no files, environment, network or clock here; what the host says comes in as `Facts`.
//! The JSON form of these types is the documented output of `dry-run --format json` (version [`VERSION`]).

mod accounts;
mod archive;
mod batch;
mod binding;
mod broker;
mod curve;
mod discovery;
pub mod display;
mod environment;
mod error;
mod follower;
mod from_environment;
mod helpers;
mod hosts;
mod instance;
mod launch;
mod lead;
mod munge;
mod node_network;
mod options;
mod program;
mod python;
mod resolved;
mod resources;
mod restful;
mod runner;
mod scheduler;
mod sidecar;
mod snippets;
mod topology;
mod user;

use std::collections::BTreeMap;

use flux_shared::agent_spec::{AgentSpec, Flux, LogFormat, Trace};
use flux_shared::trace::PODS;
use flux_shared::words::Word;
use serde::Serialize;

use crate::facts::Facts;

pub use crate::files::ANY;
pub use crate::system::owner::{Mode, Owner};
pub use binding::Binding;
pub use error::PlanError;
pub use from_environment::FromEnvironment;
pub use instance::Instance;
pub use launch::{AtEnd, Launch, Metrics, Parent, Part, Reach, RunAs, Stdout};
use resolved::Resolved;
pub use snippets::{Snippet, Stage};

/// The name of a sidecar's program, as a snippet or a launch.
pub const COMMAND: &str = "command";

/// Version of the JSON form.
pub const VERSION: u32 = 1;

/// What one container will do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Version of this shape.
    pub version: u32,
    /// Name of the MiniCluster.
    pub cluster: String,
    /// Which part the container plays.
    pub role: Role,
    /// The pod's completion index.
    pub index: u32,
    /// The pod's host name, as Flux knows it.
    pub hostname: String,
    /// Position in the hostlist; none for a sidecar.
    pub rank: Option<u32>,
    /// What the agent itself logs.
    pub log: Log,
    /// Where its timeline is sent at the end, as spans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// How long a follower waits.
    #[serde(skip_serializing_if = "Waits::is_usual")]
    pub waits: Waits,
    /// Whether tasks are bound to cores by default; none for a sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,
    /// What a person should know, a line each: where the spec's word could not be kept as it stands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
    /// The steps, in order.
    pub steps: Vec<Planned>,
}

/// Which container is planned for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerRole {
    /// The one that runs Flux.
    Runner,
    /// One beside it, by name.
    Sidecar(String),
}

/// What the container will do on the host that `facts` tell of.
pub fn plan(spec: &AgentSpec, facts: &Facts, container: &ContainerRole) -> Result<Plan, PlanError> {
    let mut resolved = Resolved::new(spec, facts)?;
    let (role, steps) = match container {
        ContainerRole::Sidecar(name) => {
            let sidecar = spec.sidecars.get(name).ok_or_else(|| PlanError::UnknownSidecar(name.clone()))?;
            resolved.in_sidecar();
            (Role::Sidecar(name.clone()), sidecar::steps(&resolved, name, sidecar)?)
        }
        ContainerRole::Runner if resolved.is_lead() => (Role::Lead, lead::steps(&resolved)?),
        ContainerRole::Runner => (Role::Follower, follower::steps(&resolved)?),
    };
    let logging = &spec.logging;
    Ok(Plan {
        version: VERSION,
        cluster: spec.name.clone(),
        index: resolved.index(),
        rank: (!matches!(role, Role::Sidecar(_))).then_some(resolved.rank),
        waits: if role == Role::Follower { Waits::of(&spec.flux) } else { Waits::default() },
        binding: matches!(container, ContainerRole::Runner).then(|| resolved.binding.clone()),
        role,
        hostname: resolved.hostname.clone(),
        log: Log { quiet: logging.quiet, timed: logging.timed && !logging.quiet, format: logging.format },
        trace: spec
            .trace
            .clone()
            .filter(|_| resolved.index() < PODS && !matches!(container, ContainerRole::Sidecar(_))),
        notices: resolved.notices(),
        steps,
    })
}

impl Plan {
    /// With what the container's command line says of a follower's waits, which comes before the spec's word.
    pub fn with_waits(mut self, told: Waits) -> Plan {
        if self.role == Role::Follower {
            self.waits = Waits {
                parent_deadline: told.parent_deadline.or(self.waits.parent_deadline),
                lead_gone: told.lead_gone.or(self.waits.lead_gone),
                lead_silent: told.lead_silent.or(self.waits.lead_silent),
            };
        }
        self
    }
}

/// Which part a container plays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Rank 0: starts the instance and runs the program.
    Lead,
    /// Joins its parent.
    Follower,
    /// Serves beside the runner; its name.
    Sidecar(String),
}

/// What the agent itself logs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Log {
    pub quiet: bool,
    pub timed: bool,
    #[serde(skip_serializing_if = "LogFormat::is_text")]
    pub format: LogFormat,
}

/// How long a follower waits, in seconds, where the spec says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// For the parent at first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_deadline: Option<u64>,
    /// While the name of a lead that was there is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead_gone: Option<u64>,
    /// While a lead that was there does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead_silent: Option<u64>,
}

impl Waits {
    fn of(flux: &Flux) -> Waits {
        Waits { parent_deadline: flux.parent_deadline, lead_gone: flux.lead_gone, lead_silent: flux.lead_silent }
    }

    fn is_usual(&self) -> bool {
        *self == Waits::default()
    }
}

/// A step, and the facts of the host that it was decided by.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Planned {
    #[serde(flatten)]
    pub step: Step,
    /// Facts without which this step might read otherwise (`uid`, `cpus`, `view`, `env.HOME`, `archive` …).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<&'static str>,
}

impl Planned {
    fn with(depends_on: &[&'static str], step: Step) -> Planned {
        Planned { step, depends_on: depends_on.to_vec() }
    }
}

/// One thing to do. Every step may run twice with the same result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// Add a user (and its group of the same id) to /etc/passwd and /etc/group unless it exists.
    User { name: String, uid: u32, gid: u32, home: String },
    /// Give the user the password that stands in the file, as its SHA-512 crypt in /etc/shadow.
    Password { user: String, source: String },
    /// Make the owner able to write to a directory: one of the image's becomes theirs; a volume's stays as it is, and it is told
    /// if they cannot write to it. None: no error.
    Give { path: String, owner: Owner },
    /// Start a program that goes to the background by itself. That it does not start is told, and passed over.
    Daemon { argv: Vec<String> },
    /// A directory with its parents; mode and owner apply to the last component.
    Directory { path: String, mode: Mode, owner: Owner },
    /// A whole file, written beside and renamed.
    File { path: String, mode: Mode, owner: Owner, content: Content },
    /// A symbolic link, replaced if it leads elsewhere; left alone if a real file or directory stands there.
    Link { path: String, target: String },
    /// Variables for every later step.
    Environment { changes: Vec<EnvChange> },
    /// The user's shell source; state carries over to later snippets and to every later step's environment.
    Snippet(Snippet),
    /// A snippet before may have made the user that Flux is to run as: what follows is planned with what this container says
    /// now, if that differs.
    LookAgain,
    /// Until the parent broker's port answers, or its name has an address.
    WaitParent(Parent),
    /// Until a Unix socket exists and answers.
    WaitSocket { path: String },
    /// Before anything of the user's: what the record says of an earlier start of this container, in which the program may
    /// have run. It never runs again once it has ended with 0; otherwise so many times.
    Once { record: String, restarts: u32 },
    /// An earlier pod of this lead was lost, and its program may have run: nothing runs here. Without a restart left this
    /// is the end; else until the pod is told to stop, since the operator starts the whole MiniCluster anew.
    LeadLost { restarts_left: u32 },
    /// Start a program, supervise it, remember its exit code.
    Launch(Box<Launch>),
    /// Before the broker: files of earlier dumps that were interrupted (the name with a `*`) go, and an empty file is made
    /// that Flux may write to.
    PrepareArchive { dump: String, leftovers: String, owner: Owner },
    /// After the broker has ended: the dump takes the archive's place, if it is whole and the broker ended well.
    PublishArchive { from: String, to: String },
    /// The work is done; the container stays until it is told to stop, for Kubernetes would start a sidecar again.
    Stay,
}

/// How a variable changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum EnvChange {
    Set {
        name: String,
        value: Word,
    },
    /// `old + separator + value`, or the value alone where there is no old one; nothing if it is already in it.
    Append {
        name: String,
        separator: char,
        value: String,
    },
    /// Only where it is not set.
    Default {
        name: String,
        value: String,
    },
    Remove {
        name: String,
    },
}

fn set(name: &str, value: &str) -> EnvChange {
    EnvChange::Set { name: name.to_owned(), value: Word::literal(value) }
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    Text(String),
    /// Shell lines `export NAME='value'`, quoted by the writer, with the environment of that moment.
    Exports(BTreeMap<String, Word>),
    /// Copied from a mounted Secret; never shown.
    Secret {
        source: String,
    },
    /// The curve certificate: checked and copied from the mounted Secret; never shown.
    Curve {
        source: String,
    },
    /// A curve certificate that every pod of the job derives alike: from the secret seed in a file, and from what tells this
    /// job from others. Never shown.
    DerivedCurve {
        seed: String,
        /// The name in the certificate.
        name: String,
        of: Vec<String>,
    },
}

#[cfg(test)]
mod tests;
