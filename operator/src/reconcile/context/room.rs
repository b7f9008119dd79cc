//! Memory for large specs that are reconciled at the same time.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Memory in bytes for large specs that are reconciled at the same time, and how many times its own size a
/// spec takes: parsed, validated, rendered, sent and answered.
const ROOM: usize = 64 << 20;
const TIMES: usize = 16;
/// Bytes per permit.
const UNIT: usize = 64 << 10;

/// The memory that is left.
#[derive(Debug)]
pub struct Room(Semaphore);

impl Default for Room {
    fn default() -> Room {
        Room(Semaphore::new(ROOM / UNIT))
    }
}

impl Room {
    /// Waits for memory to reconcile a spec of so many bytes.
    pub async fn wait_for(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let permits = bytes.saturating_mul(TIMES).min(ROOM).div_ceil(UNIT);
        // The semaphore is never closed: this cannot fail.
        self.0
            .acquire_many(u32::try_from(permits).unwrap_or(u32::MAX))
            .await
            .ok()
    }
}
