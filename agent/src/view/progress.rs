//! Logs the progress of a copy, so that a slow disk does not look like a hang: a line in each five seconds in which a
//! file was copied.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(5);

/// The progress of a copy by several threads.
#[derive(Debug)]
pub struct Progress {
    /// Bytes to copy.
    total: u64,
    begin: Instant,
    /// Bytes that were copied.
    done: AtomicU64,
    /// Number of the last interval of five seconds for which a line was logged.
    reported: AtomicU64,
}

impl Progress {
    /// The progress of a copy of `total` bytes.
    pub fn new(total: u64) -> Progress {
        Progress {
            total,
            begin: Instant::now(),
            done: AtomicU64::new(0),
            reported: AtomicU64::new(0),
        }
    }

    /// Adds copied bytes; logs a line if one is due.
    pub fn add(&self, bytes: u64) {
        if let Some(line) = self.line(bytes, self.begin.elapsed()) {
            tracing::info!(stage = "view", "{line}");
        }
    }

    /// Adds copied bytes. The first call in a new interval of five seconds returns the line to log.
    fn line(&self, bytes: u64, elapsed: Duration) -> Option<String> {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let (seconds, interval) = (elapsed.as_secs(), elapsed.as_secs() / EVERY.as_secs());
        let is_first = self.reported.fetch_max(interval, Ordering::Relaxed) < interval;
        is_first.then(|| {
            format!(
                "copying Flux: {} of {} MB after {seconds} s",
                done / 1_000_000,
                self.total / 1_000_000
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_copy_reports_progress_every_five_seconds() {
        let progress = Progress::new(130_000_000);
        let line = |seconds| progress.line(13_000_000, Duration::from_secs(seconds));
        assert_eq!((line(1), line(4)), (None, None));
        assert_eq!(line(5).unwrap(), "copying Flux: 39 of 130 MB after 5 s");
        assert_eq!((line(6), line(9)), (None, None));
        assert_eq!(line(23).unwrap(), "copying Flux: 78 of 130 MB after 23 s");
    }
}
