//! Checks what the lead runs: command, script, batch, or nothing.

use super::report::Report;
use super::{FluxOptions, flux};
use crate::agent_spec::{BatchLine, Program};
use crate::command_words::{self, Quote, Word, Words};
use crate::crd::v1alpha2::{Commands, Container, MiniClusterSpec};
use crate::submission;

/// The program of the container that runs Flux, checked. `field`: the path of the container.
pub(super) fn check(
    field: &str,
    container: &Container,
    commands: &Commands,
    launcher: bool,
    report: &mut Report,
) -> Program {
    let command = container
        .command
        .as_deref()
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let script = commands.script.as_deref().filter(|text| !text.trim().is_empty());
    conflicts(field, container, command, script, launcher, report);
    // Diagnostics run instead of a command or script.
    if container.diagnostics {
        return Program::Diagnostics;
    }
    match (script, command) {
        (Some(script), _) => Program::Script {
            text: unescape(script),
            launch: launcher,
        },
        (None, None) => Program::Persistent,
        (None, Some(_)) if container.batch && container.batch_raw => {
            // The script as the user wrote it, since `command` is trimmed.
            let text = container.command.clone().unwrap_or_default();
            search_paths(field, &text, report);
            escapes(&format!("{field}.command"), &text, report);
            Program::BatchRaw { text }
        }
        (None, Some(_)) if container.batch => {
            // Not trimmed: the numbers of its lines name the output files.
            let field = format!("{field}.command");
            let lines = lines(&field, container.command.as_deref().unwrap_or_default(), report);
            if lines.is_empty() {
                report.problem(&field, "has no line to submit, only comments");
            }
            escapes(&field, container.command.as_deref().unwrap_or_default(), report);
            Program::Batch { lines }
        }
        (None, Some(command)) => words_of(field, command, launcher, report),
    }
}

/// Checks the command line with which the agent submits a program that is no batch.
pub(super) fn check_submission(
    spec: &MiniClusterSpec,
    program: &Program,
    options: &FluxOptions,
    report: &mut Report,
) {
    let is_submitted = matches!(
        program,
        Program::Submit { .. } | Program::Script { launch: false, .. }
    );
    if !is_submitted || spec.interactive || options.lead.is_some() {
        return;
    }
    if let Some(subcommand @ ("alloc" | "batch")) = submission::flux_subcommand(&options.submit_command) {
        report.problem(
            "spec.flux.submitCommand",
            format!("`flux {subcommand}` starts an instance of Flux: use flux submit or flux run, or set batch: true"),
        );
    }
    if spec.tasks > 1 {
        let runner = flux::runner(spec).map_or(String::new(), |(field, _)| field);
        let flags_field = if spec
            .flux
            .as_ref()
            .is_some_and(|flux| !flux.option_flags.trim().is_empty())
        {
            "spec.flux.optionFlags".to_owned()
        } else {
            format!("{runner}.fluxOptionFlags")
        };
        for (field, words) in [
            (
                "spec.flux.submitCommand".to_owned(),
                submission::options_of_flux(&options.submit_command),
            ),
            (flags_field, &options.option_flags[..]),
        ] {
            if let Some(option) = submission::per_resource_options(words).first() {
                report.problem(
                    field,
                    format!("`{option}` cannot go with a number of tasks: set tasks: 0"),
                );
            }
        }
    }
}

