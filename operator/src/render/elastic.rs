//! What may change of a Job that exists: its size, and whether it is suspended. Everything else of a Job is fixed.

use k8s_openapi::api::batch::v1::Job;
use serde::Serialize;
use serde_json::{Value, json};

use super::{hash, labels};

/// The part of a Job that follows the MiniCluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Elastic {
    pub size: u32,
    /// None: left to others, such as a queue.
    pub suspend: Option<bool>,
}

impl Elastic {
    /// Compared with the Job's annotation, not with its fields: who else changes those (Kueue) is not overruled.
    pub fn hash(self) -> String {
        hash(&self)
    }

    /// The fields to apply to the Job of this name and uid. With another uid the API server refuses.
    pub fn patch(self, namespace: &str, name: &str, uid: &str) -> Value {
        let mut spec = json!({ "parallelism": self.size, "completions": self.size });
        if let Some(suspend) = self.suspend {
            spec["suspend"] = json!(suspend);
        }
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "annotations": { labels::RENDERED_HASH: self.hash() },
            },
            "spec": spec,
        })
    }

    /// The same for a Job that is to be made.
    pub(super) fn put(self, job: &mut Job) {
        let count = i32::try_from(self.size).unwrap_or(i32::MAX);
        if let Some(spec) = &mut job.spec {
            spec.parallelism = Some(count);
            spec.completions = Some(count);
            spec.suspend = self.suspend;
        }
        job.metadata.annotations.get_or_insert_default().insert(labels::RENDERED_HASH.into(), self.hash());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another value would have a new version write to every Job of the older one.
    #[test]
    fn the_hash_is_the_same_in_every_version() {
        assert_eq!(Elastic { size: 4, suspend: None }.hash(), "f69de8c25e76200d");
    }
}
