//! Has the broker lost its parent? Asked of the kernel, so that watching costs the parent nothing.
//!
//! A broker whose parent was killed stays up for minutes (`heartbeat.timeout`). The kernel knows at once: the
//! connection to the parent's port is no longer established. A probe then confirms that the parent is really gone.
//!
//! Once found, the connection is looked up by its identity (addresses, ports, cookie). A kernel without sock_diag (in a
//! sandbox) still has /proc/net/tcp, which lists all connections at each look.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::parent::{Missing, Parent};
use super::tcp_connections::{self, Connection};

/// Time between two looks once there was a connection, and before.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const FIRST_LOOKS_EVERY: Duration = Duration::from_millis(250);
/// Looks without a connection before a parent that was once connected counts as lost.
const LOST_AFTER: u32 = 2;
/// Looks before a parent that was never connected counts as lost: half a minute.
const NEVER_FOUND_AFTER: u32 = 120;
/// TCP_ESTABLISHED in /proc/net/tcp.
const ESTABLISHED: &str = "01";

/// Watches the connection to one parent.
#[derive(Debug)]
pub struct Watch {
    proc_net: PathBuf,
    pause: Duration,
    next_look: Instant,
    /// The connection that was found last.
    known: Option<Connection>,
    seen: bool,
    misses: u32,
    /// Since when neither the connection nor the parent's port was there, as far as looks in quick succession say.
    missing_since: Option<Instant>,
}

impl Watch {
    pub fn new() -> Watch {
        let proc_net = PathBuf::from("/proc/net");
        let next_look = Instant::now() + FIRST_LOOKS_EVERY;
        Watch { proc_net, pause: LOOK_EVERY, next_look, known: None, seen: false, misses: 0, missing_since: None }
    }

    /// Whether some connection of this network namespace to the parent's port is established.
    pub fn is_connected(&mut self, parent: &Parent) -> bool {
        if self.known.is_some_and(tcp_connections::is_established) {
            return true;
        }
        match tcp_connections::established_to(parent.port) {
            Ok(found) => {
                self.known = found.first().copied();
                self.known.is_some()
            }
            Err(_) => !established_in(&self.proc_net, parent.port).is_empty(),
        }
    }

    /// Whether a connection to the parent was seen.
    pub fn was_connected(&self) -> bool {
        self.seen
    }

    /// Looks at the parent; returns what is missing once that has been so for `sure_after`. One look alone proves
    /// nothing: a broker that its parent dismissed disconnects a moment before it ends.
    pub async fn check_gone(&mut self, parent: &mut Parent, sure_after: Duration) -> Option<Missing> {
        let missing = match self.is_connected(parent) {
            true => None,
            false => parent.probe_port().await.err(),
        };
        match missing {
            None => self.missing_since = None,
            Some(_) => _ = self.missing_since.get_or_insert_with(Instant::now),
        }
        missing.filter(|_| self.missing_since.is_some_and(|since| since.elapsed() >= sure_after))
    }

    /// Waits until the parent is lost; returns what is missing. Safe to drop and call again.
    pub async fn until_lost(&mut self, parent: &mut Parent) -> Missing {
        loop {
            tokio::time::sleep_until(self.next_look.into()).await;
            let found = match self.is_connected(parent) {
                true => {
                    self.seen = true;
                    Ok(())
                }
                // The connection is gone: an attempt at the port no longer disturbs what ZeroMQ shows.
                false if self.seen => parent.probe_port().await,
                false => parent.probe().await,
            };
            self.next_look = Instant::now() + if self.seen { self.pause } else { FIRST_LOOKS_EVERY.min(self.pause) };
            match found {
                Ok(()) => self.misses = 0,
                Err(missing) => {
                    self.misses += 1;
                    if self.misses >= if self.seen { LOST_AFTER } else { NEVER_FOUND_AFTER } {
                        return missing;
                    }
                }
            }
        }
    }
}

/// What distinguishes an established connection from another.
#[derive(Debug, PartialEq, Eq)]
pub enum Identity {
    Name(Connection),
    OwnEnd(String),
}

/// The connections to remote port `port` that are established.
pub fn established(port: u16) -> Vec<Identity> {
    match tcp_connections::established_to(port) {
        Ok(found) => found.into_iter().map(Identity::Name).collect(),
        Err(_) => established_in(Path::new("/proc/net"), port).into_iter().map(Identity::OwnEnd).collect(),
    }
}

fn established_in(proc_net: &Path, port: u16) -> Vec<String> {
    let texts = ["tcp", "tcp6"].iter().filter_map(|name| std::fs::read_to_string(proc_net.join(name)).ok());
    texts.flat_map(|text| established_to(&text, port)).collect()
}

fn established_to(text: &str, port: u16) -> Vec<String> {
    let port = format!(":{port:04X}");
    let own_end = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (own, remote, state) = (words.next()?, words.next()?, words.next()?);
        (remote.ends_with(&port) && state == ESTABLISHED).then(|| own.to_owned())
    };
    text.lines().skip(1).filter_map(own_end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_established_connection_to_the_port_counts() {
        let head = "  sl  local_address rem_address   st tx_queue\n";
        let line = |local: &str, remote: &str, state: &str| format!("{head}   0: {local} {remote} {state} 0:0\n");
        assert_eq!(established_to(&line("0100007F:D431", "0100007F:1F72", "01"), 8050), ["0100007F:D431"]);
        assert!(established_to(&line("0100007F:D431", "0100007F:1F72", "02"), 8050).is_empty());
        let childs = line("0100007F:1F72", "0100007F:D431", "01");
        assert!(established_to(&childs, 8050).is_empty(), "a child's, not the parent's");
        assert!(established_to(head, 8050).is_empty());
    }

    #[test]
    fn a_parent_that_went_away_is_lost_and_one_that_answers_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let mut parent = Parent::new("127.0.0.1", port, Path::new("/nonexistent"));
            let mut watch = Watch { pause: Duration::from_millis(20), next_look: Instant::now(), ..Watch::new() };
            let soon = Duration::from_millis(300);
            assert!(tokio::time::timeout(soon, watch.until_lost(&mut parent)).await.is_err());
            let (accepted, _) = listener.accept().unwrap();
            let closing = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop((listener, accepted, stream));
            });
            let late = Duration::from_secs(10);
            assert!(matches!(tokio::time::timeout(late, watch.until_lost(&mut parent)).await, Ok(Missing::Port(_))));
            closing.join().unwrap();
        });
    }

    #[test]
    fn one_look_without_a_parent_is_none() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // An address that nobody else takes ports of.
            let listener = std::net::TcpListener::bind("127.0.77.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            drop(listener);
            let mut parent = Parent::new("127.0.77.1", port, Path::new("/nonexistent"));
            let mut watch = Watch::new();
            let sure_after = Duration::from_millis(50);
            assert!(watch.check_gone(&mut parent, Duration::from_secs(600)).await.is_none());
            std::thread::sleep(sure_after);
            assert!(watch.check_gone(&mut parent, sure_after).await.is_some());
            let listener = std::net::TcpListener::bind(("127.0.77.1", port)).unwrap();
            assert!(watch.check_gone(&mut parent, sure_after).await.is_none());
            drop(listener);
            assert!(watch.check_gone(&mut parent, Duration::from_secs(600)).await.is_none(), "it was there meanwhile");
        });
    }
}
