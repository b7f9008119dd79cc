//! Sends spans (OpenTelemetry) of MiniClusters that have ended. Nobody waits for it: spans that cannot be
//! sent are dropped, with a line in the log.

use std::error::Error;
use std::time::{Duration, Instant};

use flux_operator_core::spans::Traced;
use flux_shared::trace::{Endpoint, request};
use http::{Request, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How many MiniClusters' spans may wait to be sent: thousands may end together.
const WAITING: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(5);
/// Shortest time between two log lines about spans that could not be sent.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Sends spans in the background.
#[derive(Debug, Default)]
pub struct Traces(Option<mpsc::Sender<Traced>>);

impl Traces {
    /// Without an endpoint nothing is sent, and no task runs.
    pub fn new(endpoint: Option<Endpoint>) -> Traces {
        Traces(endpoint.map(|endpoint| {
            let (sender, receiver) = mpsc::channel(WAITING);
            tokio::spawn(deliver(endpoint, receiver));
            sender
        }))
    }

    /// Whether there is an endpoint.
    pub fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    pub fn send(&self, traced: Traced) {
        if let Some(sender) = &self.0
            && sender.try_send(traced).is_err()
        {
            tracing::warn!("dropped the spans of a MiniCluster: too many are waiting to be sent");
        }
    }
}

/// Sends what comes, one MiniCluster after the other, without retries.
async fn deliver(endpoint: Endpoint, mut waiting: mpsc::Receiver<Traced>) {
    let mut last_warning: Option<Instant> = None;
    while let Some(traced) = waiting.recv().await {
        let why = match tokio::time::timeout(PATIENCE, post(&endpoint, &traced)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        if last_warning.is_none_or(|last_warning| last_warning.elapsed() >= TELL_EVERY) {
            last_warning = Some(Instant::now());
            tracing::warn!("failed to send spans to {endpoint}: {why}");
        }
    }
}

async fn post(endpoint: &Endpoint, traced: &Traced) -> Result<(), Box<dyn Error + Send + Sync>> {
    let body = request(
        traced.trace,
        "flux-operator",
        env!("CARGO_PKG_VERSION"),
        &traced.spans,
    )
    .to_string();
    let host = endpoint.host.trim_matches(['[', ']']);
    let connection = TokioIo::new(TcpStream::connect((host, endpoint.port)).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(connection).await?;
    let request = Request::post(endpoint.path())
        .header(header::HOST, endpoint.authority())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    // The connection is driven while the answer is read: a server that closes at once has sent it before. It
    // ends with this function.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    match sender.send_request(request).await?.status() {
        status if status.is_success() => Ok(()),
        status => Err(format!("it answered with status {status}").into()),
    }
}

#[cfg(test)]
mod tests {
    use test_support::collector::Collector;

    use super::*;

    /// The result of `post` with a server that answers so and closes the connection.
    async fn posted(answer: &'static str) -> Result<(), String> {
        let collector = Collector::start(Some(answer));
        let endpoint = format!("http://{}", collector.address()).parse().unwrap();
        let result = post(
            &endpoint,
            &Traced {
                trace: 1,
                spans: Vec::new(),
            },
        )
        .await
        .map_err(|error| error.to_string());
        collector.request();
        result
    }

    #[tokio::test]
    async fn an_answer_counts_even_if_the_connection_ends_with_it() {
        for _ in 0..50 {
            assert_eq!(
                posted("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await,
                Ok(())
            );
        }
        let refused = posted("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap_err();
        assert!(refused.contains("503"), "{refused}");
        assert!(posted("").await.is_err(), "no answer");
    }
}
