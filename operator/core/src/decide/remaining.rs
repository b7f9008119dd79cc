//! Describes the pods that have to end before new ones may start: name, node and remedy. Pure.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::observe::pod::PodSeen;

/// A pod that still exists so long after its grace period is stuck. Before that, its node may still be unmounting its
/// volumes.
const STUCK_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Names one of these pods, and says how many more there are: the first by index, but one on a node that has stopped
/// responding comes before a stuck one, and that before any other. `now` is the API server's time. None: the list is
/// empty.
pub fn describe(pods: &[&PodSeen], now: Timestamp) -> Option<String> {
    let by_urgency = |pod: &&&PodSeen| (!pod.is_on_silent_node, !is_stuck(pod, now), pod.index);
    let first = pods.iter().min_by_key(by_urgency)?;
    let others = match pods.len() - 1 {
        0 => String::new(),
        1 => " (1 more pod)".to_owned(),
        count => format!(" ({count} more pods)"),
    };
    let name = &first.name;
    let node = first.node.as_deref();
    let place = node.map(|node| format!(" on node {node}")).unwrap_or_default();
    Some(match node {
        Some(node) if first.is_on_silent_node => format!(
            "pod {name} is on node {node}, which has stopped responding{others}. {}",
            lost_node_remedy(node)
        ),
        _ if is_stuck(first, now) => {
            let since = first.deletion_requested.map(|time| format!(" since {time}"));
            format!(
                "pod {name}{place} is Terminating{}, longer than its grace period{others}: `kubectl describe pod {name}` shows what holds it, such as a finalizer, a volume or a container that cannot be killed. Only if its containers are gone from the node: kubectl delete pod {name} --force (otherwise two copies of the program may run)",
                since.unwrap_or_default()
            )
        }
        _ if is_deleted_by_nobody(first) => {
            format!("pod {name}{place} still runs{others}: delete it to stop it")
        }
        _ => format!("pod {name}{place} is being stopped{others}"),
    })
}

/// Whether these pods, whose Job no longer exists, end without a user's action. `now` is the API server's time.
pub fn end_by_themselves(pods: &[&PodSeen], now: Timestamp) -> bool {
    pods.iter()
        .all(|pod| !is_deleted_by_nobody(pod) && !pod.is_on_silent_node && !is_stuck(pod, now))
}

/// Whether nobody deletes the pod. Once its Job is gone, the garbage collector deletes a pod that is no orphan.
fn is_deleted_by_nobody(pod: &PodSeen) -> bool {
    pod.is_orphan && !pod.is_deleting
}

/// Whether the pod hangs while it is being deleted, although its node responds. `now` is the API server's time.
pub fn is_stuck(pod: &PodSeen, now: Timestamp) -> bool {
    stuck_from(pod).is_some_and(|time| time <= now)
}

/// Time until the next of these pods is stuck, if it still exists then. None: no further one will be.
pub fn until_stuck<'a>(pods: impl Iterator<Item = &'a PodSeen>, now: Timestamp) -> Option<Duration> {
    let next = pods.filter_map(stuck_from).filter(|time| *time > now).min()?;
    Duration::try_from(next.duration_since(now)).ok()
}

/// From when on the pod is stuck. None: it is not being deleted, or waits for its node.
fn stuck_from(pod: &PodSeen) -> Option<Timestamp> {
    if pod.is_on_silent_node {
        return None;
    }
    pod.grace_end?.checked_add(STUCK_AFTER).ok()
}

/// What to do about a node that has stopped responding. Kubernetes cannot know whether its pods still run.
pub fn lost_node_remedy(node: &str) -> String {
    format!(
        "Whether the pod still runs is unknown. The pod is replaced when the node is back. Only if the machine is off: kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute (remove the taint before the node starts again), or kubectl delete node {node} if it never comes back"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTED: &str = "2026-01-01T00:00:00Z";

    fn at(second: i64) -> Timestamp {
        REQUESTED.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second)
    }

    /// A pod whose deletion with this grace period was requested at second 0.
    fn deleted(index: u32, grace_period: i64) -> PodSeen {
        PodSeen {
            name: format!("mc-{index}"),
            index,
            node: Some("n1".into()),
            is_deleting: true,
            deletion_requested: Some(at(0)),
            grace_end: Some(at(grace_period)),
            ..PodSeen::default()
        }
    }

    #[test]
    fn pod_is_stuck_only_some_time_after_its_grace_period() {
        let pod = deleted(0, 600);
        for second in [0, 599, 600, 629] {
            assert!(!is_stuck(&pod, at(second)), "{second}");
        }
        assert!(is_stuck(&pod, at(630)));
        // A second request, with a shorter grace period.
        assert!(is_stuck(&deleted(0, 5), at(35)));
        assert!(!is_stuck(&PodSeen::default(), at(1_000_000)), "nobody deletes it");
        let on_silent_node = PodSeen {
            is_on_silent_node: true,
            ..pod
        };
        assert!(!is_stuck(&on_silent_node, at(630)), "its node is the cause");
    }

    #[test]
    fn next_stuck_pod_is_looked_at_in_time() {
        let seconds = |pods: &[PodSeen], now| until_stuck(pods.iter(), at(now)).map(|time| time.as_secs());
        let pods = [PodSeen::default(), deleted(0, 30), deleted(1, 10)];
        assert_eq!(seconds(&pods, 0), Some(40));
        assert_eq!(seconds(&pods, 40), Some(20), "pod 1 is stuck");
        assert_eq!(seconds(&pods, 60), None);
        assert_eq!(seconds(&pods[..1], 0), None);
    }

    #[test]
    fn stuck_pod_is_named_with_its_node_since_when_and_the_remedy() {
        let pods = [PodSeen::default(), deleted(1, 30), deleted(2, 600)];
        let pods: Vec<&PodSeen> = pods.iter().collect();
        let message = describe(&pods, at(60)).unwrap();
        for part in [
            "pod mc-1 on node n1 is Terminating since 2026-01-01T00:00:00Z",
            "(2 more pods)",
            "kubectl describe pod mc-1",
            "finalizer",
            "two copies",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let message = describe(&pods[1..], at(59)).unwrap();
        assert!(message.contains("is being stopped (1 more pod)"), "{message}");
        let silent = PodSeen {
            is_on_silent_node: true,
            ..deleted(3, 30)
        };
        let message = describe(&[pods[1], &silent], at(60)).unwrap();
        assert!(
            message.contains("mc-3") && message.contains("stopped responding"),
            "{message}"
        );
    }
}
