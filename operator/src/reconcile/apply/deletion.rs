//! Deletes all pods of a deleted MiniCluster at once.
//!
//! The garbage collector would delete about 20 objects per second in any order. So the brokers of a large
//! MiniCluster would stop one after the other while its job still runs.

use flux_operator_core::labels;
use flux_operator_core::observe::Key;
use flux_operator_core::observe::deleted::{Deleted, Propagation};
use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{Api, DeleteParams, ListParams};
use kube::core::Request;
use serde::de::IgnoredAny;

use super::{ApplyError, Writer, api_error, delete_params, ignore_not_found};

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
                let deleted = jobs
                    .delete(&cluster.name, &delete_params(Some(job.clone())))
                    .await
                    .map(drop);
                ignore_not_found(deleted)
                    .map_err(|error| api_error::<Job>("delete", &cluster.name, error))?;
            }
        }
        self.delete_pods(cluster, job).await
    }

    /// Deletes all pods of the Job with the uid `job` by one call. The answer lists each of them, and is ignored.
    pub(super) async fn delete_pods(&self, cluster: &Key, job: &str) -> Result<(), ApplyError> {
        const METADATA: HeaderValue = HeaderValue::from_static(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        );
        let of_job = ListParams::default().labels(&format!("{}={job}", labels::JOB_UID));
        let pods = Request::new(Pod::url_path(&(), Some(&cluster.namespace)));
        let request = pods
            .delete_collection(&DeleteParams::background(), &of_job)
            .map_err(kube::Error::BuildRequest);
        let request = request.map(|mut request| {
            request.headers_mut().insert(ACCEPT, METADATA);
            request
        });
        let deleted = self.send::<IgnoredAny>(request).await.map(drop);
        deleted.map_err(|error| api_error::<Pod>("delete", &cluster.name, error))
    }
}
