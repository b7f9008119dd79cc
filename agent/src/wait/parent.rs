//! Probes the parent broker (or another one above): whether it answers and, if not, what prevents a connection.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use flux_agent_plan::plan::BrokerAddress;
use tokio::net::TcpStream;

use super::backoff::{Backoff, LONGEST_PAUSE};
use super::reporter::Reporter;
use super::resolve::{NameError, Resolver};

/// Longest pause early in the wait. Most parents come up soon, and the quorum should not have to wait for this pod.
const LONGEST_EARLY_PAUSE: Duration = Duration::from_millis(300);
/// How long the wait counts as early.
const EARLY: Duration = Duration::from_secs(60);
/// Longest pause early in the wait if the host refuses the connection. Such an attempt needs no DNS query, and the port
/// will probably be open soon.
const LONGEST_PAUSE_FOR_PORT: Duration = Duration::from_millis(200);
/// Later in the wait: mean time per DNS query of a pod. Suppose that 10,000 pods wait for an hour while their lead
/// prepares its work. Then the cluster's DNS gets 2,000 queries a second, however many queries an attempt needs (for A
/// and AAAA records, for each domain of a search list, and repeated after a timeout).
const LATE_TIME_PER_QUERY: Duration = Duration::from_secs(5);
/// Longest late pause per DNS query. A random pause takes three quarters of this on average (`Backoff`), which is
/// `LATE_TIME_PER_QUERY`.
const LONGEST_LATE_PAUSE_PER_QUERY: Duration = Duration::from_millis(6700);
/// The longest pause, however many queries an attempt needs: one with many queries takes long itself.
const LONGEST_PAUSE_OF_ALL: Duration = Duration::from_secs(40);
/// Early in the wait: how long an address whose host refuses is used before the name is looked up again.
const REUSE_ADDRESSES_FOR: Duration = Duration::from_secs(1);
/// Timeout of a connection attempt. It is short, so that a lost packet costs little.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of every fifth attempt, for hosts that are far away.
const LONG_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// What prevents a connection to the parent broker.
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
    /// Whether a DNS server answered that the name does not exist, or has no address: DNS forgets a pod that has ended.
    pub fn is_name_gone(&self) -> bool {
        matches!(self, Missing::Name(error) if error.has_no_record())
    }

    /// The longest pause before the next attempt. `waited`: time since the wait began. `queries`: DNS queries of the
    /// last attempt.
    fn longest_pause(&self, waited: Duration, queries: u32) -> Duration {
        if waited >= EARLY {
            // The addresses are used again, or need no query. In a chain of brokers, each broker adds this pause.
            if matches!(self, Missing::Port(_)) && queries == 0 {
                return LONGEST_PAUSE;
            }
            return (LONGEST_LATE_PAUSE_PER_QUERY * queries.max(1)).min(LONGEST_PAUSE_OF_ALL);
        }
        match self {
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

/// Probes of one broker, and what they need to know of earlier ones.
#[derive(Debug)]
pub struct ParentProbe {
    pub host: String,
    pub port: u16,
    /// Whether `probe` connects to the port. False: it only needs an address for the name.
    should_connect: bool,
    resolver: Resolver,
    /// Number of connection attempts.
    attempts: u32,
    /// If the last attempt was refused: its addresses, and until when they are used again without a look-up.
    refused: Option<(Instant, Vec<IpAddr>)>,
    /// Whether the wait is no longer early.
    is_late: bool,
    /// DNS queries of the last attempt, which lengthen the next pause. 0 if the addresses are used again: then the time
    /// until the next look-up makes up for the queries.
    queries: u32,
    /// The addresses that the last successful look-up found.
    known: Vec<IpAddr>,
}

impl ParentProbe {
    /// `host` is an address or a name. A trailing dot avoids queries along the search list. The resolver reads its
    /// files below `root`.
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

    /// A probe of this broker. If it is `only_looked_up`, `probe` and `wait` only look up the name, and do not connect.
    /// This is for `logging.zeromq`: Flux would log the agent's connection, which is closed at once, as a failed
    /// handshake.
    pub fn of(broker: &BrokerAddress, root: &Path) -> ParentProbe {
        ParentProbe {
            should_connect: !broker.only_looked_up,
            ..ParentProbe::new(&broker.host, broker.port, root)
        }
    }

    /// One attempt: looks up the name, connects, and closes the connection. With `only_looked_up`, it does not connect.
    pub async fn probe(&mut self) -> Result<(), Missing> {
        if self.should_connect {
            self.probe_port().await
        } else {
            self.look_up().await.map(drop)
        }
    }

    async fn look_up(&mut self) -> Result<Vec<IpAddr>, Missing> {
        let found = self.resolver.lookup(&self.host).await?;
        self.known.clone_from(&found);
        Ok(found)
    }

    /// Looks up the addresses for `probe_known`, if none are known yet. After a delete, the name may be gone before the
    /// broker.
    pub async fn note_addresses(&mut self) {
        if self.known.is_empty() {
            let _ = self.look_up().await;
        }
    }

    /// One attempt to connect to the known addresses, even if the name no longer has them. Looks up the name if no
    /// address is known.
    pub async fn probe_known(&mut self) -> Result<(), Missing> {
        if self.known.is_empty() {
            return self.probe_port().await;
        }
        let known = self.known.clone();
        self.connect_any(&known).await
    }

    /// Looks up the name. Returns whether DNS says that it is gone.
    pub async fn is_name_gone(&mut self) -> bool {
        self.look_up().await.is_err_and(|missing| missing.is_name_gone())
    }

    /// One attempt that always connects, whatever `only_looked_up` says. Callers in other files ask whether a
    /// broker that was up still is, or is again. A look-up of its name cannot tell.
    pub async fn probe_port(&mut self) -> Result<(), Missing> {
        // `&mut None`: nobody asks for the time of the look-up.
        self.try_connect(&mut None).await
    }

    /// One attempt to connect. If `resolved` is none and the name has an address, sets it to the current time.
    async fn try_connect(&mut self, resolved: &mut Option<Instant>) -> Result<(), Missing> {
        let (until, addresses) = match self.refused.take() {
            Some((until, addresses)) if Instant::now() < until => (until, addresses),
            _ => {
                self.queries = 0;
                let addresses = self.look_up().await?;
                self.queries = self.resolver.take_queries();
                let reuse_for = if self.is_late {
                    LATE_TIME_PER_QUERY * self.queries
                } else {
                    REUSE_ADDRESSES_FOR
                };
                (Instant::now() + reuse_for, addresses)
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

    /// The longest pause before the next attempt. `missing`: the result of the last attempt. `waited`: time since the
    /// wait began, which the next attempt takes into account too.
    pub fn longest_pause(&mut self, missing: &Missing, waited: Duration) -> Duration {
        self.is_late = waited >= EARLY;
        // The resolver still counts the queries of a look-up that failed or was not followed by a connection.
        missing.longest_pause(waited, self.resolver.take_queries() + self.queries)
    }

    /// Connects to the first address that accepts.
    async fn connect_any(&mut self, addresses: &[IpAddr]) -> Result<(), Missing> {
        self.attempts += 1;
        let connect_timeout = if self.attempts.is_multiple_of(5) {
            LONG_CONNECT_TIMEOUT
        } else {
            CONNECT_TIMEOUT
        };
        // Replaced below: there is at least one address.
        let mut missing = Missing::Name(NameError::NoServer);
        for &address in addresses {
            let target = SocketAddr::new(address, self.port);
            let why = match tokio::time::timeout(connect_timeout, TcpStream::connect(target)).await {
                Ok(Ok(_stream)) => return Ok(()),
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    missing = Missing::Port(target);
                    continue;
                }
                Ok(Err(error)) => crate::report::failure::plain(&error),
                Err(_) => "no answer".into(),
            };
            // A refusal is reported before other failures: it shows that the host is up.
            if !matches!(missing, Missing::Port(_)) {
                missing = Missing::Route { address, why };
            }
        }
        Err(missing)
    }

    /// Waits until an attempt like `probe` succeeds. If an attempt fails after `deadline` is over, returns
    /// what is missing. With no deadline, waits without end.
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
    use crate::testing::block_on;

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
            // A random pause takes from half to all of this, three quarters on average.
            for (queries, seconds) in [(1, 5), (2, 10), (4, 20)] {
                let mean = missing.longest_pause(late, queries) * 3 / 4;
                assert!(
                    mean >= Duration::from_secs(seconds),
                    "{missing:?}, {queries} queries"
                );
            }
            assert_eq!(missing.longest_pause(late, 100), LONGEST_PAUSE_OF_ALL);
        }
        assert!(no_name.longest_pause(late, 0) * 3 / 4 >= Duration::from_secs(5));
        assert!(no_port.longest_pause(late, 0) <= Duration::from_secs(1));
    }

    #[test]
    fn refused_address_is_reused_for_a_second_only_early() {
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
            std::thread::sleep(REUSE_ADDRESSES_FOR);
            assert_eq!(parent.probe().await, refuses("127.0.77.10"));
            parent.refused = None;
            // Called for its side effect: the wait is no longer early.
            parent.longest_pause(&Missing::Name(NameError::NoServer), EARLY);
            assert_eq!(parent.probe().await, refuses("127.0.77.10"));
            hosts("127.0.77.9");
            assert_eq!(
                parent.probe().await,
                refuses("127.0.77.9"),
                "a name in /etc/hosts costs no query, and is looked up each time"
            );
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
