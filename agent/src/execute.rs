//! Executes a plan, step by step, and returns the container's exit code.
//!
//! ```text
//! Plan { steps } ─► one match arm per step ─► files below the root │ the user's shell │ the supervisor
//!                        └─ Session (environment, working directory, umask, limits) carries over to later steps
//! ```
//!
//! Nothing here reads the spec: the plan has everything, except facts that are known only at run time. One of
//! them is how the broker ended, which decides whether its dump (the saved state of Flux) is published. If the
//! container is killed and started again, every step can run again with the same result, except the user's program and
//! snippets: `Step::CheckEarlierStarts` decides whether the program may run again.
//!
//! Words:
//!
//! | word | meaning |
//! | --- | --- |
//! | stop | the first SIGTERM, SIGINT, SIGHUP or stop signal of the image; after it, no program of the user starts (a follower's `post` may: `skip_after_stop`) |
//! | hold | delay a stop: for a follower's broker, while the lead may still end the instance; for a sidecar's command, after Flux has ended |
//! | staying, `LeadPresence` | the lead's membership in a group of the broker, which shows followers that the lead was not stopped |
//! | leaving, departure | a follower leaves while the lead stays: its node is drained first |
//! | lost | a parent broker: it no longer answers; an earlier pod of the lead (`lead_lost`): it failed or was removed |
//! | replan | make the rest of the plan again after snippets that may have changed the facts that it depends on |
//!
//! The methods of `Executor` are in several files: steps and waits here, `snippet` (runs the user's shell source),
//! `launch` (a program and what its end means), `attempt` (one start of a program), `follower` (restarts of a
//! follower's broker), `archive`, `starts` (the record of earlier starts), `resources` (an R that a snippet has
//! written), `helper_programs` (a daemon such as munged).

mod archive;
mod attempt;
mod broker_end;
mod broker_options;
mod broker_policy;
pub mod curve;
mod executor;
mod follower;
mod helper_programs;
mod last_errors;
mod launch;
mod password;
pub mod program_note;
mod resources;
pub mod retry;
pub mod session;
pub mod shell;
pub mod shell_state;
mod snippet;
mod start_record;
mod starts;
pub mod timing;
mod user;

use std::time::{Duration, Instant};

use flux_agent_plan::plan::{BrokerAddress, Content, Mode, Owner, Plan, Snippet, SnippetPhase, Step};
use flux_shared::exit::{Category, REPLACE};

use crate::report::activity::Awaited;
use crate::report::ending::ContainerEnd;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::{Interrupted, Supervisor};
use crate::system::identity::Credentials;
use curve::CertificateBytes;
pub use executor::Options;
use executor::{Executor, Flow, wait_failed};
use retry::AfterFailure;
use timing::ContainerTimeline;

