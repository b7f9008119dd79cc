//! What the operator keeps of a node: whether it can mount an image as a volume, and if not, which pods may
//! run on it. Also: whether its kubelet has stopped reporting.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashSet};

use flux_shared::crd::v1alpha2::ConditionStatus;
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};
use serde::Deserialize;

use crate::observe::partial::Partial;

/// Oldest kubelet (major, minor) that mounts images as volumes by default.
const MIN_KUBELET: (u32, u32) = (1, 35);
/// Oldest version (major, minor) of each container runtime that counts as able to do so.
const MIN_RUNTIMES: [(&str, (u32, u32)); 2] = [("containerd", (2, 1)), ("cri-o", (1, 33))];

/// A node without the parts that the operator does not read: addresses, images, capacities.
pub type NodeObject = Partial<Node, NodeSpecPart, NodeStatusPart>;

/// The part of a node's spec that is read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct NodeSpecPart {
    /// No new pods are scheduled on the node.
    #[serde(default)]
    pub unschedulable: bool,
    #[serde(default)]
    pub taints: Vec<Taint>,
}

/// The part of a node's status that is read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatusPart {
    pub node_info: NodeInfo,
    pub conditions: Vec<NodeCondition>,
}

/// A condition of a node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
}

impl NodeStatusPart {
    /// Whether its kubelet has stopped reporting: then the node's controller sets Ready to Unknown.
    pub fn is_silent(&self) -> bool {
        self.conditions.iter().any(|condition| {
            condition.type_ == "Ready"
                && ConditionStatus::from(condition.status.as_str()) == ConditionStatus::Unknown
        })
    }
}

/// Versions of the kubelet and the container runtime.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Such as `v1.35.4`.
    pub kubelet_version: String,
    /// Such as `containerd://2.2.9`.
    pub container_runtime_version: String,
}

impl NodeInfo {
    /// Whether both its kubelet and its runtime are known to mount images.
    pub fn mounts_images(&self) -> bool {
        let Some((runtime, version)) = self.container_runtime_version.split_once("://") else {
            return false;
        };
        let minimum = MIN_RUNTIMES
            .iter()
            .find(|(name, _)| *name == runtime)
            .map(|(_, minimum)| *minimum);
        major_minor(&self.kubelet_version) >= Some(MIN_KUBELET)
            && minimum.is_some_and(|minimum| major_minor(version) >= Some(minimum))
    }
}

/// Major and minor number of `v1.35.4-eks-1`.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version
        .trim_start_matches('v')
        .split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A node that pods can be scheduled on.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeSeen {
    MountsImages,
    /// Its kubelet or runtime is too old, or its version is unknown.
    Old(Box<OldNode>),
}

/// A node that may be unable to mount images, with what decides which pods may run on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OldNode {
    name: String,
    /// The versions of the kubelet and the runtime, for messages.
    versions: String,
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
}

impl NodeSeen {
    /// What is kept of a node. None: no pod can be scheduled on it.
    pub fn of(node: &NodeObject) -> Option<NodeSeen> {
        if node.spec.unschedulable {
            return None;
        }
        let info = node
            .status
            .as_ref()
            .map(|status| status.node_info.clone())
            .unwrap_or_default();
        if info.mounts_images() {
            return Some(NodeSeen::MountsImages);
        }
        Some(NodeSeen::Old(Box::new(OldNode {
            name: node.metadata.name.clone().unwrap_or_default(),
            versions: format!(
                "kubelet {}, {}",
                info.kubelet_version, info.container_runtime_version
            ),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: node.spec.taints.clone(),
        })))
    }
}

impl std::fmt::Display for OldNode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "node {} ({})", self.name, self.versions)
    }
}

/// Where pods may run: the part of a pod's spec that Kubernetes' scheduler compares with a node's labels and
/// taints.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    pub node_name: Option<String>,
    pub node_selector: BTreeMap<String, String>,
    /// Terms of the required node affinity, of which one must match. None: no node affinity is required.
    /// `placement::of_pods` sets them: a pod's spec has them deeper.
    #[serde(skip)]
    pub terms: Option<Vec<NodeSelectorTerm>>,
    pub tolerations: Vec<Toleration>,
}

