//! A wrapper of the `flux` command, for the user's program on the lead. It hides the user's search paths
//! (`KEPT_FROM_FLUX`) from Flux: a module or library of the user's that has the name of one of Flux's would break Flux.
//!
//! The wrapper is a link named `flux` to the agent's binary, in the broker's run directory and first on the PATH of
//! the user's program. When it is called, the agent moves the search paths to other variables, from which the job
//! shell restores them for tasks. Then it executes the next `flux` on the PATH. Commands that may run a program of the
//! user's in their own environment keep the search paths: `python`, `env`, `exec`, `start`, `proxy`, `alloc`, `batch`,
//! and commands that the user added (`flux-NAME`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use flux_agent_plan::known_paths::{DEFAULT_PATH, KEPT_FROM_FLUX, users_value_name};
use flux_shared::exit::{NOT_EXECUTABLE, NOT_FOUND};

use crate::supervise::program::Environment;

const NAME: &str = "flux";
/// Name of the folder that holds the link, beside the broker's socket.
const FOLDER: &str = "flux-agent-bin";
/// Flux's commands that run no program of the user's in their own environment.
const FLUX_ONLY_COMMANDS: [&str; 37] = [
    "R",
    "archive",
    "bulksubmit",
    "cancel",
    "cgroup",
    "config",
    "content",
    "cron",
    "dmesg",
    "event",
    "filemap",
    "getattr",
    "hostlist",
    "housekeeping",
    "job",
    "jobs",
    "jobtap",
    "kvs",
    "logger",
    "lsattr",
    "module",
    "overlay",
    "pgrep",
    "ping",
    "pkill",
    "pstree",
    "queue",
    "resource",
    "run",
    "setattr",
    "shutdown",
    "startlog",
    "submit",
    "top",
    "update",
    "uptime",
    "watch",
];

/// The link. Dropping it removes the link and its folder.
#[derive(Debug)]
pub struct FluxWrapper {
    folder: PathBuf,
}

impl FluxWrapper {
    /// Creates the link beside `socket` and puts its folder first on the PATH in `environment`. If this fails, logs a
    /// warning and returns none.
    pub fn put_first_on_path(environment: &mut Environment, socket: &Path) -> Option<FluxWrapper> {
        let folder = socket.with_file_name(FOLDER);
        match put_first(environment, folder.clone()) {
            Ok(()) => Some(FluxWrapper { folder }),
            Err(error) => {
                tracing::warn!(
                    stage = "start",
                    "failed to hide the program's {} from flux: {error}",
                    KEPT_FROM_FLUX.join(", ")
                );
                None
            }
        }
    }
}

impl Drop for FluxWrapper {
    fn drop(&mut self) {
        // A failure does no harm: the link then stays in the broker's run directory.
        let _ = std::fs::remove_file(self.folder.join(NAME)).and_then(|()| std::fs::remove_dir(&self.folder));
    }
}

fn put_first(environment: &mut Environment, folder: PathBuf) -> io::Result<()> {
    std::fs::create_dir_all(&folder)?;
    // A link that exists is used: `flux-agent program` leaves its link behind if it is killed.
    match std::os::unix::fs::symlink(std::env::current_exe()?, folder.join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let path = environment
        .get(OsStr::new("PATH"))
        .map_or(DEFAULT_PATH.into(), OsString::clone);
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    environment.insert(
        "PATH".into(),
        std::env::join_paths(folders).map_err(io::Error::other)?,
    );
    Ok(())
}

/// Whether this process was started by the link, that is, under the name `flux`.
pub fn is_called() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

/// Replaces this process by the real `flux`. Returns only if that fails.
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some(flux) = next_flux() else {
        tracing::error!(stage = "start", "there is no other `flux` on the PATH");
        return NOT_FOUND.into();
    };
    let mut command = Command::new(&flux);
    command.args(&arguments);
    if is_flux_only(&arguments) {
        for name in KEPT_FROM_FLUX {
            // An empty value stays: it names no folder, so it cannot break Flux.
            if let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) {
                command.env(users_value_name(name), value).env_remove(name);
            }
        }
    }
    let error = command.exec();
    tracing::error!(stage = "start", "failed to start {}: {error}", flux.display());
    NOT_EXECUTABLE.into()
}

/// The first `flux` on the PATH that is not this program.
fn next_flux() -> Option<PathBuf> {
    let this_program = std::fs::canonicalize("/proc/self/exe").ok()?;
    // `/`: a relative folder on the PATH is not looked up in the user's current folder.
    let found = which::which_in_all(NAME, std::env::var_os("PATH"), "/").ok()?;
    found
        .into_iter()
        .find(|flux| std::fs::canonicalize(flux).is_ok_and(|flux| flux != this_program))
}

/// Whether these arguments of `flux` run no program of the user's in Flux's own environment.
pub fn is_flux_only(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().filter_map(|word| word.to_str());
    words
        .find(|word| !word.starts_with('-'))
        .is_some_and(|command| FLUX_ONLY_COMMANDS.contains(&command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_without_user_programs_are_flux_only() {
        let is_flux_only =
            |line: &str| is_flux_only(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in [
            "submit -N2 python x.py",
            "--parent jobs -a",
            "-v run a",
            "R encode --local",
        ] {
            assert!(is_flux_only(line), "{line}");
        }
        for line in [
            "python x.py",
            "-v python x.py run",
            "batch run",
            "alloc -N1",
            "start a",
            "proxy u jobs",
            "mine",
            "-V",
        ] {
            assert!(!is_flux_only(line), "{line}");
        }
    }

    #[test]
    fn existing_link_is_used_and_its_folder_is_first_on_path() {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = Environment::from([("PATH".into(), "/bin".into())]);
        let link = || FluxWrapper::put_first_on_path(&mut environment, &folder.path().join("local")).unwrap();
        let links: Vec<FluxWrapper> = std::iter::repeat_with(link).take(2).collect();
        let path = environment[OsStr::new("PATH")].to_str().unwrap().to_owned();
        let first = format!("{}/flux-agent-bin:", folder.path().display());
        assert!(path.starts_with(&first) && path.ends_with(":/bin"), "{path}");
        assert_eq!(
            std::fs::read_link(folder.path().join("flux-agent-bin/flux")).unwrap(),
            std::env::current_exe().unwrap()
        );
        drop(links);
        assert!(!folder.path().join("flux-agent-bin").exists());
    }
}
