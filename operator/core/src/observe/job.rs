//! What the operator keeps of a Job.

use flux_shared::crd::v1alpha2::ConditionStatus;
use flux_shared::queueing::{ELASTIC_JOB, QUEUE_NAME, Queueing};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::controller_uid;
use crate::labels;
use crate::observe::partial::Partial;

/// A Job without its template, which nobody reads here: most of a Job's bytes.
pub type JobObject = Partial<Job, JobSize, JobStatus>;

/// What may change of a Job's specification.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct JobSize {
    pub completions: Option<i32>,
    pub suspend: Option<bool>,
}

/// A Job, as seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobSeen {
    pub uid: String,
    /// Uid of the MiniCluster that controls it.
    pub owner_uid: Option<String>,
    pub is_deleting: bool,
    /// Hash of the fields that may change, as they were last applied (`render::elastic`).
    pub rendered_hash: Option<String>,
    /// Hash of the fixed fields of the spec that it was made from ([`Target::spec_hash`](crate::target::Target::spec_hash)).
    pub spec_hash: Option<String>,
    /// Hash of the pod templates that it was made with (`render::overlay_hash`).
    pub overlay_hash: Option<String>,
    /// The object that makes a gang of its pods, as the Job's annotation names it (`render::gang`).
    pub gang: Option<String>,
    /// At least one of its pods has ended.
    pub has_ended_pods: bool,
    /// Its pods mount the view's image.
    pub mounts_view: bool,
    pub maximum_size: Option<u32>,
    pub initial_size: Option<u32>,
    pub completions: u32,
    pub is_suspended: bool,
    /// The queue that alone suspends and resumes it.
    pub queue: Option<String>,
    /// The MiniCluster's labels and annotations for a queue when the Job was made. None: it had none, or the
    /// Job is of a version that did not note them.
    pub queueing: Option<Queueing>,
    /// The queue lets it be resized while it runs.
    pub is_elastic: bool,
    pub created: Option<Timestamp>,
    pub start_time: Option<Timestamp>,
    pub completion_time: Option<Timestamp>,
    pub complete: Option<TrueCondition>,
    /// Condition SuccessCriteriaMet: the lead has succeeded, and the Job is about to be complete.
    pub succeeding: Option<TrueCondition>,
    pub failed: Option<TrueCondition>,
    /// Condition FailureTarget: the Job is about to fail or has failed; its pods are being ended.
    pub failing: Option<TrueCondition>,
    /// The lead's index has failed for good.
    pub has_lead_index_failed: bool,
    /// The first other index that has failed for good.
    pub failed_index: Option<u32>,
    /// Its end is decided (`decide::ending`), but pods of it may still run.
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
    /// Index of the pod that a rule of the failure policy names: the Job controller names each pod by its
    /// namespace and name, and an Indexed Job's pods are called `NAME-INDEX-RANDOM`.
    pub fn index_of_pod(&self) -> Option<u32> {
        let mut words = self.message.split_whitespace();
        words.find(|word| word.eq_ignore_ascii_case("pod"))?;
        let next = words.next()?;
        // The operator's own.
        if next == "of" && words.next() == Some("index") {
            return words.next()?.parse().ok();
        }
        let (_, name) = next.split_once('/')?;
        name.rsplit('-').nth(1)?.parse().ok()
    }
}

impl JobSize {
    pub fn of(job: &Job) -> JobSize {
        let size = job.spec.as_ref().map(|spec| JobSize {
            completions: spec.completions,
            suspend: spec.suspend,
        });
        size.unwrap_or_default()
    }
}

impl JobSeen {
    pub fn of(job: &JobObject) -> JobSeen {
        let Partial {
            metadata,
            spec: size,
            status,
            ..
        } = job;
        let status = status.as_ref();
        let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
        let queue = metadata
            .labels
            .as_ref()
            .and_then(|all| all.get(QUEUE_NAME))
            .filter(|name| !name.is_empty());
        let number = |key: &str| annotation(key).and_then(|text| text.parse().ok());
        let (lead_index_failed, failed_index) = failed_indexes(
            status
                .and_then(|status| status.failed_indexes.as_deref())
                .unwrap_or_default(),
        );
        JobSeen {
            uid: super::uid(metadata),
            owner_uid: controller_uid(metadata).map(str::to_owned),
            is_deleting: metadata.deletion_timestamp.is_some(),
            rendered_hash: annotation(labels::RENDERED_HASH).cloned(),
            spec_hash: annotation(labels::SPEC_HASH).cloned(),
            overlay_hash: annotation(labels::OVERLAY_HASH).cloned(),
            gang: annotation(labels::GANG).cloned(),
            has_ended_pods: status.is_some_and(|status| status.succeeded.max(status.failed).unwrap_or(0) > 0),
            mounts_view: annotation(labels::VIEW).is_some_and(|from| from == labels::VIEW_IS_MOUNTED),
            maximum_size: number(labels::MAXIMUM_SIZE),
            initial_size: number(labels::INITIAL_SIZE),
            completions: size.completions.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            is_suspended: size.suspend.unwrap_or(false),
            queue: queue.cloned(),
            queueing: annotation(labels::QUEUEING).and_then(|text| Queueing::noted(text)),
            is_elastic: annotation(ELASTIC_JOB).is_some_and(|said| said == "true"),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            start_time: status
                .and_then(|status| status.start_time.as_ref())
                .map(|time| time.0),
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

    /// Whether the MiniCluster with this uid controls it.
    pub fn is_of(&self, uid: &str) -> bool {
        self.owner_uid.as_deref() == Some(uid)
    }

    /// Whether it was made from another spec than that of this hash, as far as both are known.
    pub fn differs_from(&self, spec_hash: Option<&str>) -> bool {
        self.spec_hash
            .as_deref()
            .zip(spec_hash)
            .is_some_and(|(made, now)| made != now)
    }

    /// Whether the lead has succeeded, as far as the Job tells.
    pub fn has_succeeded(&self) -> bool {
        self.complete.is_some() || self.succeeding.is_some()
    }

    pub fn is_finished(&self) -> bool {
        self.complete.is_some() || self.failed.is_some()
    }

    /// The queue in which it waits: before it is admitted, or after it was preempted.
    pub fn waits_in(&self) -> Option<&str> {
        if self.is_suspended && !self.is_finished() && !self.is_deleting {
            self.queue.as_deref()
        } else {
            None
        }
    }

    /// When it ended, with success or failure.
    pub fn end_time(&self) -> Option<Timestamp> {
        let condition = self.complete.as_ref().or(self.failed.as_ref())?;
        self.completion_time.or(condition.since)
    }
}

/// Whether index 0 is in a Job's list of indexes, such as `0,2-4`, and the first other one.
fn failed_indexes(list: &str) -> (bool, Option<u32>) {
    let first = |range: &str| {
        range
            .split('-')
            .next()
            .and_then(|index| index.parse::<u32>().ok())
    };
    let mut ranges = list.split(',');
    let Some(range) = ranges.next().filter(|range| !range.is_empty()) else {
        return (false, None);
    };
    if first(range) != Some(0) {
        return (false, first(range));
    }
    let after_lead = if range.contains('-') {
        Some(1)
    } else {
        ranges.next().and_then(first)
    };
    (true, after_lead)
}

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
    use super::*;

    #[test]
    fn failed_indexes_of_a_job_are_read_in_short() {
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
