//! Starts a daemon of the image, and makes folders writable for Flux's user.

use std::ffi::OsString;

use flux_agent_plan::plan::Owner;

use super::executor::Executor;
use super::retry::Start;
use crate::report::failure::Failure;
use crate::supervise::policy::{DefaultPolicy, Terms};
use crate::supervise::program::{ChildProgram, Output};
use crate::system::raw::ChildSetup;

impl Executor<'_> {
    /// Lets `owner` write to `path`. If that is not possible, only logs a warning: the users of a volume
    /// decide on its owner and group.
    pub(super) fn make_writable(&self, path: &str, owner: Owner) -> Result<(), Failure> {
        let Some(why) = self.files.make_writable(path, owner)? else {
            return Ok(());
        };
        let Owner { uid, gid } = owner;
        let remedy = "make it group-writable and add the group to pod.securityContext.supplementalGroups or fsGroup, \
                      change its owner in an init snippet, set fluxUser to its owner, set runFluxAsRoot, or use another \
                      workingDir";
        let line =
            format!("uid {uid}, gid {gid} cannot write to {path}, a folder or volume: {why}; {remedy}");
        tracing::warn!(stage = "user", "{line}");
        Ok(())
    }

    /// Starts a program and waits until it has gone to the background. A failure of the program is only logged.
    pub(super) async fn start_daemon(&mut self, argv: &[String]) -> Result<(), Failure> {
        let words: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let program = ChildProgram {
            argv: &words,
            environment: &self.session.environment,
            directory: &self.session.directory,
            output: Output::Inherit,
            setup: ChildSetup::default(),
        };
        let name = argv.first().map_or("", String::as_str);
        let child = match self.attempts().start(&program, self.supervisor).await? {
            Start::Started { child, .. } => child,
            Start::Failed(error) => {
                tracing::warn!(stage = "daemon", "{error}; continuing");
                return Ok(());
            }
            // The executor checks for a stop before the next step.
            Start::Stopped(_) => return Ok(()),
        };
        let ended = self
            .supervisor
            .run(child, Terms::of_group(), &mut DefaultPolicy)
            .await;
        let ended =
            ended.map_err(|error| Failure::internal(format!("failed to supervise {name}: {error}")))?;
        match ended.end.code() {
            0 => tracing::info!(stage = "daemon", "started {name}"),
            code => tracing::warn!(
                stage = "daemon",
                "{name} failed with exit code {code}; continuing"
            ),
        }
        Ok(())
    }
}
