//! How a container ended: facts that are collected while it runs, and the termination message that is made of them at
//! its end.

use std::time::Instant;

use flux_shared::exit::Category;
use flux_shared::termination::{Ender, Termination};
use serde::{Deserialize, Serialize};

use crate::report::failure::{Failure, capitalized};

/// What is known of a container's end.
#[derive(Debug, Default)]
pub struct ContainerEnd {
    /// The program's exit code, and when it ended. Also if it ended in an earlier start (then: when this was found), or
    /// if a shutdown ended the instance before it began.
    pub program: Option<(u8, Instant)>,
    /// When the first stop signal came.
    pub stopped: Option<Instant>,
    /// The snippet that failed, or ended the entrypoint.
    pub snippet: Option<EndedSnippet>,
    /// Flux ended the job because a node of it was lost.
    pub is_node_failure: bool,
    /// Somebody shut the instance down. The program's exit code is not 0: the shutdown ended it, or it failed before.
    pub is_shut_down: bool,
    /// The category, if the broker could not be started, or the lead's broker ended before the program began.
    pub no_instance: Option<Category>,
    /// Why the archive was not saved, if that was planned or the plan is not known.
    pub archive_not_saved: Option<String>,
    /// Sentences for people.
    notes: Vec<String>,
}

/// A snippet that failed, or ended the entrypoint. The record of the container's starts keeps it, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedSnippet {
    pub name: String,
    pub code: u8,
    /// The last line of its standard error, if there is one.
    pub error: String,
}

impl std::fmt::Display for EndedSnippet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the snippet {} ended with exit code {}", self.name, self.code)?;
        if self.error.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", self.error)
        }
    }
}

impl ContainerEnd {
    /// Adds a sentence for people. Its full stop may be missing.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The termination message. `result` is the exit code of the container, or the agent's own failure.
    pub fn termination(&self, result: &Result<u8, Failure>) -> Termination {
        let mut notes = self.notes.clone();
        let mut termination = match result {
            Ok(code) => Termination::new(self.ender(*code), *code),
            Err(failure) => {
                notes.insert(0, failure.sentences());
                let category = Some(failure.category);
                Termination {
                    category,
                    ..Termination::new(Ender::Agent, failure.category.code())
                }
            }
        };
        if self.no_instance.is_some() && result.is_ok() {
            (termination.by, termination.category) = (Ender::Agent, self.no_instance);
        }
        termination.program_code = self.program.map(|(code, _)| code);
        if let Some(EndedSnippet { name, code, error }) = self.snippet.clone() {
            (
                termination.snippet,
                termination.snippet_code,
                termination.snippet_error,
            ) = (Some(name), Some(code), error);
        }
        termination.node_failure = self.is_node_failure;
        termination.shut_down = self.is_shut_down;
        termination.archive_not_saved = self.archive_not_saved.clone();
        let mut sentences: Vec<String> = notes.iter().map(|note| as_sentence(note)).collect();
        // The first one often follows a colon.
        for sentence in sentences.iter_mut().skip(1) {
            *sentence = capitalized(sentence);
        }
        termination.message = sentences.join(" ");
        termination
    }

    /// Who ended the container, which exits with `code`.
    fn ender(&self, code: u8) -> Ender {
        let stopped_first = match (self.stopped, self.program) {
            (Some(stopped), Some((_, ended))) => stopped < ended,
            (stopped, None) => stopped.is_some(),
            (None, Some(_)) => false,
        };
        match self.program {
            _ if stopped_first => Ender::Stop,
            Some((program, _)) if program == code => Ender::Program,
            _ if self.snippet.as_ref().is_some_and(|snippet| snippet.code == code) => Ender::Snippet,
            // For example a follower: it has no program of its own, and ends with the lead's.
            _ => Ender::Program,
        }
    }
}

/// The note with a full stop, unless it ends with punctuation.
fn as_sentence(note: &str) -> String {
    let note = note.trim().replace('\n', " ");
    if note.ends_with(['.', '?', '!']) {
        note
    } else {
        note + "."
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn ending(program: Option<u8>, stopped: bool, snippet: Option<&str>) -> ContainerEnd {
        let now = Instant::now();
        ContainerEnd {
            program: program.map(|code| (code, now + Duration::from_secs(1))),
            stopped: stopped.then_some(now),
            snippet: snippet.map(|name| EndedSnippet {
                name: name.to_owned(),
                code: 3,
                error: String::new(),
            }),
            ..ContainerEnd::default()
        }
    }

    #[test]
    fn ender_is_the_program_unless_stopped_or_a_snippet_decides() {
        let ender = |ending: &ContainerEnd, code| ending.termination(&Ok(code)).by;
        for code in 0..=255 {
            assert_eq!(ender(&ending(Some(code), false, None), code), Ender::Program);
            assert_eq!(ender(&ending(Some(code), true, None), code), Ender::Stop);
        }
        assert_eq!(
            ender(&ending(Some(7), false, Some("post")), 7),
            Ender::Program,
            "the job's failure comes first"
        );
        assert_eq!(ender(&ending(Some(0), false, Some("post")), 3), Ender::Snippet);
        assert_eq!(
            ender(&ending(Some(0), false, Some("post")), 0),
            Ender::Program,
            "its result stands"
        );
        assert_eq!(
            ender(&ending(None, false, Some("post")), 0),
            Ender::Program,
            "on a follower"
        );
        assert_eq!(ender(&ending(None, false, Some("pre")), 3), Ender::Snippet);
        assert_eq!(ender(&ending(None, true, Some("pre")), 143), Ender::Stop);
        assert_eq!(
            ender(&ending(None, false, None), 0),
            Ender::Program,
            "a follower without a snippet"
        );
        let mut late = ending(Some(245), false, None);
        late.stopped = Some(Instant::now() + Duration::from_secs(9));
        assert_eq!(
            ender(&late, 245),
            Ender::Program,
            "a stop that came after the program's end"
        );
    }

    #[test]
    fn agent_failure_has_remedy_notes_and_the_program_code() {
        let mut ending = ending(Some(0), false, None);
        ending.note("the pod was stopped");
        let failure = Failure::new(
            Category::WriteFailed,
            "failed to write /x: no space left on device",
            "give it room",
        );
        let termination = ending.termination(&Err(failure));
        assert_eq!(
            (termination.by, termination.code, termination.program_code),
            (Ender::Agent, 245, Some(0))
        );
        assert_eq!(termination.category, Some(Category::WriteFailed));
        let want = "failed to write /x: no space left on device. Give it room. The pod was stopped.";
        assert_eq!(termination.message, want);
    }
}
