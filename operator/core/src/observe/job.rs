//! What the operator keeps of a Job.

use flux_shared::crd::v1alpha2::ConditionStatus;
use flux_shared::queueing::{ELASTIC_JOB, Queueing};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::controller_uid;
use crate::labels;
use crate::observe::partial::{Partial, queue_of};
use crate::render::elastic::RESIZING;
use crate::vocabulary::ConditionType;

/// A Job without its pod template, which has most of a Job's bytes and is not read.
pub type JobObject = Partial<Job, JobSpecPart, JobStatus>;

/// The part of a Job's spec that is read.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct JobSpecPart {
    pub completions: Option<i32>,
    pub suspend: Option<bool>,
}

/// Longest of the operator's short annotations, in bytes. The longest is that of a gang, with the name of an object.
const ANNOTATION_MAX: usize = 512;

/// A Job as last seen. Whoever may edit Jobs can write its annotations, so the text that is kept of them is bounded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobSeen {
    pub uid: String,
    /// Uid of the object that controls it: the MiniCluster's, unless somebody else created the Job.
    pub owner_uid: Option<String>,
    pub is_deleting: bool,
    /// Hash of the fields that may change, as the operator last applied them (`render::elastic`).
    pub rendered_hash: Option<String>,
    /// The operator has begun to change the Job, its gang or its ConfigMap to another size, and has not finished.
    pub is_resizing: bool,
    /// Two hashes of the spec that it was created from, with a dot between: of all fixed fields, and of those from which
    /// other objects than the Job and the ConfigMap are made ([`Target::spec_hash`](crate::target::Target::spec_hash)).
    pub spec_hash: Option<String>,
    /// Hash of `podTemplate` and `servicesPodTemplate` that it was created with (`render::overlay_hash`).
    pub overlay_hash: Option<String>,
    /// Value of its annotation about the object that makes a gang of its pods (`render::gang`).
    pub gang: Option<String>,
    /// The Job controller has counted a pod as succeeded or failed.
    pub has_ended_pods: bool,
    /// Its pods mount the view's image.
    pub mounts_view: bool,
    /// The largest number of pods that the cluster can have, from the Job's annotation.
    pub maximum_size: Option<u32>,
    /// The number of brokers in the ConfigMap, from its annotation ([`labels::INITIAL_SIZE`]).
    pub initial_size: Option<u32>,
    /// The wanted number of pods.
    pub completions: u32,
    pub is_suspended: bool,
    /// Name of its queue. If it has one, only the queue suspends and resumes it.
    pub queue: Option<String>,
    /// The MiniCluster's labels and annotations for a queue when the Job was created. None: it had none, or the Job
    /// is from a version of the operator that did not record them.
    pub queueing: Option<Queueing>,
    /// The queue allows that it is resized while it runs.
    pub is_elastic: bool,
    pub created: Option<Timestamp>,
    /// None also while the Job controller says that it is suspended.
    pub start_time: Option<Timestamp>,
    /// Whether its status has a start time, be it that of a start before a suspension.
    pub has_start: bool,
    pub completion_time: Option<Timestamp>,
    pub complete: Option<TrueCondition>,
    /// Condition SuccessCriteriaMet: the lead has succeeded. The Job becomes complete when its pods have ended.
    pub succeeding: Option<TrueCondition>,
    pub failed: Option<TrueCondition>,
    /// Condition FailureTarget: the Job fails once its pods, which are being stopped, have ended; or it has failed.
    pub failing: Option<TrueCondition>,
    /// Index 0, the lead's, is among the Job's failed indexes: the Job controller creates no more pods for it.
    pub has_lead_index_failed: bool,
    /// The lowest of the Job's other failed indexes.
    pub failed_index: Option<u32>,
    /// The operator has decided that the Job has ended (`decide::ending`), but pods of it may still run. False in what
    /// the watch reports.
    pub has_living_pods: bool,
}

/// A condition of the Job that is true.
#[derive(Debug, Clone, PartialEq)]
pub struct TrueCondition {
    pub reason: String,
    pub message: String,
    pub since: Option<Timestamp>,
}

impl TrueCondition {
    /// Index of the pod that failed the Job, from the condition's message. None: the message names no pod. The Job
    /// controller writes `NAMESPACE/NAME` after the word `pod`, and the pods of an Indexed Job are called
    /// `JOB-INDEX-RANDOM`.
    pub fn index_of_pod(&self) -> Option<u32> {
        let mut words = self.message.split_whitespace();
        words.find(|word| word.eq_ignore_ascii_case("pod"))?;
        let next = words.next()?;
        // A message of the operator (`decide::restart`): `the pod of index N ended`, or `did not start`.
        if next == "of" && words.next() == Some("index") {
            return words.next()?.parse().ok();
        }
        let (_, name) = next.split_once('/')?;
        name.rsplit('-').nth(1)?.parse().ok()
    }
}

