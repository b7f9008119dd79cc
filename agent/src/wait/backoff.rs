//! Pauses between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use flux_shared::backoff;

/// Pause after the first failed attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The usual longest pause: about one attempt a second.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(1000);

/// Pauses that double up to a cap. Each takes a random part of its time, from half to all, so that pods do not retry at
/// the same moments.
#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Sleeps for the next pause, `cap` at most.
    pub async fn pause(&mut self, cap: Duration) {
        tokio::time::sleep(self.next(cap)).await;
    }

    fn next(&mut self, cap: Duration) -> Duration {
        self.failures += 1;
        let pause = backoff::after(self.failures, FIRST_PAUSE, cap);
        let random_permille = (RandomState::new().hash_one(()) % 1000) as u32;
        pause / 2 + pause / 2 * random_permille / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_are_spread() {
        let mut backoff = Backoff::default();
        let cap = Duration::from_secs(1);
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next(cap)).collect();
        assert!(pauses[0] >= FIRST_PAUSE / 2 && pauses[0] <= FIRST_PAUSE);
        assert!(
            pauses[10..]
                .iter()
                .all(|pause| *pause >= cap / 2 && *pause <= cap)
        );
        assert!(pauses[10..].windows(2).any(|two| two[0] != two[1]));
    }
}
