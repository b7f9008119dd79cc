//! `connect`, `as-flux` and `stop`: become a program inside the instance.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use flux_shared::agent_spec::RestartPolicy;
use flux_shared::exit::{Category, NOT_EXECUTABLE, NOT_FOUND};

use super::observe;
use super::pod::{Pod, PodPlace};
use crate::execute::program_note::{note_shutdown, read_note};
use crate::execute::session::Session;
use crate::in_instance::flux_wrapper::is_flux_only;
use crate::report::failure::{Failure, plain};
use crate::report::log::write_whole;
use crate::supervise::program::{Lookup, find};
use crate::system::runtime;

/// Becomes a shell, or `command`, with Flux's environment and user. If no broker answers, it warns first, and goes on.
/// Returns only if the program cannot be started.
pub fn connect(place: &PodPlace, command: &[OsString]) -> Result<u8, Failure> {
    let pod = Pod::read(place)?;
    observe::become_owner(&pod)?;
    runtime::block_on_interruptible(Box::pin(async {
        if let Err(why) = observe::state(&pod).await {
            write_whole(format!(
                "flux-agent: no broker to connect to ({why}); `flux-agent status` says more\n"
            ));
        }
        // Nobody reads this exit code.
        Ok(0)
    }))?;
    let argv = match (command, &pod.facts.shell) {
        ([], Some(shell)) => vec![shell.into()],
        ([], None) => {
            let remedy = "give a command: flux-agent connect -- flux resource list";
            return Err(Failure::new(
                Category::ShellMissing,
                "failed to find a shell in this image",
                remedy,
            ));
        }
        (command, _) => command.to_vec(),
    };
    Ok(become_program(&pod, session_in_instance(&pod), &argv))
}

/// Becomes `command` as Flux's user in Flux's environment, whether or not there is a broker yet (`$asFlux` in
/// snippets). Without the broker's socket, FLUX_URI is not set to it: it would lead nowhere.
pub fn as_flux(place: &PodPlace, command: &[OsString]) -> Result<u8, Failure> {
    let pod = Pod::read(place)?;
    observe::become_owner(&pod)?;
    let session = if observe::has_socket(&pod) {
        session_in_instance(&pod)
    } else {
        pod.session()
    };
    Ok(become_program(&pod, session, command))
}

/// Shuts the instance down, and does not wait for its end: this process's container ends with it. If the instance is
/// already ending, or has ended, its failed program does not run again. Only the lead can do this: elsewhere, `stop`
/// prints where to run the command, and returns 1.
pub fn stop(place: &PodPlace) -> Result<u8, Failure> {
    let pod = Pod::read(place)?;
    let instance = &pod.instance;
    if instance.is_lead {
        observe::become_owner(&pod)?;
        let mut is_ending = false;
        runtime::block_on_interruptible(Box::pin(async {
            is_ending = observe::state(&pod).await.is_ok_and(|state| state.is_ending());
            // Nobody reads this exit code.
            Ok(0)
        }))?;
        // After the state was read: when a broker is seen to end the instance, its program's end has been noted.
        let prevents_restart = prevent_restart(&pod)?;
        // Flux refuses a second shutdown. And once its program has ended, the broker shuts down by itself.
        if is_ending || prevents_restart {
            return Ok(0);
        }
        return Ok(become_program(
            &pod,
            session_in_instance(&pod),
            &["flux", "shutdown", "--background"].map(OsString::from),
        ));
    }
    let (name, namespace) = (&pod.spec.name, &pod.spec.namespace);
    write_whole(match &pod.spec.network.lead {
        Some(lead) => format!(
            "flux-agent: this is {}: an instance is shut down on its lead, {}, with `flux shutdown`\n",
            instance.hostname, lead.address
        ),
        None => format!(
            "flux-agent: this is {} (rank {}): an instance is shut down on its lead:\n  kubectl exec -n {namespace} \
             $(kubectl get pod -n {namespace} -o name -l batch.kubernetes.io/job-name={name},\
             batch.kubernetes.io/job-completion-index=0) -- {} stop\n",
            instance.hostname,
            instance.rank,
            pod.spec.paths().agent()
        ),
    });
    Ok(1)
}

/// Notes that somebody shut the instance down, if its program has failed and would otherwise run again. Returns whether
/// this is noted now. (Before the program may run again, `Executor::check_earlier_starts` removes the old note.)
fn prevent_restart(pod: &Pod) -> Result<bool, Failure> {
    if pod.spec.restart_policy != RestartPolicy::OnFailure {
        return Ok(false);
    }
    let path = pod.program_note();
    let Some(note) = read_note(&path).filter(|note| note.code.is_some_and(|code| code != 0)) else {
        return Ok(false);
    };
    if !note.is_shut_down {
        note_shutdown(&path).map_err(|error| Failure::write("write", &path, &error))?;
    }
    Ok(true)
}

/// The environment, user and folder of programs in the instance.
fn session_in_instance(pod: &Pod) -> Session {
    let mut session = pod.session();
    let socket = format!("local://{}", pod.instance.socket);
    // With `fluxsocket`, the documented `flux proxy $fluxsocket` works here as it does after flux-view.sh.
    for name in ["FLUX_URI", "fluxsocket"] {
        session.environment.insert(name.into(), socket.clone().into());
    }
    session
}

/// Replaces this process by the program. Returns only if that fails: the exit code that a shell would give.
///
/// `flux` is the instance's own, even if the PATH has another one before it. It gets its path as `argv[0]`, so that
/// Flux puts its own folder first on the PATH.
fn become_program(pod: &Pod, mut session: Session, argv: &[OsString]) -> u8 {
    let mut name = argv[0].as_os_str();
    if name == "flux"
        && let Ok(flux) = &pod.instance.flux
    {
        name = OsStr::new(flux);
        // By `flux python`, the Python package's executor runs its helper, which the user's search paths could break.
        if is_flux_only(&argv[1..]) || argv.get(1).is_some_and(|command| command == "python") {
            pod.instance
                .for_flux
                .iter()
                .for_each(|change| session.apply(change));
        }
    }
    let (path, why, code) = match find(name, &session.environment, &session.directory) {
        // Used only if exec fails, which then says why.
        Lookup::Program(path) => (Some(path), String::new(), NOT_EXECUTABLE),
        Lookup::NotExecutable(_) => (None, "it is not executable".into(), NOT_EXECUTABLE),
        Lookup::NotFound => (None, "not found on the PATH".into(), NOT_FOUND),
    };
    let why = path.map_or(why, |path| {
        plain(
            &Command::new(path)
                .arg0(name)
                .args(&argv[1..])
                .env_clear()
                .envs(&session.environment)
                .exec(),
        )
    });
    write_whole(format!(
        "flux-agent: failed to start {}: {why}\n",
        name.to_string_lossy()
    ));
    code
}
