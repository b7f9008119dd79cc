//! `flux-agent time`: measures how long a command takes. The image needs no program `time`.

use std::ffi::OsString;
use std::time::Instant;

use super::command_runner::CommandRunner;
use crate::execute::timing::flux_time;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::program::Output;

/// Runs `command`, prints on standard error how long it took, and returns its exit code.
pub fn run(label: &str, command: &[OsString]) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let begin = Instant::now();
        let code = CommandRunner::new()?.run(command, Output::Inherit).await?;
        log::plain("time", &flux_time(label, begin.elapsed()));
        Ok(code)
    }))
}
