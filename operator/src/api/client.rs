//! The client of the API server, whose calls are counted.
#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "makes the client, which does not wait for ever"
)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use kube::client::{Body, ClientBuilder, DynBody};
use kube::{Client, Config};
use tower::util::BoxService;
use tower::{BoxError, Service};

use crate::health::metrics::Metrics;

/// Longest wait for an answer: the API server ends a call after 60 s, so a longer silence means a lost connection.
const PATIENCE: Duration = Duration::from_secs(65);
/// Longest silence on an open connection before it is dropped: a watch has a bookmark every minute.
const SILENCE: Duration = Duration::from_secs(90);

/// kube's own client with shorter timeouts. It does not retry: each object has its own pauses.
pub fn builder(mut config: Config) -> kube::Result<ClientBuilder<Carrier>> {
    config.read_timeout = Some(SILENCE);
    config.reset_reader_on_write = true; // a connection may lie idle between two calls
    config.default_retry = false;
    ClientBuilder::try_from(config)
}

/// A client that counts its calls and limits their time. Connections are opened when they are needed.
pub fn client<S, B>(builder: ClientBuilder<S>, metrics: Arc<Metrics>) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = hyper::body::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let layer = tower::layer::layer_fn(move |inner| Counted { inner, metrics: metrics.clone() });
    builder.with_layer(&layer).build()
}

/// Carries a call to the API server.
pub type Carrier = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

#[derive(Debug, Clone)]
struct Counted<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError>,
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
            let begin = tokio::time::Instant::now();
            let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|late| Err(late.into()));
            let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
            let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.called(method.as_str(), uri.path(), is_watch, status, begin.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use crate::health::metrics::LiveState;
    use crate::health::queue::QueueSnapshot;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_given_up() {
        let silent = tower::service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, BoxError>>());
        let metrics = Arc::new(Metrics::new().unwrap());
        let counted = Counted { inner: silent, metrics: metrics.clone() };
        let request = Request::get("/api/v1/namespaces/a/pods/b").body(()).unwrap();
        assert!(counted.oneshot(request).await.is_err());
        let seen = LiveState { is_ready: true, queue: QueueSnapshot::default(), phases: std::iter::empty() };
        let (text, begin) = (metrics.text(seen), "rest_client_request_duration_seconds");
        for line in [
            "flux_operator_api_calls_total{code=\"none\",resource=\"pods\",verb=\"get\"} 1\n",
            &format!("{begin}_bucket{{verb=\"get\",le=\"60\"}} 0\n{begin}_bucket{{verb=\"get\",le=\"+Inf\"}} 1\n"),
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