/// The user and group of this process.
fn process_owner() -> Owner {
    Owner {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

/// How a series of steps ended.
enum StepsEnd {
    /// All steps were done, or skipped after the program.
    Completed {
        /// The program's exit code; none: no program ran.
        program_code: Option<u8>,
    },
    /// The container ends now, with this code.
    Exit(u8),
}

/// Executes `plan`; returns the container's exit code.
///
/// `replan` makes a new plan at [`Step::Replan`], from the facts of the container at that time. `ending` gets the
/// facts for the termination message.
pub async fn run_plan(
    plan: &Plan,
    replan: &dyn Fn() -> Result<Plan, Failure>,
    options: Options,
    supervisor: &mut Supervisor,
    timeline: &mut ContainerTimeline,
    ending: &mut ContainerEnd,
) -> Result<u8, Failure> {
    // `publish_archive` replaces this text. A termination message without it would mean that the archive was saved.
    // (A plan with `LeadLost` does not say whether there is an archive. If there is none, nobody reads the text.)
    ending.archive_not_saved = plan.steps.iter().find_map(|step| match step {
        Step::PublishArchive { .. } => Some("the pod ended before it could be saved".into()),
        Step::LeadLost { .. } => Some("an earlier pod of the lead was lost".into()),
        _ => None,
    });
    supervisor.set_kill_after(plan.kill_after.map(Duration::from_secs_f64));
    let mut executor = Executor::new(plan, options, supervisor, timeline, ending);
    let result = executor.all_steps(plan, replan).await;
    // What failed after the program, if anything, for the next start of this container.
    executor.record_later_failure(&result);
    // The shell still runs if the container ends before `Step::EndShell`.
    let _ = executor.end_shell().await;
    result
}

impl Executor<'_> {
    async fn all_steps(
        &mut self,
        plan: &Plan,
        replan: &dyn Fn() -> Result<Plan, Failure>,
    ) -> Result<u8, Failure> {
        // Before all steps: the agent may be unable to run the broker as this user.
        for step in &plan.steps {
            if let Step::Launch(launch) = step
                && let Some(user) = &launch.run_as
            {
                Credentials::check_child(user.owner, &self.options.root)?;
            }
        }
        let is_replan = |step: &Step| *step == Step::Replan;
        let first_count = plan
            .steps
            .iter()
            .position(is_replan)
            .map_or(plan.steps.len(), |index| index + 1);
        let (first, rest) = plan.steps.split_at(first_count);
        let mut end = self.steps(first).await?;
        // No program comes before Replan, so the first part has no exit code that the second could overwrite.
        if matches!(end, StepsEnd::Completed { .. }) && !rest.is_empty() {
            let plan = replan()?;
            // The steps up to Replan have run already.
            let skipped_count = plan.steps.iter().position(is_replan).map_or(0, |index| index + 1);
            end = self.steps(&plan.steps[skipped_count..]).await?;
        }
        Ok(match end {
            StepsEnd::Exit(code) => code,
            StepsEnd::Completed { program_code } => program_code.unwrap_or(0),
        })
    }

    async fn steps(&mut self, steps: &[Step]) -> Result<StepsEnd, Failure> {
        let mut program_code = None;
        for step in steps {
            // If the program has failed, later steps do not change the exit code.
            let failure_code = program_code.filter(|code| *code != 0);
            if let Some(stop) = self.supervisor.received_stop() {
                if program_code.is_none() {
                    tracing::info!(stage = "stop", "received signal {}: stopping", stop.signal);
                    return Ok(StepsEnd::Exit(self.stop_code(stop)));
                }
                if self.skip_after_stop(step) {
                    continue;
                }
            }
            // A sidecar whose command has failed does not stay: it exits with the command's code.
            if *step == Step::Stay && failure_code.is_some() {
                break;
            }
            match (self.step_with_retries(step).await, program_code) {
                (Ok(Flow::Next), _) => {}
                (Ok(Flow::ProgramEnded(code)), _) => program_code = Some(code),
                (Ok(Flow::Exit(code)), _) => {
                    self.note_end_of_flux_early(program_code, steps);
                    return Ok(StepsEnd::Exit(failure_code.unwrap_or(code)));
                }
                // A failure after the program is reported, but the exit code is still the program's.
                (Err(failure), Some(code)) => {
                    log::failure(&failure);
                    self.ending.note(failure.sentences());
                    self.note_end_of_flux_early(program_code, steps);
                    return Ok(StepsEnd::Exit(code));
                }
                (Err(failure), None) => return Err(failure),
            }
        }
        Ok(StepsEnd::Completed { program_code })
    }

    /// Decides after a stop whether this step, which comes after the program, is skipped. Only snippets are skipped.
    /// They run if a follower's instance had ended before the stop: the end of the lead's pod stops the followers.
    /// A skipped snippet is reported.
    fn skip_after_stop(&mut self, step: &Step) -> bool {
        let Step::Snippet(snippet) = step else {
            return false;
        };
        if self.has_instance_ended {
            return false;
        }
        self.note_skipped(snippet);
        true
    }

    /// Reports a snippet that does not run because of a stop: in the log and in the termination message.
    fn note_skipped(&mut self, snippet: &Snippet) {
        let line = format!("the pod was stopped: the snippet {} does not run", snippet.name);
        tracing::info!(stage = snippet.name, "{line}");
        self.ending.note(line);
    }

    /// Executes a step. Retries it after a failure that may be temporary: the step has then not started a program or
    /// snippet of the user, and everything else may run twice.
    async fn step_with_retries(&mut self, step: &Step) -> Result<Flow, Failure> {
        let mut attempts = self.attempts();
        loop {
            let failure = match self.step(step).await {
                Err(failure) => failure,
                Ok(flow) => return Ok(flow),
            };
            let snippet_after_program = match step {
                Step::Snippet(snippet) if snippet.phase == SnippetPhase::After => Some(snippet),
                _ => None,
            };
            // `Volume`: most failures of steps that may be temporary are those of writing a file.
            match (
                attempts.after(failure, Awaited::Volume, self.supervisor).await?,
                snippet_after_program,
            ) {
                (AfterFailure::Retry, _) => {}
                (AfterFailure::GiveUp(failure), Some(snippet)) => {
                    return Ok(self.skip_failed_snippet(snippet, &failure));
                }
                (AfterFailure::GiveUp(failure), None) => return Err(failure),
                (AfterFailure::Stop(stop), Some(snippet)) => return Ok(self.stopped_before(snippet, stop)),
                (AfterFailure::Stop(stop), None) => return Ok(Flow::Exit(self.stop_code(stop))),
            }
        }
    }

    async fn step(&mut self, step: &Step) -> Result<Flow, Failure> {
        let begin = Instant::now();
        match step {
            Step::User { name, uid, gid, home } => {
                user::ensure(&self.files, name, *uid, *gid, home)?;
                self.timeline.record("user", begin);
            }
            Step::Password { user, source } => {
                password::ensure(&self.files, user, source)?;
                self.timeline.record("user", begin);
            }
            Step::Give { path, owner } => {
                self.make_writable(path, *owner)?;
                self.timeline.record("user", begin);
            }
            Step::Daemon { argv } => {
                self.start_daemon(argv).await?;
                self.timeline.record("daemon", begin);
            }
            Step::Directory { path, mode, owner } => {
                self.files.ensure_directory(path, *mode, *owner)?;
                self.timeline.record("config", begin);
            }
            Step::File {
                path,
                mode,
                owner,
                content,
            } => {
                self.file(path, *mode, *owner, content)?;
                self.timeline.record("config", begin);
            }
            Step::Link { path, target } => {
                self.files.ensure_link(path, target)?;
                self.timeline.record("config", begin);
            }
            // `all_steps` makes the new plan after this step.
            Step::Replan => {}
            Step::Environment { changes } => changes.iter().for_each(|change| self.session.apply(change)),
            Step::Shell(shell) => self.planned_shell = Some(shell.clone()),
            Step::Snippet(snippet) => return self.run_snippet(snippet, begin).await,
            Step::EndShell => self.end_shell().await?,
            Step::SnippetResources(resources) => return self.take_resources(resources),
            Step::WaitParent(parent) => return self.wait_parent(parent).await,
            Step::WaitSocket { path } => return self.wait_socket(path, begin).await,
            Step::Launch(launch) => return self.launch(launch).await.map(Flow::ProgramEnded),
            Step::PrepareArchive {
                archive,
                dump,
                leftovers,
                owner,
            } => {
                self.prepare_archive(archive, dump, leftovers, *owner)?;
                self.timeline.record("archive", begin);
            }
            Step::PublishArchive { from, to } => {
                self.publish_archive(from, to).await?;
                self.timeline.record("archive", begin);
            }
            Step::CheckEarlierStarts {
                record,
                result,
                restarts,
            } => return self.check_earlier_starts(record, result, *restarts),
            Step::LeadLost { restarts_left } => return self.lead_lost(*restarts_left).await,
            Step::Linger { note, seconds } => {
                self.supervisor
                    .hold_stop_after(self.files.at(note), Duration::from_secs_f64(*seconds));
            }
            Step::NoteEnd { note } => self.note_end_of_flux(note),
            Step::Stay => return self.stay().await,
        }
        Ok(Flow::Next)
    }

    fn file(&mut self, path: &str, mode: Mode, owner: Owner, content: &Content) -> Result<(), Failure> {
        match content {
            Content::Text(text) => self.files.ensure_file(path, mode, owner, text.as_bytes())?,
            Content::Exports(variables) => {
                self.files
                    .ensure_file(path, mode, owner, &self.exports(variables))?
            }
            Content::Secret { source } => {
                let secret = self.files.read(source)?;
                self.files.ensure_file(path, mode, owner, &secret)?;
            }
            Content::Curve { source } => {
                let certificate = CertificateBytes::read(&self.files.at(source))?;
                self.files.ensure_file(path, mode, owner, certificate.bytes())?;
            }
            Content::DerivedCurve { seed, name, of } => {
                let certificate = CertificateBytes::derive(&self.files.at(seed), name, of)?;
                self.files.ensure_file(path, mode, owner, certificate.bytes())?;
            }
        }
        Ok(())
    }

    /// Waits until the container is stopped. It then exits with 0: a program that failed has ended it earlier.
    async fn stay(&mut self) -> Result<Flow, Failure> {
        tracing::info!(stage = "stay", "finished; waiting for the pod to be deleted");
        // The command has ended, so a stop need not be held back for it.
        self.supervisor.hold_no_stop();
        let stopped = self.supervisor.until_stopped().await;
        stopped.map(|_| Flow::Exit(0)).map_err(wait_failed)
    }

    /// Does the work of `Step::NoteEnd`, the last step, if the steps end before it but after Flux has ended by itself.
    fn note_end_of_flux_early(&mut self, program_code: Option<u8>, steps: &[Step]) {
        if let (Some(_), Some(Step::NoteEnd { note })) = (program_code, steps.last()) {
            self.note_end_of_flux(note);
        }
    }

    /// Writes the note that Flux has ended; its modification time says when. Until some seconds after that time,
    /// sidecars (except servers) hold back a stop. Without the note, a stop ends them at once. After a stop, no note is
    /// written: the note means that Flux has ended by itself.
    fn note_end_of_flux(&mut self, note: &str) {
        if self.supervisor.received_stop().is_some() {
            return;
        }
        let written = self
            .files
            .ensure_file(note, Mode(0o644), process_owner(), b"")
            .and_then(|()| {
                // A file of an earlier start still has its old modification time.
                let path = self.files.at(note);
                let opened = std::fs::File::options().write(true).open(&path);
                let touched = opened.and_then(|file| file.set_modified(std::time::SystemTime::now()));
                touched.map_err(|error| Failure::write("write", &path, &error))
            });
        if let Err(failure) = written {
            tracing::warn!(stage = "stop", "{}; sidecars end at once", failure.cause);
        }
    }

    /// In a pod that replaces a lost lead: runs no program of the user. Without a restart left it fails. Otherwise it
    /// waits for a stop, since the operator restarts the whole MiniCluster.
    async fn lead_lost(&mut self, restarts_left: u32) -> Result<Flow, Failure> {
        let cause = "an earlier pod of this lead was lost, and its program may have run";
        if restarts_left == 0 {
            let remedy = "no restart is left: raise backoffLimit (or maxRestarts)";
            return Err(Failure::new(Category::LeadLost, cause, remedy));
        }
        tracing::info!(
            stage = "lead",
            "{cause}; waiting for the operator to restart this MiniCluster"
        );
        let stop = self.supervisor.until_stopped().await.map_err(wait_failed)?;
        Ok(Flow::Exit(self.stop_code(stop)))
    }

    /// Shell lines that export these variables, with values from the current environment.
    fn exports(
        &self,
        variables: &std::collections::BTreeMap<String, flux_shared::command_words::Word>,
    ) -> Vec<u8> {
        let resolved: Vec<_> = variables
            .iter()
            .map(|(name, word)| (name, self.session.resolve(word)))
            .collect();
        session::exports(
            resolved
                .iter()
                .map(|(name, value)| (name.as_str().as_ref(), value.as_os_str())),
        )
    }

    async fn wait_parent(&mut self, parent: &BrokerAddress) -> Result<Flow, Failure> {
        let begin = Instant::now();
        let host = parent.host.as_str();
        let mut probe = self.parent_probe(parent);
        let waited = self
            .supervisor
            .unless_stopped(probe.wait(self.waits.parent_deadline.map(Duration::from_secs)))
            .await;
        let reached = match waited.map_err(wait_failed)? {
            // Perhaps the lead stays and only this pod is removed. With this code, the pod may be replaced.
            Interrupted::Stopped(_) => return Ok(Flow::Exit(REPLACE)),
            Interrupted::Done(Err(missing)) => return Err(follower::unreachable_parent(host, &missing)),
            Interrupted::Done(Ok(reached)) => reached,
        };
        self.timeline.record_until("dns", begin, reached.resolved);
        self.timeline
            .record_until("connect", reached.resolved, reached.connected);
        Ok(Flow::Next)
    }

    async fn wait_socket(&mut self, path: &str, begin: Instant) -> Result<Flow, Failure> {
        let socket = self.files.at(path);
        let waited = self
            .supervisor
            .unless_stopped(crate::wait::socket::wait_and_report(&socket))
            .await;
        self.timeline.record("socket", begin);
        match waited.map_err(wait_failed)? {
            Interrupted::Done(()) => Ok(Flow::Next),
            Interrupted::Stopped(stop) => Ok(Flow::Exit(self.stop_code(stop))),
        }
    }
}

#[cfg(test)]
mod tests;
