//! The plans as JSON, described by `agent/plan/schema/dry-run.json`.

use serde::Serialize;

use super::pods::PlannedContainer;
use super::source::{Source, SourceKind};
use crate::facts::Facts;

/// Version of this form.
const VERSION: u32 = 2;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    source: About<'a>,
    notices: &'a [String],
    pods: &'a [PlannedContainer],
}

#[derive(Serialize)]
struct About<'a> {
    kind: SourceKind,
    name: &'a str,
    namespace: &'a str,
    size: u32,
    max_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<&'a str>,
    facts: &'a Facts,
}

/// The plans, printed.
pub fn json(source: &Source, facts: &Facts, pods: &[PlannedContainer]) -> Result<String, serde_json::Error> {
    let spec = &source.spec;
    let about = About {
        kind: source.kind,
        name: &spec.name,
        namespace: &spec.namespace,
        size: spec.size,
        max_size: spec.max_size(),
        view: source.view.as_deref(),
        facts,
    };
    let document = Document {
        version: VERSION,
        source: about,
        notices: &source.notices,
        pods,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
