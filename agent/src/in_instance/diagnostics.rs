//! `flux-agent diagnostics`: prints reports on the Flux instance, then keeps the instance running.

use std::ffi::OsString;

use super::command_runner::CommandRunner;
use crate::report::failure::Failure;
use crate::supervise::program::Output;

/// The commands that print the reports.
const REPORTS: [&[&str]; 3] = [
    &["flux", "overlay", "status", "-v"],
    &["flux", "lsattr", "-v"],
    &["flux", "dmesg"],
];

/// Prints the reports, and then waits for a stop signal. Returns 0 after the stop.
pub fn run() -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut runner = CommandRunner::new()?;
        for report in REPORTS {
            tracing::info!(stage = "diagnostics", "{}", report.join(" "));
            let words: Vec<OsString> = report.iter().map(OsString::from).collect();
            runner.run(&words, Output::Inherit).await?;
            if runner.stop_code().is_some() {
                return Ok(0);
            }
        }
        // The plan starts this program by its documented path, whose folder the user chooses.
        let program = std::env::args_os().next().unwrap_or_default();
        tracing::info!(
            stage = "diagnostics",
            "the instance stays up; `{} stop` ends it",
            program.to_string_lossy()
        );
        let stopped = runner.supervisor.until_stopped().await;
        stopped
            .map(|_| 0)
            .map_err(|error| Failure::internal(format!("failed to wait for events: {error}")))
    }))
}
