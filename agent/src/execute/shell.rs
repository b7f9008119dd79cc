//! Runs all snippets of the user in one shell of the image, which is replaced only if it has ended.
//!
//! ```text
//! agent ── a byte ──► ask (pipe) ──► shell: sources the changes since the last snippet, then the snippet
//!       ◄─ state ── reply (pipe) ◄── `flux-agent snippet-state`, which the shell runs after each snippet
//! ```
//!
//! Snippets and changes are in memory files (memfd), so that this works with a read-only image, and nothing
//! stays on a disk. The shell opens the pipes and files by their paths below /proc/PID/fd of the agent,
//! whenever it needs them. So programs that a snippet starts do not inherit them, and a snippet cannot close
//! or redirect them. (If the shell cannot open them there: `Access::Inherited`.)

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use flux_agent_plan::plan::{Snippet, SnippetPhase, SnippetShell};
use flux_shared::exit::Category;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};
use tokio::io::unix::AsyncFd;

use super::last_errors::LastErrors;
use super::session::{Session, assignments, current_limits, shell_changes};
use super::shell_state::{self, ShellState, without_shells_own};
use crate::report::failure::{Failure, plain};
use crate::supervise::program::{Child, ChildProgram, Environment, Output, StartError};
use crate::supervise::{ChildEnd, Event, Supervisor, is_stop, terminal, until};
use crate::system::raw::{self, ChildSetup, Limit};

/// The script that the shell is started with. It runs [`STEP`] for each snippet. Both scripts are constants:
/// the user's text is never inserted into them.
///
/// - `PYTHONPATH` and `LD_LIBRARY_PATH` get an empty value if they are not set. Documented snippets extend them, and
///   would fail under `set -u`. `$asFlux` has the words that run a command as Flux's user. Nothing is exported here.
/// - Without a terminal, standard error goes to a pipe of the agent, which keeps the end of it.
/// - `shift 9` drops the driver's arguments, so that snippets see none.
/// - If the shell cannot open `reply`, it kills itself. This cannot be mistaken for an `exit` of the user's,
///   such as in the file that `BASH_ENV` names.
const DRIVER: &str = r#"
: "${PYTHONPATH=}" "${LD_LIBRARY_PATH=}" "${asFlux=$9}"
flux_agent_self=$1 flux_agent_ask=$2 flux_agent_changes=$3 flux_agent_snippet=$4 flux_agent_reply=$5 flux_agent_errors=$6
flux_agent_step=$7 flux_agent_round=0 flux_agent_word=''
command printf 'ready\n' >"$flux_agent_reply" || command kill -9 "$$"
case $8 in ?*) exec 2>"$8" ;; esac
shift 9
. "$flux_agent_step"
case $flux_agent_word in
    end) ;;
    *) "$flux_agent_self" snippet-state "$flux_agent_reply" unheard '' '' '' ;;
esac
"#;

/// One step of the driver: waits for the agent's byte, sources the agent's changes, which set the word of
/// this round (`go`, `silent` or `end`), runs the snippet, reports the state, and sources itself for the next
/// step. A loop of the agent's around the snippet would be left by a `break` in the snippet.
///
/// The script must work whatever the user has defined:
///
/// - It calls `read`, `kill` and `printf` by `command`, since the user may have defined functions with their names.
/// - It calls `read` again if TMOUT or a trap has ended it: then the status has three digits. But 126 and 127 mean
///   that the shell could not run it.
/// - If `read` finds no byte (status 1), the shell kills itself: the agent has dropped this shell, or has ended.
/// - Its conditions are keywords only: `! case x in x) ;; esac` always fails, but the user may have redefined
///   `false`. The body of its loop is an assignment, which nobody can redefine; it has no other purpose.
/// - If the user has replaced or disabled even `command` or `.`, the shell does not wait for the next step, and mostly
///   gets no further word. Then the driver reports `unheard`, runs nothing more, and ends.
const STEP: &str = r#"
flux_agent_round=$((flux_agent_round + 1)) flux_agent_word=''
while
    flux_agent_status=0
    command read -r flux_agent_call <"$flux_agent_ask" || flux_agent_status=$?
    case $flux_agent_status in
        126 | 127) ! case x in x) ;; esac ;;
        1?? | 2??) ;;
        *) ! case x in x) ;; esac ;;
    esac
