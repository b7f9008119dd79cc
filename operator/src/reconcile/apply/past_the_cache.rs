//! Reads from the API server instead of the index, since the watches may lag behind: before a step that
//! cannot be undone.

use flux_operator_core::labels;
use flux_operator_core::observe::job::{JobObject, JobSeen};
use flux_operator_core::observe::pod::{PodSeen, PodStatusObject};
use flux_operator_core::observe::{Index, Key, controller_uid};
use flux_operator_core::target::Target;
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, ResourceExt};

use super::{ApplyError, Writer, api_error, check_label};
use crate::api::pages;

impl Writer {
    /// Reads the Job with the MiniCluster's name, and stores it in the index.
    pub async fn read_job(
        &self,
        index: &Index,
        cluster: &Key,
        owner: &str,
    ) -> Result<Option<JobSeen>, ApplyError> {
        let api: Api<JobObject> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let job = api
            .get_opt(&cluster.name)
            .await
            .map_err(|error| api_error::<Job>("get", &cluster.name, error))?;
        let Some(job) = job else { return Ok(None) };
        // The MiniCluster's own Job must have the label by which it is watched.
        if controller_uid(&job.metadata) == Some(owner) {
            check_label(&job.metadata)?;
        }
        let job_seen = JobSeen::of(&job);
        index.update_job(&job.metadata, job_seen.clone());
        Ok(Some(job_seen))
    }

    /// The MiniCluster's resourceVersion, if its spec is still the one that `target` has.
    pub async fn version_if_unedited(&self, target: &Target) -> Result<Option<String>, ApplyError> {
        let api: Api<MiniCluster> = Api::namespaced(self.client.clone(), &target.key.namespace);
        let name = &target.key.name;
        let found = api
            .get_metadata_opt(name)
            .await
            .map_err(|error| api_error::<MiniCluster>("get", name, error))?;
        let is_unedited = |metadata: &ObjectMeta| {
            metadata.uid.as_ref() == Some(&target.uid) && metadata.generation == target.generation
        };
        let unedited = found.map(|found| found.metadata).filter(is_unedited);
        Ok(unedited.and_then(|metadata| metadata.resource_version))
    }

    /// Reads the lead pods of the Job with this uid. Returns them with their uids.
    pub async fn read_leads(&self, cluster: &Key, job: &str) -> Result<Vec<(String, PodSeen)>, ApplyError> {
        self.read_pods(
            cluster,
            &format!("{}={job},{}=0", labels::JOB_UID, labels::COMPLETION_INDEX),
        )
        .await
    }

    /// Reads all pods of the Job with this uid. Returns them with their uids.
    pub async fn read_pods_of(&self, cluster: &Key, job: &str) -> Result<Vec<(String, PodSeen)>, ApplyError> {
        self.read_pods(cluster, &format!("{}={job}", labels::JOB_UID))
            .await
    }

    /// Reads whether a pod of the Job with this uid has ever started a container, or has ended.
    pub async fn has_begun(&self, cluster: &Key, job: &str) -> Result<bool, ApplyError> {
        let pods = self.read_pods_of(cluster, job).await?;
        Ok(pods.iter().any(|(_, pod)| pod.has_begun))
    }

    async fn read_pods(&self, cluster: &Key, selector: &str) -> Result<Vec<(String, PodSeen)>, ApplyError> {
        let api: Api<PodStatusObject> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let pods = pages::all(&api, selector)
            .await
            .map_err(|error| api_error::<Pod>("list", &cluster.name, error))?;
        Ok(pods
            .iter()
            .map(|pod| (pod.uid().unwrap_or_default(), PodSeen::of_object(pod)))
            .collect())
    }
}
