//! The HTTPS server of the webhook. It limits times and sizes; `limits` limits connections and memory.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, ServerConfig};

use super::certificate::Current;
use super::limits::{BODY_MAX, BodyMemory, ConnectionSlot, Limits};
use super::{PATH, review};
use crate::health::log;
use crate::health::webhook_metrics::{RejectReason, WebhookMetrics};

/// Longest time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time until the head of the next request. The API server closes idle connections after 90 s. If the webhook
/// closed them first, the API server could already have sent its next request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(100);
/// Longest time for reading a body, with the wait for memory.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a request with its answer: the API server waits at most 30 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks how long the current request takes.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Largest head of a request and largest read buffer, in bytes.
const HEAD_MAX: usize = 32 << 10;
/// A body of at least this many bytes is converted on another thread, so that other connections need not wait. Only one
/// is converted at a time: a parsed object takes much more memory than its text.
const OFFLOADED_BODY_MIN: usize = 64 << 10;

/// TLS with the current certificate.
pub(super) fn acceptor(current: Arc<Current>) -> Result<TlsAcceptor, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(current);
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// State that all connections share.
struct Shared {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
    metrics: Arc<WebhookMetrics>,
    /// Permit for a conversion on another thread: one at a time.
    conversion_thread: Arc<Semaphore>,
    /// Whether this process is about to end. Answers then tell callers to open new connections, which reach other
    /// replicas.
    is_draining: watch::Receiver<bool>,
}

/// The body of an answer, and the resources that it holds until it has been sent.
struct HeldAnswer {
    bytes: Vec<u8>,
    memory: BodyMemory,
    slot: Arc<ConnectionSlot>,
    /// Counts the request as in flight, if it is one to convert.
    _counted: Option<InFlight>,
}

/// A request that is counted as in flight, until this is dropped.
struct InFlight(Arc<WebhookMetrics>);

impl InFlight {
    fn new(metrics: &Arc<WebhookMetrics>) -> InFlight {
        metrics.request_started();
        InFlight(metrics.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.request_ended();
    }
}

impl HeldAnswer {
    /// Reserves memory for a request body of `size` bytes; waits until there is enough.
    async fn reserve(&mut self, size: usize) {
        self.slot.reserve(&mut self.memory, size).await;
    }
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        self.slot.set_busy(false);
    }
}

/// Accepts connections; never returns.
pub(super) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    current: Arc<Current>,
    metrics: Arc<WebhookMetrics>,
    is_draining: watch::Receiver<bool>,
) -> Infallible {
    let shared = Arc::new(Shared {
        acceptor,
        current,
        metrics,
        conversion_thread: Arc::new(Semaphore::new(1)),
        is_draining,
    });
    let limits = Arc::new(Limits::default());
    // When this future is dropped, so is the set, which ends all connections.
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            // An IPv4 peer has one address, also if the socket shows it as an IPv6 address.
            Ok((stream, address)) => (stream, address.ip().to_canonical()),
            Err(error) => {
                // Such as too many open files. The pause keeps the loop from spinning; its length is arbitrary.
                log::warn("failed to accept a connection", &error);
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Removes the connections that have ended.
        while connections.try_join_next().is_some() {}
        let Some(waiter) = limits.queue_up(peer) else {
            shared.metrics.rejected(RejectReason::QueueFull);
            continue;
        };
        let (limits, shared) = (limits.clone(), shared.clone());
        connections.spawn(async move {
            let Some(slot) = limits.enter(peer).await.map(Arc::new) else {
                return shared.metrics.rejected(RejectReason::NoSlot);
            };
            drop(waiter);
            let metrics = shared.metrics.clone();
            tokio::select! {
                () = handle_connection(stream, slot.clone(), shared) => {}
                () = slot.until_evicted() => {}
                () = takes_too_long(&slot) => metrics.rejected(RejectReason::Slow),
            }
        });
    }
}

