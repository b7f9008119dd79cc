//! Reads from the API server instead of the index, since the watches may lag behind: before a step that
//! cannot be undone.

use flux_operator_core::labels;
use flux_operator_core::observe::job::{JobObject, JobSeen};
use flux_operator_core::observe::pod::{PodSeen, PodStatusObject};
use flux_operator_core::observe::{Index, Key, controller_uid};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
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

    /// Reads whether a container in the pods of the Job with this uid has ever started.
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
