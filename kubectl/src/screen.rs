//! The output for people. Progress goes to standard error: on a terminal it is updated in place, otherwise it is
//! printed line by line. Results go to standard output.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use comfy_table::Table;
use flux_shared::printable::printable;
use textwrap::core::display_width;

use crate::failure::Failure;
use crate::progress::{Stage, State};

/// In a pipe, shortest time between two lines of a stage whose state is the same. Without it, the start of 64 pods
/// could print 64 lines.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Time until another attempt to write to an output that takes no more now.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// Time between two turns of the spinner.
pub const TURN: Duration = Duration::from_millis(120);
const SPINNER: [char; 8] = ['⠁', '⠂', '⠄', '⡀', '⢀', '⠠', '⠐', '⠈'];

/// Shows the stages of a start.
pub struct Screen {
    lines: RefCell<Lines>,
    /// True after `end`: no more stages are shown.
    is_over: Cell<bool>,
}

enum Lines {
    /// Lines that are updated in place. The cursor is below them, where the terminal prints the `^C` of Ctrl-C.
    /// `height`: how many are on the screen. `turn`: of the spinner.
    Terminal { height: usize, turn: usize },
    /// Lines one after the other. `shown`: for each stage the state and text that were printed last, and when.
    Pipe {
        shown: BTreeMap<&'static str, (State, String, Instant)>,
    },
}

impl Screen {
    /// Updates in place if standard error is a terminal, else prints line by line.
    pub fn open() -> Screen {
        let lines = if std::io::stderr().is_terminal() {
            Lines::Terminal { height: 0, turn: 0 }
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
            Lines::Terminal { height, turn } => {
                *turn = (*turn + 1) % SPINNER.len();
                let columns = columns().unwrap_or(80);
                let lines = stages.iter().map(|stage| stage_line(stage, *turn, columns));
                let text: String = std::iter::once(clearing(*height)).chain(lines).collect();
                put_error(text.as_bytes());
                *height = stages.len();
            }
            Lines::Pipe { shown } => stages.iter().for_each(|stage| print_if_new(shown, stage)),
        }
        if stages.iter().all(|stage| stage.state == State::Done) {
            // Otherwise pods that end with the job would be shown as an earlier stage of a start.
            self.end();
        }
    }

    /// Shows no more stages, and removes the lines that are updated in place.
    pub fn end(&self) {
        self.is_over.set(true);
        self.clear();
    }

    /// Whether stages are on a terminal. They are then shown again after each `TURN`, since a spinner may turn.
    pub fn is_animated(&self) -> bool {
        matches!(*self.lines.borrow(), Lines::Terminal { height, .. } if height > 0)
    }

    /// Removes the lines that are updated in place.
    fn clear(&self) {
        if let Lines::Terminal { height, .. } = &mut *self.lines.borrow_mut() {
            put_error(clearing(*height).as_bytes());
            *height = 0;
        }
    }

    /// Prints a line to standard error. Lines that are updated in place follow it when they are shown again.
    pub fn say(&self, text: &str) {
        self.clear();
        tell(text);
    }
}

/// The terminal codes that remove the `height` lines above the cursor, and all that follows.
fn clearing(height: usize) -> String {
    if height == 0 {
        return String::new();
    }
    format!("\x1b[{height}A\r\x1b[J")
}

/// The line of a stage, cut off at the terminal's width: a line that wraps could not be removed.
fn stage_line(stage: &Stage, turn: usize, columns: usize) -> String {
    let mark = match stage.state {
        State::Later => '·',
        State::Now => SPINNER[turn],
        State::Stuck => '!',
        State::Done => '✓',
    };
    let text = printable(&stage.text).replace(['\n', '\t'], " ");
    let text = format!("{mark} {:8} {text}", stage.name);
    // One column stays free: in some terminals a line that fills all of them wraps.
    cropped(&text, columns.saturating_sub(1)) + "\n"
}

/// The beginning of the text that fits into so many columns. Some characters take two.
pub fn cropped(text: &str, columns: usize) -> String {
    let mut line = String::new();
    for character in text.chars() {
        line.push(character);
        if display_width(&line) > columns {
            line.pop();
            break;
        }
    }
    line
}

fn print_if_new(shown: &mut BTreeMap<&'static str, (State, String, Instant)>, stage: &Stage) {
    let before = shown.get(stage.name);
    let is_new = match before {
        None => stage.state != State::Later,
        Some((state, text, at)) => {
            stage.state != *state
                || (*text != stage.text && at.elapsed() >= LINE_INTERVAL && stage.state != State::Later)
        }
    };
    if is_new {
        tell(&format!("{}: {}", stage.name, stage.text));
        shown.insert(stage.name, (stage.state, stage.text.clone(), Instant::now()));
    }
}

