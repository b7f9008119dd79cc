//! Storage version migration, for clusters that have stored MiniClusters as v1alpha1. It makes the API server
//! write every MiniCluster again, as v1alpha2. Then it removes v1alpha1 from the definition's `storedVersions`.
//!
//! Before the migration, the API server needs the webhook to read the old objects. After it, no stored object needs
//! v1alpha1. The migration can be interrupted and run again at any time.

use std::time::Duration;

use flux_operator_core::labels;
use flux_shared::crd::v1alpha2::{MiniCluster, VERSION};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::Instant;

use crate::api::pages::all_metadata;
use crate::api::retry::retry_after;

/// Name of the CustomResourceDefinition whose objects are migrated.
pub const CRD: &str = "miniclusters.flux-framework.org";
/// How long one call is retried while the API server or the webhook fails or is busy: after an installation,
/// the API server takes a moment to trust the webhook.
const RETRY_DEADLINE: Duration = Duration::from_secs(30);
/// Shortest pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// After this many failures in a row, the migration stops.
const FAILURES_MAX: usize = 5;

/// Why the migration is not complete.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("failed to {verb} {name}")]
    Api {
        verb: &'static str,
        name: String,
        source: Box<kube::Error>,
    },
    #[error("{CRD} stores {0}, not {VERSION}: apply the CustomResourceDefinition of this operator first")]
    OtherStorage(String),
    #[error("failed to write all of {} MiniClusters, so {CRD} still names the older version:\n{}", .1, .0.join("\n"))]
    Objects(Vec<String>, usize),
}

fn failed(verb: &'static str, name: impl Into<String>) -> impl FnOnce(kube::Error) -> MigrateError {
    let name = name.into();
    move |source| MigrateError::Api {
        verb,
        name,
        source: Box::new(source),
    }
}

/// Migrates all MiniClusters; returns a sentence about the result.
pub async fn migrate_all(client: Client) -> Result<String, MigrateError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = definitions.get(CRD).await.map_err(failed("get", CRD))?;
    let stored = definition
        .spec
        .versions
        .iter()
        .find(|version| version.storage)
        .map(|version| version.name.clone());
    if stored.as_deref() != Some(VERSION) {
        return Err(MigrateError::OtherStorage(stored.unwrap_or_default()));
    }
    let before = definition
        .status
        .and_then(|status| status.stored_versions)
        .unwrap_or_default();
    if before == [VERSION] {
        return Ok(format!(
            "all MiniClusters are stored as {VERSION}: nothing to do\n"
        ));
    }
    let count = rewrite_all(&client).await?;
    let change = json!({ "status": { "storedVersions": [VERSION] } });
    let changed = definitions
        .patch_status(CRD, &PatchParams::apply(labels::MANAGER), &Patch::Merge(change))
        .await;
    changed.map_err(failed("patch the status of", CRD))?;
    Ok(format!(
        "{count} MiniClusters are stored as {VERSION} now; before, some were {}\n",
        before.join(" or ")
    ))
}

