//! Runs commands one after the other, supervised, in the instance's environment.

use std::ffi::OsString;

use flux_agent_plan::plan::SignalTarget;
use flux_shared::exit::of_signal;

use crate::execute::retry::{Attempts, RETRY_DEADLINE, Start};
use crate::execute::session::Session;
use crate::report::activity::ActivityFile;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::Supervisor;
use crate::supervise::policy::{DefaultPolicy, Policy, SecondStop, Terms};
use crate::supervise::program::{ChildProgram, Output};
use crate::system::raw::ChildSetup;

/// Runs commands, supervised, in the instance's environment.
pub struct CommandRunner {
    pub supervisor: Supervisor,
    /// The environment and the working directory of the commands.
    pub session: Session,
}

impl CommandRunner {
    pub fn new() -> Result<CommandRunner, Failure> {
        // The pod's entrypoint logs how a stop proceeds: this process does not log this as well.
        log::leave_out_supervision();
        let supervisor = Supervisor::new()
            .map_err(|error| Failure::internal(format!("failed to receive signals: {error}")))?;
        Ok(CommandRunner {
            supervisor,
            session: Session::of_process(),
        })
    }

    /// Runs a command and returns its exit code, also if it does not start. While the limit of processes prevents the
    /// start, it is retried for up to `RETRY_DEADLINE`. Each stop signal is forwarded. After a stop no command starts:
    /// the exit code is then that of the signal.
    pub async fn run(&mut self, argv: &[OsString], output: Output) -> Result<u8, Failure> {
        let terms = Terms {
            target: SignalTarget::Group,
            second_stop: SecondStop::IsPassedOn,
        };
        self.run_by(argv, output, terms, &mut DefaultPolicy).await
    }

    /// Runs a command as `run` does, with these terms and this policy in place of the default ones.
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
        let program = ChildProgram {
            argv,
            environment: &self.session.environment,
            directory: &self.session.directory,
            output,
            setup: ChildSetup {
                is_foreground: self.supervisor.has_terminal(),
                // Otherwise the command would go on after this process was killed.
                dies_with_agent: true,
                ..ChildSetup::default()
            },
        };
        // Without a file, this process reports no activity: only the pod's entrypoint does.
        let attempts = Attempts::new(RETRY_DEADLINE, ActivityFile::default());
        let child = match attempts.start(&program, &mut self.supervisor).await? {
            Start::Started { child, .. } => child,
            Start::Failed(error) => {
                log::fatal("start", &error.to_string());
                return Ok(error.code);
            }
            Start::Stopped(stop) => return Ok(of_signal(stop.signal)),
        };
        let ended = self.supervisor.run(child, terms, policy).await;
        ended
            .map(|ended| ended.end.code())
            .map_err(|error| Failure::internal(format!("failed to supervise: {error}")))
    }

    /// The exit code for the stop signal that has come. None: there was no stop.
    pub fn stop_code(&mut self) -> Option<u8> {
        self.supervisor.received_stop().map(|stop| of_signal(stop.signal))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::system::runtime::block_on;
    use crate::testing::{allow_processes, alone, become_user};

    #[test]
    fn start_is_retried_while_no_process_is_allowed() {
        alone(
            "in_instance::command_runner::tests::start_is_retried_while_no_process_is_allowed",
            |folder| {
                become_user(61_236, folder);
                let allowed_later = std::thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(500));
                    allow_processes(100);
                });
                allow_processes(0);
                let code = block_on(Box::pin(async {
                    let argv = ["sh", "-c", "exit 3"].map(OsString::from);
                    CommandRunner::new()?.run(&argv, Output::Inherit).await
                }));
                assert_eq!(code.unwrap(), 3);
                allowed_later.join().unwrap();
            },
        );
    }
}
