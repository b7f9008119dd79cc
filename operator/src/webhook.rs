//! The conversion webhook: the API server calls it to convert a MiniCluster to the version that a client asks
//! for.
//!
//! ```text
//! certificate_renewal:  Secret ─► certificate (created, renewed) ─► Secret, caBundle of the CRD
//!                                                               ─► the server's current certificate
//! server:  TLS ─► POST /convert ─► review (shared::crd::convert) ─► answer
//! ```
//!
//! The webhook is a separate process with its own account and memory limit, so its callers cannot slow down the
//! operator. Every replica serves. All replicas share one Secret, which the first of them creates. MiniClusters are
//! stored as v1alpha2 (old ones after `migrate`), so only clients that read or write v1alpha1 depend on the webhook.
//!
//! After a stop signal the webhook serves for a while, since the API server may not know yet that it stops. Every
//! answer then tells the API server to open a new connection.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use flux_operator_core::labels;
use futures::{FutureExt, future};
use kube::Client;
use tokio::sync::watch;

use crate::health::metrics::Metrics;
use crate::health::server as health_server;
use crate::health::webhook_metrics::WebhookMetrics;

mod certificate;
mod certificate_renewal;
mod limits;
pub mod migrate;
pub mod review;
mod server;

pub use certificate::CertificateError;

/// The path to which the API server sends its requests.
pub const PATH: &str = "/convert";
/// Name of the webhook's Service, Deployment and Secret.
pub const NAME: &str = "flux-operator-webhook";
/// How long a renewal's authority is in the CRD before its certificate is served. API servers notice a change of the
/// CRD sooner.
const OVERLAP: Duration = Duration::from_secs(60);
/// How long the webhook keeps serving after SIGTERM. By then, no API server sends it new requests.
const DRAIN: Duration = Duration::from_secs(10);

/// Arguments of `webhook`.
#[derive(Debug, Clone, Args)]
pub struct WebhookSettings {
    /// Address to listen on
    #[arg(long, default_value = "[::]:9443", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Address to serve /healthz, /readyz and /metrics at over plain HTTP, such as [::]:8080 [default: only
    /// over TLS, at --listen]
    #[arg(long, env = "HEALTH_ADDRESS", value_name = "ADDRESS:PORT")]
    pub health: Option<SocketAddr>,
    /// Namespace of the webhook's Service and Secret
    #[arg(long, env = "POD_NAMESPACE", default_value = labels::OPERATOR)]
    pub namespace: String,
    /// Another name or address by which the API server reaches the webhook; can be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// Read tls.crt and tls.key from this directory (such as a mounted Secret of cert-manager), and do not
    /// touch the CRD's caBundle
    #[arg(long = "certificate", value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    // The last two are no options of the command line: tests set shorter times.
    /// How long to wait after publishing a new authority before serving its certificate
    #[arg(skip = OVERLAP)]
    pub overlap: Duration,
    /// How long to keep serving after SIGTERM
    #[arg(skip = DRAIN)]
    pub drain: Duration,
}

impl WebhookSettings {
    /// The names and addresses that the certificate is for.
    fn names(&self) -> Vec<String> {
        let service = format!("{NAME}.{}.svc", self.namespace);
        [service.clone(), format!("{service}.cluster.local")]
            .into_iter()
            .chain(self.hosts.iter().cloned())
            .collect()
    }
}

/// Why the webhook cannot be served at all.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("failed to listen at {address}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("no certificate: neither an API client nor a directory was given")]
    NoCertificate,
    #[error("failed to set up TLS")]
    Tls(#[from] tokio_rustls::rustls::Error),
    #[error("failed to register the metrics")]
    Metrics(#[from] prometheus::Error),
}

/// State of this process for the health server.
struct WebhookHealth {
    metrics: Arc<WebhookMetrics>,
    current: Arc<certificate::Current>,
    /// Whether the process has got a stop signal.
    is_stopping: AtomicBool,
}

impl health_server::Answers for WebhookHealth {
    fn is_ready(&self) -> bool {
        self.current.is_set() && !self.is_stopping.load(Ordering::Relaxed)
    }

    fn metrics(&self) -> String {
        if let Some(end) = self.current.ends() {
            self.metrics.certificate_ends(end);
        }
        self.metrics.text(self.is_ready())
    }
}

/// Serves until `stop` resolves, and then for `drain` longer. `client` comes with the metrics that it was built with.
/// Without a client, the settings must name a directory with the certificate.
pub async fn run(
    client: Option<(Client, Arc<Metrics>)>,
    settings: WebhookSettings,
    stop: impl Future<Output = ()>,
) -> Result<(), WebhookError> {
    let current = Arc::new(certificate::Current::default());
    let metrics = Arc::new(WebhookMetrics::new()?);
    let health = WebhookHealth {
        metrics: metrics.clone(),
        current: current.clone(),
        is_stopping: AtomicBool::new(false),
    };
    let listen = |address| async move {
        health_server::bind(address)
            .await
            .map_err(|source| WebhookError::Listen { address, source })
    };
    let listener = listen(settings.listen).await?;
    let health_listener = match settings.health {
        Some(address) => Some(listen(address).await?),
        None => None,
    };
    let (drain_sender, drain_receiver) = watch::channel(false);
    let serve_health = async {
        match health_listener {
            Some(listener) => health_server::serve(listener, &health).await,
            None => std::future::pending().await,
        }
    };
    let drain = settings.drain;
    let stop_and_drain = async {
        stop.await;
        tracing::info!(
            seconds = drain.as_secs(),
            "shutting down: still serving for a few seconds"
        );
        health.is_stopping.store(true, Ordering::Relaxed);
        drain_sender.send_replace(true);
        tokio::time::sleep(drain).await;
    };
    let keep_certificate = match (&settings.directory, client) {
        (Some(directory), _) => certificate_renewal::keep_files(directory, &current, &metrics).boxed(),
        (None, Some((client, client_metrics))) => {
            let (settings, current) = (settings.clone(), current.clone());
            let renewal = certificate_renewal::Renewal::new(client, client_metrics, settings, current);
            certificate_renewal::keep(renewal, metrics.clone()).boxed()
        }
        (None, None) => return Err(WebhookError::NoCertificate),
    };
    let acceptor = server::acceptor(current.clone())?;
    let serve_webhook = server::serve(
        listener,
        acceptor,
        current.clone(),
        metrics.clone(),
        drain_receiver,
    );
    tokio::select! {
        (never, _, _) = future::join3(serve_webhook, keep_certificate, serve_health) => match never {},
        () = stop_and_drain => Ok(()),
    }
}
