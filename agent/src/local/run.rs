//! Runs the containers: starts them all, prints their output, and ends when all have ended.
//!
//! As in a cluster, all pods are stopped if the lead has ended, a follower fails or a stop signal comes. Pods that have
//! not ended in the grace period are killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use flux_shared::exit::{REPLACE, of_signal};
use flux_shared::names::{self, GRACE_PERIOD};
use flux_shared::paths::TERMINATION_LOG;
use flux_shared::termination::Termination;
use nix::sched::{CloneFlags, unshare};

use super::containers::{Arrangement, LocalContainer, Machine};
use super::inside::not_started;
use super::output::{self, To};
use super::run_folder::{LockedRunFolder, pid_file, pod_folder};
use crate::report::failure::Failure;
use crate::supervise::policy::{DefaultPolicy, Terms};
use crate::supervise::program::{ChildProgram, Environment, Output};
use crate::supervise::{Event, Supervisor, is_stop, until};
use crate::system::below;
use crate::system::raw::{self, ChildSetup};

/// How long the other pods have to end by themselves (an arbitrary time) once the lead has ended. Then they get a stop.
const AFTER_THE_LEAD: Duration = Duration::from_secs(5);

/// A started container.
#[derive(Debug)]
struct Running<'a> {
    container: &'a LocalContainer,
    pid: i32,
    /// The exit code; none: it still runs.
    code: Option<u8>,
}

/// Runs all containers; returns the exit code of the lead, of the follower that failed, or of a stop before the start.
pub async fn run_containers(
    arrangement: &Arrangement,
    run_folder: &LockedRunFolder,
    machine: &Machine,
) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| Failure::internal(format!("failed to receive signals: {error}"));
    let mut supervisor = Supervisor::new().map_err(failed)?;
    if arrangement.needs_certificate() {
        write_certificate(arrangement, run_folder, machine, &mut supervisor).await?;
        if let Some(stop) = supervisor.received_stop() {
            return Ok(of_signal(stop.signal));
        }
        run_folder.copy_certificate(&arrangement.containers)?;
    }
    run_folder.hand_out(&arrangement.containers)?;
    let (mut all, mut copiers) = (Vec::new(), Vec::new());
    for container in &arrangement.containers {
        let pid = start(container, run_folder, arrangement, machine, &mut copiers)?;
        supervisor.remember(pid);
        all.push(Running {
            container,
            pid,
            code: None,
        });
    }
    let mut state = RunState {
        all,
        grace: Duration::from_secs(arrangement.grace_period),
        is_stopping: false,
        next: None,
        result: None,
    };
    while !state.is_over() {
        tokio::select! {
            biased;
            event = supervisor.event() => {
                state.handle_event(event.map_err(failed)?, supervisor.is_duplicate_stop());
                state.note_ends(&mut supervisor, run_folder);
            }
            () = until(state.next.map(|(at, _)| at)) => state.on_timeout(),
        }
    }
    copiers.into_iter().for_each(|copier| drop(copier.join()));
    Ok(state.result.unwrap_or_default())
}

/// Writes the pods' certificate: the MiniCluster's, else a new one by `flux keygen`.
async fn write_certificate(
    arrangement: &Arrangement,
    run_folder: &LockedRunFolder,
    machine: &Machine,
    supervisor: &mut Supervisor,
) -> Result<(), Failure> {
    let path = run_folder.certificate();
    if let Some(text) = &arrangement.certificate {
        return std::fs::write(&path, text).map_err(|error| Failure::write("write", &path, &error));
    }
    // An earlier run with `--keep` may have left one.
    let _ = std::fs::remove_file(&path);
    let flux = format!("{}/bin/flux", machine.prefix);
    // Any name would do. The operator's certificates have that of the lead's host, too.
    let name = format!("--name={}", names::host(&arrangement.spec.name, 0));
    let argv = [flux.into(), "keygen".into(), name.into(), path.into_os_string()];
    let environment: Environment = std::env::vars_os().collect();
    let keygen = ChildProgram {
        argv: &argv,
        environment: &environment,
        directory: Path::new("/"),
        output: Output::Discard,
        setup: ChildSetup {
            dies_with_agent: true,
            umask: Some(0o077),
            ..ChildSetup::default()
        },
    };
    let failed =
        |why: String| Failure::internal(format!("failed to create the pods' key with flux keygen: {why}"));
    let child = supervisor
        .start(&keygen)
        .map_err(|error| failed(error.to_string()))?;
    let ended = supervisor.run(child, Terms::of_group(), &mut DefaultPolicy).await;
    let ended = ended.map_err(|error| failed(error.to_string()))?;
    match ended.end.code() {
        // `run_containers` ends after the stop.
        _ if supervisor.received_stop().is_some() => Ok(()),
        0 => Ok(()),
        code => Err(failed(format!("it ended with {code}"))),
    }
}

