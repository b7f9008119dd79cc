//! Keeps the certificate: in a Secret that all replicas share, in the CRD's caBundle, and in the server of
//! this process.
//!
//! An authority is in the caBundle before a certificate of it is in the Secret, and a certificate is served
//! only when the caBundle that the API server has holds its authority. Of replicas that renew at the same
//! time the first one wins: the Secret is replaced only as it was read, and no authority of another replica
//! is taken out of the caBundle.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flux_operator_core::labels;
use flux_shared::backoff;
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::certificate::{self, CertificateError, Current, Pair};
use super::{NAME, Settings};
use crate::api::installed;
use crate::health::log;
use crate::health::webhook_metrics::WebhookMetrics;
use crate::webhook::migrate::CRD;

/// Longest time between two checks if nothing changes.
const CHECK: Duration = Duration::from_secs(3600);
/// The first pause after a failure, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often certificate files are read.
const FILES: Duration = Duration::from_secs(60);

/// Why the certificate could not be read, renewed or published.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error("failed to {verb} {kind} {name}")]
    Api {
        verb: &'static str,
        kind: &'static str,
        name: &'static str,
        source: Box<kube::Error>,
    },
    #[error("the webhook's Deployment is gone, and its Secret with it")]
    Uninstalled,
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("failed to read {path}")]
    File { path: String, source: std::io::Error },
}

fn secret_error(verb: &'static str) -> impl Fn(kube::Error) -> RenewalError {
    move |source| RenewalError::Api {
        verb,
        kind: "Secret",
        name: NAME,
        source: Box::new(source),
    }
}

fn owner_error(source: kube::Error) -> RenewalError {
    RenewalError::Api {
        verb: "get",
        kind: "Deployment",
        name: NAME,
        source: Box::new(source),
    }
}

fn crd_error(verb: &'static str) -> impl Fn(kube::Error) -> RenewalError {
    move |source| RenewalError::Api {
        verb,
        kind: "CustomResourceDefinition",
        name: CRD,
        source: Box::new(source),
    }
}

/// Keeps the Secret, the caBundle and the served certificate up to date; never returns.
pub(super) async fn keep(
    client: Client,
    settings: Settings,
    current: Arc<Current>,
    metrics: Arc<WebhookMetrics>,
) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &settings.namespace);
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut renewal = Renewal {
        client: client.clone(),
        secrets,
        definitions,
        settings,
        current,
        is_owned: false,
    };
    let only = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    let secrets: Api<PartialObjectMeta<Secret>> =
        Api::namespaced(client.clone(), &renewal.settings.namespace);
    let secrets = watcher(secrets, only(NAME)).default_backoff().map(drop).boxed();
    let definitions: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let definitions = watcher(definitions, only(CRD))
        .default_backoff()
        .map(drop)
        .boxed();
    let mut news = futures::stream::select(secrets, definitions);
    // Not `retry::until_done`: an event ends a pause here.
    let mut failures = 0;
    loop {
        let rest = match renewal.renew_if_due().await {
            Ok(()) => {
                failures = 0;
                CHECK
            }
            Err(error) => {
                metrics.renewal_failed();
                log::warn("failed to keep the webhook's certificate; retrying", &error);
                failures += 1;
                tokio::time::sleep(backoff::after(failures, PAUSES.0, PAUSES.1)).await;
                continue;
            }
        };
        tokio::select! {
            _ = news.next() => {}
            () = tokio::time::sleep(rest) => {}
        }
    }
}

struct Renewal {
    client: Client,
    secrets: Api<Secret>,
    definitions: Api<CustomResourceDefinition>,
    settings: Settings,
    current: Arc<Current>,
    /// Whether the Secret that was found is owned by the Deployment.
    is_owned: bool,
}

