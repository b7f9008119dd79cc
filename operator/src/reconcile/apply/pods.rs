//! Changes of existing pods. The lead's pod gets a label and a condition, which the Job controller does not
//! write. A pod that should end gets an annotation.

use flux_operator_core::labels;
use flux_operator_core::observe::Unlabelled;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::core::Request;
use serde_json::{Value, json};

use super::{ApplyError, Writer, api_error, none_if_not_found};

impl Writer {
    /// Sets the documented label on the lead's pod, and the condition by which the Job's failure policy
    /// recognises this pod. One call does both: a patch of a pod's status may change labels too.
    pub async fn label_lead(&self, pod: &Unlabelled) -> Result<(), ApplyError> {
        let change = json!({
            "metadata": { "uid": pod.uid, "labels": { labels::JOB_INDEX: "0" } },
            "status": { "conditions": [{ "type": labels::LEAD, "status": "True" }] },
        });
        let patched = self.patch_status_of(&pod.namespace, &pod.name, &change).await;
        // If the pod no longer exists, no other one can have its name: Jobs do not reuse the names of pods.
        none_if_not_found(patched)
            .map(|_| ())
            .map_err(|error| api_error::<Pod>("label", &pod.name, error))
    }

    /// Asks a pod to end, by an annotation that its agent reads. The pod and its log stay. `text`: since
    /// when, and why.
    pub async fn end_pod(&self, namespace: &str, pod: &str, text: &str) -> Result<(), ApplyError> {
        // Without the pod's uid: it is a pod of a Job, and Jobs do not reuse the names of pods.
        let change = json!({ "metadata": { "annotations": { labels::END: text } } });
        let patched = self.patch_status_of(namespace, pod, &change).await;
        none_if_not_found(patched)
            .map(|_| ())
            .map_err(|error| api_error::<Pod>("end", pod, error))
    }

    /// Patches a pod through its status subresource: the operator has no permission to patch other parts of pods.
    /// Returns the pod's new metadata.
    pub(super) async fn patch_status_of(
        &self,
        namespace: &str,
        name: &str,
        change: &Value,
    ) -> Result<ObjectMeta, kube::Error> {
        let parameters = PatchParams::apply(labels::MANAGER);
        let pods = Request::new(Pod::url_path(&(), Some(namespace)));
        let request = pods.patch_subresource("status", name, &parameters, &Patch::Strategic(change));
        self.send_for_metadata(request.map_err(kube::Error::BuildRequest))
            .await
    }
}
