//! The state that the steps of a plan share while they are executed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use flux_agent_plan::plan::{self, Owner, Plan, Role, SnippetShell, Waits};
use flux_shared::exit::of_stop_before_program;

use super::broker_end::BrokerEnd;
use super::retry::Attempts;
use super::session::Session;
use super::shell::Shell;
use super::start_record::Record;
use super::timing::ContainerTimeline;
use crate::files::Files;
use crate::report::activity::ActivityFile;
use crate::report::ending::ContainerEnd;
use crate::report::failure::Failure;
use crate::supervise::{Stop, Supervisor};
use crate::wait;

/// Options of the execution that are not part of the plan.
#[derive(Debug, Clone)]
pub struct Options {
    /// All files are written below this folder, and /etc/hosts and /etc/resolv.conf are read below it: `/` in a pod.
    pub root: PathBuf,
    /// The agent's own binary, which a snippet's shell runs to report its state.
    pub agent: PathBuf,
    /// How long steps are retried after failures that may be temporary.
    pub patience: Duration,
    /// Where the current activity is written.
    pub activity_file: ActivityFile,
}

/// Carries out one plan.
#[derive(Debug)]
pub struct Executor<'a> {
    pub(super) options: Options,
    pub(super) files: Files,
    /// The environment, working directory, umask and limits, as the last snippet left them.
    pub(super) session: Session,
    pub(super) supervisor: &'a mut Supervisor,
    /// How the shell of the snippets is started.
    pub(super) planned_shell: Option<SnippetShell>,
    /// The shell of the snippets, while it runs.
    pub(super) shell: Option<Shell>,
    /// The record that this start writes, once it exists.
    pub(super) record: Option<Record>,
    pub(super) role: Role,
    /// Whether FLUXTIME lines are logged.
    pub(super) timed: bool,
    /// How long a follower waits for its parent and its lead.
    pub(super) waits: Waits,
    pub(super) timeline: &'a mut ContainerTimeline,
    /// The facts about the container's end that the steps have found.
    pub(super) ending: &'a mut ContainerEnd,
    /// How the lead's broker ended, once it has.
    pub(super) broker_end: Option<BrokerEnd>,
    /// The user that dumps the archive. None until `Step::PrepareArchive` begins, and in a plan without this step.
    pub(super) archive_owner: Option<Owner>,
    /// The file of this start's dump. None until `Step::PrepareArchive` begins, and in a plan without this step.
    pub(super) dump: Option<PathBuf>,
    /// The broker's option that restores the archive. None: there is no archive.
    pub(super) restore: Option<String>,
    /// The archive's volume was read-only before the broker started, so nothing is dumped.
    pub(super) is_archive_read_only: bool,
    /// On a follower: the instance ended before this pod got a stop. When the lead's pod has ended, Kubernetes stops
    /// all others, so a stop then does not end what the user runs after Flux.
    pub(super) has_instance_ended: bool,
}

/// What follows a step.
pub enum Flow {
    /// The next step.
    Next,
    /// The program has ended with this code. The later steps clean up.
    ProgramEnded(u8),
    /// The container ends at once, with this code unless the program has failed.
    Exit(u8),
}

impl<'a> Executor<'a> {
    pub fn new(
        plan: &Plan,
        options: Options,
        supervisor: &'a mut Supervisor,
        timeline: &'a mut ContainerTimeline,
        ending: &'a mut ContainerEnd,
    ) -> Self {
        // Tells this container's temporary files from those of the pod's other containers.
        let tag = match &plan.role {
            Role::Lead | Role::Follower => "runner",
            Role::Sidecar(name) => name,
        };
        Executor {
            files: Files::new(&options.root, tag),
            options,
            session: Session::of_process(),
            supervisor,
            planned_shell: None,
            shell: None,
            record: None,
            role: plan.role.clone(),
            timed: plan.log.timed,
            waits: plan.waits,
            timeline,
            ending,
            broker_end: None,
            archive_owner: None,
            dump: None,
            restore: None,
            is_archive_read_only: false,
            has_instance_ended: false,
        }
    }

    /// Attempts at work whose failure may be temporary. The time for all of them begins now.
    pub(super) fn attempts(&self) -> Attempts {
        Attempts::new(self.options.patience, self.options.activity_file.clone())
    }

    /// The exit code of a container that is stopped before its program has run.
    pub(super) fn stop_code(&self, stop: Stop) -> u8 {
        of_stop_before_program(stop.signal, self.role == Role::Follower)
    }

    /// A probe of the parent broker, or of the lead if that is not the parent.
    pub(super) fn parent_probe(&self, parent: &plan::BrokerAddress) -> wait::ParentProbe {
        wait::ParentProbe::of(parent, &self.options.root)
    }
}

/// The failure of a wait for signals, children or work.
pub fn wait_failed(error: io::Error) -> Failure {
    Failure::internal(format!("failed to wait for events: {error}"))
}
