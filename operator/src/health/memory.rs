//! Returns freed memory to the kernel.
//!
//! The C library keeps freed memory that lies between allocations that are still used. After 10,000 MiniClusters were
//! deleted, the operator would keep more than 100 MiB for ever.

use std::convert::Infallible;
use std::time::Duration;

/// Pause between two calls of `trim`. Arbitrary: freed memory need not be returned at once.
const PAUSE: Duration = Duration::from_secs(30);

/// Returns freed memory to the kernel twice a minute. Never ends.
pub async fn give_back() -> Infallible {
    loop {
        tokio::time::sleep(PAUSE).await;
        trim();
    }
}

/// Returns freed memory to the kernel. Does nothing with a C library other than glibc.
#[allow(unsafe_code, reason = "malloc_trim may be called at any time, by any thread")]
fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no condition; it returns unused pages to the kernel.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident() -> u64 {
        let stat = procfs::process::Process::myself().unwrap().stat().unwrap();
        stat.rss * procfs::page_size()
    }

    #[test]
    fn memory_freed_between_used_blocks_returns_to_the_kernel() {
        const BYTES: usize = 1_000;
        const NUMBER: usize = 200_000;
        let mut all: Vec<Vec<u8>> = (0..NUMBER).map(|_| vec![1; BYTES]).collect();
        let mut index = 0;
        all.retain(|_| {
            index += 1;
            index % 1_000 == 0
        });
        let held = resident();
        trim();
        let given_back = held.saturating_sub(resident());
        assert!(given_back > (NUMBER * BYTES / 2) as u64, "{given_back} of {held}");
        assert_eq!(all.len(), NUMBER / 1_000);
    }
}
