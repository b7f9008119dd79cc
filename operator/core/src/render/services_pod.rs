//! The services pod: one pod with the containers of `spec.services`. Its DNS name is in the MiniCluster's headless
//! Service, as with the other pods.

use flux_shared::names;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, PodSpec};

use super::volumes::UserVolumes;
use super::{RenderError, RenderFacts, containers, metadata, none_if_empty, pod, typed};
use crate::labels;

/// The services pod. None: the spec has no services.
pub(super) fn build(cluster: &ValidMiniCluster, facts: &RenderFacts) -> Result<Option<Pod>, RenderError> {
    if cluster.services.is_empty() {
        return Ok(None);
    }
    let name = names::services_pod(&cluster.name);
    let user_volumes = UserVolumes::of(&cluster.view, &cluster.services);
    let containers = cluster
        .services
        .iter()
        .map(|service| containers::service(service, &user_volumes))
        .collect::<Result<_, _>>()?;
    let mut metadata = metadata(name.clone(), cluster, facts);
    let mut pod_labels = labels::of_pod(
        &cluster.pod.labels,
        &cluster.name,
        &cluster.namespace,
        &cluster.headless_name,
    );
    // The pod has no broker: neither an autoscaler nor the Services of sidecars may select it.
    pod_labels.remove(labels::AUTOSCALER);
    pod_labels.remove(labels::CLUSTER);
    pod_labels.insert(labels::SERVICES_OF.into(), cluster.name.clone());
    // The documentation promises this label on the services pod.
    pod_labels.insert(labels::JOB_INDEX.into(), "services".into());
    if cluster.flux.minimal_service {
        // With minimalService the headless Service selects only this index, so the pod needs the label for its
        // DNS name. The Job controller does not adopt the pod, since its owner is the MiniCluster.
        pod_labels.insert(labels::COMPLETION_INDEX.into(), "0".into());
    }
    metadata.labels = Some(pod_labels);
    // Only the author's: the annotations for a queue are for the Job's pods.
    metadata.annotations = (!cluster.pod.annotations.is_empty()).then(|| cluster.pod.annotations.clone());
    let context: Option<PodSecurityContext> =
        typed("spec.pod.securityContext", cluster.pod.security_context.as_ref())?;
    let volumes = user_volumes.volumes(context.as_ref(), cluster.services_pod_template.as_ref());
    Ok(Some(Pod {
        metadata,
        spec: Some(PodSpec {
            containers,
            hostname: Some(name),
            image_pull_secrets: pod::pull_secrets_of(&cluster.services),
            restart_policy: Some(
                cluster
                    .pod
                    .restart_policy
                    .clone()
                    .unwrap_or_else(|| "Always".into()),
            ),
            security_context: context,
            volumes: none_if_empty(volumes),
            ..pod::shared_with_services(cluster, cluster.services_pod_template.as_ref())
        }),
        ..Pod::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::super::services;
    use super::*;

    /// The kubelet expands `$$` and `$(NAME)`, so the operator writes `$$` for each `$`.
    #[test]
    fn dollars_in_the_command_of_a_service_are_escaped() {
        let spec = r#"services: [{image: a, name: a, command: "sh -c 'echo $$ $(date) ${A}b'"}]
containers: [{image: a}]"#;
        let cluster = crate::testing::cluster(spec);
        let pod = build(&cluster, &RenderFacts::default()).unwrap().unwrap();
        let command = pod.spec.unwrap().containers.remove(0).command.unwrap();
        assert_eq!(command, ["sh", "-c", "echo $$$$ $$(date) $${A}b"]);
    }

    #[test]
    fn services_pod_keeps_label_and_name_with_minimal_service() {
        for minimal in [false, true] {
            let spec = format!(
                "flux: {{minimalService: {minimal}}}\nservices: [{{image: nginx, name: nginx}}]\ncontainers: [{{image: a}}]"
            );
            let cluster = crate::testing::cluster(&spec);
            let facts = RenderFacts::default();
            let pod = build(&cluster, &facts).unwrap().unwrap();
            let labels = pod.metadata.labels.unwrap();
            assert_eq!(labels[labels::JOB_INDEX], "services");
            let members = services::members_of_one(&cluster, &facts);
            let service = services::headless("ns", &cluster.headless_name, &members);
            for (key, value) in service.spec.unwrap().selector.unwrap() {
                assert_eq!(
                    labels.get(&key),
                    Some(&value),
                    "the Service does not select it by {key}"
                );
            }
            assert_eq!(labels.contains_key(labels::COMPLETION_INDEX), minimal);
            assert!(pod.spec.unwrap().subdomain.is_some());
        }
    }
}
