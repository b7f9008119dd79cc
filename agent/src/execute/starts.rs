//! Decides by the record of a container's earlier starts whether its program may run, and adds this start to the
//! record.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Instant;

use flux_agent_plan::plan::Mode;
use flux_shared::exit::Category;

use super::executor::{Executor, Flow};
use super::program_note::read_note;
use super::start_record::{self, EarlierStarts, LaterFailure, ProgramEnd, Record};
use crate::report::failure::{Failure, plain};

impl Executor<'_> {
    /// Decides whether this start of the container may run the program. It may not if an earlier start ended with
    /// 0 or because somebody shut the instance down, or if the program has run again `restarts` times. `record`: the
    /// file with the earlier starts. `result`: the program's note. If the record lacks the program's end, the note may
    /// still have it.
    pub(super) fn check_earlier_starts(
        &mut self,
        record: &str,
        result: &str,
        restarts: u32,
    ) -> Result<Flow, Failure> {
        let path = self.files.at(record);
        let folder = Path::new(record).parent().and_then(Path::to_str).unwrap_or("/");
        self.files
            .ensure_directory(folder, Mode(0o700), super::process_owner())?;
        let EarlierStarts {
            starts,
            was_stopped,
            end,
        } = start_record::read(&path)?;
        // Each start is recorded before the program runs. Without one, no program has run, and no note is read.
        let note = if starts > 0 {
            read_note(&self.files.at(result))
        } else {
            None
        };
        let unrecorded_code = match end {
            None => note.and_then(|note| note.code),
            Some(_) => None,
        };
        let end = end.or_else(|| {
            Some(ProgramEnd {
                code: unrecorded_code?,
                // A stop of the container also makes Flux tell the program to end.
                is_shut_down: note.is_some_and(|note| note.is_aborted) && !was_stopped,
                is_archive_saved: false,
                later: LaterFailure::default(),
            })
        });
        // Somebody may also have shut the instance down after the record was written, while the snippet `post` ran.
        let is_shut_down_later = note.is_some_and(|note| note.is_shut_down);
        let end = end.map(|end| ProgramEnd {
            is_shut_down: end.is_shut_down || is_shut_down_later,
            ..end
        });
        let was_last = starts > restarts;
        match end {
            Some(ProgramEnd {
                code,
                is_shut_down,
                is_archive_saved,
                later,
            }) if code == 0 || was_last || is_shut_down => {
                let line =
                    format!("the program ended with code {code} before this container was started again");
                tracing::info!(stage = "plan", "{line}");
                self.ending.is_shut_down = is_shut_down && code != 0;
                // Only the note has the code, so the record gets it now.
                if unrecorded_code.is_some() {
                    self.record = Some(Record::new(path, starts));
                    self.record_end(code);
                }
                // An end in an earlier start has no `Instant` here, so the present counts.
                self.ending.program = Some((code, Instant::now()));
                self.ending.is_node_failure = note.is_some_and(|note| note.node_failure);
                // After a shutdown of the instance, the status does not mention the container's restart.
                if !self.ending.is_shut_down {
                    self.ending.note(line);
                    if restarts > 0 && code != 0 {
                        self.ending
                            .note(format!("start {starts} was the last: backoffLimit reached"));
                    }
                }
                if let Some(snippet) = &later.snippet {
                    self.ending.note(snippet.to_string());
                }
                if !later.message.is_empty() {
                    self.ending.note(later.message);
                }
                // So the status goes on to report this snippet.
                self.ending.snippet = later.snippet;
                if is_archive_saved {
                    self.ending.archive_not_saved = None;
                }
                return Ok(Flow::Exit(code));
            }
            None if was_last && restarts == 0 => {
                let cause = "this container was started again, and its program may have run";
                let remedy = "to let it run again, set restartPolicy: OnFailure and backoffLimit";
                return Err(Failure::new(Category::LeadLost, cause, remedy));
            }
            None if was_last => {
                let cause =
                    format!("this container was started again, and its program may have run {starts} times");
                return Err(Failure::new(
                    Category::LeadLost,
                    cause,
                    "to let it run again, raise backoffLimit",
                ));
            }
            // The program runs, for the first time or again.
            _ => {}
        }
        // `flux-agent stop` and `status` would take the earlier start's note for the end of this start's program.
        let path = self.files.at(result);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Failure::write("remove", &path, &error))
            }
            _ => Ok(Flow::Next),
        }
    }

    /// Records this start before the program runs. The record is on the disk when this returns. A program that is
    /// retried within one start of the container counts once.
    pub(super) fn record_start(&mut self, record: &str) -> Result<(), Failure> {
        let record = match self.record.take() {
            Some(record) => record,
            None => Record::next(self.files.at(record))?,
        };
        self.record.insert(record).start()
    }

    /// Records how the program ended. A failure is logged and ignored: the result stands without the record.
    pub(super) fn record_end(&mut self, code: u8) {
        let is_shut_down = self.ending.is_shut_down;
        if let Some(Err(error)) = self.record.as_ref().map(|record| record.end(code, is_shut_down)) {
            tracing::warn!(
                stage = "plan",
                "failed to note the program's end: {}",
                plain(&error)
            );
        }
    }

    /// Records that the archive was saved. A failure is ignored: the next start of this container then reports that
    /// it was not saved.
    pub(super) fn record_saved_archive(&self) {
        let _ = self.record.as_ref().map(Record::add_saved_archive);
    }

    /// Records what failed after the program, for the next start of this container.
    pub(super) fn record_later_failure(&self, result: &Result<u8, Failure>) {
        let (Some(record), Some((code, _))) = (&self.record, self.ending.program) else {
            return;
        };
        let snippet = self.ending.snippet.clone();
        let has_ended_otherwise = !result.as_ref().is_ok_and(|result| *result == code);
        if snippet.is_some() || has_ended_otherwise {
            let message = self.ending.termination(result).message;
            let _ = record.add(&LaterFailure { snippet, message });
        }
    }
}
