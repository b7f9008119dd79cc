//! A container beside the runner: the user's command, once the broker answers on its socket.

use flux_shared::agent_spec::Sidecar;
use flux_shared::paths::FALLBACK_HOME;
use flux_shared::words::Word;

use super::{
    AtEnd, Content, Launch, Mode, Owner, PlanError, Planned, Scene, Stdout, Step, environment, program, snippets, user,
};

pub fn steps(scene: &Scene, name: &str, sidecar: &Sidecar) -> Result<Vec<Planned>, PlanError> {
    let mut steps = user::steps(scene);
    steps.extend(snippets::step(scene, "init", sidecar.init.as_ref())?);
    steps.push(environment::sidecar_step(scene));
    let script = script(scene, name, sidecar)?;
    steps.extend(script.clone());
    steps.extend(snippets::step(scene, "preCommand", sidecar.pre_command.as_ref())?);
    steps.extend(snippets::step(scene, "pre", sidecar.pre.as_ref())?);
    steps.extend(snippets::step(scene, "servicePre", sidecar.service_pre.as_ref())?);
    if sidecar.wait_socket {
        steps.push(Planned::with(&[], Step::WaitSocket { path: scene.socket() }));
    }
    steps.extend(command(scene, name, sidecar, script.is_some())?);
    steps.extend(snippets::step(scene, "post", sidecar.post.as_ref())?);
    steps.push(Planned::with(&[], Step::Stay));
    Ok(steps)
}

/// The command: the script as a program, or shell source that sees what the snippets before it have set. Its exit code
/// is the container's.
fn command(scene: &Scene, name: &str, sidecar: &Sidecar, has_script: bool) -> Result<Option<Planned>, PlanError> {
    if !has_script {
        return snippets::step(scene, super::COMMAND, sidecar.command.as_ref());
    }
    let launch = Launch {
        label: super::COMMAND,
        argv: vec![Word::Literal(script_path(scene, name))],
        run_as: None,
        environment: Vec::new(),
        stdout: Stdout::Inherit,
        result: None,
        at_end: AtEnd::Exit,
    };
    Ok(Some(Planned::with(&["shell"], Step::Launch(launch))))
}

fn script(scene: &Scene, name: &str, sidecar: &Sidecar) -> Result<Option<Planned>, PlanError> {
    let Some(text) = sidecar.script.as_ref().filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let content = Content::Text(program::with_shebang(scene, text, "the script")?);
    let owner = Owner { uid: scene.facts.uid, gid: scene.facts.gid };
    let step = Step::File { path: script_path(scene, name), mode: Mode(0o755), owner, content };
    Ok(Some(Planned::with(&["uid", "shell"], step)))
}

/// In the container's own home, or where there is none at the mount's root: the configuration belongs to the runner's.
fn script_path(scene: &Scene, name: &str) -> String {
    let facts = scene.facts;
    let has_home = facts.is_writable(FALLBACK_HOME) || (facts.uid == 0 && facts.is_present(FALLBACK_HOME));
    format!("{}/script-{name}", if has_home { FALLBACK_HOME } else { scene.paths.mount() })
}
