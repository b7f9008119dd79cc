//! Limits how many reconciles run at the same time, so that slow or failing ones do not block the others.
//!
//! ```text
//! slot ─► (2 s) ─► slow slot, if there is one ─► end
//!                    └ none: given up, and retried after a pause
//! ```
//!
//! Some slots are not for retries, and some are not for retries of slow reconciles. It is safe to give up a reconcile
//! during any call. The process may also be killed during it, and the next reconcile does the rest.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::reconcile::context::pauses::LastOutcome;

/// At most this many reconciles that are not slow. Each has up to three connections of its own (150 kB each).
/// With fewer the API server would be idle at times, and more would only wait in it.
const CONCURRENCY: usize = 48;
/// At most this many of the `CONCURRENCY` slots are for retries: a third is always left to the others.
const RETRIES: usize = 32;
/// At most this many of the `RETRIES` slots are for retries of slow reconciles. Such a retry mostly holds its slot
/// until it counts as slow again. Other retries, which may end at once, must not wait for that.
const SLOW_RETRIES: usize = 24;
/// At most this many slow reconciles, in addition to `CONCURRENCY`: while they wait, they hold memory.
const SLOW: usize = 64;

/// The slots of all reconciles.
#[derive(Debug)]
pub(super) struct Slots {
    all: Semaphore,
    retries: Semaphore,
    slow_retries: Semaphore,
    slow: Semaphore,
}

/// A slot that is in use until this is dropped.
#[derive(Debug)]
pub(super) struct ReconcileSlot<'a> {
    _slow_retry: Option<SemaphorePermit<'a>>,
    _retry: Option<SemaphorePermit<'a>>,
    _slot: SemaphorePermit<'a>,
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
    /// Waits for a slot. `last_outcome`: how the MiniCluster's previous reconcile ended. None: the slots are closed.
    pub(super) async fn take(&self, last_outcome: LastOutcome) -> Option<ReconcileSlot<'_>> {
        // The rarest permit comes first: whoever waits for it holds none of the others.
        let slow_retry = if last_outcome == LastOutcome::FailedSlowly {
            Some(self.slow_retries.acquire().await.ok()?)
        } else {
            None
        };
        let retry = if last_outcome == LastOutcome::NotFailed {
            None
        } else {
            Some(self.retries.acquire().await.ok()?)
        };
        Some(ReconcileSlot {
            _slow_retry: slow_retry,
            _retry: retry,
            _slot: self.all.acquire().await.ok()?,
        })
    }

    /// Gives out no more slots, also not to those who wait. Reconciles that have one continue, and may become slow.
    pub(super) fn close(&self) {
        for semaphore in [&self.all, &self.retries, &self.slow_retries] {
            semaphore.close();
        }
    }

    /// A slot for a reconcile that counts as slow. None: too many are slow.
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
        let take_all = |last: LastOutcome| -> Vec<_> {
            std::iter::from_fn(|| slots.take(last).now_or_never().flatten()).collect()
        };
        let slow_retries = take_all(LastOutcome::FailedSlowly);
        let (retries, others) = (take_all(LastOutcome::Failed), take_all(LastOutcome::NotFailed));
        assert_eq!(
            (slow_retries.len(), retries.len()),
            (SLOW_RETRIES, RETRIES - SLOW_RETRIES)
        );
        assert_eq!(others.len(), CONCURRENCY - RETRIES);
        let slow: Vec<_> = std::iter::from_fn(|| slots.take_slow()).collect();
        assert_eq!(slow.len(), SLOW);
        drop((slow_retries, slow));
        let next = slots.take(LastOutcome::FailedSlowly).now_or_never().flatten();
        assert!(next.is_some() && slots.take_slow().is_some());
    }

    #[tokio::test]
    async fn closed_slots_end_the_wait_for_a_slot() {
        for last in [
            LastOutcome::NotFailed,
            LastOutcome::Failed,
            LastOutcome::FailedSlowly,
        ] {
            // Tokio lets a task take only so many permits without a pause.
            tokio::task::yield_now().await;
            let slots = Slots::default();
            let _taken: Vec<_> = std::iter::from_fn(|| slots.take(last).now_or_never().flatten()).collect();
            let mut waits = std::pin::pin!(slots.take(last));
            assert!(waits.as_mut().now_or_never().is_none(), "{last:?}");
            slots.close();
            assert!(waits.await.is_none(), "{last:?}");
            assert!(slots.take_slow().is_some(), "a running reconcile may become slow");
        }
    }
}
