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
    /// The time by the API server's clock, or by ours if the API server could never be asked. One measurement serves all
    /// MiniClusters for ten minutes. If it fails, the next one is tried after a minute, so that a slow webhook of one
    /// namespace does not delay all others.
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
        let last = self.skew().map_or(0, |skew| skew.seconds);
        let (ours, begin) = (Timestamp::now(), Instant::now());
        let (seconds, valid_for) = match writer.server_time(namespace).await {
            Ok(Some(server)) => (server.as_second() - ours.as_second(), SKEW_VALID_FOR),
            Ok(None) => (last, PAUSE_AFTER_FAILURE),
            Err(error) => {
                crate::health::log::warn("failed to ask for the API server's time", &error);
                (last, PAUSE_AFTER_FAILURE)
            }
        };
        *self.skew() = Some(Skew {
            seconds,
            valid_until: begin + valid_for,
        });
        seconds
    }
}
