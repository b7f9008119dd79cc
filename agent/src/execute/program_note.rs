//! The note on how the lead's program began and ended: `flux-agent program` writes it, the entrypoint reads
//! it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::SystemTime;

const STARTED: &str = "started\n";
const ENDED: &str = "ended ";
const NODE_FAILURE: &str = "node-failure\n";

/// Notes that the program starts. As at its end, errors are ignored: without a note, the broker's own end
/// counts.
pub fn note_start(path: &Path) {
    let _ = note(path, STARTED);
}

/// Notes how the program ended; the note is on the disk when this returns, for a container that is restarted
/// after a crash of its node.
pub fn note_end(path: &Path, code: u8, node_failure: bool) {
    let node_failure = if node_failure { NODE_FAILURE } else { "" };
    let noted = note(path, &format!("{ENDED}{code}\n{node_failure}"));
    let _ = noted.and_then(|file| file.sync_all());
}

/// Appends to the note.
fn note(path: &Path, text: &str) -> io::Result<File> {
    let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// How a program has ended, as its note says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    /// The exit code; none: the program has not ended.
    pub code: Option<u8>,
    pub node_failure: bool,
    /// When the note was written.
    pub at: SystemTime,
}

/// Reads the note; none if the program never started.
pub fn noted(path: &Path) -> Option<Noted> {
    // The job's user may write to it: no more is read than it should hold.
    let mut text = String::new();
    let file = File::open(path).ok()?;
    let at = file.metadata().and_then(|data| data.modified()).ok()?;
    file.take(256).read_to_string(&mut text).ok()?;
    let rest = text.strip_prefix(STARTED)?;
    let ended = rest.strip_prefix(ENDED).and_then(|rest| rest.split_once('\n'));
    let code = ended.and_then(|(code, _)| code.parse().ok());
    Some(Noted {
        code,
        node_failure: ended.is_some_and(|(_, after)| after == NODE_FAILURE),
        at,
    })
}
