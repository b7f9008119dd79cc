//! The HTTPS server: few connections, bounded bodies, an answer to everything. (Limits per caller: `limits`.)

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

/// Longest time for a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Longest time until the next request's head. The API server closes idle connections after 90 s; if we
/// closed first, its next request might already be under way.
const IDLE: Duration = Duration::from_secs(100);
/// Longest time for a body, and for a request with its answer: the API server waits 30 s at most.
const BODY: Duration = Duration::from_secs(10);
const REQUEST: Duration = Duration::from_secs(30);
/// How often the time of the current request is checked.
const TICK: Duration = Duration::from_secs(1);
/// Largest head of a request, and the size of the read buffer.
const HEAD_MAX: usize = 32 << 10;
/// Size from which on a conversion runs on a thread of its own, one at a time.
const LARGE: usize = 64 << 10;

/// TLS with the current certificate.
pub(super) fn acceptor(current: Arc<Current>) -> Result<TlsAcceptor, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(current);
    Ok(TlsAcceptor::from(Arc::new(config)))
}

struct Shared {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
    metrics: Arc<WebhookMetrics>,
    /// Permit for a conversion on a thread of its own: one at a time.
    thread: Semaphore,
    /// True when this process is about to end: answers tell callers to open new connections, which reach
    /// other replicas.
    drains: watch::Receiver<bool>,
}

/// An answer and the resources that it holds until it has been sent.
struct HeldAnswer {
    bytes: Vec<u8>,
    memory: BodyMemory,
    slot: Arc<ConnectionSlot>,
    _counted: Option<InFlight>,
}

/// A request that is counted as in flight, until it is dropped.
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
    drains: watch::Receiver<bool>,
) {
    let shared = Arc::new(Shared {
        acceptor,
        current,
        metrics,
        thread: Semaphore::new(1),
        drains,
    });
    let limits = Arc::new(Limits::default());
    // Dropped with the server, which ends all connections.
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok((stream, address)) => (stream, address.ip().to_canonical()),
            Err(error) => {
                // Such as too many open files, which is temporary.
                log::warn("failed to accept a connection", &error);
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Some(turn) = limits.queue_up(peer) else {
            shared.metrics.rejected(RejectReason::QueueFull);
            continue;
        };
        let (limits, shared) = (limits.clone(), shared.clone());
        connections.spawn(async move {
            let Some(slot) = limits.enter(peer).await.map(Arc::new) else {
                return shared.metrics.rejected(RejectReason::NoSlot);
            };
            drop(turn);
            let metrics = shared.metrics.clone();
            tokio::select! {
                () = connection(stream, slot.clone(), shared) => {}
                () = slot.until_evicted() => {}
                () = takes_too_long(&slot) => metrics.rejected(RejectReason::Slow),
            }
        });
    }
}

/// Returns when a request has been in progress for longer than the API server waits: its body does not come,
/// or nobody reads the answer.
async fn takes_too_long(slot: &ConnectionSlot) {
    while slot.busy_for() < REQUEST {
        tokio::time::sleep(TICK).await;
    }
}

async fn connection(stream: TcpStream, slot: Arc<ConnectionSlot>, shared: Arc<Shared>) {
    // A handshake fails if the client speaks no TLS or does not trust us yet; the API server tells its user.
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, shared.acceptor.accept(stream)).await else {
        return;
    };
    let service = service_fn(move |request| {
        let (shared, slot) = (shared.clone(), slot.clone());
        async move { Ok::<_, Infallible>(respond(request, &shared, slot).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(IDLE)
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
    let (begin, converts) = (Instant::now(), request.uri().path() == PATH);
    let counted = converts.then(|| InFlight::new(&shared.metrics));
    let mut held = HeldAnswer {
        bytes: Vec::new(),
        memory: BodyMemory::default(),
        slot,
        _counted: counted,
    };
    let (status, kind) = match answer(request, shared, &mut held).await {
        Ok(status) => (status, "application/json"),
        Err((status, text)) => {
            held.bytes = text.into_bytes();
            (status, "text/plain")
        }
    };
    if converts {
        shared.metrics.answered(status, begin.elapsed());
    }
    let mut response = Response::new(Full::new(Bytes::from_owner(held)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if *shared.drains.borrow() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// HTTP status and message.
type Refusal = (u16, String);

fn refuse<T>(status: u16, text: &str) -> Result<T, Refusal> {
    Err((status, text.to_owned()))
}

/// Answers a request: the body is put into `held`, the status is returned.
async fn answer(request: Request<Incoming>, shared: &Shared, held: &mut HeldAnswer) -> Result<u16, Refusal> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, PATH) => {}
        (&Method::GET, "/readyz") if !shared.current.is_set() => {
            return refuse(503, "there is no certificate yet\n");
        }
        (&Method::GET, "/readyz" | "/healthz") => return refuse(200, "ok\n"),
        (_, PATH) => return refuse(405, "POST a ConversionReview\n"),
        _ => return refuse(404, "the webhook is at /convert\n"),
    }
    let body = match tokio::time::timeout(BODY, read(request.into_body(), held)).await {
        Ok(read) => read?,
        Err(_) => {
            return refuse(
                408,
                "timed out reading the body, or too many requests are in progress\n",
            );
        }
    };
    let answer = if body.len() < LARGE {
        review::answer(&body)
    } else {
        // The semaphore is never closed: this cannot fail.
        let _turn = shared.thread.acquire().await;
        match tokio::task::spawn_blocking(move || review::answer(&body)).await {
            Ok(answer) => answer,
            Err(_) => return refuse(500, "the conversion failed\n"),
        }
    };
    shared.metrics.converted(answer.is_success);
    held.bytes = answer.body;
    match answer.status {
        200 => Ok(200),
        status => Err((status, String::from_utf8_lossy(&held.bytes).into_owned())),
    }
}

/// The whole body. Memory is taken for what has arrived, so that who sends slowly takes none from others.
async fn read(mut body: Incoming, held: &mut HeldAnswer) -> Result<Vec<u8>, Refusal> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > BODY_MAX {
        return refuse(413, "the review is too large: list fewer objects at once\n");
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return refuse(400, "the body is incomplete\n");
        };
        let Some(data) = frame.data_ref() else { continue };
        let size = bytes.len() + data.len();
        if size > BODY_MAX {
            return refuse(413, "the review is too large: list fewer objects at once\n");
        }
        held.reserve(size).await;
        if size > bytes.capacity() {
            // At most twice what has arrived, and at most what was declared.
            let wanted = (2 * size).min(declared.max(size));
            bytes.reserve_exact(wanted - bytes.len());
        }
        bytes.extend_from_slice(data);
    }
    Ok(bytes)
}
