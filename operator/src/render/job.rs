//! The Indexed Job: one index a broker, index 0 the lead.
//!
//! How it ends: index 0 alone decides success. A user's failure fails the Job at once; disruptions of the cluster,
//! a follower that is killed and the agent's own retriable codes are made good again, within `backoffLimit`.

use flux_shared::exit::Category;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule, SuccessPolicy, SuccessPolicyRule,
};

use super::elastic::Elastic;
use super::view::ViewFrom;
use super::{Facts, Options, RenderError, labels, metadata, pod};

pub(super) fn job(cluster: &ValidMiniCluster, options: &Options, facts: &Facts) -> Result<Job, RenderError> {
    let view = ViewFrom::of(cluster, options, facts);
    let template = pod::template(cluster, options, view)?;
    // The kubelet restarts containers with OnFailure: Kubernetes allows no failure policy then.
    let never = cluster.pod.restart_policy.as_deref().unwrap_or("Never") == "Never";
    let mut metadata = metadata(cluster.name.clone(), cluster, facts);
    let labels = metadata.labels.get_or_insert_default();
    for (key, value) in &cluster.job_labels {
        labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    metadata.annotations = Some(
        [
            (labels::MAXIMUM_SIZE.to_owned(), facts.maximum_size.unwrap_or(cluster.max_size).to_string()),
            (labels::INITIAL_SIZE.to_owned(), facts.initial_size.unwrap_or(cluster.size).to_string()),
            (labels::VIEW.to_owned(), view.name().to_owned()),
        ]
        .into(),
    );
    let mut job = Job {
        metadata,
        spec: Some(JobSpec {
            active_deadline_seconds: cluster.deadline_seconds,
            backoff_limit: Some(cluster.backoff_limit),
            completion_mode: Some("Indexed".into()),
            pod_failure_policy: never.then(|| failure_policy(cluster)),
            pod_replacement_policy: never.then(|| "Failed".into()),
            success_policy: Some(SuccessPolicy {
                rules: vec![SuccessPolicyRule { succeeded_indexes: Some("0".into()), succeeded_count: None }],
            }),
            template,
            ..JobSpec::default()
        }),
        ..Job::default()
    };
    Elastic { size: cluster.size, suspend: cluster.suspend }.put(&mut job);
    Ok(job)
}

/// The first rule that fits decides; what fits none counts towards `backoffLimit` (an init container that is killed).
fn failure_policy(cluster: &ValidMiniCluster) -> PodFailurePolicy {
    let codes = |retriable: bool| {
        let chosen = Category::ALL.into_iter().filter(move |category| category.is_retriable() == retriable);
        chosen.map(|category| i32::from(category.code())).collect::<Vec<i32>>()
    };
    let on_exit = |action: &str, container: Option<&str>, operator: &str, values: Vec<i32>| PodFailurePolicyRule {
        action: action.into(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: container.map(str::to_owned),
            operator: operator.into(),
            values,
        }),
        on_pod_conditions: None,
    };
    let on_condition = |action: &str, type_: &str| PodFailurePolicyRule {
        action: action.into(),
        on_exit_codes: None,
        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
            type_: type_.into(),
            status: Some("True".into()),
        }]),
    };
    let runner = Some(cluster.runner.container.name.as_str());
    PodFailurePolicy {
        rules: vec![
            on_condition("Ignore", "DisruptionTarget"),
            on_exit("Count", runner, "In", codes(true)),
            // What no retry can mend, in the agent's init containers too.
            on_exit("FailJob", None, "In", codes(false)),
            // The user's command is the lead's: a follower that is killed (deleted in a hurry, out of memory) is made again.
            on_condition("Count", labels::FOLLOWER),
            on_exit("FailJob", runner, "NotIn", codes(true)),
        ],
    }
}
