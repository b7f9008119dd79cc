//! `/healthz`, `/readyz` and `/metrics` over plain HTTP, for the operator and for the webhook.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;
use futures::future::abortable;
use futures::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

/// Largest head of a request, in bytes. hyper allows no smaller limit.
const REQUEST_MAX: usize = 8192;
/// Longest time for a connection, which has one request. The chart's probes wait no longer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections at the same time. One more closes the oldest: clients that send nothing must not block probes.
const CONNECTIONS: usize = 64;

/// The content of the health server's answers.
pub trait Answers {
    /// Whether the process works as it should. A replica of the operator that waits to lead is ready too.
    fn is_ready(&self) -> bool;
    /// All metrics in Prometheus' text format.
    fn metrics(&self) -> String;
}

/// Opens the port. The unspecified address (`0.0.0.0` or `[::]`) means IPv4 and IPv6, or IPv4 alone if the kernel has
/// no IPv6.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return TcpListener::bind(address).await;
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port())).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await,
        listener => listener,
    }
}

/// Accepts connections; never returns.
pub async fn serve(listener: TcpListener, answers: &impl Answers) -> Infallible {
    let mut running = FuturesUnordered::new();
    // Handles of the latest connections, which may have ended, the oldest first.
    let mut handles = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (task, handle) = abortable(tokio::time::timeout(TIMEOUT, handle_connection(stream, answers)));
                    running.push(task);
                    handles.push_back(handle);
                    if handles.len() > CONNECTIONS && let Some(handle) = handles.pop_front() {
                        handle.abort();
                    }
                }
                // A temporary error, such as too many open files.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_) = running.next(), if !running.is_empty() => {}
        }
    }
}

async fn handle_connection(stream: TcpStream, answers: &impl Answers) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(respond(request.method(), request.uri().path(), answers))
    });
    let mut http = http1::Builder::new();
    // `half_close`: a client that has closed its sending side still gets its answer.
    http.keep_alive(false).half_close(true).max_buf_size(REQUEST_MAX);
    // Ignore clients that disconnect or do not speak HTTP.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

fn respond(method: &Method, path: &str, answers: &impl Answers) -> Response<Full<Bytes>> {
    let mut content_type = "text/plain; charset=utf-8";
    let (status, body) = match path {
        _ if method != Method::GET => (StatusCode::METHOD_NOT_ALLOWED, "GET only\n".into()),
        "/healthz" => (StatusCode::OK, "ok\n".into()),
        "/readyz" if answers.is_ready() => (StatusCode::OK, "ok\n".into()),
        "/readyz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: waiting for the first lists or a certificate, or shutting down\n".into(),
        ),
        "/metrics" => {
            content_type = "text/plain; version=0.0.4; charset=utf-8";
            (StatusCode::OK, answers.metrics())
        }
        _ => (StatusCode::NOT_FOUND, "/healthz /readyz /metrics\n".into()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct Fake(bool);

    impl Answers for Fake {
        fn is_ready(&self) -> bool {
            self.0
        }
        fn metrics(&self) -> String {
            "a 1\n".into()
        }
    }

    #[tokio::test]
    async fn unspecified_address_listens_on_ipv4_and_ipv6() {
        for unspecified in ["0.0.0.0:0", "[::]:0"] {
            let listener = bind(unspecified.parse().unwrap()).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
            // A machine without IPv6 has nothing to try this with.
            if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok() {
                TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
            }
        }
    }

    #[test]
    fn each_path_has_its_answer() {
        let status = |method, path, ready| respond(&method, path, &Fake(ready)).status().as_u16();
        assert_eq!(status(Method::GET, "/healthz", false), 200);
        assert_eq!(status(Method::GET, "/readyz", false), 503);
        assert_eq!(status(Method::GET, "/readyz", true), 200);
        assert_eq!(status(Method::GET, "/", true), 404);
        assert_eq!(status(Method::POST, "/metrics", true), 405);
    }

    #[tokio::test]
    async fn health_server_answers_requests_and_drops_garbage() {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ask = async |request: Vec<u8>| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // The server may close the connection before it has read all.
            let _ = stream.write_all(&request).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8(answer).unwrap()
        };
        let fake = Fake(true);
        tokio::select! {
            never = serve(listener, &fake) => match never {},
            () = async {
                let metrics = ask(b"GET /metrics?a=b HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()).await;
                assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n") && metrics.ends_with("\r\n\r\na 1\n"), "{metrics}");
                assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{metrics}");
                assert!(ask(b"GET /healthz HTTP/1.0\r\n\r\n".to_vec()).await.ends_with("ok\n"));
                for nonsense in [vec![b'x'; 100_000], b"\x01\r\n\r\n".to_vec()] {
                    let answer = ask(nonsense).await;
                    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
                }
                // Many clients that send nothing.
                let mut silent = Vec::new();
                for _ in 0..3 * CONNECTIONS {
                    silent.push(TcpStream::connect(address).await.unwrap());
                }
                let answer = tokio::time::timeout(TIMEOUT / 5, ask(b"GET /healthz HTTP/1.1\r\n\r\n".to_vec()));
                assert!(answer.await.unwrap().ends_with("ok\n"));
                assert_eq!(ask(Vec::new()).await, "");
            } => {}
        }
    }
}
