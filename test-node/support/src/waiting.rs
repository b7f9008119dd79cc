//! Polls until a condition holds, for programs that run beside a test.

use std::time::{Duration, Instant};

/// Longer than anything takes, even while others build on the machine: it ends a hang, and no result depends
/// on it.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Waits until `found` returns something; panics with `what` after `DEADLINE`.
pub fn eventually<T>(what: &str, found: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, what, found)
}

/// Like [`eventually`], with another deadline.
pub fn within<T>(deadline: Duration, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(begin.elapsed() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
