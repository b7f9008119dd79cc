//! The user's snippets: one shell of the image's own, from the first snippet to the last.
//!
//! ```text
//! agent ── word ──► ask (pipe) ──► shell: sources the changes of the environment, then the snippet
//!       ◄─ state ── reply (pipe) ◄── `flux-agent snippet-state`, run by the shell after each
//! ```
//!
//! Snippets and changes are handed over in memory (memfd), so that a read-only image is no obstacle and
//! nothing stays on a disk. The shell opens all of this by its path below /proc/PID/fd of the agent, each
//! time that it needs it. So nothing that a snippet starts inherits it, and nothing that a snippet closes or
//! redirects is in the way.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;

use flux_agent_plan::plan::{Snippet, SnippetShell};
use flux_shared::exit::Category;
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::io::unix::AsyncFd;

use super::last_errors::LastErrors;
use super::session::{Session, assignments, current_limits, shell_changes};
use super::shell_state::{self, ShellState, without_shells_own};
use crate::report::failure::{Failure, is_passing, plain};
use crate::supervise::program::{Child, ChildProgram, Environment, Output, StartError};
use crate::supervise::{ChildEnd, Event, Supervisor, is_stop, terminal, until};
use crate::system::raw::{self, ChildSetup, Limit};

/// The only shell text of ours that runs: it reports the state of its shell after each snippet. Both parts
/// are constants, the user's text is never pasted into them. Two variables that documented snippets build
/// upon are empty, not unset, for those who set -u themselves, and `$asFlux` runs what follows it as Flux's
/// user; they are not exported. Standard error goes through the agent, which keeps its end. A shell that
/// cannot even open its pipe kills itself, which no snippet's `exit` looks like.
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

/// One step of the driver: waits for a word, runs a snippet, and goes on with the next step. No loop of ours
/// is around a snippet, since its `break` or `continue` would be about that.
///
/// What the user's environment holds is not in the way. Builtins are called by `command`, since a function
/// may have their name. `read` is called again where TMOUT or a trap has ended it. Only keywords decide (`!
/// case x in x) ;; esac` is a failure, which `false`, that may be redefined, need not be). If the user
/// replaces even `command` or `.`, or disables them, the agent's changes do not name the word of this round:
/// then the shell reports that it does not hear the agent, runs nothing, and ends.
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
        case $flux_agent_word in
            go) . "$flux_agent_snippet" ;;
            *) . "$flux_agent_snippet" >/dev/null 2>"$flux_agent_errors" ;;
        esac
        "$flux_agent_self" snippet-state "$flux_agent_reply" "$?" "${asFlux-}" "${brokerOptions-}" "${BASH_VERSION-}" ||
            command printf 'lost=%s\n' "$?" >"$flux_agent_reply"
        . "$flux_agent_step"
        ;;
esac
"#;

/// What the driver says first.
const READY: &[u8] = b"ready\n";

/// How a snippet ended.
#[derive(Debug, PartialEq, Eq)]
pub enum SnippetRun {
    /// It ran to its end with this status; the shell is ready for the next one.
    Finished(u8),
    /// The shell has ended: `exit`, a failure under strict, or a signal.
    ShellEnded(u8),
    /// The shell can start no program any more, and gave this code for the attempt: what it exports is too
    /// large for a program, or a limit that it has set is used up.
    ShellUnusable(u8),
    /// The snippet did not run: the user has replaced or disabled what the driver needs. The shell ends.
    Unheard,
}

/// What the shell reports after a snippet.
enum Reply {
    State(Box<ShellState>),
    Unheard,
    /// It can start no program any more, by this code.
    Unusable(u8),
}

/// What was heard from the shell.
enum Heard<T> {
    Reply(T),
    ShellEnded(ChildEnd),
}

/// A shell that was started.
pub enum Started {
    Ready(Box<Shell>),
    /// It ended before any snippet ran.
    Ended(ChildEnd),
}

/// Where the descriptors begin that the shell inherits where it has to: scripts use low ones, and 200 for
/// locks.
const INHERITED: RawFd = 230;

/// How many paths the driver takes.
const FILES: usize = 8;

/// How the shell reaches the agent's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// By the agent's own number in /proc.
    OfAgent,
    /// As its own, where a security module or a capability keeps it from the other way.
    Inherited,
}

/// What the shell opens by the numbers that its command line names. It all stays open here for as long as the
/// shell may.
#[derive(Debug)]
struct ShellFiles {
    agent: File,
    /// A byte here asks for the next step.
    ask: File,
    changes: File,
    snippet: File,
    reply: File,
    hidden: File,
    step: File,
    /// Where standard error goes, unless it goes to a terminal.
    shown: Option<File>,
}

