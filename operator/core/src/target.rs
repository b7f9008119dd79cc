//! The MiniCluster that a reconcile is about: the parts of the object that it needs.

use flux_shared::crd::v1alpha2::{MiniClusterSpec, MiniClusterStatus};
use flux_shared::manifest::Manifest;
use flux_shared::queueing::{self, Queueing};
use flux_shared::validate::{Problem, ValidMiniCluster, validate_and_note};
use k8s_openapi::jiff::Timestamp;
use kube::Resource;

use crate::observe::Key;
use crate::observe::cluster::{Cluster, version};
use crate::observe::job::JobSeen;
use crate::render::{self, Options};

/// The MiniCluster of one reconcile.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub key: Key,
    pub uid: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    pub generation: Option<i64>,
    pub is_deleting: bool,
    /// Labels and annotations for a queue: those that the Job was created with, or else the object's present ones.
    pub queueing: Queueing,
    /// Whether the labels and annotations for a queue have changed since the Job was created.
    pub has_queueing_changed: bool,
    /// Whether the Job is in a queue, even if the MiniCluster names none: Kueue puts Jobs into a default queue.
    pub is_job_queued: bool,
    /// The spec, not validated yet. The error says why it cannot be read.
    pub spec: Result<MiniClusterSpec, Vec<Problem>>,
    /// The status; the default if there is none or it cannot be read.
    pub status: MiniClusterStatus,
    /// Whether the object has a status, even one that cannot be read.
    pub has_status: bool,
    pub resource_version: u64,
}

impl Target {
    /// The parts of a MiniCluster as the API server sent it. Its queueing is that of the object.
    pub fn of(object: &Cluster) -> Target {
        let metadata = object.meta();
        Target {
            key: Key::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            generation: metadata.generation,
            is_deleting: metadata.deletion_timestamp.is_some(),
            queueing: Queueing::of(metadata.labels.as_ref(), metadata.annotations.as_ref()),
            has_queueing_changed: false,
            is_job_queued: false,
            spec: object.spec().map_err(|error| vec![Problem::new("", error)]),
            has_status: object.has_status(),
            status: object.status().unwrap_or_default(),
            resource_version: version(metadata),
        }
    }

    /// Replaces `queueing` by the labels and annotations that the Job was created with, if there is a Job. Later
    /// changes of the MiniCluster count for the next Job.
    pub fn with_queueing_of(mut self, job: Option<&JobSeen>) -> Target {
        self.is_job_queued = job.is_some_and(|job| job.queue.is_some());
        // A queued Job without a record is from an earlier version of the operator, or others (such as Kueue) have put it
        // into a queue. Then the MiniCluster's present labels count.
        let Some(job) = job.filter(|job| job.queueing.is_some() || job.queue.is_none()) else {
            return self;
        };
        let from_object = std::mem::replace(&mut self.queueing, job.queueing.clone().unwrap_or_default());
        // The Job does not record labels that come from `spec.jobLabels`.
        self.has_queueing_changed = match &self.spec {
            Ok(spec) => from_object.without_job_labels(&spec.job_labels) != self.queueing,
            Err(_) => from_object != self.queueing,
        };
        self
    }

    /// Hash of the fields of the spec that cannot change once the Job was created. None: the spec cannot be read.
    pub fn spec_hash(&self) -> Option<String> {
        self.spec.as_ref().ok().map(render::spec_hash::of)
    }

