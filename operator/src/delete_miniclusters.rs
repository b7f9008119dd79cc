//! Deletes every MiniCluster and waits until they and their objects are gone. To be run before the CRD is deleted.
//!
//! When a CRD is deleted, the API server deletes its objects, and Kubernetes' garbage collector then deletes what
//! those own. But the garbage collector may not yet know a CRD that is younger than half a minute: Jobs and pods
//! would run on without an owner. With a foreground deletion, each MiniCluster exists until the garbage collector
//! has deleted its Job and pods.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use clap::Args;
use flux_operator_client::retry::until_done;
use flux_operator_core::labels;
use flux_operator_core::observe::storage::OwnedVolume;
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PropagationPolicy};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api::pages::all_metadata;
use crate::health::log;
use crate::reconcile::apply::{delete_params, ignore_gone};

/// Pause between two lists, and before a failed call is retried.
const PAUSE: Duration = Duration::from_secs(1);
/// The log names the remaining MiniClusters whenever they have changed, and otherwise after this time.
const REMINDER: Duration = Duration::from_secs(30);
/// Most MiniClusters that a message names.
const NAMED: usize = 10;
/// Kubernetes' finalizer of a foreground deletion: objects that block it (`blockOwnerDeletion`) are deleted first.
const FOREGROUND: &str = "foregroundDeletion";

/// Arguments of `delete-miniclusters`.
#[derive(Debug, Clone, Args)]
pub struct Deletion {
    /// Confirm that the MiniClusters of all namespaces are to be deleted
    #[arg(long, required = true)]
    pub all: bool,
    /// Seconds to wait; deletion continues after a timeout
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub timeout: u32,
    #[command(flatten)]
    pub log: log::Filter,
}

/// Why the deletion is not complete.
#[derive(Debug, thiserror::Error)]
pub enum DeletionError {
    #[error("failed to {verb} {name}")]
    Api {
        verb: &'static str,
        name: String,
        source: Box<kube::Error>,
    },
    #[error(
        "timed out after {seconds} s waiting for these MiniClusters to be deleted: {names}; a pod that does not end, or a finalizer, holds them"
    )]
    Left { seconds: u32, names: String },
}

impl DeletionError {
    /// Whether a retry may help: unless the API server rejects the call, or the time is over.
    fn may_pass(&self) -> bool {
        match self {
            DeletionError::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.code >= 500 || status.code == 429,
                _ => true,
            },
            DeletionError::Left { .. } => false,
        }
    }
}

fn failed(verb: &'static str, name: impl Into<String>) -> impl FnOnce(kube::Error) -> DeletionError {
    let name = name.into();
    move |source| DeletionError::Api {
        verb,
        name,
        source: Box::new(source),
    }
}

/// Deletes all MiniClusters, and waits at most `seconds` for it; returns a sentence about the result.
pub async fn delete_all(client: &Client, seconds: u32) -> Result<String, DeletionError> {
    let deadline = Instant::now() + Duration::from_secs(seconds.into());
    // All MiniClusters that `delete_and_list` has returned. All of them are deleted when the loop ends.
    let mut deleted = BTreeSet::new();
    let mut last_report: Option<(BTreeSet<String>, Instant)> = None;
    // A temporary error is retried until the deadline.
    let judge = |error: DeletionError| {
        if !error.may_pass() || Instant::now() >= deadline {
            return Err(error);
        }
        log::warn("a call to the API server failed; retrying", &error);
        Ok(())
    };
    loop {
        let left = until_done(PAUSE, || delete_and_list(client), judge).await?;
        if left.is_empty() {
            break;
        }
        if Instant::now() >= deadline {
            return Err(DeletionError::Left {
                seconds,
                names: first_names(&left),
            });
        }
        if last_report
            .as_ref()
            .is_none_or(|(names, at)| *names != left || at.elapsed() >= REMINDER)
        {
            tracing::info!(
                count = left.len(),
                miniclusters = first_names(&left),
                "waiting for MiniClusters to be deleted"
            );
            last_report = Some((left.clone(), Instant::now()));
        }
        deleted.extend(left);
        tokio::time::sleep(PAUSE).await;
    }
    let volumes = until_done(PAUSE, || orphans(client), judge).await?;
    for volume in &volumes {
        until_done(PAUSE, || delete_volume(client, volume), judge).await?;
    }
    Ok(format!(
        "deleted {} MiniClusters, with their pods and {} PersistentVolumes\n",
        deleted.len(),
        volumes.len()
    ))
}

