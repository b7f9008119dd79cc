//! One of the user's snippets: run in the container's shell, and what its end means.

use std::time::{Duration, Instant};

use super::shell::Outcome;
use super::{Executor, Flow};
use crate::plan::{Snippet, Stage};
use crate::report::activity::{self, Activity};
use crate::report::failure::Failure;

/// A snippet that takes longer is named: whoever looks why nothing happens sees it in the log.
const SNIPPET_IS_SLOW: Duration = Duration::from_secs(5);

impl Executor<'_> {
    pub(super) async fn snippet(&mut self, snippet: &Snippet, begin: Instant) -> Result<Flow, Failure> {
        let Some(mut shell) = self.shell.take() else { return Ok(Flow::Next) };
        let Snippet { name, silent, strict, stage, .. } = *snippet;
        let is_program = stage == Stage::Program;
        let work = shell.run(self.supervisor, &mut self.session, &snippet.source, silent);
        activity::be_known_for(Some(&Activity::Snippet(name.to_owned())));
        let outcome = if is_program { work.await } else { impatiently(name, work).await };
        activity::be_known_for(None);
        let outcome = outcome?;
        self.timeline.record(name, begin);
        let said = || match shell.last_errors() {
            text if silent && !text.is_empty() => format!(": {}", text.lines().last().unwrap_or_default()),
            _ => String::new(),
        };
        if let Outcome::Lost(code) = outcome {
            let line = format!(
                "after the snippet {name} its shell could not start a program (code {code}): a variable that it exports \
                 is too large, or a limit that it sets (ulimit) too low"
            );
            tracing::error!(stage = name, "{line}");
            self.was_the_end(name, line);
            return Ok(Flow::Exit(code.max(1)));
        }
        if is_program {
            return Ok(match outcome {
                Outcome::Went(code) => {
                    self.shell = Some(shell);
                    Flow::Ended(code)
                }
                Outcome::Ended(code) | Outcome::Lost(code) => Flow::Ended(code),
            });
        }
        match outcome {
            Outcome::Went(0) => {}
            Outcome::Went(status) if !strict => {
                tracing::error!(
                    stage = name,
                    "the snippet {name} failed with code {status} and is passed over{}",
                    said()
                );
            }
            Outcome::Went(status) => {
                // A snippet that has switched -e off: its own decision.
                tracing::info!(stage = name, "the snippet {name} ended with code {status}");
            }
            Outcome::Ended(0) => {
                let line = format!("the snippet {name} ended the entrypoint with code 0");
                tracing::info!(stage = name, "{line}");
                self.was_the_end(name, line);
                return Ok(Flow::Exit(0));
            }
            // The job has ended before, and a stop that comes then changes nothing of its result.
            Outcome::Ended(_)
                if stage == Stage::After && self.supervisor.first_stop().is_some_and(|stop| stop >= begin) =>
            {
                let line = format!("the pod was told to stop while the snippet {name} ran, which did not end");
                tracing::error!(stage = name, "{line}");
                self.was_the_end(name, line);
                return Ok(Flow::Next);
            }
            Outcome::Ended(code) | Outcome::Lost(code) => {
                let line = format!("the snippet {name} ended the entrypoint with code {code}{}", said());
                tracing::error!(stage = name, "{line}");
                self.was_the_end(name, line);
                return Ok(Flow::Exit(code));
            }
        }
        self.shell = Some(shell);
        Ok(Flow::Next)
    }

    /// What followed from the end of this snippet is told with its name.
    fn was_the_end(&mut self, name: &str, line: String) {
        self.ending.snippet = Some(name.to_owned());
        self.ending.note(line);
    }
}

/// Lets `work` go on, and says ever more rarely that it does.
async fn impatiently<T>(name: &'static str, work: impl Future<Output = T>) -> T {
    let (begin, mut pause) = (Instant::now(), SNIPPET_IS_SLOW);
    tokio::pin!(work);
    loop {
        if let Ok(done) = tokio::time::timeout(pause, &mut work).await {
            return done;
        }
        tracing::info!(stage = name, "the snippet {name} is still running after {} s", begin.elapsed().as_secs());
        pause *= 2;
    }
}
