//! The user's shell source as steps. Blank source is no step; any other needs a shell.

use super::{PlanError, Planned, Scene, Step};

/// The step of the snippet `name`, if it holds anything.
pub fn step(scene: &Scene, name: &'static str, source: Option<&String>) -> Result<Option<Planned>, PlanError> {
    let Some(source) = source.filter(|source| !source.trim().is_empty()) else { return Ok(None) };
    let shell = scene.shell(&format!("the snippet `{name}`"))?.to_owned();
    let step = Step::Snippet { name, shell, source: source.clone(), strict: scene.spec.logging.strict };
    Ok(Some(Planned::with(&["shell"], step)))
}
