//! The note on how the lead's program began and ended. `flux-agent program` writes it, the entrypoint reads it.
//!
//! ```text
//! started
//! ended CODE
//! node-failure     (only if Flux ended the job because a node was lost)
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::SystemTime;

const STARTED: &str = "started\n";
const ENDED: &str = "ended ";
const NODE_FAILURE: &str = "node-failure\n";

/// Notes that the program starts. Without this line, the instance counts as one that did not come up: so if this fails,
/// the program must not start.
pub fn note_start(path: &Path) -> io::Result<()> {
    append(path, STARTED).map(drop)
}

/// Notes how the program ended. An error is ignored: then the broker's end counts as the program's. The note is on the
/// disk when this returns, so that it survives a crash of the node.
/// `node_failure`: Flux ended the job because a node was lost.
pub fn note_end(path: &Path, code: u8, node_failure: bool) {
    let node_failure = if node_failure { NODE_FAILURE } else { "" };
    let written = append(path, &format!("{ENDED}{code}\n{node_failure}"));
    let _ = written.and_then(|file| file.sync_all());
}

/// Appends to the note. The entrypoint has created it, for Flux's user.
fn append(path: &Path, text: &str) -> io::Result<File> {
    let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// What a note says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramNote {
    /// The program's exit code; none: the program has not ended.
    pub code: Option<u8>,
    /// Whether Flux ended the job because a node was lost.
    pub node_failure: bool,
    /// When the note was last written.
    pub at: SystemTime,
}

/// Reads the note. None: no note says that the program started.
pub fn read_note(path: &Path) -> Option<ProgramNote> {
    // The job's user may write to this file, so its size is limited: a note is shorter than 256 bytes.
    let mut text = String::new();
    let file = File::open(path).ok()?;
    let at = file.metadata().and_then(|data| data.modified()).ok()?;
    file.take(256).read_to_string(&mut text).ok()?;
    let rest = text.strip_prefix(STARTED)?;
    let ended = rest.strip_prefix(ENDED).and_then(|rest| rest.split_once('\n'));
    let code = ended.and_then(|(code, _)| code.parse().ok());
    Some(ProgramNote {
        code,
        node_failure: ended.is_some_and(|(_, after)| after == NODE_FAILURE),
        at,
    })
}