impl Renewal {
    /// Creates or renews the certificate where it is missing or due, publishes its authority in the CRD, and
    /// serves it.
    async fn renew_if_due(&mut self) -> Result<(), RenewalError> {
        let names = self.settings.names();
        let found = self.secrets.get_opt(NAME).await.map_err(secret_error("get"))?;
        self.is_owned |= found
            .as_ref()
            .is_some_and(|secret| !secret.owner_references().is_empty());
        let held = found.as_ref().and_then(Pair::of_secret);
        let pair = match held {
            Some(pair) if !pair.is_stale(&names, Timestamp::now()) => pair,
            before => {
                let bundle = before.as_ref().map(|pair| pair.bundle.as_str());
                let pair = Pair::make(&names, bundle, Timestamp::now())?;
                // API servers must trust the new authority before its certificate is served.
                if bundle.is_some() || self.current.is_set() {
                    self.publish(&pair.bundle).await?;
                    tokio::time::sleep(self.settings.overlap).await;
                }
                self.store(&pair, found).await?;
                tracing::info!(certificate = ?pair, "created a certificate for the webhook");
                pair
            }
        };
        self.publish(&pair.bundle).await?;
        self.current.set(pair.certified()?);
        Ok(())
    }

    /// Writes the pair into the Secret. If another replica was faster this fails, and the next attempt finds
    /// that replica's pair.
    async fn store(&self, pair: &Pair, found: Option<Secret>) -> Result<(), RenewalError> {
        let parameters = PostParams {
            field_manager: Some(labels::MANAGER.into()),
            ..PostParams::default()
        };
        let namespace = self.settings.namespace.as_str();
        match found {
            None => {
                let owner = installed::owner(&self.client, namespace, NAME)
                    .await
                    .map_err(owner_error)?;
                // The Secret was deleted with the Deployment, as this process is about to be: a new Secret
                // would never be deleted.
                if owner.is_none() && self.is_owned {
                    return Err(RenewalError::Uninstalled);
                }
                let secret = pair.to_secret(namespace, NAME, owner, None);
                self.secrets
                    .create(&parameters, &secret)
                    .await
                    .map_err(secret_error("create"))?
            }
            Some(before) => {
                let secret = pair.to_secret(namespace, NAME, None, Some(before.metadata));
                self.secrets
                    .replace(NAME, &parameters, &secret)
                    .await
                    .map_err(secret_error("replace"))?
            }
        };
        Ok(())
    }

    /// Adds the bundle to the CRD's caBundle, if the CRD has a webhook. Authorities of other replicas stay;
    /// if the CRD was written since we read it, this fails (409) and is retried.
    async fn publish(&self, bundle: &str) -> Result<(), RenewalError> {
        let definition = self.definitions.get(CRD).await.map_err(crd_error("get"))?;
        let client = definition
            .spec
            .conversion
            .and_then(|conversion| conversion.webhook?.client_config);
        let Some(client) = client else { return Ok(()) };
        let known = client
            .ca_bundle
            .map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned())
            .unwrap_or_default();
        let Some(bundle) = certificate::joined(bundle, &known) else {
            return Ok(());
        };
        let bundle = ByteString(bundle.into_bytes());
        let change = json!({
            "metadata": { "resourceVersion": definition.metadata.resource_version },
            "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": bundle } } } },
        });
        let parameters = PatchParams {
            field_manager: Some(labels::MANAGER.into()),
            ..PatchParams::default()
        };
        self.definitions
            .patch(CRD, &parameters, &Patch::Merge(change))
            .await
            .map_err(crd_error("patch"))?;
        tracing::info!("updated the CRD's caBundle");
        Ok(())
    }
}

/// Serves the certificate of files that somebody else writes and renews; never returns.
pub(super) async fn keep_files(directory: &Path, current: &Current, metrics: &WebhookMetrics) {
    let mut last = (Vec::new(), Vec::new());
    loop {
        let taken = files(directory).and_then(|found| {
            if found != last {
                current.set(certificate::certified(&found.0, &found.1)?);
                last = found;
            }
            Ok(())
        });
        if let Err(error) = taken {
            metrics.renewal_failed();
            log::warn("failed to use the webhook's certificate files", &error);
        }
        tokio::time::sleep(FILES).await;
    }
}

fn files(directory: &Path) -> Result<(Vec<u8>, Vec<u8>), RenewalError> {
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read(&path).map_err(|source| RenewalError::File {
            path: path.display().to_string(),
            source,
        })
    };
    Ok((read("tls.crt")?, read("tls.key")?))
}
