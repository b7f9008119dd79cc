//! The termination message of a pod's runner container, in which the agent reports what ended the container, and why.
//!
//! The exit code is not enough: the lead passes on every code of the user's program, and that may be one of the
//! agent's own codes. So the agent always writes one line of JSON, and the operator relies on it alone. Without such
//! a line (the kernel or the kubelet killed the container, or its entrypoint is another program), the operator knows
//! only the container's state. If the MiniCluster is traced, a second line has the container's
//! [timeline](crate::timeline).

use serde::{Deserialize, Serialize};

use crate::exit::Category;
use crate::printable::printable;
use crate::timeline::PodTimeline;

/// Version of the line; lines of other versions are not read.
pub const VERSION: u32 = 1;
/// Name of the snippet that runs after the program.
pub const POST: &str = "post";
/// Longest message, in bytes. The kubelet keeps the last 4,096 bytes of a message, and of these the first 12,288 / n in
/// a pod of n containers (init containers count). So it keeps the whole message in a pod of up to four containers.
const MOST_BYTES: usize = 3072;
/// Longest first line, in bytes: the kubelet keeps all of it in a pod of up to eight containers.
const LINE_MAX: usize = 1536;
/// Longest text in the line, in characters (`snippet_error`: half as many). The line has room for two of them. If it is
/// still too long, `encode` halves this limit.
const TEXT_MAX: usize = 600;

/// What ended the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ender {
    /// The user's program, whose exit code the lead's container has; or on a follower, the end of the instance.
    Program,
    /// One of the user's snippets.
    Snippet,
    /// A failure of the agent, of the kind in `category`.
    Agent,
    /// A stop of the pod, before its program had ended by itself.
    Stop,
}

/// The termination message, one line of JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    pub version: u32,
    pub by: Ender,
    /// The container's exit code.
    pub code: u8,
    /// Exit code of the program, if it was started and has ended. `code` may be another one: a snippet after the
    /// program may have ended the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_code: Option<u8>,
    /// Why the agent failed; only with [`Ender::Agent`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// The snippet that failed or ended the entrypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
    /// The exit code of that snippet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snippet_code: Option<u8>,
    /// The last line of the snippet's standard error. Empty: it wrote nothing, or to a terminal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub snippet_error: String,
    /// Flux ended the job because one of its nodes was lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_failure: bool,
    /// Somebody shut the instance down (`flux shutdown`, `flux-agent stop`), and the program ended with a code other
    /// than 0, before the shutdown or because of it. No start of this container runs the program again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shut_down: bool,
    /// Why the archive was not saved. None: it was saved, or none was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_not_saved: Option<String>,
    /// Cause and remedy in one or two sentences, for people. Empty: there is nothing to add to the code.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl Termination {
    pub fn new(by: Ender, code: u8) -> Termination {
        Termination {
            version: VERSION,
            by,
            code,
            program_code: None,
            category: None,
            snippet: None,
            snippet_code: None,
            snippet_error: String::new(),
            node_failure: false,
            shut_down: false,
            archive_not_saved: None,
            message: String::new(),
        }
    }

    /// One line of JSON of at most 1,536 bytes; long texts are cut.
    pub fn encode(&self) -> String {
        let mut length = TEXT_MAX;
        loop {
            let mut short = self.clone();
            cut(&mut short.message, length);
            cut(&mut short.snippet_error, length / 2);
            short
                .archive_not_saved
                .iter_mut()
                .for_each(|text| cut(text, length));
            short.snippet.iter_mut().for_each(|text| cut(text, length));
            let line = serde_json::to_string(&short).unwrap_or_default();
            if line.len() <= LINE_MAX || length == 0 {
                return line;
            }
            length /= 2;
        }
    }

    /// The line of [`Termination::encode`], and a second line with as many stages of the timeline as fit.
    pub fn encode_with(&self, timeline: &PodTimeline) -> String {
        let line = self.encode();
        // Two more bytes: a newline for each line.
        match timeline.encode(MOST_BYTES.saturating_sub(line.len() + 2)) {
            Some(second) => format!("{line}\n{second}"),
            None => line,
        }
    }

    /// The exit code of the snippet `post` if it failed. The program's result does not depend on it unless it ended the
    /// container.
    pub fn failed_post(&self) -> Option<u8> {
        self.snippet_code
            .filter(|code| *code != 0 && self.snippet.as_deref() == Some(POST))
    }

    /// Parses a termination message, without terminal codes in its texts: the job can write the message. None: its
    /// first line is not one of the agent's, of this version.
    pub fn decode(message: &str) -> Option<Termination> {
        let found: Termination = serde_json::from_str(message.trim().lines().next()?).ok()?;
        if found.version != VERSION {
            return None;
        }
        let printable = |text: String| printable(&text).into_owned();
        Some(Termination {
            snippet: found.snippet.map(printable),
            snippet_error: printable(found.snippet_error),
            archive_not_saved: found.archive_not_saved.map(printable),
            message: printable(found.message),
            ..found
        })
    }
}

