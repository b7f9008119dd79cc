//! Deletes all pods of a deleted MiniCluster at once, its services pod, or one pod that its node never starts.
//!
//! The garbage collector would delete about 20 objects per second in any order. So the brokers of a large
//! MiniCluster would stop one after the other while its job still runs.

use flux_operator_core::labels;
use flux_operator_core::observe::Key;
use flux_operator_core::observe::deleted::{Deleted, Propagation};
use flux_operator_core::observe::pod::{NEVER_STARTS, PodSeen, PodStatusObject};
use flux_operator_core::vocabulary::Reason;
use flux_shared::names;
use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::core::Request;
use serde::de::IgnoredAny;
use serde_json::json;

use super::{ApplyError, Writer, api_error, delete_params, ignore_gone, none_if_gone_or_changed};

impl Writer {
    /// Deletes the Job of a deleted MiniCluster, so that no pod is replaced, and then the Job's pods. If the
    /// MiniCluster is deleted in the foreground, it exists until its objects are deleted. The Job is then
    /// deleted in the same way.
    pub async fn end_deleted(&self, deleted: &Deleted) -> Result<(), ApplyError> {
        let Deleted {
            cluster,
            job,
            propagation,
        } = deleted;
        match propagation {
            Propagation::Foreground => self.delete_job(cluster, job).await?,
            Propagation::Background => {
                let jobs: Api<Job> = Api::namespaced(self.client.clone(), &cluster.namespace);
                let result = jobs
                    .delete(&cluster.name, &delete_params(Some(job.clone())))
                    .await
                    .map(drop);
                ignore_gone(result).map_err(|error| api_error::<Job>("delete", &cluster.name, error))?;
            }
        }
        self.delete_pods(cluster, job).await
    }

    /// Deletes all pods of the Job with the uid `job` by one call.
    pub(super) async fn delete_pods(&self, cluster: &Key, job: &str) -> Result<(), ApplyError> {
        let of_job = ListParams::default().labels(&format!("{}={job}", labels::JOB_UID));
        self.delete_selected_pods(cluster, &of_job, &DeleteParams::background())
            .await
            .map_err(|error| api_error::<Pod>("delete", &cluster.name, error))
    }

    /// Deletes the services pod with this uid. After a suspension or the end of the MiniCluster, the pod would hold
    /// resources that others could use. A lost pod must go before its replacement of the same name.
    pub async fn delete_services_pod(&self, cluster: &Key, uid: &str) -> Result<(), ApplyError> {
        let name = names::services_pod(&cluster.name);
        let parameters = delete_params(Some(uid.to_owned()));
        let deleted = self
            .delete_selected_pods(cluster, &of_name(&name), &parameters)
            .await;
        ignore_gone(deleted).map_err(|error| api_error::<Pod>("delete", &name, error))
    }

    /// Deletes the pod with this name and uid if the API server also says that its node never starts it. Before that,
    /// the pod gets the condition DisruptionTarget: the Job then counts no failure, and the pod's end shows why it was
    /// lost. Returns whether the pod was deleted.
    pub async fn delete_pod_that_never_starts(
        &self,
        cluster: &Key,
        name: &str,
        uid: &str,
    ) -> Result<bool, ApplyError> {
        // A list of one pod: the operator may always list pods, but may get one only if `spec.services` is served.
        let of_name = of_name(name);
        let api: Api<PodStatusObject> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let found = api.list(&of_name).await;
        let found = found.map_err(|error| api_error::<Pod>("list", name, error))?;
        let still_never_starts = |pod: &&PodStatusObject| {
            pod.metadata.uid.as_deref() == Some(uid) && PodSeen::of_object(pod).never_starts()
        };
        let Some(pod) = found.items.iter().find(still_never_starts) else {
            return Ok(false);
        };
        // Neither call succeeds if the pod has changed since it was read.
        let change = json!({
            "metadata": { "uid": uid, "resourceVersion": pod.metadata.resource_version },
            "status": { "conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": Reason::NodeRestarted.name(),
                "message": NEVER_STARTS, "lastTransitionTime": Timestamp::now().to_string(),
            }] },
        });
        let marked = self.patch_status_of(&cluster.namespace, name, &change).await;
        let marked =
            none_if_gone_or_changed(marked).map_err(|error| api_error::<Pod>("patch", name, error))?;
        let Some(marked) = marked else {
            return Ok(false);
        };
        let unchanged = DeleteParams {
            preconditions: Some(Preconditions {
                uid: marked.uid,
                resource_version: marked.resource_version,
            }),
            ..DeleteParams::background()
        };
        let deleted = self.delete_selected_pods(cluster, &of_name, &unchanged).await;
        none_if_gone_or_changed(deleted)
            .map(|deleted| deleted.is_some())
            .map_err(|error| api_error::<Pod>("delete", name, error))
    }

    /// Deletes the selected pods by one call, for which the operator has permission in every namespace. The answer
    /// lists each of them. It is ignored, so only the pods' metadata is requested.
    async fn delete_selected_pods(
        &self,
        cluster: &Key,
        selected: &ListParams,
        how: &DeleteParams,
    ) -> Result<(), kube::Error> {
        const METADATA: HeaderValue = HeaderValue::from_static(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        );
        let pods = Request::new(Pod::url_path(&(), Some(&cluster.namespace)));
        let request = pods
            .delete_collection(how, selected)
            .map_err(kube::Error::BuildRequest);
        let request = request.map(|mut request| {
            request.headers_mut().insert(ACCEPT, METADATA);
            request
        });
        self.send::<IgnoredAny>(request).await.map(drop)
    }
}

/// Selects the object with this name.
fn of_name(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}
