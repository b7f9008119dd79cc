//! Runs a subcommand in one thread with one event loop.

use std::pin::Pin;

use flux_shared::exit::of_signal;

use crate::report::failure::Failure;
use crate::system::signals;

/// The work of a subcommand. Boxed, so that the event loop is compiled only once.
type Work<'a> = Pin<Box<dyn Future<Output = Result<u8, Failure>> + 'a>>;

/// Blocks all signals (they become events) and runs `work` to its end.
pub fn block_on(work: Work) -> Result<u8, Failure> {
    signals::block().map_err(failed)?;
    block_on_interruptible(work)
}

/// Runs `work` to its end without blocking signals, so a signal may end the process. For work that starts no
/// child processes: the supervisor of such processes needs blocked signals.
pub fn block_on_interruptible(work: Work) -> Result<u8, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed)?;
    runtime.block_on(work)
}

/// Makes a stop signal end this process at once, also as PID 1, which the kernel shields from such signals.
/// For work that may be killed at any moment. Call it before the process has a second thread, in which stop signals
/// might not be blocked.
pub fn exit_on_stop_signal() -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::internal(format!("failed to wait for stop signals: {error}"));
    signals::block().map_err(failed)?;
    let wait = || {
        if let Ok(signal) = signals::wait_for_stop() {
            std::process::exit(of_signal(signal).into());
        }
    };
    let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(wait);
    // At a limit of threads, the work is done without one: signals act as usual, and process 1 ends only by SIGKILL.
    if thread.is_err() {
        signals::unblock().map_err(failed)?;
    }
    Ok(())
}

fn failed(error: std::io::Error) -> Failure {
    Failure::internal(format!("failed to start the event loop: {error}"))
}
