//! Deletes every MiniCluster and waits until nothing is left of them, to be run before the CRD is deleted.
//!
//! When a definition goes, the API server deletes its objects, and Kubernetes' garbage collector has to see
//! that to delete what they own. Of a definition that is younger than half a minute it may see nothing: then
//! Jobs and pods would run on without an owner. A foreground deletion makes each MiniCluster wait for the
//! garbage collector, however late that is.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use clap::Args;
use flux_operator_client::retry::until_done;
use flux_operator_core::labels;
use flux_operator_core::observe::storage::Orphan;
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PropagationPolicy};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::api::pages::all_metadata;
use crate::health::log;
use crate::reconcile::apply::{delete_params, ignore_not_found};

/// Pause between two lists.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two log lines that name what is waited for.
const REMINDER: Duration = Duration::from_secs(30);
/// How many MiniClusters a message names.
const NAMED: usize = 10;
/// Kubernetes' finalizer of a deletion that waits for the objects that the object owns.
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
    /// Whether a retry may help: always, unless the API server refuses the call.
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

/// Deletes all MiniClusters; returns a sentence about what was done.
pub async fn delete_all(client: &Client, seconds: u32) -> Result<String, DeletionError> {
    let until = Instant::now() + Duration::from_secs(seconds.into());
    let mut gone = BTreeSet::new();
    let mut last_report: Option<(BTreeSet<String>, Instant)> = None;
    loop {
        let judge = |error: DeletionError| {
            if !error.may_pass() || Instant::now() >= until {
                return Err(error);
            }
            log::warn("the API server did not answer; retrying", &error);
            Ok(())
        };
        let left = until_done(PAUSE, || delete_some(client), judge).await?;
        if left.is_empty() {
            break;
        }
        if Instant::now() >= until {
            return Err(DeletionError::Left {
                seconds,
                names: some(&left),
            });
        }
        if last_report
            .as_ref()
            .is_none_or(|(names, at)| *names != left || at.elapsed() >= REMINDER)
        {
            tracing::info!(
                count = left.len(),
                miniclusters = some(&left),
                "waiting for MiniClusters to be deleted"
            );
            last_report = Some((left.clone(), Instant::now()));
        }
        gone.extend(left);
        tokio::time::sleep(PAUSE).await;
    }
    let volumes = delete_volumes(client).await?;
    Ok(format!(
        "deleted {} MiniClusters, with their pods and {volumes} PersistentVolumes\n",
        gone.len()
    ))
}

fn some(names: &BTreeSet<String>) -> String {
    let named: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    match names.len() - named.len() {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Deletes all that are not being deleted yet; returns those that exist, as NAMESPACE/NAME.
async fn delete_some(client: &Client) -> Result<BTreeSet<String>, DeletionError> {
    let mut names = BTreeSet::new();
    for metadata in list::<MiniCluster>(client, "MiniClusters", "").await? {
        let (namespace, name) = (
            metadata.namespace.unwrap_or_default(),
            metadata.name.unwrap_or_default(),
        );
        let full = format!("{namespace}/{name}");
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
            ignore_not_found(api.delete(&name, &parameters).await.map(drop))
                .map_err(failed("delete MiniCluster", &full))?;
        }
        names.insert(full);
    }
    Ok(names)
}

/// Deletes the PersistentVolumes of MiniClusters that are gone: Kubernetes' garbage collector does not, and
/// the operator may be gone before it has.
async fn delete_volumes(client: &Client) -> Result<usize, DeletionError> {
    let ours = format!("{}={}", labels::MANAGED_BY, labels::MANAGER);
    let all = list::<PersistentVolume>(client, "PersistentVolumes", &ours).await?;
    let orphans: Vec<Orphan> = all.iter().filter_map(Orphan::of).collect();
    let api: Api<PartialObjectMeta<PersistentVolume>> = Api::all(client.clone());
    for Orphan { name, uid, .. } in &orphans {
        let deleted = api
            .delete(name, &delete_params(Some(uid.clone())))
            .await
            .map(drop);
        ignore_not_found(deleted).map_err(failed("delete PersistentVolume", name))?;
    }
    Ok(orphans.len())
}

/// All objects of a kind; none if the API server does not know the kind.
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