do
    flux_agent_status=0
done
case $flux_agent_status in
    0) . "$flux_agent_changes" ;;
    1) command kill -9 "$$" ;;
esac
case $flux_agent_word in
    go | silent)
        flux_agent_end=''
        case $flux_agent_word in
            go) . "$flux_agent_snippet" ;;
            *) . "$flux_agent_snippet" >/dev/null 2>"$flux_agent_errors" ;;
        esac
        "$flux_agent_self" snippet-state "$flux_agent_reply" "${flux_agent_end:-$?}" "${asFlux-}" "${brokerOptions-}" "${BASH_VERSION-}" ||
            command printf 'lost=%s\n' "$?" >"$flux_agent_reply"
        . "$flux_agent_step"
        ;;
esac
"#;

/// What follows the source of a strict snippet, so that the `.` that runs it has the status 0. Otherwise a last line
/// such as `[ test ] && command` would end the shell if the test fails: `set -e` ignores the status of this line, but
/// not that of the `.`.
///
/// The line is a keyword, since the user may have redefined any builtin. The empty line ends a last line with a
/// backslash. A here-document without its end contains both lines, which does little harm; bash warns of it.
const SUCCEED: &str = "\n\ncase x in x) ;; esac\n";

/// As [`SUCCEED`], for a snippet that is not strict, but may have called `set -e` itself. The status of its last
/// command is kept for the report. An assignment succeeds.
const KEEP_STATUS: &str = "\n\nflux_agent_end=$?\n";

/// The driver's first reply.
const READY: &[u8] = b"ready\n";

/// How a snippet ended.
#[derive(Debug, PartialEq, Eq)]
pub enum SnippetRun {
    /// It ran to its end with this status; the shell is ready for the next one.
    Finished(u8),
    /// The shell has ended: `exit`, a failure under strict, or a signal.
    ShellEnded(u8),
    /// The shell could not start `flux-agent snippet-state` after the snippet, and got this code: a variable that it
    /// exports is too large, or a limit that it has set is reached.
    ShellUnusable(u8),
    /// The snippet did not run: the user has replaced or disabled builtins that the driver needs, or the shell ended
    /// before the snippet. The shell ends.
    Unheard,
}

/// What the shell reports after a snippet.
enum Reply {
    State(Box<ShellState>),
    /// See [`SnippetRun::Unheard`].
    Unheard,
    /// See [`SnippetRun::ShellUnusable`].
    Unusable(u8),
}

/// A reply, or the end of a shell that sent none.
enum ReplyOrEnd<T> {
    Reply(T),
    ShellEnded(ChildEnd),
}

/// The result of starting a shell.
pub enum Started {
    Ready(Box<Shell>),
    /// It ended before any snippet ran.
    Ended(ChildEnd),
}

/// The lowest number of a descriptor that the shell may inherit. Scripts use low numbers, and 200 for locks.
const FIRST_INHERITED: RawFd = 230;

/// How many paths are among the driver's arguments.
const DRIVER_PATHS: usize = 8;

/// How the shell opens the agent's pipes and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Below /proc/PID/fd of the agent.
    OfAgent,
    /// It inherits descriptors that only name them (O_PATH), and opens them below /proc/self/fd. This is for systems
    /// where a security module or capabilities prevent the other way. Programs that snippets start inherit these
    /// descriptors as well. They cannot read or write them, and only the agent's user may open the pipes and memory
    /// files.
    Inherited,
}

/// The pipes and files that the shell opens by the paths in its command line. They stay open here while the
/// shell runs.
#[derive(Debug)]
struct ShellFiles {
    /// The agent's program.
    agent: File,
    /// A byte here asks for the next step.
    ask: File,
    /// Shell lines to source before the snippet.
    changes: File,
    /// The snippet's source.
    snippet: File,
    /// Where the shell writes its replies.
    reply: File,
    /// Where standard error of silent snippets goes.
    hidden: File,
    /// The text of [`STEP`].
    step: File,
    /// Where standard error goes, unless it goes to a terminal.
    shown: Option<File>,
}

