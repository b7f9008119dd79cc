//! The plans as JSON, described by `agent/plan/schema/dry-run.json`.

use serde::Serialize;

use super::pods::PlannedContainer;
use super::source::{Source, SourceKind};
use crate::facts::Facts;

/// Version of the document. Each plan in it also has the version of its own form ([`crate::plan::VERSION`]).
const VERSION: u32 = 2;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    source: SourceInfo<'a>,
    notices: &'a [String],
    pods: &'a [PlannedContainer],
}

#[derive(Serialize)]
struct SourceInfo<'a> {
    kind: SourceKind,
    name: &'a str,
    namespace: &'a str,
    size: u32,
    max_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<&'a str>,
    facts: &'a Facts,
}

/// The plans as JSON, with a newline at the end.
pub fn render_json(
    source: &Source,
    facts: &Facts,
    pods: &[PlannedContainer],
) -> Result<String, serde_json::Error> {
    let spec = &source.spec;
    let info = SourceInfo {
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
        source: info,
        notices: &source.notices,
        pods,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
