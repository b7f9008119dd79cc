//! The record of a container's starts, on the pod's volume, in a folder that only the agent uses: how often the program has
//! started, and how it ended. From it a restarted container (after a crash of the node, or `restartPolicy: OnFailure`) knows
//! whether the program may run again, within `backoffLimit`.
//!
//! ```text
//! started TIMES ─► the broker, the program ─► ended CODE ─► what failed after it
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use flux_shared::exit::Category;

use super::{Executor, Flow};
use crate::plan::{Mode, Owner};
use crate::report::failure::Failure;

const STARTED: &str = "started ";
const ENDED: &str = "ended ";

/// What is known of earlier starts.
#[derive(Debug, Default, PartialEq, Eq)]
struct EarlierStarts {
    starts: u32,
    /// The last one's code, and what failed after it.
    end: Option<(u8, String)>,
}

/// The record's file, and the number of this start.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    start: u32,
}

impl Record {
    pub fn start(&self) -> Result<(), Failure> {
        let text = format!("{STARTED}{}\n", self.start);
        self.put(&text).map_err(|error| Failure::write("write", &self.path, &error))
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

fn read(path: &Path) -> io::Result<EarlierStarts> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(EarlierStarts::default()),
        text => Ok(parse(&text?)),
    }
}

/// Parses a record; one that is cut off counts as one start.
fn parse(text: &str) -> EarlierStarts {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let starts = first.strip_prefix(STARTED).and_then(|number| number.parse().ok()).unwrap_or(1);
    let end = rest.strip_prefix(ENDED).and_then(|rest| {
        let (code, after) = rest.split_once('\n')?;
        Some((code.parse().ok()?, after.trim().to_owned()))
    });
    EarlierStarts { starts, end }
}

impl Executor<'_> {
    /// Whether to go on, by what the record says of earlier starts; the kubelet may restart the container `restarts` times.
    pub(super) fn check_earlier_starts(&mut self, record: &str, restarts: u32) -> Result<Flow, Failure> {
        let path = self.files.at(record);
        let folder = Path::new(record).parent().and_then(Path::to_str).unwrap_or("/");
        let own = Owner { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        self.files.ensure_directory(folder, Mode(0o700), own)?;
        let EarlierStarts { starts, end } = read(&path).map_err(|error| Failure::write("read", &path, &error))?;
        let is_last = starts > restarts;
        match end {
            Some((code, after)) if code == 0 || is_last => {
                let line = format!("the program ended with code {code} before this container was started again");
                tracing::info!(stage = "plan", "{line}");
                self.ending.program = Some((code, Instant::now()));
                self.ending.note(line);
                if restarts > 0 && code != 0 {
                    self.ending.note(format!("backoffLimit reached: start {starts} was the last"));
                }
                if !after.is_empty() {
                    self.ending.note(after);
                }
                return Ok(Flow::Exit(code));
            }
            None if is_last && restarts == 0 => {
                let cause = "this container was started again, and its program may have run";
                let remedy = "to let it run again, set restartPolicy: OnFailure and backoffLimit";
                return Err(Failure::new(Category::LeadLost, cause, remedy));
            }
            None if is_last => {
                let cause = format!("this container was started again, and its program may have run {starts} times");
                return Err(Failure::new(Category::LeadLost, cause, "to let it run again, raise backoffLimit"));
            }
            _ => {}
        }
        Ok(Flow::Next)
    }

    /// Records the start, before the program; it is on the disk when this returns. Retries within one start count once.
    pub(super) fn record_start(&mut self, record: &str) -> Result<(), Failure> {
        let record = match self.record.take() {
            Some(record) => record,
            None => {
                let path = self.files.at(record);
                let earlier = read(&path).map_err(|error| Failure::write("read", &path, &error))?;
                Record { path, start: earlier.starts + 1 }
            }
        };
        self.record.insert(record).start()
    }

    /// Records how the program ended. A failure is logged and ignored: the result stands without the record.
    pub(super) fn record_end(&mut self, code: u8) {
        if let Some(Err(error)) = self.record.as_ref().map(|record| record.end(code)) {
            tracing::warn!(
                stage = "plan",
                "failed to note the program's end: {}",
                crate::report::failure::plain(&error)
            );
        }
    }

    /// Records what failed after a program that had ended with 0, for the next start of this container.
    pub(super) fn record_what_followed(&self, result: &Result<u8, Failure>) {
        if let (Some(record), Some((0, _))) = (&self.record, self.ending.program)
            && !matches!(result, Ok(0))
        {
            let _ = record.add(&self.ending.termination(result).message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_how_far_the_last_start_came_and_how_many_there_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("starts");
        let ended = |starts, code, after: &str| EarlierStarts { starts, end: Some((code, after.to_owned())) };
        assert_eq!(read(&path).unwrap(), EarlierStarts::default());
        let record = Record { path: path.clone(), start: 3 };
        record.start().unwrap();
        assert_eq!(read(&path).unwrap(), EarlierStarts { starts: 3, end: None });
        record.end(7).unwrap();
        assert_eq!(read(&path).unwrap(), ended(3, 7, ""));
        record.add("the snippet post\nfailed").unwrap();
        assert_eq!(read(&path).unwrap(), ended(3, 7, "the snippet post failed"));
        record.start().unwrap();
        assert_eq!(read(&path).unwrap(), EarlierStarts { starts: 3, end: None });
        for half in
            ["", "sta", "started 1\nended ", "started 1\nended 7", "started 1\nended x\n", "started 1\nended 256\n"]
        {
            assert_eq!(parse(half), EarlierStarts { starts: 1, end: None }, "{half:?}");
        }
    }
}
