//! Creates and renews the certificate. It is in a Secret that all replicas share and in the server of this process; its
//! authority is in the CRD's caBundle.
//!
//! In a renewal, the authority is added to the caBundle before the certificate is written to the Secret. A certificate
//! is served only when the caBundle has its authority. If replicas renew at the same time, the first one wins: the
//! Secret is replaced only if it is unchanged since it was read. A replica keeps the authorities of the others in the
//! caBundle.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flux_operator_core::labels;
use flux_shared::backoff;
use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::certificate::{self, CertificateError, Current, Pair};
use super::{NAME, WebhookSettings};
use crate::api::installed;
use crate::health::log;
use crate::health::metrics::Metrics;
use crate::health::webhook_metrics::WebhookMetrics;
use crate::webhook::migrate::CRD;

/// Time between two checks if neither the Secret nor the CRD changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// The first pause after a failure, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Time between two reads of the certificate files.
const FILES_INTERVAL: Duration = Duration::from_secs(60);

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
pub(super) async fn keep(mut renewal: Renewal, metrics: Arc<WebhookMetrics>) -> Infallible {
    let client = renewal.client.clone();
    let named = |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
    // Of a change, only the fact is used: `renew_if_due` reads the objects itself.
    let secret_metadata: Api<PartialObjectMeta<Secret>> =
        Api::namespaced(client.clone(), &renewal.settings.namespace);
    let secret_changes = watcher(secret_metadata, named(NAME))
        .default_backoff()
        .map(drop)
        .boxed();
    let definition_metadata: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client);
    let definition_changes = watcher(definition_metadata, named(CRD))
        .default_backoff()
        .map(drop)
        .boxed();
    let mut changes = futures::stream::select(secret_changes, definition_changes);
    // Not `flux_operator_client::retry::until_done`, whose pauses do not grow with the number of failures.
    let mut failures = 0;
    loop {
        if let Err(error) = renewal.renew_if_due().await {
            metrics.renewal_failed();
            log::warn("failed to keep the webhook's certificate; retrying", &error);
            failures += 1;
            tokio::time::sleep(backoff::after(failures, PAUSES.0, PAUSES.1)).await;
            continue;
        }
        failures = 0;
        tokio::select! {
            _ = changes.next() => {}
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
    }
}

pub(super) struct Renewal {
    client: Client,
    /// The metrics that the client was built with. They have the API server's clock, by which replicas whose own clocks
    /// differ agree whether a certificate is stale.
    client_metrics: Arc<Metrics>,
    secrets: Api<Secret>,
    definitions: Api<CustomResourceDefinition>,
    settings: WebhookSettings,
    current: Arc<Current>,
    /// Whether the Deployment has owned a Secret that was found.
    is_owned: bool,
    /// The bundle of the served certificate. If the Secret is lost, a new pair takes the served authority from it.
    served_bundle: Option<String>,
    /// A pair that could not be written to the Secret. The next attempt uses it again: with a new authority for each
    /// attempt, the served one would soon be dropped from the caBundle.
    unstored: Option<Pair>,
}

impl Renewal {
    pub(super) fn new(
        client: Client,
        client_metrics: Arc<Metrics>,
        settings: WebhookSettings,
        current: Arc<Current>,
    ) -> Renewal {
        Renewal {
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            definitions: Api::all(client.clone()),
            client,
            client_metrics,
            settings,
            current,
            is_owned: false,
            served_bundle: None,
            unstored: None,
        }
    }

    /// Creates the certificate if there is none, or renews it if it is stale. Publishes its authority in the CRD, and
    /// serves the certificate.
    async fn renew_if_due(&mut self) -> Result<(), RenewalError> {
        let names = self.settings.names();
        let found = self.secrets.get_opt(NAME).await.map_err(secret_error("get"))?;
        self.is_owned |= found
            .as_ref()
            .is_some_and(|secret| !secret.owner_references().is_empty());
        // Read before `now`: only successful answers set the API server's clock, and the Secret may be missing (404).
        let owner = match &found {
            Some(_) => None,
            None => self.owner().await?,
        };
        let stored = found.as_ref().and_then(Pair::of_secret);
        let now = self.client_metrics.server_clock.now();
        let is_fresh = |pair: &Pair| !pair.is_stale(&names, now);
        let pair = match stored {
            Some(pair) if is_fresh(&pair) => pair,
            before => {
                let bundle = before
                    .map(|pair| pair.bundle)
                    .or_else(|| self.served_bundle.clone());
                let pair = match self.unstored.take().filter(is_fresh) {
                    Some(pair) => pair,
                    None => Pair::make(&names, bundle.as_deref(), now)?,
                };
                self.unstored = Some(pair.clone());
                // API servers must trust the new authority before its certificate is served. Before the first
                // certificate there is no need to wait: none is served yet.
                if bundle.is_some() {
                    self.publish(&pair.bundle).await?;
                    tokio::time::sleep(self.settings.overlap).await;
                }
                self.store(&pair, found, owner).await?;
                tracing::info!(certificate = ?pair, "created a certificate for the webhook");
                pair
            }
        };
        self.unstored = None;
        self.publish(&pair.bundle).await?;
        self.current.set(pair.certified()?);
        self.served_bundle = Some(pair.bundle);
        Ok(())
    }

