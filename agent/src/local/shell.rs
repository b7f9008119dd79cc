//! `local --shell`: a shell in a running pod, from another terminal, as `kubectl exec` gives one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use flux_shared::paths::AGENT_FILE;
use nix::sched::{CloneFlags, setns};

use super::containers::LocalContainer;
use super::inside;
use super::run_folder::{RunFolder, failed, pid_file, pod_folder};
use crate::report::failure::Failure;
use crate::supervise::Supervisor;
use crate::supervise::policy::{DefaultPolicy, Terms};
use crate::supervise::program::{ChildProgram, Environment, Output};
use crate::system::raw::ChildSetup;

/// Names in /proc/PID/ns. The user namespace comes first: only in it may the others be entered.
const NAMESPACES: [(&str, CloneFlags); 6] = [
    ("user", CloneFlags::CLONE_NEWUSER),
    ("net", CloneFlags::CLONE_NEWNET),
    ("uts", CloneFlags::CLONE_NEWUTS),
    ("ipc", CloneFlags::CLONE_NEWIPC),
    ("pid", CloneFlags::CLONE_NEWPID),
    ("mnt", CloneFlags::CLONE_NEWNS),
];

/// Runs a shell, or `command`, in the pod; returns its exit code.
pub fn enter_pod(
    run_folder: &RunFolder,
    name: &str,
    index: u32,
    command: &[OsString],
) -> Result<u8, Failure> {
    let cannot_enter = |cause: String, remedy: &str| Failure::new(Category::Internal, cause, remedy);
    let Some(folder) = run_folder.running() else {
        let cause = format!("{name} is not running here");
        return Err(cannot_enter(
            cause,
            "start it in another terminal, with the same file and without --shell",
        ));
    };
    let description = pod_folder(folder, index).join("root.json");
    if !description.exists() {
        let cause = format!("failed to find the pod of index {index}");
        return Err(cannot_enter(cause, "indexes are 0 to size - 1"));
    }
    let container = inside::read(&description)?;
    let has_ended = || {
        cannot_enter(
            format!("failed to enter {}: it has ended", container.name()),
            "see what it printed in the other terminal",
        )
    };
    let pid: u32 = fs::read_to_string(pid_file(folder, index))
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(has_ended)?;
    let pod_namespaces = PathBuf::from(format!("/proc/{pid}/ns"));
    // Only the namespaces that differ from this process's: the kernel refuses to enter the user namespace that a
    // process is in already.
    let namespaces: Vec<(File, CloneFlags)> = NAMESPACES
        .iter()
        .filter(|(name, _)| {
            fs::read_link(pod_namespaces.join(name)).ok()
                != fs::read_link(Path::new("/proc/self/ns").join(name)).ok()
        })
        .map(|(name, kind)| Ok((File::open(pod_namespaces.join(name))?, *kind)))
        .collect::<io::Result<_>>()
        .map_err(|_| has_ended())?;
    for (namespace, kind) in &namespaces {
        setns(namespace, *kind).map_err(|error| failed("enter", &pod_namespaces, &error.into()))?;
    }
    crate::system::runtime::block_on(Box::pin(connect(&container, command)))
}

/// Runs `flux-agent connect`, which knows the environment, the socket and the user of Flux. It is a child, since only
/// children of this process are in the pod's pid namespace.
async fn connect(container: &LocalContainer, command: &[OsString]) -> Result<u8, Failure> {
    let failed_signals = |error: io::Error| Failure::internal(format!("failed to receive signals: {error}"));
    let mut supervisor = Supervisor::new().map_err(failed_signals)?;
    let environment: Environment = container
        .environment
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    let mut argv: Vec<OsString> = vec![AGENT_FILE.into(), "connect".into(), "--".into()];
    argv.extend(command.iter().cloned());
    let foreground = supervisor.has_terminal();
    let program = ChildProgram {
        argv: &argv,
        environment: &environment,
        directory: Path::new("/"),
        output: Output::Inherit,
        setup: ChildSetup {
            is_foreground: foreground,
            dies_with_agent: true,
            ..ChildSetup::default()
        },
    };
    let child = supervisor
        .start(&program)
        .map_err(|error| Failure::internal(error.to_string()))?;
    Ok(supervisor
        .run(child, Terms::of_group(), &mut DefaultPolicy)
        .await
        .map_err(failed_signals)?
        .end
        .code())
}
