//! Why a command ends with an error.

use flux_operator::offline::OfflineError;
use flux_shared::causes::causes;

/// Exit code of the plugin's own failures.
pub const FAILED: u8 = 1;

/// Why a command ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("failed to read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("failed to write {path}")]
    Write { path: String, source: std::io::Error },
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error(transparent)]
    Check(#[from] flux_operator::on_server::CheckError),
    #[error("failed to find the API server: {0}")]
    Config(String),
    #[error("failed to {doing}: {why}")]
    Call { doing: String, why: String },
    #[error("failed to {doing}")]
    Here { doing: &'static str, source: std::io::Error },
    #[error("{0}")]
    Told(String),
}

impl Failure {
    /// The failure of a call to the API server.
    pub fn call(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Failure {
        let doing = doing.into();
        move |error| Failure::Call { doing, why: words(&error) }
    }

    /// The failure of something on this machine.
    pub fn here(doing: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
        move |source| Failure::Here { doing, source }
    }
}

/// What the API server said, or why there was no answer.
pub fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => causes(other),
    }
}

/// Whether the API server answered with this code.
pub fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// Whether another try may help: there was no answer, or the API server asks for it.
pub fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}
