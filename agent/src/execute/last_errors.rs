//! Keeps the end of what a snippet writes to its standard error, to report it if the snippet fails.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How many bytes of a snippet's standard error are kept: long enough for the last line, which is reported.
const KEPT_ERRORS: usize = 2048;
/// Capacity of a pipe, in bytes.
const PIPE_CAPACITY: usize = 64 << 10;
/// How many bytes are read from the pipe at once.
const CHUNK: usize = 4096;

/// Keeps the end of what is written to a pipe. A thread reads the pipe, so that writers never wait.
#[derive(Debug, Clone)]
pub struct LastErrors {
    pipe: Arc<Mutex<File>>,
    /// The last bytes, at most `KEPT_ERRORS`.
    kept: Arc<Mutex<VecDeque<u8>>>,
    /// Whether everything is copied to the agent's own standard error.
    is_copied: bool,
}

impl LastErrors {
    /// Begins to read `pipe`. `is_copied`: whether everything is copied to the agent's own standard error.
    pub fn read_from(pipe: OwnedFd, is_copied: bool) -> io::Result<LastErrors> {
        // The thread polls this copy of the descriptor. So it does not hold the lock of the pipe while it waits.
        let polled_pipe = pipe.try_clone()?;
        let last = LastErrors {
            pipe: Arc::new(Mutex::new(File::from(pipe))),
            kept: Arc::default(),
            is_copied,
        };
        let reader = last.clone();
        std::thread::Builder::new()
            // Little memory is enough: the thread's stack holds one chunk of 4096 bytes.
            .stack_size(64 * 1024)
            .spawn(move || while is_readable(&polled_pipe, PollTimeout::NONE) && reader.read_chunk() {})?;
        Ok(last)
    }

    /// Reads everything that was written before this call, but not more than the pipe can hold: a process in the
    /// background may write without end.
    pub fn drain(&self) {
        for _ in 0..PIPE_CAPACITY / CHUNK {
            let is_readable = self
                .pipe
                .lock()
                .is_ok_and(|pipe| is_readable(&*pipe, PollTimeout::ZERO));
            if !is_readable || !self.read_chunk() {
                return;
            }
        }
    }

    /// Drops what is kept, before another snippet begins.
    pub fn forget(&self) {
        self.drain();
        if let Ok(mut kept) = self.kept.lock() {
            kept.clear();
        }
    }

    /// The end of everything that was written before this call.
    pub fn text(&self) -> String {
        self.drain();
        let kept = self
            .kept
            .lock()
            .map(|kept| kept.iter().copied().collect::<Vec<u8>>())
            .unwrap_or_default();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    /// Reads from the pipe if something is there, without waiting. Returns false if the pipe has ended or
    /// failed. There are two readers, the thread and `drain`; the lock keeps them apart.
    fn read_chunk(&self) -> bool {
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
        if self.is_copied {
            // If the log cannot be written, there is no place to report that.
            let _ = io::stderr().write_all(&chunk[..count]);
        }
        kept.extend(&chunk[..count]);
        let surplus = kept.len().saturating_sub(KEPT_ERRORS);
        kept.drain(..surplus);
        true
    }
}

/// Whether there is something to read, or the pipe is closed.
fn is_readable(pipe: impl AsFd, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut fds, timeout) {
            Err(nix::errno::Errno::EINTR) => {}
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}
