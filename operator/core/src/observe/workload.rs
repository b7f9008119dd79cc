//! Why a Job waits in a queue of Kueue, from the Workload that Kueue creates for the Job.

use flux_shared::crd::v1alpha2::ConditionStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::{ApiResource, GroupVersionKind};
use serde::{Deserialize, Serialize};

/// Label of a Workload with the uid of its Job.
pub const JOB_UID: &str = "kueue.x-k8s.io/job-uid";
pub const GROUP: &str = "kueue.x-k8s.io";
/// Versions of the API, the newest first.
pub const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The part of a Workload that is read.
pub type Workload = kube::core::Object<WorkloadSpec, WorkloadStatus>;

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct WorkloadSpec {
    /// False: it was deactivated, so Kueue does not admit it. Unset means true.
    pub active: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    #[serde(default)]
    pub conditions: Vec<Condition>,
    #[serde(default)]
    pub admission_checks: Vec<AdmissionCheck>,
}

/// A condition of a Workload's admission, besides quota, that another controller has to fulfil.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
pub struct AdmissionCheck {
    pub name: String,
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub message: String,
}

/// The API of Workloads, in one of its versions.
pub fn resource(version: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, "Workload"))
}

/// Why the Job of these Workloads waits. A Job has several if it has grown: the admitted one of the smaller size, until
/// Kueue admits the one of the larger size, and finished ones of earlier sizes. The newest that is not finished counts,
/// or else the newest.
pub fn why(workloads: impl IntoIterator<Item = Workload>) -> String {
    let is_true = |workload: &Workload, type_: &str| {
        condition(workload, type_)
            .is_some_and(|found| ConditionStatus::from(found.status.as_str()) == ConditionStatus::True)
    };
    // If two were created in the same second, the one without quota is the newer one.
    let rank = |workload: &Workload| {
        (
            !is_true(workload, "Finished"),
            workload.creation_timestamp(),
            !is_true(workload, "QuotaReserved"),
        )
    };
    match workloads.into_iter().max_by_key(rank) {
        Some(workload) => explain(&workload),
        None => {
            "Kueue has created no Workload for its Job: it may not manage Jobs in this namespace".to_owned()
        }
    }
}

/// The message if the operator may not list Workloads and no event says why the Job waits.
pub const NOT_FOR_US: &str = "the reason is in Kueue's Workload, which the operator may read only if it was installed with kueue.enabled=true";

/// The message if the cluster has no Workload API.
pub const NOT_INSTALLED: &str = "there is no Kueue in this cluster to admit it: install Kueue, or recreate the MiniCluster without the label kueue.x-k8s.io/queue-name";

/// The Workload's condition of this type.
fn condition<'a>(workload: &'a Workload, type_: &str) -> Option<&'a Condition> {
    workload
        .status
        .as_ref()?
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
}

/// What this Workload waits for, and why it was stopped, if it was.
fn explain(workload: &Workload) -> String {
    let status = workload.status.clone().unwrap_or_default();
    let condition = |type_: &str| condition(workload, type_);
    let is_true = |type_: &str| {
        condition(type_)
            .is_some_and(|found| ConditionStatus::from(found.status.as_str()) == ConditionStatus::True)
    };
    let evicted = condition("Evicted")
        .filter(|found| ConditionStatus::from(found.status.as_str()) == ConditionStatus::True);
    let evicted = evicted.map(|found| format!("it was stopped ({}): {}", found.reason, found.message));
    let name = workload.name_any();
    let waits = match condition("QuotaReserved") {
        _ if workload.spec.active == Some(false) => {
            Some(format!("its Workload {name} is deactivated (active: false)"))
        }
        _ if is_true("Admitted") => Some("it has been admitted, and is about to start".to_owned()),
        Some(_) if is_true("QuotaReserved") => Some(awaited_after_quota(&status.admission_checks)),
        // The queue may be inactive because of an admission check. Then Kueue's message does not name the check.
        Some(quota) if quota.reason == "Inadmissible" => {
            let unready = not_ready(&status.admission_checks);
            let named = if unready.is_empty() {
                unready
            } else {
                format!(" (its admission checks: {unready})")
            };
            Some(format!("{}{named}", quota.message))
        }
        Some(quota) if !quota.message.is_empty() => Some(quota.message.clone()),
        _ => None,
    };
    let reasons = waits.into_iter().chain(evicted).collect::<Vec<_>>().join("; ");
    if reasons.is_empty() {
        format!("Kueue has not processed its Workload {name} yet")
    } else {
        reasons
    }
}

/// What a Workload with reserved quota waits for.
fn awaited_after_quota(checks: &[AdmissionCheck]) -> String {
    let unready = not_ready(checks);
    if unready.is_empty() {
        "its quota is reserved, and it is about to be admitted".to_owned()
    } else {
        format!("its quota is reserved, and it waits for the admission check {unready}")
    }
}

