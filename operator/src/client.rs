//! The client of the API server, whose calls are counted.
#![expect(clippy::disallowed_types, reason = "makes the client")]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use kube::client::ClientBuilder;
use kube::{Client, Config};
use tower::Service;

use crate::metrics::Metrics;

/// A client for `config`. Connections are made when they are needed.
pub fn client(config: Config, metrics: Arc<Metrics>) -> Result<Client, kube::Error> {
    let layer = tower::layer::layer_fn(move |inner| Counted { inner, metrics: metrics.clone() });
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

#[derive(Debug, Clone)]
struct Counted<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let metrics = self.metrics.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
            let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.called(method.as_str(), uri.path(), is_watch, status);
            answer
        })
    }
}
