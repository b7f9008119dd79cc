//! Storage version migration: every stored MiniCluster is written once more, as v1alpha2, and then the definition says so.
//!
//! For clusters where v1alpha1 was stored. Until it has been done, the API server needs the webhook to read those objects;
//! afterwards v1alpha1 could be dropped. It can be interrupted and run again at any time.
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "it reads and writes what is stored, and waits for the API server"
)]

use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::{MiniCluster, VERSION};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde_json::json;

use crate::api::pages::all_metadata;
use crate::api::retry::until_done;
use crate::labels;

/// Name of the CustomResourceDefinition whose objects are migrated.
pub const CRD: &str = "miniclusters.flux-framework.org";
/// How long to retry after answers of 500 and above: after an installation, the API server takes a moment to trust the
/// webhook.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// Why the migration is not complete.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("failed to {verb} {name}")]
    Api { verb: &'static str, name: String, source: Box<kube::Error> },
    #[error("{CRD} stores {0}, not {VERSION}: apply the CustomResourceDefinition of this operator first")]
    OtherStorage(String),
    #[error("failed to write {} of {} MiniClusters, so {CRD} still names the older version:\n{}", .0.len(), .1, .0.join("\n"))]
    Objects(Vec<String>, usize),
}

fn failed(verb: &'static str, name: impl Into<String>) -> impl FnOnce(kube::Error) -> MigrateError {
    let name = name.into();
    move |source| MigrateError::Api { verb, name, source: Box::new(source) }
}

/// Migrates all MiniClusters; returns a sentence about what was done.
pub async fn migrate(client: Client) -> Result<String, MigrateError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = definitions.get(CRD).await.map_err(failed("get", CRD))?;
    let stored = definition.spec.versions.iter().find(|version| version.storage).map(|version| version.name.clone());
    if stored.as_deref() != Some(VERSION) {
        return Err(MigrateError::OtherStorage(stored.unwrap_or_default()));
    }
    let before = definition.status.and_then(|status| status.stored_versions).unwrap_or_default();
    if before == [VERSION] {
        return Ok(format!("all MiniClusters are stored as {VERSION}: nothing to do\n"));
    }
    let count = rewrite_all(&client).await?;
    let change = json!({ "status": { "storedVersions": [VERSION] } });
    let changed = definitions.patch_status(CRD, &parameters(), &Patch::Merge(change)).await;
    changed.map_err(failed("patch the status of", CRD))?;
    Ok(format!("{count} MiniClusters are stored as {VERSION} now; before, some were {}\n", before.join(" or ")))
}

fn parameters() -> PatchParams {
    PatchParams { field_manager: Some(labels::MANAGER.into()), ..PatchParams::default() }
}

async fn patiently<T, C>(until: Instant, call: impl FnMut() -> C) -> Result<T, kube::Error>
where
    C: Future<Output = Result<T, kube::Error>>,
{
    let judge = |error| match &error {
        kube::Error::Api(status) if status.code >= 500 && Instant::now() < until => Ok(()),
        _ => Err(error),
    };
    until_done((PAUSE, PAUSE), call, judge).await
}

/// Writes every MiniCluster unchanged, so that it is stored as v1alpha2; returns their number.
async fn rewrite_all(client: &Client) -> Result<usize, MigrateError> {
    let until = Instant::now() + PATIENCE;
    let every: Api<MiniCluster> = Api::all(client.clone());
    let all = patiently(until, || all_metadata(&every, "")).await.map_err(failed("list", "MiniClusters"))?;
    let (count, mut errors) = (all.len(), Vec::new());
    for metadata in all {
        let (namespace, name) = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
        let api: Api<PartialObjectMeta<MiniCluster>> = Api::namespaced(client.clone(), &namespace);
        // A patch that changes nothing: the API server writes the object if its stored form differs.
        let (nothing, parameters) = (Patch::Merge(json!({})), parameters());
        match patiently(until, || api.patch_metadata(&name, &parameters, &nothing)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => errors.push(format!("{namespace}/{name}: {error}")),
        }
    }
    match errors.is_empty() {
        true => Ok(count),
        false => Err(MigrateError::Objects(errors, count)),
    }
}
