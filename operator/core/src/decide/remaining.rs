//! Describes the pods that have to end before new ones may start: name, node and remedy. Pure.

use crate::observe::pod::PodSeen;

/// Names the first of these pods, which still run, and says how many more there are. None: the list is empty.
pub fn describe(pods: &[&PodSeen]) -> Option<String> {
    let first = pods.first()?;
    let others = match pods.len() - 1 {
        0 => String::new(),
        count => format!(" ({count} more pods)"),
    };
    let node = first.node.as_deref();
    let place = node.map(|node| format!(" on node {node}")).unwrap_or_default();
    Some(match node {
        Some(node) if first.is_on_silent_node => {
            let name = &first.name;
            format!(
                "pod {name} is on node {node}, which has stopped responding{others}. {}",
                lost_node_remedy(node)
            )
        }
        _ if first.is_deleting => format!("pod {}{place} is being stopped{others}", first.name),
        _ => format!(
            "pod {}{place} still runs{others}: delete it to stop it",
            first.name
        ),
    })
}

/// What to do about a node that has stopped responding. Kubernetes cannot know whether its pods still run.
pub fn lost_node_remedy(node: &str) -> String {
    format!(
        "Whether the pod still runs is unknown. The pod is replaced when the node is back. Only if the machine is off: kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute (remove the taint before the node starts again), or kubectl delete node {node} if it never comes back"
    )
}