    /// Validates the spec and, if it is valid, checks that the options of this installation admit it.
    pub fn validate(&self, options: &Options) -> Result<ValidMiniCluster, Vec<Problem>> {
        let spec = self.spec.clone()?;
        let (name, namespace) = (self.key.name.clone(), self.key.namespace.clone());
        let queueing = self.queueing.clone();
        let manifest = Manifest {
            name,
            namespace,
            queueing,
            // True only for a manifest in v1alpha1. The operator reads v1alpha2.
            cleans_by_default: false,
            maximum_size: self.status.maximum_size.and_then(|size| u32::try_from(size).ok()),
            spec,
        };
        let mut cluster = options.admit(validate_and_note(&manifest)?)?;
        if self.has_queueing_changed {
            let message = "those for a queue have changed since the Job was created, and count only for the MiniCluster's next Job. While the Job waits in its queue, change the labels of the Job itself";
            cluster
                .notices
                .push(Problem::new("metadata.labels and metadata.annotations", message));
        }
        // If the MiniCluster names a queue, validation has noted this.
        if self.is_job_queued && cluster.queueing.queue().is_none() && cluster.suspend.is_some() {
            cluster.notices.push(queueing::suspend_without_effect());
        }
        Ok(cluster)
    }
}

#[cfg(test)]
mod tests {
    use flux_shared::crd::v1alpha2::ConditionStatus;
    use flux_shared::crd::v1alpha2::MiniClusterStatus;
    use flux_shared::queueing::QUEUE_NAME;

    use super::*;

    fn in_queue(queue: &str) -> Queueing {
        let labels = if queue.is_empty() {
            Default::default()
        } else {
            [(QUEUE_NAME.into(), queue.into())].into()
        };
        Queueing {
            labels,
            ..Queueing::default()
        }
    }

