//! The parent broker: whether it answers, and what is missing if not.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use super::backoff::Backoff;
use super::reporter::Reporter;
use super::resolve::{NameError, Resolver};

/// Longest pause at first: most of what is missing is about to come, and a quorum should not wait for this pod.
const LONGEST_EARLY_PAUSE: Duration = Duration::from_millis(300);
/// How long the wait counts as early.
const EARLY: Duration = Duration::from_secs(60);
/// Longest pause at first if the host is up and refuses: that costs nobody else anything, and its port will be open soon.
const LONGEST_PAUSE_FOR_PORT: Duration = Duration::from_millis(200);
/// Longest pause after that, whatever is missing. Pauses take three quarters of it on average: one attempt in 5 s, so that
/// 10,000 pods whose lead prepares its work for an hour cost the cluster's DNS 2,000 look-ups a second.
const LONGEST_LATE_PAUSE: Duration = Duration::from_millis(6700);
/// How long an address is used without being looked up again, while its host refuses.
const ADDRESS_SERVES: Duration = Duration::from_secs(1);
/// Time limit of a connection attempt. Short, so that a lost packet costs little; every fifth is long, for far hosts.
const CONNECT: Duration = Duration::from_millis(500);
const LONG_CONNECT: Duration = Duration::from_secs(3);

/// What is missing for a connection to the parent broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{address} cannot be reached ({why})")]
    Route { address: IpAddr, why: String },
    #[error("{0} refuses the connection: its broker is not up yet")]
    Port(SocketAddr),
}

impl Missing {
    /// The name is known not to exist: DNS forgets a pod that has ended.
    pub fn is_name_gone(&self) -> bool {
        matches!(self, Missing::Name(NameError::NoSuchName(_) | NameError::NoAddress(_)))
    }

    /// The longest pause before the next attempt, after so long a wait.
    pub fn longest_pause(&self, waited: Duration) -> Duration {
        match self {
            _ if waited >= EARLY => LONGEST_LATE_PAUSE,
            Missing::Port(_) => LONGEST_PAUSE_FOR_PORT,
            _ => LONGEST_EARLY_PAUSE,
        }
    }
}

/// When the parent was reached.
#[derive(Debug, Clone, Copy)]
pub struct Reached {
    /// When its name had an address for the first time.
    pub resolved: Instant,
    pub connected: Instant,
}

/// A parent broker.
#[derive(Debug)]
pub struct Parent {
    pub host: String,
    pub port: u16,
    /// Whether `probe` connects to the port; false: a name that has an address is enough.
    connects: bool,
    resolver: Resolver,
    attempts: u32,
    /// Addresses of which one refused, and when they were looked up.
    refused: Option<(Instant, Vec<IpAddr>)>,
    /// The addresses that its name had last.
    known: Vec<IpAddr>,
}

impl Parent {
    /// `host` is an address or a name, best with a trailing dot; files of the resolver are looked for below `root`.
    pub fn new(host: &str, port: u16, root: &Path) -> Parent {
        let resolver = Resolver::new(root);
        Parent { host: host.to_owned(), port, connects: true, resolver, attempts: 0, refused: None, known: Vec::new() }
    }

    /// `by_name`: `probe` does not connect to the port, since Flux is to show what ZeroMQ does: it would show a
    /// connection that is closed again as a failed handshake.
    pub fn probed_by_name(self, by_name: bool) -> Parent {
        Parent { connects: !by_name, ..self }
    }

    /// One attempt: looks the name up, connects, and closes again.
    pub async fn probe(&mut self) -> Result<(), Missing> {
        match self.connects {
            true => self.try_connect(&mut None).await,
            false => self.look_up().await.map(drop),
        }
    }

    async fn look_up(&mut self) -> Result<Vec<IpAddr>, Missing> {
        let found = self.resolver.lookup(&self.host).await?;
        self.known.clone_from(&found);
        Ok(found)
    }

    /// Notes its addresses, for a time when its name may be gone: a delete removes the name before the broker.
    pub async fn note_addresses(&mut self) {
        if self.known.is_empty() {
            let _ = self.look_up().await;
        }
    }

    /// One attempt at the port of the addresses that it had last, whether or not they still have its name.
    pub async fn probe_known(&mut self) -> Result<(), Missing> {
        match self.known.clone() {
            none if none.is_empty() => self.probe_port().await,
            known => self.connect_any(&known).await,
        }
    }

