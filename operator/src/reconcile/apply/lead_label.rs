//! The lead's pod gets a label and a condition once it is there: the Job controller writes neither.

use flux_operator_core::labels;
use flux_operator_core::observe::Unlabelled;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::{Value, json};

use super::{ApplyError, Writer, api_error};

impl Writer {
    /// Sets the documented label on the lead's pod, and the condition by which the Job's failure policy knows it. One call
    /// does both: a patch of a pod's status may change labels too.
    pub async fn label_lead(&self, pod: &Unlabelled) -> Result<(), ApplyError> {
        let change = json!({
            "metadata": { "uid": pod.uid, "labels": { labels::JOB_INDEX: "0" } },
            "status": { "conditions": [{ "type": labels::LEAD, "status": "True" }] },
        });
        match self.patch_status_of(pod, &change).await {
            Ok(_) => Ok(()),
            // The pod is gone. (A conflict of uids cannot be: names of a Job's pods are not used again.)
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(api_error::<Pod>("label", &pod.name, error)),
        }
    }

    /// Patches a pod through its status subresource.
    async fn patch_status_of(&self, pod: &Unlabelled, change: &Value) -> Result<(), kube::Error> {
        let parameters = PatchParams { field_manager: Some(labels::MANAGER.into()), ..PatchParams::default() };
        let pods = Request::new(Pod::url_path(&(), Some(&pod.namespace)));
        let request = pods.patch_subresource("status", &pod.name, &parameters, &Patch::Strategic(change));
        self.send_for_metadata(request.map_err(kube::Error::BuildRequest)).await.map(drop)
    }
}