impl ShellFiles {
    /// The descriptors, in the order of the driver's arguments.
    fn numbers(&self) -> Vec<RawFd> {
        let ShellFiles {
            agent,
            ask,
            changes,
            snippet,
            reply,
            hidden,
            step,
            shown,
        } = self;
        [agent, ask, changes, snippet, reply, hidden, step]
            .into_iter()
            .chain(shown)
            .map(AsRawFd::as_raw_fd)
            .collect()
    }
}

/// Precedes the exit code in the reply of a shell that cannot start `flux-agent snippet-state`.
const LOST: &[u8] = b"lost=";

/// A running shell.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    /// The agent's end of the pipe.
    ask: File,
    /// How many words the shell was sent.
    round: u32,
    files: ShellFiles,
    /// The agent's end of the pipe.
    reply: AsyncFd<OwnedFd>,
    /// What was read from `reply` since the last word.
    received: Vec<u8>,
    /// How the shell ended, once that is known.
    end: Option<ChildEnd>,
    /// Standard error of silent snippets, which is not shown.
    hidden: LastErrors,
    /// Standard error of the other snippets; none: it goes to a terminal.
    shown: Option<LastErrors>,
    /// Shell lines that set the variables that are not exported. They are sent once, before the first snippet.
    variables: Vec<u8>,
    /// The shell's environment: at first the one that it was started with, then that of its last report.
    known: Environment,
    /// The agent's own limits.
    limits: Vec<Limit>,
    /// What runs in it may use the whole grace period: the first stop is not passed on.
    pub leaves_first_stop: bool,
}

impl Shell {
    /// Starts the planned shell and waits until it is ready.
    pub async fn start(
        supervisor: &mut Supervisor,
        session: &Session,
        planned: &SnippetShell,
        agent: &Path,
    ) -> Result<Started, Failure> {
        let mut shell = Shell::spawn(supervisor, session, planned, agent, Access::OfAgent)?;
        let mut end = shell.until_ready(supervisor).await?;
        // The driver kills the shell if it cannot open the agent's files. After a stop signal, the agent may have
        // killed it (`await_reply`): then it is not started again.
        if end == Some(ChildEnd::Signaled(libc::SIGKILL)) && supervisor.received_stop().is_none() {
            shell = Shell::spawn(supervisor, session, planned, agent, Access::Inherited)?;
            end = shell.until_ready(supervisor).await?;
        }
        Ok(end.map_or_else(|| Started::Ready(Box::new(shell)), Started::Ended))
    }

    /// Waits until the driver is ready. Returns how the shell ended if it ended before that.
    async fn until_ready(&mut self, supervisor: &mut Supervisor) -> Result<Option<ChildEnd>, Failure> {
        let is_ready = |bytes: &[u8]| bytes.starts_with(READY).then_some(());
        match self.await_reply(supervisor, is_ready).await.map_err(failed)? {
            ReplyOrEnd::Reply(()) => Ok(None),
            ReplyOrEnd::ShellEnded(end) => Ok(Some(end)),
        }
    }

