//! Metrics of the instance over HTTP, for autoscalers: `/metrics` (Prometheus), `/metrics.json` (KEDA).
//!
//! ```text
//! a connection ─► its request's head ─► the metrics, at most a second old ◄─ a request, its own task ─ flux_rpc ─► broker
//!      └──────────── answer (pure), closed ◄──────────┘
//! ```
//!
//! Whoever reaches the port may read and nothing else. The number of connections is bounded (the oldest is
//! dropped), and so is the time of each. One request to the broker answers all clients that come meanwhile,
//! and is finished even if they have gone: clients cannot make the agent ask the broker more often.

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
const MOST: usize = 16;
/// Time limit of a connection.
const CONNECTION: Duration = Duration::from_secs(8);
/// Time limit of the broker's answer.
const BROKER: Duration = Duration::from_secs(3);
/// How long an answer of the broker is served again.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after an accept that failed, because no descriptor is left.
const PAUSE: Duration = Duration::from_millis(200);
/// Most bytes of a request's head.
const LONGEST: usize = 4 << 10;

/// Serves until it is dropped.
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
    let (mut all, mut oldest) = (JoinSet::new(), VecDeque::<AbortHandle>::new());
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while all.try_join_next().is_some() {}
        oldest.retain(|task| !task.is_finished());
        if oldest.len() >= MOST
            && let Some(task) = oldest.pop_front()
        {
            task.abort();
        }
        let metrics = Arc::clone(&metrics);
        oldest.push_back(all.spawn(async move {
            // A client that is gone or too slow gets no answer.
            let _ = tokio::time::timeout(CONNECTION, talk(stream, &metrics)).await;
        }));
    }
}

async fn talk(mut stream: TcpStream, metrics: &InstanceMetrics) -> io::Result<()> {
    let (mut head, mut room) = (Vec::new(), [0; 512]);
    let response = loop {
        let count = stream.read(&mut room).await?;
        head.extend_from_slice(&room[..count]);
        match answer::parse_request(&head) {
            Some(Ok(request)) => break request.respond(&metrics.cluster, metrics.now().await.as_ref()),
            Some(Err(refusal)) => break refusal,
            None if count == 0 => return Ok(()),
            None if head.len() > LONGEST => break Response::too_long(),
            None => {}
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

/// A request to the broker, which ends when this is dropped.
#[derive(Debug)]
struct Question {
    answer: watch::Receiver<Option<BrokerAnswer>>,
    _task: JoinSet<()>,
}

/// The broker's answer, and when it came; no usage: the broker did not answer.
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

    /// The current metrics; none: the broker does not answer.
    async fn now(&self) -> Option<Usage> {
        let mut answer = self.question();
        let answer = answer.wait_for(Option::is_some).await.ok()?;
        answer.as_ref().and_then(|answer| answer.usage.clone())
    }

    /// The last request, as long as it is pending or its answer fresh; else a new one.
    fn question(&self) -> watch::Receiver<Option<BrokerAnswer>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(question) = last.as_ref().filter(|question| question.serves()) {
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
        let (tell, answer) = watch::channel(None);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let usage = tokio::time::timeout(BROKER, usage::nodes_and_jobs(&broker))
                .await
                .ok();
            tell.send_replace(Some(BrokerAnswer {
                at: Instant::now(),
                usage,
            }));
        });
        Question { answer, _task: task }
    }

    fn serves(&self) -> bool {
        match self.answer.borrow().as_ref() {
            Some(answer) => answer.at.elapsed() < FRESH,
            None => self.answer.has_changed().is_ok(), // the answer is pending
        }
    }
}

#[cfg(test)]
mod tests;
