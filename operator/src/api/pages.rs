//! Lists all objects of a kind, page by page.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;

/// Objects per page.
const PAGE: u32 = 500;

/// All objects whose labels match `selector` (every object, if it is empty).
pub async fn all<K>(api: &Api<K>, selector: &str) -> Result<Vec<K>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut page = ListParams::default().labels(selector).limit(PAGE);
    let mut all = Vec::new();
    loop {
        let list = api.list(&page).await?;
        all.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// The metadata, without `managedFields`, of all objects whose labels match `selector` (of every object, if it
/// is empty).
pub async fn all_metadata<K>(api: &Api<K>, selector: &str) -> Result<Vec<ObjectMeta>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut page = ListParams::default().labels(selector).limit(PAGE);
    let mut all = Vec::new();
    loop {
        let list = api.list_metadata(&page).await?;
        all.extend(list.items.into_iter().map(|object| ObjectMeta {
            managed_fields: None,
            ..object.metadata
        }));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}