/// Starts a container; returns the pid of its first process, which dies with this process. Threads that copy its
/// output are added to `copiers`.
fn start(
    container: &LocalContainer,
    run_folder: &LockedRunFolder,
    arrangement: &Arrangement,
    machine: &Machine,
    copiers: &mut Vec<JoinHandle<()>>,
) -> Result<i32, Failure> {
    let failed = |error: std::io::Error| not_started(&container.name(), &error);
    let file = PathBuf::from(format!("{}.json", container.root));
    let mut container = container.clone();
    container
        .words
        .push(format!("{GRACE_PERIOD}={}", arrangement.grace_period));
    let text = serde_json::to_string_pretty(&container).map_err(|error| failed(error.into()))?;
    std::fs::write(&file, text).map_err(|error| Failure::write("write", &file, &error))?;
    let mut command = Command::new(&machine.agent);
    command.arg("local-container").arg(file).current_dir("/");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    raw::prepare(
        &mut command,
        ChildSetup {
            dies_with_agent: true,
            // As process 1 of a pid namespace, the child would lose signals that come before it blocks them.
            has_signals_blocked: true,
            ..ChildSetup::default()
        },
    );
    let (done, started) = channel();
    // Only the children of this thread are in the new pid namespace. The kernel kills them when the thread ends
    // (PDEATHSIG), so it never ends.
    let spawn = move || {
        let child = unshare(CloneFlags::CLONE_NEWPID)
            .map_err(std::io::Error::from)
            .and_then(|()| command.spawn());
        if done.send(child).is_ok() {
            loop {
                std::thread::park();
            }
        }
    };
    std::thread::Builder::new()
        .stack_size(128 << 10)
        .spawn(spawn)
        .map_err(failed)?;
    let mut child = started
        .recv()
        .map_err(|error| failed(std::io::Error::other(error)))?
        .map_err(failed)?;
    let name = (!container.is_lead()).then(|| container.name());
    if let Some(output) = child.stdout.take() {
        copiers.push(output::copy(output, To::Output, name.clone()).map_err(failed)?);
    }
    if let Some(errors) = child.stderr.take() {
        copiers.push(output::copy(errors, To::Errors, name).map_err(failed)?);
    }
    // `local --shell` reads it, and enters the container that runs Flux.
    if container.sidecar.is_none() {
        let path = pid_file(run_folder.path(), container.index);
        std::fs::write(&path, child.id().to_string())
            .map_err(|error| Failure::write("write", &path, &error))?;
    }
    Ok(child.id().cast_signed())
}

/// What happens when a deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtTimeout {
    Stop,
    Kill,
}

#[derive(Debug)]
struct RunState<'a> {
    /// All containers, also those that have ended.
    all: Vec<Running<'a>>,
    /// Time from a stop to a kill.
    grace: Duration,
    /// Whether the pods were told to stop.
    is_stopping: bool,
    /// The next deadline, and what to do then.
    next: Option<(Instant, AtTimeout)>,
    /// The exit code of the run, once it is known.
    result: Option<u8>,
}

