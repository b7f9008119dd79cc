//! `dry-run --here`: the plan of this container's entrypoint, from the pod's own spec and facts.

use super::error::DryRunError;
use super::format::Format;
use super::json::json;
use super::pods::PlannedPod;
use super::source::{Kind, Source};
use super::text;
use crate::commands::OwnContainer;
use crate::plan::PlanError;
use crate::report::failure::Failure;
use crate::run::chain;

/// The plan of the container, printed.
pub fn here(container: OwnContainer, format: Format) -> Result<String, Failure> {
    let OwnContainer { spec, facts, role, waits, is_known } = container;
    let refused = |error: PlanError| Failure::new(error.category(), chain(&error), error.hint());
    let plan = crate::plan::plan(&spec, &facts, &role).map_err(refused)?.with_waits(waits);
    let unknown = "process 1 is not this container's entrypoint: its options, environment and terminal are not known";
    let notices = if is_known { Vec::new() } else { vec![unknown.to_owned()] };
    let source = Source::here(spec, notices);
    let pods = [PlannedPod { indexes: plan.index.to_string(), plan }];
    match format {
        Format::Text => Ok(text::render(&source, &facts, &pods)),
        Format::Json => {
            json(&source, &facts, &pods).map_err(|source| Failure::internal(chain(&DryRunError::Json { source })))
        }
    }
}

impl Source {
    fn here(spec: flux_shared::agent_spec::AgentSpec, notices: Vec<String>) -> Source {
        Source { kind: Kind::AgentSpec, is_here: true, spec, notices, others: Vec::new(), view: None, cluster: None }
    }
}
