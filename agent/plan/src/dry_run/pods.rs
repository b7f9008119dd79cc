//! The plans of all containers. Pods with the same steps share one plan.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;

use super::error::DryRunError;
use super::source::Source;
use crate::facts::Facts;
use crate::plan::{self, Plan, PodContainer};

/// A container's plan, and the completion indexes of the pods that share it.
#[derive(Debug, Clone, Serialize)]
pub struct PlannedContainer {
    /// A completion index such as `0`, or a range such as `1-3`. The plans of these pods differ only in names,
    /// rank, parent and what is below them in the tree.
    pub indexes: String,
    #[serde(flatten)]
    pub plan: Plan,
}

/// Plans the lead, one follower and each sidecar. With `index`, or if the facts belong to one pod, plans only the
/// containers of that pod. Sidecars that are missing in `sidecar_facts` have the runner's `facts`.
pub fn plan(
    source: &Source,
    facts: &Facts,
    sidecar_facts: &BTreeMap<String, Facts>,
    index: Option<u32>,
) -> Result<Vec<PlannedContainer>, DryRunError> {
    let spec = &source.spec;
    let pods = spec.max_size();
    if let Some(index) = index.filter(|index| *index >= pods) {
        return Err(DryRunError::Index { index, pods });
    }
    let mut facts = facts.clone();
    // Facts with a host name belong to one pod.
    if index.is_none() && facts.index.is_none() && !facts.hostname.is_empty() {
        let found = plan::index_of(spec, &facts);
        facts.index = Some(found.map_err(|source| DryRunError::Plan { index: None, source })?);
    }
    let (first, last) = index
        .or(facts.index)
        .map_or((0, pods - 1), |index| (index, index));
    // If the lead is in another cluster, all pods are followers.
    let has_lead = first == 0 && spec.network.lead.is_none();
    let runner_ranges = if has_lead && last > 0 {
        vec![0..=0, 1..=last]
    } else {
        vec![first..=last]
    };
    let mut plans = Vec::new();
    for indexes in runner_ranges {
        plans.push(plan_of(source, &facts, indexes, &PodContainer::Runner)?);
    }
    for name in spec.sidecars.keys() {
        let container = PodContainer::Sidecar(name.clone());
        let facts = sidecar_facts.get(name).unwrap_or(&facts);
        plans.push(plan_of(source, facts, first..=last, &container)?);
    }
    Ok(plans)
}

/// Plans a container for the first pod of `indexes`; the plan stands for all of them.
fn plan_of(
    source: &Source,
    facts: &Facts,
    indexes: RangeInclusive<u32>,
    container: &PodContainer,
) -> Result<PlannedContainer, DryRunError> {
    let (first, last) = (*indexes.start(), *indexes.end());
    let mut facts = facts.clone();
    if facts.index != Some(first) {
        // The host name of the facts may be another pod's. Without it, the plan makes the name from the index.
        facts.hostname.clear();
        facts.index = Some(first);
    }
    let plan = plan::build(&source.spec, &facts, container).map_err(|source| DryRunError::Plan {
        index: Some(first),
        source,
    })?;
    let indexes = if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    };
    Ok(PlannedContainer { indexes, plan })
}
