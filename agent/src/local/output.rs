//! Prints the output of the containers. The lead's output is unchanged. Each line of another container begins with the
//! container's name.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread::JoinHandle;

/// The largest number of bytes in a line without its prefix, to bound the memory. Longer lines are split.
const LONGEST: u64 = 64 << 10;

/// Where a stream is copied to: this process's standard output or standard error.
#[derive(Debug, Clone, Copy)]
pub enum To {
    Output,
    Errors,
}

impl To {
    fn write(self, bytes: &[u8]) {
        // Errors are ignored: the pods go on, even if nobody reads their output any more.
        let _ = match self {
            To::Output => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
            To::Errors => io::stderr().write_all(bytes),
        };
    }
}

/// Copies `from` to `to` in a thread, until the last writer has closed `from`. `name` is written before each line;
/// none: the output is unchanged.
pub fn copy(from: impl Read + Send + 'static, to: To, name: Option<String>) -> io::Result<JoinHandle<()>> {
    let work = move || match name {
        None => plain(from, to),
        Some(name) => prefixed(from, to, &format!("{name} | ")),
    };
    std::thread::Builder::new().stack_size(128 << 10).spawn(work)
}

fn plain(mut from: impl Read, to: To) {
    let mut chunk = vec![0; 16 << 10];
    while let Some(count) = from.read(&mut chunk).ok().filter(|count| *count > 0) {
        to.write(&chunk[..count]);
    }
}

fn prefixed(from: impl Read, to: To, prefix: &str) {
    let mut lines = BufReader::new(from);
    loop {
        let mut line = prefix.as_bytes().to_vec();
        match lines.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        to.write(&line);
    }
}
