//! `flux` on the PATH of a program of the user's own: Flux's commands, without the user's paths. A module or
//! a library of the user's with the name of one of Flux's would break them.
//!
//! A link in the broker's run directory leads to this program, which starts the next `flux` on the PATH. It
//! carries the values under other names, from which the job shell gives them back to tasks. Commands that run
//! a program of the user's beside Flux (`python`, `env`, `start`, `proxy`, `alloc`, `batch`) and the user's
//! own (`flux-NAME`) keep them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use flux_agent_plan::known_paths::{DEFAULT_PATH, KEPT_FROM_FLUX, users_value_name};
use flux_shared::exit::{NOT_EXECUTABLE, NOT_FOUND};

use crate::supervise::program::Environment;

const NAME: &str = "flux";
/// The folder of the link, beside the broker's socket.
const FOLDER: &str = "flux-agent-bin";
/// Flux's commands that run nothing of the user's in their own environment.
const COMMANDS: [&str; 38] = [
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
    "exec",
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

/// The link; dropped, it is removed.
#[derive(Debug)]
pub struct DeafFlux {
    folder: PathBuf,
}

impl DeafFlux {
    /// Makes the link, before everything else on the PATH; none if that fails, which a warning says.
    pub fn first_on_path(environment: &mut Environment, socket: &Path) -> Option<DeafFlux> {
        let folder = socket.with_file_name(FOLDER);
        match put_first(environment, folder.clone()) {
            Ok(()) => Some(DeafFlux { folder }),
            Err(error) => {
                tracing::warn!("flux follows PYTHONPATH and LD_LIBRARY_PATH of the program: {error}");
                None
            }
        }
    }
}

impl Drop for DeafFlux {
    fn drop(&mut self) {
        // What is left, if anything, is in the broker's run directory.
        let _ = std::fs::remove_file(self.folder.join(NAME)).and_then(|()| std::fs::remove_dir(&self.folder));
    }
}

fn put_first(environment: &mut Environment, folder: PathBuf) -> io::Result<()> {
    std::fs::create_dir_all(&folder)?;
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

/// Whether this process was started by that link.
pub fn is_called() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

/// Starts Flux in place of this process.
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some(flux) = next_flux() else {
        tracing::error!("there is no other `flux` on the PATH");
        return NOT_FOUND.into();
    };
    let mut command = Command::new(&flux);
    command.args(&arguments);
    if is_deaf(&arguments) {
        for name in KEPT_FROM_FLUX {
            if let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) {
                command.env(users_value_name(name), value).env_remove(name);
            }
        }
    }
    let error = command.exec();
    tracing::error!("failed to start {}: {error}", flux.display());
    NOT_EXECUTABLE.into()
}

/// The next program of that name on the PATH.
fn next_flux() -> Option<PathBuf> {
    let this_program = std::fs::canonicalize("/proc/self/exe").ok()?;
    let found = which::which_in_all(NAME, std::env::var_os("PATH"), "/").ok()?;
    found
        .into_iter()
        .find(|flux| std::fs::canonicalize(flux).is_ok_and(|flux| flux != this_program))
}

fn is_deaf(arguments: &[OsString]) -> bool {
    let mut words = arguments.iter().filter_map(|word| word.to_str());
    words
        .find(|word| !word.starts_with('-'))
        .is_some_and(|command| COMMANDS.contains(&command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_of_flux_itself_are_deaf() {
        let is_deaf = |line: &str| is_deaf(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in [
            "submit -N2 python x.py",
            "--parent jobs -a",
            "-v run a",
            "R encode --local",
        ] {
            assert!(is_deaf(line), "{line}");
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
            assert!(!is_deaf(line), "{line}");
        }
    }

    #[test]
    fn link_comes_first_on_the_path_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = Environment::from([("PATH".into(), "/bin".into())]);
        let link = || DeafFlux::first_on_path(&mut environment, &folder.path().join("local")).unwrap();
        let links: Vec<DeafFlux> = std::iter::repeat_with(link).take(2).collect();
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
