//! Metrics of the instance over HTTP, for autoscalers: `/metrics` (Prometheus), `/metrics.json` (KEDA).
//!
//! ```text
//! a connection ─► its request's head ─► the metrics, at most a second old ◄─ a request of a task ─ flux_rpc ─► broker
//!      └──────────── answer (pure), closed ◄──────────┘
//! ```
//!
//! Anybody who reaches the port can read the metrics, and do nothing else. The number of connections is limited (a new
//! one replaces the oldest), and so is the time of each. One request to the broker serves all clients that connect
//! meanwhile, and is finished even if they have gone: clients cannot make the agent ask the broker more often.

mod answer;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flux_shared::usage::Usage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::usage;
use answer::Response;

/// Most connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// Time limit of a connection: long enough for a slow client and the broker's answer.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(8);
/// Time limit of the broker's answer.
const BROKER_DEADLINE: Duration = Duration::from_secs(3);
/// How long an answer of the broker is used again.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after a failed accept, such as one that found no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Most bytes of a request's head.
const MAX_HEAD: usize = 4 << 10;

/// A running server of metrics. Dropping this ends the server.
#[derive(Debug)]
pub struct MetricsServer(JoinHandle<()>);

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl MetricsServer {
    /// Serves the metrics of the broker's instance, which belongs to `cluster`. A port that cannot be used is
    /// logged and ignored: it ends no job.
    pub fn start(port: u16, cluster: &str, broker: Broker) -> Option<MetricsServer> {
        match listen(port) {
            Ok(listener) => {
                let metrics = InstanceMetrics::new(cluster, broker);
                Some(MetricsServer(tokio::spawn(serve(listener, Arc::new(metrics)))))
            }
            Err(error) => {
                let why = crate::report::failure::plain(&error);
                tracing::warn!(
                    stage = "broker",
                    "failed to serve metrics of the instance on port {port}: {why}"
                );
                None
            }
        }
    }
}

/// Listens on all addresses of both families, or of the one that there is.
fn listen(port: u16) -> io::Result<TcpListener> {
    let bind = |address: IpAddr| std::net::TcpListener::bind((address, port));
    let listener = bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn serve(listener: TcpListener, metrics: Arc<InstanceMetrics>) {
    // Dropping the set ends all connections.
    let (mut connections, mut oldest_first) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Forgets the connections that have ended.
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|task| !task.is_finished());
        if oldest_first.len() >= MAX_CONNECTIONS
            && let Some(task) = oldest_first.pop_front()
        {
            task.abort();
        }
        let metrics = Arc::clone(&metrics);
        oldest_first.push_back(connections.spawn(async move {
            // A client that is gone or too slow gets no answer.
            let _ = tokio::time::timeout(CONNECTION_DEADLINE, talk(stream, &metrics)).await;
        }));
    }
}

/// Reads a request and answers it.
async fn talk(mut stream: TcpStream, metrics: &InstanceMetrics) -> io::Result<()> {
    let (mut head, mut chunk) = (Vec::new(), [0; 512]);
    let response = loop {
        let count = stream.read(&mut chunk).await?;
        head.extend_from_slice(&chunk[..count]);
        if answer::is_complete(&head) {
            break match answer::parse_request(&head) {
                Ok(request) => request.respond(&metrics.cluster, metrics.now().await.as_ref()),
                Err(refusal) => refusal,
            };
        }
        if count == 0 {
            return Ok(());
        }
        if head.len() > MAX_HEAD {
            break Response::too_long();
        }
    };
    stream.write_all(response.bytes().as_slice()).await?;
    stream.shutdown().await
}

/// The metrics of the instance, by the last request to the broker.
#[derive(Debug)]
struct InstanceMetrics {
    cluster: String,
    broker: Broker,
    last: Mutex<Option<Question>>,
}

/// A request to the broker. Dropping it ends the request.
#[derive(Debug)]
struct Question {
    answer: watch::Receiver<Option<BrokerAnswer>>,
    _task: JoinSet<()>,
}

/// The broker's answer, and when it came. `usage` is None if `BROKER_DEADLINE` was over, and empty after an error.
#[derive(Debug, Clone)]
struct BrokerAnswer {
    at: Instant,
    usage: Option<Usage>,
}

impl InstanceMetrics {
    fn new(cluster: &str, broker: Broker) -> InstanceMetrics {
        InstanceMetrics {
            cluster: cluster.to_owned(),
            broker,
            last: Mutex::new(None),
        }
    }

    /// The current metrics. None: the broker did not answer in time.
    async fn now(&self) -> Option<Usage> {
        let mut answer = self.question();
        let answer = answer.wait_for(Option::is_some).await.ok()?;
        answer.as_ref().and_then(|answer| answer.usage.clone())
    }

    /// The last request, as long as it is pending or its answer fresh; else a new one.
    fn question(&self) -> watch::Receiver<Option<BrokerAnswer>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(question) = last.as_ref().filter(|question| question.is_usable()) {
            return question.answer.clone();
        }
        let question = Question::ask(self.broker.clone());
        let answer = question.answer.clone();
        *last = Some(question);
        answer
    }
}

impl Question {
    fn ask(broker: Broker) -> Question {
        let (sender, answer) = watch::channel(None);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let usage = tokio::time::timeout(BROKER_DEADLINE, usage::nodes_and_jobs(&broker))
                .await
                .ok();
            sender.send_replace(Some(BrokerAnswer {
                at: Instant::now(),
                usage,
            }));
        });
        Question { answer, _task: task }
    }

    /// Whether the answer is pending, or not older than `FRESH`.
    fn is_usable(&self) -> bool {
        match self.answer.borrow().as_ref() {
            Some(answer) => answer.at.elapsed() < FRESH,
            // Pending, unless the task has ended without an answer: this closes the channel.
            None => self.answer.has_changed().is_ok(),
        }
    }
}

#[cfg(test)]
mod tests;