    fn spawn(
        supervisor: &mut Supervisor,
        session: &Session,
        planned: &SnippetShell,
        agent: &Path,
        access: Access,
    ) -> Result<Shell, Failure> {
        let pipe = || {
            nix::unistd::pipe2(OFlag::O_CLOEXEC)
                .map_err(io::Error::from)
                .map_err(failed)
        };
        let ((ask_of_shell, ask), (reply, reply_of_shell)) = (pipe()?, pipe()?);
        let ((hidden, hidden_of_shell), (shown, shown_of_shell)) = (pipe()?, pipe()?);
        nix::fcntl::fcntl(&reply, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(io::Error::from)
            .map_err(failed)?;
        let memory = |name: &str| {
            let file = memfd_create(name, MFdFlags::MFD_CLOEXEC);
            file.and_then(|file| fchmod(&file, Mode::S_IRUSR | Mode::S_IWUSR).map(|()| file))
                .map_err(io::Error::from)
                .map_err(failed)
        };
        // Opened now, since another file may replace it later. The shell would run that.
        let program = open_path(agent).map_err(failed)?;
        let as_file = |fd: OwnedFd| File::from(with_high_number(fd));
        let has_terminal = supervisor.has_terminal();
        let mut files = ShellFiles {
            agent: as_file(program.into()),
            ask: as_file(ask_of_shell),
            changes: as_file(memory("changes")?),
            snippet: as_file(memory("snippet")?),
            reply: as_file(reply_of_shell),
            hidden: as_file(hidden_of_shell),
            step: as_file(memory("step")?),
            shown: (!has_terminal).then(|| as_file(shown_of_shell)),
        };
        fill(&mut files.step, STEP.as_bytes()).map_err(failed)?;
        // `false`: nothing of this is copied to the agent's own standard error. `true`, below: everything is.
        let hidden = LastErrors::read_from(hidden, false).map_err(failed)?;
        // With a terminal, standard error goes there directly: it appears at once, and programs see that it
        // is a terminal.
        let shown = if has_terminal {
            None
        } else {
            Some(LastErrors::read_from(shown, true).map_err(failed)?)
        };
        let mut numbers = files.numbers();
        // Open until the shell has started.
        let mut inherited = Vec::new();
        if access == Access::Inherited {
            for number in &numbers {
                let file = open_path(Path::new(&format!("/proc/self/fd/{number}"))).map_err(failed)?;
                inherited.push(as_file(file.into()));
            }
            numbers = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        }
        let argv = command_line(planned, &numbers, access);
        let program = ChildProgram {
            argv: &argv,
            environment: &session.environment,
            directory: &session.directory,
            output: Output::Inherit,
            setup: ChildSetup {
                dies_with_agent: true,
                is_foreground: has_terminal,
                umask: Some(session.umask),
                limits: session.limits(),
                inherit: inherited.iter().map(AsRawFd::as_raw_fd).collect(),
                ..ChildSetup::default()
            },
        };
        let child = supervisor.start(&program).map_err(not_started)?;
        let reply = raw::watch(reply).map_err(failed)?;
        let known = session.environment.clone();
        let variables = planned
            .variables
            .iter()
            .map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        // A variable that the environment has keeps its value: programs would see an assignment to it.
        let variables = assignments(variables.filter(|(name, _)| !known.contains_key(*name)));
        let (limits, received, ask) = (current_limits().collect(), Vec::new(), File::from(ask));
        Ok(Shell {
            child,
            ask,
            round: 0,
            files,
            reply,
            received,
            end: None,
            hidden,
            shown,
            variables,
            known,
            limits,
            leaves_first_stop: false,
        })
    }

    /// Runs one snippet and carries its state over into `session`.
    pub async fn run(
        &mut self,
        supervisor: &mut Supervisor,
        session: &mut Session,
        snippet: &Snippet,
    ) -> Result<SnippetRun, Failure> {
        if supervisor.has_terminal() {
            terminal::give_to(self.child.pid);
        }
        // Nothing follows the program: its last status is the container's exit code.
        let source = if snippet.phase == SnippetPhase::Program {
            &snippet.source
        } else {
            let end = if snippet.strict { SUCCEED } else { KEEP_STATUS };
            &format!("{}{end}", snippet.source)
        };
        fill(&mut self.files.snippet, source.as_bytes()).map_err(failed)?;
        self.forget_errors();
        let changes = self.changes_before(session, snippet);
        self.send_word(if snippet.silent { "silent" } else { "go" }, changes)
            .map_err(failed)?;
        // No retry after an error here, since the snippet may have run.
        let reply = self.await_state(supervisor).await.map_err(|error| Failure {
            is_passing: false,
            ..failed(error)
        })?;
        // So that the snippet's errors are in the log before later lines of the agent and the program.
        self.shown.iter().for_each(LastErrors::drain);
        if supervisor.has_terminal() {
            terminal::reclaim();
        }
        Ok(match reply {
            ReplyOrEnd::Reply(Reply::State(state)) => {
                state.carry_over(session, &self.limits);
                self.known = state.environment;
                SnippetRun::Finished(state.status)
            }
            ReplyOrEnd::Reply(Reply::Unusable(code)) => SnippetRun::ShellUnusable(code),
            ReplyOrEnd::Reply(Reply::Unheard) => SnippetRun::Unheard,
            // The shell ended before this snippet, and the agent had not noticed.
            ReplyOrEnd::ShellEnded(_) if self.has_unread_word().map_err(failed)? => SnippetRun::Unheard,
            ReplyOrEnd::ShellEnded(end) => SnippetRun::ShellEnded(end.code()),
        })
    }

    /// Shell lines that come before the snippet: the variables that are not exported, the changes of the
    /// environment since the last snippet, the variable for the working directory (unless the environment has
    /// it), and the shell options.
    fn changes_before(&mut self, session: &Session, snippet: &Snippet) -> Vec<u8> {
        let mut lines = std::mem::take(&mut self.variables);
        lines.extend(shell_changes(
            &without_shells_own(&self.known),
            &without_shells_own(&session.environment),
        ));
        let directory = snippet
            .directory_variable
            .map(|name| (OsStr::new(name), session.directory.as_os_str()));
        lines.extend(assignments(
            directory
                .into_iter()
                .filter(|(name, _)| !self.known.contains_key(*name)),
        ));
        if !snippet.options.is_empty() {
            lines.extend_from_slice(format!("set {}\n", snippet.options.join(" ")).as_bytes());
        }
        lines
    }

    /// Sends a word, after the shell lines `changes`, and wakes the shell. The word is valid for this round only: if a
    /// snippet has replaced `command`, the shell sources the changes of the last round again, and must not run its
    /// snippet a second time.
    fn send_word(&mut self, word: &str, mut changes: Vec<u8>) -> io::Result<()> {
        self.round += 1;
        let round = self.round;
        changes.extend_from_slice(
            format!("case $flux_agent_round in {round}) flux_agent_word={word} ;; esac\n").as_bytes(),
        );
        fill(&mut self.files.changes, &changes)?;
        self.ask.write_all(b"\n")
    }

    /// Whether the shell has not read the byte that asks for a step, so that it has not begun this step.
    fn has_unread_word(&self) -> io::Result<bool> {
        Ok(rustix::io::ioctl_fionread(&self.files.ask)? > 0)
    }

    /// How the shell ended; none: it still runs.
    pub fn ended(&mut self, supervisor: &mut Supervisor) -> Option<ChildEnd> {
        self.end = self.end.or_else(|| supervisor.take_end(self.child.pid));
        self.end
    }

    /// Waits for the shell's report of its state, or for its end.
    async fn await_state(&mut self, supervisor: &mut Supervisor) -> io::Result<ReplyOrEnd<Reply>> {
        let parse = |bytes: &[u8]| {
            if shell_state::is_unheard(bytes) {
                return Some(Reply::Unheard);
            }
            let state = shell_state::parse(bytes).map(|state| Reply::State(Box::new(state)));
            state.or_else(|| unusable_code(bytes).map(Reply::Unusable))
        };
        self.received.clear();
        self.await_reply(supervisor, parse).await
    }

    /// Waits until `parse` finds a reply in what the shell has written, or the shell ends. Programs that the
    /// shell has started may still run then; they are not waited for.
    async fn await_reply<T>(
        &mut self,
        supervisor: &mut Supervisor,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<ReplyOrEnd<T>> {
        let mut is_killed = false;
        loop {
            let end = self.ended(supervisor);
            // After the look for the end, not before: so the last reply of a shell that has ended is not missed.
            self.read_reply()?;
            if let Some(found) = parse(&self.received) {
                return Ok(ReplyOrEnd::Reply(found));
            }
            if let Some(end) = end {
                return Ok(ReplyOrEnd::ShellEnded(end));
            }
            let kill_at = if is_killed {
                None
            } else {
                supervisor.kill_deadline()
            };
            tokio::select! {
                event = supervisor.event() => self.handle_event(event?, supervisor),
                () = until(kill_at) => {
                    tracing::info!(stage = "stop", "not ended in time: killing what is left");
                    is_killed = true;
                    let _ = raw::send(-self.child.pid, libc::SIGKILL);
                }
                ready = self.reply.readable() => ready?.clear_ready(),
            }
        }
    }

    /// Reads what the shell has written, without waiting for more.
    fn read_reply(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        loop {
            match nix::unistd::read(self.reply.get_ref(), &mut chunk) {
                Ok(0) => return Ok(()),
                Ok(count) => self.received.extend_from_slice(&chunk[..count]),
                Err(nix::errno::Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Forwards a signal to the shell and its programs. A second stop kills them.
    fn handle_event(&self, event: Event, supervisor: &Supervisor) {
        let signal = match event {
            Event::Child => return,
            Event::Stop if self.leaves_first_stop => return,
            Event::Stop => supervisor.noted_stop().map_or(libc::SIGTERM, |stop| stop.signal),
            Event::Signal(received) if !is_stop(received.number) => received.number,
            Event::Signal(_) if supervisor.is_duplicate_stop() => return,
            Event::Signal(_) => libc::SIGKILL,
        };
        let _ = raw::send(-self.child.pid, signal);
    }

    /// The end of the snippet's standard error, to report it if the snippet failed.
    pub fn last_errors(&self, snippet: &Snippet) -> String {
        if snippet.silent {
            self.hidden.text()
        } else {
            self.shown.as_ref().map(LastErrors::text).unwrap_or_default()
        }
    }

    fn forget_errors(&self) {
        [Some(&self.hidden), self.shown.as_ref()]
            .into_iter()
            .flatten()
            .for_each(LastErrors::forget);
    }

    /// Ends the shell in order, so that its EXIT trap runs. Its exit code is ignored.
    pub async fn end(mut self, supervisor: &mut Supervisor) -> io::Result<()> {
        // The EXIT trap runs after a stop, too, so a stop that comes while it runs is not passed on to it.
        self.leaves_first_stop = true;
        self.send_word("end", Vec::new())?;
        self.await_state(supervisor).await?;
        self.shown.iter().for_each(LastErrors::drain);
        Ok(())
    }
}

/// The code in the reply of a shell that could not start `flux-agent snippet-state`. The beginning of a state
/// may come before it.
fn unusable_code(bytes: &[u8]) -> Option<u8> {
    let line = bytes.strip_suffix(b"\n")?.rsplit(|byte| *byte == 0).next()?;
    let at = line.windows(LOST.len()).rposition(|part| part == LOST)?;
    std::str::from_utf8(&line[at + LOST.len()..]).ok()?.parse().ok()
}

fn failed(error: io::Error) -> Failure {
    let cause = format!("failed to talk to the snippets' shell: {}", plain(&error));
    Failure::internal(cause).passing_as(&error)
}

/// A descriptor that only names the file (O_PATH). The file need not be readable, and cannot be read or written by this
/// descriptor. It can be run, or opened below /proc/self/fd.
fn open_path(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(path)
}

fn not_started(error: StartError) -> Failure {
    let remedy = "the image's shell does not run; leave out the snippets or change the image";
    Failure {
        is_passing: error.is_passing,
        ..Failure::new(Category::ShellMissing, error.to_string(), remedy)
    }
}

/// A copy of the descriptor with a number that scripts do not use. If that fails, the descriptor itself.
fn with_high_number(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_INHERITED).unwrap_or(fd)
}

/// The shell's command line: the planned words, then the driver and its arguments.
fn command_line(planned: &SnippetShell, numbers: &[RawFd], access: Access) -> Vec<OsString> {
    let mut argv = planned.argv.clone();
    // `flux-agent` becomes the driver's `$0`, the name in the shell's error messages.
    argv.extend(["-c", DRIVER, "flux-agent"].map(str::to_owned));
    let process = match access {
        Access::OfAgent => std::process::id().to_string(),
        Access::Inherited => "self".to_owned(),
    };
    argv.extend(
        numbers
            .iter()
            .map(|number| format!("/proc/{process}/fd/{number}")),
    );
    if numbers.len() < DRIVER_PATHS {
        // With an empty path, the driver leaves standard error as it is.
        argv.push(String::new());
    }
    argv.push(planned.as_flux.clone());
    argv.into_iter().map(OsString::from).collect()
}

/// Replaces the content of a memory file.
fn fill(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.set_len(0)?;
    file.write_all_at(bytes, 0)
}
