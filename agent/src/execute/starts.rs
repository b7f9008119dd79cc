//! The record of a container's starts, on the pod's volume, in a folder of the agent's alone: whether the program has
//! begun, and how it ended. A container that is started again (after a crash of the node, or `restartPolicy: OnFailure`) so
//! knows what must not happen twice.
//!
//! ```text
//! started ─► the broker, the program ─► ended CODE ─► what failed after it
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use flux_shared::exit::Category;

use super::{Executor, Flow};
use crate::failure::Failure;
use crate::plan::{Mode, Owner};

const STARTED: &str = "started\n";
const ENDED: &str = "ended ";

/// What is known of the last start.
#[derive(Debug, PartialEq, Eq)]
enum Earlier {
    None,
    Started,
    Ended { code: u8, after: String },
}

/// Where it is kept.
#[derive(Debug)]
pub struct Record(PathBuf);

impl Record {
    fn read(&self) -> io::Result<Earlier> {
        let text = match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Earlier::None),
            text => text?,
        };
        Ok(parse(&text))
    }

    /// Before the program: on the disk when this returns.
    pub fn start(&self) -> Result<(), Failure> {
        self.put(STARTED).map_err(|error| Failure::write("write", &self.0, &error))
    }

    pub fn end(&self, code: u8) -> io::Result<()> {
        self.put(&format!("{STARTED}{ENDED}{code}\n"))
    }

    /// What failed after the program's end.
    pub fn add(&self, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).open(&self.0)?;
        file.write_all(format!("{}\n", text.replace('\n', " ")).as_bytes())?;
        file.sync_all()
    }

    /// A whole file in the place of the one before.
    fn put(&self, text: &str) -> io::Result<()> {
        let beside = self.0.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &self.0)?;
        File::open(self.0.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}

/// Half a record is one of a start.
fn parse(text: &str) -> Earlier {
    let ended = text.strip_prefix(STARTED).and_then(|rest| rest.strip_prefix(ENDED)?.split_once('\n'));
    match ended.map(|(code, after)| (code.parse(), after.trim().to_owned())) {
        Some((Ok(code), after)) => Earlier::Ended { code, after },
        _ => Earlier::Started,
    }
}

impl Executor<'_> {
    /// Whether to go on, by what the record says of an earlier start.
    pub(super) fn once(&mut self, record: &str, again: bool) -> Result<Flow, Failure> {
        let real = self.files.at(record);
        let folder = Path::new(record).parent().and_then(Path::to_str).unwrap_or("/");
        let own = Owner { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() };
        self.files.directory(folder, Mode(0o700), own)?;
        let record = Record(real);
        let earlier = record.read().map_err(|error| Failure::write("read", &record.0, &error))?;
        match earlier {
            Earlier::Started if !again => {
                let cause = "this container was started again, and its program may have run";
                return Err(Failure::new(Category::LeadLost, cause, "restartPolicy OnFailure would let it run again"));
            }
            Earlier::Ended { code, after } if code == 0 || !again => {
                let line = format!("the program ended with code {code} before this container was started again");
                self.log.info("plan", &line);
                self.ending.program = Some((code, Instant::now()));
                self.ending.note(line);
                if !after.is_empty() {
                    self.ending.note(after);
                }
                return Ok(Flow::Exit(code));
            }
            _ => {}
        }
        self.record = Some(record);
        Ok(Flow::Next)
    }

    /// How the program ended. The result stands without this note: it is told, and passed over.
    pub(super) fn note_end(&mut self, code: u8) {
        if let Some(Err(error)) = self.record.as_ref().map(|record| record.end(code)) {
            self.log.error("plan", &format!("failed to note the program's end: {}", crate::failure::plain(&error)));
        }
    }

    /// What failed after a program that had ended with 0, for the next start of this container.
    pub(super) fn note_what_followed(&self, result: &Result<u8, Failure>) {
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
    fn a_record_tells_how_far_a_start_came() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record(folder.path().join("starts"));
        assert_eq!(record.read().unwrap(), Earlier::None);
        record.start().unwrap();
        assert_eq!(record.read().unwrap(), Earlier::Started);
        record.end(7).unwrap();
        assert_eq!(record.read().unwrap(), Earlier::Ended { code: 7, after: String::new() });
        record.add("the snippet post\nfailed").unwrap();
        assert_eq!(record.read().unwrap(), Earlier::Ended { code: 7, after: "the snippet post failed".into() });
        record.start().unwrap();
        assert_eq!(record.read().unwrap(), Earlier::Started);
        for half in ["", "sta", "started\nended ", "started\nended 7", "started\nended x\n", "started\nended 256\n"] {
            assert_eq!(parse(half), Earlier::Started, "{half:?}");
        }
    }
}