    /// The owner of a new Secret. None: the process was started by hand.
    async fn owner(&self) -> Result<Option<OwnerReference>, RenewalError> {
        let owner = installed::owner(&self.client, &self.settings.namespace, NAME)
            .await
            .map_err(owner_error)?;
        // The Secret was deleted with the Deployment, and this process will be, too. Nobody would delete a new Secret.
        if owner.is_none() && self.is_owned {
            return Err(RenewalError::Uninstalled);
        }
        Ok(owner)
    }

    /// Writes the pair into the Secret; `found` is the present Secret, and `owner` the owner of a new one. This fails
    /// if another replica has written it first; the next attempt then finds that replica's pair.
    async fn store(
        &self,
        pair: &Pair,
        found: Option<Secret>,
        owner: Option<OwnerReference>,
    ) -> Result<(), RenewalError> {
        let parameters = PostParams {
            field_manager: Some(labels::MANAGER.into()),
            ..PostParams::default()
        };
        let namespace = self.settings.namespace.as_str();
        match found {
            None => {
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

    /// Adds the bundle to the CRD's caBundle, if the CRD has a webhook. Authorities of other replicas stay. If the CRD
    /// has changed since it was read, this fails (409), and the caller retries.
    async fn publish(&self, bundle: &str) -> Result<(), RenewalError> {
        let definition = self.definitions.get(CRD).await.map_err(crd_error("get"))?;
        let client_config = definition
            .spec
            .conversion
            .and_then(|conversion| conversion.webhook?.client_config);
        let Some(client_config) = client_config else {
            return Ok(());
        };
        let known = client_config
            .ca_bundle
            .map(|bundle| String::from_utf8_lossy(&bundle.0).into_owned())
            .unwrap_or_default();
        let Some(merged) = certificate::merge_bundles(bundle, &known) else {
            return Ok(());
        };
        let merged = ByteString(merged.into_bytes());
        let change = json!({
            "metadata": { "resourceVersion": definition.metadata.resource_version },
            "spec": { "conversion": { "webhook": { "clientConfig": { "caBundle": merged } } } },
        });
        let parameters = PatchParams::apply(labels::MANAGER);
        self.definitions
            .patch(CRD, &parameters, &Patch::Merge(change))
            .await
            .map_err(crd_error("patch"))?;
        tracing::info!("updated the CRD's caBundle");
        Ok(())
    }
}

/// Serves the certificate of files that another program writes and renews, such as cert-manager; never returns.
pub(super) async fn keep_files(directory: &Path, current: &Current, metrics: &WebhookMetrics) -> Infallible {
    // The chain and the key that are served.
    let mut last = (Vec::new(), Vec::new());
    loop {
        let result = read_files(directory).and_then(|found| {
            if found != last {
                current.set(certificate::certified(&found.0, &found.1)?);
                last = found;
            }
            Ok(())
        });
        if let Err(error) = result {
            metrics.renewal_failed();
            log::warn("failed to use the webhook's certificate files", &error);
        }
        tokio::time::sleep(FILES_INTERVAL).await;
    }
}

/// The certificate chain and the key, as PEM.
fn read_files(directory: &Path) -> Result<(Vec<u8>, Vec<u8>), RenewalError> {
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read(&path).map_err(|source| RenewalError::File {
            path: path.display().to_string(),
            source,
        })
    };
    Ok((read("tls.crt")?, read("tls.key")?))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, MutexGuard};

    use k8s_openapi::jiff::{SignedDuration, Timestamp};
    use serde_json::Value;

    use super::*;
    use crate::testing;

    /// An API server's objects, and the status with which it refuses to write the Secret.
    #[derive(Default)]
    struct Server {
        secret: Option<Value>,
        ca_bundle: Option<Value>,
        refusal: Option<u16>,
        /// Whether the webhook has a Deployment. Otherwise the process was started by hand.
        is_deployed: bool,
        /// The number of writes to the CRD.
        publications: usize,
    }

    impl Server {
        fn answer(&mut self, method: &http::Method, path: &str, body: Option<Value>) -> (u16, Value) {
            let failure = |code: u16| {
                let reason = if code == 404 { "NotFound" } else { "Forbidden" };
                (
                    code,
                    json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code }),
                )
            };
            if path.contains("/customresourcedefinitions/") {
                if let Some(change) = body {
                    self.ca_bundle =
                        Some(change["spec"]["conversion"]["webhook"]["clientConfig"]["caBundle"].clone());
                    self.publications += 1;
                }
                let client_config = json!({ "caBundle": self.ca_bundle });
                let webhook = json!({ "clientConfig": client_config, "conversionReviewVersions": ["v1"] });
                let names = json!({ "kind": "MiniCluster", "plural": "miniclusters" });
                let spec = json!({
                    "conversion": { "strategy": "Webhook", "webhook": webhook },
                    "group": "flux-framework.org", "names": names, "scope": "Namespaced", "versions": [],
                });
                return (200, json!({ "metadata": { "name": CRD }, "spec": spec }));
            }
            if path.contains("/deployments/") && self.is_deployed {
                return (200, json!({ "metadata": { "name": NAME, "uid": "uid" } }));
            }
            match (path.contains("/secrets"), body, self.refusal) {
                (true, Some(_), Some(code)) => failure(code),
                (true, Some(secret), None) => (200, self.secret.insert(secret).clone()),
                (true, None, _) if self.secret.is_some() => (200, json!(self.secret)),
                _ => {
                    assert_eq!(method, http::Method::GET);
                    failure(404)
                }
            }
        }

