//! The mutable part of an existing Job: its size, whether it is suspended, and, when it is resumed, its deadline.

use flux_shared::validate::{MAX_SIZE, ValidMiniCluster};
use k8s_openapi::api::batch::v1::Job;
use serde::Serialize;
use serde_json::{Value, json};

use super::job::DEADLINE_MAX;
use super::{hash, queueing};
use crate::labels;
use crate::observe::job::JobSeen;

/// What precedes the hash in the Job's annotation while the operator changes the size.
pub const RESIZING: &str = "resizing:";

/// The patch that marks the Job with this uid before its ConfigMap or its gang gets another size. [`Elastic::patch`] ends
/// this. If the Job could not be changed, and the user took the new size back, nothing else would show that these two
/// have to be written again.
pub fn begin_to_resize(uid: &str, job: &JobSeen) -> Value {
    let applied = job.rendered_hash.as_deref().unwrap_or_default();
    let annotations = json!({ labels::RENDERED_HASH: format!("{RESIZING}{applied}") });
    json!({ "metadata": { "uid": uid, "annotations": annotations } })
}

/// The fields of a Job that follow changes of the MiniCluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Elastic {
    pub size: u32,
    /// None: not patched, since the spec does not set it or a queue decides.
    pub suspend: Option<bool>,
}

impl Elastic {
    /// The wanted values for an existing Job. In a queue, only the queue suspends and resumes it.
    pub fn of(cluster: &ValidMiniCluster, size: u32, job: &JobSeen) -> Elastic {
        Elastic {
            size,
            suspend: if job.queue.is_some() {
                None
            } else {
                cluster.suspend
            },
        }
    }

    /// Whether a queue keeps the Job from this size: it has admitted another number of pods, and would reject the
    /// change, or evict the Job for it. False if the queue allows that the Job is resized while it runs
    /// (`JobSeen::is_elastic`). False also if this size was applied before: then the Job has it, or the size to which
    /// the queue has changed it.
    pub fn is_held_by_queue(self, job: &JobSeen) -> bool {
        // The hash also covers `suspend`, whose value at that time is not known: all three are tried.
        let is_applied =
            |suspend| job.rendered_hash.as_deref() == Some(Elastic { suspend, ..self }.hash().as_str());
        job.has_size_of_queue() && ![None, Some(true), Some(false)].into_iter().any(is_applied)
    }

    /// Hash of these fields. It is compared with the Job's annotation, not with the Job's fields: the operator must not
    /// revert Kueue's changes of the fields.
    pub fn hash(self) -> String {
        hash(&self)
    }

    /// The patch for the Job with this uid (the API server rejects it for another Job). `job`: as it was seen last.
    /// `maximum`: the MiniCluster's largest size. `is_new_start`: the ConfigMap has this size now.
    ///
    /// `suspend` is patched only if it has changed in the spec: somebody may have resumed a Job that was created
    /// suspended. A Job that is resumed gets the whole deadline, since a resume restarts it. Until then, the Job's spec
    /// may have less: a Job that replaces another after a restart gets only the rest of the deadline.
    pub fn patch(
        self,
        cluster: &ValidMiniCluster,
        uid: &str,
        job: &JobSeen,
        maximum: u32,
        is_new_start: bool,
    ) -> Value {
        let before = job.rendered_hash.as_deref();
        let mut spec = json!({ "parallelism": self.size, "completions": self.size });
        if !self.is_suspend_applied(before, maximum)
            && let Some(suspend) = self.suspend
        {
            spec["suspend"] = json!(suspend);
            if !suspend
                && job.is_suspended
                && let Some(deadline) = cluster.deadline_seconds
            {
                spec["activeDeadlineSeconds"] = json!(deadline.min(DEADLINE_MAX));
            }
        }
        let mut annotations = queueing::of_size(cluster, self.size);
        annotations.insert(labels::RENDERED_HASH.into(), json!(self.hash()));
        if is_new_start {
            annotations.insert(labels::INITIAL_SIZE.into(), json!(self.size.to_string()));
        }
        json!({ "metadata": { "uid": uid, "annotations": annotations }, "spec": spec })
    }

    /// Whether `suspend` is the value that was applied last. The hash also covers the size, so all sizes are tried.
    /// `maximum` may be from the Job's annotation, which anybody can write who may change the Job.
    pub fn is_suspend_applied(self, before: Option<&str>, maximum: u32) -> bool {
        (1..=maximum.min(MAX_SIZE.unsigned_abs()))
            .any(|size| before == Some(Elastic { size, ..self }.hash().as_str()))
    }