impl RunState<'_> {
    fn is_over(&self) -> bool {
        self.all.iter().all(|running| running.code.is_some())
    }

    /// `is_duplicate_stop`: whether a stop signal that comes now is the first one sent twice.
    fn handle_event(&mut self, event: Event, is_duplicate_stop: bool) {
        match event {
            // `note_ends` is called next, and asks for all ends.
            Event::Child => {}
            Event::Stop => self.stop("stopping all pods"),
            Event::Signal(_) if is_duplicate_stop => {}
            // The first stop signal was an `Event::Stop`.
            Event::Signal(received) if is_stop(received.number) => {
                self.kill("second stop signal: killing what is left");
            }
            Event::Signal(_) => {}
        }
    }

    fn note_ends(&mut self, supervisor: &mut Supervisor, run_folder: &LockedRunFolder) {
        let pids: Vec<i32> = self
            .all
            .iter()
            .filter(|running| running.code.is_none())
            .map(|running| running.pid)
            .collect();
        for pid in pids {
            if let Some(end) = supervisor.take_end(pid) {
                self.note_end(pid, end.code(), run_folder);
            }
        }
    }

    fn note_end(&mut self, pid: i32, code: u8, run_folder: &LockedRunFolder) {
        let Some(running) = self.all.iter_mut().find(|running| running.pid == pid) else {
            return;
        };
        running.code = Some(code);
        let container = running.container;
        if container.sidecar.is_some() {
            // While the run ends, or once Flux's container in the same pod has ended, sidecars are stopped by a signal.
            // That is no failure.
            let has_pod_ended = self.all.iter().any(|other| {
                other.container.index == container.index
                    && other.container.sidecar.is_none()
                    && other.code.is_some()
            });
            if code != 0 && !self.is_stopping && self.next.is_none() && !has_pod_ended {
                tracing::warn!(stage = "local", "{} ended with {code}", container.name());
            }
            return;
        }
        let _ = std::fs::remove_file(pid_file(run_folder.path(), container.index));
        // The container that runs Flux has ended: its pod's sidecars are stopped.
        self.signal(libc::SIGTERM, |other| other.index == container.index);
        if container.is_lead() {
            self.result = Some(self.result.unwrap_or(code));
            if !self.is_stopping {
                self.next = Some((Instant::now() + AFTER_THE_LEAD, AtTimeout::Stop));
            }
        } else if code != 0 && code != REPLACE && !self.is_stopping && self.result.is_none() {
            self.result = Some(code);
            self.stop(&format!(
                "{}: stopping all pods",
                end_of(container, code, run_folder)
            ));
        } else if code == REPLACE && !self.is_stopping && self.result.is_none() {
            tracing::info!(
                stage = "local",
                "{} was stopped: a cluster would replace it, flux-agent local does not",
                container.name()
            );
        }
    }

    fn on_timeout(&mut self) {
        match self.next {
            Some((_, AtTimeout::Kill)) => self.kill("not ended in the grace period: killing what is left"),
            _ => self.stop("the lead has ended: stopping the other pods"),
        }
    }

    fn stop(&mut self, why: &str) {
        tracing::info!(stage = "local", "{why}");
        self.is_stopping = true;
        self.next = Some((Instant::now() + self.grace, AtTimeout::Kill));
        // Sidecars are stopped when the container that runs Flux has ended (`note_end`).
        self.signal(libc::SIGTERM, |other| other.sidecar.is_none());
    }

    fn kill(&mut self, why: &str) {
        tracing::info!(stage = "local", "{why}");
        // With the first process of a pid namespace, all its processes end: no other deadline is needed.
        self.next = None;
        self.signal(libc::SIGKILL, |_| true);
    }

    fn signal(&self, signal: i32, is_target: impl Fn(&LocalContainer) -> bool) {
        for running in self
            .all
            .iter()
            .filter(|running| running.code.is_none() && is_target(running.container))
        {
            // An error means that the process has just ended: `note_ends` will see it.
            let _ = raw::send(running.pid, signal);
        }
    }
}

/// How a container ended, by its exit code and its own termination message.
fn end_of(container: &LocalContainer, code: u8, run_folder: &LockedRunFolder) -> String {
    let path = below(
        &pod_folder(run_folder.path(), container.index).join("root"),
        TERMINATION_LOG,
    );
    let termination = std::fs::read_to_string(path)
        .ok()
        .and_then(|text| Termination::decode(&text));
    let why = termination
        .and_then(|termination| Some(format!(" ({})", termination.category?.name())))
        .unwrap_or_default();
    format!("{} ended with {code}{why}", container.name())
}