/// Adds a notice if the script of a batch sets a search path: `flux` in the script follows it too, and the agent cannot
/// prevent that.
fn search_paths(field: &str, script: &str, report: &mut Report) {
    const NAMES: [&str; 2] = ["PYTHONPATH", "LD_LIBRARY_PATH"];
    let is_set = |name: &str| {
        let mut words = script.split(|letter: char| letter.is_whitespace() || letter == ';');
        words.any(|word| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
    };
    for name in NAMES.into_iter().filter(|name| is_set(name)) {
        report.notice(
            format!("{field}.command"),
            format!("sets {name}, which `flux` in this script follows, too. If a module or library there has the name of one of Flux's, set it for the tasks alone: flux run --env={name}=..."),
        );
    }
}

/// Adds a notice if a batch escapes `$` or `"` outside of quotes. The Go operator's entrypoint needed that.
fn escapes(field: &str, text: &str, report: &mut Report) {
    // Within a here-document or a command substitution, an escape has a meaning.
    if ["<<", "`", "$("].iter().any(|mark| text.contains(mark)) {
        return;
    }
    let escaped = command_words::source_letters(text)
        .find(|read| read.is_escaped && read.quote == Quote::None && matches!(read.letter, '$' | '"'));
    if let Some(letter) = escaped.map(|read| read.letter) {
        report.notice(
            field,
            format!("`\\{letter}` is a literal `{letter}`: nothing evaluates the text before the batch runs"),
        );
    }
}

/// Reports fields that contradict each other, or that need another one.
fn conflicts(
    field: &str,
    container: &Container,
    command: Option<&str>,
    script: Option<&str>,
    launcher: bool,
    report: &mut Report,
) {
    if command.is_some() && script.is_some() {
        report.problem(
            format!("{field}.commands.script"),
            "replaces command: set only one",
        );
    }
    if container.batch && launcher {
        report.problem(
            format!("{field}.batch"),
            "does not go with launcher: a batch is submitted by flux batch",
        );
    }
    if container.batch && command.is_none() {
        report.problem(
            format!("{field}.batch"),
            "needs a command: its lines are the jobs",
        );
    }
    if container.batch_raw && !container.batch {
        report.problem(format!("{field}.batchRaw"), "needs batch: true");
    }
}

/// The program of a command's words.
fn words_of(field: &str, command: &str, launcher: bool, report: &mut Report) -> Program {
    let field = format!("{field}.command");
    let Some(split) = report.take(&field, command_words::split(command)) else {
        // A problem was reported, so nothing reads this value.
        return Program::Persistent;
    };
    if !split.shell_syntax.is_empty() {
        let syntax = split.shell_syntax.join(" ");
        report.notice(
            &field,
            format!("`{syntax}` reaches the program as text: commands are not run by a shell; use commands.script for shell source"),
        );
    }
    one_command(&field, &split, report);
    if launcher {
        Program::Launcher { words: split.words }
    } else {
        Program::Submit { words: split.words }
    }
}

/// Adds a notice if a command has several lines, since all of them are one command.
fn one_command(field: &str, split: &Words, report: &mut Report) {
    let Some(start) = split.line_starts.first() else {
        return;
    };
    let word = split.words.get(*start).map(Word::display).unwrap_or_default();
    let lines = split.line_starts.len() + 1;
    report.notice(
        field,
        format!("{lines} lines are one command: `{word}`, which begins a line, is an argument of the first. Set batch: true to submit each line as a job, or use commands.script"),
    );
}

/// Replaces the documented escape for `$`. It was needed when scripts passed through a shell.
pub(super) fn unescape(script: &str) -> String {
    script.replace("\\$", "$")
}

/// The jobs of a batch: one per line. A backslash at the end continues a line, as in a shell. `field`: the path of the
/// command.
fn lines(field: &str, command: &str, report: &mut Report) -> Vec<BatchLine> {
    let mut jobs: Vec<(BatchLine, Scan)> = Vec::new();
    for (number, text) in (0u32..).zip(command.lines()) {
        match jobs.last_mut() {
            Some((job, scan)) if scan.is_continued() => {
                for more in ["\n", text] {
                    scan.read(more);
                    job.text += more;
                }
            }
            // A comment would be submitted without a command.
            _ if text.trim().is_empty() || text.trim_start().starts_with('#') => {}
            _ => {
                let mut scan = Scan::default();
                scan.read(text);
                let text = text.to_owned();
                jobs.push((BatchLine { number, text }, scan));
            }
        }
    }
    // After a job with an open quote or a here-document, the shell would read the next jobs as a part of it.
    let refused = jobs.iter().find_map(|(job, scan)| Some((job, scan.reads_on()?)));
    if let Some((job, (what, remedy))) = refused {
        // Enough to find the line.
        let start: String = job.text.chars().take(60).collect();
        report.problem(
            field,
            format!("line {} has {what} (`{start}`). {remedy} batchRaw: true if the command is a script: each line is a job of its own", job.number),
        );
    }
    // A backslash at the end would join the last job with the agent's next line in the batch script.
    if let Some((last, _)) = jobs.last_mut().filter(|(_, scan)| scan.is_continued()) {
        last.text.pop();
    }
    jobs.into_iter().map(|(job, _)| job).collect()
}

/// What a shell has begun and not yet ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Single,
    /// `$'…'`, in which a backslash escapes.
    Ansi,
    Double,
    /// The shell looks only for the other backquote, whatever is in between.
    Backquote,
    /// `$(…)`, which is a part of a word.
    Substitution,
    Parenthesis,
    /// The second parenthesis of `((…))`, or one within it: `<<` shifts.
    Arithmetic,
    /// `${…}`
    Brace,
    /// `"${…}"`
    BraceInDouble,
}

impl Open {
    fn text(self) -> &'static str {
        match self {
            Open::Single => "'",
            Open::Ansi => "$'",
            Open::Double => "\"",
            Open::Backquote => "`",
            Open::Substitution => "$(",
            Open::Parenthesis | Open::Arithmetic => "(",
            Open::Brace | Open::BraceInDouble => "${",
        }
    }

    fn end(self) -> char {
        match self {
            Open::Single | Open::Ansi => '\'',
            Open::Double => '"',
            Open::Backquote => '`',
            Open::Substitution | Open::Parenthesis | Open::Arithmetic => ')',
            Open::Brace | Open::BraceInDouble => '}',
        }
    }
}

