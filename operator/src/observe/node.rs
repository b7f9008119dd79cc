//! What the operator keeps of a node: whether it can mount an image as a volume, and whether it answers.

use k8s_openapi::api::core::v1::Node;
use serde::Deserialize;

use crate::observe::partial::Partial;

/// The first Kubernetes and container runtimes that mount images, also with subPath, by default.
const KUBELET: (u32, u32) = (1, 35);
const RUNTIMES: [(&str, (u32, u32)); 2] = [("containerd", (2, 1)), ("cri-o", (1, 33))];

/// A node without what nobody reads here: addresses, images, capacities.
pub type NodeObject = Partial<Node, NodePlan, NodeState>;

/// The part of a node's spec that is read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct NodePlan {
    /// No new pods are scheduled there.
    #[serde(default)]
    pub unschedulable: bool,
}

/// The part of a node's status that is read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeState {
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

impl NodeState {
    /// Whether its kubelet has stopped reporting: then the node's controller sets Ready to Unknown.
    pub fn is_silent(&self) -> bool {
        self.conditions.iter().any(|it| it.type_ == "Ready" && it.status == "Unknown")
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
        let Some((runtime, version)) = self.container_runtime_version.split_once("://") else { return false };
        let least = RUNTIMES.iter().find(|(name, _)| *name == runtime).map(|(_, least)| *least);
        number(&self.kubelet_version) >= Some(KUBELET) && least.is_some_and(|least| number(version) >= Some(least))
    }
}

/// Major and minor number of `v1.35.4-eks-1`.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelet_and_runtime_must_both_be_new_enough_and_known() {
        let can = |kubelet: &str, runtime: &str| {
            NodeInfo { kubelet_version: kubelet.into(), container_runtime_version: runtime.into() }.mounts_images()
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
