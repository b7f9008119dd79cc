//! The user's shell source as steps. Blank source is no step; all others share one shell.

use super::{PlanError, Planned, Resolved, Snippet, SnippetPhase, SnippetShell, Step};

/// The name of a sidecar's program, as a snippet or a launch.
pub const COMMAND: &str = "command";

/// Options of the shell if a failing snippet ends the container.
const STRICT: &[&str] = &["-e", "-u"];
/// The same for bash: functions inherit the ERR trap, and a pipe fails as a whole.
const STRICT_BASH: &[&str] = &["-e", "-E", "-u", "-o", "pipefail"];

/// The step of the snippet `name`, before the program.
pub fn step(resolved: &Resolved, name: &'static str, source: Option<&String>) -> Option<Planned> {
    at(SnippetPhase::Before, resolved, name, source)
}

/// A sidecar's program that is shell source.
pub fn program(resolved: &Resolved, source: Option<&String>) -> Option<Planned> {
    at(SnippetPhase::Program, resolved, COMMAND, source)
}

/// The snippet that tidies up after the program.
pub fn post(resolved: &Resolved, source: Option<&String>) -> Option<Planned> {
    at(SnippetPhase::After, resolved, "post", source)
}

fn at(phase: SnippetPhase, resolved: &Resolved, name: &'static str, source: Option<&String>) -> Option<Planned> {
    let source = source.filter(|source| !source.trim().is_empty())?.clone();
    let logging = &resolved.spec.logging;
    let silent = logging.quiet && phase == SnippetPhase::Before;
    let snippet = Snippet { name, source, strict: logging.strict, phase, silent };
    Some(Planned::with(&[], Step::Snippet(snippet)))
}

/// The steps, with the shell before the first snippet and its end after the last.
pub fn in_one_shell(resolved: &Resolved, mut steps: Vec<Planned>) -> Result<Vec<Planned>, PlanError> {
    let name = |planned: &Planned| match &planned.step {
        Step::Snippet(snippet) => Some(snippet.name),
        _ => None,
    };
    let first = steps.iter().enumerate().find_map(|(at, planned)| Some((at, name(planned)?)));
    let last = steps.iter().rposition(|planned| name(planned).is_some());
    if let (Some((first, name)), Some(last)) = (first, last) {
        let shell = shell(resolved, &format!("the snippet `{name}`"))?;
        steps.insert(last + 1, Planned::with(&[], Step::EndShell));
        steps.insert(first, Planned::with(&["shell", "agent", "spec_file"], Step::Shell(shell)));
    }
    Ok(steps)
}

fn shell(resolved: &Resolved, what: &str) -> Result<SnippetShell, PlanError> {
    let shell = resolved.shell(what)?;
    let options = match (resolved.spec.logging.strict, shell.ends_with("/bash")) {
        (true, true) => STRICT_BASH,
        (true, false) => STRICT,
        (false, _) => &[],
    };
    let argv = std::iter::once(shell).chain(options.iter().copied()).map(str::to_owned).collect();
    Ok(SnippetShell { argv, as_flux: as_flux(resolved) })
}

/// The value of `$asFlux`: this agent, with the same spec file.
fn as_flux(resolved: &Resolved) -> String {
    let spec = resolved.facts.spec_file.as_ref().map_or(String::new(), |file| format!(" --spec={file}"));
    format!("{} as-flux{spec}", resolved.facts.agent)
}

/// A script's text, with a first line for the image's shell if it has none.
pub fn with_shebang(resolved: &Resolved, text: &str, what: &str) -> Result<String, PlanError> {
    match text.starts_with("#!") {
        true => Ok(text.to_owned()),
        false => Ok(resolved.shebang(what)? + text),
    }
}
