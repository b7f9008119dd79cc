//! The command line. Its help is the first documentation that a person in a pod sees.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
// `explain`, since this crate has a module `dry_run`, too.
use flux_agent_plan::dry_run as explain;
use flux_agent_plan::plan::PodContainer;
use flux_shared::exit::Category;
use flux_shared::paths::{
    DEFAULT_MOUNT_PATH, SOFTWARE_DIR, SOFTWARE_FOLDER, SOFTWARE_STAGING, TERMINATION_LOG,
};

use crate::commands::{self, CompletionShell, PodPlace};
use crate::dry_run;
use crate::execute;
use crate::in_instance::{accounting, batch, diagnostics, program, restful, time};
use crate::install::{self, Installed, install};
use crate::local;
use crate::report::failure::{Failure, chain, plain};
use crate::report::log::{self, LineFormat};
use crate::run;
use crate::system::below;
use crate::system::runtime::exit_on_stop_signal;
use crate::view;

/// The entrypoint of a Flux MiniCluster's pods.
///
/// In a pod: `install` and `view` fill the shared volume, then `run` is the container's entrypoint. It writes
/// Flux's files, runs the user's snippets, waits for the parent broker, starts Flux and ends with the job's
/// own exit code.
///
/// For people, by `kubectl exec POD -- /mnt/flux/flux-agent …`: `status` shows what the instance is waiting
/// for, `usage` its nodes, cores and jobs, `preflight` what is wrong with the pod; `connect` opens a shell in
/// the instance, `stop` shuts it down.
///
/// On a laptop or a login node, without a cluster: `dry-run FILE` shows what every pod of a MiniCluster would
/// do, and `local FILE` does it, with the Flux that is installed there.
#[derive(Debug, Parser)]
#[command(name = "flux-agent", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes of run and sidecar: those of the program (128 + n for signal n, 127 not found, 126 not executable).
If the agent itself fails, with one line on standard error (the termination message says who ended the pod):
  240 spec-unreadable   241 spec-invalid      242 view-missing    243 parent-unreachable  244 user-failed
  245 write-failed      246 curve-unreadable  247 shell-missing   248 broker-failed       249 internal
  239 lead-lost; 238: only this follower was stopped";

