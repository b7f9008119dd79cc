//! Which MiniClusters use which headless Service. They are reconciled when it is deleted.

use std::collections::{BTreeSet, HashMap};

use super::Key;

/// Which MiniClusters use which headless Service, as a map in each direction. Both are in the same namespace, so the
/// sets have names only.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// The names of a Service's MiniClusters.
    of_service: HashMap<Key, BTreeSet<String>>,
    /// The names of a MiniCluster's Services. If the name in its spec is edited, which is possible before it has a Job,
    /// the earlier name stays, which may cost a reconcile.
    of_cluster: HashMap<Key, BTreeSet<String>>,
}

impl Members {
    /// Records that the MiniCluster `cluster`, in the Service's namespace, uses the Service.
    pub(super) fn join(&mut self, service: &Key, cluster: &str) {
        self.of_service
            .entry(service.clone())
            .or_default()
            .insert(cluster.to_owned());
        let key = Key::new(&service.namespace, cluster);
        self.of_cluster
            .entry(key)
            .or_default()
            .insert(service.name.clone());
    }

    /// Forgets a MiniCluster that no longer exists.
    pub(super) fn leave(&mut self, cluster: &Key) {
        for service in self.of_cluster.remove(cluster).unwrap_or_default() {
            let service = Key::new(&cluster.namespace, service);
            let Some(members) = self.of_service.get_mut(&service) else {
                continue;
            };
            members.remove(&cluster.name);
            if members.is_empty() {
                self.of_service.remove(&service);
            }
        }
    }

    /// Whether the MiniCluster uses a Service. Then it exists, and this operator serves it.
    pub(super) fn has(&self, cluster: &Key) -> bool {
        self.of_cluster.contains_key(cluster)
    }

    /// The MiniClusters that use the Service.
    pub(super) fn of(&self, service: &Key) -> Vec<Key> {
        let members = self.of_service.get(service);
        members
            .into_iter()
            .flatten()
            .map(|name| Key::new(&service.namespace, name))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_leaves_all_its_services_and_no_other_member_does() {
        let mut members = Members::default();
        let (one, two) = (Key::new("ns", "one"), Key::new("ns", "two"));
        members.join(&one, "a");
        members.join(&two, "a");
        members.join(&two, "b");
        assert!(members.has(&Key::new("ns", "a")) && !members.has(&Key::new("other", "a")));
        members.leave(&Key::new("ns", "a"));
        assert!(!members.has(&Key::new("ns", "a")));
        assert_eq!(
            (members.of(&one), members.of(&two)),
            (Vec::new(), vec![Key::new("ns", "b")])
        );
        assert_eq!(members.of_service.len(), 1);
    }
}