impl JobSeen {
    pub fn of(job: &JobObject) -> JobSeen {
        let Partial {
            metadata,
            spec,
            status,
            ..
        } = job;
        let status = status.as_ref();
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
        // A longer one is not the operator's.
        let short_annotation = |key: &str| {
            annotation(key)
                .filter(|text| text.len() <= ANNOTATION_MAX)
                .cloned()
        };
        let number = |key: &str| annotation(key).and_then(|text| text.parse().ok());
        let hash = short_annotation(labels::RENDERED_HASH);
        let marked_hash = hash.as_deref().and_then(|hash| hash.strip_prefix(RESIZING));
        let (lead_index_failed, failed_index) = failed_indexes(
            status
                .and_then(|status| status.failed_indexes.as_deref())
                .unwrap_or_default(),
        );
        let start = status
            .and_then(|status| status.start_time.as_ref())
            .map(|time| time.0);
        // While this condition of the Job, which is called as the MiniCluster's, is true, the Job has at most the time of
        // its start before the suspension.
        let is_stopped = condition(status, ConditionType::Suspended.name()).is_some();
        JobSeen {
            uid: super::uid(metadata),
            owner_uid: controller_uid(metadata).map(str::to_owned),
            is_deleting: metadata.deletion_timestamp.is_some(),
            is_resizing: marked_hash.is_some(),
            rendered_hash: marked_hash.map(str::to_owned).or(hash),
            spec_hash: short_annotation(labels::SPEC_HASH),
            overlay_hash: short_annotation(labels::OVERLAY_HASH),
            gang: short_annotation(labels::GANG),
            has_ended_pods: status.is_some_and(|status| status.succeeded.max(status.failed).unwrap_or(0) > 0),
            mounts_view: annotation(labels::VIEW).is_some_and(|value| value == labels::VIEW_IS_MOUNTED),
            maximum_size: number(labels::MAXIMUM_SIZE),
            initial_size: number(labels::INITIAL_SIZE),
            completions: spec.completions.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            is_suspended: spec.suspend.unwrap_or(false),
            queue: queue_of(metadata).map(str::to_owned),
            queueing: annotation(labels::QUEUEING).and_then(|text| Queueing::noted(text)),
            is_elastic: annotation(ELASTIC_JOB).is_some_and(|value| value == "true"),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            start_time: if is_stopped { None } else { start },
            has_start: start.is_some(),
            completion_time: status
                .and_then(|status| status.completion_time.as_ref())
                .map(|time| time.0),
            complete: condition(status, "Complete"),
            succeeding: condition(status, "SuccessCriteriaMet"),
            failed: condition(status, "Failed"),
            failing: condition(status, "FailureTarget"),
            has_lead_index_failed: lead_index_failed,
            failed_index,
            has_living_pods: false,
        }
    }

    /// This size, or the Job's maximum size if that is smaller.
    pub fn capped(&self, size: u32) -> u32 {
        self.maximum_size.map_or(size, |maximum| size.min(maximum))
    }

    /// How many brokers the command waits for: `minSize` or, without it, the size when the pods started.
    pub fn quorum(&self, min_size: Option<u32>) -> u32 {
        let least = min_size.map(|size| self.capped(size));
        least.or(self.initial_size).unwrap_or(self.completions)
    }

    /// Whether the MiniCluster with this uid controls it.
    pub fn is_of(&self, uid: &str) -> bool {
        self.owner_uid.as_deref() == Some(uid)
    }

    /// Whether it was created from another spec than the one with this hash. False if either hash is unknown.
    pub fn differs_from(&self, spec_hash: Option<&str>) -> bool {
        // The part after the dot is of fewer fields, and another version may choose others.
        let of_all_fields = |hash| str::split(hash, '.').next();
        self.spec_hash
            .as_deref()
            .zip(spec_hash)
            .is_some_and(|(own, current)| of_all_fields(own) != of_all_fields(current))
    }