impl ShellFiles {
    /// In the order of the driver's arguments.
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

/// What a shell that can start no program reports, before the code.
const LOST: &[u8] = b"lost=";

/// A running shell.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    ask: File,
    /// Number of words that it was sent.
    round: u32,
    files: ShellFiles,
    reply: AsyncFd<OwnedFd>,
    /// What came on it and is not read yet.
    bytes: Vec<u8>,
    end: Option<ChildEnd>,
    /// Standard error of silent snippets, which nobody sees.
    hidden: LastErrors,
    /// Standard error of the others; none with a terminal, which it goes to directly.
    shown: Option<LastErrors>,
    /// The variables that are not exported, until the shell has them.
    variables: Vec<u8>,
    /// The environment that the shell has.
    known: Environment,
    limits: Vec<Limit>,
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
        if end == Some(ChildEnd::Signaled(libc::SIGKILL)) && supervisor.stop().is_none() {
            shell = Shell::spawn(supervisor, session, planned, agent, Access::Inherited)?;
            end = shell.until_ready(supervisor).await?;
        }
        Ok(end.map_or_else(|| Started::Ready(Box::new(shell)), Started::Ended))
    }

    async fn until_ready(&mut self, supervisor: &mut Supervisor) -> Result<Option<ChildEnd>, Failure> {
        let is_ready = |bytes: &[u8]| bytes.starts_with(READY).then_some(());
        match self.await_reply(supervisor, is_ready).await.map_err(failed)? {
            Heard::Reply(()) => {
                self.bytes.drain(..READY.len());
                Ok(None)
            }
            Heard::ShellEnded(end) => Ok(Some(end)),
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
        let ((ask_there, ask), (reply, reply_there)) = (pipe()?, pipe()?);
        let ((hidden, hidden_there), (shown, shown_there)) = (pipe()?, pipe()?);
        nix::fcntl::fcntl(&reply, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))
            .map_err(io::Error::from)
            .map_err(failed)?;
        let memory = |name: &str| {
            memfd_create(name, MFdFlags::MFD_CLOEXEC)
                .map_err(io::Error::from)
                .map_err(failed)
        };
        // Opened now: by its path, the shell might run what has taken its place by then.
        let program = open_program(agent).map_err(failed)?;
        let as_file = |fd: OwnedFd| File::from(with_high_number(fd));
        let has_terminal = supervisor.has_terminal();
        let mut files = ShellFiles {
            agent: as_file(program.into()),
            ask: as_file(ask_there),
            changes: as_file(memory("changes")?),
            snippet: as_file(memory("snippet")?),
            reply: as_file(reply_there),
            hidden: as_file(hidden_there),
            step: as_file(memory("step")?),
            shown: (!has_terminal).then(|| as_file(shown_there)),
        };
        fill(&mut files.step, STEP.as_bytes()).map_err(failed)?;
        let hidden = LastErrors::read_from(hidden, false).map_err(failed)?;
        // A person at a terminal sees it as it comes, and programs ask whether it is one.
        let shown = if has_terminal {
            None
        } else {
            Some(LastErrors::read_from(shown, true).map_err(failed)?)
        };
        let numbers = files.numbers();
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
                inherit: if access == Access::Inherited {
                    numbers
                } else {
                    Vec::new()
                },
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
        let variables = assignments(variables.filter(|(name, _)| !known.contains_key(*name)));
        let (limits, bytes, ask) = (current_limits().collect(), Vec::new(), File::from(ask));
        Ok(Shell {
            child,
            ask,
            round: 0,
            files,
            reply,
            bytes,
            end: None,
            hidden,
            shown,
            variables,
            known,
            limits,
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
        fill(&mut self.files.snippet, snippet.source.as_bytes()).map_err(failed)?;
        self.forget_errors();
        let changes = self.changes_before(session, snippet);
        self.tell(if snippet.silent { "silent" } else { "go" }, changes)
            .map_err(failed)?;
        // The snippet may have run: no reason for another attempt.
        let heard = self.answer(supervisor).await.map_err(|error| Failure {
            is_passing: false,
            ..failed(error)
        })?;
        // What it wrote comes before what the agent, or the program, writes next.
        self.shown.iter().for_each(LastErrors::drain);
        if supervisor.has_terminal() {
            terminal::reclaim();
        }
        Ok(match heard {
            Heard::Reply(Reply::State(state)) => {
                state.carry_over(session, &self.limits);
                self.known = state.environment;
                SnippetRun::Finished(state.status)
            }
            Heard::Reply(Reply::Unusable(code)) => SnippetRun::ShellUnusable(code),
            Heard::Reply(Reply::Unheard) => SnippetRun::Unheard,
            // It ended between two snippets, which nobody had seen yet.
            Heard::ShellEnded(_) if self.has_unread_word().map_err(failed)? => SnippetRun::Unheard,
            Heard::ShellEnded(end) => SnippetRun::ShellEnded(end.code()),
        })
    }

    /// Shell lines that come before the snippet: the variables that it is promised, what has changed in the
    /// environment, and the options that it runs with.
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

    /// Hands over shell lines, which say the word of this round and no other, and wakes the shell.
    fn tell(&mut self, word: &str, mut changes: Vec<u8>) -> io::Result<()> {
        self.round += 1;
        let round = self.round;
        changes.extend_from_slice(
            format!("case $flux_agent_round in {round}) flux_agent_word={word} ;; esac\n").as_bytes(),
        );
        fill(&mut self.files.changes, &changes)?;
        self.ask.write_all(b"\n")
    }

    /// Whether the shell has not read that it was asked for a step, and so has not begun with it.
    fn has_unread_word(&self) -> io::Result<bool> {
        Ok(rustix::io::ioctl_fionread(&self.files.ask)? > 0)
    }

    /// How the shell ended; none: it is there.
    pub fn ended(&mut self, supervisor: &mut Supervisor) -> Option<ChildEnd> {
        self.end = self.end.or_else(|| supervisor.take_end(self.child.pid));
        self.end
    }

    /// Waits for the shell's state, or its end.
    async fn answer(&mut self, supervisor: &mut Supervisor) -> io::Result<Heard<Reply>> {
        let parse = |bytes: &[u8]| {
            if shell_state::is_unheard(bytes) {
                return Some(Reply::Unheard);
            }
            let state = shell_state::parse(bytes).map(|state| Reply::State(Box::new(state)));
            state.or_else(|| unusable_code(bytes).map(Reply::Unusable))
        };
        self.bytes.clear();
        self.await_reply(supervisor, parse).await
    }

    /// Waits until `parse` finds something in what the shell says, or the shell ends. What it started may
    /// outlive it, and holds up nobody.
    async fn await_reply<T>(
        &mut self,
        supervisor: &mut Supervisor,
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Heard<T>> {
        let mut is_killed = false;
        loop {
            let end = self.ended(supervisor);
            // What it has said comes before its end.
            self.read_reply()?;
            if let Some(found) = parse(&self.bytes) {
                return Ok(Heard::Reply(found));
            }
            if let Some(end) = end {
                return Ok(Heard::ShellEnded(end));
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

    /// Reads what has come, without waiting.
    fn read_reply(&mut self) -> io::Result<()> {
        let mut chunk = [0; 4096];
        loop {
            match nix::unistd::read(self.reply.get_ref(), &mut chunk) {
                Ok(0) => return Ok(()),
                Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
                Err(nix::errno::Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes a signal on to the shell and what it runs; a second stop kills them.
    fn handle_event(&self, event: Event, supervisor: &mut Supervisor) {
        let signal = match event {
            Event::Child => return,
            Event::Stop => supervisor.stop().map_or(libc::SIGTERM, |stop| stop.signal),
            Event::Signal(received) if !is_stop(received.number) => received.number,
            Event::Signal(_) if supervisor.is_duplicate_stop() => return,
            Event::Signal(_) => libc::SIGKILL,
        };
        let _ = raw::send(-self.child.pid, signal);
    }

    /// The end of the snippet's standard error, for the line about its failure.
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

    /// Ends the shell in order, so that its EXIT trap runs; its code no longer matters.
    pub async fn end(mut self, supervisor: &mut Supervisor) -> io::Result<()> {
        self.tell("end", Vec::new())?;
        self.answer(supervisor).await?;
        self.shown.iter().for_each(LastErrors::drain);
        Ok(())
    }
}

/// The code that a shell reports which can start no program. It may follow the beginning of a state.
fn unusable_code(bytes: &[u8]) -> Option<u8> {
    let line = bytes.strip_suffix(b"\n")?.rsplit(|byte| *byte == 0).next()?;
    let at = line.windows(LOST.len()).rposition(|part| part == LOST)?;
    std::str::from_utf8(&line[at + LOST.len()..]).ok()?.parse().ok()
}

fn failed(error: io::Error) -> Failure {
    let cause = format!("failed to talk to the snippets' shell: {}", plain(&error));
    Failure {
        is_passing: is_passing(&error),
        ..Failure::internal(cause)
    }
}

/// A descriptor to run the program by, which need not be readable.
fn open_program(program: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(program)
}

fn not_started(error: StartError) -> Failure {
    let remedy = "the image's shell does not run; leave out the snippets or change the image";
    Failure {
        is_passing: error.is_passing,
        ..Failure::new(Category::ShellMissing, error.to_string(), remedy)
    }
}

/// The same descriptor under a number that scripts do not use, if one is left.
fn with_high_number(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, INHERITED).unwrap_or(fd)
}

fn command_line(planned: &SnippetShell, numbers: &[RawFd], access: Access) -> Vec<OsString> {
    let mut argv = planned.argv.clone();
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
    if numbers.len() < FILES {
        // Without a path, standard error stays what it is.
        argv.push(String::new());
    }
    argv.push(planned.as_flux.clone());
    argv.into_iter().map(OsString::from).collect()
}

/// Replaces the content of a memory file by `bytes`.
fn fill(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.set_len(0)?;
    file.write_all_at(bytes, 0)
}