/// Whether the last line of standard output is ended: by the output, or by `tell`.
static HAS_LINE_ENDED: AtomicBool = AtomicBool::new(true);

/// Prints a line to standard error, without terminal codes: parts of it may be from the cluster. If standard error is
/// also standard output (`2>&1`, a terminal), ends the output's line first.
pub fn tell(line: &str) {
    let begin =
        if !HAS_LINE_ENDED.load(Ordering::Relaxed) && is_one_file(std::io::stdout(), std::io::stderr()) {
            HAS_LINE_ENDED.store(true, Ordering::Relaxed);
            "\n"
        } else {
            ""
        };
    put_error(format!("{begin}{}\n", printable(line)).as_bytes());
}

fn is_one_file(one: impl AsFd, other: impl AsFd) -> bool {
    let id_of = |fd: &dyn AsFd| {
        let metadata = File::from(fd.as_fd().try_clone_to_owned()?).metadata()?;
        std::io::Result::Ok((metadata.dev(), metadata.ino()))
    };
    matches!((id_of(&one), id_of(&other)), (Ok(one), Ok(other)) if one == other)
}

/// Prints a whole result to standard output. A closed pipe (`| head`) is not an error.
pub fn print(text: &str) -> Result<(), Failure> {
    match put(text.as_bytes()) {
        Err(Failure::Unread) => Ok(()),
        done => done,
    }
}

/// Writes bytes to standard output and flushes it. `Failure::Unread` if its reader is gone.
fn put(bytes: &[u8]) -> Result<(), Failure> {
    if let Some(last) = bytes.last() {
        HAS_LINE_ENDED.store(*last == b'\n', Ordering::Relaxed);
    }
    write_whole(&mut std::io::stdout(), bytes).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::on_this_machine("write the output")(error),
    })
}

