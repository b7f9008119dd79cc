//! The user's snippets: one shell of the image's own, from the first snippet to the last.
//!
//! ```text
//! agent ── word ──► ask (pipe) ──► shell: sources the changes of the environment, then the snippet
//!       ◄─ state ── reply (pipe) ◄── `flux-agent snippet-state`, run by the shell after each
//! ```
//!
//! Snippets and changes are handed over in memory (memfd), so that a read-only image is no obstacle and nothing stays
//! on a disk. All descriptors are opened by their path below /proc/self/fd, which every shell understands.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use flux_shared::exit::Category;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::io::unix::AsyncFd;

use super::session::{Session, assignments, current_limits, shell_changes};
use super::shell_state::{self, State};
use crate::plan::{Snippet, SnippetShell};
use crate::report::failure::Failure;
use crate::supervise::program::{Child, Environment, Output, Program};
use crate::supervise::{End, Event, Supervisor, is_stop, terminal, until};
use crate::system::raw;
use crate::system::raw::ChildSetup;

/// The only shell text of ours that runs: it sources what it is told to and reports. It is a constant, the user's text
/// is never pasted into it; a loop, because one shell must see all snippets. Two variables that documented snippets
/// build upon are empty, not unset, for those who set -u themselves, and `$asFlux` runs what follows it as Flux's user;
/// they are not exported. Standard error goes through the agent, which keeps its end. A shell that can start no program any more says so by itself; one that cannot
/// even open its pipe kills itself, which no snippet's `exit` looks like.
const DRIVER: &str = r#"
: "${PYTHONPATH=}" "${LD_LIBRARY_PATH=}" "${asFlux=$8}"
flux_agent_self=$1 flux_agent_ask=$2 flux_agent_changes=$3 flux_agent_snippet=$4 flux_agent_reply=$5 flux_agent_errors=$6
case $7 in ?*) exec 2>"$7" ;; esac
shift 8
while IFS= read -r flux_agent_word <"$flux_agent_ask"; do
    . "$flux_agent_changes"
    case $flux_agent_word in
        end) break ;;
        silent) . "$flux_agent_snippet" >/dev/null 2>"$flux_agent_errors" ;;
        *) . "$flux_agent_snippet" ;;
    esac
    "$flux_agent_self" snippet-state "$flux_agent_reply" "$?" "${asFlux-}" "${brokerOptions-}" ||
        printf 'lost=%s\n' "$?" >"$flux_agent_reply"
done
case $flux_agent_word in end) ;; *) kill -9 "$$" ;; esac
"#;

/// Bytes of a snippet's standard error that are kept in case it fails.
const KEPT_ERRORS: usize = 2048;

/// How a snippet ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran to its end with this status; the shell is ready for the next one.
    Finished(u8),
    /// The shell has ended: `exit`, a failure under strict, or a signal.
    ShellEnded(u8),
    /// The shell can start no program any more, and gave this code for the attempt: what it exports is too large for a
    /// program, or a limit that it has set is used up.
    ShellUnusable(u8),
}

/// Why the shell did not report its state.
enum NoState {
    Ended(u8),
    Unusable(u8),
}

/// What a shell that can start no program reports, before the code.
const LOST: &[u8] = b"lost=";

