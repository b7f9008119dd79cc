//! The MiniClusters that exist, according to the events of their watch. Finds out which events are changes that need a
//! reconcile, and which MiniClusters no longer exist.

use std::collections::{HashMap, HashSet};

use kube::{Resource, ResourceExt};

use super::Key;
use super::cluster::{self, Cluster};

/// A MiniCluster as last seen. It has only what changes with an edit by a user, so that the operator's own status
/// patches do not count as changes. A change of the spec and the start of a deletion raise the generation; a change of
/// labels and annotations does not.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    uid: String,
    generation: Option<i64>,
    /// Hash of its labels and annotations for queues.
    queueing: u64,
}

/// All known MiniClusters. A list does not report deletions, so a MiniCluster that is not in it no longer exists.
#[derive(Debug, Default)]
pub struct KnownClusters {
    all: HashMap<Key, Known>,
    /// The MiniClusters seen since the current list began. None: no list is in progress.
    listed: Option<HashSet<Key>>,
}

/// Result of [`KnownClusters::see`].
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether it differs from what was seen before.
    pub is_news: bool,
    /// Key and uid of an earlier MiniCluster of this name, which no longer exists.
    pub replaced: Option<(Key, String)>,
}

impl KnownClusters {
    /// Stores the current state of a MiniCluster that exists.
    pub fn see(&mut self, cluster: &Cluster) -> Seen {
        let metadata = cluster.meta();
        let key = Key::of(metadata);
        let (generation, queueing) = (metadata.generation, cluster::queueing_hash(cluster));
        let now = Known {
            uid: cluster.uid().unwrap_or_default(),
            generation,
            queueing,
        };
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
        if self.all.get(&key) == Some(&now) {
            return Seen {
                is_news: false,
                replaced: None,
            };
        }
        let uid = now.uid.clone();
        let before = self
            .all
            .insert(key.clone(), now)
            .filter(|before| before.uid != uid);
        Seen {
            is_news: true,
            replaced: before.map(|before| (key, before.uid)),
        }
    }

    /// Forgets a MiniCluster that was deleted. Returns its key and uid. None: it was not known, or another one has its
    /// name now.
    pub fn remove(&mut self, cluster: &Cluster) -> Option<(Key, String)> {
        let (key, uid) = (Key::of(cluster.meta()), cluster.uid().unwrap_or_default());
        if self.all.get(&key)?.uid != uid {
            return None;
        }
        let gone = self.all.remove(&key)?;
        // Frees memory after many deletions, but keeps room to grow again without an allocation.
        self.all.shrink_to(self.all.len() * 2);
        Some((key, gone.uid))
    }

    /// Handles the start of a list.
    pub fn begin_list(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// Handles the end of a list. Returns key and uid of the MiniClusters that are not in it, and forgets them. Returns
    /// nothing if no list has begun.
    pub fn end_list(&mut self) -> Vec<(Key, String)> {
        let Some(listed) = self.listed.take() else {
            return Vec::new();
        };
        let gone = self.all.extract_if(|key, _| !listed.contains(key));
        gone.map(|(key, known)| (key, known.uid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(name: &str, uid: &str, generation: i64) -> Cluster {
        let metadata = json!({ "namespace": "ns", "name": name, "uid": uid, "generation": generation });
        let spec = json!({ "containers": [{ "image": "a" }] });
        serde_json::from_str(&json!({ "metadata": metadata, "spec": spec }).to_string()).unwrap()
    }

    fn gone(name: &str, uid: &str) -> (Key, String) {
        (Key::new("ns", name), uid.to_owned())
    }

    #[test]
    fn end_of_a_list_that_never_began_declares_nothing_gone() {
        let mut known = KnownClusters::default();
        known.see(&cluster("mc", "1", 1));
        assert_eq!(known.end_list(), []);
        known.begin_list();
        assert_eq!(known.end_list(), [gone("mc", "1")]);
    }

    #[test]
    fn list_reveals_what_was_deleted_and_replaced_unseen() {
        let mut known = KnownClusters::default();
        let seen = |is_news, replaced| Seen { is_news, replaced };
        for name in ["stays", "goes", "replaced"] {
            assert_eq!(known.see(&cluster(name, "1", 1)), seen(true, None));
        }
        known.begin_list();
        assert_eq!(known.see(&cluster("stays", "1", 1)), seen(false, None));
        assert_eq!(
            known.see(&cluster("replaced", "2", 1)),
            seen(true, Some(gone("replaced", "1")))
        );
        assert_eq!(known.end_list(), [gone("goes", "1")]);
        assert_eq!(known.see(&cluster("stays", "1", 2)), seen(true, None));
        assert_eq!(
            known.remove(&cluster("replaced", "1", 1)),
            None,
            "another has its name"
        );
        assert_eq!(
            known.remove(&cluster("replaced", "2", 1)),
            Some(gone("replaced", "2"))
        );
    }
}
