//! A fake API server.

use std::sync::{Arc, Mutex};

use flux_operator_core::render::Options;
use http::header::DATE;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::fmt::rfc2822::DateTimePrinter;
use kube::Client;
use kube::client::{Body, ClientBuilder};
use serde_json::Value;
use tower::{BoxError, Service, ServiceExt};

use crate::api::client;
use crate::health::metrics::Metrics;
use crate::reconcile::apply::Writer;
use crate::reconcile::context::Context;
use crate::reconcile::lookups::reader::Reader;

/// A client of an API server that answers each request with the status code and body that `answer` returns. `answer`
/// gets the request's body, or null if it has none. If it returns `None`, the request is never answered.
pub fn client(answer: impl FnMut(&Parts, Value) -> Option<(u16, Value)> + Send + 'static) -> Client {
    ClientBuilder::new(server(answer), "default").build()
}

/// The context of reconciles whose API server `client` reaches.
pub fn context(client: Client, options: Options) -> Context {
    let metrics = Arc::new(Metrics::new().unwrap());
    Context::new(Writer::new(client.clone()), Reader::new(client), options, metrics)
}

/// Like [`client`], but built as the operator's, with `metrics`. The API server's clock shows `time`.
pub fn client_at(
    time: Timestamp,
    metrics: Arc<Metrics>,
    answer: impl FnMut(&Parts, Value) -> Option<(u16, Value)> + Send + 'static,
) -> Client {
    let server = server(answer).map_response(move |mut answer| {
        answer.headers_mut().extend(date(time));
        answer
    });
    client::build(ClientBuilder::new(server, "default"), metrics)
}

/// The header `Date` of an answer.
pub fn date(time: Timestamp) -> HeaderMap {
    let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&time).unwrap();
    HeaderMap::from_iter([(DATE, text.parse().unwrap())])
}

fn server(
    answer: impl FnMut(&Parts, Value) -> Option<(u16, Value)> + Send + 'static,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = BoxError, Future: Send> + Send + 'static {
    let answer = Arc::new(Mutex::new(answer));
    tower::service_fn(move |request: Request<Body>| {
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
            Ok(Response::builder().status(code).body(body)?)
        }
    })
}
