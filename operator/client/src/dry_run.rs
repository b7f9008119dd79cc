//! Asks the API server whether it would accept an object, by a dry run of its creation (`dryRun=All`) that
//! reports unknown fields. Nothing is created.

use flux_operator_core::labels;
use flux_operator_core::render::refusal::DryRun;
use http::HeaderMap;
use http::header::WARNING;
use kube::Client;
use kube::api::PostParams;
use kube::client::Body;
use kube::core::{Request, Status};
use serde::Serialize;
use serde_json::Value;

/// What the API server said to a dry run.
#[derive(Debug)]
pub struct Reply {
    pub answer: DryRunAnswer,
    /// Its warnings, for example that no pod of a Job could be created (Pod Security).
    pub warnings: Vec<String>,
}

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
pub async fn create(client: &Client, path: &str, object: &impl Serialize) -> Result<Reply, kube::Error> {
    let bytes = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let parameters = PostParams {
        dry_run: true,
        field_manager: Some(labels::MANAGER.into()),
    };
    let mut request = Request::new(path)
        .create(&parameters, bytes)
        .map_err(kube::Error::BuildRequest)?;
    crate::refuse_unknown_fields(&mut request)?;
    // `Client::request` drops the headers.
    let response = client.send(request.map(Body::from)).await?;
    let warnings = warnings(response.headers());
    let code = response.status();
    let body = response.into_body().collect_bytes().await?;
    let answer = if code.is_success() {
        Ok(DryRunAnswer::Accepted(
            serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?,
        ))
    } else {
        // A proxy's answer is no Status.
        let status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(&body);
            Status::failure(text.trim(), "Failed to parse error data").with_code(code.as_u16())
        });
        refusal(kube::Error::Api(status.boxed()))
    };
    answer.map(|answer| Reply { answer, warnings })
}

fn refusal(error: kube::Error) -> Result<DryRunAnswer, kube::Error> {
    if crate::is_name_taken(&error) {
        return Ok(DryRunAnswer::Exists);
    }
    match error {
        // 400: unknown fields, among others; 422: invalid values.
        kube::Error::Api(status) if matches!(status.code, 400 | 422) => Ok(DryRunAnswer::Refused(status)),
        error => Err(error),
    }
}

/// The texts of the `Warning` headers. The API server writes each as `299 - "TEXT"`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let texts = headers.get_all(WARNING).iter().map(|value| {
        let value = String::from_utf8_lossy(value.as_bytes());
        let quoted = value.split_once('"').and_then(|(_, text)| text.rsplit_once('"'));
        let text = quoted.map_or(value.as_ref(), |(text, _)| text);
        text.replace("\\\"", "\"").replace("\\\\", "\\")
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_headers_have_no_code_and_no_quotes() {
        let mut headers = HeaderMap::new();
        for value in [
            r#"299 - "would violate PodSecurity \"restricted:latest\": a (container \"b\")""#,
            "no quotes",
        ] {
            headers.append(WARNING, value.parse().unwrap());
        }
        let wanted = [
            r#"would violate PodSecurity "restricted:latest": a (container "b")"#,
            "no quotes",
        ];
        assert_eq!(warnings(&headers), wanted);
    }
}
