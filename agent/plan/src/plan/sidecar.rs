//! The steps of a sidecar: run the user's command, usually once the broker answers on its socket.

use flux_shared::agent_spec::Sidecar;
use flux_shared::command_words::Word;

use super::resolved::grace_share;
use super::{
    AtEnd, Content, InstancePart, Launch, Mode, PlanError, Resolved, SignalTarget, Stdout, Step, environment,
    snippets, user,
};

/// All steps of the sidecar `name`.
pub fn steps(resolved: &Resolved, name: &str, sidecar: &Sidecar) -> Result<Vec<Step>, PlanError> {
    let mut steps = user::steps(resolved);
    steps.extend(environment::around_init(
        resolved,
        snippets::step(resolved, "init", sidecar.init.as_ref()),
    ));
    steps.push(environment::sidecar_step(resolved));
    let script = script(resolved, name, sidecar)?;
    steps.extend(script.clone());
    steps.extend(snippets::step(
        resolved,
        "preCommand",
        sidecar.pre_command.as_ref(),
    ));
    steps.extend(snippets::step(resolved, "pre", sidecar.pre.as_ref()));
    steps.extend(snippets::step(
        resolved,
        "servicePre",
        sidecar.service_pre.as_ref(),
    ));
    if sidecar.wait_socket {
        steps.push(Step::WaitSocket {
            path: resolved.socket(),
        });
    }
    let command = command(resolved, name, sidecar, script.is_some());
    // Without a command, there is nothing to wait for.
    steps.extend(command.as_ref().and(linger(resolved, sidecar)));
    steps.extend(command);
    steps.extend(snippets::post(resolved, sidecar.post.as_ref()));
    // After a command that has failed, the agent exits with its code before this step. Otherwise the container stays
    // until the pod ends, since Kubernetes would restart it.
    steps.push(Step::Stay);
    Ok(steps)
}

/// How long the command may take to end by itself once Flux has ended, in seconds (arbitrary).
const LONGEST_LINGER: f64 = 10.0;

/// The step that holds back a stop after the end of Flux, so that the command can end by itself. None for a server,
/// which never ends by itself.
fn linger(resolved: &Resolved, sidecar: &Sidecar) -> Option<Step> {
    // At most two thirds of the grace period: the command needs the rest to end after the stop.
    let seconds = LONGEST_LINGER.min(grace_share(resolved.facts, 2.0 / 3.0));
    let step = Step::Linger {
        note: resolved.paths.ended_note(),
        seconds,
    };
    (!sidecar.serves).then_some(step)
}

/// The runner's step [`Step::NoteEnd`], which writes the note that sidecars wait for. None if no sidecar waits for it.
pub fn note_end(resolved: &Resolved) -> Option<Step> {
    let is_awaited = resolved.spec.sidecars.values().any(|sidecar| !sidecar.serves);
    is_awaited.then(|| Step::NoteEnd {
        note: resolved.paths.ended_note(),
    })
}

/// The step that runs the sidecar's command: the script as a program or, without a script, the command as shell source
/// in the shell of the earlier snippets. If it fails, its exit code becomes the container's.
fn command(resolved: &Resolved, name: &str, sidecar: &Sidecar, has_script: bool) -> Option<Step> {
    if !has_script {
        return snippets::program(resolved, sidecar.command.as_ref());
    }
    let script = vec![Word::Literal(script_path(resolved, name))];
    let launch = Launch {
        label: snippets::COMMAND,
        part: InstancePart::Command,
        argv: script.clone(),
        options: None,
        flux: None,
        program: script,
        run_as: None,
        environment: Vec::new(),
        stdout: Stdout::Inherit,
        signals: SignalTarget::Group,
        socket: None,
        parent: None,
        lead: None,
        hold_stop: None,
        drain: None,
        below: String::new(),
        job_shell: None,
        metrics: None,
        result: None,
        record: None,
        needs_instance: false,
        at_end: AtEnd::Exit,
    };
    Some(Step::Launch(launch.into()))
}

/// The step that writes the script. None if the sidecar has no script.
fn script(resolved: &Resolved, name: &str, sidecar: &Sidecar) -> Result<Option<Step>, PlanError> {
    let Some(text) = sidecar.script.as_ref().filter(|text| !text.trim().is_empty()) else {
        return Ok(None);
    };
    let content = Content::Text(super::snippets::with_shebang(resolved, text, "the script")?);
    let step = Step::File {
        path: script_path(resolved, name),
        mode: Mode(0o755),
        owner: resolved.agent_owner(),
        content,
    };
    Ok(Some(step))
}

/// The script's path: in the sidecar's own home or, without one, at the root of the shared mount. (A
/// sidecar cannot write to the folder of the configuration.)
fn script_path(resolved: &Resolved, name: &str) -> String {
    let folder = user::home_volume(resolved.facts).unwrap_or_else(|| resolved.paths.mount());
    format!("{folder}/script-{name}")
}