/// Returns when a request has been in progress for longer than the API server waits: it waits for the conversion of
/// others, or the client does not read the answer. (A body that does not arrive ends sooner, with 408.)
async fn takes_too_long(slot: &ConnectionSlot) {
    while slot.busy_for() < REQUEST_TIMEOUT {
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn handle_connection(stream: TcpStream, slot: Arc<ConnectionSlot>, shared: Arc<Shared>) {
    // A handshake fails if the client speaks no TLS or does not trust the certificate yet. It is not logged here: the
    // API server reports it to its own client.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, shared.acceptor.accept(stream)).await else {
        return;
    };
    let service = service_fn(move |request| {
        let (shared, slot) = (shared.clone(), slot.clone());
        async move { Ok::<_, Infallible>(respond(request, &shared, slot).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(HEAD_MAX);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(
            error = &error as &dyn std::error::Error,
            "a connection to the webhook failed"
        );
    }
}

async fn respond(
    request: Request<Incoming>,
    shared: &Shared,
    slot: Arc<ConnectionSlot>,
) -> Response<Full<Bytes>> {
    slot.set_busy(true);
    let (begin, is_conversion) = (Instant::now(), request.uri().path() == PATH);
    let counted = is_conversion.then(|| InFlight::new(&shared.metrics));
    let mut held = HeldAnswer {
        bytes: Vec::new(),
        memory: BodyMemory::default(),
        slot,
        _counted: counted,
    };
    let (status, content_type) = match answer(request, shared, &mut held).await {
        Ok(status) => (status, "application/json"),
        Err((status, text)) => {
            held.bytes = text.into_bytes();
            (status, "text/plain")
        }
    };
    if is_conversion {
        shared.metrics.answered(status, begin.elapsed());
    }
    let mut response = Response::new(Full::new(Bytes::from_owner(held)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if *shared.is_draining.borrow() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// HTTP status and text of an answer that is not a ConversionReview.
type TextAnswer = (u16, String);

fn text_answer<T>(status: u16, text: &str) -> Result<T, TextAnswer> {
    Err((status, text.to_owned()))
}

/// Answers a request. Ok: the HTTP status of a ConversionReview, which is put into `held`. Err: any other answer, also
/// that of a probe.
async fn answer(
    request: Request<Incoming>,
    shared: &Shared,
    held: &mut HeldAnswer,
) -> Result<u16, TextAnswer> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, PATH) => {}
        (&Method::GET, "/readyz") if !shared.current.is_set() => {
            return text_answer(503, "there is no certificate yet\n");
        }
        (&Method::GET, "/readyz" | "/healthz") => return text_answer(200, "ok\n"),
        (_, PATH) => return text_answer(405, "POST a ConversionReview\n"),
        _ => return text_answer(404, "the webhook is at /convert\n"),
    }
    let body = match tokio::time::timeout(BODY_TIMEOUT, read_body(request.into_body(), held)).await {
        Ok(body) => body?,
        Err(_) => {
            return text_answer(
                408,
                "timed out reading the body, or too many requests are in progress\n",
            );
        }
    };
    let answer = if body.len() < OFFLOADED_BODY_MIN {
        review::answer(&body)
    } else {
        // The semaphore is never closed: this cannot fail.
        let permit = shared.conversion_thread.clone().acquire_owned().await;
        // The conversion goes on if its client is gone. So the permit and the memory stay taken until it ends.
        let memory = std::mem::take(&mut held.memory);
        let conversion = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            (review::answer(&body), memory)
        });
        let Ok((answer, memory)) = conversion.await else {
            return text_answer(500, "the conversion failed\n");
        };
        held.memory = memory;
        answer
    };
    shared.metrics.converted(answer.is_success);
    held.bytes = answer.body;
    match answer.status {
        200 => Ok(200),
        status => Err((status, String::from_utf8_lossy(&held.bytes).into_owned())),
    }
}

/// Reads the whole body. Memory is reserved only for what has arrived, so that slow senders take no more from others.
async fn read_body(mut body: Incoming, held: &mut HeldAnswer) -> Result<Vec<u8>, TextAnswer> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > BODY_MAX {
        return text_answer(413, "the review is too large: list fewer objects at once\n");
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return text_answer(400, "the body is incomplete\n");
        };
        let Some(data) = frame.data_ref() else { continue };
        let size = bytes.len() + data.len();
        if size > BODY_MAX {
            return text_answer(413, "the review is too large: list fewer objects at once\n");
        }
        held.reserve(size).await;
        if size > bytes.capacity() {
            // At most twice what has arrived, and at most what was declared. A chunked body declares 0 bytes. It gets
            // exactly what has arrived.
            let wanted = (2 * size).min(declared.max(size));
            bytes.reserve_exact(wanted - bytes.len());
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}
