//! What may change of a Job that exists: its size, and whether it is suspended. Everything else of a Job is fixed.

use k8s_openapi::api::batch::v1::Job;
use serde::Serialize;
use serde_json::{Value, json};

use super::hash;
use crate::labels;

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

    /// What a Job with the hash `before` needs, of this uid: with another one the API server refuses. `suspend` is told once:
    /// who has started a Job that was made suspended is not overruled when its size changes.
    pub fn patch(self, uid: &str, before: Option<&str>, maximum: u32) -> Value {
        let mut spec = json!({ "parallelism": self.size, "completions": self.size });
        let is_told = (1..=maximum).any(|size| before == Some(Elastic { size, ..self }.hash().as_str()));
        if let Some(suspend) = self.suspend.filter(|_| !is_told) {
            spec["suspend"] = json!(suspend);
        }
        json!({ "metadata": { "uid": uid, "annotations": { labels::RENDERED_HASH: self.hash() } }, "spec": spec })
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

    #[test]
    fn who_started_a_suspended_job_is_not_overruled_by_a_change_of_size() {
        let made = Elastic { size: 2, suspend: Some(true) };
        let larger = Elastic { size: 4, ..made };
        let patch = larger.patch("uid", Some(&made.hash()), 8);
        assert_eq!(patch["spec"], json!({ "parallelism": 4, "completions": 4 }));
        let again = Elastic { suspend: Some(false), ..made }.patch("uid", Some(&made.hash()), 8);
        assert_eq!(again["spec"]["suspend"], false, "the MiniCluster itself says otherwise now");
        assert_eq!(larger.patch("uid", None, 8)["spec"]["suspend"], true);
        assert_eq!(patch["metadata"]["uid"], "uid");
    }

    /// Another value would have a new version write to every Job of the older one.
    #[test]
    fn the_hash_is_the_same_in_every_version() {
        assert_eq!(Elastic { size: 4, suspend: None }.hash(), "f69de8c25e76200d");
    }
}
