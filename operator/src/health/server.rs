//! `/healthz`, `/readyz` and `/metrics` over plain HTTP: three fixed answers need no framework.
#![expect(clippy::disallowed_methods, reason = "a server waits, but not for ever")]

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;
use futures::future::abortable;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest request, and longest time for one.
const REQUEST_MAX: usize = 8192;
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at the same time. The oldest makes way for one more: who says nothing must not keep a probe from its answer.
const CONNECTIONS: usize = 64;

/// What the server tells.
pub trait Answers {
    /// Whether the operator does its work (or waits to lead).
    fn is_ready(&self) -> bool;
    /// Prometheus' text.
    fn metrics(&self) -> String;
}

/// Opens the port. An address that means all addresses means those of both families, where the kernel has both.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return TcpListener::bind(address).await;
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port())).await {
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await,
        listener => listener,
    }
}

/// Serves for ever.
pub async fn serve(listener: TcpListener, answers: &impl Answers) {
    let mut running = FuturesUnordered::new();
    let mut oldest = VecDeque::new();
    loop {
        tokio::select! {
            connection = listener.accept() => match connection {
                Ok((stream, _)) => {
                    let (one, handle) = abortable(tokio::time::timeout(PATIENCE, answer(stream, answers)));
                    running.push(one);
                    oldest.push_back(handle);
                    if oldest.len() > CONNECTIONS && let Some(handle) = oldest.pop_front() {
                        handle.abort();
                    }
                }
                // Out of file descriptors, say: others have to end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            // A client that went away is no concern of ours.
            Some(_) = running.next(), if !running.is_empty() => {}
        }
    }
}

async fn answer(mut stream: TcpStream, answers: &impl Answers) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).await?;
        if count == 0 || request.len() + count > REQUEST_MAX {
            return Ok(());
        }
        request.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    let (status, kind, body) = respond(&request, answers);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn respond(request: &[u8], answers: &impl Answers) -> (&'static str, &'static str, String) {
    const TEXT: &str = "text/plain; charset=utf-8";
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return ("405 Method Not Allowed", TEXT, "GET only\n".into());
    }
    match target.split('?').next().unwrap_or_default() {
        "/healthz" => ("200 OK", TEXT, "ok\n".into()),
        "/readyz" if answers.is_ready() => ("200 OK", TEXT, "ok\n".into()),
        "/readyz" => (
            "503 Service Unavailable",
            TEXT,
            "not yet: the first lists are not complete, or there is no certificate; or it is about to stop\n".into(),
        ),
        "/metrics" => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", answers.metrics()),
        _ => ("404 Not Found", TEXT, "/healthz /readyz /metrics\n".into()),
    }
}

#[cfg(test)]
mod tests {
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
    async fn all_addresses_are_those_of_both_families() {
        for any in ["0.0.0.0:0", "[::]:0"] {
            let listener = bind(any.parse().unwrap()).await.unwrap();
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
        let status = |request: &str, ready| respond(request.as_bytes(), &Fake(ready)).0;
        assert_eq!(status("GET /healthz HTTP/1.1\r\n\r\n", false), "200 OK");
        assert_eq!(status("GET /readyz HTTP/1.1\r\n\r\n", false), "503 Service Unavailable");
        assert_eq!(status("GET /readyz?verbose HTTP/1.1\r\n\r\n", true), "200 OK");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n", true), "404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n", true), "405 Method Not Allowed");
        assert_eq!(respond(b"GET /metrics HTTP/1.0\r\n\r\n", &Fake(true)).2, "a 1\n");
        assert_eq!(status("\u{1}\r\n\r\n", true), "405 Method Not Allowed");
    }

    #[tokio::test]
    async fn it_answers_over_a_connection_and_drops_nonsense() {
        let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let ask = async |request: Vec<u8>| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // It may hang up before it has read all.
            let _ = stream.write_all(&request).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            String::from_utf8(answer).unwrap()
        };
        let fake = Fake(true);
        tokio::select! {
            () = serve(listener, &fake) => unreachable!(),
            () = async {
                assert!(ask(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()).await.ends_with("\r\n\r\na 1\n"));
                assert_eq!(ask(vec![b'x'; 100_000]).await, "");
                // Many who say nothing.
                let mut silent = Vec::new();
                for _ in 0..3 * CONNECTIONS {
                    silent.push(TcpStream::connect(address).await.unwrap());
                }
                let answer = tokio::time::timeout(PATIENCE / 5, ask(b"GET /healthz HTTP/1.1\r\n\r\n".to_vec()));
                assert!(answer.await.unwrap().ends_with("ok\n"));
                assert_eq!(ask(Vec::new()).await, "");
            } => {}
        }
    }
}
