//! The API server's clock. The operator needs it to compare the current time with the end of a Job.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::{Timestamp, ToSpan};
use tokio::sync::Mutex;

use crate::reconcile::apply::Writer;

/// How long a measured difference between the clocks is used.
const SKEW_VALID_FOR: Duration = Duration::from_secs(600);

/// How many seconds the API server's clock is ahead of ours, and when this was measured. None: not measured yet.
#[derive(Debug, Default)]
pub struct ServerClock(Mutex<Option<(i64, Instant)>>);

impl ServerClock {
    /// The time by the API server's clock, or by ours if the API server cannot be asked. One measurement serves all
    /// MiniClusters for ten minutes.
    pub async fn now(&self, writer: &Writer, namespace: &str) -> Timestamp {
        let mut skew = self.0.lock().await;
        let (ours, asked_now) = (Timestamp::now(), Instant::now());
        let known = skew.filter(|(_, asked)| asked_now.saturating_duration_since(*asked) < SKEW_VALID_FOR);
        let seconds = match known {
            Some((seconds, _)) => seconds,
            None => match writer.server_time(namespace).await {
                Ok(Some(server)) => {
                    let seconds = server.as_second() - ours.as_second();
                    *skew = Some((seconds, asked_now));
                    seconds
                }
                Ok(None) => 0,
                Err(error) => {
                    crate::health::log::warn("failed to ask for the API server's time", &error);
                    0
                }
            },
        };
        ours.checked_add(seconds.seconds()).unwrap_or(ours)
    }
}
