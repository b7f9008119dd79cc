//! The end of what a snippet writes to its standard error, for the line about its failure.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes of a snippet's standard error that are kept in case it fails.
const KEPT_ERRORS: usize = 2048;
/// Bytes that a pipe holds.
const PIPE: usize = 64 << 10;
/// Bytes that are read from it at once.
const CHUNK: usize = 4096;

/// Keeps the end of what comes through a pipe, and may copy it to the agent's own standard error. A thread
/// reads it, so that its writers never wait.
#[derive(Debug, Clone)]
pub struct LastErrors {
    pipe: Arc<Mutex<File>>,
    kept: Arc<Mutex<VecDeque<u8>>>,
    copied: bool,
}

impl LastErrors {
    /// Begins to read `pipe`.
    pub fn keep(pipe: OwnedFd, copied: bool) -> io::Result<LastErrors> {
        let waited_for = pipe.try_clone()?;
        let last = LastErrors {
            pipe: Arc::new(Mutex::new(File::from(pipe))),
            kept: Arc::default(),
            copied,
        };
        let reader = last.clone();
        std::thread::Builder::new()
            .stack_size(64 * 1024)
            .spawn(move || while is_readable(&waited_for, PollTimeout::NONE) && reader.take() {})?;
        Ok(last)
    }

    /// Takes all that was written before this call: no more than the pipe holds, since a process in the
    /// background may write without end.
    pub fn drain(&self) {
        for _ in 0..PIPE / CHUNK {
            let is_readable = self
                .pipe
                .lock()
                .is_ok_and(|pipe| is_readable(&*pipe, PollTimeout::ZERO));
            if !is_readable || !self.take() {
                return;
            }
        }
    }

    /// Forgets what is kept: another snippet begins.
    pub fn forget(&self) {
        self.drain();
        if let Ok(mut kept) = self.kept.lock() {
            kept.clear();
        }
    }

    /// What is kept, with all that was written before this call.
    pub fn text(&self) -> String {
        self.drain();
        let kept = self
            .kept
            .lock()
            .map(|kept| kept.iter().copied().collect::<Vec<u8>>())
            .unwrap_or_default();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    /// Reads from a pipe that is ready; false at its end. The lock keeps the two readers apart.
    fn take(&self) -> bool {
        let Ok(mut pipe) = self.pipe.lock() else {
            return false;
        };
        if !is_readable(&*pipe, PollTimeout::ZERO) {
            return true; // the other reader was faster
        }
        let mut chunk = [0; CHUNK];
        let (Ok(count @ 1..), Ok(mut kept)) = (pipe.read(&mut chunk), self.kept.lock()) else {
            return false;
        };
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
