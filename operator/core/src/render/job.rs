//! The Indexed Job: one index for each broker. Index 0 is the lead, unless the lead is in another cluster.
//!
//! Only index 0 decides whether the Job succeeds. With restartPolicy Never, the Job runs the program at most once: a
//! failure of the lead fails its index or the Job, and a lead's pod that replaces another runs nothing (it knows by its
//! annotations). Followers that are removed are replaced. The operator fails the Job when an index has failed. A
//! restart of the whole MiniCluster is another Job (`crate::decide::restart`). Without an operator, the Job fails when
//! all pods have ended.

use flux_shared::exit::{self, Category};
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule, SuccessPolicy, SuccessPolicyRule,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

use super::elastic::Elastic;
use super::view::ViewFrom;
use super::{Options, RenderError, RenderFacts, containers, metadata, pod, queueing};
use crate::labels;

/// The longest deadline of a Job, in seconds. The Job controller counts nanoseconds in 64 bits: with a longer deadline
/// a Job may fail at once.
pub(super) const DEADLINE_MAX: i64 = i64::MAX / 1_000_000_000;

/// How often the Job replaces the lost follower of an index, even if `backoffLimit`, which counts restarts of the whole
/// MiniCluster, is smaller. (It equals that limit's default. Disruptions do not count. The operator counts followers
/// that do not start: `decide::restart`.) With `OnFailure`, all failures count against `backoffLimit`.
pub(crate) const REPLACEMENTS: i32 = 100;

/// The Job, before the overlay of the spec is applied.
pub(crate) fn build(
    cluster: &ValidMiniCluster,
    options: &Options,
    facts: &RenderFacts,
) -> Result<Job, RenderError> {
    let view = ViewFrom::of(cluster, options, facts);
    let backoff_limit = cluster.backoff_limit;
    let restarts_left = cluster.restarts_left(facts.backoff_limit_used);
    let mut template = pod::template(cluster, options, facts, view, restarts_left)?;
    let user_init = user_init(cluster, &template);
    let user_init_names = (!user_init.is_empty()).then(|| user_init.join(","));
    let trace = super::trace_parent(options, facts).map(|parent| parent.to_string());
    for (key, value) in [(labels::USER_INIT, user_init_names), (labels::TRACE, trace)] {
        let Some(value) = value else { continue };
        let annotations = template
            .metadata
            .get_or_insert_default()
            .annotations
            .get_or_insert_default();
        annotations.insert(key.to_owned(), value);
    }
    // With OnFailure, the kubelet restarts containers, and Kubernetes allows no failure policy.
    let never_restarts = cluster.pod.restart_policy.as_deref().unwrap_or("Never") == "Never";
    let own_init = containers::own_init_names(cluster, view);
    let mut metadata = metadata(cluster.name.clone(), cluster, facts);
    let labels = metadata.labels.get_or_insert_default();
    for (key, value) in &cluster.job_labels {
        labels.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let annotations = metadata.annotations.insert(
        [
            (
                labels::MAXIMUM_SIZE.to_owned(),
                facts.maximum_size.unwrap_or(cluster.max_size).to_string(),
            ),
            (
                labels::INITIAL_SIZE.to_owned(),
                facts.initial_size.unwrap_or(cluster.size).to_string(),
            ),
            (labels::VIEW.to_owned(), view.name().to_owned()),
        ]
        .into(),
    );
    if let Some(hash) = &facts.spec_hash {
        annotations.insert(labels::SPEC_HASH.to_owned(), hash.clone());
    }
    if let Some(hash) = super::overlay_hash(cluster) {
        annotations.insert(labels::OVERLAY_HASH.to_owned(), hash);
    }
    queueing::on_job(cluster, &mut metadata);
    let mut job = Job {
        metadata,
        spec: Some(JobSpec {
            active_deadline_seconds: facts
                .deadline_left
                .or(cluster.deadline_seconds)
                .map(|seconds| seconds.min(DEADLINE_MAX)),
            // With Never it stays unset. Then Kubernetes sets no limit, since there is one per index (the next field).
            // With OnFailure, the Job fails as soon as containers have restarted this often. At the allowed number, the
            // Job would kill the last allowed start, so the value is one more. In the start after that one, the agent
            // does not run the program.
            backoff_limit: (!never_restarts)
                .then_some(i32::try_from(restarts_left).unwrap_or(i32::MAX).saturating_add(1)),
            // Per index, since only then does the Job controller write into each pod how many pods of its index have
            // failed: by that a lead's pod knows that it replaces another. The limit is not less than `backoffLimit`,
            // since the operator lets a follower fail to start that often.
            backoff_limit_per_index: Some(if never_restarts {
                backoff_limit.max(REPLACEMENTS)
            } else {
                backoff_limit
            }),
            completion_mode: Some("Indexed".into()),
            // With a failure policy, the operator fails the Job when an index has failed. It first lets pods end that
            // are to keep their logs (`decide::restart`): the Job controller would delete them.
            max_failed_indexes: (!never_restarts).then_some(0),
            pod_failure_policy: never_restarts.then(|| failure_policy(cluster, &own_init, &user_init)),
            // Never two pods of one index at the same time.
            pod_replacement_policy: Some("Failed".into()),
            success_policy: Some(SuccessPolicy {
                rules: vec![SuccessPolicyRule {
                    succeeded_indexes: Some("0".into()),
                    succeeded_count: None,
                }],
            }),
            template,
            ..JobSpec::default()
        }),
        ..Job::default()
    };
    let is_queued = cluster.queueing.queue().is_some();
    // This has to be the value that `Elastic::of` gives later, since their hashes are compared. In a queue, only the
    // queue suspends and resumes the Job. (`set_in_new_job` suspends a Job for a queue.)
    Elastic {
        size: cluster.size,
        suspend: if is_queued { None } else { cluster.suspend },
    }
    .set_in_new_job(is_queued, &mut job);
    if !is_queued && let (Some(is_suspended), Some(spec)) = (facts.is_suspended, &mut job.spec) {
        spec.suspend = Some(is_suspended);
    }
    Ok(job)
}

/// Names of the init containers that the user's pod template adds: without restartable ones (sidecars), and without
/// items that only change or remove a container (`$patch` is a directive of a strategic merge patch).
fn user_init(cluster: &ValidMiniCluster, template: &PodTemplateSpec) -> Vec<String> {
    let overlay_items = cluster
        .pod_template
        .as_ref()
        .and_then(|overlay| overlay.value().pointer("/spec/initContainers")?.as_array());
    let rendered = template
        .spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_ref());
    let is_rendered = |name: &str| {
        rendered
            .into_iter()
            .flatten()
            .any(|container| container.name == name)
    };
    let is_init_container = |item: &&Value| item.get("$patch").is_none() && item["restartPolicy"] != "Always";
    let names = overlay_items
        .into_iter()
        .flatten()
        .filter(is_init_container)
        .filter_map(|item| item["name"].as_str());
    names
        .filter(|name| !is_rendered(name))
        .map(str::to_owned)
        .collect()
}

