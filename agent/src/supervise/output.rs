//! A child's standard output through a raw pseudo-terminal, so that programs flush every line.
//!
//! Programs such as `flux submit --watch` hold their output back on a pipe, but not on a terminal. A thread copies
//! what comes, unbuffered; at the end everything that the child wrote is copied before the agent goes on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

/// A pseudo-terminal: our end, and the child's.
pub fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let ours = posix_openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname_r(&ours)?;
    let theirs = nix::fcntl::open(name.as_str(), flags, nix::sys::stat::Mode::empty())?;
    let mut settings = tcgetattr(&theirs)?;
    cfmakeraw(&mut settings); // no CR before LF, no echo
    tcsetattr(&theirs, SetArg::TCSANOW, &settings)?;
    Ok((ours.as_fd().try_clone_to_owned()?, theirs))
}

/// The thread that copies.
#[derive(Debug)]
pub struct Copier {
    thread: std::thread::JoinHandle<()>,
    child_ended: OwnedFd,
    done: OwnedFd,
    first: Arc<Mutex<Option<Instant>>>,
}

impl Copier {
    /// Copies from `source` to standard output.
    pub fn start(source: OwnedFd) -> io::Result<Copier> {
        let (wake, child_ended) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let (done, done_here) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let first = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&first);
        let thread = std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
            copy(File::from(source), &wake, &noted);
            drop(done_here);
        })?;
        Ok(Copier { thread, child_ended, done, first })
    }

    /// When the first byte came.
    pub fn first_output(&self) -> Option<Instant> {
        *self.first.lock().ok()?
    }

    /// The child has ended: copies what is left. The descriptor becomes readable when that is done.
    pub fn finish(self) -> OwnedFd {
        drop(self.child_ended);
        drop(self.thread); // detached: `done` closes when it ends
        self.done
    }
}

/// Writes all of it, also where somebody has made standard output non-blocking.
fn write_out(output: &mut File, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(output.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            // Nobody reads the log any more: keep the child going, as a closed log does not end a job.
            Err(_) => return,
        }
    }
}

/// Until the other side has closed, or, once the child has ended, until nothing is left.
fn copy(mut source: File, wake: &OwnedFd, first: &Mutex<Option<Instant>>) {
    let mut buffer = [0_u8; 16 * 1024];
    let Ok(output) = io::stdout().as_fd().try_clone_to_owned() else { return };
    let mut output = File::from(output);
    loop {
        let mut fds = [PollFd::new(source.as_fd(), PollFlags::POLLIN), PollFd::new(wake.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        let has_data = fds[0].any().unwrap_or(true);
        let ended = fds[1].any().unwrap_or(true);
        if !has_data && ended {
            // What the child wrote last may still be on its way through the kernel: a read that would wait fetches it.
            let _ = nix::fcntl::fcntl(&source, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        } else if !has_data {
            continue;
        }
        match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                if let Ok(mut first) = first.lock() {
                    first.get_or_insert_with(Instant::now);
                }
                write_out(&mut output, &buffer[..count]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return, // EIO: all have closed; EAGAIN: the child has ended and nothing is left
        }
    }
}