/// Shortens a text to `length` characters and `…`.
fn cut(text: &mut String, length: usize) {
    if let Some((end, _)) = text.char_indices().nth(length) {
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{self, Stage};

    #[test]
    fn termination_survives_encode_and_decode() {
        let full = Termination {
            program_code: Some(7),
            category: Some(Category::WriteFailed),
            snippet: Some("post".into()),
            snippet_code: Some(3),
            snippet_error: "cat: /tmp/out: No such file or directory".into(),
            node_failure: true,
            shut_down: true,
            archive_not_saved: Some("the volume is full".into()),
            message: "failed to write /mnt/flux/R: no space left on device.".into(),
            ..Termination::new(Ender::Agent, 245)
        };
        for termination in [full, Termination::new(Ender::Program, 0)] {
            let line = termination.encode();
            assert!(!line.contains('\n'));
            assert_eq!(Termination::decode(&format!("{line}\n")), Some(termination));
        }
    }

    #[test]
    fn termination_line_is_never_too_long_for_the_kubelet() {
        for letter in ["a", "\u{1}", "é", "\""] {
            let text = letter.repeat(100_000);
            let long = Termination {
                archive_not_saved: Some(text.clone()),
                snippet_error: text.clone(),
                message: text,
                ..Termination::new(Ender::Agent, 249)
            };
            let line = long.encode();
            assert!(line.len() <= 12_288 / 8, "{}", line.len());
            assert!(Termination::decode(&line).is_some());
        }
    }

    fn timeline(stages: usize) -> PodTimeline {
        let stage = |number: usize| Stage {
            name: format!("stage{number}"),
            start: -2_034_000,
            lasted: 1_520_000,
        };
        PodTimeline {
            version: timeline::VERSION,
            host: "mc-0".into(),
            role: "lead".into(),
            started: 1_764_176_988_123_456,
            lasted: 12_345_678,
            stages: (0..stages).map(stage).collect(),
        }
    }

    #[test]
    fn timeline_is_a_second_line_and_never_shortens_the_first() {
        for (letter, length) in [
            ("a", 0),
            ("a", 100_000),
            ("\u{1}", 100_000),
            ("é", 500),
            ("\"", 100_000),
        ] {
            let text = letter.repeat(length);
            let termination = Termination {
                archive_not_saved: Some(text.clone()),
                snippet_error: text.clone(),
                message: text,
                ..Termination::new(Ender::Agent, 249)
            };
            for stages in [0, 12, 100, 100_000] {
                let timeline = timeline(stages);
                let message = termination.encode_with(&timeline);
                assert!(message.len() < MOST_BYTES, "{} bytes", message.len());
                assert_eq!(message.lines().next(), Some(termination.encode().as_str()));
                assert_eq!(
                    Termination::decode(&message),
                    Termination::decode(&termination.encode())
                );
                let found = PodTimeline::decode(&message);
                if length == 0 && stages <= 12 {
                    assert_eq!(found, Some(timeline));
                } else if let Some(found) = found {
                    assert_eq!(found.stages[..], timeline.stages[..found.stages.len()]);
                }
            }
        }
    }

    /// In a pod of many containers, the kubelet cuts a message at its end.
    #[test]
    fn termination_keeps_its_result_when_the_kubelet_cuts_it() {
        let termination = Termination::new(Ender::Program, 7);
        let message = termination.encode_with(&timeline(12));
        for length in termination.encode().len()..message.len() {
            let cut = &message[..length];
            assert_eq!(Termination::decode(cut).as_ref(), Some(&termination), "{cut}");
            assert_eq!(PodTimeline::decode(cut), None, "{cut}");
        }
    }

    #[test]
    fn decoded_texts_have_no_terminal_codes() {
        let text = "\x1b[2Jgone\r";
        let termination = Termination {
            snippet: Some(text.into()),
            snippet_error: text.into(),
            archive_not_saved: Some(text.into()),
            message: text.into(),
            ..Termination::new(Ender::Snippet, 7)
        };
        let decoded = Termination::decode(&termination.encode()).unwrap();
        assert!(!format!("{decoded:?}").contains(r"\u{1b}"), "{decoded:?}");
        assert_eq!(decoded.snippet_error, "\u{fffd}[2Jgone\u{fffd}");
    }

    #[test]
    fn foreign_termination_message_is_not_decoded() {
        for text in [
            "",
            "killed",
            "{}",
            "[]",
            r#"{"version":2,"by":"agent","code":1}"#,
            r#"{"version":1,"by":"agent"#,
        ] {
            assert_eq!(Termination::decode(text), None, "{text}");
        }
    }
}
