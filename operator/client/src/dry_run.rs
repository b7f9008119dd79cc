//! Asks the API server whether it would accept an object, by a dry run of its creation (`dryRun=All`) that
//! reports unknown fields. Nothing is created.

use flux_operator_core::labels;
use flux_operator_core::render::refusal::DryRun;
use kube::Client;
use kube::api::PostParams;
use kube::core::{Request, Status};
use serde::Serialize;
use serde_json::Value;

/// The API server's answer.
#[derive(Debug)]
pub enum DryRunAnswer {
    /// Accepted; the object as it would be stored.
    Accepted(Value),
    /// Valid, but an object of this name exists.
    Exists,
    /// Refused: the object is invalid.
    Refused(Box<Status>),
}

impl From<DryRunAnswer> for DryRun {
    fn from(answer: DryRunAnswer) -> DryRun {
        match answer {
            DryRunAnswer::Accepted(stored) => DryRun::Accepted(stored),
            DryRunAnswer::Exists => DryRun::Exists,
            DryRunAnswer::Refused(status) => DryRun::Refused(status.message),
        }
    }
}

/// Dry run of creating `object` in the collection at `path`, such as `/api/v1/namespaces/NAMESPACE/pods`. A failure
/// that says nothing about the object, such as a missing permission, is an error.
pub async fn create(
    client: &Client,
    path: &str,
    object: &impl Serialize,
) -> Result<DryRunAnswer, kube::Error> {
    let bytes = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let parameters = PostParams {
        dry_run: true,
        field_manager: Some(labels::MANAGER.into()),
    };
    let mut request = Request::new(path)
        .create(&parameters, bytes)
        .map_err(kube::Error::BuildRequest)?;
    crate::refuse_unknown_fields(&mut request)?;
    match client.request(request).await {
        Ok(stored) => Ok(DryRunAnswer::Accepted(stored)),
        Err(error) if crate::is_name_taken(&error) => Ok(DryRunAnswer::Exists),
        // 400: unknown fields, among others; 422: invalid values.
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
            Ok(DryRunAnswer::Refused(status))
        }
        Err(error) => Err(error),
    }
}
