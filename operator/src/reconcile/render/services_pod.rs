//! The pod of `spec.services`, beside the cluster and under its headless Service.

use flux_shared::names;
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, PodSpec};

use super::volumes::UserVolumes;
use super::{Facts, RenderError, containers, metadata, pod, some, typed};
use crate::labels;

pub(super) fn pod(cluster: &ValidMiniCluster, facts: &Facts) -> Result<Option<Pod>, RenderError> {
    if cluster.services.is_empty() {
        return Ok(None);
    }
    let name = names::services_pod(&cluster.name);
    let user = UserVolumes::of(&cluster.services);
    let containers =
        cluster.services.iter().map(|service| containers::service(service, &user)).collect::<Result<_, _>>()?;
    let mut metadata = metadata(name.clone(), cluster, facts);
    let mut pod_labels = labels::of_pod(&cluster.pod.labels, &cluster.name, &cluster.namespace, &cluster.headless_name);
    // Not a broker: neither an autoscaler nor the Services of sidecars may count it.
    pod_labels.remove(labels::AUTOSCALER);
    pod_labels.remove(labels::CLUSTER);
    pod_labels.insert(labels::SERVICES_OF.into(), cluster.name.clone());
    metadata.labels = Some(pod_labels);
    metadata.annotations = (!cluster.pod.annotations.is_empty()).then(|| cluster.pod.annotations.clone());
    let context: Option<PodSecurityContext> = typed("spec.pod.securityContext", cluster.pod.security_context.as_ref())?;
    Ok(Some(Pod {
        metadata,
        spec: Some(PodSpec {
            containers,
            hostname: Some(name),
            image_pull_secrets: pod::pull_secrets_of(&cluster.services),
            restart_policy: Some(cluster.pod.restart_policy.clone().unwrap_or_else(|| "Always".into())),
            security_context: context,
            volumes: some(user.volumes()),
            ..pod::shared_with_services(cluster)
        }),
        ..Pod::default()
    }))
}
