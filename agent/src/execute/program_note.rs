//! The note on how the lead's program began and ended. `flux-agent program` writes it, and `flux-agent stop` its line
//! `shut down`. The entrypoint, `stop` and `status` read it.
//!
//! ```text
//! started
//! ended CODE
//! node-failure     (only if Flux ended the job because a node was lost)
//! aborted          (only if Flux told the program to end: after a stop or `flux shutdown`)
//! shut down        (only if somebody shut the instance down after the program had failed)
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::SystemTime;

const STARTED: &str = "started\n";
const ENDED: &str = "ended ";
const NODE_FAILURE: &str = "node-failure\n";
const ABORTED: &str = "aborted\n";
const SHUT_DOWN: &str = "shut down\n";

/// Notes that the program starts. Without this line, the instance counts as one that did not come up: so if this fails,
/// the program must not start.
pub fn note_start(path: &Path) -> io::Result<()> {
    append(path, STARTED).map(drop)
}

/// Notes how the program ended. An error is ignored: then the broker's end counts as the program's. The note is on the
/// disk when this returns, so that it survives a crash of the node.
/// `node_failure`: Flux ended the job because a node was lost. `is_aborted`: whether Flux has told the program to end.
pub fn note_end(path: &Path, code: u8, node_failure: bool, mut is_aborted: impl FnMut() -> bool) {
    let node_failure = if node_failure { NODE_FAILURE } else { "" };
    let was_aborted = is_aborted();
    let aborted = if was_aborted { ABORTED } else { "" };
    let written = append(path, &format!("{ENDED}{code}\n{node_failure}{aborted}"));
    let _ = written.and_then(|file| file.sync_all());
    // The sync may take seconds. Flux accepts a shutdown meanwhile: this process, its initial program, still runs.
    if !was_aborted && is_aborted() {
        let _ = append_after_end(path, ABORTED);
    }
}

/// Notes that somebody shut the instance down after the program had ended. With `restartPolicy: OnFailure` it then does
/// not run again.
pub fn note_shutdown(path: &Path) -> io::Result<()> {
    append_after_end(path, SHUT_DOWN)
}

/// Appends to the note of a program that has ended. The time of the note stays that of the program's end.
fn append_after_end(path: &Path, text: &str) -> io::Result<()> {
    let ended_at = std::fs::metadata(path)?.modified()?;
    append(path, text)?.set_modified(ended_at)
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
    /// Whether Flux ended the job because a node was lost, and there was no stop and no shutdown of the instance.
    pub node_failure: bool,
    /// Whether Flux told the program to end.
    pub is_aborted: bool,
    /// Whether somebody shut the instance down after the program had ended.
    pub is_shut_down: bool,
    /// When the program started, or ended.
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
    let why = ended.map_or("", |(_, why)| why);
    let has = |line: &str| why.split_inclusive('\n').any(|other| other == line);
    let (is_aborted, is_shut_down) = (has(ABORTED), has(SHUT_DOWN));
    Some(ProgramNote {
        code,
        node_failure: has(NODE_FAILURE) && !is_aborted && !is_shut_down,
        is_aborted,
        is_shut_down,
        at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_says_why_the_program_ended() {
        let path = tempfile::NamedTempFile::new().unwrap();
        // The order to end may come before the program's end is noted, or while the note is synced.
        for (has_lost_node, aborted_before, aborted_meanwhile) in [
            (false, false, false),
            (false, false, true),
            (false, true, true),
            (true, false, false),
            (true, false, true),
            (true, true, true),
        ] {
            std::fs::write(&path, "").unwrap();
            note_start(path.path()).unwrap();
            let mut ended_at = None;
            note_end(path.path(), 3, has_lost_node, || {
                let note = read_note(path.path()).unwrap();
                ended_at = note.code.map(|_| note.at);
                // The clock of file times has long ticks.
                std::thread::sleep(std::time::Duration::from_millis(20));
                if note.code.is_some() {
                    aborted_meanwhile
                } else {
                    aborted_before
                }
            });
            let note = read_note(path.path()).unwrap();
            let (node_failure, is_aborted) = (has_lost_node && !aborted_meanwhile, aborted_meanwhile);
            assert_eq!(
                (note.code, note.node_failure, note.is_aborted),
                (Some(3), node_failure, is_aborted)
            );
            assert!(ended_at.is_none_or(|at| at == note.at));
            note_shutdown(path.path()).unwrap();
            let later = read_note(path.path()).unwrap();
            assert_eq!(
                (later.code, later.node_failure, later.is_aborted),
                (Some(3), false, is_aborted)
            );
            assert_eq!((note.is_shut_down, later.is_shut_down), (false, true));
            assert_eq!(note.at, later.at);
        }
    }
}
