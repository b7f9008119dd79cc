//! The delay between retries: exponential backoff.
//!
//! No crate is used: the rule is one line, and crates for retries come with a loop of their own, which signals and
//! watches cannot interrupt.

use std::time::Duration;

/// The delay after this many failures in a row (0 counts as 1): `first`, doubled for each further failure, at most
/// `longest`.
pub fn after(failures: u32, first: Duration, longest: Duration) -> Duration {
    // The limit of 20 keeps the shift in the range of u32.
    first
        .saturating_mul(1 << failures.saturating_sub(1).min(20))
        .min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_longest_delay() {
        let seconds = |failures| after(failures, Duration::from_secs(1), Duration::from_secs(30)).as_secs();
        assert_eq!(
            [0, 1, 2, 3, 5, 6, 7, u32::MAX].map(seconds),
            [1, 1, 2, 4, 16, 30, 30, 30]
        );
        assert_eq!(
            after(u32::MAX, Duration::MAX, Duration::MAX),
            Duration::MAX,
            "it cannot overflow"
        );
    }
}
