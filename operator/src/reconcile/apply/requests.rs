//! Builds and sends the writer's requests.

use flux_operator_core::labels;
use flux_operator_core::observe::partial;
use http::HeaderValue;
use http::header::ACCEPT;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{NamespaceResourceScope, Request};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Metadata, Writer};

impl Writer {
    pub(super) async fn send<A: DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::Error>,
    ) -> Result<A, kube::Error> {
        self.client.request(request?).await
    }

    /// Sends a request, and returns the metadata of the object that it creates or changes. The API server is asked to
    /// answer with metadata only.
    pub(super) async fn send_for_metadata(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::Error>,
    ) -> Result<Metadata, kube::Error> {
        const METADATA: HeaderValue =
            HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
        #[derive(Deserialize)]
        struct OnlyMetadata {
            #[serde(deserialize_with = "partial::metadata")]
            metadata: Metadata,
        }
        let mut request = request?;
        request.headers_mut().insert(ACCEPT, METADATA);
        Ok(self.client.request::<OnlyMetadata>(request).await?.metadata)
    }
}

/// The request to create an object in its namespace. `body` is sent: the object itself, or the object with the user's
/// overlay, which may have fields that the type `K` lacks. `object` is for the URL.
pub(super) fn create_request<K>(
    object: &K,
    body: &impl Serialize,
    parameters: &PostParams,
) -> Result<http::Request<Vec<u8>>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let bytes = serde_json::to_vec(body).map_err(kube::Error::SerdeError)?;
    let objects = Request::new(K::url_path(&(), object.meta().namespace.as_deref()));
    objects
        .create(parameters, bytes)
        .map_err(kube::Error::BuildRequest)
}

/// The request to apply a whole object (server-side apply).
pub(super) fn apply_request<K>(object: &K) -> Result<http::Request<Vec<u8>>, kube::Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + std::fmt::Debug,
{
    let objects = Request::new(K::url_path(&(), object.meta().namespace.as_deref()));
    // By force: fields that another manager has set to other values are overwritten too.
    let parameters = PatchParams::apply(labels::MANAGER).force();
    let request = objects.patch(&object.name_any(), &parameters, &Patch::Apply(object));
    request.map_err(kube::Error::BuildRequest)
}
