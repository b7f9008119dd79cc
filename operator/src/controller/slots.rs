//! How many reconciles run at the same time, so that neither a slow API server nor the MiniClusters of one webhook that is
//! down take all memory, or all of the others' time.
//!
//! ```text
//! slot ─► (2 s) ─► slow slot, if there is one ─► end
//!                    └ none: given up, and tried again after a pause
//! ```
//!
//! Slots that fail again and again leave some for those that have not failed yet. Nothing is lost with a reconcile that is
//! given up: the process may be killed at any call as well.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Most reconciles that are not slow, each with up to three connections of its own (150 kB each). Fewer leave the API server
/// idle at times, more only queue up in it.
const CONCURRENCY: usize = 48;
/// Those of them that may have failed before.
const RETRIES: usize = 32;
/// Most slow reconciles besides.
const SLOW: usize = 64;

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    all: Semaphore,
    retries: Semaphore,
    slow: Semaphore,
}

/// A slot that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    _retry: Option<SemaphorePermit<'a>>,
    _slot: Option<SemaphorePermit<'a>>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { all: Semaphore::new(CONCURRENCY), retries: Semaphore::new(RETRIES), slow: Semaphore::new(SLOW) }
    }
}

impl Slots {
    /// Waits for a slot. (The semaphores are never closed: this cannot fail.)
    pub(super) async fn take(&self, has_failed: bool) -> Slot<'_> {
        let retry = if has_failed { self.retries.acquire().await.ok() } else { None };
        Slot { _retry: retry, _slot: self.all.acquire().await.ok() }
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
        let retries: Vec<_> = std::iter::from_fn(|| slots.take(true).now_or_never()).collect();
        let others: Vec<_> = std::iter::from_fn(|| slots.take(false).now_or_never()).collect();
        assert_eq!((retries.len(), others.len()), (RETRIES, CONCURRENCY - RETRIES));
        let slow: Vec<_> = std::iter::from_fn(|| slots.take_slow()).collect();
        assert_eq!(slow.len(), SLOW);
        drop((retries, slow));
        assert!(slots.take(true).now_or_never().is_some() && slots.take_slow().is_some());
    }
}
