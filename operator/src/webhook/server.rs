//! The HTTPS server: few connections, bounded bodies, an answer to everything.
#![expect(clippy::disallowed_methods, reason = "it listens, and has time limits")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{self, ServerConfig};

use super::certificate::Current;
use super::{PATH, review};
use crate::telemetry;

/// The largest body: many thousand MiniClusters.
const BODY_MAX: usize = 64 << 20;
/// All bodies that are held at the same time together; their answers take as much again.
const BODIES_MAX: usize = BODY_MAX;
/// What one permit is for.
const ROOM: usize = 64 << 10;
/// Connections at the same time; the API server keeps few.
const CONNECTIONS_MAX: usize = 256;
/// Longest time for a handshake, a request's head, a body.
const PATIENCE: Duration = Duration::from_secs(30);
/// From here on a conversion takes long enough to be worth a thread.
const LARGE: usize = 64 << 10;

/// TLS with the certificate of the moment.
pub(super) fn acceptor(current: Arc<Current>) -> Result<TlsAcceptor, rustls::Error> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(current);
    Ok(TlsAcceptor::from(Arc::new(config)))
}

type Refusal = Response<Full<Bytes>>;

struct Shared {
    current: Arc<Current>,
    /// For bodies, in units of `ROOM`.
    room: Semaphore,
}

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, acceptor: TlsAcceptor, current: Arc<Current>) {
    let shared = Arc::new(Shared { current, room: Semaphore::new(BODIES_MAX / ROOM) });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // They end with this server.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Such as too many open files: it passes.
                telemetry::warn("failed to accept a connection", &error);
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, shared) = (acceptor.clone(), shared.clone());
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            connection(stream, acceptor, shared).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    // A handshake fails where nobody speaks TLS, or trusts us yet: the API server tells its user.
    let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await else { return };
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(respond(request, &shared).await) }
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(error = &error as &dyn std::error::Error, "a connection to the webhook failed");
    }
}

async fn respond(request: Request<Incoming>, shared: &Shared) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::POST, PATH) => {}
        (&Method::GET, "/readyz") if !shared.current.is_set() => return text(503, "there is no certificate yet\n"),
        (&Method::GET, "/readyz" | "/healthz") => return text(200, "ok\n"),
        (_, PATH) => return text(405, "POST a ConversionReview\n"),
        _ => return text(404, "the webhook is at /convert\n"),
    }
    if request.body().size_hint().lower() > BODY_MAX as u64 {
        return text(413, "the review is too large: list fewer objects at once\n");
    }
    let (body, _room) = match tokio::time::timeout(PATIENCE, read(request.into_body(), &shared.room)).await {
        Ok(Ok(read)) => read,
        Ok(Err(refusal)) => return refusal,
        Err(_) => return text(408, "the body did not arrive in time\n"),
    };
    let answer = match body.len() < LARGE {
        true => review::answer(&body),
        false => match tokio::task::spawn_blocking(move || review::answer(&body)).await {
            Ok(answer) => answer,
            Err(_) => return text(500, "the conversion failed\n"),
        },
    };
    let kind = if answer.status == 200 { "application/json" } else { "text/plain" };
    response(answer.status, kind, answer.body.into())
}

/// The whole body. Room is taken for what has arrived, so that who sends slowly takes none from others.
async fn read(mut body: Incoming, room: &Semaphore) -> Result<(Vec<u8>, Vec<SemaphorePermit<'_>>), Refusal> {
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(text(400, "the body broke off\n")) };
        let Some(data) = frame.data_ref() else { continue };
        bytes.extend_from_slice(data);
        while held.len() * ROOM < bytes.len() {
            let Ok(permit) = room.try_acquire() else {
                return Err(text(503, "too much is being converted: try again\n"));
            };
            held.push(permit);
        }
    }
    Ok((bytes, held))
}

fn text(status: u16, text: &'static str) -> Response<Full<Bytes>> {
    response(status, "text/plain", Bytes::from_static(text.as_bytes()))
}

fn response(status: u16, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
