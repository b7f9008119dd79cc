//! Log lines that say what is waited for.

use std::time::{Duration, Instant};

/// Time between two lines.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Logs a wait: the first line after one second, then one every ten seconds at most.
#[derive(Debug)]
pub struct Reporter {
    begin: Instant,
    next: Instant,
}

impl Reporter {
    pub fn new(begin: Instant) -> Reporter {
        Reporter {
            begin,
            next: begin + Duration::from_secs(1),
        }
    }

    /// Says that `what` is still waited for, if a line is due.
    pub fn tick(&mut self, what: &str, missing: &str) {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + REPORT_EVERY;
            let waited = now.duration_since(self.begin).as_secs();
            tracing::info!(
                stage = "connect",
                "waiting for {} ({waited} s): {missing}",
                what.trim_end_matches('.')
            );
        }
    }
}
