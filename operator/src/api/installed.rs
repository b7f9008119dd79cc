//! Objects that this process creates for itself are owned by its Deployment, so that they are deleted with
//! it.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

/// The Deployment as an owner; None if there is none (a process started by hand), it is being deleted, or it
/// may not be read (a Role of an earlier version). It does not block deletion, which would need another
/// permission.
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
    let stays = found.filter(|deployment| deployment.metadata.deletion_timestamp.is_none());
    Ok(stays.and_then(|deployment| {
        Some(OwnerReference {
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            name: deployment.metadata.name?,
            uid: deployment.metadata.uid?,
            ..OwnerReference::default()
        })
    }))
}
