//! The owner of the objects that this process creates for itself: its Deployment. Kubernetes deletes them
//! together.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

/// An owner reference to the Deployment `name`. None if it does not exist (the process was started by hand), is
/// being deleted, or may not be read (the Role is of an earlier version). The reference does not block the
/// owner's deletion (`blockOwnerDeletion`), which would need another permission.
pub async fn owner(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<OwnerReference>, kube::Error> {
    let api: Api<PartialObjectMeta<Deployment>> = Api::namespaced(client.clone(), namespace);
    let found = match api.get_metadata_opt(name).await {
        Err(kube::Error::Api(status)) if status.code == 403 => None,
        found => found?,
    };
    let live = found.filter(|deployment| deployment.metadata.deletion_timestamp.is_none());
    Ok(live.and_then(|deployment| {
        Some(OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: deployment.metadata.name?,
            uid: deployment.metadata.uid?,
            ..OwnerReference::default()
        })
    }))
}
