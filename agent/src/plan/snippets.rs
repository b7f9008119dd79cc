//! The user's shell source as steps. Blank source is no step; any other needs a shell.

use super::{PlanError, Planned, Resolved, Snippet, SnippetPhase, Step};

/// The name of a sidecar's program, as a snippet or a launch.
pub const COMMAND: &str = "command";

/// Options of the shell if a failing snippet ends the container.
const STRICT: &[&str] = &["-e", "-u"];
/// The same for bash: functions inherit the ERR trap, and a pipe fails as a whole.
const STRICT_BASH: &[&str] = &["-e", "-E", "-u", "-o", "pipefail"];

/// The step of the snippet `name`, before the program.
pub fn step(resolved: &Resolved, name: &'static str, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    at(SnippetPhase::Before, resolved, name, source)
}

/// A sidecar's program that is shell source.
pub fn program(resolved: &Resolved, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    at(SnippetPhase::Program, resolved, COMMAND, source)
}

/// The snippet that tidies up after the program.
pub fn post(resolved: &Resolved, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    at(SnippetPhase::After, resolved, "post", source)
}

fn at(
    phase: SnippetPhase,
    resolved: &Resolved,
    name: &'static str,
    source: Option<&String>,
) -> Result<Option<Planned>, PlanError> {
    let Some(source) = source.filter(|source| !source.trim().is_empty()).cloned() else { return Ok(None) };
    let shell = resolved.shell(&format!("the snippet `{name}`"))?.to_owned();
    let logging = &resolved.spec.logging;
    let options = match (logging.strict, shell.ends_with("/bash")) {
        (true, true) => STRICT_BASH,
        (true, false) => STRICT,
        (false, _) => &[],
    };
    let silent = logging.quiet && phase == SnippetPhase::Before;
    let as_flux = as_flux(resolved);
    let snippet = Snippet { name, shell, options, as_flux, source, strict: logging.strict, phase, silent };
    Ok(Some(Planned::with(&["shell", "agent", "spec_file"], Step::Snippet(snippet))))
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
