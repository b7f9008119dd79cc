//! What the operator tells.

use serde::{Deserialize, Serialize};

use super::is_zero;

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
        /// Largest size allowed, fixed when the cluster was made.
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
        /// When it ended.
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
        /// Index of the pod that failed first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub failed_index: Option<i32>,
        /// Why, in one word.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// Why, in one sentence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub message: Option<String>,
        /// How often it was started again, in all: each start is told in restarts.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub restart_count: i32,
        /// How many of these starts count towards backoffLimit.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub backoff_limit_used: i32,
        /// How many of these starts count towards maxRestarts.
        #[serde(default, skip_serializing_if = "is_zero")]
        pub max_restarts_used: i32,
        /// How many of these starts were the kubelet's, of the lead's container of the present Job (restartPolicy
        /// OnFailure).
        #[serde(default, skip_serializing_if = "is_zero")]
        pub container_restarts: i32,
        /// The last 20 starts after the first one, the latest last, and why.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub restarts: Vec<Restart>,
        /// Pods that were taken away since the last start, the latest last: 8 at most.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub lost_pods: Vec<LostPod>,
        /// Uid of the Job that runs it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub job_uid: Option<String>,
        /// Secret with the passwords of users, one key each.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub users_secret: Option<String>,
        /// Secret with the Flux RESTful API's key, user and token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub flux_restful_secret: Option<String>,
        /// Conditions, each of its own type.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
    }
}

block! {
    /// A start after the first one.
    pub struct Restart {
        /// When it was decided.
        pub time: String,
        /// Why, in one word: LeadLost, PodLost, JobDeleted, Suspended or the reason why the lead did not start.
        pub reason: String,
        /// Which pod was lost, on which node, and what took it.
        pub message: String,
        /// Uid of the Job that was given up, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub job_uid: Option<String>,
    }
}

block! {
    /// A pod that was taken away.
    #[derive(Default)]
    pub struct LostPod {
        /// Its name.
        pub name: String,
        /// Its completion index; 0 is the lead.
        #[serde(default)]
        pub index: i32,
        /// Its node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub node: Option<String>,
        /// What took it, in one word.
        pub reason: String,
        /// What took it, in one sentence.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub message: String,
        /// When that was first seen.
        pub time: String,
    }
}

block! {
    /// The steps of a start, after `metadata.creationTimestamp` and `startTime`. What the agents did in between stands in their
    /// pods' logs.
    #[derive(Default)]
    pub struct Timeline {
        /// Every pod has a node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub scheduled: Option<String>,
        /// The lead's container runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub running: Option<String>,
        /// Enough brokers are ready, as the condition Ready says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub ready: Option<String>,
    }
}

block! {
    /// One aspect of the state, as Kubernetes' own conditions.
    pub struct Condition {
        /// Name of the condition.
        #[serde(rename = "type")]
        pub type_: String,
        /// True, False or Unknown.
        pub status: String,
        /// The generation of the spec that it describes.
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
