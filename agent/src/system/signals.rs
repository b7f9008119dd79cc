//! Signals as events: all are blocked from the start and read from one descriptor (signalfd), so none is lost and none
//! kills the agent.
//!
//! tokio's signals are not used: they do not say who sent a signal (the kernel, another process, the agent itself), and
//! need a handler and a stream for each number.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::unix::AsyncFd;

/// A signal that the agent was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    pub number: i32,
    /// Made by the kernel (a key on the terminal), not sent by a process.
    pub by_kernel: bool,
    /// Sent by the agent to itself. A SIGPIPE counts as such: as its sender, the kernel names the process that wrote.
    pub by_self: bool,
    /// Sent from outside of the agent's pid namespace, as by the container runtime.
    pub from_outside: bool,
}

/// Whether a signal is a stop: SIGTERM, SIGINT, SIGHUP.
pub fn is_stop(signal: i32) -> bool {
    matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP)
}

impl Received {
    /// The signal as the entrypoint of a container handles it. The runtime stops a container by the STOPSIGNAL of its
    /// image, such as SIGQUIT (nginx), SIGWINCH (httpd) or SIGRTMIN+3 (systemd). This counts as SIGTERM. Signals that
    /// suspend or resume, SIGCHLD and SIGURG stay what they are.
    pub fn of_container(self) -> Received {
        let is_other = matches!(
            self.number,
            libc::SIGCHLD | libc::SIGCONT | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGURG
        );
        if !self.from_outside || is_other || is_stop(self.number) {
            return self;
        }
        Received {
            number: libc::SIGTERM,
            ..self
        }
    }
}

/// Blocks every signal in this thread and in those that it starts later, since a signalfd reports blocked signals only.
pub fn block() -> io::Result<()> {
    // SIGCHLD may have been ignored when this process started.
    crate::system::raw::remember_children()?;
    Ok(SigSet::all().thread_block()?)
}

/// Unblocks all signals, for subcommands that do not read them as events.
pub fn unblock() -> io::Result<()> {
    Ok(SigSet::all().thread_unblock()?)
}

/// The descriptor of the blocked signals.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    /// A duplicate of `fd`, which the event loop watches.
    ready: AsyncFd<OwnedFd>,
}

impl Signals {
    pub fn new() -> io::Result<Signals> {
        let fd = SignalFd::with_flags(&SigSet::all(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let ready = crate::system::raw::watch(fd.as_fd().try_clone_to_owned()?)?;
        Ok(Signals { fd, ready })
    }

    /// The next signal. The future may be dropped without losing one.
    pub async fn next(&mut self) -> io::Result<Received> {
        loop {
            let mut ready = self.ready.readable().await?;
            if let Some(received) = read(&self.fd)? {
                return Ok(received);
            }
            ready.clear_ready();
        }
    }

    /// A signal that has come already, without waiting.
    pub fn try_next(&self) -> Option<Received> {
        read(&self.fd).ok().flatten()
    }
}

fn read(fd: &SignalFd) -> io::Result<Option<Received>> {
    let Some(info) = fd.read_signal()? else {
        return Ok(None);
    };
    Ok(Some(Received {
        number: info.ssi_signo.cast_signed(),
        by_kernel: info.ssi_code == libc::SI_KERNEL,
        // A process sends codes up to 0, and only the kernel sends greater ones.
        by_self: info.ssi_pid == std::process::id() && info.ssi_code <= 0,
        // A process outside has no pid here. With `pod.hostPID`, the container runtime has one: there, the STOPSIGNAL
        // is not recognized.
        from_outside: info.ssi_pid == 0 && info.ssi_code == libc::SI_USER,
    }))
}

/// Waits for a stop of this container, in a thread in which all signals are blocked. Returns the signal.
pub fn wait_for_stop() -> io::Result<i32> {
    let fd = SignalFd::with_flags(&SigSet::all(), SfdFlags::SFD_CLOEXEC)?;
    loop {
        let signal = read(&fd)?.map(|received| received.of_container().number);
        if let Some(signal) = signal.filter(|signal| is_stop(*signal)) {
            return Ok(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stopsignal_from_outside_counts_as_sigterm() {
        let number = |number, from_outside: bool| {
            let received = Received {
                number,
                by_kernel: !from_outside,
                by_self: false,
                from_outside,
            };
            received.of_container().number
        };
        for signal in [libc::SIGQUIT, libc::SIGUSR1, libc::SIGWINCH, libc::SIGRTMIN() + 3] {
            assert_eq!(
                (number(signal, true), number(signal, false)),
                (libc::SIGTERM, signal)
            );
        }
        for signal in [
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGCHLD,
            libc::SIGTSTP,
            libc::SIGCONT,
        ] {
            assert_eq!(number(signal, true), signal);
        }
    }
}