/// The Job's failure policy. The first matching rule decides. Without a match, the failure counts for its index: a
/// retriable failure of our init containers, an end with a code excepted below, or a pod that its node rejected.
///
/// `own_init`, `user_init`: names of the init containers of the operator, and of the user's pod template.
fn failure_policy(cluster: &ValidMiniCluster, own_init: &[String], user_init: &[String]) -> PodFailurePolicy {
    let on_exit = |action: &str, container: &str, operator: &str, values: Vec<i32>| PodFailurePolicyRule {
        action: action.into(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(container.to_owned()),
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
    // Rules for containers by name: sidecars are init containers too, and their exit codes mean nothing.
    let runner = &cluster.runner.container.name;
    let final_failures = own_init
        .iter()
        .map(|name| on_exit("FailJob", name, "In", final_codes()));
    // A failed init container of the user's fails the Job, except with the codes that it has if its pod is deleted
    // (SIGKILL, SIGTERM) or if nobody saw its end. If it ends with one of these codes by itself, the operator fails the
    // Job. The API server wants the codes in ascending order.
    let excepted = [exit::of_signal(9), exit::of_signal(15), exit::UNSEEN].map(i32::from);
    let user_failures = user_init
        .iter()
        .map(|name| on_exit("FailJob", name, "NotIn", excepted.to_vec()));
    let rules = [
        on_condition("Ignore", "DisruptionTarget"),
        // Excepted are the codes of a follower whose pod alone was stopped, and of an end that nobody saw. With
        // FailIndex nothing of the index runs again, and the other pods stay until the operator fails the Job
        // (`decide::restart`). So this rule comes before the lead's, which would fail the Job at once. A program may
        // itself end with one of the excepted codes. Then the operator decides by the agent's message.
        on_exit(
            "FailIndex",
            runner,
            "NotIn",
            exit::RETRIED.map(i32::from).to_vec(),
        ),
    ];
    // The operator sets this condition on the pod of index 0. If the lead is in another cluster, that pod is a follower,
    // too.
    let lead = cluster
        .flux
        .lead
        .is_none()
        .then(|| on_condition("FailJob", labels::LEAD));
    PodFailurePolicy {
        rules: rules
            .into_iter()
            .chain(user_failures)
            .chain(lead)
            .chain(final_failures)
            .collect(),
    }
}

/// Exit codes of the agent for failures that a retry cannot resolve.
fn final_codes() -> Vec<i32> {
    let mut codes: Vec<i32> = Category::ALL
        .into_iter()
        .filter(|category| !category.is_retriable())
        .map(|category| i32::from(category.code()))
        .collect();
    codes.sort_unstable();
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str, facts: &RenderFacts) -> JobSpec {
        build(&crate::testing::cluster(text), &Options::default(), facts)
            .unwrap()
            .spec
            .unwrap()
    }

    fn texts(rules: Vec<PodFailurePolicyRule>) -> Vec<String> {
        rules
            .iter()
            .map(|rule| match (&rule.on_exit_codes, &rule.on_pod_conditions) {
                (Some(codes), _) => {
                    format!(
                        "{} {:?} {} {:?}",
                        rule.action, codes.container_name, codes.operator, codes.values
                    )
                }
                (_, conditions) => format!("{} {}", rule.action, conditions.as_ref().unwrap()[0].type_),
            })
            .collect()
    }

    /// The program of a user's init container is not retried, and its exit code is none of the agent's.
    #[test]
    fn users_init_container_fails_the_job_and_is_named_in_pods() {
        let init = "[{name: fetch, image: f}, {name: beside, image: b, restartPolicy: Always}, {name: side, tty: true}, {name: gone, $patch: delete}]";
        let text = format!(
            "containers: [{{image: a, runFlux: true, name: app}}, {{image: b, name: side}}]\npodTemplate: {{spec: {{initContainers: {init}}}}}"
        );
        let spec = spec(&text, &RenderFacts::default());
        let annotations = spec.template.metadata.unwrap().annotations.unwrap();
        assert_eq!(annotations["flux-framework.org/user-init-containers"], "fetch");
        let rules = texts(spec.pod_failure_policy.unwrap().rules);
        assert_eq!(
            rules
                .iter()
                .filter(|rule| rule.starts_with("FailJob") && rule.contains("NotIn"))
                .collect::<Vec<_>>(),
            ["FailJob Some(\"fetch\") NotIn [137, 143, 255]"],
            "not if its pod was lost"
        );
    }

    #[test]
    fn runner_is_retried_only_after_codes_of_stop_and_reboot() {
        let spec = spec(
            "containers: [{image: a, runFlux: true, name: app}, {image: b, name: side}]",
            &RenderFacts::default(),
        );
        assert_eq!(
            texts(spec.pod_failure_policy.unwrap().rules),
            [
                "Ignore DisruptionTarget",
                "FailIndex Some(\"app\") NotIn [238, 255]",
                "FailJob flux-framework.org/Lead",
                "FailJob Some(\"flux-agent\") In [239, 241, 242, 244, 246, 247, 249]",
                "FailJob Some(\"flux-view\") In [239, 241, 242, 244, 246, 247, 249]",
                "FailJob Some(\"flux-software\") In [239, 241, 242, 244, 246, 247, 249]",
            ]
        );
    }

    /// Its pod of index 0 is a follower, which the Job replaces when it is deleted.
    #[test]
    fn policy_of_a_cluster_with_a_remote_lead_has_no_lead_rule() {
        let rules = |flux: &str| {
            let spec = spec(flux, &RenderFacts::default());
            texts(spec.pod_failure_policy.unwrap().rules)
        };
        let remote = "flux: {bursting: {leadBroker: {name: a, address: b}, clusters: [{name: mc}]}}";
        let mut expected = rules("size: 1");
        expected.retain(|rule| rule != "FailJob flux-framework.org/Lead");
        assert_eq!(rules(remote), expected);
        assert_eq!(expected.len() + 1, rules("size: 1").len());
    }

    #[test]
    fn job_gets_the_rest_of_backoff_limit_and_deadline() {
        let of = |text: &str, facts: &RenderFacts| {
            let spec = spec(text, facts);
            let command = spec.template.spec.unwrap().containers[0].command.clone().unwrap();
            (
                spec.backoff_limit_per_index,
                spec.backoff_limit,
                spec.active_deadline_seconds,
                command.last().cloned().unwrap(),
            )
        };
        let none = RenderFacts::default();
        assert_eq!(
            of("backoffLimit: 0", &none),
            (Some(100), None, None, "--restarts-left=0".into()),
            "a follower that is lost is replaced all the same"
        );
        assert_eq!(
            of("size: 1", &none),
            (Some(100), None, None, "--restarts-left=100".into())
        );
        let used = RenderFacts {
            backoff_limit_used: 2,
            deadline_left: Some(7),
            ..RenderFacts::default()
        };
        let text = "backoffLimit: 3\ndeadlineSeconds: 60";
        assert_eq!(
            of(text, &used),
            (Some(100), None, Some(7), "--restarts-left=1".into())
        );
        assert_eq!(of("backoffLimit: 1", &used).3, "--restarts-left=0");
        let text = "deadlineSeconds: 18000000000";
        assert_eq!(
            of(text, &none).2,
            Some(9_223_372_036),
            "its nanoseconds fit 64 bits"
        );
        let text = "backoffLimit: 4\npod: {restartPolicy: OnFailure}";
        assert_eq!(
            of(text, &none),
            (Some(4), Some(5), None, "--restarts-left=4".into()),
            "the kubelet's restarts are limited, too"
        );
    }
}