#[derive(Debug, Subcommand)]
enum Command {
    /// Install this binary atomically into a volume of the pod, and lay out the shared volume
    Install {
        /// Install as DIR/flux-agent, best in a volume that the other containers mount read-only [default: as
        /// --to]
        #[arg(long, value_name = "DIR")]
        binary: Option<PathBuf>,
        /// The shared volume, where the documented links are made [default: /mnt/flux; with --binary: none]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
        /// Link the view whose image is mounted at DIR into the shared volume
        #[arg(long, value_name = "DIR", requires = "to")]
        link_view: Option<PathBuf>,
        /// Also make one folder of that view's packages and the /opt/software of the runner's image. DIR is where
        /// the runner's image is mounted
        #[arg(long, value_name = "DIR", requires = "link_view")]
        runner_image: Option<PathBuf>,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Copy Flux (/opt/view and /opt/software) from this image into the pod's volumes, once
    View {
        /// The shared volume; the view becomes DIR/view
        #[arg(long, value_name = "DIR", default_value = DEFAULT_MOUNT_PATH)]
        to: PathBuf,
        /// The folder for the view's packages of /opt/software
        #[arg(long, value_name = "DIR", default_value = SOFTWARE_STAGING)]
        software: PathBuf,
        /// Look for the view below this folder
        #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
        root: PathBuf,
        /// Only make links: all containers run this image, so nothing is copied
        #[arg(long)]
        link: bool,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Merge the view's packages and this image's own /opt/software into one folder, which other containers see as
    /// /opt/software
    Software {
        /// Where all containers see the view's packages
        #[arg(long, value_name = "DIR")]
        packages: PathBuf,
        /// The folder to make
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// Look for this image's own below this folder
        #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
        root: PathBuf,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Run as the entrypoint of the container that runs Flux
    Run {
        /// Run as the entrypoint of this sidecar instead (same as `sidecar NAME`)
        #[arg(long, value_name = "NAME")]
        container: Option<String>,
        #[command(flatten)]
        options: run::RunOptions,
    },
    /// Run as the entrypoint of a sidecar: its snippets, then its command once the broker answers on its
    /// socket
    Sidecar {
        /// The container's name in the MiniCluster
        name: String,
        #[command(flatten)]
        options: run::RunOptions,
    },
    DryRun(explain::Args),
    Local(local::LocalArgs),
    /// Become a container of `local`
    #[command(hide = true)]
    LocalContainer {
        file: PathBuf,
    },
    /// Print what this container's entrypoint found in its pod, in the format of `dry-run --facts`
    Facts {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Open a shell inside the instance, or run CMD there, as Flux's user
    Connect {
        #[command(flatten)]
        place: PodPlace,
        #[arg(last = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Show the instance as seen by this pod: state, missing brokers and why, drained nodes, jobs
    Status {
        /// Exit with 0 if this pod's broker is up (and the RESTful API answers, if this pod serves it), else with 1
        /// and the reason; for probes
        #[arg(long)]
        ready: bool,
        /// With --ready: seconds to wait for the broker; the reason then names missing brokers
        #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "ready")]
        wait: u64,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: PodPlace,
    },
    /// Print nodes, cores, GPUs and jobs of the instance as JSON; exits with 1 if this pod's broker does not
    /// exist yet, does not answer or has not joined
    Usage {
        #[command(flatten)]
        place: PodPlace,
    },
    /// Check what Flux needs in this pod, with a remedy for each failure; exits with 1 if a check fails
    Preflight {
        #[command(flatten)]
        place: PodPlace,
    },
    /// Shut the instance down (on the lead): jobs are cancelled, state is saved, all pods end
    Stop {
        #[command(flatten)]
        place: PodPlace,
    },
    /// Print completions for a shell: `source <(flux-agent completions bash)`
    Completions {
        shell: CompletionShell,
    },
    /// Run a command and print its wall time to standard error: `FLUXTIME label wall time 0:04.73`
    Time {
        /// The word after FLUXTIME
        #[arg(long, default_value = "fluxsubmit")]
        label: String,
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Submit a batch and wait for it (the lead's program in batch mode)
    #[command(hide = true)]
    Batch(batch::BatchArgs),
    /// Run the lead's program: note how it ended, and give it time to stop
    #[command(hide = true)]
    Program(program::ProgramArgs),
    /// Report on the instance and keep it up (the lead's program in diagnostics mode)
    #[command(hide = true)]
    Diagnostics,
    /// Add users to Flux Accounting, then run a command (the lead's program where the image has Flux
    /// Accounting)
    #[command(hide = true)]
    Accounting {
        /// Database file of Flux Accounting
        #[arg(long)]
        database: PathBuf,
        /// A user to add
        #[arg(long = "user")]
        users: Vec<String>,
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Install and run the Flux RESTful API (the lead's program where there is no other)
    #[command(hide = true)]
    Restful(restful::RestfulArgs),
    /// Run a command as Flux's user, in Flux's environment (what `$asFlux` is in snippets)
    #[command(hide = true)]
    AsFlux {
        #[command(flatten)]
        place: PodPlace,
        #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Tell the agent the state of the shell that runs this
    #[command(hide = true)]
    SnippetState(execute::shell_state::StateReport),
}

#[derive(Debug, Args)]
struct LogArgs {
    /// Format of the agent's own log lines [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LineFormat>,
}

impl LogArgs {
    /// Sets the log format, for commands that read no spec.
    fn apply(&self) {
        log::set_format(self.log_format.unwrap_or_default());
    }
}

impl Cli {
    /// The command line of this process. `version` may have the commit, so `main.rs` passes it: a new commit then
    /// rebuilds nothing else.
    pub fn of_process(version: &'static str) -> Cli {
        let matches = Cli::command().version(version).get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Runs the subcommand; returns the exit code.
    pub fn run(self) -> ExitCode {
        ExitCode::from(match self.command {
            Command::Install {
                binary,
                to,
                link_view,
                runner_image,
                log,
            } => {
                log.apply();
                let view = link_view.as_deref();
                let merge = || match (view, runner_image) {
                    (Some(view), Some(runner)) => merge_mounted(view, runner),
                    _ => Ok(()),
                };
                code_of_init_container(
                    install_binary(binary, to, view)
                        .and_then(|()| merge())
                        .map(|()| 0),
                )
            }
            Command::View {
                to,
                software,
                root,
                link,
                log,
            } => {
                log.apply();
                code_of_init_container(
                    copy_or_link_view(
                        view::Places {
                            root,
                            mount: to,
                            staging: software,
                        },
                        link,
                    )
                    .map(|()| 0),
                )
            }
            Command::Software {
                packages,
                to,
                root,
                log,
            } => {
                log.apply();
                // Without `with_timeline_note`: the timeline has no stage for this work.
                let merge = || view::merge_software(&view::SoftwareOptions { root, packages, to });
                code_of_init_container(exit_on_stop_signal().and_then(|()| merge()).map(|()| 0))
            }
            Command::Run { container, options } => run::run_container(
                &options,
                &container.map_or(PodContainer::Runner, PodContainer::Sidecar),
            ),
            Command::Sidecar { name, options } => run::run_container(&options, &PodContainer::Sidecar(name)),
            Command::DryRun(args) if args.here => here(args.format),
            Command::Facts { json } => print_answer(
                entrypoint()
                    .and_then(|found| commands::facts(&found.facts, json))
                    .map(|text| (text, 0)),
            ),
            Command::DryRun(args) => show_plans(&args),
            Command::Local(args) => exit_code(local::run(&args)),
            Command::LocalContainer { file } => exit_code(local::become_container(&file)),
            Command::Connect { place, command } => {
                exit_code(commands::connect(&with_entrypoint_options(place), &command))
            }
            Command::Status {
                ready: true,
                wait,
                place,
                ..
            } => print_answer(commands::ready(&with_entrypoint_options(place), wait)),
            Command::Status { json, place, .. } => {
                print_answer(commands::status(&with_entrypoint_options(place), json))
            }
            Command::Usage { place } => print_answer(commands::usage(&with_entrypoint_options(place))),
            Command::Preflight { place } => {
                print_answer(commands::preflight(&with_entrypoint_options(place)))
            }
            Command::Stop { place } => exit_code(commands::stop(&with_entrypoint_options(place))),
            Command::Completions { shell } => write_out(&commands::script(shell, &Cli::command())),
            Command::Time { label, command } => exit_code(time::run(&label, &command)),
            Command::Batch(args) => exit_code(batch::run(&args)),
            Command::Program(args) => exit_code(program::run(&args)),
            Command::Diagnostics => exit_code(diagnostics::run()),
            Command::Accounting {
                database,
                users,
                command,
            } => exit_code(accounting::run(&database, &users, &command)),
            Command::Restful(args) => exit_code(restful::run(&args)),
            Command::AsFlux { place, command } => {
                exit_code(commands::as_flux(&with_entrypoint_options(place), &command))
            }
            Command::SnippetState(report) => {
                let failed =
                    |error| Failure::internal(format!("failed to report the shell's state: {error}"));
                exit_code(execute::shell_state::report(&report).map(|()| 0).map_err(failed))
            }
        })
    }
}

impl Cli {
    /// Whether the subcommand, or the program that it becomes, handles signals itself. They then stay blocked from
    /// the start, so that none is lost. These are the programs of containers and those of `in_instance`. `local` blocks
    /// them only when it starts its containers: before, a signal may end it.
    pub fn handles_signals(&self) -> bool {
        matches!(
            self.command,
            Command::Run { .. }
                | Command::LocalContainer { .. }
                | Command::Sidecar { .. }
                | Command::Install { .. }
                | Command::View { .. }
                | Command::Software { .. }
                | Command::Time { .. }
                | Command::Batch(_)
                | Command::Program(_)
                | Command::Diagnostics
                | Command::Accounting { .. }
                | Command::Restful(_)
        )
    }
}

/// In the init container of the agent's image: installs the binary and, if the arguments name a shared volume beside
/// it or a view, lays out the volume or links the view.
fn install_binary(
    binary: Option<PathBuf>,
    to: Option<PathBuf>,
    link_view: Option<&Path>,
) -> Result<(), Failure> {
    // Without --binary, one volume holds everything. The view's container or the entrypoint lays it out.
    let is_one_volume = binary.is_none();
    let (folder, mount) = match (binary, to) {
        (Some(folder), mount) => (folder, mount),
        (None, mount) => {
            let mount = mount.unwrap_or_else(|| DEFAULT_MOUNT_PATH.into());
            (mount.clone(), Some(mount))
        }
    };
    let installed = with_timeline_note("install", &folder, || install(&folder))?;
    let (Installed::Now(path) | Installed::Already(path)) = &installed;
    let verb = if matches!(installed, Installed::Now(_)) {
        "installed as"
    } else {
        "already at"
    };
    tracing::info!(stage = "install", "{verb} {}", path.display());
    let Some(mount) = mount else { return Ok(()) };
    match link_view {
        Some(root) => with_timeline_note("view", &mount, || view::link_view(root, &mount))?,
        None if is_one_volume => return Ok(()),
        None => view::lay_out(&mount)?,
    }
    install::link(&mount, path)
}

/// In the init container of the agent's image: merges the packages of the view's image, which is mounted at `view`,
/// and the /opt/software of the runner's image, which is mounted at `runner`, into one folder.
fn merge_mounted(view: &Path, runner: PathBuf) -> Result<(), Failure> {
    let packages = below(view, SOFTWARE_DIR);
    view::merge_software(&view::SoftwareOptions {
        root: runner,
        packages,
        to: Path::new(SOFTWARE_STAGING).join(SOFTWARE_FOLDER),
    })
}

/// In the view's container: copies the view into the shared volume, or links it.
fn copy_or_link_view(places: view::Places, link: bool) -> Result<(), Failure> {
    let view::Places { root, mount, .. } = &places;
    if link {
        return with_timeline_note("view", mount, || view::link_view(root, mount))
            .and_then(|()| install::link_own(mount));
    }
    with_timeline_note("view", mount, || view::install(&places))
}

/// Does `work` and, if it succeeded, leaves a note for the timelines of the pod's other containers. A stop signal
/// during the work, or later, ends the process at once.
fn with_timeline_note<T>(
    stage: &str,
    note_folder: &Path,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let begin = Instant::now();
    exit_on_stop_signal()?;
    let done = work()?;
    crate::execute::timing::leave_note(&note_folder.to_string_lossy(), stage, begin);
    Ok(done)
}

/// This container's entrypoint, if process 1 is one.
fn known_entrypoint() -> Option<commands::Entrypoint> {
    let process = commands::process_one()?;
    let (container, options) = match Cli::try_parse_from(&process.words).ok()?.command {
        Command::Run { container, options } => (
            container.map_or(PodContainer::Runner, PodContainer::Sidecar),
            options,
        ),
        Command::Sidecar { name, options } => (PodContainer::Sidecar(name), options),
        _ => return None,
    };
    Some(commands::Entrypoint {
        container,
        options,
        process,
    })
}

/// The spec and facts that this container's entrypoint plans from.
fn entrypoint() -> Result<commands::OwnContainer, Failure> {
    commands::OwnContainer::read(known_entrypoint())
}

/// `place` with the options of this container's entrypoint, if process 1 is one.
fn with_entrypoint_options(place: PodPlace) -> PodPlace {
    match known_entrypoint() {
        Some(entrypoint) => place.with_entrypoint_options(entrypoint.options),
        None => place,
    }
}

/// `dry-run --here`: prints the plan of this container's entrypoint; returns the exit code.
fn here(format: explain::Format) -> u8 {
    print_answer(
        entrypoint()
            .and_then(|container| dry_run::here(container, format))
            .map(|text| (text, 0)),
    )
}

/// Prints a command's output; returns its exit code.
fn print_answer(answer: Result<(String, u8), Failure>) -> u8 {
    exit_code(answer.map(|(text, code)| {
        let write_code = write_out(&text);
        if code == 0 { write_code } else { code }
    }))
}

/// The exit code. A failure is logged, but not written to the termination message, which belongs to the
/// entrypoint.
fn exit_code(result: Result<u8, Failure>) -> u8 {
    result.unwrap_or_else(|failure| {
        log::failure(&failure);
        failure.category.code()
    })
}

/// The exit code of an init container, which has a termination message of its own: a failure goes there as well.
fn code_of_init_container(result: Result<u8, Failure>) -> u8 {
    exit_code(result.inspect_err(|failure| failure.report(TERMINATION_LOG.as_ref())))
}

/// Prints the plans, or what is wrong; returns the exit code.
fn show_plans(args: &explain::Args) -> u8 {
    match explain::run(args, dry_run::read) {
        Ok(text) if args.format == explain::Format::Text && should_use_color() => {
            write_out(&explain::paint(&text))
        }
        Ok(text) => write_out(&text),
        Err(error) => {
            let category = error.category();
            if let Some(lines) = error.listed_problems() {
                log::write_whole(format!("flux-agent: {}: {lines}\n", category.name()));
                return category.code();
            }
            exit_code(Err(Failure::new(
                category,
                chain(&error),
                error.hint().unwrap_or_default(),
            )))
        }
    }
}

/// Whether standard output is a terminal and color is not disabled (https://no-color.org).
fn should_use_color() -> bool {
    use std::io::IsTerminal;
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Writes to standard output; returns the exit code. A reader that has closed the pipe (`| head`) is no failure.
fn write_out(text: &str) -> u8 {
    use std::io::Write;
    let mut output = std::io::stdout();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => exit_code(Err(Failure::new(
            Category::WriteFailed,
            format!("failed to write to standard output: {}", plain(&error)),
            "",
        ))),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_command_line_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_operators_options_are_known() {
        use flux_shared::names::RESTARTS_LEFT;
        assert!(
            Cli::try_parse_from(["flux-agent", "run", "--grace-period", "30", RESTARTS_LEFT, "2"]).is_ok()
        );
    }

    #[test]
    fn time_beyond_the_clocks_range_is_refused_or_kept() {
        let parse =
            |option: &str| Cli::try_parse_from(["flux-agent", "run", &format!("{option}={}", u64::MAX)]);
        assert!(parse("--grace-period").is_err());
        // These are only compared with the time that has passed.
        for option in ["--patience", "--parent-deadline", "--lead-gone", "--lead-silent"] {
            assert!(parse(option).is_ok(), "{option}");
        }
    }

    /// A pod has its own spec, facts and environment.
    #[test]
    fn dry_run_here_takes_only_a_format() {
        let parse = |more: &[&str]| {
            Cli::try_parse_from([&["flux-agent", "dry-run", "--here"], more].concat()).is_ok()
        };
        assert!(parse(&[]) && parse(&["--format", "json"]));
        for more in [
            &["a.yaml"][..],
            &["--full"],
            &["--env", "A=b"],
            &["--name-from-env", "A"],
            &["--lead-from-env", "A"],
            &["--", "hostname"],
        ] {
            assert!(!parse(more), "{more:?}");
        }
    }

    #[test]
    fn a_host_without_cores_is_refused() {
        let parse = |cpus: &str| Cli::try_parse_from(["flux-agent", "dry-run", "--cpus", cpus, "a.yaml"]);
        assert!(parse("1").is_ok());
        let error = parse("0").unwrap_err().to_string();
        assert!(error.contains("'0' for '--cpus <N>'"), "{error}");
    }

    #[test]
    fn the_help_names_every_category_with_its_code() {
        for category in Category::ALL {
            assert!(
                EXIT_CODES.contains(&format!("{} {}", category.code(), category.name())),
                "{}",
                category.name()
            );
        }
    }
}
