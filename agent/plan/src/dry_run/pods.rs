//! The plans of all pods; pods that are alike share one.

use serde::Serialize;

use super::error::DryRunError;
use super::source::Source;
use crate::facts::Facts;
use crate::plan::{self, ContainerRole, Plan};

/// One container's plan, and the completion indexes that do the same.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedPod {
    /// Completion indexes such as `0` or `1-3`; their plans differ only in names, rank and parent.
    pub indexes: String,
    #[serde(flatten)]
    pub plan: Plan,
}

/// Plans for the lead, one follower and each sidecar, or for all containers of one pod.
pub fn plan(source: &Source, facts: &Facts, index: Option<u32>) -> Result<Vec<PlannedPod>, DryRunError> {
    let spec = &source.spec;
    let pods = spec.max_size();
    if let Some(index) = index.filter(|index| *index >= pods) {
        return Err(DryRunError::Index { index, pods });
    }
    // Facts with an index or a host name are those of one pod.
    let only = index
        .or(facts.index)
        .or_else(|| (!facts.hostname.is_empty()).then_some(0));
    let groups: Vec<(u32, u32)> = match only {
        Some(index) => vec![(index, index)],
        None if spec.network.lead.is_some() || pods == 1 => vec![(0, pods - 1)],
        None => vec![(0, 0), (1, pods - 1)],
    };
    let mut plans = Vec::new();
    for (first, last) in &groups {
        plans.push(one(source, facts, *first, *last, &ContainerRole::Runner)?);
    }
    let (first, last) = only.map_or((0, pods - 1), |index| (index, index));
    for name in spec.sidecars.keys() {
        plans.push(one(
            source,
            facts,
            first,
            last,
            &ContainerRole::Sidecar(name.clone()),
        )?);
    }
    Ok(plans)
}

fn one(
    source: &Source,
    facts: &Facts,
    first: u32,
    last: u32,
    role: &ContainerRole,
) -> Result<PlannedPod, DryRunError> {
    let mut facts = facts.clone();
    if facts.index.is_some_and(|index| index != first) {
        facts.hostname.clear();
    }
    facts.index = Some(first);
    let plan = plan::plan(&source.spec, &facts, role)
        .map_err(|source| DryRunError::Plan { index: first, source })?;
    let indexes = if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    };
    Ok(PlannedPod { indexes, plan })
}