/// Writes and flushes all bytes, also if the parent of this program has set O_NONBLOCK for the output.
fn write_whole(output: &mut impl Write, mut bytes: &[u8]) -> std::io::Result<()> {
    loop {
        let written = if bytes.is_empty() {
            output.flush().map(|()| 0)
        } else {
            output.write(bytes)
        };
        match written {
            Ok(0) if bytes.is_empty() => return Ok(()),
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(FULL_PAUSE),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// As `put`, on another thread: while the reader of standard output does not read (`| less`), signals and events are
/// handled.
pub async fn put_beside(bytes: Vec<u8>) -> Result<(), Failure> {
    let written = tokio::task::spawn_blocking(move || put(&bytes)).await;
    written.map_err(|error| Failure::on_this_machine("write the output")(error.into()))?
}

/// What was not written to standard error yet.
struct Unwritten {
    bytes: Vec<u8>,
    /// A thread writes them.
    has_writer: bool,
}

static UNWRITTEN: Mutex<Unwritten> = Mutex::new(Unwritten {
    bytes: Vec::new(),
    has_writer: false,
});

fn unwritten() -> MutexGuard<'static, Unwritten> {
    UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes bytes to standard error. In an async runtime, if that is no terminal, another thread writes them, so that a
/// slow reader (`2>&1 | less`) blocks nothing. Wait for `errors_written` at the program's end.
pub fn put_error(bytes: &[u8]) {
    let mut unwritten = unwritten();
    unwritten.bytes.extend_from_slice(bytes);
    match tokio::runtime::Handle::try_current() {
        Ok(_) if unwritten.has_writer => {}
        Ok(runtime) if !std::io::stderr().is_terminal() => {
            unwritten.has_writer = true;
            runtime.spawn_blocking(flush_errors);
        }
        _ => {
            drop(unwritten);
            flush_errors();
        }
    }
}

/// As `put_error`, for a part of a longer output: waits until it is written, so that the caller reads no more before.
pub async fn put_error_beside(bytes: &[u8]) {
    put_error(bytes);
    errors_written().await;
}

/// Waits until standard error has everything.
pub async fn errors_written() {
    let _ = tokio::task::spawn_blocking(flush_errors).await;
}

/// Writes what was not written to standard error yet. Waits for a thread that writes it.
fn flush_errors() {
    let mut output = std::io::stderr().lock();
    loop {
        let mut unwritten = unwritten();
        if unwritten.bytes.is_empty() {
            unwritten.has_writer = false;
            return;
        }
        let bytes = std::mem::take(&mut unwritten.bytes);
        drop(unwritten);
        // If standard error is closed, there is no other place for the message.
        let _ = write_whole(&mut output, &bytes);
    }
}

/// Whether standard input and output are both a terminal, as `top` and a shell in a pod need.
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

/// Columns of the terminal. None: standard output is not a terminal, or the terminal reports no size.
pub fn width() -> Option<usize> {
    std::io::stdout().is_terminal().then(columns)?
}

/// Columns of the terminal. None: it reports no size (0 columns).
fn columns() -> Option<usize> {
    let (columns, _) = crossterm::terminal::size().ok()?;
    Some(columns.into()).filter(|columns| *columns > 0)
}

/// Breaks lines longer than `width` between words, or after a word's hyphen, and keeps their indent. Without a width,
/// returns the text as it is.
pub fn fitted(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let fit = |line: &str| {
        let indent = " ".repeat(line.len() - line.trim_start().len());
        let options = textwrap::Options::new(width)
            .subsequent_indent(&indent)
            // Names of pods have hyphens.
            .word_splitter(textwrap::WordSplitter::NoHyphenation)
            .break_words(false);
        textwrap::fill(line, options) + "\n"
    };
    text.lines().map(fit).collect()
}

/// Begin and end of bold text.
const BOLD: [&str; 2] = ["\x1b[1m", "\x1b[0m"];

/// Text in bold, if colours are shown.
pub fn bold(text: &str) -> String {
    let [begin, end] = BOLD;
    if shows_colours() {
        format!("{begin}{text}{end}")
    } else {
        text.to_owned()
    }
}

/// Text without its bold parts, for a file.
pub fn without_bold(text: &str) -> String {
    BOLD.iter()
        .fold(text.to_owned(), |text, code| text.replace(code, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test runs itself again, with the streams that it wants.
    #[test]
    fn message_ends_the_line_of_output_in_the_same_file() {
        const WRITER: &str = "FLUX_TEST_WRITER";
        if std::env::var_os(WRITER).is_some() {
            for output in ["half a line", "rest\n"] {
                put(output.as_bytes()).unwrap();
                tell("\x1b[2Jmessage");
            }
            return;
        }
        let run = |stdout: std::io::PipeWriter, stderr: std::io::PipeWriter| {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let name = "screen::tests::message_ends_the_line_of_output_in_the_same_file";
            command.args(["--exact", name, "--nocapture"]).env(WRITER, "1");
            assert!(command.stdout(stdout).stderr(stderr).status().unwrap().success());
        };
        let (out, stdout) = std::io::pipe().unwrap();
        run(stdout.try_clone().unwrap(), stdout);
        let text = std::io::read_to_string(out).unwrap();
        assert!(
            text.contains("half a line\n\u{fffd}[2Jmessage\nrest\n\u{fffd}[2Jmessage\n"),
            "{text}"
        );
        let ((out, stdout), (err, stderr)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        run(stdout, stderr);
        let (text, messages) = (
            std::io::read_to_string(out).unwrap(),
            std::io::read_to_string(err).unwrap(),
        );
        assert!(text.contains("half a linerest\n"), "{text}");
        assert!(messages.contains("message\n\u{fffd}[2Jmessage\n"), "{messages}");
        assert!(!messages.contains("\n\n"), "{messages}");
    }

    /// The parent of this program may have set O_NONBLOCK for standard output.
    #[test]
    fn output_that_would_block_is_written_whole() {
        let (mut reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let bytes: Vec<u8> = (0..2_000_000_u32).map(|number| number as u8).collect();
        let written = bytes.clone();
        let thread = std::thread::spawn(move || write_whole(&mut writer, &written).unwrap());
        // The socket's buffer is full by then.
        std::thread::sleep(Duration::from_millis(100));
        let mut read = vec![0; bytes.len()];
        std::io::Read::read_exact(&mut reader, &mut read).unwrap();
        thread.join().unwrap();
        assert!(read == bytes);
    }

    #[test]
    fn line_of_a_stage_does_not_wrap() {
        let stage = Stage {
            name: "pods",
            state: State::Done,
            text: "0 of 2 running; ErrImagePull: 映像\nis not there".into(),
        };
        assert_eq!(
            stage_line(&stage, 0, 80),
            "✓ pods     0 of 2 running; ErrImagePull: 映像 is not there\n"
        );
        assert_eq!(stage_line(&stage, 0, 16), "✓ pods     0 of\n");
        for columns in 0..60 {
            let width = display_width(stage_line(&stage, 0, columns).trim_end_matches('\n'));
            assert!(width < columns.max(1), "{columns}");
        }
    }

    #[test]
    fn line_of_a_stage_has_no_terminal_codes() {
        let stage = Stage {
            name: "pods",
            state: State::Stuck,
            text: "\x1b]0;title\x07\ta\rb".into(),
        };
        let line = stage_line(&stage, 0, 80);
        assert_eq!(line, "! pods     \u{fffd}]0;title\u{fffd} a\u{fffd}b\n");
    }

    #[test]
    fn without_bold_removes_the_codes_of_bold_text() {
        assert_eq!(without_bold("\u{1b}[1mmc\u{1b}[0m Failed"), "mc Failed");
    }

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
