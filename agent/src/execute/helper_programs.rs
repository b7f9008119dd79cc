//! Programs that the agent starts beside the plan's own: a daemon of the image, and a check as another user.

use std::ffi::OsString;
use std::path::Path;

use super::executor::Executor;
use crate::plan::Owner;
use crate::report::failure::Failure;
use crate::supervise::End;
use crate::supervise::policy::{DefaultPolicy, Terms};
use crate::supervise::program::{Output, Program};
use crate::system::identity::Identity;
use crate::system::raw::ChildSetup;

impl Executor<'_> {
    /// Logs a warning if `owner` cannot write to `path`: a volume's owner and group are for its users to decide.
    pub(super) async fn warn_unless_writable(&mut self, path: &str, owner: Owner) -> Result<(), Failure> {
        let Some(identity) = Identity::of(owner, &self.options.root)? else {
            warn_not_writable(path, owner);
            return Ok(());
        };
        let real = self.files.at(path);
        let words = ["/proc/self/exe".into(), "may-write".into(), real.into_os_string()];
        let setup = ChildSetup { identity: Some(identity), ..ChildSetup::default() };
        let program = Program {
            argv: &words,
            environment: &self.session.environment,
            directory: Path::new("/"),
            output: Output::Inherit,
            setup,
        };
        let failed = |why: String| Failure::internal(format!("failed to check whether {path} is writable: {why}"));
        let child = self.supervisor.start(program).map_err(|error| failed(error.to_string()))?;
        let ended = self.supervisor.run(child, Terms::of_group(), &mut DefaultPolicy).await;
        let ended = ended.map_err(|error| failed(error.to_string()))?;
        if ended.end != End::Exited(0) {
            warn_not_writable(path, owner);
        }
        Ok(())
    }

    /// Starts a program and waits until it has gone to the background.
    pub(super) async fn start_daemon(&mut self, argv: &[String]) -> Result<(), Failure> {
        let words: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let program = Program {
            argv: &words,
            environment: &self.session.environment,
            directory: &self.session.directory,
            output: Output::Inherit,
            setup: ChildSetup::default(),
        };
        let name = argv.first().map_or("", String::as_str);
        let child = match self.supervisor.start(program) {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(stage = "daemon", "failed to start {name}: {error}; continuing");
                return Ok(());
            }
        };
        let ended = self.supervisor.run(child, Terms::of_group(), &mut DefaultPolicy).await;
        let ended = ended.map_err(|error| Failure::internal(format!("failed to supervise {name}: {error}")))?;
        match ended.end.code() {
            0 => tracing::info!(stage = "daemon", "started {name}"),
            code => tracing::warn!(stage = "daemon", "{name} failed with exit code {code}; continuing"),
        }
        Ok(())
    }
}

fn warn_not_writable(path: &str, owner: Owner) {
    let Owner { uid, gid } = owner;
    let remedy = "make it group-writable and add the group to pod.securityContext.supplementalGroups or fsGroup, or set fluxUser to its owner";
    let line = format!("uid {uid}, gid {gid} cannot write to {path}, a folder or volume: {remedy}");
    tracing::warn!(stage = "user", "{line}");
}
