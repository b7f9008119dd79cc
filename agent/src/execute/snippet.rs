//! Runs one snippet of the user in the container's shell, and decides what its end means.

use std::time::{Duration, Instant};

use flux_agent_plan::plan::{Role, Snippet, SnippetPhase};
use flux_shared::backoff;

use super::executor::{Executor, Flow};
use super::shell::{Shell, SnippetRun, Started};
use crate::report::activity::Activity;
use crate::report::ending::EndedSnippet;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::{ChildEnd, Stop};

/// If a snippet takes longer than this, the log reports that it still runs.
const SLOW_AFTER: Duration = Duration::from_secs(5);

impl Executor<'_> {
    /// Runs a snippet; returns what follows it. `begin`: when its step began.
    pub(super) async fn run_snippet(&mut self, snippet: &Snippet, begin: Instant) -> Result<Flow, Failure> {
        let Snippet { name, phase, .. } = *snippet;
        // A sidecar runs its command like a snippet.
        let is_program = phase == SnippetPhase::Program;
        let had_shell = self.shell.is_some();
        let mut shell = match self.running_shell(name).await? {
            Started::Ready(shell) => *shell,
            Started::Ended(end) => return Ok(self.end_before(snippet, end)),
        };
        let mut run = self.run_in(&mut shell, snippet).await?;
        // An earlier snippet has made its shell unusable, so this one gets a new shell.
        if run == SnippetRun::Unheard && had_shell {
            warn_of_new_shell(
                name,
                "no longer reads the agent's commands (is `command` or `.` a function, or disabled? Or was the shell killed?)",
            );
            shell = match self.new_shell().await? {
                Started::Ready(shell) => *shell,
                Started::Ended(end) => return Ok(self.end_before(snippet, end)),
            };
            run = self.run_in(&mut shell, snippet).await?;
        }
        self.timeline.record(name, begin);
        let ended = |code| EndedSnippet {
            name: name.to_owned(),
            code,
            error: last_line(&shell.last_errors(snippet)),
        };
        // After a stop, the program does not start, whatever the snippet's end was.
        if phase == SnippetPhase::Before
            && let Some(stop) = self.supervisor.received_stop()
        {
            let code = self.stop_code(stop);
            self.ending.snippet = Some(EndedSnippet {
                // The stop ended it, not its last error.
                error: String::new(),
                ..ended(code)
            });
            self.ending.note(format!(
                "the pod was stopped while the snippet {name} was running"
            ));
            // A shell that still runs is kept: its EXIT trap runs at the container's end.
            self.shell = matches!(run, SnippetRun::Finished(_)).then_some(shell);
            return Ok(Flow::Exit(code));
        }
        match run {
            SnippetRun::ShellUnusable(code) => {
                let error = "its shell could not start a program after it: a variable that it exports is too large, or a \
                             limit that it sets (ulimit) too low";
                // `max`: an unusable shell is no success.
                let ended = EndedSnippet {
                    error: error.to_owned(),
                    ..ended(code.max(1))
                };
                Ok(self.end_entrypoint(snippet, ended))
            }
            // The shell ends by itself. Its code does not matter: `end_before` turns the 0 into 1.
            SnippetRun::Unheard => Ok(self.end_before(snippet, ChildEnd::Exited(0))),
            SnippetRun::ShellEnded(code) if is_program => Ok(Flow::ProgramEnded(code)),
            SnippetRun::ShellEnded(code) => Ok(self.end_entrypoint(snippet, ended(code))),
            SnippetRun::Finished(code) => {
                if !is_program {
                    self.note_status(snippet, ended(code));
                }
                self.shell = Some(shell);
                Ok(if is_program {
                    Flow::ProgramEnded(code)
                } else {
                    Flow::Next
                })
            }
        }
    }

    /// Runs a snippet in this shell, and reports meanwhile that it runs.
    async fn run_in(&mut self, shell: &mut Shell, snippet: &Snippet) -> Result<SnippetRun, Failure> {
        shell.leaves_first_stop = snippet.phase == SnippetPhase::After && self.has_instance_ended;
        let work = shell.run(self.supervisor, &mut self.session, snippet);
        self.options
            .activity_file
            .write(Some(&Activity::Snippet(snippet.name.to_owned())));
        let is_program = snippet.phase == SnippetPhase::Program;
        let what = format!("the snippet {}", snippet.name);
        let run = if is_program {
            work.await
        } else {
            log_while_slow(snippet.name, &what, work).await
        };
        self.options.activity_file.write(None);
        run
    }

    /// Reports a snippet that should have run after the program, but could not be run. The program's result does not
    /// change.
    pub(super) fn skip_failed_snippet(&mut self, snippet: &Snippet, failure: &Failure) -> Flow {
        log::failure(failure);
        let (name, code) = (snippet.name.to_owned(), failure.category.code());
        self.ending.snippet = Some(EndedSnippet {
            name,
            code,
            error: failure.sentences(),
        });
        Flow::Next
    }

    /// The shell of the snippets. It is started if there is none, or if it has ended while no snippet ran (by
    /// `killall bash` or the OOM killer). `name`: the next snippet.
    async fn running_shell(&mut self, name: &'static str) -> Result<Started, Failure> {
        if let Some(mut shell) = self.shell.take() {
            let Some(end) = shell.ended(self.supervisor) else {
                return Ok(Started::Ready(Box::new(shell)));
            };
            let ended = match end {
                ChildEnd::Exited(code) => format!("ended with code {code}"),
                ChildEnd::Signaled(signal) => format!("was ended by signal {signal}"),
            };
            warn_of_new_shell(name, &format!("{ended} while no snippet ran"));
        }
        self.new_shell().await
    }

    /// Starts the planned shell.
    async fn new_shell(&mut self) -> Result<Started, Failure> {
        let Some(planned) = &self.planned_shell else {
            return Err(Failure::internal("no shell is planned for the snippets"));
        };
        let started = Shell::start(self.supervisor, &self.session, planned, &self.options.agent).await?;
        // If a stop came meanwhile, the snippet does not start: the result is a shell that has ended.
        let Some(stop) = self.supervisor.received_stop() else {
            return Ok(started);
        };
        if let Started::Ready(shell) = started {
            self.shell = Some(*shell);
        }
        Ok(Started::Ended(ChildEnd::Signaled(stop.signal)))
    }

    /// Reports a shell that ended before it ran this snippet.
    fn end_before(&mut self, snippet: &Snippet, end: ChildEnd) -> Flow {
        if let Some(stop) = self.supervisor.received_stop() {
            return self.stopped_before(snippet, stop);
        }
        let error = "its shell ended before it began; is a builtin such as `command` an exported function, or does the \
                     file that BASH_ENV names end it?";
        // A snippet that did not run is no success.
        let (name, code) = (snippet.name.to_owned(), end.code().max(1));
        self.end_entrypoint(
            snippet,
            EndedSnippet {
                name,
                code,
                error: error.to_owned(),
            },
        )
    }

    /// What follows a stop before this snippet began.
    pub(super) fn stopped_before(&mut self, snippet: &Snippet, stop: Stop) -> Flow {
        if snippet.phase == SnippetPhase::After {
            self.note_skipped(snippet);
            Flow::Next
        } else {
            Flow::Exit(self.stop_code(stop))
        }
    }

    /// Ends the shell of the snippets, if it runs. Its EXIT trap runs.
    pub(super) async fn end_shell(&mut self) -> Result<(), Failure> {
        let Some(shell) = self.shell.take() else {
            return Ok(());
        };
        let ended = log_while_slow(
            "snippets",
            "the EXIT trap of the snippets' shell",
            shell.end(self.supervisor),
        )
        .await;
        ended.map_err(|error| Failure::internal(format!("failed to end the shell: {error}")))
    }

    /// Reports a snippet whose shell has ended or is unusable; returns what follows. Before the program, the
    /// container ends, and on a follower this is a failure even with code 0. After the program, the container ends only
    /// if the snippet has failed and decides the container's exit code.
    fn end_entrypoint(&mut self, snippet: &Snippet, mut ended: EndedSnippet) -> Flow {
        let name = snippet.name;
        let is_after = snippet.phase == SnippetPhase::After;
        let is_early_success = !is_after && ended.code == 0;
        // The Job would count this pod as succeeded, and the lead would wait for it for ever.
        if is_early_success && self.role == Role::Follower {
            ended.code = 1;
            ended.error = "it ended the entrypoint with code 0 before Flux began".to_owned();
        }
        let code = ended.code;
        let flow = if is_after && !(snippet.decides && code != 0) {
            Flow::Next
        } else {
            Flow::Exit(code)
        };
        // The job has ended already: a stop that comes now does not change its result.
        if is_after && code != 0 && self.supervisor.received_stop().is_some() {
            let line = format!("the pod was stopped while the snippet {name} was still running");
            tracing::error!(stage = name, "{line}");
            self.ending.note(line);
            self.ending.snippet = Some(EndedSnippet {
                error: String::new(),
                ..ended
            });
            return Flow::Next;
        }
        match (code, is_after) {
            (0, true) => return flow,
            (0, false) => {
                let line = format!("the snippet {name} ended the entrypoint with code 0 before Flux began");
                tracing::warn!(stage = name, "{line}");
                self.ending.note(line);
            }
            (_, true) => tracing::error!(stage = name, "{ended}"),
            (_, false) => {
                let full_stop = if ended.error.ends_with('?') { "" } else { "." };
                // An `exit 0` is no command that fails.
                let has_remedy = snippet.strict && !is_early_success;
                let remedy = if has_remedy {
                    format!("{full_stop} {CONTINUE_REMEDY}")
                } else {
                    String::new()
                };
                tracing::error!(stage = name, "{ended}{remedy}");
                if has_remedy {
                    self.ending.note(CONTINUE_REMEDY);
                }
            }
        }
        self.ending.snippet = Some(ended);
        flow
    }

    /// Reports the status of a snippet that ran to its end, unless it is 0.
    fn note_status(&mut self, snippet: &Snippet, ended: EndedSnippet) {
        let name = snippet.name;
        match ended.code {
            0 => {}
            // A strict snippet that goes on after a failure has itself switched off `set -e`.
            _ if snippet.strict => tracing::info!(stage = name, "{ended}"),
            _ => {
                tracing::warn!(stage = name, "{ended}; continuing");
                // The status reports a `post` that failed. A failure before the program that was ignored is not the
                // cause of the container's end.
                if snippet.phase == SnippetPhase::After {
                    self.ending.snippet = Some(ended);
                }
            }
        }
    }
}

