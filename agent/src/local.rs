//! `flux-agent local`: a MiniCluster on this machine, without Kubernetes.
//!
//! ```text
//! FILE ─► AgentSpec (as in dry-run), arrangement (pure: containers, mounts, what is not supported)
//!   ─► run_folder (locked; files, key) ─► namespaces, network ─► run (a process for each container) ─► exit code
//! in each process: inside (mounts, host name) ─► `flux-agent run`, as in a pod
//! ```
//!
//! `flux-agent run` does not know that there is no Kubernetes: it finds spec, certificate, names and Flux where a
//! pod has them. The pods see this machine's files read-only, except in the folder in which `flux-agent local` was
//! started and in hostPath volumes. What a pod writes elsewhere is private (in claims: shared by the pods).

mod containers;
mod inside;
mod namespaces;
mod network;
mod output;
mod run;
mod run_folder;
mod shell;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use flux_agent_plan::dry_run::{DryRunError, Source};
use flux_shared::exit::Category;

use crate::dry_run::source;
use crate::report::failure::{Failure, chain, plain};
use crate::report::log;
use crate::supervise::program::{Environment, Lookup, find};
use containers::{Arrangement, Machine};
pub use inside::become_container;

/// Run a MiniCluster on this machine, without Kubernetes: each pod is a process tree that uses this machine's
/// Flux.
///
/// Needs Linux namespaces: root has them, and on most machines every user. The pods see this machine's files
/// read-only, except the current folder and hostPath volumes. What they write elsewhere is private, and removed
/// at the end unless --keep is given. They can reach each other and no other network. What is not supported here
/// is reported.
#[derive(Debug, Clone, clap::Args)]
pub struct LocalArgs {
    /// A MiniCluster (YAML or JSON) or an AgentSpec (TOML)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Prefix of the Flux installation [default: that of the `flux` on the PATH]
    #[arg(long, value_name = "PREFIX")]
    flux: Option<PathBuf>,
    /// Keep the pods' files until the next run, and print where they are
    #[arg(long)]
    keep: bool,
    /// Open a shell in the running pod with this index (from another terminal)
    #[arg(long, value_name = "INDEX")]
    shell: Option<u32>,
    /// With --shell: run this command instead of a shell
    #[arg(last = true, value_name = "CMD", requires = "shell")]
    command: Vec<OsString>,
}

/// Runs the MiniCluster, or a shell in it; returns the exit code of the run or of the shell.
pub fn run(args: &LocalArgs) -> Result<u8, Failure> {
    let source = source(&args.file).map_err(source_failure)?;
    let run_folder = run_folder::RunFolder::of(&source.spec.name)?;
    if let Some(index) = args.shell {
        return shell::enter_pod(&run_folder, &source.spec.name, index, &args.command);
    }
    let machine = machine(args)?;
    let mut arrangement = Arrangement::of(&source, &machine).map_err(|why| {
        Failure::new(
            Category::SpecInvalid,
            format!("failed to run it on this machine: {why}"),
            "run it in a cluster",
        )
    })?;
    log::set_quiet(source.spec.logging.quiet);
    let run_folder = run_folder.take()?;
    let code = run_in(&run_folder, &mut arrangement, &source, &machine);
    if args.keep {
        tracing::info!(
            stage = "local",
            "the pods' files are in {}/pods/INDEX/root",
            run_folder.path().display()
        );
        return code;
    }
    let removed = run_folder.remove();
    code.and_then(|code| removed.map(|()| code))
}

/// Runs the containers with the run folder locked; returns the exit code of the run.
fn run_in(
    run_folder: &run_folder::LockedRunFolder,
    arrangement: &mut Arrangement,
    source: &Source,
    machine: &Machine,
) -> Result<u8, Failure> {
    run_folder.prepare(arrangement)?;
    let size = source.spec.size;
    let pods = if size == 1 {
        "1 pod".to_owned()
    } else {
        format!("{size} pods")
    };
    tracing::info!(
        stage = "local",
        "{}: {pods} on this machine, with the Flux in {}",
        source.spec.name,
        machine.prefix
    );
    source
        .text_notices
        .iter()
        .chain(&arrangement.notices)
        .for_each(|notice| tracing::info!(stage = "local", "{notice}"));
    namespaces::enter(machine)?;
    network::up(size)?;
    crate::system::runtime::block_on(Box::pin(run::run_containers(arrangement, run_folder, machine)))
}

fn source_failure(error: DryRunError) -> Failure {
    let cause = error.listed_problems().unwrap_or_else(|| chain(&error));
    Failure::new(error.category(), cause, error.hint().unwrap_or_default())
}

/// The parts of this machine and of this process's environment that the pods get.
fn machine(args: &LocalArgs) -> Result<Machine, Failure> {
    let text = |name: &str| std::env::var(name).ok();
    let here = std::env::current_dir().map_err(|error| not_found("this folder", &error))?;
    let agent = std::env::current_exe().map_err(|error| not_found("the agent's own binary", &error))?;
    let home = text("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute() && home.is_dir());
    // FAKE_FLUX_RECORD is for the fake Flux of the agent's tests.
    let passed_variables = ["LANG", "LC_ALL", "TERM", "TZ", "FAKE_FLUX_RECORD"];
    let environment: BTreeMap<String, String> = passed_variables
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), text(name)?)))
        .collect();
    Ok(Machine {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        prefix: prefix(args.flux.as_deref())?.to_string_lossy().into_owned(),
        agent: agent.to_string_lossy().into_owned(),
        here: here.to_string_lossy().into_owned(),
        home: home.map(|home| home.to_string_lossy().into_owned()),
        path: text("PATH").unwrap_or_else(|| flux_agent_plan::known_paths::DEFAULT_PATH.to_owned()),
        environment,
    })
}

fn not_found(what: &str, error: &std::io::Error) -> Failure {
    Failure::internal(format!("failed to find {what}: {}", plain(error)))
}

/// The folder with Flux's `bin/flux`: `given`, or by the `flux` on the PATH.
fn prefix(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let remedy = "give the folder that Flux is installed in with --flux, or put flux on the PATH";
    let view_missing = |what: String| {
        Failure::new(
            Category::ViewMissing,
            format!("failed to find Flux: {what}"),
            remedy,
        )
    };
    let real = |path: &Path| {
        std::fs::canonicalize(path)
            .map_err(|error| view_missing(format!("{}: {}", path.display(), plain(&error))))
    };
    if let Some(prefix) = given {
        real(&prefix.join("bin/flux"))?;
        return real(prefix);
    }
    let environment: Environment = std::env::vars_os().collect();
    // A `flux` in the current folder does not count: pods ignore relative folders on the PATH (`HostFiles::which`).
    let Lookup::Program(program) = find(OsStr::new("flux"), &environment, Path::new("/")) else {
        return Err(view_missing("there is no `flux` on the PATH".into()));
    };
    // A link on the PATH is followed if its target is called bin/flux, too.
    let program = Some(real(&program)?)
        .filter(|program| program.ends_with("bin/flux"))
        .unwrap_or(program);
    match program.parent().and_then(Path::parent) {
        Some(prefix) if program.ends_with("bin/flux") => real(prefix),
        _ => Err(view_missing(format!(
            "{} is not in a folder PREFIX/bin",
            program.display()
        ))),
    }
}
