//! The user's shell source as steps. Blank source is no step; any other needs a shell.

use serde::Serialize;

use super::{PlanError, Planned, Resolved, Step};

/// What shells are told where a failing snippet ends the container.
const STRICT: &[&str] = &["-e", "-u"];
/// The same for bash, where functions inherit it and a pipe fails as a whole.
const STRICT_BASH: &[&str] = &["-e", "-E", "-u", "-o", "pipefail"];

/// Shell source of the user's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snippet {
    /// Its field in the MiniCluster.
    pub name: &'static str,
    /// The one shell that runs all of a container's snippets, and the options that it is started with.
    pub shell: String,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub options: &'static [&'static str],
    pub source: String,
    /// A failure ends the container with its code; otherwise it is told, and passed over.
    pub strict: bool,
    pub stage: Stage,
    /// What it prints is not shown; the last of its errors is, if it fails.
    pub silent: bool,
}

/// When a snippet runs, and what its end means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Before the program, which does not start where it ends the container.
    Before,
    /// It is the program: its code is the container's.
    Program,
    /// After the program, whose result a stop that comes meanwhile does not change.
    After,
}

/// The step of the snippet `name`, before the program.
pub fn step(resolved: &Resolved, name: &'static str, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    at(Stage::Before, resolved, name, source)
}

/// A sidecar's program that is shell source.
pub fn program(resolved: &Resolved, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    at(Stage::Program, resolved, super::COMMAND, source)
}

/// What tidies up.
pub fn post(resolved: &Resolved, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    at(Stage::After, resolved, "post", source)
}

fn at(
    stage: Stage,
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
    let silent = logging.quiet && stage == Stage::Before;
    let snippet = Snippet { name, shell, options, source, strict: logging.strict, stage, silent };
    Ok(Some(Planned::with(&["shell"], Step::Snippet(snippet))))
}

/// A script's text, with a first line for the image's shell if it has none.
pub fn with_shebang(resolved: &Resolved, text: &str, what: &str) -> Result<String, PlanError> {
    match text.starts_with("#!") {
        true => Ok(text.to_owned()),
        false => Ok(resolved.shebang(what)? + text),
    }
}
