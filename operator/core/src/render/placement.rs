//! Where the pods may run: affinities, selectors, tolerations.

use std::collections::BTreeMap;

use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinity,
    PodAffinityTerm, PodAntiAffinity, PodSpec, Toleration, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::none_if_empty;
use crate::labels;
use crate::observe::node::Placement;

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const ARCH: &str = "kubernetes.io/arch";
/// Weight of our preferences: the largest that Kubernetes allows.
const WEIGHT: i32 = 100;

/// Prefers one pod per node, and all pods in one zone, unless `disableAffinity` is set. The user's `nodeAffinity` is
/// a requirement in either case.
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
    let mut affinity = Affinity {
        node_affinity: node_affinity(&cluster.pod.node_affinity),
        ..Affinity::default()
    };
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
    let expressions = none_if_empty(wanted.iter().map(requirement).collect())?;
    let term = NodeSelectorTerm {
        match_expressions: Some(expressions),
        ..NodeSelectorTerm::default()
    };
    Some(NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
        ..NodeAffinity::default()
    })
}

/// Where the pods may run, with the spec's overlay (`podTemplate`) applied. The overlay is merged as JSON, so the
/// result is read from JSON, too.
pub fn of_pods(cluster: &ValidMiniCluster) -> Placement {
    let spec = PodSpec {
        node_selector: node_selector(cluster),
        affinity: affinity(cluster),
        tolerations: tolerations(cluster),
        ..PodSpec::default()
    };
    let mut template = serde_json::json!({ "spec": spec });
    if let Some(overlay) = &cluster.pod_template {
        template = overlay.over(template);
    }
    let spec = template["spec"].take();
    let affinity: Option<Affinity> = serde_json::from_value(spec["affinity"].clone()).unwrap_or_default();
    let required = affinity
        .and_then(|affinity| {
            affinity
                .node_affinity?
                .required_during_scheduling_ignored_during_execution
        })
        .map(|required| required.node_selector_terms);
    // What an overlay's wrong type leaves unread does not matter: the API server rejects the pods.
    Placement {
        terms: required,
        ..serde_json::from_value(spec).unwrap_or_default()
    }
}

/// The user's node selector, with the architecture (`flux.arch`) if it is set.
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
    none_if_empty(cluster.pod.tolerations.iter().map(convert).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_is_that_of_the_pods_with_their_overlay() {
        let cluster = crate::testing::cluster(
            "pod: {nodeSelector: {pool: a}, tolerations: [{key: gpu, operator: Exists}]}\n\
             podTemplate: {spec: {nodeSelector: {os: linux}, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
             {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: Exists}]}]}}}}}",
        );
        let placement = of_pods(&cluster);
        assert_eq!(placement.node_selector.keys().collect::<Vec<_>>(), ["os", "pool"]);
        assert_eq!(
            placement.terms.unwrap()[0].match_expressions.as_ref().unwrap()[0].key,
            "zone"
        );
        assert_eq!(placement.tolerations[0].key.as_deref(), Some("gpu"));
        assert_eq!(
            of_pods(&crate::testing::cluster("flux: {arch: arm64}")).node_selector[ARCH],
            "arm64"
        );
    }
}
