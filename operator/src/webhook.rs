//! The conversion webhook: the API server asks it for a MiniCluster in the version that somebody wants.
//!
//! ```text
//! keeper:  Secret ─► certificate (made, renewed) ─► Secret, caBundle of the CRD ─► the server's current certificate
//! server:  TLS ─► POST /convert ─► review (shared::crd::convert) ─► answer
//! ```
//!
//! Every replica serves, whoever leads: the Secret is shared, and whichever replica is first makes it. v1alpha2 is what is
//! stored, so only readers and writers of v1alpha1 depend on it.
#![expect(clippy::disallowed_types, reason = "it hands the client on")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use kube::Client;

mod certificate;
mod keeper;
pub mod review;
mod server;

pub use certificate::CertificateError;

/// Where the API server's requests go.
pub const PATH: &str = "/convert";
/// Name of the Service and of the Secret.
pub const NAME: &str = "flux-operator-webhook";
/// Port of the server in its pod.
pub const PORT: u16 = 9443;
/// Longer than API servers take to notice a change of the CRD.
const OVERLAP: Duration = Duration::from_secs(60);

/// What the administrator chooses.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Serve the conversion webhook at this address, such as [::]:9443
    #[arg(long = "webhook", env = "FLUX_OPERATOR_WEBHOOK", value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// Namespace of the webhook's Service and Secret
    #[arg(id = "webhook_namespace", long = "webhook-namespace", env = "POD_NAMESPACE", default_value = crate::install::NAME)]
    pub namespace: String,
    /// One more name or address that the API server reaches the webhook at; can be repeated
    #[arg(long = "webhook-host", value_name = "NAME")]
    pub hosts: Vec<String>,
    /// Take tls.crt and tls.key from this directory (as cert-manager's Secret is mounted), and leave the CRD's caBundle
    /// to whoever wrote them
    #[arg(long = "webhook-certificate", value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// How long a new authority is known to API servers before a certificate of it is used
    #[arg(skip = OVERLAP)]
    pub overlap: Duration,
}

impl Settings {
    /// Every name that the certificate is for.
    fn names(&self) -> Vec<String> {
        let service = format!("{NAME}.{}.svc", self.namespace);
        [service.clone(), format!("{service}.cluster.local")].into_iter().chain(self.hosts.iter().cloned()).collect()
    }
}

/// Why the webhook cannot be served at all.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("failed to listen at {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("failed to set TLS up")]
    Tls(#[from] tokio_rustls::rustls::Error),
}

/// Whether the webhook answers. Open from the start where there is none.
#[derive(Debug, Clone, Default)]
pub struct Gate(Option<Arc<certificate::Current>>);

impl Gate {
    /// That of a webhook with these settings.
    pub fn of(settings: &Settings) -> Gate {
        Gate(settings.listen.map(|_| Arc::default()))
    }

    pub fn is_open(&self) -> bool {
        self.0.as_ref().is_none_or(|current| current.is_set())
    }
}

/// Serves for ever, and opens the gate. Without an address there is nothing to do.
pub async fn run(client: Client, settings: Settings, gate: Gate) -> Result<(), WebhookError> {
    let (Some(address), Some(current)) = (settings.listen, gate.0) else { return std::future::pending().await };
    let listen = |source| WebhookError::Listen { address, source };
    let listener = crate::server::bind(address).await.map_err(listen)?;
    let acceptor = server::acceptor(current.clone())?;
    tokio::join!(server::serve(listener, acceptor, current.clone()), keeper::keep(client, settings, current));
    Ok(())
}
