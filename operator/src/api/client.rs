//! The client of the API server, whose calls are counted.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "makes the client, which waits not for ever")]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt, DynBody};
use kube::{Client, Config};
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceExt};

use crate::health::metrics::Metrics;

/// The API server gives up on a call after 60 s. Who hears nothing for longer has lost the connection.
const PATIENCE: Duration = Duration::from_secs(65);

/// Calls take turns on so many connections. With one, a busy API server serves us later than those who have many.
const CONNECTIONS: usize = 2;
/// A connection with calls is asked whether it lives so often, and given up if there is no answer in time.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(15);

/// What kube's own builder makes, but for what carries the calls: a few connections that are kept and shared, where the
/// API server speaks HTTP/2 as it does unless told otherwise. kube's opens one for each call that is under way, and in a
/// rush both sides are busy with handshakes. A failed call is not repeated here: each object has its own pauses.
pub fn builder(config: Config) -> kube::Result<ClientBuilder<Carrier>> {
    if let Some(proxy_url) = config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy_url) });
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let mut tls = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?).https_or_http();
    if let Some(name) = config.tls_server_name.clone() {
        let name = name.try_into().map_err(|error| kube::Error::Service(Box::new(error)))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let connection = |_| {
        hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PONG)
            .build(connector.clone())
    };
    let carrier = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_response(|answer: Response<Incoming>| {
            answer.map(|body| Box::new(BodyExt::map_err(body, BoxError::from)) as Box<DynBody>)
        })
        .service(Spread { connections: (0..CONNECTIONS).map(connection).collect(), next: 0 });
    Ok(ClientBuilder::new(carrier.boxed(), config.default_namespace))
}

/// A client whose calls are counted and end. Connections are made when they are needed.
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

/// Takes its connections in turn.
#[derive(Debug, Clone)]
struct Spread<S> {
    connections: Vec<S>,
    next: usize,
}

impl<S: Service<Request<A>>, A> Service<Request<A>> for Spread<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.next = (self.next + 1) % self.connections.len();
        self.connections[self.next].poll_ready(task)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        self.connections[self.next].call(request)
    }
}

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
    use super::*;
    use crate::health::metrics::Seen;
    use crate::health::queue::Look;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_is_given_up() {
        let silent = tower::service_fn(|_: Request<()>| std::future::pending::<Result<Response<()>, BoxError>>());
        let metrics = Arc::new(Metrics::new().unwrap());
        let counted = Counted { inner: silent, metrics: metrics.clone() };
        let request = Request::get("/api/v1/namespaces/a/pods/b").body(()).unwrap();
        assert!(counted.oneshot(request).await.is_err());
        let seen = Seen { is_ready: true, queue: Look::default(), phases: std::iter::empty() };
        let (text, begin) = (metrics.text(seen), "rest_client_request_duration_seconds");
        for line in [
            "flux_operator_api_calls_total{code=\"none\",resource=\"pods\",verb=\"get\"} 1\n",
            &format!("{begin}_bucket{{verb=\"get\",le=\"60\"}} 0\n{begin}_bucket{{verb=\"get\",le=\"+Inf\"}} 1\n"),
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
