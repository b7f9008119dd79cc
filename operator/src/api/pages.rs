//! Lists objects of a kind, page by page.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, ObjectList};
use kube::{Api, Result};
use serde::de::DeserializeOwned;

/// Objects per page.
const PAGE: u32 = 500;

/// All objects whose labels match `selector` (every object, if it is empty).
pub async fn all<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, selector: &str) -> Result<Vec<K>> {
    first(usize::MAX, api, &labelled(selector)).await
}

/// The objects of the first `count` pages of a list.
pub async fn first<K: Clone + DeserializeOwned + Debug>(
    count: usize,
    api: &Api<K>,
    parameters: &ListParams,
) -> Result<Vec<K>> {
    pages(count, parameters, |page| async move { api.list(&page).await }).await
}

/// The metadata, without `managedFields`, of all objects whose labels match `selector` (of every object, if it
/// is empty).
pub async fn all_metadata<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    selector: &str,
) -> Result<Vec<ObjectMeta>> {
    let list = |page| async move {
        let mut list = api.list_metadata(&page).await?;
        for object in &mut list.items {
            object.metadata.managed_fields = None;
        }
        Ok(list)
    };
    let all = pages(usize::MAX, &labelled(selector), list).await?;
    Ok(all.into_iter().map(|object| object.metadata).collect())
}

fn labelled(selector: &str) -> ListParams {
    ListParams::default().labels(selector).limit(PAGE)
}

async fn pages<T: Clone, F: Future<Output = Result<ObjectList<T>>>>(
    count: usize,
    parameters: &ListParams,
    list: impl Fn(ListParams) -> F,
) -> Result<Vec<T>> {
    let (mut parameters, mut found) = (parameters.clone(), Vec::new());
    for _ in 0..count {
        let page = list(parameters.clone()).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => break,
        }
    }
    Ok(found)
}
