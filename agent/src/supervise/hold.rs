//! A stop that is held back for a while, since Flux has ended by itself and what runs here may, too.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{SAME_WISH, Stop};

/// A stop within `most` after the file `note` was written is held back until then; a second signal ends that.
#[derive(Debug)]
pub struct Hold {
    note: PathBuf,
    most: Duration,
    held: Option<(Stop, Instant)>,
}

impl Hold {
    pub fn new(note: PathBuf, most: Duration) -> Hold {
        Hold {
            note,
            most,
            held: None,
        }
    }

    /// Until when a stop is held back, if one is.
    pub fn until(&self) -> Option<Instant> {
        self.held.map(|(_, until)| until)
    }

    /// The stop that was held back.
    pub fn take(&mut self) -> Option<Stop> {
        self.held.take().map(|(stop, _)| stop)
    }

    /// A stop has come: the stop that counts now, if one does.
    pub fn receive(&mut self, stop: Stop) -> Option<Stop> {
        if let Some((first, _)) = self.held {
            return if first.at.elapsed() < SAME_WISH {
                None
            } else {
                self.take()
            };
        }
        let Some(left) = self.time_left() else {
            return Some(stop);
        };
        tracing::info!(
            stage = "stop",
            "Flux has ended: the command has {:.1} s to end by itself",
            left.as_secs_f64()
        );
        self.held = Some((stop, stop.at + left));
        None
    }

    fn time_left(&self) -> Option<Duration> {
        let written = std::fs::metadata(&self.note)
            .and_then(|about| about.modified())
            .ok()?;
        // A note of the future is one of a clock that was set back.
        let since = written.elapsed().unwrap_or_default();
        self.most.checked_sub(since).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop() -> Stop {
        Stop {
            signal: libc::SIGTERM,
            at: Instant::now(),
        }
    }

    #[test]
    fn stop_counts_at_once_without_a_note_and_after_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("ended");
        let most = Duration::from_secs(60);
        assert!(Hold::new(note.clone(), most).receive(stop()).is_some());
        let file = std::fs::File::create(&note).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * most)
            .unwrap();
        assert!(Hold::new(note.clone(), most).receive(stop()).is_some());
        file.set_modified(std::time::SystemTime::now()).unwrap();
        let mut hold = Hold::new(note, most);
        assert!(hold.receive(stop()).is_none() && hold.until().is_some());
        assert!(hold.receive(stop()).is_none(), "the same wish, sent twice");
        hold.held.as_mut().unwrap().0.at -= SAME_WISH;
        assert!(
            hold.receive(stop()).is_some() && hold.until().is_none(),
            "a second signal"
        );
    }
}
