//! Probes the parent broker: whether it answers and, if not, which part of the connection is missing.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use super::backoff::Backoff;
use super::reporter::Reporter;
use super::resolve::{NameError, Resolver};

/// Longest pause early in the wait. Then the missing part mostly comes soon, and a quorum should not wait for this pod.
const LONGEST_EARLY_PAUSE: Duration = Duration::from_millis(300);
/// How long the wait counts as early.
const EARLY: Duration = Duration::from_secs(60);
/// Longest pause early in the wait if the host is up and refuses. Such attempts load no other server, and the port will
/// be open soon.
const LONGEST_PAUSE_FOR_PORT: Duration = Duration::from_millis(200);
/// Time for each DNS query after that, so that 10,000 pods whose lead prepares its work for an hour cost the
/// cluster's DNS 2,000 queries a second, however many an attempt needs: of both kinds of addresses, along a
/// search list, repeated.
const LATE_TIME_OF_A_QUERY: Duration = Duration::from_secs(5);
/// Pauses take three quarters of their longest on average.
const LONGEST_LATE_PAUSE: Duration = Duration::from_millis(6700);
/// No pause is longer: an attempt at so many servers takes long itself.
const LONGEST_PAUSE_OF_ALL: Duration = Duration::from_secs(40);
/// How long an address is used at first without being looked up again, while its host refuses.
const ADDRESS_SERVES: Duration = Duration::from_secs(1);
/// Time limit of a connection attempt. Short, so that a lost packet costs little; every fifth is long, for
/// far hosts.
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
        matches!(
            self,
            Missing::Name(NameError::NoSuchName(_) | NameError::NoAddress(_))
        )
    }

    /// The longest pause before the next attempt, after so long a wait and an attempt with so many DNS
    /// queries.
    fn longest_pause(&self, waited: Duration, queries: u32) -> Duration {
        match self {
            _ if waited >= EARLY => (LONGEST_LATE_PAUSE * queries.max(1)).min(LONGEST_PAUSE_OF_ALL),
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
pub struct ParentProbe {
    pub host: String,
    pub port: u16,
    /// Whether `probe` connects to the port. False: it only needs an address for the name.
    should_connect: bool,
    resolver: Resolver,
    attempts: u32,
    /// Addresses of which one refused, and until when they need not be looked up again.
    refused: Option<(Instant, Vec<IpAddr>)>,
    /// Whether it has been missing for long.
    is_late: bool,
    /// DNS queries of the last attempt, whose addresses are of no further use.
    queries: u32,
    /// The addresses that its name had last.
    known: Vec<IpAddr>,
}

impl ParentProbe {
    /// `host` is an address or a name, best with a trailing dot; files of the resolver are looked for below
    /// `root`.
    pub fn new(host: &str, port: u16, root: &Path) -> ParentProbe {
        ParentProbe {
            host: host.to_owned(),
            port,
            should_connect: true,
            resolver: Resolver::new(root),
            attempts: 0,
            refused: None,
            is_late: false,
            queries: 0,
            known: Vec::new(),
        }
    }

    /// `by_name`: `probe` does not connect to the port, since Flux is to show what ZeroMQ does: it would show
    /// a connection that is closed again as a failed handshake.
    pub fn probed_by_name(self, by_name: bool) -> ParentProbe {
        ParentProbe {
            should_connect: !by_name,
            ..self
        }
    }

    /// One attempt: looks the name up, connects, and closes again.
    pub async fn probe(&mut self) -> Result<(), Missing> {
        if self.should_connect {
            self.try_connect(&mut None).await
        } else {
            self.look_up().await.map(drop)
        }
    }

    async fn look_up(&mut self) -> Result<Vec<IpAddr>, Missing> {
        let found = self.resolver.lookup(&self.host).await?;
        self.known.clone_from(&found);
        Ok(found)
    }

    /// Notes its addresses, for a time when its name may be gone: a delete removes the name before the
    /// broker.
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
        let (until, addresses) = match self.refused.take() {
            Some((until, addresses)) if Instant::now() < until => (until, addresses),
            _ => {
                self.queries = 0;
                let addresses = self.look_up().await?;
                self.queries = self.resolver.take_queries();
                let serves = if self.is_late {
                    LATE_TIME_OF_A_QUERY * self.queries
                } else {
                    ADDRESS_SERVES
                };
                (Instant::now() + serves, addresses)
            }
        };
        resolved.get_or_insert_with(Instant::now);
        let connected = self.connect_any(&addresses).await;
        if matches!(connected, Err(Missing::Port(_))) {
            self.refused = Some((until, addresses));
            self.queries = 0;
        }
        connected
    }

    /// The longest pause before the next attempt, after so long a wait.
    pub fn longest_pause(&mut self, missing: &Missing, waited: Duration) -> Duration {
        self.is_late = waited >= EARLY;
        missing.longest_pause(waited, self.resolver.take_queries() + self.queries)
    }

    async fn connect_any(&mut self, addresses: &[IpAddr]) -> Result<(), Missing> {
        self.attempts += 1;
        let limit = if self.attempts.is_multiple_of(5) {
            LONG_CONNECT
        } else {
            CONNECT
        };
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
            let answer = if self.should_connect {
                self.try_connect(&mut resolved).await
            } else {
                self.probe().await
            };
            let missing = match answer {
                Ok(()) => {
                    let connected = Instant::now();
                    return Ok(Reached {
                        resolved: resolved.unwrap_or(connected),
                        connected,
                    });
                }
                Err(missing) => missing,
            };
            if deadline.is_some_and(|deadline| begin.elapsed() >= deadline) {
                return Err(missing);
            }
            report.tick(&self.host, &missing.to_string());
            backoff.pause(self.longest_pause(&missing, begin.elapsed())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(future)
    }

    #[test]
    fn missing_parent_is_tried_once_in_5_s_per_query() {
        let (early, late) = (Duration::from_secs(5), Duration::from_secs(61));
        let no_name = Missing::Name(NameError::NoServer);
        let no_port = Missing::Port(SocketAddr::from(([127, 0, 0, 1], 8050)));
        for missing in [&no_name, &no_port] {
            assert!(
                missing.longest_pause(early, 2) <= Duration::from_millis(300),
                "{missing:?}"
            );
            // From a half to the whole, by chance.
            for (queries, seconds) in [(0, 5), (1, 5), (2, 10), (4, 20)] {
                let mean = missing.longest_pause(late, queries) * 3 / 4;
                assert!(
                    mean >= Duration::from_secs(seconds),
                    "{missing:?}, {queries} queries"
                );
            }
            assert_eq!(missing.longest_pause(late, 100), LONGEST_PAUSE_OF_ALL);
        }
    }

    #[test]
    fn refused_address_is_reused_as_long_as_its_queries_cost() {
        let root = tempfile::tempdir().unwrap();
        block_on(async {
            let listener = std::net::TcpListener::bind("127.0.77.9:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let hosts = |address: &str| {
                std::fs::create_dir_all(root.path().join("etc")).unwrap();
                std::fs::write(root.path().join("etc/hosts"), format!("{address} mc-0\n")).unwrap();
            };
            let refuses = |at: &str| Err(Missing::Port(SocketAddr::new(at.parse().unwrap(), port)));
            let mut parent = ParentProbe::new("mc-0", port, root.path());
            hosts("127.0.77.9");
            assert_eq!(parent.probe().await, refuses("127.0.77.9"));
            hosts("127.0.77.10");
            assert_eq!(parent.probe().await, refuses("127.0.77.9"), "for a second");
            std::thread::sleep(ADDRESS_SERVES);
            assert_eq!(parent.probe().await, refuses("127.0.77.10"));
            parent.refused = None;
            parent.longest_pause(&Missing::Name(NameError::NoServer), EARLY);
            assert_eq!(parent.probe().await, refuses("127.0.77.10"));
            hosts("127.0.77.9");
            assert_eq!(parent.probe().await, refuses("127.0.77.9"), "it costs no query");
        });
    }

    #[test]
    fn a_late_parent_is_reached_and_an_absent_one_is_described() {
        let root = tempfile::tempdir().unwrap();
        block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            drop(listener);
            let mut parent = ParentProbe::new("127.0.0.1", address.port(), root.path());
            assert_eq!(
                parent.wait(Some(Duration::ZERO)).await.unwrap_err(),
                Missing::Port(address)
            );
            let late = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(300));
                std::net::TcpListener::bind(address).unwrap().accept().unwrap();
                Instant::now()
            });
            let reached = parent.wait(Some(Duration::from_secs(20))).await.unwrap();
            assert!(late.join().unwrap().duration_since(reached.connected) < Duration::from_secs(5));
            let mut nameless = ParentProbe::new("mc-0.flux.", address.port(), root.path());
            assert_eq!(nameless.probe().await, Err(Missing::Name(NameError::NoServer)));
        });
    }
}
