//! Figures of the instance over HTTP, for those that scale by them: `/metrics` (Prometheus), `/metrics.json` (KEDA).
//!
//! ```text
//! a connection ─► its request's head ─► the figures, at most a second old ─ flux_rpc ─► broker
//!      └──────────── answer (pure), closed ◄──────────┘
//! ```
//!
//! Whoever reaches the port may read and nothing else. So many connections at a time, the oldest makes way; each has its
//! time, and one question to the broker serves all that come meanwhile.
#![expect(clippy::disallowed_methods, reason = "act: serves, reads the clock")]

mod answer;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flux_shared::usage::Usage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::usage;
use answer::Answer;

/// Connections at a time.
const MOST: usize = 16;
/// Of a connection, from its first byte to its end.
const CONNECTION: Duration = Duration::from_secs(8);
/// What the broker has for its figures.
const BROKER: Duration = Duration::from_secs(3);
/// Who asks within this time gets the same.
const FRESH: Duration = Duration::from_secs(1);
/// After an accept that failed: no descriptor is left.
const PAUSE: Duration = Duration::from_millis(200);
/// Bytes of a request's head.
const LONGEST: usize = 4 << 10;

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Server {
    /// Figures of the broker's instance, which is that of `cluster`. That nobody can be served ends no job: it is told.
    pub fn start(port: u16, cluster: &str, broker: Broker) -> Option<Server> {
        match listen(port) {
            Ok(listener) => {
                let figures = Figures { cluster: cluster.to_owned(), broker, last: Mutex::new(None) };
                Some(Server(tokio::spawn(serve(listener, Arc::new(figures)))))
            }
            Err(error) => {
                let why = crate::report::failure::plain(&error);
                tracing::error!(stage = "broker", "figures of the instance cannot be served on port {port}: {why}");
                None
            }
        }
    }
}

/// On all addresses of both families, or of that which there is.
fn listen(port: u16) -> io::Result<TcpListener> {
    let bind = |address: IpAddr| std::net::TcpListener::bind((address, port));
    let listener = bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn serve(listener: TcpListener, figures: Arc<Figures>) {
    // The set ends all when it is dropped.
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
        let figures = Arc::clone(&figures);
        oldest.push_back(all.spawn(async move {
            // Who is gone, or too slow, has no answer.
            let _ = tokio::time::timeout(CONNECTION, talk(stream, &figures)).await;
        }));
    }
}

async fn talk(mut stream: TcpStream, figures: &Figures) -> io::Result<()> {
    let (mut head, mut room) = (Vec::new(), [0; 512]);
    let answer = loop {
        let count = stream.read(&mut room).await?;
        head.extend_from_slice(&room[..count]);
        match answer::wanted(&head) {
            Some(Ok(wanted)) => break wanted.of(&figures.cluster, figures.now().await.as_ref()),
            Some(Err(refusal)) => break refusal,
            None if count == 0 => return Ok(()),
            None if head.len() > LONGEST => break Answer::too_long(),
            None => {}
        }
    };
    stream.write_all(answer.bytes().as_slice()).await?;
    stream.shutdown().await
}

/// What the broker said last, and when.
#[derive(Debug)]
struct Figures {
    cluster: String,
    broker: Broker,
    last: Mutex<Option<(Instant, Option<Usage>)>>,
}

impl Figures {
    /// None: the broker does not say.
    async fn now(&self) -> Option<Usage> {
        let mut last = self.last.lock().await;
        if let Some((at, usage)) = last.as_ref()
            && at.elapsed() < FRESH
        {
            return usage.clone();
        }
        let usage = tokio::time::timeout(BROKER, usage::figures(&self.broker)).await.ok();
        *last = Some((Instant::now(), usage.clone()));
        usage
    }
}

#[cfg(test)]
mod tests;
