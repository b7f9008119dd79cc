//! One thread, one event loop: what every subcommand that supervises or waits needs.
#![expect(clippy::disallowed_methods, reason = "act: starts the event loop")]

use crate::failure::Failure;
use crate::supervise::signals;

/// Blocks all signals (they become events) and runs `work` to its end.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let failed = |error: std::io::Error| Failure::internal(format!("failed to start the event loop: {error}"));
    signals::block().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(failed)?;
    runtime.block_on(work)
}
