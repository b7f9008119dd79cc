//! Bounds the reconciles that run at once, so that slow or failing ones leave room to others.
//!
//! ```text
//! slot ─► (2 s) ─► slow slot, if there is one ─► end
//!                    └ none: given up, and tried again after a pause
//! ```
//!
//! Retries leave some slots to MiniClusters that have not failed yet, and slow retries leave some to other
//! retries. Nothing is lost with a reconcile that is given up: the process may be killed at any call as well.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::reconcile::context::pauses::Last;

/// At most this many reconciles that are not slow, each with up to three connections of its own (150 kB each). Fewer leave
/// the API server idle at times, more only queue up in it.
const CONCURRENCY: usize = 48;
/// At most this many of them may have failed before.
const RETRIES: usize = 32;
/// At most this many of these may have failed slowly: each holds its slot until it counts as slow again, so they
/// must leave some to retries that fail, or succeed, at once.
const SLOW_RETRIES: usize = 24;
/// At most this many slow reconciles besides.
const SLOW: usize = 64;

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    all: Semaphore,
    retries: Semaphore,
    slow_retries: Semaphore,
    slow: Semaphore,
}

/// A slot that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct ReconcileSlot<'a> {
    _slow_retry: Option<SemaphorePermit<'a>>,
    _retry: Option<SemaphorePermit<'a>>,
    _slot: Option<SemaphorePermit<'a>>,
}

impl Default for Slots {
    fn default() -> Slots {
        let [all, retries, slow_retries, slow] =
            [CONCURRENCY, RETRIES, SLOW_RETRIES, SLOW].map(Semaphore::new);
        Slots {
            all,
            retries,
            slow_retries,
            slow,
        }
    }
}

impl Slots {
    /// Waits for a slot. (The semaphores are never closed: this cannot fail.)
    pub(super) async fn take(&self, last: Last) -> ReconcileSlot<'_> {
        let slow_retry = if last == Last::FailedSlowly {
            self.slow_retries.acquire().await.ok()
        } else {
            None
        };
        let retry = if last == Last::Well {
            None
        } else {
            self.retries.acquire().await.ok()
        };
        ReconcileSlot {
            _slow_retry: slow_retry,
            _retry: retry,
            _slot: self.all.acquire().await.ok(),
        }
    }

    /// A slot for a reconcile that has turned out slow; None if too many are.
    pub(super) fn take_slow(&self) -> Option<SemaphorePermit<'_>> {
        self.slow.try_acquire().ok()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn slots_are_bounded_and_failures_leave_some_to_others() {
        let slots = Slots::default();
        let taken =
            |last: Last| -> Vec<_> { std::iter::from_fn(|| slots.take(last).now_or_never()).collect() };
        let slow_retries = taken(Last::FailedSlowly);
        let (retries, others) = (taken(Last::Failed), taken(Last::Well));
        assert_eq!(
            (slow_retries.len(), retries.len()),
            (SLOW_RETRIES, RETRIES - SLOW_RETRIES)
        );
        assert_eq!(others.len(), CONCURRENCY - RETRIES);
        let slow: Vec<_> = std::iter::from_fn(|| slots.take_slow()).collect();
        assert_eq!(slow.len(), SLOW);
        drop((slow_retries, slow));
        assert!(slots.take(Last::FailedSlowly).now_or_never().is_some() && slots.take_slow().is_some());
    }
}
