//! The status: what the operator reports.

use serde::{Deserialize, Serialize};

use super::is_zero;
use crate::phase::Phase;

block! {
    /// What the MiniCluster is doing.
    #[derive(Default)]
    pub struct MiniClusterStatus {
        /// One word: Invalid, Pending, Starting, Running, Suspended, Completed, Failed or Terminating.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub phase: Option<String>,
        /// Number of pods that exist and have not ended.
        #[serde(default)]
        pub size: i32,
        /// Number of pods whose Flux runner is ready.
        #[serde(default)]
        pub ready_size: i32,
        /// Largest size allowed, fixed when the first Job was created.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub maximum_size: Option<i32>,
        /// Selector of the pods, for autoscalers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub selector: Option<String>,
        /// The generation of the spec that this status describes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub observed_generation: Option<i64>,
        /// When the Job started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub start_time: Option<String>,
        /// When the Job ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub completion_time: Option<String>,
        /// When each step of the last start was reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub timeline: Option<Timeline>,
        /// Exit code of the lead, 128 + n for signal n.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub exit_code: Option<i32>,
        /// The signal that ended the lead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub signal: Option<i32>,
        /// Index of the pod because of which the job failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub failed_index: Option<i32>,
        /// Reason for the phase, in one word.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// Reason for the phase, in one sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub message: Option<String>,
        /// Total number of restarts. The latest are listed in restarts.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub restart_count: i32,
        /// Number of restarts that count towards backoffLimit.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub backoff_limit_used: i32,
        /// Number of restarts that count towards maxRestarts.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub max_restarts_used: i32,
        /// Number of restarts of the lead's container by the kubelet since the current Job was created or last
        /// suspended (restartPolicy OnFailure).
        #[serde(default, skip_serializing_if = "is_zero")]
        pub container_restarts: i32,
        /// The last 20 restarts with their reasons, the latest last.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub restarts: Vec<Restart>,
        /// Pods lost since the last restart, the latest last; 8 at most.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub lost_pods: Vec<LostPod>,
        /// Uid of the current Job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub job_uid: Option<String>,
        /// Secret with the passwords of users, one key each.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub users_secret: Option<String>,
        /// Secret with the Flux RESTful API's key, user and token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_restful_secret: Option<String>,
        /// Conditions, one of each type.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
    }
}

impl MiniClusterStatus {
    /// The phase. None: the operator has not written it yet, or another version wrote a word that is unknown here.
    pub fn phase(&self) -> Option<Phase> {
        Phase::parse(self.phase.as_deref()?)
    }
}

block! {
    /// A restart.
    pub struct Restart {
        /// When the restart was decided.
        pub time: String,
        /// Why, in one word: LeadLost, PodLost, JobDeleted, Suspended, Requeued, or the reason why the lead
        /// did not start.
        pub reason: String,
        /// Why, in one sentence, such as which pod was lost, and on which node.
        pub message: String,
        /// Uid of the Job that was replaced, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub job_uid: Option<String>,
    }
}

block! {
    /// A pod that was lost: deleted, evicted, or on a failed node.
    #[derive(Default)]
    pub struct LostPod {
        /// Name of the pod.
        pub name: String,
        /// Completion index of the pod; 0 is the lead.
        #[serde(default)]
        pub index: i32,
        /// Node that the pod was on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub node: Option<String>,
        /// Why the pod was lost, in one word.
        pub reason: String,
        /// Why the pod was lost, in one sentence.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub message: String,
        /// When the loss was first seen.
        pub time: String,
    }
}

block! {
    /// When the steps of the last start were reached, after `metadata.creationTimestamp` and `startTime`. The
    /// pods' logs have the agents' steps in between.
    #[derive(Default)]
    pub struct Timeline {
        /// When every pod had a node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scheduled: Option<String>,
        /// When the lead's container started.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub running: Option<String>,
        /// When enough brokers were ready (condition Ready).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ready: Option<String>,
    }
}

block! {
    /// One aspect of the state, in the form of Kubernetes' conditions.
    pub struct Condition {
        /// Name of the condition.
        #[serde(rename = "type")]
        pub type_: String,
        /// True, False or Unknown.
        pub status: ConditionStatus,
        /// The generation of the spec that the condition describes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub observed_generation: Option<i64>,
        /// When the status last changed.
        pub last_transition_time: String,
        /// Why, in one word.
        pub reason: String,
        /// Why, in a sentence.
        pub message: String,
    }
}

/// The status of a condition, ours or one of Kubernetes' objects. Anything else, which somebody else has
/// stored, reads as `Unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "crd", derive(schemars::JsonSchema))]
pub enum ConditionStatus {
    True,
    False,
    #[serde(other)]
    Unknown,
}

impl From<bool> for ConditionStatus {
    fn from(is_true: bool) -> ConditionStatus {
        if is_true {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        }
    }
}

/// Reads the status of a condition of Kubernetes' own objects.
impl From<&str> for ConditionStatus {
    fn from(status: &str) -> ConditionStatus {
        match status {
            "True" => ConditionStatus::True,
            "False" => ConditionStatus::False,
            _ => ConditionStatus::Unknown,
        }
    }
}
