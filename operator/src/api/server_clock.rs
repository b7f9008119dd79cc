//! The API server's clock. Kubernetes writes all times by it, and this process's clock may differ.

use std::sync::atomic::{AtomicI64, Ordering};

use http::HeaderMap;
use http::header::DATE;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;

/// How many microseconds the API server's clock is ahead of this process's, by the last answer with a header `Date`.
/// Before that answer, 0.
#[derive(Debug, Default)]
pub struct ServerClock(AtomicI64);

impl ServerClock {
    /// Notes the time in the header `Date` of an answer that has just begun. If it has none that can be read, nothing
    /// changes.
    pub fn note(&self, answer: &HeaderMap) {
        let time = answer
            .get(DATE)
            .and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        if let Some(time) = time {
            let ahead = time.as_microsecond() - Timestamp::now().as_microsecond();
            self.0.store(ahead, Ordering::Relaxed);
        }
    }

    /// The time by the API server's clock. It is never ahead of that clock, so no deadline ends too early. It may be behind
    /// by up to a second and the time that the answer took: the header has whole seconds, rounded down.
    pub fn now(&self) -> Timestamp {
        let own = Timestamp::now();
        let ahead = self.0.load(Ordering::Relaxed);
        Timestamp::from_microsecond(own.as_microsecond().saturating_add(ahead)).unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;
    use crate::testing;

    fn date(text: &str) -> HeaderMap {
        HeaderMap::from_iter([(DATE, text.parse().unwrap())])
    }

    #[test]
    fn clock_follows_dates_of_answers_and_is_never_ahead() {
        let clock = ServerClock::default();
        let behind = |time: Timestamp| time.duration_since(clock.now());
        let second = SignedDuration::from_secs(1);
        for header in [HeaderMap::new(), date("soon"), date("2026-11-30T00:00:00Z")] {
            clock.note(&header);
            assert!(behind(Timestamp::now()).abs() < second, "{header:?}");
        }
        for hours in [3, -3] {
            let ahead = SignedDuration::from_hours(hours);
            clock.note(&testing::date(Timestamp::now() + ahead));
            // An answer without a readable date takes nothing back.
            clock.note(&date("soon"));
            let behind = behind(Timestamp::now() + ahead);
            assert!(!behind.is_negative() && behind < second * 2, "{behind:?}");
        }
    }
}
