//! Log lines about a wait.

use std::time::{Duration, Instant};

/// Time between two lines.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Logs a wait: the first line after one second, then one every ten seconds at most.
#[derive(Debug)]
pub struct Reporter {
    begin: Instant,
    /// When the next line is due.
    next: Instant,
}

impl Reporter {
    /// `begin`: when the wait began.
    pub fn new(begin: Instant) -> Reporter {
        Reporter {
            begin,
            next: begin + Duration::from_secs(1),
        }
    }

    /// If a line is due, logs that the agent still waits for `what`, and what is `missing`. `what`: the path of a
    /// socket, or a host name. The final dot of an absolute host name is left out.
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