impl Placement {
    /// Whether the scheduler may put a pod with this placement on the node.
    pub fn may_use(&self, node: &OldNode) -> bool {
        let has_labels = self
            .node_selector
            .iter()
            .all(|(key, value)| node.labels.get(key) == Some(value));
        let matches_affinity = self
            .terms
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|term| fits(term, node)));
        let repels = |taint: &Taint| {
            // With this effect, the scheduler only prefers other nodes.
            taint.effect != "PreferNoSchedule"
                && !self
                    .tolerations
                    .iter()
                    .any(|toleration| tolerates(toleration, taint))
        };
        self.node_name.as_ref().is_none_or(|name| *name == node.name)
            && has_labels
            && matches_affinity
            && !node.taints.iter().any(repels)
    }
}

/// Whether all of a term's requirements hold. A term without any fits no node.
fn fits(term: &NodeSelectorTerm, node: &OldNode) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // Kubernetes allows no other field in a node affinity.
    let field_value = |field: &str| (field == "metadata.name").then_some(&node.name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions
            .iter()
            .all(|rule| holds(rule, node.labels.get(&rule.key)))
        && fields.iter().all(|rule| holds(rule, field_value(&rule.key)))
}

/// Whether the requirement holds for a node's label or field. None: the node does not have it.
fn holds(requirement: &NodeSelectorRequirement, label: Option<&String>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_in = || label.is_some_and(|label| values.contains(label));
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let (actual, wanted) = (number(label), number(values.first()));
    match requirement.operator.as_str() {
        "In" => is_in(),
        "NotIn" => !is_in(),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => actual.zip(wanted).is_some_and(|(actual, wanted)| actual > wanted),
        "Lt" => actual.zip(wanted).is_some_and(|(actual, wanted)| actual < wanted),
        // An operator of a newer Kubernetes: assume that pods may use the node.
        _ => true,
    }
}

/// Whether the toleration matches the taint. A missing or empty effect or key matches every one.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_any = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let same_effect = is_any(&toleration.effect) || toleration.effect.as_deref() == Some(&taint.effect);
    let same_key = is_any(&toleration.key) || toleration.key.as_deref() == Some(&taint.key);
    let value = |text: &Option<String>| text.clone().unwrap_or_default();
    let same_value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        // Equal needs a key.
        None | Some("Equal" | "") => {
            !is_any(&toleration.key) && value(&toleration.value) == value(&taint.value)
        }
        // An operator of a newer Kubernetes: assume that pods may use the node.
        Some(_) => true,
    };
    same_effect && same_key && same_value
}

/// Whether the nodes that a MiniCluster's pods may use can mount the view's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewNodes {
    /// Every node that the pods may use can mount images.
    Mount,
    /// No node is known.
    Unknown,
    /// No node can mount images.
    AllOld,
    /// Some nodes can, but the pods may use this one (name and versions), which cannot.
    Old(String),
}

/// The nodes that take pods, by name.
#[derive(Debug, Default)]
pub(super) struct Nodes(BTreeMap<String, NodeSeen>);

impl Nodes {
    pub(super) fn update(&mut self, name: &str, node: Option<NodeSeen>) {
        if let Some(node) = node {
            self.0.insert(name.to_owned(), node);
        } else {
            self.0.remove(name);
        }
    }