/// The remedy if a strict snippet should go on after a command that fails.
const CONTINUE_REMEDY: &str = "To continue after a command that fails, set logging.strict: false";

/// The last line that is not blank. Programs such as curl draw their progress with carriage returns.
fn last_line(errors: &str) -> String {
    let mut lines = errors.rsplit(['\n', '\r']).map(str::trim);
    lines.find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

/// Warns that the snippet `name` runs in a new shell. `why`: what is wrong with the old one.
fn warn_of_new_shell(name: &'static str, why: &str) {
    tracing::warn!(
        stage = name,
        "the snippets' shell {why}: {name} runs in a new one, which has the old one's exported variables, but not its \
         functions or other variables"
    );
}

/// Awaits `work`. If it is slow, logs with growing pauses that `what` is still running.
async fn log_while_slow<T>(stage: &'static str, what: &str, work: impl Future<Output = T>) -> T {
    let (begin, mut reports) = (Instant::now(), 0);
    tokio::pin!(work);
    loop {
        reports += 1;
        let pause = backoff::after(reports, SLOW_AFTER, Duration::MAX);
        if let Ok(done) = tokio::time::timeout(pause, &mut work).await {
            return done;
        }
        tracing::info!(
            stage,
            "{what} is still running after {} s",
            begin.elapsed().as_secs()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_is_not_the_progress_before_a_carriage_return() {
        let progress: String = (0..20).map(|percent| format!("\r{percent:078}")).collect();
        assert_eq!(
            last_line(&format!("{progress}\rcurl: (28) timed out\n")),
            "curl: (28) timed out"
        );
        assert_eq!(last_line("a: no such file\r\n\r\n  \n"), "a: no such file");
        assert_eq!(last_line("one\ntwo "), "two");
        assert_eq!(last_line(""), "");
    }
}
