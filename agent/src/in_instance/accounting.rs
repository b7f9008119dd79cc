//! `flux-agent accounting`: adds users to Flux Accounting, then runs a command.

use std::ffi::OsString;
use std::path::Path;

use super::command_runner::CommandRunner;
use crate::report::failure::Failure;
use crate::supervise::program::Output;

/// Bank that the users are added to.
const BANK: &str = "default";

/// Adds `users` to Flux Accounting, with a database of this instance, and runs `command`. Failures of the
/// former are logged and ignored: the exit code is the command's.
pub fn run(database: &Path, users: &[String], command: &[OsString]) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut runner = CommandRunner::new()?;
        let account = [
            "flux".into(),
            "account".into(),
            "-p".into(),
            database.as_os_str().to_owned(),
        ];
        let with = |words: &[&str]| -> Vec<OsString> {
            account
                .iter()
                .cloned()
                .chain(words.iter().map(OsString::from))
                .collect()
        };
        let mut service: Vec<OsString> = ["flux", "account-service", "--test-background", "-p"]
            .map(OsString::from)
            .into();
        service.push(database.into());
        let mut steps = vec![service];
        // A database that is there has been filled by a run before this one.
        if !database.exists() {
            steps.insert(0, with(&["create-db"]));
            steps.push(with(&["add-bank", "root", "1"]));
            steps.push(with(&["add-bank", "--parent-bank=root", BANK, "1"]));
            steps.extend(
                users
                    .iter()
                    .map(|user| with(&["add-user", "--username", user, "--bank", BANK])),
            );
        }
        for step in steps {
            let code = runner.run(&step, Output::Discard).await?;
            if let Some(code) = runner.stop_code() {
                return Ok(code);
            }
            if code != 0 {
                let words: Vec<_> = step.iter().map(|word| word.to_string_lossy()).collect();
                let why = format!("`{}` ended with code {code}", words.join(" "));
                tracing::warn!(
                    stage = "accounting",
                    "failed to add the users to Flux Accounting: {why}"
                );
                return runner.run(command, Output::Inherit).await;
            }
        }
        tracing::info!(
            stage = "accounting",
            "the users {} are in Flux Accounting",
            users.join(", ")
        );
        runner.run(command, Output::Inherit).await
    }))
}
