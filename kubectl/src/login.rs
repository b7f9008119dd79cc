//! A client that logs in again when its credentials expire.

use std::sync::Arc;

use http::{Request, StatusCode};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use tokio::sync::Mutex;

/// A client that sends its calls through `client`. If the API server rejects the credentials (401), they may have
/// expired: the call is repeated once, through the client that `log_in` makes. Later calls go through it, too. None: no
/// other client can be made, and the rejection is the answer.
pub fn renewing<F>(client: Client, log_in: impl Fn() -> F + Send + Sync + 'static) -> Client
where
    F: Future<Output = Option<Client>> + Send + 'static,
{
    let namespace = client.default_namespace().to_owned();
    // The client, and how many logins precede it.
    let (current, log_in) = (Arc::new(Mutex::new((client, 0_u32))), Arc::new(log_in));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (current, log_in) = (current.clone(), log_in.clone());
        async move {
            let (parts, body) = request.into_parts();
            let copy = body
                .try_clone()
                .map(|body| Request::from_parts(parts.clone(), body));
            let (client, logins) = current.lock().await.clone();
            let answer = client.send(Request::from_parts(parts, body)).await?;
            if answer.status() != StatusCode::UNAUTHORIZED {
                return Ok::<_, kube::Error>(answer);
            }
            let Some(copy) = copy else {
                return Ok(answer);
            };
            // Several calls may be rejected at once. A login may ask the user, so only the first logs in.
            let mut current = current.lock().await;
            if current.1 == logins {
                let Some(renewed) = log_in().await else {
                    return Ok(answer);
                };
                *current = (renewed, logins + 1);
            }
            let renewed = current.0.clone();
            drop(current);
            renewed.send(copy).await
        }
    });
    ClientBuilder::new(service, namespace).build()
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
        let client = renewing(old.client, move || std::future::ready(Some(renewed.clone())));
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
                Some(renewed)
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
            let client = renewing(old.client, move || std::future::ready(renewed.clone()));
            let pods: Api<Pod> = Api::namespaced(client, "team");
            assert!(is_code(&pods.get("a").await.unwrap_err(), 401));
        }
        assert_eq!(new_requests.lock().unwrap().len(), 1);
    }
}
