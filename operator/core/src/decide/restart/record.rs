//! How the status records a restart.

use flux_shared::crd::v1alpha2::{MiniClusterStatus, Restart};
use k8s_openapi::jiff::Timestamp;

use super::Limit;
use crate::observe::job::JobSeen;
use crate::previous_status::{self, rfc3339, short};
use crate::vocabulary::ConditionType;

/// The status lists at most this many restarts, the last ones, so that it stays small.
const RESTARTS_KEPT: usize = 20;

/// The status with one more restart counted against `limit`, and without the data about the Job that is given up.
pub fn with_counted_restart(
    status: &MiniClusterStatus,
    job_uid: &str,
    reason: &str,
    message: &str,
    limit: Limit,
    now: Timestamp,
) -> MiniClusterStatus {
    let mut after = match limit {
        // The restart was listed when the suspension began, without a Job.
        Limit::None if restart_of_suspension(status).is_some_and(|restart| restart.reason == reason) => {
            with_job_uid(status, job_uid)
        }
        _ => with_restart(status, Some(job_uid), reason, message, now),
    };
    match limit {
        Limit::Backoff => after.backoff_limit_used += 1,
        Limit::MaxRestarts => after.max_restarts_used += 1,
        Limit::None => {}
    }
    // A suspension resets the start time: Kubernetes gives a resumed Job a new one.
    if limit == Limit::None || previous_status::is_true(status, ConditionType::Suspended) {
        after.start_time = None;
    }
    // How that Job ended says nothing about the next one.
    let of_end = [ConditionType::PostSucceeded, ConditionType::ArchiveSaved];
    after
        .conditions
        .retain(|condition| !of_end.iter().any(|type_| condition.type_ == *type_));
    MiniClusterStatus {
        job_uid: None,
        lost_pods: Vec::new(),
        container_restarts: 0,
        timeline: None,
        exit_code: None,
        signal: None,
        ..after
    }
}

/// The status without the failure to mount the view's image: the Job with this uid goes on.
pub fn without_mount_failure(status: &MiniClusterStatus, job_uid: &str) -> MiniClusterStatus {
    let mut after = status.clone();
    let conditions = &mut after.conditions;
    conditions.retain(|condition| condition.type_ != ConditionType::ViewMounted);
    after.job_uid = Some(job_uid.to_owned());
    after
}

/// The restart that was listed for the current suspension, or for the last one if the program has not begun since. It
/// names no Job.
fn restart_of_suspension(status: &MiniClusterStatus) -> Option<&Restart> {
    let is_suspended = previous_status::is_true(status, ConditionType::Suspended);
    status
        .restarts
        .last()
        .filter(|last| last.job_uid.is_none() && (is_suspended || !previous_status::has_begun(status)))
}

/// The status without the restart that was to follow the current suspension: the Job has ended before it was resumed,
/// since its lead had ended before it was suspended.
pub fn without_pending_restart(status: &MiniClusterStatus, ended: &JobSeen) -> MiniClusterStatus {
    let mut after = status.clone();
    if ended.is_suspended && restart_of_suspension(status).is_some() {
        after.restarts.pop();
        after.restart_count -= 1;
    }
    after
}

/// The status with the uid of the replaced Job in its last restart.
fn with_job_uid(status: &MiniClusterStatus, job_uid: &str) -> MiniClusterStatus {
    let mut after = status.clone();
    if let Some(last) = after.restarts.last_mut() {
        last.job_uid = Some(job_uid.to_owned());
    }
    after
}

/// The status with one more restart in its list. `job_uid`: the Job that it replaces; None: it replaces none so far.
pub fn with_restart(
    status: &MiniClusterStatus,
    job_uid: Option<&str>,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> MiniClusterStatus {
    let mut after = status.clone();
    after.restart_count += 1;
    after.restarts.push(Restart {
        time: rfc3339(now),
        reason: reason.to_owned(),
        message: short(message),
        job_uid: job_uid.map(str::to_owned),
    });
    let surplus = after.restarts.len().saturating_sub(RESTARTS_KEPT);
    after.restarts.drain(..surplus);
    after
}