    /// Drops the nodes that are not in a complete list.
    pub(super) fn keep(&mut self, listed: &HashSet<String>) {
        self.0.retain(|name, _| listed.contains(name));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has_node_for_images(&self) -> bool {
        self.0.values().any(|node| *node == NodeSeen::MountsImages)
    }

    /// Whether the nodes that pods with this placement may use can mount an image. The placement is computed only
    /// if there is an old node.
    pub(super) fn view_nodes(&self, placement: impl FnOnce() -> Placement) -> ViewNodes {
        let placement = LazyCell::new(placement);
        if self.is_empty() {
            return ViewNodes::Unknown;
        }
        if !self.has_node_for_images() {
            return ViewNodes::AllOld;
        }
        let old = self.0.values().find_map(|node| match node {
            NodeSeen::Old(old) if placement.may_use(old) => Some(old.to_string()),
            _ => None,
        });
        old.map_or(ViewNodes::Mount, ViewNodes::Old)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn old(labels: &[(&str, &str)], taint: Option<(&str, &str)>) -> OldNode {
        OldNode {
            name: "old".into(),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            taints: taint
                .map(|(key, effect)| Taint {
                    key: key.into(),
                    effect: effect.into(),
                    ..Taint::default()
                })
                .into_iter()
                .collect(),
            ..OldNode::default()
        }
    }

    fn placement(spec: serde_json::Value, term: Option<serde_json::Value>) -> Placement {
        let terms = term.map(|term| vec![serde_json::from_value(term).unwrap()]);
        Placement {
            terms,
            ..serde_json::from_value(spec).unwrap()
        }
    }

    #[test]
    fn placement_matches_nodes_as_the_scheduler_does() {
        let windows = old(&[("kubernetes.io/os", "windows"), ("cores", "8")], None);
        let tainted = old(&[], Some(("virtual", "NoSchedule")));
        let requires = |operator: &str, key: &str, values: &[&str]| {
            let term =
                json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
            placement(json!({}), Some(term))
        };
        for (may, pod) in [
            (true, placement(json!({}), None)),
            (
                false,
                placement(json!({ "nodeSelector": { "kubernetes.io/os": "linux" } }), None),
            ),
            (
                true,
                placement(json!({ "nodeSelector": { "kubernetes.io/os": "windows" } }), None),
            ),
            (false, placement(json!({ "nodeName": "other" }), None)),
            (false, requires("In", "kubernetes.io/os", &["linux"])),
            (false, requires("NotIn", "kubernetes.io/os", &["windows"])),
            (true, requires("NotIn", "arch", &["arm64"])),
            (false, requires("DoesNotExist", "cores", &[])),
            (true, requires("Exists", "cores", &[])),
            (true, requires("Gt", "cores", &["4"])),
            (false, requires("Lt", "cores", &["4"])),
            (false, placement(json!({}), Some(json!({})))),
            (
                false,
                placement(
                    json!({}),
                    Some(json!({ "matchFields": [
                { "key": "metadata.name", "operator": "In", "values": ["other"] }] })),
                ),
            ),
        ] {
            assert_eq!(pod.may_use(&windows), may, "{pod:?}");
        }
        for (may, toleration) in [
            (false, json!([])),
            (true, json!([{ "key": "virtual", "operator": "Exists" }])),
            (true, json!([{ "key": "virtual" }])),
            (true, json!([{ "operator": "Exists" }])),
            (
                false,
                json!([{ "key": "virtual", "operator": "Exists", "effect": "NoExecute" }]),
            ),
            (false, json!([{ "key": "other", "operator": "Exists" }])),
            (false, json!([{ "key": "virtual", "value": "x" }])),
            (
                true,
                json!([{ "key": "virtual", "operator": "Gt", "value": "3" }]),
            ),
        ] {
            let pod = placement(json!({ "tolerations": toleration }), None);
            assert_eq!(pod.may_use(&tainted), may, "{pod:?}");
        }
        let preferred = old(&[], Some(("virtual", "PreferNoSchedule")));
        assert!(placement(json!({}), None).may_use(&preferred));
    }

    #[test]
    fn node_is_silent_only_when_its_readiness_is_unknown() {
        for (is_silent, type_, status) in [
            (true, "Ready", "Unknown"),
            (false, "Ready", "True"),
            (false, "Ready", "False"),
            (false, "MemoryPressure", "Unknown"),
        ] {
            let conditions = json!([
                { "type": "DiskPressure", "status": "False" }, { "type": type_, "status": status },
            ]);
            let state: NodeStatusPart = serde_json::from_value(json!({ "conditions": conditions })).unwrap();
            assert_eq!(state.is_silent(), is_silent, "{type_} is {status}");
        }
        assert!(
            !NodeStatusPart::default().is_silent(),
            "a node without conditions"
        );
    }

    #[test]
    fn kubelet_and_runtime_must_both_be_new_enough_and_known() {
        let can = |kubelet: &str, runtime: &str| {
            NodeInfo {
                kubelet_version: kubelet.into(),
                container_runtime_version: runtime.into(),
            }
            .mounts_images()
        };
        for (kubelet, runtime) in [
            ("v1.35.4", "containerd://2.2.9"),
            ("v1.35.0-eks-7f9249a", "containerd://2.1.0-rc.1"),
            ("v1.36+", "cri-o://1.33.0"),
            ("v2.0.0", "containerd://10.0"),
        ] {
            assert!(can(kubelet, runtime), "{kubelet} {runtime}");
        }
        for (kubelet, runtime) in [
            ("v1.34.9", "containerd://2.2.9"),
            ("v1.35.4", "containerd://2.0.5"),
            ("v1.35.4", "containerd://1.7.27"),
            ("v1.35.4", "cri-o://1.32.9"),
            ("v1.35.4", "docker://28.0.0"),
            ("v1.35.4", ""),
            ("", "containerd://2.2.9"),
            ("v1.x", "containerd://2.2.9"),
        ] {
            assert!(!can(kubelet, runtime), "{kubelet} {runtime}");
        }
    }
}
