//! One thread, one event loop: what every subcommand that supervises or waits needs.
#![expect(clippy::disallowed_methods, reason = "act: starts the event loop")]

use std::pin::Pin;

use crate::failure::Failure;
use crate::supervise::signals;

/// What a subcommand does. In a box, so that the event loop is in the binary once.
type Work<'a> = Pin<Box<dyn Future<Output = Result<u8, Failure>> + 'a>>;

/// Blocks all signals (they become events) and runs `work` to its end.
pub fn block_on(work: Work) -> Result<u8, Failure> {
    signals::block().map_err(failed)?;
    look(work)
}

/// The same with signals as they are: for what only looks.
pub fn look(work: Work) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(failed)?;
    runtime.block_on(work)
}

fn failed(error: std::io::Error) -> Failure {
    Failure::internal(format!("failed to start the event loop: {error}"))
}