/// A shell's state after the lines of a job so far. The state is kept, so that no line is read again: a job may have
/// hundreds of thousands of lines.
#[derive(Debug, Default)]
struct Scan {
    /// What is open, from the outermost to the innermost.
    open: Vec<Open>,
    /// What is open is not known: whether a `'` quotes depends on the operator of `"${…}"`, and whether `<<` shifts in
    /// `$[…]` depends on the shell.
    is_unclear: bool,
    /// The last letter is a `$` that is not quoted.
    after_dollar: bool,
    /// The last letter is a `(` that is not quoted.
    after_parenthesis: bool,
    /// Number of `<` at the end that are not quoted.
    less_signs: usize,
    /// Number of here-documents.
    here_documents: usize,
    /// A backslash precedes the next letter.
    is_escaped: bool,
    /// The last letter belongs to a word, so a `#` after it begins no comment.
    in_word: bool,
    /// `in_word` before the last backslash that escapes.
    in_word_before_backslash: bool,
    /// In a comment, which a backslash does not continue.
    in_comment: bool,
    /// Number of backslashes at the end.
    backslashes: usize,
}

impl Scan {
    /// Whether the next line belongs to the same job: an odd number of backslashes precedes it. Between single quotes
    /// too: there, a backslash escapes nothing, but the open quote itself makes a shell read on.
    fn is_continued(&self) -> bool {
        self.backslashes % 2 == 1 && !self.in_comment
    }

    /// Why a shell reads the next job as a part of this one, and how the remedy begins. None: it does not.
    fn reads_on(&self) -> Option<(String, &'static str)> {
        if self.is_unclear {
            None
        } else if self.here_documents > 0 {
            Some(("a here-document".to_owned(), "Set"))
        } else {
            let open = self.open.last()?.text();
            Some((format!("a {open} that is not closed"), "Close it, or set"))
        }
    }

    fn read(&mut self, text: &str) {
        for letter in text.chars() {
            self.backslashes = if letter == '\\' { self.backslashes + 1 } else { 0 };
            if !self.in_comment {
                self.read_letter(letter);
            }
        }
    }

    fn read_letter(&mut self, letter: char) {
        let after_dollar = std::mem::take(&mut self.after_dollar);
        let after_parenthesis = std::mem::take(&mut self.after_parenthesis);
        let less_signs = std::mem::take(&mut self.less_signs);
        let was_in_word = std::mem::replace(&mut self.in_word, true);
        let innermost = self.open.last().copied();
        // Within double quotes or `${…}`, a `(` without `$` is text.
        let is_code = !matches!(innermost, Some(Open::Double | Open::Brace | Open::BraceInDouble));
        match (innermost, letter) {
            _ if self.is_escaped => {
                self.is_escaped = false;
                // A shell removes the backslash and the newline.
                if letter == '\n' {
                    self.in_word = self.in_word_before_backslash;
                }
            }
            // A backslash between single quotes escapes nothing.
            (Some(Open::Single), '\\') => {}
            (_, '\\') => {
                self.is_escaped = true;
                self.in_word_before_backslash = was_in_word;
            }
            (Some(open), _) if letter == open.end() => {
                self.open.pop();
                self.in_word = open != Open::Parenthesis;
            }
            (Some(Open::Single | Open::Ansi | Open::Backquote), _) => {}
            (_, '"') => self.open.push(Open::Double),
            (_, '`') => self.open.push(Open::Backquote),
            (_, '{') if after_dollar => self.open.push(match innermost {
                Some(Open::Double | Open::BraceInDouble) => Open::BraceInDouble,
                _ => Open::Brace,
            }),
            (_, '$') => self.after_dollar = !after_dollar,
            (_, '(') if after_dollar || is_code => {
                self.open.push(if after_dollar {
                    Open::Substitution
                } else if after_parenthesis || innermost == Some(Open::Arithmetic) {
                    Open::Arithmetic
                } else {
                    Open::Parenthesis
                });
                self.after_parenthesis = true;
                self.in_word = false;
            }
            (Some(Open::Double), _) => {}
            (_, '[') if after_dollar => self.is_unclear = true,
            (Some(Open::BraceInDouble), '\'') => self.is_unclear = true,
            (_, '\'') => self
                .open
                .push(if after_dollar { Open::Ansi } else { Open::Single }),
            (Some(Open::Brace | Open::BraceInDouble | Open::Arithmetic), _) => {}
            (_, '#') if !was_in_word => self.in_comment = true,
            (_, '<') => {
                self.less_signs = less_signs + 1;
                // `<<<` takes its text from the same line.
                match self.less_signs {
                    2 => self.here_documents += 1,
                    3 => self.here_documents -= 1,
                    _ => {}
                }
            }
            (_, _) => self.in_word = !letter.is_whitespace() && !";&|()".contains(letter),
        }
    }
}
