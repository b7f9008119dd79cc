//! The record of a container's starts, on the pod's volume, in a folder that only the agent uses: how often
//! the program has started, and how it ended. From it a restarted container (after a crash of the node, or
//! `restartPolicy: OnFailure`) knows whether the program may run again, within `backoffLimit`.
//!
//! ```text
//! started TIMES ─► the broker, the program ─► ended CODE ─► what failed after it
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::report::failure::Failure;

const STARTED: &str = "started ";
const ENDED: &str = "ended ";

/// What is known of earlier starts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EarlierStarts {
    pub starts: u32,
    /// The last one's code, and what failed after it.
    pub end: Option<(u8, String)>,
}

/// The record's file, and the number of this start.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    start: u32,
}

impl Record {
    pub fn new(path: PathBuf, start: u32) -> Record {
        Record { path, start }
    }

    /// The record at `path`, of the start after those that it holds.
    pub fn next(path: PathBuf) -> Result<Record, Failure> {
        let start = read(&path)?.starts + 1;
        Ok(Record::new(path, start))
    }

    pub fn start(&self) -> Result<(), Failure> {
        let text = format!("{STARTED}{}\n", self.start);
        self.put(&text)
            .map_err(|error| Failure::write("write", &self.path, &error))
    }

    pub fn end(&self, code: u8) -> io::Result<()> {
        self.put(&format!("{STARTED}{}\n{ENDED}{code}\n", self.start))
    }

    /// Adds what failed after the program's end.
    pub fn add(&self, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(&self.path)?;
        file.write_all(format!("{}\n", text.replace('\n', " ")).as_bytes())?;
        file.sync_all()
    }

    /// Replaces the file by a whole new one.
    fn put(&self, text: &str) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
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

/// Parses a record; one that is cut off counts as one start.
fn parse(text: &str) -> EarlierStarts {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let starts = first
        .strip_prefix(STARTED)
        .and_then(|number| number.parse().ok())
        .unwrap_or(1);
    let end = rest.strip_prefix(ENDED).and_then(|rest| {
        let (code, after) = rest.split_once('\n')?;
        Some((code.parse().ok()?, after.trim().to_owned()))
    });
    EarlierStarts { starts, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_record_has_the_count_and_the_last_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("starts");
        let ended = |starts, code, after: &str| EarlierStarts {
            starts,
            end: Some((code, after.to_owned())),
        };
        assert_eq!(read(&path).unwrap(), EarlierStarts::default());
        let record = Record::new(path.clone(), 3);
        record.start().unwrap();
        assert_eq!(read(&path).unwrap(), EarlierStarts { starts: 3, end: None });
        record.end(7).unwrap();
        assert_eq!(read(&path).unwrap(), ended(3, 7, ""));
        record.add("the snippet post\nfailed").unwrap();
        assert_eq!(read(&path).unwrap(), ended(3, 7, "the snippet post failed"));
        record.start().unwrap();
        assert_eq!(read(&path).unwrap(), EarlierStarts { starts: 3, end: None });
        for half in [
            "",
            "sta",
            "started 1\nended ",
            "started 1\nended 7",
            "started 1\nended x\n",
            "started 1\nended 256\n",
        ] {
            assert_eq!(parse(half), EarlierStarts { starts: 1, end: None }, "{half:?}");
        }
    }
}