/// The admission checks that are not ready, each with its state and message.
fn not_ready(checks: &[AdmissionCheck]) -> String {
    let waits = checks.iter().filter(|check| check.state != "Ready");
    let names: Vec<String> = waits
        .map(|AdmissionCheck { name, state, message }| {
            if message.is_empty() {
                format!("{name} ({state})")
            } else {
                format!("{name} ({state}: {message})")
            }
        })
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn workload(spec: Value, status: Value) -> Workload {
        let object = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": { "name": "job-mc-1" },
            "spec": spec, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
        let time = "2026-01-01T00:00:00Z";
        json!({ "type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": time })
    }

    fn why_of(status: Value) -> String {
        why(vec![workload(json!({ "queueName": "team" }), status)])
    }

    #[test]
    fn queue_reason_has_kueues_words_while_quota_is_missing() {
        let quota = condition(
            "QuotaReserved",
            "False",
            "Pending",
            "couldn't assign flavors: insufficient cpu",
        );
        assert_eq!(
            why_of(json!({ "conditions": [quota] })),
            "couldn't assign flavors: insufficient cpu"
        );
        assert_eq!(
            why_of(json!({})),
            "Kueue has not processed its Workload job-mc-1 yet"
        );
    }

    #[test]
    fn queue_reason_names_admission_checks_that_are_not_ready() {
        let quota = condition("QuotaReserved", "True", "QuotaReserved", "");
        let check = |name: &str, state: &str, message: &str| json!({ "name": name, "state": state, "message": message });
        let checks = json!([
            check("budget", "Ready", ""),
            check("nodes", "Pending", "no capacity")
        ]);
        assert_eq!(
            why_of(json!({ "conditions": [quota], "admissionChecks": checks })),
            "its quota is reserved, and it waits for the admission check nodes (Pending: no capacity)"
        );
        assert_eq!(
            why_of(json!({ "conditions": [quota] })),
            "its quota is reserved, and it is about to be admitted"
        );
        let admitted = condition("Admitted", "True", "Admitted", "");
        assert_eq!(
            why_of(json!({ "conditions": [quota, admitted] })),
            "it has been admitted, and is about to start"
        );
    }

    #[test]
    fn inactive_queue_names_the_admission_check_nobody_serves() {
        let quota = condition(
            "QuotaReserved",
            "False",
            "Inadmissible",
            "ClusterQueue checked is inactive",
        );
        assert_eq!(
            why_of(json!({ "conditions": [quota] })),
            "ClusterQueue checked is inactive"
        );
        let checks = json!([{ "name": "budget", "state": "Pending" }]);
        assert_eq!(
            why_of(json!({ "conditions": [quota], "admissionChecks": checks })),
            "ClusterQueue checked is inactive (its admission checks: budget (Pending))"
        );
    }

    /// Kueue replaces the Workload of an elastic Job for each growth, and keeps those before.
    #[test]
    fn grown_job_waits_for_what_its_last_workload_waits_for() {
        let created_at = |second: u32, status: Value| {
            let mut workload = workload(json!({}), status);
            let time = format!("2026-01-01T00:00:{second:02}Z").parse().unwrap();
            workload.metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
            workload
        };
        let true_condition = |type_: &str| condition(type_, "True", type_, "");
        let admitted = [true_condition("QuotaReserved"), true_condition("Admitted")];
        let runs = json!({ "conditions": admitted });
        let grows =
            json!({ "conditions": [condition("QuotaReserved", "False", "Pending", "insufficient cpu")] });
        let [quota, admitted] = admitted;
        let past = json!({ "conditions": [quota, admitted, true_condition("Finished")] });
        for (first, second) in [(5, 5), (5, 6)] {
            let all = [
                created_at(second, grows.clone()),
                created_at(first, runs.clone()),
                created_at(9, past.clone()),
            ];
            assert_eq!(why(all.clone()), "insufficient cpu");
            assert_eq!(
                why(all.into_iter().rev()),
                "insufficient cpu",
                "in whichever order they come"
            );
        }
    }

    #[test]
    fn queue_reason_names_an_eviction_or_deactivation() {
        let evicted = condition("Evicted", "True", "Preempted", "to accommodate another");
        let quota = condition("QuotaReserved", "False", "Pending", "insufficient cpu");
        assert_eq!(
            why_of(json!({ "conditions": [evicted, quota] })),
            "insufficient cpu; it was stopped (Preempted): to accommodate another"
        );
        let inactive = workload(json!({ "active": false }), json!({}));
        assert_eq!(
            why(vec![inactive]),
            "its Workload job-mc-1 is deactivated (active: false)"
        );
        assert!(why(Vec::new()).starts_with("Kueue has created no Workload"));
    }
}
