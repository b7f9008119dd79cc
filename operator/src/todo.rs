//! What has to be done for a MiniCluster. Pure: decided from what was seen, before anything is written.

use flux_shared::crd::v1alpha2::{MiniClusterSpec, MiniClusterStatus};
use flux_shared::validate::ValidMiniCluster;
use k8s_openapi::jiff::Timestamp;

use crate::observe::service::ServiceSeen;
use crate::observe::{Key, Observed};
use crate::render::Facts;
use crate::render::elastic::Elastic;
use crate::status;

/// What has to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Todo {
    /// It is invalid, ended, or being deleted: nothing is made.
    Nothing,
    /// An earlier MiniCluster's Job of this name is still going: wait until it is gone.
    WaitForPrevious,
    /// There is no Job: make everything.
    Create { facts: Facts },
    /// There is one: put right what is missing or differs.
    Keep {
        facts: Facts,
        job_uid: String,
        elastic: Option<Elastic>,
        join: bool,
        services: Vec<String>,
        services_pod: bool,
    },
}

/// Decides. `headless` is the Service that the cluster's pods are named by.
pub fn todo(
    uid: &str,
    deleting: bool,
    valid: Option<&ValidMiniCluster>,
    status: &MiniClusterStatus,
    observed: &Observed,
    headless: Option<&ServiceSeen>,
) -> Todo {
    let Some(cluster) = valid.filter(|_| !deleting) else { return Todo::Nothing };
    let Some(seen) = &observed.job else {
        if status::is_finished(status) {
            return Todo::Nothing;
        }
        let maximum_size = status.maximum_size.and_then(|size| u32::try_from(size).ok());
        return Todo::Create { facts: Facts { uid: Some(uid.to_owned()), initial_size: None, maximum_size } };
    };
    let Some(job) = observed.job_of(uid) else { return Todo::WaitForPrevious };
    if job.deleting {
        return Todo::WaitForPrevious;
    }
    if job.is_finished() || seen.is_finished() {
        return Todo::Nothing;
    }
    let maximum = job.maximum_size.or(status.maximum_size.and_then(|size| u32::try_from(size).ok()));
    // Beyond the maximum the cluster stays as it is; a condition says so.
    let size = match maximum {
        Some(maximum) if cluster.size > maximum => job.completions,
        _ => cluster.size,
    };
    let wanted = Elastic { size, suspend: cluster.suspend };
    let differs = job.rendered_hash.as_deref() != Some(wanted.hash().as_str());
    let with_ports = cluster.sidecars.iter().filter(|sidecar| !sidecar.container.ports.is_empty());
    let names = with_ports.map(|sidecar| &sidecar.container.name);
    let is_ours = |name: &&String| {
        observed.services.get(*name).is_some_and(|service| service.controller_uid.as_deref() == Some(uid))
    };
    let services_pod = !cluster.services.is_empty()
        && observed.services_pod.as_ref().is_none_or(|(_, owner)| owner.as_deref() != Some(uid));
    Todo::Keep {
        facts: Facts { uid: Some(uid.to_owned()), initial_size: job.initial_size, maximum_size: maximum },
        job_uid: job.uid.clone(),
        elastic: differs.then_some(wanted),
        join: !headless.is_some_and(|service| service.serves(uid, cluster.flux.minimal_service)),
        services: names.filter(|name| !is_ours(name)).cloned().collect(),
        services_pod,
    }
}

/// The headless Service of a cluster.
pub fn headless_key(cluster: &ValidMiniCluster) -> Key {
    Key::new(&cluster.namespace, &cluster.headless_name)
}

/// When a finished MiniCluster has to be deleted: in so many seconds, 0 being now. None: never.
pub fn seconds_to_live(spec: &MiniClusterSpec, status: &MiniClusterStatus, now: Timestamp) -> Option<u64> {
    let end = status::end(status)?;
    match (spec.cleanup, spec.ttl_seconds_after_finished) {
        (true, _) => Some(0),
        (false, Some(ttl)) => {
            let left = end.as_second() + i64::from(ttl) - now.as_second();
            Some(u64::try_from(left).unwrap_or(0))
        }
        (false, None) => None,
    }
}
