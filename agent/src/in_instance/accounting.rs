//! `flux-agent accounting`: adds users to Flux Accounting, then runs a command.

use std::ffi::OsString;
use std::path::Path;

use super::command_runner::CommandRunner;
use crate::report::failure::Failure;
use crate::supervise::program::Output;

/// Bank that the users are added to.
const BANK: &str = "default";

/// Adds `users` to Flux Accounting, with its database at `database`, and then runs `command`. A failure to add users is
/// only logged. Returns the exit code of `command`. Fails only if this process cannot supervise programs.
pub fn run(database: &Path, users: &[String], command: &[OsString]) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut runner = CommandRunner::new()?;
        add_users(&mut runner, database, users).await?;
        // After a stop, `CommandRunner::run` starts nothing and returns the code of the signal.
        runner.run(command, Output::Inherit).await
    }))
}

/// Runs the commands that add the users, until one fails or a stop arrives.
async fn add_users(runner: &mut CommandRunner, database: &Path, users: &[String]) -> Result<(), Failure> {
    for Addition { exists, command } in additions(database, users) {
        if let Some(exists) = exists
            && runner.run(&exists, Output::Discard).await? == 0
        {
            continue;
        }
        let code = runner.run(&command, Output::Discard).await?;
        if runner.stop_code().is_some() {
            return Ok(());
        }
        if code != 0 {
            let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
            let cause = format!("`{}` ended with code {code}", words.join(" "));
            tracing::warn!(
                stage = "accounting",
                "failed to add the users to Flux Accounting: {cause}"
            );
            return Ok(());
        }
    }
    tracing::info!(
        stage = "accounting",
        "the users {} are in Flux Accounting",
        users.join(", ")
    );
    Ok(())
}

/// A command that adds something.
struct Addition {
    /// A command that succeeds if it was added before; then `command` does not run. None: `command` always runs.
    exists: Option<Vec<OsString>>,
    command: Vec<OsString>,
}

/// The commands that create the database, start the accounting service and add the users.
fn additions(database: &Path, users: &[String]) -> Vec<Addition> {
    let with_database = |command: &[&str], arguments: &[&str]| -> Vec<OsString> {
        let command = command.iter().map(OsString::from);
        let arguments = arguments.iter().map(OsString::from);
        command.chain([database.into()]).chain(arguments).collect()
    };
    let account = |arguments: &[&str]| with_database(&["flux", "account", "-p"], arguments);
    let always = |command| Addition {
        exists: None,
        command,
    };
    // An earlier run may have ended before it had added everything.
    let has_database = database.exists();
    let if_missing = |view: &[&str], add: &[&str]| Addition {
        exists: has_database.then(|| account(view)),
        command: account(add),
    };
    let mut additions = Vec::new();
    if !has_database {
        additions.push(always(account(&["create-db"])));
    }
    // With `--test-background`, the command returns when the service runs. The last word of `add-bank` is the bank's
    // number of shares.
    additions.extend([
        always(with_database(
            &["flux", "account-service", "--test-background", "-p"],
            &[],
        )),
        if_missing(&["view-bank", "root"], &["add-bank", "root", "1"]),
        if_missing(
            &["view-bank", BANK],
            &["add-bank", "--parent-bank=root", BANK, "1"],
        ),
    ]);
    let add_user = |user: &String| {
        if_missing(
            &["view-user", user],
            &["add-user", "--username", user, "--bank", BANK],
        )
    };
    additions.extend(users.iter().map(add_user));
    additions
}
