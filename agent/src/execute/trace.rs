//! Sends the timeline as spans of a trace: one request over plain HTTP, at the very end. A failure is logged
//! in one line and changes nothing.
//!
//! HTTP by hand: one POST, of whose response only the status line counts. A client crate would be in every
//! pod's binary for it.

use std::io;
use std::path::Path;
use std::time::Duration;

use flux_shared::agent_spec::Trace;
use flux_shared::trace::{Endpoint, Span, request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::report::failure::plain;
use crate::wait::resolve::Resolver;

/// Time limit of sending, for a pod that is done.
const BOUND: Duration = Duration::from_secs(1);
/// The same at a stop: a pod that stays longer than its grace period is killed, and its exit code lost.
const BOUND_AT_STOP: Duration = Duration::from_millis(200);

/// Sends `spans` to where `trace` says. Names are looked up by the files below `root`.
pub async fn send(trace: &Trace, spans: &[Span], root: &Path, is_stopped: bool) {
    let body = request(trace.parent.trace, "flux-agent", env!("CARGO_PKG_VERSION"), spans).to_string();
    let bound = if is_stopped { BOUND_AT_STOP } else { BOUND };
    let why = match tokio::time::timeout(bound, post(&trace.endpoint, &body, root)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => plain(&error),
        Err(_) => format!("no answer within {} s", bound.as_secs_f32()),
    };
    tracing::warn!(
        stage = "trace",
        "failed to send the timeline to {}: {why}",
        trace.endpoint
    );
}

async fn post(endpoint: &Endpoint, body: &str, root: &Path) -> io::Result<()> {
    let addresses = Resolver::new(root)
        .lookup(&endpoint.host)
        .await
        .map_err(io::Error::other)?;
    let mut last = io::Error::other("the host name has no address");
    for address in addresses {
        match TcpStream::connect((address, endpoint.port)).await {
            Ok(connection) => return talk(connection, endpoint, body).await,
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn talk(mut connection: TcpStream, endpoint: &Endpoint, body: &str) -> io::Result<()> {
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        endpoint.path(),
        endpoint.authority(),
        body.len(),
    );
    connection.write_all((head + body).as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.contains(&b'\n') {
        if connection.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if answer.len() > 1 << 10 {
            break;
        }
    }
    match status(&answer) {
        Some(200..=299) => Ok(()),
        Some(status) => Err(io::Error::other(format!("HTTP status {status}"))),
        None => Err(io::Error::other("the response is not HTTP")),
    }
}

/// The status of a response that begins like `HTTP/1.1 200 OK`.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\n').next()?;
    std::str::from_utf8(line)
        .ok()?
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use flux_shared::trace::TraceParent;
    use test_support::collector::Collector;

    use super::*;

    /// What `send` sends to one that answers so; and the time that it took.
    fn sent(answer: Option<&'static str>, is_stopped: bool) -> (String, Duration) {
        let collector = Collector::start(answer);
        let endpoint = format!("http://{}/base", collector.address()).parse().unwrap();
        let trace = Trace {
            endpoint,
            parent: TraceParent { trace: 1, span: 2 },
        };
        let begin = std::time::Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(send(&trace, &[], Path::new("/"), is_stopped));
        let took = begin.elapsed();
        (collector.request(), took)
    }

    #[test]
    fn a_timeline_is_one_request_and_nobody_waits_long_for_the_answer() {
        let (request, took) = sent(Some("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), false);
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("POST /base/v1/traces HTTP/1.1\r\nHost: 127.0.0.1:"),
            "{head}"
        );
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())),
            "{head}"
        );
        assert!(body.contains("\"flux-agent\"") && took < BOUND, "{body} {took:?}");
        let (_, took) = sent(None, false);
        assert!((BOUND..BOUND * 5).contains(&took), "{took:?}");
        let (_, took) = sent(None, true);
        assert!((BOUND_AT_STOP..BOUND).contains(&took), "{took:?}");
    }

    #[test]
    fn the_status_is_read_off_the_first_line() {
        assert_eq!(
            status(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"),
            Some(200)
        );
        assert_eq!(status(b"HTTP/1.0 503\r\n"), Some(503));
        assert_eq!(status(b"220 smtp.example\r\n"), None);
    }
}
