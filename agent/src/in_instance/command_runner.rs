//! A supervisor for one command after the other, in the environment that the instance gives.

use std::ffi::OsString;

use flux_agent_plan::plan::SignalTarget;
use flux_shared::exit::of_signal;

use crate::execute::session::Session;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::Supervisor;
use crate::supervise::policy::{DefaultPolicy, Policy, SecondStop, Terms};
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
        let supervisor = Supervisor::new()
            .map_err(|error| Failure::internal(format!("failed to receive signals: {error}")))?;
        Ok(CommandRunner {
            supervisor,
            session: Session::of_process(),
        })
    }

    /// Runs a command; returns its exit code, also if it does not start. Each stop is passed on. After a stop
    /// nothing starts: the code is then that of the signal.
    pub async fn run(&mut self, argv: &[OsString], output: Output) -> Result<u8, Failure> {
        let terms = Terms {
            target: SignalTarget::Group,
            second_stop: SecondStop::IsPassedOn,
        };
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
        if let Some(code) = self.stop_code() {
            return Ok(code);
        }
        let program = Program {
            argv,
            environment: &self.session.environment,
            directory: &self.session.directory,
            output,
            setup: ChildSetup {
                foreground: self.supervisor.has_terminal(),
                tied: true,
                ..ChildSetup::default()
            },
        };
        let child = match self.supervisor.start(program) {
            Ok(child) => child,
            Err(error) => {
                log::plain("start", &format!("flux-agent: {error}"));
                return Ok(error.code);
            }
        };
        let ended = self.supervisor.run(child, terms, policy).await;
        ended
            .map(|ended| ended.end.code())
            .map_err(|error| Failure::internal(format!("failed to supervise: {error}")))
    }

    /// The exit code of a program that was told to stop before it has started what it is for; none: go on.
    pub fn stop_code(&mut self) -> Option<u8> {
        self.supervisor.stop().map(|stop| of_signal(stop.signal))
    }
}
