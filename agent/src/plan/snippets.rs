//! The user's shell source as steps. Blank source is no step; any other needs a shell.

use super::{PlanError, Planned, Resolved, Step};

/// The step of the snippet `name`, if it holds anything.
pub fn step(resolved: &Resolved, name: &'static str, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    let Some(source) = source.filter(|source| !source.trim().is_empty()) else { return Ok(None) };
    let shell = resolved.shell(&format!("the snippet `{name}`"))?.to_owned();
    let step = Step::Snippet { name, shell, source: source.clone(), strict: resolved.spec.logging.strict };
    Ok(Some(Planned::with(&["shell"], step)))
}

/// A script's text, with a first line for the image's shell if it has none.
pub fn with_shebang(resolved: &Resolved, text: &str, what: &str) -> Result<String, PlanError> {
    match text.starts_with("#!") {
        true => Ok(text.to_owned()),
        false => Ok(resolved.shebang(what)? + text),
    }
}
