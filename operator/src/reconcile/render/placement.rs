//! Where the pods may run: affinities, selectors, tolerations.

use std::collections::BTreeMap;

use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinity, PodAffinityTerm,
    PodAntiAffinity, Toleration, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::some;
use crate::labels;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const ARCH: &str = "kubernetes.io/arch";
/// Weight of a preference, the largest one.
const WEIGHT: i32 = 100;

/// Prefers one pod per node and all in one zone, unless `disableAffinity`. The user's `nodeAffinity` is required, and stays
/// either way.
pub(super) fn affinity(cluster: &ValidMiniCluster) -> Option<Affinity> {
    let term = |topology: &str| {
        vec![WeightedPodAffinityTerm {
            weight: WEIGHT,
            pod_affinity_term: PodAffinityTerm {
                topology_key: topology.to_owned(),
                label_selector: Some(LabelSelector {
                    match_labels: Some([(labels::CLUSTER.to_owned(), cluster.name.clone())].into()),
                    match_expressions: None,
                }),
                ..PodAffinityTerm::default()
            },
        }]
    };
    let mut affinity = Affinity { node_affinity: node_affinity(&cluster.pod.node_affinity), ..Affinity::default() };
    if !cluster.disable_affinity {
        affinity.pod_affinity = Some(PodAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(term(ZONE)),
            ..PodAffinity::default()
        });
        affinity.pod_anti_affinity = Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(term(HOST)),
            ..PodAntiAffinity::default()
        });
    }
    (affinity != Affinity::default()).then_some(affinity)
}

fn node_affinity(wanted: &BTreeMap<String, Vec<String>>) -> Option<NodeAffinity> {
    let requirement = |(key, values): (&String, &Vec<String>)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".into(),
        values: Some(values.clone()),
    };
    let expressions = some(wanted.iter().map(requirement).collect())?;
    let term = NodeSelectorTerm { match_expressions: Some(expressions), ..NodeSelectorTerm::default() };
    Some(NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
        ..NodeAffinity::default()
    })
}

/// The user's node selector, with the architecture.
pub(super) fn node_selector(cluster: &ValidMiniCluster) -> Option<BTreeMap<String, String>> {
    let mut selector = cluster.pod.node_selector.clone();
    if let Some(arch) = &cluster.arch {
        selector.insert(ARCH.into(), arch.clone());
    }
    (!selector.is_empty()).then_some(selector)
}

pub(super) fn tolerations(cluster: &ValidMiniCluster) -> Option<Vec<Toleration>> {
    let convert = |toleration: &flux_shared::crd::v1alpha2::Toleration| Toleration {
        key: toleration.key.clone(),
        operator: toleration.operator.clone(),
        value: toleration.value.clone(),
        effect: toleration.effect.clone(),
        toleration_seconds: toleration.toleration_seconds,
    };
    some(cluster.pod.tolerations.iter().map(convert).collect())
}