        fn authorities(&self) -> Vec<String> {
            let bundle: ByteString = serde_json::from_value(json!(self.ca_bundle)).unwrap();
            let text = String::from_utf8(bundle.0).unwrap();
            let all = text.split_inclusive("-----END CERTIFICATE-----");
            all.map(|certificate| certificate.trim().to_owned())
                .filter(|certificate| !certificate.is_empty())
                .collect()
        }
    }

    /// A webhook whose API server's clock shows `date`.
    fn renewal(server: &Arc<Mutex<Server>>, date: Timestamp) -> Renewal {
        let metrics = Arc::new(Metrics::new().unwrap());
        let answering = server.clone();
        let client = testing::client_at(date, metrics.clone(), move |request, body| {
            let body = (!body.is_null()).then_some(body);
            let mut server = answering.lock().unwrap();
            Some(server.answer(&request.method, request.uri.path(), body))
        });
        let settings = WebhookSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            health: None,
            namespace: "ns".into(),
            hosts: Vec::new(),
            directory: None,
            overlap: Duration::ZERO,
            drain: Duration::ZERO,
        };
        Renewal::new(client, metrics, settings, Arc::default())
    }

    /// A webhook that serves the certificate of the Secret, and its API server.
    async fn serving() -> (Renewal, Arc<Mutex<Server>>) {
        let server: Arc<Mutex<Server>> = Arc::default();
        let mut renewal = renewal(&server, Timestamp::now());
        renewal.renew_if_due().await.unwrap();
        assert_eq!(locked(&server).authorities().len(), 1);
        (renewal, server)
    }

    fn locked(server: &Mutex<Server>) -> MutexGuard<'_, Server> {
        server.lock().unwrap()
    }

    /// A replica on a node with a fast clock would renew again and again, with certificates that are not valid yet.
    #[tokio::test]
    async fn certificate_is_timed_by_the_api_servers_clock() {
        let days = |days: i64| SignedDuration::from_hours(24 * days);
        let date = Timestamp::now() - days(80);
        let server = Arc::new(Mutex::new(Server {
            is_deployed: true,
            ..Server::default()
        }));
        renewal(&server, date).renew_if_due().await.unwrap();
        let secret = |server: &Server| -> Secret { serde_json::from_value(json!(server.secret)).unwrap() };
        let pair = Pair::of_secret(&secret(&locked(&server))).unwrap();
        let certified = pair.certified().unwrap();
        let (_, certificate) = x509_parser::parse_x509_certificate(&certified.cert[0]).unwrap();
        assert!(certificate.validity().not_before.timestamp() <= date.as_second());

        let names = renewal(&server, date).settings.names();
        let fresh = Pair::make(&names, None, date - days(200)).unwrap();
        locked(&server).secret = Some(json!(fresh.to_secret("ns", NAME, None, None)));
        renewal(&server, date).renew_if_due().await.unwrap();
        assert_eq!(
            Pair::of_secret(&secret(&locked(&server))),
            Some(fresh),
            "no renewal"
        );
    }

    #[tokio::test]
    async fn served_authority_stays_while_secret_cannot_be_written() {
        let unusable = json!({ "metadata": { "name": NAME, "resourceVersion": "1" }, "type": "Opaque" });
        for (secret, refusal) in [(None, 403), (Some(unusable), 422)] {
            let (mut renewal, server) = serving().await;
            let served = locked(&server).authorities().remove(0);
            {
                let mut server = locked(&server);
                (server.secret, server.refusal, server.publications) = (secret, Some(refusal), 0);
            }
            for round in 0..8 {
                renewal.renew_if_due().await.unwrap_err();
                let authorities = locked(&server).authorities();
                assert!(
                    authorities.contains(&served),
                    "{refusal}: gone after round {round}"
                );
            }
            assert_eq!(
                locked(&server).publications,
                1,
                "{refusal}: each retry publishes the same"
            );
            // The CRD is replaced.
            locked(&server).ca_bundle = None;
            renewal.renew_if_due().await.unwrap_err();
            let published = locked(&server).authorities();
            assert!(published.len() == 2 && published.contains(&served), "{refusal}");

            locked(&server).refusal = None;
            renewal.renew_if_due().await.unwrap();
            assert_eq!(
                locked(&server).authorities(),
                published,
                "{refusal}: the published authority is used"
            );
            let stored = serde_json::from_value(json!(locked(&server).secret)).unwrap();
            let stored = Pair::of_secret(&stored).unwrap();
            assert!(stored.bundle.starts_with(&published[0]) && stored.bundle.contains(&served));
        }
    }
}
