//! A Job that runs one command of the operator in the cluster, with an account and permissions of its own.

use flux_operator_core::yaml;
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::{
    InstallError, Permission, Pods, Subject, account, binding, container_security_context, pod_security_context, role,
    set_placement,
};

/// A Job that runs one command of the operator's image.
#[derive(Debug)]
pub(super) struct Task<'a> {
    /// Name of the Job and of the objects that belong to it.
    pub name: &'a str,
    pub namespace: &'a str,
    pub image: &'a str,
    pub pull_policy: &'a str,
    pub command: &'a str,
    pub options: &'a [&'a str],
    pub resources: Value,
    pub pods: &'a Pods,
    /// How often another pod retries after a failure (`backoffLimit`).
    pub retries: u32,
    /// Permissions in the whole cluster.
    pub permissions: &'a [Permission],
}

impl Task<'_> {
    /// The Job and the objects that it needs, in the order in which they can be applied.
    pub fn documents(self) -> Result<Vec<String>, InstallError> {
        let who = Subject { account: self.name, namespace: self.namespace };
        Ok(vec![
            yaml::document(&account(self.name, self.namespace)?)?,
            role(self.name, None, self.permissions),
            binding(self.name, None, who),
            yaml::document(&self.job()?)?,
        ])
    }

    fn job(self) -> Result<Job, InstallError> {
        let arguments = [&[self.command], self.options].concat();
        let mut value = json!({
            "metadata": { "name": self.name, "namespace": self.namespace },
            "spec": {
                "backoffLimit": self.retries,
                "template": { "spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": self.name,
                    "enableServiceLinks": false,
                    "securityContext": pod_security_context(),
                    "containers": [{
                        "name": self.command,
                        "image": self.image,
                        "imagePullPolicy": self.pull_policy,
                        "args": arguments,
                        "resources": self.resources,
                        "securityContext": container_security_context(),
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                    }],
                } },
            },
        });
        set_placement(&mut value["spec"]["template"]["spec"], self.pods, None);
        serde_json::from_value(value).map_err(|e| InstallError::Object("Job", e))
    }
}
