//! The API server's clock, by which Jobs end.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::{Timestamp, ToSpan};
use tokio::sync::Mutex;

use crate::reconcile::apply::Writer;

/// How long a measured difference between the clocks is used.
const CLOCK_KNOWN: Duration = Duration::from_secs(600);

/// How far the API server's clock is ahead of ours, in seconds, and when it was asked.
#[derive(Debug, Default)]
pub struct ServerClock(Mutex<Option<(i64, Instant)>>);

impl ServerClock {
    /// The time by the API server's clock; by ours if it cannot be asked. It is asked once in ten minutes,
    /// for all.
    pub async fn now(&self, writer: &Writer, namespace: &str) -> Timestamp {
        let mut skew = self.0.lock().await;
        let (ours, asked_now) = (Timestamp::now(), Instant::now());
        let known = skew.filter(|(_, asked)| asked_now.saturating_duration_since(*asked) < CLOCK_KNOWN);
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