    /// Whether its name is known not to exist.
    pub async fn is_name_gone(&mut self) -> bool {
        self.look_up().await.is_err_and(|missing| missing.is_name_gone())
    }

    /// The same by its port in any case: for a parent that was lost, or is shutting down.
    pub async fn probe_port(&mut self) -> Result<(), Missing> {
        self.try_connect(&mut None).await
    }

    async fn try_connect(&mut self, resolved: &mut Option<Instant>) -> Result<(), Missing> {
        let (looked_up, addresses) = match self.refused.take() {
            Some((at, addresses)) if at.elapsed() < ADDRESS_SERVES => (at, addresses),
            _ => (Instant::now(), self.look_up().await?),
        };
        resolved.get_or_insert_with(Instant::now);
        let connected = self.connect_any(&addresses).await;
        if matches!(connected, Err(Missing::Port(_))) {
            self.refused = Some((looked_up, addresses));
        }
        connected
    }

    async fn connect_any(&mut self, addresses: &[IpAddr]) -> Result<(), Missing> {
        self.attempts += 1;
        let limit = if self.attempts.is_multiple_of(5) { LONG_CONNECT } else { CONNECT };
        let mut missing = Missing::Name(NameError::NoServer);
        for &address in addresses {
            let target = SocketAddr::new(address, self.port);
            let why = match tokio::time::timeout(limit, TcpStream::connect(target)).await {
                Ok(Ok(_stream)) => return Ok(()),
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    missing = Missing::Port(target);
                    continue;
                }
                Ok(Err(error)) => crate::report::failure::plain(&error),
                Err(_) => "no answer".into(),
            };
            // A refusal shows that the host is up, whatever happens at its other addresses.
            if !matches!(missing, Missing::Port(_)) {
                missing = Missing::Route { address, why };
            }
        }
        Err(missing)
    }

    /// Waits until the parent answers. After `deadline`, the error is what is missing.
    pub async fn wait(&mut self, deadline: Option<Duration>) -> Result<Reached, Missing> {
        let begin = Instant::now();
        let mut backoff = Backoff::default();
        let mut report = Reporter::new(begin);
        let mut resolved = None;
        loop {
            let answer = if self.connects { self.try_connect(&mut resolved).await } else { self.probe().await };
            let missing = match answer {
                Ok(()) => {
                    let connected = Instant::now();
                    return Ok(Reached { resolved: resolved.unwrap_or(connected), connected });
                }
                Err(missing) => missing,
            };
            if deadline.is_some_and(|deadline| begin.elapsed() >= deadline) {
                return Err(missing);
            }
            report.tick(&self.host, &missing.to_string());
            backoff.pause(missing.longest_pause(begin.elapsed())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn parent_that_is_missing_for_long_is_tried_once_in_five_seconds() {
        let (early, late) = (Duration::from_secs(5), Duration::from_secs(61));
        let no_name = Missing::Name(NameError::NoServer);
        let no_port = Missing::Port(SocketAddr::from(([127, 0, 0, 1], 8050)));
        for missing in [&no_name, &no_port] {
            assert!(missing.longest_pause(early) <= Duration::from_millis(300), "{missing:?}");
            // From a half to the whole, by chance.
            assert!(missing.longest_pause(late) * 3 / 4 >= Duration::from_secs(5), "{missing:?}");
        }
    }

    #[test]
    fn a_late_parent_is_reached_and_an_absent_one_is_described() {
        let root = tempfile::tempdir().unwrap();
        block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            drop(listener);
            let mut parent = Parent::new("127.0.0.1", address.port(), root.path());
            assert_eq!(parent.wait(Some(Duration::ZERO)).await.unwrap_err(), Missing::Port(address));
            let late = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                std::net::TcpListener::bind(address).unwrap().accept().unwrap();
                Instant::now()
            });
            let reached = parent.wait(Some(Duration::from_secs(20))).await.unwrap();
            assert!(late.join().unwrap().duration_since(reached.connected) < Duration::from_secs(5));
            let mut nameless = Parent::new("mc-0.flux.", address.port(), root.path());
            assert_eq!(nameless.probe().await, Err(Missing::Name(NameError::NoServer)));
        });
    }
}
