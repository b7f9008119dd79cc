//! Limits how much memory is used for large specs that are reconciled at the same time.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Memory in bytes for large specs that are reconciled at the same time.
const MEMORY_MAX: usize = 64 << 20;
/// Bytes of memory for each byte of a spec: it is parsed, validated, rendered, sent, and read in the answer.
const MEMORY_PER_BYTE: usize = 16;
/// Bytes per permit.
const UNIT: usize = 64 << 10;

/// The memory that is not in use, as permits of a semaphore.
#[derive(Debug)]
pub struct Room(Semaphore);

impl Default for Room {
    fn default() -> Room {
        Room(Semaphore::new(MEMORY_MAX / UNIT))
    }
}

impl Room {
    /// Waits until there is memory to reconcile a spec of this size in bytes. It is free again when the
    /// permit is dropped.
    pub async fn wait_for(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        // A spec that needs more than all memory waits for all of it.
        let permits = bytes
            .saturating_mul(MEMORY_PER_BYTE)
            .min(MEMORY_MAX)
            .div_ceil(UNIT);
        // The semaphore is never closed: this cannot fail.
        self.0
            .acquire_many(u32::try_from(permits).unwrap_or(u32::MAX))
            .await
            .ok()
    }
}
