//! A supervisor for one command after the other, in the environment that the instance gives.

use std::ffi::OsString;

use crate::execute::session::Session;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::Supervisor;
use crate::supervise::policy::{DefaultPolicy, Policy, SecondStop, Target, Terms};
use crate::supervise::program::{Output, Program};
use crate::system::raw::ChildSetup;

/// Runs commands, supervised, in the instance's environment.
pub struct CommandRunner {
    pub supervisor: Supervisor,
    pub session: Session,
}

impl CommandRunner {
    pub fn new() -> Result<CommandRunner, Failure> {
        log::leave_out_supervision();
        let supervisor =
            Supervisor::new().map_err(|error| Failure::internal(format!("failed to receive signals: {error}")))?;
        Ok(CommandRunner { supervisor, session: Session::of_process() })
    }

    /// Runs a command; returns its exit code, also if it does not start. Each stop is passed on, and there is no time limit.
    pub async fn run(&mut self, argv: &[OsString], output: Output) -> Result<u8, Failure> {
        let terms = Terms { target: Target::Group, kill_after: None, second_stop: SecondStop::IsPassedOn };
        self.run_by(argv, output, terms, &mut DefaultPolicy).await
    }

    /// Runs a command by other terms and another policy.
    pub async fn run_by(
        &mut self,
        argv: &[OsString],
        output: Output,
        terms: Terms,
        policy: &mut dyn Policy,
    ) -> Result<u8, Failure> {
        let program = Program {
            argv,
            environment: &self.session.environment,
            directory: &self.session.directory,
            output,
            setup: ChildSetup { foreground: self.supervisor.has_terminal(), tied: true, ..ChildSetup::default() },
        };
        let child = match program.start() {
            Ok(child) => child,
            Err(error) => {
                log::plain("start", &format!("flux-agent: {error}"));
                return Ok(error.code);
            }
        };
        let ended = self.supervisor.run(child, terms, policy).await;
        ended.map(|ended| ended.end.code()).map_err(|error| Failure::internal(format!("failed to supervise: {error}")))
    }
}
