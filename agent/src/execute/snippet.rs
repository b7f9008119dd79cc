//! One of the user's snippets: run in the container's shell, and what its end means.

use std::time::{Duration, Instant};

use flux_shared::backoff;

use super::executor::{Executor, Flow};
use super::shell::{Outcome, Shell};
use crate::plan::{Snippet, SnippetPhase};
use crate::report::activity::Activity;
use crate::report::failure::Failure;
use crate::supervise::End;

/// A snippet that takes longer is named in the log, for those who wonder why nothing happens.
const SNIPPET_IS_SLOW: Duration = Duration::from_secs(5);

impl Executor<'_> {
    pub(super) async fn snippet(&mut self, snippet: &Snippet, begin: Instant) -> Result<Flow, Failure> {
        let mut shell = self.running_shell(snippet.name)?;
        let Snippet { name, silent, phase, .. } = *snippet;
        let is_program = phase == SnippetPhase::Program;
        let work = shell.run(self.supervisor, &mut self.session, &snippet.source, silent);
        self.options.activity_file.write(Some(&Activity::Snippet(name.to_owned())));
        let outcome = if is_program { work.await } else { log_while_slow(name, work).await };
        self.options.activity_file.write(None);
        let outcome = outcome?;
        self.timeline.record(name, begin);
        let said = || match shell.last_errors() {
            text if silent && !text.is_empty() => format!(": {}", text.lines().last().unwrap_or_default()),
            _ => String::new(),
        };
        if phase == SnippetPhase::Before
            && let Some(stop) = self.supervisor.stop()
        {
            self.shell = matches!(outcome, Outcome::Finished(_)).then_some(shell);
            self.note_end(name, format!("the pod was stopped while the snippet {name} was running"));
            return Ok(Flow::Exit(self.stop_code(stop)));
        }
        match outcome {
            Outcome::ShellUnusable(code) => {
                let line = format!(
                    "after the snippet {name} its shell could not start a program (code {code}): a variable that it \
                     exports is too large, or a limit that it sets (ulimit) too low"
                );
                tracing::error!(stage = name, "{line}");
                self.note_end(name, line);
                Ok(Flow::Exit(code.max(1)))
            }
            Outcome::ShellEnded(code) if is_program => Ok(Flow::Ended(code)),
            Outcome::ShellEnded(code) => Ok(self.end_entrypoint(snippet, code, &said())),
            Outcome::Finished(code) => {
                if !is_program {
                    log_status(snippet, code, &said());
                }
                self.shell = Some(shell);
                Ok(if is_program { Flow::Ended(code) } else { Flow::Next })
            }
        }
    }

    /// The shell of the snippets. One that has ended while no snippet ran (`TMOUT`, a `killall bash`, the OOM killer) is
    /// replaced.
    fn running_shell(&mut self, name: &str) -> Result<Shell, Failure> {
        if let Some(shell) = self.shell.take() {
            let Some(end) = shell.ended_meanwhile(self.supervisor) else { return Ok(shell) };
            let how = match end {
                End::Exited(code) => format!("ended with code {code}"),
                End::Signaled(signal) => format!("was ended by signal {signal}"),
            };
            tracing::warn!(
                stage = name,
                "the snippets' shell {how} while no snippet ran: {name} runs in a new one, which has the old one's \
                 exported variables, but not its functions or other variables"
            );
        }
        let Some(planned) = &self.planned_shell else {
            return Err(Failure::internal("no shell is planned for the snippets"));
        };
        Shell::start(self.supervisor, &self.session, planned, &self.options.agent)
    }

    pub(super) async fn end_shell(&mut self) -> Result<(), Failure> {
        let Some(shell) = self.shell.take() else { return Ok(()) };
        let ended = shell.end(self.supervisor).await;
        ended.map_err(|error| Failure::internal(format!("failed to end the shell: {error}")))
    }

    /// Reports a snippet that ended its shell, and with it the entrypoint.
    fn end_entrypoint(&mut self, snippet: &Snippet, code: u8, said: &str) -> Flow {
        let name = snippet.name;
        // The job has ended already: a stop that comes now does not change its result.
        let is_stopped = snippet.phase == SnippetPhase::After && self.supervisor.stop().is_some();
        let (line, flow) = match code {
            0 => (format!("the snippet {name} ended the entrypoint with code 0"), Flow::Exit(0)),
            _ if is_stopped => (format!("the pod was stopped while the snippet {name} was still running"), Flow::Next),
            code => (format!("the snippet {name} ended the entrypoint with code {code}{said}"), Flow::Exit(code)),
        };
        match code {
            0 => tracing::info!(stage = name, "{line}"),
            _ => tracing::error!(stage = name, "{line}"),
        }
        self.note_end(name, line);
        flow
    }

    /// Notes for the termination message that this snippet ended the entrypoint.
    fn note_end(&mut self, name: &str, line: String) {
        self.ending.snippet = Some(name.to_owned());
        self.ending.note(line);
    }
}

/// Logs the status of a snippet that ran to its end, unless it is 0.
fn log_status(snippet: &Snippet, code: u8, said: &str) {
    let name = snippet.name;
    match code {
        0 => {}
        code if !snippet.strict => {
            tracing::warn!(stage = name, "the snippet {name} failed with exit code {code}; continuing{said}");
        }
        // A strict snippet that goes on after a failure has switched -e off itself.
        code => tracing::info!(stage = name, "the snippet {name} ended with code {code}"),
    }
}

/// Awaits `work`, and logs ever more rarely that it still runs.
async fn log_while_slow<T>(name: &'static str, work: impl Future<Output = T>) -> T {
    let (begin, mut told) = (Instant::now(), 0);
    tokio::pin!(work);
    loop {
        told += 1;
        let pause = backoff::after(told, SNIPPET_IS_SLOW, Duration::MAX);
        if let Ok(done) = tokio::time::timeout(pause, &mut work).await {
            return done;
        }
        tracing::info!(stage = name, "the snippet {name} is still running after {} s", begin.elapsed().as_secs());
    }
}
