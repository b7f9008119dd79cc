//! Code that `flux-operator` and `kubectl minicluster` share: it reads the command line and files, and asks the API
//! server whether it would accept the files' objects.
//!
//! ```text
//! input ─► flux_operator_core::offline ─► on_server ─► dry_run (the API server) ─► Judgement
//! choices: options for all MiniClusters; config: which API server; credentials: why a plugin has printed none;
//! retry: repeats a call that has failed
//! ```
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")
)]

pub mod choices;
pub mod config;
pub mod credentials;
pub mod dry_run;
pub mod input;
pub mod on_server;
pub mod retry;

/// Whether an object was not created because another one has its name.
pub fn is_name_taken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Makes the API server refuse a creation with fields that the object's kind lacks. Without this, it drops
/// them. (`PostParams` has no field for this parameter.)
pub fn refuse_unknown_fields(request: &mut http::Request<Vec<u8>>) -> Result<(), kube::Error> {
    *request.uri_mut() = format!("{}&fieldValidation=Strict", request.uri())
        .parse()
        .map_err(http::Error::from)
        .map_err(kube::Error::HttpError)?;
    Ok(())
}
