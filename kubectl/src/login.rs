//! A client that logs in again when its credentials expire, and does not wait for an answer without a limit.

use std::error::Error;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use flux_operator_client::credentials::{self, CredentialPlugin};
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tower::BoxError;

/// Longest wait until an answer begins. The API server ends a call after 60 s, so without an answer by then the
/// connection is lost. The body of an answer, such as the events of a watch, may take longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(65);
/// The same if there is a credential plugin: kube runs it within the call, and it may ask the user to log in.
const ANSWER_TIMEOUT_WITH_PLUGIN: Duration = Duration::from_secs(180);
/// How long the credential plugin may fail until the credentials count as expired. A network that it needs, such as a
/// VPN, may be down for a while.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(300);

/// No answer has begun in time.
#[derive(Debug, thiserror::Error)]
#[error("nothing came for {} s", .0.as_secs())]
pub struct Silence(Duration);

/// Ends the wait for an answer. `has_plugin`: there is a credential plugin.
pub fn limited<F, T>(has_plugin: bool) -> impl Fn(F) -> BoxFuture<'static, Result<T, BoxError>> + Clone
where
    F: Future<Output = Result<T, BoxError>> + Send + 'static,
{
    let limit = if has_plugin {
        ANSWER_TIMEOUT_WITH_PLUGIN
    } else {
        ANSWER_TIMEOUT
    };
    move |answer| {
        let limited = tokio::time::timeout(limit, answer);
        Box::pin(async move { limited.await.unwrap_or_else(|_| Err(Silence(limit).into())) })
    }
}

/// Why a call was not made: the credential plugin has failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{why}")]
pub struct NoCredentials {
    why: String,
    /// Whether a retry may help: it has not failed for long.
    pub passes: bool,
}

impl NoCredentials {
    /// A failure whose row of failures began at `since`, or begins now.
    fn in_row(since: &mut Option<Instant>, why: String) -> NoCredentials {
        let passes = since.get_or_insert_with(Instant::now).elapsed() < PLUGIN_TIMEOUT;
        NoCredentials { why, passes }
    }

    /// The failure of the plugin that caused this error.
    pub fn of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a NoCredentials> {
        credentials::find(error)
    }
}

/// A function that gets the results of all calls in turn. It converts failures of the credential plugin to
/// [`NoCredentials`].
pub fn naming_failures_of<T>(
    plugin: CredentialPlugin,
) -> impl Fn(Result<T, BoxError>) -> Result<T, BoxError> + Clone {
    let failing_since = Arc::new(std::sync::Mutex::new(None));
    move |result| {
        let mut since = failing_since.lock().unwrap_or_else(PoisonError::into_inner);
        let error = result.as_ref().err();
        let Some(why) = error.and_then(|error| plugin.failure(&**error)) else {
            *since = None;
            return result;
        };
        Err(NoCredentials::in_row(&mut since, why).into())
    }
}

/// A client that sends its calls through `client`. If the API server rejects the credentials (401), they may have
/// expired: the call is repeated once, through the client that `log_in` makes. Later calls go through it, too. None: no
/// other client can be made, and the rejection is the answer. An error says why the login has failed.
pub fn renewing<F>(client: Client, log_in: impl Fn() -> F + Send + Sync + 'static) -> Client
where
    F: Future<Output = Result<Option<Client>, String>> + Send + 'static,
{
    let namespace = client.default_namespace().to_owned();
    let current = Login {
        client,
        logins: 0,
        failing_since: None,
    };
    let (current, log_in) = (Arc::new(Mutex::new(current)), Arc::new(log_in));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (current, log_in) = (current.clone(), log_in.clone());
        async move {
            let (parts, body) = request.into_parts();
            let copy = body
                .try_clone()
                .map(|body| Request::from_parts(parts.clone(), body));
            let Login { client, logins, .. } = current.lock().await.clone();
            let answer = client.send(Request::from_parts(parts, body)).await?;
            if answer.status() != StatusCode::UNAUTHORIZED {
                return Ok::<_, kube::Error>(answer);
            }
            let Some(copy) = copy else {
                return Ok(answer);
            };
            // Several calls may be rejected at once. A login may ask the user, so only the first logs in.
            let mut current = current.lock().await;
            if current.logins == logins {
                match log_in().await {
                    Ok(Some(client)) => {
                        *current = Login {
                            client,
                            logins: logins + 1,
                            failing_since: None,
                        };
                    }
                    Ok(None) => return Ok(answer),
                    Err(why) => {
                        let missing = NoCredentials::in_row(&mut current.failing_since, why);
                        return Err(kube::Error::Service(missing.into()));
                    }
                }
            }
            let renewed = current.client.clone();
            drop(current);
            renewed.send(copy).await
        }
    });
    ClientBuilder::new(service, namespace).build()
}

