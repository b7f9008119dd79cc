//! Holds back a stop in a sidecar for a while, once Flux has ended by itself. The sidecar's command may then end by
//! itself too.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{DUPLICATE_STOP_WITHIN, Stop};

/// Holds back a stop that comes within `longest` after the file `note` was written. The stop counts when that time is
/// over, or when a second signal arrives.
#[derive(Debug)]
pub struct Hold {
    /// File that the container with Flux writes when Flux has ended.
    note: PathBuf,
    longest: Duration,
    /// The stop that is held back, and until when.
    held: Option<(Stop, Instant)>,
}

impl Hold {
    pub fn new(note: PathBuf, longest: Duration) -> Hold {
        Hold {
            note,
            longest,
            held: None,
        }
    }

    /// Until when a stop is held back, if one is.
    pub fn until(&self) -> Option<Instant> {
        self.held.map(|(_, until)| until)
    }

    /// Ends the hold and returns the stop that was held back, if there was one.
    pub fn take(&mut self) -> Option<Stop> {
        self.held.take().map(|(stop, _)| stop)
    }

    /// Handles a stop that has just arrived. Returns the stop that counts now: this one if it is not held back, the
    /// earlier one if this is a second signal. Returns none if a stop is held back, or if this is a duplicate of it.
    pub fn receive(&mut self, stop: Stop) -> Option<Stop> {
        if let Some((first, _)) = self.held {
            return if first.at.elapsed() < DUPLICATE_STOP_WITHIN {
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

    /// How long a stop may still be held back. None if there is no note yet, or no time is left.
    fn time_left(&self) -> Option<Duration> {
        let written = std::fs::metadata(&self.note)
            .and_then(|metadata| metadata.modified())
            .ok()?;
        // If the clock was set back, the note's time is in the future: it then counts as just written.
        let elapsed = written.elapsed().unwrap_or_default();
        self.longest.checked_sub(elapsed).filter(|left| !left.is_zero())
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
    fn stop_counts_at_once_without_a_note_and_after_the_hold_time() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("ended");
        let longest = Duration::from_secs(60);
        assert!(Hold::new(note.clone(), longest).receive(stop()).is_some());
        let file = std::fs::File::create(&note).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * longest)
            .unwrap();
        assert!(Hold::new(note.clone(), longest).receive(stop()).is_some());
        file.set_modified(std::time::SystemTime::now()).unwrap();
        let mut hold = Hold::new(note, longest);
        assert!(hold.receive(stop()).is_none() && hold.until().is_some());
        assert!(hold.receive(stop()).is_none(), "the same stop, sent twice");
        hold.held.as_mut().unwrap().0.at -= DUPLICATE_STOP_WITHIN;
        assert!(
            hold.receive(stop()).is_some() && hold.until().is_none(),
            "a second signal"
        );
    }
}
