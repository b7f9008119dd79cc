//! The API server's clock. The operator needs it to compare the current time with the end of a Job.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::{Timestamp, ToSpan};

use crate::reconcile::apply::Writer;

/// How long a measured difference between the clocks is used.
const SKEW_VALID_FOR: Duration = Duration::from_secs(600);

/// For how long our own clock is used after the API server could not be asked.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// How far the API server's clock is ahead of ours. None: not measured yet.
#[derive(Debug, Default)]
pub struct ServerClock(Mutex<Option<Skew>>);

#[derive(Debug, Clone, Copy)]
struct Skew {
    seconds: i64,
    valid_until: Instant,
}

impl ServerClock {
    /// The time by the API server's clock, or by ours if the API server could never be asked. One measurement serves
    /// all MiniClusters for ten minutes. If it fails, the next one is tried after a minute, so that a slow webhook of
    /// one namespace does not delay all others.
    pub async fn now(&self, writer: &Writer, namespace: &str) -> Timestamp {
        let known = self.skew().filter(|skew| Instant::now() < skew.valid_until);
        let seconds = match known {
            Some(skew) => skew.seconds,
            // The lock is not held during the call. So several reconciles may measure at the same time.
            None => self.measure(writer, namespace).await,
        };
        let ours = Timestamp::now();
        ours.checked_add(seconds.seconds()).unwrap_or(ours)
    }

    fn skew(&self) -> MutexGuard<'_, Option<Skew>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures how many seconds the API server's clock is ahead of ours. If that fails, returns the last value, or 0.
    async fn measure(&self, writer: &Writer, namespace: &str) -> i64 {
        let begin = Timestamp::now();
        let measured = match writer.server_time(namespace).await {
            Ok(server) => server.map(|server| server.as_second() - begin.as_second()),
            Err(error) => {
                crate::health::log::warn("failed to ask for the API server's time", &error);
                None
            }
        };
        self.note(measured, Instant::now())
    }

    /// Notes how many seconds the API server's clock is ahead; None if it could not be asked. Returns the seconds to
    /// use.
    fn note(&self, measured: Option<i64>, now: Instant) -> i64 {
        let mut skew = self.skew();
        // Another reconcile may have measured meanwhile: a failure replaces no value that is still valid.
        match (measured, *skew) {
            (None, Some(known)) if now < known.valid_until => known.seconds,
            (None, known) => {
                let seconds = known.map_or(0, |known| known.seconds);
                let valid_until = now + PAUSE_AFTER_FAILURE;
                skew.insert(Skew { seconds, valid_until }).seconds
            }
            (Some(seconds), _) => {
                let valid_until = now + SKEW_VALID_FOR;
                skew.insert(Skew { seconds, valid_until }).seconds
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_measurement_replaces_no_measured_skew() {
        let (clock, begin) = (ServerClock::default(), Instant::now());
        let is_valid = |after: Duration| clock.skew().is_some_and(|skew| begin + after < skew.valid_until);
        assert_eq!(clock.note(None, begin), 0);
        assert!(is_valid(PAUSE_AFTER_FAILURE / 2) && !is_valid(PAUSE_AFTER_FAILURE));
        assert_eq!(clock.note(Some(7200), begin), 7200);
        // A call that began before that one, and fails later.
        assert_eq!(clock.note(None, begin + PAUSE_AFTER_FAILURE), 7200);
        assert!(is_valid(SKEW_VALID_FOR / 2));
        assert_eq!(clock.note(None, begin + SKEW_VALID_FOR), 7200, "the last one");
        assert!(is_valid(SKEW_VALID_FOR));
    }
}