    #[test]
    fn status_of_an_unreadable_minicluster_is_kept() {
        let overlay = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        let seen = |status: &str| {
            let object = format!(
                r#"{{"metadata":{{"name":"mc","uid":"u"}},"spec":{{"containers":[],"podTemplate":{overlay}}},"status":{status}}}"#
            );
            Target::of(&serde_json::from_str(&object).unwrap())
        };
        let target = seen(r#"{"phase":"Running","size":2}"#);
        assert!(target.spec.is_err());
        assert_eq!(target.status.phase.as_deref(), Some("Running"));
        for status in [r#"{"phase":"Running","size":2}"#, r#"{"phase":7}"#] {
            let target = seen(status);
            let after = MiniClusterStatus {
                size: 3,
                ..target.status.clone()
            };
            let change = crate::status::patch::build(&target, &target.status, &after)
                .unwrap()
                .unwrap();
            assert!(
                !change.to_string().contains(r#""/status""#),
                "it would empty the status: {change}"
            );
        }
    }

    #[test]
    fn condition_with_an_odd_status_reads_as_unknown() {
        let condition = |status: &str| {
            format!(
                r#"{{"type":"Ready","status":"{status}","lastTransitionTime":"","reason":"","message":""}}"#
            )
        };
        let (odd, known) = (condition("true"), condition("False"));
        let object = format!(
            r#"{{"metadata":{{"name":"mc","uid":"u"}},"spec":{{"size":2,"containers":[]}},"status":{{"size":2,"conditions":[{odd},{known}]}}}}"#
        );
        let target = Target::of(&serde_json::from_str(&object).unwrap());
        assert!(target.spec.is_ok(), "{:?}", target.spec);
        assert_eq!(target.status.size, 2);
        let conditions = target.status.conditions.iter();
        let found: Vec<ConditionStatus> = conditions.map(|condition| condition.status).collect();
        assert_eq!(found, [ConditionStatus::Unknown, ConditionStatus::False]);
    }

    #[test]
    fn label_that_differs_from_queue_in_job_labels_is_a_change() {
        let spec = "size: 2\njobLabels: {kueue.x-k8s.io/queue-name: team}";
        let cluster = crate::testing::cluster(spec);
        let job = crate::render::job::build(&cluster, &Default::default(), &Default::default()).unwrap();
        let job = JobSeen::of(&serde_json::from_value(serde_json::to_value(job).unwrap()).unwrap());
        let spec = serde_json::json!({
            "size": 2, "containers": [{ "image": "app:1" }], "jobLabels": { QUEUE_NAME: "team" },
        });
        for (now, changed) in [("", false), ("team", false), ("other", true)] {
            let target = Target {
                spec: Ok(serde_json::from_value(spec.clone()).unwrap()),
                ..target(now)
            };
            let target = target.with_queueing_of(Some(&job));
            let valid = target.validate(&Options::default()).unwrap();
            assert_eq!(valid.queueing.queue(), Some("team"));
            assert_eq!(target.has_queueing_changed, changed, "{now}");
        }
    }

    /// A host's rank is its place in the list, so the list must not depend on the present size.
    #[test]
    fn hosts_of_a_burst_stay_when_the_size_changes() {
        let hosts = |size: i32, maximum_size: Option<i32>| {
            let spec = serde_json::json!({
                "size": size,
                "containers": [{ "image": "app:1" }],
                "flux": { "bursting": { "clusters": [{ "name": "burst" }] } },
            });
            let status = MiniClusterStatus {
                maximum_size,
                ..MiniClusterStatus::default()
            };
            let target = Target {
                spec: Ok(serde_json::from_value(spec).unwrap()),
                ..crate::testing::target("uid", &status)
            };
            let valid = target.validate(&Options::default()).unwrap();
            (valid.flux.hostlist.unwrap(), valid.max_size, valid.resizes)
        };
        let of_four = ("mc-[0-3],burst-[0-3]".to_owned(), 4, false);
        assert_eq!(hosts(4, None), of_four);
        assert_eq!(hosts(2, Some(4)), of_four);
    }

    #[test]
    fn suspend_is_noted_once_in_any_queue() {
        let job = |named: bool| JobSeen {
            queueing: named.then(|| in_queue("team")),
            queue: Some("team".into()),
            ..JobSeen::default()
        };
        let spec = serde_json::json!({ "size": 1, "containers": [{ "image": "app:1" }], "suspend": true });
        for (named, job, expected) in [
            ("", None, 0),
            ("", Some(JobSeen::default()), 0),
            ("", Some(job(false)), 1),
            ("team", None, 1),
            ("team", Some(job(true)), 1),
        ] {
            let target = Target {
                spec: Ok(serde_json::from_value(spec.clone()).unwrap()),
                ..target(named)
            };
            let target = target.with_queueing_of(job.as_ref());
            let notices = target.validate(&Options::default()).unwrap().notices;
            let count = notices
                .iter()
                .filter(|notice| {
                    notice
                        .to_string()
                        .starts_with("spec.suspend: has no effect in a queue")
                })
                .count();
            assert_eq!(count, expected, "{named}, {job:?}: {notices:?}");
        }
    }

    fn target(queue: &str) -> Target {
        Target {
            queueing: in_queue(queue),
            ..crate::testing::target("uid", &MiniClusterStatus::default())
        }
    }

    #[test]
    fn labels_for_a_queue_are_those_that_the_job_was_created_with() {
        let job = |queueing: Option<Queueing>, queue: Option<&str>| JobSeen {
            queueing,
            queue: queue.map(str::to_owned),
            ..JobSeen::default()
        };
        for (now, job, then, changed) in [
            ("team", None, "team", false),
            (
                "team",
                Some(job(Some(in_queue("team")), Some("team"))),
                "team",
                false,
            ),
            (
                "other",
                Some(job(Some(in_queue("team")), Some("team"))),
                "team",
                true,
            ),
            ("", Some(job(Some(in_queue("team")), Some("team"))), "team", true),
            ("team", Some(job(None, None)), "", true),
            // The Job's queue is in `spec.jobLabels`.
            ("other", Some(job(Some(in_queue("")), Some("team"))), "", true),
            // Created by an earlier version, or put into a queue by Kueue itself.
            ("team", Some(job(None, Some("team"))), "team", false),
            ("", Some(job(None, Some("default"))), "", false),
        ] {
            let found = target(now).with_queueing_of(job.as_ref());
            assert_eq!(
                (&found.queueing, found.has_queueing_changed),
                (&in_queue(then), changed),
                "{now}, {job:?}"
            );
        }
    }
}
