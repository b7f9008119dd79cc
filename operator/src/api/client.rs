//! The client for the API server. It counts calls, limits their time, and notes the API server's time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use flux_operator_client::credentials::CredentialPlugin;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Bytes;
use kube::client::{Body, ClientBuilder, DynBody};
use kube::{Client, Config};
use serde_json::json;
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceExt};

use crate::health::metrics::Metrics;

/// Longest wait until an answer begins. The API server ends a call after 60 s, so without an answer by then the
/// connection is lost. The body of an answer, such as the events of a watch, may take longer.
const TIMEOUT: Duration = Duration::from_secs(65);
/// Longest wait for a connection. TCP repeats its attempts at growing intervals, so a new connection reaches a
/// server that is back sooner than an old attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection on which nothing is read for this long is dropped. A watch gets a bookmark every minute, so it
/// stays open.
const READ_TIMEOUT: Duration = Duration::from_secs(90);

/// kube's own client with shorter timeouts, whose errors have no secrets of a credential plugin. It does not retry: the
/// callers do, with their own pauses.
pub fn builder(mut config: Config) -> kube::Result<ClientBuilder<Carrier>> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // The time that a connection is unused between two calls does not count.
    config.reset_reader_on_write = true;
    config.default_retry = false;
    let plugin = CredentialPlugin::of(&config.auth_info);
    let builder = ClientBuilder::try_from(config).map_err(|error| match plugin.failure(&error) {
        Some(why) => kube::Error::Service(why.into()),
        None => error,
    })?;
    let without_secrets = tower::layer::layer_fn(move |carrier: Carrier| {
        let plugin = plugin.clone();
        let named = move |error: BoxError| plugin.failure(&*error).map_or(error, BoxError::from);
        carrier.map_err(named).boxed()
    });
    Ok(builder.with_layer(&without_secrets))
}

/// A client that counts its calls in `metrics` and limits their time. It also notes the API server's time in `metrics`. It
/// opens connections when it needs them.
pub fn build<S, B>(builder: ClientBuilder<S>, metrics: Arc<Metrics>) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let layer = tower::layer::layer_fn(move |inner| CountingService {
        inner,
        metrics: metrics.clone(),
    });
    builder.with_layer(&layer).build()
}

/// The service of kube's client that sends the requests.
pub type Carrier = BoxService<Request<Body>, Response<Box<DynBody>>, BoxError>;

#[derive(Debug, Clone)]
struct CountingService<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, A, B> Service<Request<A>> for CountingService<S>
where
    S: Service<Request<A>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<Either<B, Full<Bytes>>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let metrics = self.metrics.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let begin = tokio::time::Instant::now();
            let answer = tokio::time::timeout(TIMEOUT, answer)
                .await
                .unwrap_or_else(|timeout| Err(timeout.into()));
            let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
            let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.called(method.as_str(), uri.path(), is_watch, status, begin.elapsed());
            // A load balancer that answers in the API server's place has a clock of its own.
            if let Ok(answer) = &answer
                && answer.status().is_success()
            {
                metrics.server_clock.note(answer.headers());
            }
            answer.map(with_retry_after)
        })
    }
}

/// Replaces a plain-text answer 429 or 503 by a Status with the seconds of its header `Retry-After`. kube reads this
/// header only for its own retries, which are off. API Priority and Fairness sends such answers. Other answers stay as
/// they are: one in JSON is a Status already.
fn with_retry_after<B>(answer: Response<B>) -> Response<Either<B, Full<Bytes>>> {
    let header = |name| {
        answer
            .headers()
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let code = answer.status().as_u16();
    let is_json = header(CONTENT_TYPE).is_some_and(|value| value.starts_with("application/json"));
    let seconds = header(RETRY_AFTER).and_then(|value| value.parse::<u32>().ok());
    let seconds = match seconds {
        Some(seconds) if matches!(code, 429 | 503) && !is_json => seconds,
        _ => return answer.map(Either::Left),
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": "TooManyRequests",
        "message": "the API server is busy: it takes no more requests for now", "details": { "retryAfterSeconds": seconds },
    });
    let (mut parts, _) = answer.into_parts();
    for name in [CONTENT_LENGTH, CONTENT_ENCODING] {
        parts.headers.remove(name);
    }
    parts
        .headers
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Either::Right(Full::new(Bytes::from(status.to_string()))))
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt;

    use super::*;
    use crate::health::metrics::LiveState;
    use crate::health::queue::QueueSnapshot;

    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_given_up() {
        let silent = tower::service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response<Full<Bytes>>, BoxError>>()
        });
        let metrics = Arc::new(Metrics::new().unwrap());
        let counted = CountingService {
            inner: silent,
            metrics: metrics.clone(),
        };
        let request = Request::get("/api/v1/namespaces/a/pods/b").body(()).unwrap();
        assert!(counted.oneshot(request).await.is_err());
        let state = LiveState {
            is_ready: true,
            queue: QueueSnapshot::default(),
            phases: std::iter::empty(),
        };
        let (text, family) = (metrics.text(state), "rest_client_request_duration_seconds");
        for line in [
            "flux_operator_api_calls_total{code=\"none\",resource=\"pods\",verb=\"get\"} 1\n",
            &format!(
                "{family}_bucket{{verb=\"get\",le=\"60\"}} 0\n{family}_bucket{{verb=\"get\",le=\"+Inf\"}} 1\n"
            ),
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }

    /// The plugin gets another token for each call, since this one has expired.
    #[tokio::test]
    async fn failure_of_a_credential_plugin_has_no_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"[ ! -e "$0" ] || exit 3; echo '{"status": {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}}'"#;
        let file = folder.path().join("fails");
        let build = || {
            let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
            config.auth_info.exec = Some(kube::config::ExecConfig {
                command: Some("sh".into()),
                args: Some(
                    ["-c", script, file.to_str().unwrap(), "secret"]
                        .map(str::to_owned)
                        .into(),
                ),
                interactive_mode: Some(kube::config::ExecInteractiveMode::Never),
                ..kube::config::ExecConfig::default()
            });
            builder(config)
        };
        let client = build().unwrap().build();
        std::fs::write(&file, "").unwrap();
        let errors = [
            client.apiserver_version().await.unwrap_err(),
            build().err().unwrap(),
        ];
        for error in errors {
            let text = flux_shared::causes::causes(&error);
            assert!(
                text.contains("the credential plugin sh failed (exit status: 3)"),
                "{text}"
            );
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[tokio::test]
    async fn retry_after_header_of_a_busy_server_is_read() {
        let busy = tower::service_fn(|_: Request<Body>| async {
            let answer = Response::builder()
                .status(429)
                .header("retry-after", "7")
                .header("content-type", "text/plain");
            Ok::<_, BoxError>(answer.body(Full::new(Bytes::from("Too many requests"))).unwrap())
        });
        let client = build(
            ClientBuilder::new(busy, "default"),
            Arc::new(Metrics::new().unwrap()),
        );
        let error = client.apiserver_version().await.unwrap_err();
        assert_eq!(
            crate::api::retry::retry_after(&error),
            Duration::from_secs(7),
            "{error:?}"
        );
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 429),
            "{error:?}"
        );
    }
}