    /// Whether the Job's conditions say that the lead has succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.complete.is_some() || self.succeeding.is_some()
    }

    /// Whether it is complete or has failed.
    pub fn is_finished(&self) -> bool {
        self.complete.is_some() || self.failed.is_some()
    }

    /// Name of the queue in which it waits: before the queue admits it, or after the queue has stopped it.
    pub fn waits_in(&self) -> Option<&str> {
        if self.is_suspended && !self.is_finished() && !self.is_deleting {
            self.queue.as_deref()
        } else {
            None
        }
    }

    /// Whether a queue has admitted it with a number of pods that cannot change while it runs.
    pub fn has_size_of_queue(&self) -> bool {
        self.queue.is_some() && !self.is_elastic && !self.is_suspended
    }

    /// When it completed or failed. None: it has not, or the time is unknown.
    pub fn end_time(&self) -> Option<Timestamp> {
        let condition = self.complete.as_ref().or(self.failed.as_ref())?;
        self.completion_time.or(condition.since)
    }
}

/// Whether index 0 is in a Job's ascending list of indexes, such as `0,2-4`, and the lowest other index in it.
fn failed_indexes(list: &str) -> (bool, Option<u32>) {
    let first_of = |range: &str| {
        range
            .split('-')
            .next()
            .and_then(|index| index.parse::<u32>().ok())
    };
    let mut ranges = list.split(',');
    let Some(range) = ranges.next().filter(|range| !range.is_empty()) else {
        return (false, None);
    };
    if first_of(range) != Some(0) {
        return (false, first_of(range));
    }
    // A range that begins with 0 contains 1.
    let after_lead = if range.contains('-') {
        Some(1)
    } else {
        ranges.next().and_then(first_of)
    };
    (true, after_lead)
}

/// The condition of this type, if its status is True.
fn condition(status: Option<&JobStatus>, type_: &str) -> Option<TrueCondition> {
    let conditions = status?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| {
        condition.type_ == type_ && ConditionStatus::from(condition.status.as_str()) == ConditionStatus::True
    })?;
    Some(TrueCondition {
        reason: found.reason.clone().unwrap_or_default(),
        message: found.message.clone().unwrap_or_default(),
        since: found.last_transition_time.as_ref().map(|time| time.0),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Up to Kubernetes 1.35, the time of the first start stays.
    #[test]
    fn suspended_job_has_no_start_time_until_it_is_resumed() {
        let start_time = |is_suspended: &str| {
            let status = serde_json::json!({
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{ "type": "Suspended", "status": is_suspended }],
            });
            let mut job = JobObject::new(Default::default(), JobSpecPart::default());
            job.status = serde_json::from_value(status).unwrap();
            JobSeen::of(&job).start_time
        };
        assert_eq!(start_time("True"), None);
        assert!(start_time("False").is_some());
    }

    /// Otherwise one namespace's annotations could fill the operator's memory.
    #[test]
    fn job_seen_keeps_no_long_text_that_a_user_wrote() {
        let seen = |length: usize| {
            let text = "h".repeat(length);
            let keys = [
                labels::RENDERED_HASH,
                labels::SPEC_HASH,
                labels::OVERLAY_HASH,
                labels::GANG,
            ];
            let annotations: BTreeMap<_, _> =
                keys.iter().map(|key| ((*key).to_owned(), text.clone())).collect();
            let owner = serde_json::json!({
                "apiVersion": "a/v1", "kind": "A", "name": "a", "uid": text, "controller": true,
            });
            let metadata = serde_json::json!({ "annotations": annotations, "ownerReferences": [owner] });
            JobSeen::of(&JobObject::new(
                serde_json::from_value(metadata).unwrap(),
                JobSpecPart::default(),
            ))
        };
        let of_annotations = |job: &JobSeen| {
            [&job.rendered_hash, &job.spec_hash, &job.overlay_hash, &job.gang].map(Option::is_some)
        };
        assert_eq!(of_annotations(&seen(ANNOTATION_MAX)), [true; 4]);
        let long = seen(200_000);
        assert_eq!(of_annotations(&long), [false; 4]);
        assert!(long.owner_uid.is_some(), "somebody controls it");
        assert!(format!("{long:?}").len() < 4096);
    }

    #[test]
    fn failed_indexes_are_read_as_the_leads_and_the_lowest_other() {
        for (list, lead, other) in [
            ("", false, None),
            ("0", true, None),
            ("1", false, Some(1)),
            ("3-7,9", false, Some(3)),
            ("0-2", true, Some(1)),
            ("0,2-4", true, Some(2)),
        ] {
            assert_eq!(failed_indexes(list), (lead, other), "{list}");
        }
    }
}
