//! The few system calls that no safe crate offers: the only unsafe code of the agent. Nothing is decided here.
#![expect(
    unsafe_code,
    reason = "real-time signals have no safe kill or waitpid (nix knows the first 31), and a child's process group, \
              limits and signal mask can be set without a race only between fork and exec; tokio watches a foreign \
              descriptor on the caller's word only"
)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::Pid;
use tokio::io::unix::AsyncFd;

use crate::system::identity::Credentials;

/// A child's wait status, as the kernel gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Exited(u8),
    Signaled(i32),
    Stopped(i32),
}

/// Sends any signal, by number, to a process or (negative) to a process group.
pub fn send(target: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill takes two integers and touches no memory of ours.
    match unsafe { libc::kill(target, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel store how children end, even if this process was started with SIGCHLD ignored.
pub fn remember_children() -> io::Result<()> {
    // SAFETY: the default disposition runs no code of ours.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// The next child that has ended or stopped, if there is one; never waits. It cannot take the child of `with_identity`,
/// which blocks this thread until that child has ended.
pub fn reap() -> Option<(i32, Status)> {
    let mut raw = 0;
    // SAFETY: `raw` outlives the call, which writes one integer to it.
    let pid = unsafe { libc::waitpid(-1, &raw mut raw, libc::WNOHANG | libc::WUNTRACED) };
    if pid <= 0 {
        return None;
    }
    let status = if libc::WIFSIGNALED(raw) {
        Status::Signaled(libc::WTERMSIG(raw))
    } else if libc::WIFSTOPPED(raw) {
        Status::Stopped(libc::WSTOPSIG(raw))
    } else {
        Status::Exited(libc::WEXITSTATUS(raw).to_le_bytes()[0])
    };
    Some((pid, status))
}

/// Does `work` in a child process with the rights of `identity`, and waits for it. Only an error's number comes back.
/// One without a number comes back as EACCES, after which `Files::as_owner` leaves the work to the agent itself.
///
/// Unlike `identity::as_user`, this also changes the group, which new files get, and the supplementary groups. A thread
/// could change these as well. But then the kernel would mark the whole process as not dumpable, if only for a moment:
/// root without CAP_SYS_PTRACE cannot read such a process in /proc.
pub fn with_identity(identity: &Credentials, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: the C library makes its allocator usable in the child, which has this thread alone, runs `work`
    // and ends without destructors or handlers of ours.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            let done = identity.assume().and_then(|()| work());
            let number = done.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EACCES), |()| 0);
            // SAFETY: `_exit` ends the process and touches no memory.
            unsafe { libc::_exit(number) }
        }
        child => child,
    };
    loop {
        let mut raw = 0;
        // SAFETY: `raw` outlives the call, which writes one integer to it.
        match unsafe { libc::waitpid(child, &raw mut raw, 0) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ if libc::WIFEXITED(raw) && libc::WEXITSTATUS(raw) == 0 => return Ok(()),
            _ if libc::WIFEXITED(raw) => return Err(io::Error::from_raw_os_error(libc::WEXITSTATUS(raw))),
            _ => {
                return Err(io::Error::other(
                    "the process that acts as the files' owner was killed",
                ));
            }
        }
    }
}

/// A descriptor whose readiness the event loop watches.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is one and the same descriptor as long as it lives, and the AsyncFd owns it.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// A limit of a process (getrlimit(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The name by which a shell of the snippets reports the limit to the agent.
    pub name: &'static str,
    pub resource: Resource,
    pub soft: u64,
    pub hard: u64,
}

/// What is set in a child between fork and exec.
#[derive(Debug, Clone, Default)]
pub struct ChildSetup {
    /// Becomes the terminal's foreground group before it runs.
    pub is_foreground: bool,
    /// Is killed when the agent's thread that started it ends.
    pub dies_with_agent: bool,
    pub umask: Option<u32>,
    /// Limits to set. The child starts even if one cannot be set.
    pub limits: Vec<Limit>,
    /// Whose rights it gets; none: the agent's.
    pub identity: Option<Credentials>,
    /// Descriptors that stay open across exec.
    pub inherit: Vec<RawFd>,
    /// Keeps all signals blocked, for a program that reads them itself. As process 1, it would lose signals that come
    /// before it blocks them.
    pub has_signals_blocked: bool,
}

/// Makes `command`'s child start as `setup` says, as leader of a process group of its own and, by default, with
/// no signal blocked.
pub fn prepare(command: &mut Command, setup: ChildSetup) {
    let set_up = move || -> io::Result<()> {
        nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        if setup.is_foreground {
            // SIGTTOU is still blocked here, so a background process may do this.
            let _ = nix::unistd::tcsetpgrp(io::stdin(), nix::unistd::getpid());
        }
        if let Some(mask) = setup.umask {
            umask(Mode::from_bits_truncate(mask));
        }
        // Before the change of user: only root may raise a hard limit.
        for limit in &setup.limits {
            let _ = setrlimit(limit.resource, limit.soft, limit.hard);
        }
        for &fd in &setup.inherit {
            // SAFETY: the caller keeps these descriptors open until the child has started.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()))?;
        }
        if let Some(identity) = &setup.identity {
            identity.assume()?;
        }
        // After the change of user, at which the kernel clears it.
        if setup.dies_with_agent {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        }
        // Signals are handled by default again: `nohup` or a shell's `&` may have started the agent with some ignored.
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM] {
            // SAFETY: the default disposition runs no code of ours.
            unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }?;
        }
        // Until here, the child has the signal mask of the thread that started it.
        let all = SigSet::all();
        Ok(if setup.has_signals_blocked {
            all.thread_block()
        } else {
            all.thread_unblock()
        }?)
    };
    // SAFETY: between fork and exec the closure makes system calls on values that it owns; it neither
    // allocates nor takes a lock.
    unsafe { command.pre_exec(set_up) };
}
