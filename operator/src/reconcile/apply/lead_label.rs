//! The lead's pod gets a label and a condition once it is there: the Job controller writes neither. A pod may
//! get an annotation that tells it to end.

use flux_operator_core::labels;
use flux_operator_core::observe::Unlabelled;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::core::Request;
use serde_json::{Value, json};

use super::{ApplyError, Writer, api_error};

impl Writer {
    /// Sets the documented label on the lead's pod, and the condition by which the Job's failure policy knows
    /// it. One call does both: a patch of a pod's status may change labels too.
    pub async fn label_lead(&self, pod: &Unlabelled) -> Result<(), ApplyError> {
        let change = json!({
            "metadata": { "uid": pod.uid, "labels": { labels::JOB_INDEX: "0" } },
            "status": { "conditions": [{ "type": labels::LEAD, "status": "True" }] },
        });
        match self.patch_status_of(&pod.namespace, &pod.name, &change).await {
            Ok(_) => Ok(()),
            // The pod is gone. (A conflict of uids cannot be: names of a Job's pods are not used again.)
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(api_error::<Pod>("label", &pod.name, error)),
        }
    }

    /// Tells a pod to end: its agent reads the annotation, and its log stays. No pod's spec is changed, which
    /// the operator may not do.
    pub async fn end_pod(&self, namespace: &str, pod: &str, text: &str) -> Result<(), ApplyError> {
        let change = json!({ "metadata": { "annotations": { labels::END: text } } });
        match self.patch_status_of(namespace, pod, &change).await {
            Ok(()) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(api_error::<Pod>("end", pod, error)),
        }
    }

    /// Patches a pod through its status subresource.
    async fn patch_status_of(&self, namespace: &str, name: &str, change: &Value) -> Result<(), kube::Error> {
        let parameters = PatchParams {
            field_manager: Some(labels::MANAGER.into()),
            ..PatchParams::default()
        };
        let pods = Request::new(Pod::url_path(&(), Some(namespace)));
        let request = pods.patch_subresource("status", name, &parameters, &Patch::Strategic(change));
        self.send_for_metadata(request.map_err(kube::Error::BuildRequest))
            .await
            .map(drop)
    }
}