/// The first `NAMED` names, and how many more there are, as a text.
fn first_names(names: &BTreeSet<String>) -> String {
    let named: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    match names.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Starts a foreground deletion of each MiniCluster for which none has begun, even if another deletion has. Returns
/// all that existed before that, as NAMESPACE/NAME.
async fn delete_and_list(client: &Client) -> Result<BTreeSet<String>, DeletionError> {
    let mut names = BTreeSet::new();
    for metadata in list::<MiniCluster>(client, "MiniClusters", "").await? {
        let (namespace, name) = (
            metadata.namespace.unwrap_or_default(),
            metadata.name.unwrap_or_default(),
        );
        let full_name = format!("{namespace}/{name}");
        if !metadata
            .finalizers
            .iter()
            .flatten()
            .any(|finalizer| finalizer == FOREGROUND)
        {
            let api: Api<PartialObjectMeta<MiniCluster>> = Api::namespaced(client.clone(), &namespace);
            let parameters = DeleteParams {
                propagation_policy: Some(PropagationPolicy::Foreground),
                ..delete_params(metadata.uid)
            };
            ignore_gone(api.delete(&name, &parameters).await.map(drop))
                .map_err(failed("delete MiniCluster", &full_name))?;
        }
        names.insert(full_name);
    }
    Ok(names)
}

/// The PersistentVolumes to delete with their MiniClusters. The operator may be removed before it has deleted them, and
/// Kubernetes' garbage collector never does: they have no owner.
async fn orphans(client: &Client) -> Result<Vec<OwnedVolume>, DeletionError> {
    let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGER);
    let volumes = list::<PersistentVolume>(client, "PersistentVolumes", &selector).await?;
    Ok(volumes.iter().filter_map(OwnedVolume::of).collect())
}

async fn delete_volume(
    client: &Client,
    OwnedVolume { name, uid, .. }: &OwnedVolume,
) -> Result<(), DeletionError> {
    let api: Api<PartialObjectMeta<PersistentVolume>> = Api::all(client.clone());
    let deleted = api.delete(name, &delete_params(Some(uid.clone()))).await;
    ignore_gone(deleted.map(drop)).map_err(failed("delete PersistentVolume", name))
}

/// The metadata of all objects of a kind; none if the API server does not know the kind. `kind` is its plural, for
/// the error message.
async fn list<K>(
    client: &Client,
    kind: &'static str,
    selector: &str,
) -> Result<Vec<ObjectMeta>, DeletionError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    match all_metadata(&Api::<K>::all(client.clone()), selector).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        all => all.map_err(failed("list", kind)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    /// A client of an API server without MiniClusters and with these PersistentVolumes, and the calls that it gets. It
    /// fails the first of equal calls with 503.
    fn server(volumes: Vec<Value>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let calls: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = calls.clone();
        let client = testing::client(move |request, _| {
            let call = format!("{} {}", request.method, request.uri.path());
            let mut log = log.lock().unwrap();
            let is_first = !log.contains(&call);
            let items = if call.ends_with("persistentvolumes") {
                volumes.clone()
            } else {
                Vec::new()
            };
            log.push(call);
            Some(if is_first {
                (503, json!({ "kind": "Status", "status": "Failure", "code": 503 }))
            } else {
                (200, json!({ "metadata": {}, "items": items }))
            })
        });
        (client, calls)
    }

    #[tokio::test(start_paused = true)]
    async fn each_volume_is_deleted_and_counted_despite_passing_errors() {
        let volume = |name: &str| {
            json!({ "metadata": {
                "name": name, "uid": name,
                "labels": { labels::NAMESPACE: "default", labels::CLUSTER: "mc" },
                "annotations": { labels::OWNER: "uid" },
            } })
        };
        let (client, calls) = server(vec![volume("a"), volume("b")]);
        let message = delete_all(&client, 60).await.unwrap();
        assert_eq!(
            message,
            "deleted 0 MiniClusters, with their pods and 2 PersistentVolumes\n"
        );
        let calls = calls.lock().unwrap();
        for name in ["a", "b"] {
            let path = format!("DELETE /api/v1/persistentvolumes/{name}");
            assert_eq!(calls.iter().filter(|call| **call == path).count(), 2, "{calls:?}");
        }
    }
}