    /// Sets the fields of a Job that is to be created. A Job for a queue is created suspended, so that nothing runs
    /// before it is admitted, even without the queue's webhook. For a queue, `self` has no `suspend`, as
    /// [`Elastic::of`] makes it later: their hashes are compared.
    pub(super) fn set_in_new_job(self, is_queued: bool, job: &mut Job) {
        let count = i32::try_from(self.size).unwrap_or(i32::MAX);
        if let Some(spec) = &mut job.spec {
            spec.parallelism = Some(count);
            spec.completions = Some(count);
            spec.suspend = if is_queued { Some(true) } else { self.suspend };
        }
        job.metadata
            .annotations
            .get_or_insert_default()
            .insert(labels::RENDERED_HASH.into(), self.hash());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resize_does_not_suspend_a_job_that_another_has_started() {
        let applied = Elastic {
            size: 2,
            suspend: Some(true),
        };
        let larger = Elastic { size: 4, ..applied };
        let cluster = crate::testing::cluster("size: 2");
        let job = JobSeen {
            rendered_hash: Some(applied.hash()),
            ..JobSeen::default()
        };
        let patch = larger.patch(&cluster, "uid", &job, 8, false);
        assert_eq!(patch["spec"], json!({ "parallelism": 4, "completions": 4 }));
        let initial_size = |patch: &Value| patch["metadata"]["annotations"][labels::INITIAL_SIZE].clone();
        assert_eq!(initial_size(&patch), Value::Null, "its pods have read another");
        let patch = larger.patch(&cluster, "uid", &job, 8, true);
        assert_eq!(initial_size(&patch), "4");
        let resumed = Elastic {
            suspend: Some(false),
            ..applied
        }
        .patch(&cluster, "uid", &job, 8, false);
        assert_eq!(
            resumed["spec"]["suspend"], false,
            "`suspend` has changed in the spec"
        );
        assert_eq!(
            larger.patch(&cluster, "uid", &JobSeen::default(), 8, false)["spec"]["suspend"],
            true
        );
        assert_eq!(patch["metadata"]["uid"], "uid");
    }

    #[test]
    fn resume_gives_the_job_its_whole_deadline() {
        let cluster = crate::testing::cluster("size: 2\ndeadlineSeconds: 60");
        let deadline = |suspend: bool, before: Option<bool>, is_suspended: bool| {
            let elastic = |suspend: Option<bool>| Elastic { size: 2, suspend };
            let job = JobSeen {
                rendered_hash: Some(elastic(before).hash()),
                is_suspended,
                ..JobSeen::default()
            };
            let patch = elastic(Some(suspend)).patch(&cluster, "uid", &job, 2, false);
            patch["spec"].get("activeDeadlineSeconds").cloned()
        };
        assert_eq!(deadline(false, Some(true), true), Some(json!(60)));
        assert_eq!(deadline(true, Some(false), false), None);
        assert_eq!(deadline(false, None, false), None, "it runs already");
        assert_eq!(
            deadline(false, Some(false), true),
            None,
            "`suspend` has not changed"
        );
    }

    #[test]
    fn queue_holds_the_size_of_a_job_that_it_has_admitted() {
        let applied = Elastic {
            size: 4,
            suspend: None,
        };
        let queue = Some("team".to_owned());
        let job = JobSeen {
            completions: 2,
            rendered_hash: Some(applied.hash()),
            queue,
            ..JobSeen::default()
        };
        assert!(
            !applied.is_held_by_queue(&job),
            "the size was applied, and the queue has reduced it to 2"
        );
        let other = Elastic { size: 3, ..applied };
        assert!(other.is_held_by_queue(&job));
        assert!(
            !other.is_held_by_queue(&JobSeen {
                is_elastic: true,
                ..job.clone()
            }),
            "an elastic Job may be resized while it runs"
        );
        assert!(
            !other.is_held_by_queue(&JobSeen {
                is_suspended: true,
                ..job.clone()
            }),
            "a Job that waits in the queue may be resized"
        );
        assert!(
            !other.is_held_by_queue(&JobSeen { queue: None, ..job }),
            "there is no queue"
        );
    }

    #[test]
    fn queue_alone_suspends_and_resumes_its_job() {
        let cluster = crate::testing::cluster("size: 2\nsuspend: true");
        let queued = JobSeen {
            queue: Some("team".into()),
            ..JobSeen::default()
        };
        assert_eq!(Elastic::of(&cluster, 2, &queued).suspend, None);
        assert_eq!(Elastic::of(&cluster, 2, &JobSeen::default()).suspend, Some(true));
    }

    /// Another value would have a new version write to every Job of the older one.
    #[test]
    fn elastic_hash_is_the_same_in_every_version() {
        assert_eq!(
            Elastic {
                size: 4,
                suspend: None
            }
            .hash(),
            "f69de8c25e76200d"
        );
    }
}
