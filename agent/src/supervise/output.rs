//! A child's standard output and standard error through raw pseudo-terminals, one each, so that programs
//! flush every line.
//!
//! Programs such as `flux submit --watch` hold both back on a pipe, but not on a terminal. A thread copies
//! what comes, unbuffered; at the end everything that the child wrote is copied before the agent goes on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
pub struct OutputCopier {
    thread: std::thread::JoinHandle<()>,
    child_ended: OwnedFd,
    done: OwnedFd,
    first: Arc<Mutex<Option<Instant>>>,
}

impl OutputCopier {
    /// Copies from `stdout` and `stderr` to this process's own.
    pub fn start(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<OutputCopier> {
        let (wake, child_ended) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let (done, done_here) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let first = Arc::new(Mutex::new(None));
        let stream = |source: OwnedFd, output: BorrowedFd, first| -> io::Result<Stream> {
            Ok(Stream {
                source: source.into(),
                output: output.try_clone_to_owned()?.into(),
                first,
            })
        };
        let streams = vec![
            stream(stdout, io::stdout().as_fd(), Some(Arc::clone(&first)))?,
            stream(stderr, io::stderr().as_fd(), None)?,
        ];
        let thread = std::thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(move || {
                copy(streams, &wake);
                drop(done_here);
            })?;
        Ok(OutputCopier {
            thread,
            child_ended,
            done,
            first,
        })
    }

    /// When the first byte of standard output came.
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
                let _ = poll(
                    &mut [PollFd::new(output.as_fd(), PollFlags::POLLOUT)],
                    PollTimeout::NONE,
                );
            }
            // Nobody reads the log any more: keep the child going, as a closed log does not end a job.
            Err(_) => return,
        }
    }
}

/// One of the child's outputs.
struct Stream {
    source: File,
    output: File,
    /// Where the time of its first byte is noted.
    first: Option<Arc<Mutex<Option<Instant>>>>,
}

impl Stream {
    /// Copies what is there; false: nothing will come any more.
    fn copy(&mut self, buffer: &mut [u8]) -> bool {
        match self.source.read(buffer) {
            Ok(0) => false,
            Ok(count) => {
                if let Some(mut first) = self.first.as_ref().and_then(|first| first.lock().ok()) {
                    first.get_or_insert_with(Instant::now);
                }
                write_out(&mut self.output, &buffer[..count]);
                true
            }
            // EIO: all have closed; EAGAIN: the child has ended and nothing is left.
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }
}

/// Copies until the other sides have closed or, once the child has ended, until nothing is left.
fn copy(mut streams: Vec<Stream>, wake: &OwnedFd) {
    let mut buffer = [0_u8; 16 * 1024];
    while !streams.is_empty() {
        let sources = streams.iter().map(|stream| stream.source.as_fd());
        let mut fds: Vec<PollFd> = sources
            .chain([wake.as_fd()])
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let ended = ready.last() == Some(&true);
        let mut ready = ready.into_iter();
        streams.retain_mut(|stream| {
            let has_data = ready.next() == Some(true);
            if !has_data && ended {
                // What the child wrote last may still be on its way through the kernel: a read, which now
                // never waits, gets it.
                let _ = nix::fcntl::fcntl(&stream.source, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
            }
            !(has_data || ended) || stream.copy(&mut buffer)
        });
    }
}