/// A running shell.
#[derive(Debug)]
pub struct Shell {
    child: Child,
    ask: File,
    changes: File,
    snippet: File,
    reply: AsyncFd<OwnedFd>,
    /// Standard error of silent snippets, which nobody sees.
    hidden: LastErrors,
    /// Standard error of the others; none with a terminal, which it goes to directly.
    shown: Option<LastErrors>,
    /// The variables that are not exported, until the shell has them.
    variables: Vec<u8>,
    /// The environment that the shell has.
    known: Environment,
    limits: Vec<(&'static str, u64, u64)>,
}

impl Shell {
    /// Starts the planned shell.
    pub fn start(
        supervisor: &mut Supervisor,
        session: &Session,
        planned: &SnippetShell,
        agent: &Path,
    ) -> Result<Shell, Failure> {
        let plumbing = || -> io::Result<_> {
            let (ask_there, ask) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            let (reply, reply_there) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            let (hidden, hidden_there) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            let (shown, shown_there) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            nix::fcntl::fcntl(&reply, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            let memory = |name: &str| memfd_create(name, MFdFlags::MFD_CLOEXEC).map(File::from);
            let (changes, snippet) = (memory("changes")?, memory("snippet")?);
            // Opened now: by its path, the shell might run what has taken its place by then.
            let program = File::open(agent)?;
            Ok((
                [ask_there, reply_there, hidden_there, shown_there, program.into()],
                File::from(ask),
                reply,
                [hidden, shown],
                changes,
                snippet,
            ))
        };
        let failed = |error: io::Error| Failure::internal(format!("failed to talk to the shell: {error}"));
        let (theirs, ask, reply, [hidden, shown], changes, snippet) = plumbing().map_err(failed)?;
        let hidden = LastErrors::keep(hidden, false).map_err(failed)?;
        // A person at a terminal sees it as it comes, and programs ask whether it is one.
        let shown = if supervisor.has_terminal() { None } else { Some(LastErrors::keep(shown, true).map_err(failed)?) };
        let [ask_there, reply_there, hidden_there, shown_there, program] = &theirs;
        let mut numbers = vec![
            program.as_raw_fd(),
            ask_there.as_raw_fd(),
            changes.as_raw_fd(),
            snippet.as_raw_fd(),
            reply_there.as_raw_fd(),
            hidden_there.as_raw_fd(),
        ];
        numbers.extend(shown.iter().map(|_| shown_there.as_raw_fd()));
        let argv = command_line(planned, &numbers);
        let program = Program {
            argv: &argv,
            environment: &session.environment,
            directory: &session.directory,
            output: Output::Inherit,
            setup: ChildSetup {
                tied: true,
                foreground: supervisor.has_terminal(),
                umask: Some(session.umask),
                inherit: numbers,
                ..ChildSetup::default()
            },
        };
        let child = supervisor.start(program).map_err(|error| {
            Failure::new(
                Category::ShellMissing,
                error.to_string(),
                "the image's shell does not run; leave out the snippets or change the image",
            )
        })?;
        let reply = raw::watch(reply).map_err(failed)?;
        let known = session.environment.clone();
        let variables = planned.variables.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        let variables = assignments(variables.filter(|(name, _)| !known.contains_key(*name)));
        let limits = current_limits().collect();
        Ok(Shell { child, ask, changes, snippet, reply, hidden, shown, variables, known, limits })
    }

    /// Runs one snippet and carries its state over into `session`.
    pub async fn run(
        &mut self,
        supervisor: &mut Supervisor,
        session: &mut Session,
        snippet: &Snippet,
    ) -> Result<Outcome, Failure> {
        let failed = |error: io::Error| Failure::internal(format!("failed to talk to the shell: {error}"));
        if supervisor.has_terminal() {
            terminal::give_to(self.child.pid);
        }
        let changes = self.changes_before(session, snippet);
        fill(&mut self.changes, &changes).map_err(failed)?;
        fill(&mut self.snippet, snippet.source.as_bytes()).map_err(failed)?;
        self.forget_errors();
        self.tell(if snippet.silent { "silent" } else { "go" }).map_err(failed)?;
        let outcome = self.answer(supervisor).await.map_err(failed)?;
        // What it wrote comes before what the agent, or the program, writes next.
        self.shown.iter().for_each(LastErrors::drain);
        if supervisor.has_terminal() {
            terminal::take_back();
        }
        Ok(match outcome {
            Ok(state) => {
                state.carry_over(session, &self.limits);
                self.known = state.environment;
                Outcome::Finished(state.status)
            }
            Err(NoState::Ended(code)) => Outcome::ShellEnded(code),
            Err(NoState::Unusable(code)) => Outcome::ShellUnusable(code),
        })
    }

    /// Shell lines that come before the snippet: the variables that it is promised, what has changed in the environment, and
    /// the options that it runs with.
    fn changes_before(&mut self, session: &Session, snippet: &Snippet) -> Vec<u8> {
        let mut lines = std::mem::take(&mut self.variables);
        lines.extend(shell_changes(&self.known, &session.environment));
        let directory = snippet.directory_variable.map(|name| (OsStr::new(name), session.directory.as_os_str()));
        lines.extend(assignments(directory.into_iter().filter(|(name, _)| !self.known.contains_key(*name))));
        if !snippet.options.is_empty() {
            lines.extend_from_slice(format!("set {}\n", snippet.options.join(" ")).as_bytes());
        }
        lines
    }

    fn tell(&mut self, word: &str) -> io::Result<()> {
        self.ask.write_all(format!("{word}\n").as_bytes())
    }

    /// How the shell ended while no snippet ran; none: it is there.
    pub fn ended_meanwhile(&self, supervisor: &mut Supervisor) -> Option<End> {
        supervisor.take_end(self.child.pid)
    }

    /// Waits for the shell's state, or for the reason why there is none.
    async fn answer(&mut self, supervisor: &mut Supervisor) -> io::Result<Result<State, NoState>> {
        let mut bytes = Vec::new();
        let mut closed = false;
        let mut is_killed = false;
        loop {
            if let Some(end) = supervisor.take_end(self.child.pid) {
                return Ok(Err(NoState::Ended(end.code())));
            }
            let kill_at = supervisor.kill_deadline().filter(|_| !is_killed);
            tokio::select! {
                event = supervisor.event() => self.handle_event(event?, supervisor),
                () = until(kill_at) => {
                    tracing::info!(stage = "stop", "not ended in time: killing what is left");
                    is_killed = true;
                    let _ = raw::send(-self.child.pid, libc::SIGKILL);
                }
                ready = self.reply.readable(), if !closed => {
                    let mut ready = ready?;
                    let mut chunk = [0; 4096];
                    match nix::unistd::read(ready.get_inner(), &mut chunk) {
                        // The shell is about to end. The pipe is always ready from now on, which would starve the event
                        // of that end.
                        Ok(0) => closed = true,
                        Ok(count) => bytes.extend_from_slice(&chunk[..count]),
                        Err(nix::errno::Errno::EAGAIN) => ready.clear_ready(),
                        Err(error) => return Err(error.into()),
                    }
                    if let Some(state) = shell_state::parse(&bytes) {
                        return Ok(Ok(state));
                    }
                    if let Some(code) = unusable_code(&bytes) {
                        return Ok(Err(NoState::Unusable(code)));
                    }
                }
            }
        }
    }

    /// Passes a signal on to the shell and what it runs; a second stop kills them.
    fn handle_event(&self, event: Event, supervisor: &mut Supervisor) {
        let signal = match event {
            Event::Child => return,
            Event::Stop => supervisor.stop().map_or(libc::SIGTERM, |stop| stop.signal),
            Event::Signal(received) if !is_stop(received.number) => received.number,
            Event::Signal(_) if supervisor.is_same_wish() => return,
            Event::Signal(_) => libc::SIGKILL,
        };
        let _ = raw::send(-self.child.pid, signal);
    }

    /// The end of the snippet's standard error, for the line about its failure.
    pub fn last_errors(&self, snippet: &Snippet) -> String {
        if snippet.silent { self.hidden.text() } else { self.shown.as_ref().map(LastErrors::text).unwrap_or_default() }
    }

    fn forget_errors(&self) {
        [Some(&self.hidden), self.shown.as_ref()].into_iter().flatten().for_each(LastErrors::forget);
    }

    /// Ends the shell in order, so that its EXIT trap runs; its code no longer matters.
    pub async fn end(mut self, supervisor: &mut Supervisor) -> io::Result<()> {
        if fill(&mut self.changes, b"").and_then(|()| self.tell("end")).is_err() {
            return Ok(());
        }
        match self.answer(supervisor).await {
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The code that a shell reports which can start no program. It may follow the beginning of a state.
fn unusable_code(bytes: &[u8]) -> Option<u8> {
    let line = bytes.strip_suffix(b"\n")?.rsplit(|byte| *byte == 0).next()?;
    let at = line.windows(LOST.len()).rposition(|part| part == LOST)?;
    std::str::from_utf8(&line[at + LOST.len()..]).ok()?.parse().ok()
}

/// How many paths of descriptors the driver takes.
const DESCRIPTORS: usize = 7;

fn command_line(planned: &SnippetShell, numbers: &[RawFd]) -> Vec<OsString> {
    let mut argv = planned.argv.clone();
    argv.extend(["-c", DRIVER, "flux-agent"].map(str::to_owned));
    let paths = numbers.iter().map(|number| format!("/proc/self/fd/{number}"));
    // Without a seventh, standard error stays what it is.
    argv.extend(paths.chain(std::iter::repeat(String::new())).take(DESCRIPTORS));
    argv.push(planned.as_flux.clone());
    argv.into_iter().map(OsString::from).collect()
}

/// Replaces the content of a memory file by `bytes`.
fn fill(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.set_len(0)?;
    file.write_all_at(bytes, 0)
}

/// Keeps the end of what comes through a pipe, and may copy it to the agent's own standard error. A thread reads it, so
/// that its writers never wait.
#[derive(Debug, Clone)]
struct LastErrors {
    pipe: Arc<Mutex<File>>,
    kept: Arc<Mutex<VecDeque<u8>>>,
    copied: bool,
}

impl LastErrors {
    fn keep(pipe: OwnedFd, copied: bool) -> io::Result<LastErrors> {
        let waited_for = pipe.try_clone()?;
        let last = LastErrors { pipe: Arc::new(Mutex::new(File::from(pipe))), kept: Arc::default(), copied };
        let reader = last.clone();
        std::thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(move || while is_readable(&waited_for, PollTimeout::NONE) && reader.take() {})?;
        Ok(last)
    }

    /// Takes all that was written before this call.
    fn drain(&self) {
        while self.pipe.lock().is_ok_and(|pipe| is_readable(&*pipe, PollTimeout::ZERO)) && self.take() {}
    }

    fn forget(&self) {
        self.drain();
        if let Ok(mut kept) = self.kept.lock() {
            kept.clear();
        }
    }

    /// What is kept, with all that was written before this call.
    fn text(&self) -> String {
        self.drain();
        let kept = self.kept.lock().map(|kept| kept.iter().copied().collect::<Vec<u8>>()).unwrap_or_default();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    /// Reads from a pipe that is ready; false at its end. The lock keeps the two readers apart.
    fn take(&self) -> bool {
        let Ok(mut pipe) = self.pipe.lock() else { return false };
        if !is_readable(&*pipe, PollTimeout::ZERO) {
            return true; // the other reader was faster
        }
        let mut chunk = [0; 4096];
        let (Ok(count @ 1..), Ok(mut kept)) = (pipe.read(&mut chunk), self.kept.lock()) else { return false };
        if self.copied {
            // Nobody to tell if the log takes no more.
            let _ = io::stderr().write_all(&chunk[..count]);
        }
        kept.extend(&chunk[..count]);
        let surplus = kept.len().saturating_sub(KEPT_ERRORS);
        kept.drain(..surplus);
        true
    }
}

/// Whether there is something to read, or the pipe is closed.
fn is_readable(pipe: impl AsFd, patience: PollTimeout) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut fds, patience) {
            Err(nix::errno::Errno::EINTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}
