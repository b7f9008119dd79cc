//! A fake API server.

use std::sync::{Arc, Mutex};

use http::request::Parts;
use kube::Client;
use kube::client::{Body, ClientBuilder};
use serde_json::Value;

/// A client of an API server that answers each request with the status code and body that `answer` returns. `answer`
/// gets the request's body, or null if it has none. If it returns `None`, the request is never answered.
pub fn client(answer: impl FnMut(&Parts, Value) -> Option<(u16, Value)> + Send + 'static) -> Client {
    let answer = Arc::new(Mutex::new(answer));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
            let answered = (answer.lock().unwrap())(&head, body);
            let Some((code, body)) = answered else {
                return std::future::pending().await;
            };
            // In a watch, a line break ends each event.
            let body = Body::from(format!("{body}\n").into_bytes());
            Ok::<_, tower::BoxError>(http::Response::builder().status(code).body(body)?)
        }
    });
    ClientBuilder::new(service, "default").build()
}
