//! The output for people: progress on standard error, in place on a terminal and line by line in a pipe;
//! results on standard output.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use comfy_table::Table;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::progress::{Stage, State};

/// In a pipe, shortest time between two lines of a stage that differ in numbers only: 64 pods are not 64
/// lines.
const PAUSE: Duration = Duration::from_secs(2);

/// Shows the stages of a start.
pub struct Screen {
    lines: RefCell<Lines>,
    /// True once stages are not shown any more, since the job's output has begun.
    is_over: Cell<bool>,
}

enum Lines {
    Terminal {
        all: MultiProgress,
        bars: Vec<ProgressBar>,
    },
    Pipe {
        shown: BTreeMap<&'static str, (State, String, Instant)>,
    },
}

impl Screen {
    /// In place if standard error is a terminal, else line by line.
    pub fn open() -> Screen {
        let lines = if std::io::stderr().is_terminal() {
            Lines::Terminal {
                all: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()),
                bars: Vec::new(),
            }
        } else {
            Lines::Pipe {
                shown: BTreeMap::new(),
            }
        };
        Screen {
            lines: RefCell::new(lines),
            is_over: Cell::new(false),
        }
    }

    /// Shows the current stages.
    pub fn show(&self, stages: &[Stage]) {
        if self.is_over.get() {
            return;
        }
        match &mut *self.lines.borrow_mut() {
            Lines::Terminal { all, bars } => {
                while bars.len() < stages.len() {
                    let bar = all.add(ProgressBar::new_spinner());
                    bar.enable_steady_tick(Duration::from_millis(120));
                    bars.push(bar);
                }
                bars.iter().zip(stages).for_each(|(bar, stage)| draw(bar, stage));
            }
            Lines::Pipe { shown } => stages.iter().for_each(|stage| print_if_new(shown, stage)),
        }
        if stages.iter().all(|stage| stage.state == State::Done) {
            self.end();
            // Pods that go at the end of the job are no stage of the start.
            self.is_over.set(true);
        }
    }

    /// Removes the lines that change in place, and shows no more of them.
    pub fn end(&self) {
        if let Lines::Terminal { all, bars } = &mut *self.lines.borrow_mut() {
            bars.drain(..).for_each(|bar| bar.finish_and_clear());
            let _ = all.clear();
            self.is_over.set(true);
        }
    }

    /// Prints a line that stays.
    pub fn say(&self, text: &str) {
        match &*self.lines.borrow() {
            Lines::Terminal { all, bars } if !bars.is_empty() => {
                let _ = all.println(text);
            }
            _ => tell(text),
        }
    }
}

fn draw(bar: &ProgressBar, stage: &Stage) {
    let mark = match stage.state {
        State::Later => "·",
        State::Now => "{spinner}",
        State::Stuck => "!",
        State::Done => "✓",
    };
    if let Ok(style) = ProgressStyle::with_template(&format!("{mark} {{prefix:8}} {{wide_msg}}")) {
        bar.set_style(style);
    }
    bar.set_prefix(stage.name);
    bar.set_message(stage.text.clone());
}

fn print_if_new(shown: &mut BTreeMap<&'static str, (State, String, Instant)>, stage: &Stage) {
    let before = shown.get(stage.name);
    let is_new = match before {
        None => stage.state != State::Later,
        Some((state, text, at)) => {
            stage.state != *state
                || (*text != stage.text && at.elapsed() >= PAUSE && stage.state != State::Later)
        }
    };
    if is_new {
        tell(&format!("{}: {}", stage.name, stage.text));
        shown.insert(stage.name, (stage.state, stage.text.clone(), Instant::now()));
    }
}

/// Prints a line to standard error.
pub fn tell(line: &str) {
    // If it is closed, there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a whole result to standard output; a closed pipe (`| head`) is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    match put(text.as_bytes()) {
        Err(Failure::Unread) => Ok(()),
        done => done,
    }
}

/// Writes bytes of a longer output to standard output and flushes it. `Failure::Unread`: nobody reads it any
/// more.
pub fn put(bytes: &[u8]) -> Result<(), Failure> {
    let mut output = std::io::stdout();
    output
        .write_all(bytes)
        .and_then(|()| output.flush())
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Unread,
            _ => Failure::on_this_machine("write the output")(error),
        })
}

/// Writes bytes to standard error.
pub fn put_error(bytes: &[u8]) {
    let _ = std::io::stderr().write_all(bytes);
}

/// Whether standard input and output are a terminal, as a shell needs.
pub fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// Whether standard output is a terminal and colours are not switched off (https://no-color.org).
pub fn shows_colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The lines of a table, without the blanks at their ends.
pub fn lines_of(table: &Table) -> Vec<String> {
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Columns of the terminal, if standard output is one.
pub fn width() -> Option<usize> {
    let (columns, _) = std::io::stdout()
        .is_terminal()
        .then(crossterm::terminal::size)?
        .ok()?;
    Some(columns.into()).filter(|columns| *columns > 0)
}

/// The text with its long lines broken at words, below where they began.
pub fn fitted(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let fit = |line: &str| {
        let indent = " ".repeat(line.len() - line.trim_start().len());
        let options = textwrap::Options::new(width)
            .subsequent_indent(&indent)
            .break_words(false);
        textwrap::fill(line, options) + "\n"
    };
    text.lines().map(fit).collect()
}

/// Text in bold, if colours are shown.
pub fn bold(text: &str) -> String {
    if shows_colours() {
        format!("\x1b[1m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_break_at_words_below_where_they_began() {
        let text = "work Failed\n  work-0: BackOff: Back-off pulling image registry.example/a/long/name:1\n\n  short\n";
        let fitted = fitted(text, Some(40));
        assert_eq!(
            fitted,
            "work Failed\n  work-0: BackOff: Back-off pulling\n  image registry.example/a/long/name:1\n\n  short\n"
        );
        assert_eq!(super::fitted(text, None), text);
    }
}