/// The client in use.
#[derive(Clone)]
struct Login {
    client: Client,
    /// How many logins precede it.
    logins: u32,
    /// Since when new logins have failed.
    failing_since: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use k8s_openapi::api::core::v1::Pod;
    use kube::Api;
    use kube::api::PostParams;
    use serde_json::json;

    use super::*;
    use crate::failure::is_code;
    use crate::testing::{Answer, answering, failed};

    #[tokio::test]
    async fn rejected_call_is_repeated_with_new_credentials() {
        let (old, old_requests) = answering(|_| failed(401));
        let (new, new_requests) = answering(|_| Answer::Json(200, json!({ "metadata": { "name": "a" } })));
        let renewed = new.client;
        let client = renewing(old.client, move || std::future::ready(Ok(Some(renewed.clone()))));
        let pods: Api<Pod> = Api::namespaced(client, "team");
        pods.create(&PostParams::default(), &Pod::default())
            .await
            .unwrap();
        pods.get("a").await.unwrap();
        assert_eq!(old_requests.lock().unwrap().len(), 1);
        let requests = new_requests.lock().unwrap();
        assert_eq!(requests.len(), 2);
        assert!(
            requests[0].starts_with("POST /api/v1/namespaces/team/pods"),
            "{requests:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failed_new_login_may_pass_for_five_minutes() {
        let (old, _) = answering(|_| failed(401));
        let client = renewing(old.client, || {
            std::future::ready(Err("the VPN is down".to_owned()))
        });
        let pods: Api<Pod> = Api::namespaced(client, "team");
        for passes in [true, false] {
            let error = pods.get("a").await.unwrap_err();
            let missing = NoCredentials::of(&error).unwrap();
            assert_eq!(
                (missing.to_string().as_str(), missing.passes),
                ("the VPN is down", passes)
            );
            tokio::time::sleep(PLUGIN_TIMEOUT).await;
        }
    }

    #[tokio::test]
    async fn calls_that_are_rejected_together_log_in_once() {
        let (old, _) = answering(|_| failed(401));
        let (new, _) = answering(|_| Answer::Json(200, json!({ "metadata": { "name": "a" } })));
        let (renewed, logins) = (new.client, Arc::new(AtomicU32::new(0)));
        let counted = logins.clone();
        let client = renewing(old.client, move || {
            counted.fetch_add(1, Ordering::Relaxed);
            let renewed = renewed.clone();
            async {
                tokio::task::yield_now().await;
                Ok(Some(renewed))
            }
        });
        let pods: Api<Pod> = Api::namespaced(client, "team");
        let (one, other) = tokio::join!(pods.get("a"), pods.get("a"));
        one.and(other).unwrap();
        assert_eq!(logins.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn second_rejection_is_returned_to_the_caller() {
        let (new, new_requests) = answering(|_| failed(401));
        for renewed in [Some(new.client), None] {
            let (old, _) = answering(|_| failed(401));
            let client = renewing(old.client, move || std::future::ready(Ok(renewed.clone())));
            let pods: Api<Pod> = Api::namespaced(client, "team");
            assert!(is_code(&pods.get("a").await.unwrap_err(), 401));
        }
        assert_eq!(new_requests.lock().unwrap().len(), 1);
    }
}