/// Retries a call after temporary failures, until `RETRY_DEADLINE`. Between two attempts it waits at least as
/// long as `Retry-After` asks.
async fn with_retries<T, C>(mut call: impl FnMut() -> C) -> Result<T, kube::Error>
where
    C: Future<Output = Result<T, kube::Error>>,
{
    let deadline = Instant::now() + RETRY_DEADLINE;
    loop {
        let error = match call().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let is_temporary = match &error {
            kube::Error::Api(status) => status.code >= 500 || status.code == 429,
            // The connection failed.
            kube::Error::Service(_) | kube::Error::HyperError(_) => true,
            _ => false,
        };
        let pause = retry_after(&error).max(PAUSE);
        if !is_temporary || Instant::now() + pause > deadline {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
    }
}

/// Writes every MiniCluster unchanged, so that it is stored as v1alpha2; returns the number of MiniClusters.
async fn rewrite_all(client: &Client) -> Result<usize, MigrateError> {
    let every: Api<MiniCluster> = Api::all(client.clone());
    // The empty label selector selects every MiniCluster.
    let all = with_retries(|| all_metadata(&every, ""))
        .await
        .map_err(failed("list", "MiniClusters"))?;
    let (count, mut errors, mut failures_in_a_row) = (all.len(), Vec::new(), 0);
    for (number, metadata) in all.into_iter().enumerate() {
        if failures_in_a_row >= FAILURES_MAX {
            errors.push(format!(
                "{} more were not tried: run it again once the cause is gone",
                count - number
            ));
            break;
        }
        let (namespace, name) = (
            metadata.namespace.unwrap_or_default(),
            metadata.name.unwrap_or_default(),
        );
        let api: Api<MiniCluster> = Api::namespaced(client.clone(), &namespace);
        // A patch that changes nothing: the API server writes the object if its stored form differs.
        let (nothing, parameters) = (Patch::Merge(json!({})), PatchParams::apply(labels::MANAGER));
        match with_retries(|| api.patch_metadata(&name, &parameters, &nothing)).await {
            Ok(_) => failures_in_a_row = 0,
            // It was deleted after the list.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => {
                failures_in_a_row += 1;
                errors.push(format!("{namespace}/{name}: {error}"));
            }
        }
    }
    if errors.is_empty() {
        Ok(count)
    } else {
        Err(MigrateError::Objects(errors, count))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing;

    /// A client of an API server with `count` MiniClusters, and the names that are written. `fails` says what the n-th
    /// write of a name answers, if it fails.
    fn server(count: usize, fails: fn(&str, usize) -> Option<u16>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let written: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = written.clone();
        let client = testing::client(move |request, _| {
            if request.method == "GET" {
                let item =
                    |number| json!({ "metadata": { "namespace": "ns", "name": format!("mc-{number}") } });
                let items: Vec<_> = (0..count).map(item).collect();
                return Some((200, json!({ "metadata": {}, "items": items })));
            }
            let name = request.uri.path().rsplit('/').next().unwrap_or_default();
            let mut log = log.lock().unwrap();
            log.push(name.to_owned());
            let attempts = log.iter().filter(|logged| **logged == name).count();
            let Some(code) = fails(name, attempts) else {
                return Some((200, json!({ "metadata": { "name": name } })));
            };
            let details = json!({ "retryAfterSeconds": if code == 429 { 7 } else { 0 } });
            let status = json!({ "kind": "Status", "status": "Failure", "code": code, "details": details });
            Some((code, status))
        });
        (client, written)
    }

    #[tokio::test(start_paused = true)]
    async fn migration_waits_as_asked_for_each_object_separately() {
        let (client, written) = server(10, |_, attempt| (attempt <= 3).then_some(429));
        let begin = Instant::now();
        assert_eq!(rewrite_all(&client).await.unwrap(), 10);
        assert_eq!(begin.elapsed(), Duration::from_secs(10 * 3 * 7));
        assert_eq!(written.lock().unwrap().len(), 10 * 4);
    }

    #[tokio::test(start_paused = true)]
    async fn migration_ends_soon_if_nothing_can_be_written() {
        let (client, written) = server(1000, |_, _| Some(503));
        let error = rewrite_all(&client).await.unwrap_err().to_string();
        assert!(error.contains("995 more were not tried"), "{error}");
        let tried: BTreeSet<String> = written.lock().unwrap().iter().cloned().collect();
        assert!(tried.iter().eq(["mc-0", "mc-1", "mc-2", "mc-3", "mc-4"]));
        // One object that cannot be written does not stop the migration of the others.
        let (client, written) = server(20, |name, _| (name == "mc-3").then_some(422));
        let error = rewrite_all(&client).await.unwrap_err().to_string();
        let failed = error.matches("ns/mc-").count();
        assert_eq!((failed, written.lock().unwrap().len()), (1, 20), "{error}");
    }
}
