//! The record of a container's starts: how often the program has started, and how it ended. By this record, a
//! restarted container (after a crash of the node, or with `restartPolicy: OnFailure`) knows whether the
//! program may run again, within `backoffLimit`. The file is on the pod's volume, in a folder that only the
//! agent uses. Its lines:
//!
//! ```text
//! started NUMBER                       written before the broker and the program start
//! stopped                              written at a stop of the container, before the program has ended
//! ended CODE                           written after the program has ended, in place of `stopped`
//! shut down                            written together with `ended CODE`, if somebody shut the instance down
//! archive saved                        written after the archive was saved
//! what failed after the program        written at the end of the container, as JSON
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::report::ending::EndedSnippet;
use crate::report::failure::Failure;

const STARTED: &str = "started ";
const STOPPED: &str = "stopped\n";
const ENDED: &str = "ended ";
const SHUT_DOWN: &str = "shut down\n";
const ARCHIVE_SAVED: &str = "archive saved\n";

/// What is known of earlier starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EarlierStarts {
    /// How many there were.
    pub starts: u32,
    /// Whether the container was stopped before its program had ended. False if `end` is known: its record replaces
    /// that of the stop.
    pub was_stopped: bool,
    /// How the program ended at the last one; none: its end is not recorded.
    pub end: Option<ProgramEnd>,
}

/// How the program ended.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramEnd {
    pub code: u8,
    /// Whether it ended because somebody shut the instance down.
    pub is_shut_down: bool,
    /// Whether the archive was saved after it.
    pub is_archive_saved: bool,
    /// What failed after it.
    pub later: LaterFailure,
}

/// What failed after the program.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterFailure {
    /// The snippet that failed.
    pub snippet: Option<EndedSnippet>,
    /// For people. Empty: nothing failed but the snippet.
    pub message: String,
}

/// The record's file, and the number of the start that it records.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    /// 1 for the first start.
    start: u32,
}

impl Record {
    pub fn new(path: PathBuf, start: u32) -> Record {
        Record { path, start }
    }

    /// The record for the start that follows those in the file `path`.
    pub fn next(path: PathBuf) -> Result<Record, Failure> {
        let start = read(&path)?.starts + 1;
        Ok(Record::new(path, start))
    }

    /// Records that the program starts.
    pub fn start(&self) -> Result<(), Failure> {
        let text = format!("{STARTED}{}\n", self.start);
        self.replace(&text)
            .map_err(|error| Failure::write("write", &self.path, &error))
    }

    /// Adds that the container was stopped before its program had ended. This does not wait for the disk: that
    /// would delay the stop signal to the broker. A node that shuts down writes the file to the disk by itself.
    pub fn add_stop(&self) -> io::Result<()> {
        self.open()?.write_all(STOPPED.as_bytes())
    }

    /// Records the program's exit code, and whether it ended because somebody shut the instance down.
    pub fn end(&self, code: u8, is_shut_down: bool) -> io::Result<()> {
        let why = if is_shut_down { SHUT_DOWN } else { "" };
        self.replace(&format!("{STARTED}{}\n{ENDED}{code}\n{why}", self.start))
    }

    /// Adds that the archive was saved.
    pub fn add_saved_archive(&self) -> io::Result<()> {
        self.append(ARCHIVE_SAVED)
    }

    /// Adds what failed after the program's end.
    pub fn add(&self, later: &LaterFailure) -> io::Result<()> {
        let line = serde_json::to_string(later)?;
        self.append(&format!("{line}\n"))
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().append(true).open(&self.path)
    }

    fn append(&self, text: &str) -> io::Result<()> {
        let mut file = self.open()?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Replaces the file. After a crash, it has either the old or the new text.
    fn replace(&self, text: &str) -> io::Result<()> {
        let temporary_path = self.path.with_extension("new");
        let mut file = File::create(&temporary_path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary_path, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}

/// What the record at `path` says; nothing if there is none.
pub fn read(path: &Path) -> Result<EarlierStarts, Failure> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(EarlierStarts::default()),
        Err(error) => Err(Failure::write("read", path, &error)),
    }
}

/// Parses a record. If the number of starts cannot be read, it counts as 1: only a start creates the file.
fn parse(text: &str) -> EarlierStarts {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let starts = first
        .strip_prefix(STARTED)
        .and_then(|number| number.parse().ok())
        .unwrap_or(1);
    let end = rest.strip_prefix(ENDED).and_then(|rest| {
        let (code, after) = rest.split_once('\n')?;
        let after_shutdown = after.strip_prefix(SHUT_DOWN);
        let after = after_shutdown.unwrap_or(after);
        let after_archive = after.strip_prefix(ARCHIVE_SAVED);
        Some(ProgramEnd {
            code: code.parse().ok()?,
            is_shut_down: after_shutdown.is_some(),
            is_archive_saved: after_archive.is_some(),
            // Without a line, nothing failed. A line that a crash has cut off counts as none.
            later: serde_json::from_str(after_archive.unwrap_or(after)).unwrap_or_default(),
        })
    });
    EarlierStarts {
        starts,
        was_stopped: rest.starts_with(STOPPED),
        end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_record_has_the_count_and_the_last_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("starts");
        let later = || LaterFailure {
            snippet: Some(EndedSnippet {
                name: "post".into(),
                code: 3,
                error: "no\nfile".into(),
            }),
            message: "it failed".into(),
        };
        let without_end = |starts, was_stopped| EarlierStarts {
            starts,
            was_stopped,
            end: None,
        };
        assert_eq!(read(&path).unwrap(), EarlierStarts::default());
        let record = Record::new(path.clone(), 3);
        for is_shut_down in [false, true] {
            let ended = |is_archive_saved, later| EarlierStarts {
                end: Some(ProgramEnd {
                    code: 7,
                    is_shut_down,
                    is_archive_saved,
                    later,
                }),
                ..without_end(3, false)
            };
            record.start().unwrap();
            assert_eq!(read(&path).unwrap(), without_end(3, false));
            record.add_stop().unwrap();
            record.add_stop().unwrap();
            assert_eq!(read(&path).unwrap(), without_end(3, true));
            record.end(7, is_shut_down).unwrap();
            assert_eq!(read(&path).unwrap(), ended(false, LaterFailure::default()));
            record.add_saved_archive().unwrap();
            assert_eq!(read(&path).unwrap(), ended(true, LaterFailure::default()));
            record.add(&later()).unwrap();
            assert_eq!(read(&path).unwrap(), ended(true, later()));
            record.end(7, is_shut_down).unwrap();
            record.add(&later()).unwrap();
            assert_eq!(read(&path).unwrap(), ended(false, later()));
        }
        Record::next(path.clone()).unwrap().start().unwrap();
        assert_eq!(read(&path).unwrap(), without_end(4, false));
        for half in [
            "",
            "sta",
            "started 1\nended ",
            "started 1\nended 7",
            "started 1\nended x\n",
            "started 1\nended 256\n",
        ] {
            assert_eq!(parse(half), without_end(1, false), "{half:?}");
        }
    }
}
