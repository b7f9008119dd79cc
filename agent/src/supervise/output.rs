//! Copies a child's standard output and standard error from raw pseudo-terminals, one each, so that programs
//! flush every line.
//!
//! Programs such as `flux submit --watch` buffer both on a pipe, but not on a terminal. A thread copies the output
//! unbuffered. When the child has ended, the agent waits until all its output is copied.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{SetArg, cfmakeraw, tcgetattr, tcsetattr};

/// Opens a pseudo-terminal; returns the agent's end and the child's end.
pub fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let agents_end = posix_openpt(flags)?;
    grantpt(&agents_end)?;
    unlockpt(&agents_end)?;
    let name = ptsname_r(&agents_end)?;
    let childs_end = nix::fcntl::open(name.as_str(), flags, nix::sys::stat::Mode::empty())?;
    let mut settings = tcgetattr(&childs_end)?;
    cfmakeraw(&mut settings); // no CR before LF, no echo
    tcsetattr(&childs_end, SetArg::TCSANOW, &settings)?;
    Ok((agents_end.as_fd().try_clone_to_owned()?, childs_end))
}

/// The thread that copies a child's output.
#[derive(Debug)]
pub struct OutputCopier {
    thread: std::thread::JoinHandle<()>,
    /// Write end of a pipe: dropping it makes the thread finish.
    child_ended: OwnedFd,
    /// Read end of a pipe, which the thread closes when everything is copied.
    done: OwnedFd,
    first_byte_at: Arc<Mutex<Option<Instant>>>,
}

impl OutputCopier {
    /// Copies from `stdout` and `stderr` to this process's own.
    pub fn start(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<OutputCopier> {
        let (child_ended_reader, child_ended) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let (done, close_when_done) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let first_byte_at = Arc::new(Mutex::new(None));
        let stream = |source: OwnedFd, output: BorrowedFd, first_byte_at| -> io::Result<Stream> {
            Ok(Stream {
                source: source.into(),
                output: output.try_clone_to_owned()?.into(),
                first_byte_at,
            })
        };
        let streams = vec![
            stream(stdout, io::stdout().as_fd(), Some(Arc::clone(&first_byte_at)))?,
            stream(stderr, io::stderr().as_fd(), None)?,
        ];
        let thread = std::thread::Builder::new()
            .stack_size(128 * 1024)
            .spawn(move || {
                copy(streams, &child_ended_reader);
                drop(close_when_done);
            })?;
        Ok(OutputCopier {
            thread,
            child_ended,
            done,
            first_byte_at,
        })
    }

    /// When the first byte of standard output arrived.
    pub fn first_output(&self) -> Option<Instant> {
        *self.first_byte_at.lock().ok()?
    }

    /// Makes the thread copy what is left, after the child has ended. The returned descriptor becomes readable when
    /// that is done.
    pub fn finish(self) -> OwnedFd {
        drop(self.child_ended);
        drop(self.thread); // detached: the end of `done` shows that it has finished
        self.done
    }
}

/// Writes all bytes, even if another process has made standard output non-blocking.
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
            // The log's reader is gone. Drop the bytes and keep reading, so that the job does not fail.
            Err(_) => return,
        }
    }
}

/// One of the child's outputs.
struct Stream {
    /// The agent's end of the pseudo-terminal.
    source: File,
    /// The agent's own standard output or standard error.
    output: File,
    /// When the first byte arrived; only for standard output.
    first_byte_at: Option<Arc<Mutex<Option<Instant>>>>,
}

impl Stream {
    /// Copies what can be read now. False: there is nothing more to copy.
    fn copy(&mut self, buffer: &mut [u8]) -> bool {
        match self.source.read(buffer) {
            Ok(0) => false,
            Ok(count) => {
                if let Some(mut time) = self.first_byte_at.as_ref().and_then(|time| time.lock().ok()) {
                    time.get_or_insert_with(Instant::now);
                }
                write_out(&mut self.output, &buffer[..count]);
                true
            }
            // EIO: all processes have closed the terminal. EAGAIN: the child has ended, and nothing is left.
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }
}

/// Copies until the child's end of every stream is closed. Once `child_ended` is closed: until nothing is left.
fn copy(mut streams: Vec<Stream>, child_ended: &OwnedFd) {
    let mut buffer = [0_u8; 16 * 1024];
    while !streams.is_empty() {
        let sources = streams.iter().map(|stream| stream.source.as_fd());
        let mut fds: Vec<PollFd> = sources
            .chain([child_ended.as_fd()])
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        // `any` gives none if nix does not know the event: a read shows what it is.
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let has_ended = ready.last() == Some(&true);
        let mut ready = ready.into_iter();
        streams.retain_mut(|stream| {
            let has_data = ready.next() == Some(true);
            if !has_data && has_ended {
                // The kernel may not have delivered the child's last output yet: a read gets it, and must not block
                // if there is none.
                let _ = nix::fcntl::fcntl(&stream.source, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
            }
            // A stream stays in the list until `copy` says that there is nothing more to copy.
            !(has_data || has_ended) || stream.copy(&mut buffer)
        });
    }
}
