//! Namespaces that are being deleted. Nothing can be created in them.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;

/// How many seconds a namespace counts as being deleted after the API server has said so. After that, reconciles try to
/// create objects again, and the API server answers anew.
const VALID_FOR: i64 = 60;

/// Namespaces that are being deleted, and when the API server said so.
#[derive(Debug, Default)]
pub struct TerminatingNamespaces(Mutex<HashMap<String, Timestamp>>);

fn is_valid(since: Timestamp, now: Timestamp) -> bool {
    (0..VALID_FOR).contains(&(now.as_second() - since.as_second()))
}

impl TerminatingNamespaces {
    /// Notes that a reconcile failed because the namespace is being deleted. A note that is still valid keeps its time:
    /// it may itself have stopped the reconcile, and then the API server has said nothing new.
    pub fn note(&self, namespace: &str, now: Timestamp) {
        let mut terminating = self.0.lock();
        terminating.retain(|_, since| is_valid(*since, now));
        terminating.entry(namespace.to_owned()).or_insert(now);
    }

    /// Whether the API server said within the last minute that the namespace of a MiniCluster is being deleted. A
    /// MiniCluster that was created after that is in another namespace of the same name. (`created` is the API server's
    /// time, which may differ from ours. Then the operator asks once more, or waits for the rest of the minute.)
    pub fn contains(&self, namespace: &str, created: Option<Timestamp>, now: Timestamp) -> bool {
        let terminating = self.0.lock();
        terminating
            .get(namespace)
            .is_some_and(|since| is_valid(*since, now) && created.is_none_or(|created| created <= *since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn repeated_note_does_not_prolong_a_terminating_namespace() {
        let namespaces = TerminatingNamespaces::default();
        namespaces.note("ns", at(0));
        assert!(namespaces.contains("ns", Some(at(-5)), at(30)));
        namespaces.note("ns", at(30));
        assert!(namespaces.contains("ns", Some(at(-5)), at(59)));
        assert!(!namespaces.contains("ns", Some(at(-5)), at(61)));
        namespaces.note("ns", at(61));
        assert!(
            namespaces.contains("ns", Some(at(-5)), at(90)),
            "the API server said it again"
        );
    }

    #[test]
    fn namespace_recreated_with_the_same_name_is_not_terminating() {
        let namespaces = TerminatingNamespaces::default();
        namespaces.note("ns", at(0));
        assert!(!namespaces.contains("ns", Some(at(3)), at(4)));
        assert!(!namespaces.contains("other", Some(at(-5)), at(4)));
    }
}
