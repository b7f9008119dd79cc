//! Resolves names to addresses without NSS: reads /etc/hosts, then queries the DNS servers of /etc/resolv.conf.
//!
//! The crate `simple-dns` reads and writes the messages. The rest is implemented here, since resolver crates cache,
//! retry and order servers by themselves. Here every wait reports what is missing and which server reported that, and
//! sends few queries (`agent/benches/README.md`).
//!
//! A name is queried as it is. If it has no trailing dot and no address is found, it is also queried with each domain
//! of the search list. Both files are read for every attempt: Kubernetes may change them, and they are small.

use std::cell::Cell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, RCODE, TYPE};
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;

/// How long to wait for an answer after the first, second and third time that a query is sent. The first timeout is
/// short, so that a lost packet costs little. A late answer to an earlier send still counts, so a slow server has the
/// sum of the timeouts, as with the C library.
const QUERY_TIMEOUTS: [Duration; 3] = [
    Duration::from_millis(800),
    Duration::from_millis(1600),
    Duration::from_millis(2600),
];
const DNS_PORT: u16 = 53;

/// Why a name has no address (yet).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("its name does not exist yet (DNS server {0})")]
    NoSuchName(IpAddr),
    #[error("its name has no address yet (DNS server {0})")]
    NoAddress(IpAddr),
    #[error("the DNS server {0} does not answer")]
    Silent(IpAddr),
    #[error("the DNS server {server} fails ({why})")]
    Failing { server: IpAddr, why: String },
    #[error("/etc/resolv.conf has no DNS server, and /etc/hosts does not have its name")]
    NoServer,
    #[error("it is not a valid DNS name")]
    BadName,
}

impl NameError {
    /// Whether a DNS server answered that the name does not exist, or has no address.
    pub fn has_no_record(&self) -> bool {
        matches!(self, NameError::NoSuchName(_) | NameError::NoAddress(_))
    }
}

/// Looks up the addresses of names.
#[derive(Debug, Clone)]
pub struct Resolver {
    /// Folder below which `etc/hosts` and `etc/resolv.conf` are read.
    root: PathBuf,
    /// Port of the DNS servers.
    port: u16,
    /// Whether this pod has IPv6. If so, both IPv4 and IPv6 addresses are queried, since a broker may listen on only
    /// one of its two.
    has_ipv6: bool,
    /// Number of queries sent since the last call of `take_queries`.
    queries: Cell<u32>,
}

/// Lists the IPv6 addresses of this network namespace. The fourth column is the scope.
const IPV6_ADDRESSES: &str = "/proc/net/if_inet6";
/// Scope of an address that other hosts can reach.
const GLOBAL_SCOPE: &str = "00";

impl Resolver {
    /// Reads `etc/hosts` and `etc/resolv.conf` below `root`.
    pub fn new(root: &Path) -> Resolver {
        let addresses = std::fs::read_to_string(IPV6_ADDRESSES).unwrap_or_default();
        let has_ipv6 = addresses
            .lines()
            .any(|line| line.split_whitespace().nth(3) == Some(GLOBAL_SCOPE));
        Resolver {
            root: root.to_owned(),
            port: DNS_PORT,
            has_ipv6,
            queries: Cell::default(),
        }
    }

    /// Number of queries sent since the last call.
    pub fn take_queries(&self) -> u32 {
        self.queries.take()
    }

    /// The addresses of `name`, at least one.
    pub async fn lookup(&self, name: &str) -> Result<Vec<IpAddr>, NameError> {
        let known = self.lookup_locally(name);
        if known.is_empty() {
            self.lookup_in_dns(name).await
        } else {
            Ok(known)
        }
    }

    /// The addresses of `name` for which DNS is not needed: it is an address itself, or /etc/hosts has it.
    pub fn lookup_locally(&self, name: &str) -> Vec<IpAddr> {
        match name.trim_matches(['[', ']']).parse() {
            Ok(address) => vec![address],
            Err(_) => in_hosts(&self.read("etc/hosts"), name.trim_end_matches('.')),
        }
    }

    /// The addresses that DNS has for `name`, at least one, whatever /etc/hosts says.
    pub async fn lookup_in_dns(&self, name: &str) -> Result<Vec<IpAddr>, NameError> {
        let settings = Settings::parse(&self.read("etc/resolv.conf"));
        let mut last_error = NameError::NoServer;
        for full_name in settings.candidates(name) {
            match self.ask_servers(&settings.servers, &full_name).await {
                Ok(addresses) => return Ok(addresses),
                // The next name would cost the same timeouts.
                Err(error @ NameError::Silent(_)) => return Err(error),
                // After a failure, it is not known whether that name exists, even if a later one does not.
                Err(_) if matches!(last_error, NameError::Failing { .. }) => {}
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// The text of a file below `root`; empty if it cannot be read.
    fn read(&self, path: &str) -> String {
        let bytes = std::fs::read(self.root.join(path)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Asks for the addresses of a name. With IPv6, queries both A and AAAA records: in a dual-stack cluster a broker
    /// listens on only one of its addresses. Without IPv6, queries AAAA records only if the name has no A records.
    /// This halves the queries when thousands of pods start. If the name does not exist, no second query is sent.
    async fn ask_servers(&self, servers: &[IpAddr], name: &str) -> Result<Vec<IpAddr>, NameError> {
        let first = match self.query(servers, name, TYPE::A).await {
            Err(error @ (NameError::NoSuchName(_) | NameError::Silent(_))) => return Err(error),
            Err(error) if !self.has_ipv6 => return Err(error),
            Ok(answer) if !self.has_ipv6 && !answer.addresses.is_empty() => return Ok(answer.addresses),
            first => first,
        };
        let second = self.query(servers, name, TYPE::AAAA).await;
        let found: Vec<IpAddr> = [&first, &second]
            .into_iter()
            .flatten()
            .flat_map(|answer| &answer.addresses)
            .copied()
            .collect();
        if found.is_empty() {
            // If one query failed and the other answer is empty, the failure is the better explanation.
            first
                .and(second)
                .and_then(|answer| Err(NameError::NoAddress(answer.server)))
        } else {
            Ok(found)
        }
    }

    /// Sends one query to each server in turn, up to once for each of `QUERY_TIMEOUTS`. The first answer counts,
    /// whichever server and send it belongs to. A server that answers with a failure is not asked again.
    async fn query(&self, servers: &[IpAddr], name: &str, kind: TYPE) -> Result<Answer, NameError> {
        // A random number.
        let id = RandomState::new().build_hasher().finish().to_le_bytes();
        let id = u16::from_le_bytes([id[0], id[1]]);
        let question = question(id, name, kind)?;
        let mut sockets = Vec::new();
        let mut last_error = NameError::NoServer;
        let mut usable_servers = servers.to_vec();
        for query_timeout in QUERY_TIMEOUTS {
            for server in usable_servers.clone() {
                if let Err(why) = self.send(&mut sockets, server, &question).await {
                    last_error = NameError::Failing {
                        server,
                        why: crate::report::failure::plain(&why),
                    };
                    continue;
                }
                match tokio::time::timeout(query_timeout, first_answer(&sockets, id)).await {
                    Err(_) => last_error = NameError::Silent(server),
                    Ok((server, Err(error @ NameError::Failing { .. }))) => {
                        last_error = error;
                        sockets.retain(|(other, _)| *other != server);
                        usable_servers.retain(|other| *other != server);
                    }
                    Ok((server, answer)) => return answer.map(|addresses| Answer { server, addresses }),
                }
            }
        }
        Err(last_error)
    }

    /// Sends the query to `server`. Uses the socket of an earlier send to that server if there is one, so that a late
    /// answer to the earlier send is read too.
    async fn send(
        &self,
        sockets: &mut Vec<(IpAddr, UdpSocket)>,
        server: IpAddr,
        question: &[u8],
    ) -> io::Result<()> {
        if !sockets.iter().any(|(other, _)| *other == server) {
            let any_address: IpAddr = if server.is_ipv4() {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            let socket = UdpSocket::bind((any_address, 0)).await?;
            socket.connect(SocketAddr::new(server, self.port)).await?;
            sockets.push((server, socket));
        }
        for (_, socket) in sockets.iter().filter(|(other, _)| *other == server) {
            self.queries.set(self.queries.get() + 1);
            socket.send(question).await?;
        }
        Ok(())
    }
}

/// A server's successful answer; `addresses` may be empty.
#[derive(Debug)]
struct Answer {
    server: IpAddr,
    addresses: Vec<IpAddr>,
}

/// Waits for the first answer to query `id` on any of the sockets.
async fn first_answer(sockets: &[(IpAddr, UdpSocket)], id: u16) -> (IpAddr, Result<Vec<IpAddr>, NameError>) {
    std::future::poll_fn(|context| {
        for (server, socket) in sockets {
            // More than enough: by UDP, the answer to a query without extensions has 512 bytes at most.
            let mut bytes = [0_u8; 1500];
            let mut buffer = ReadBuf::new(&mut bytes);
            while let Poll::Ready(received) = socket.poll_recv(context, &mut buffer) {
                if let Err(why) = received {
                    let why = crate::report::failure::plain(&why);
                    return Poll::Ready((*server, Err(NameError::Failing { server: *server, why })));
                }
                if let Some(packet) = parse_answer(buffer.filled(), id) {
                    return Poll::Ready((*server, addresses(&packet, *server)));
                }
                buffer.clear();
            }
        }
        Poll::Pending
    })
    .await
}

/// The bytes of a query for records of the type `kind`.
fn question(id: u16, name: &str, kind: TYPE) -> Result<Vec<u8>, NameError> {
    let name = Name::new(name.trim_end_matches('.')).map_err(|_| NameError::BadName)?;
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet
        .questions
        .push(Question::new(name, kind.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().map_err(|_| NameError::BadName)
}

/// The answer to query `id`; none if the message is something else.
fn parse_answer(message: &[u8], id: u16) -> Option<Packet<'_>> {
    let packet = Packet::parse(message).ok()?;
    (packet.id() == id && packet.has_flags(PacketFlag::RESPONSE)).then_some(packet)
}

/// The addresses in the answer of `server`.
fn addresses(answer: &Packet, server: IpAddr) -> Result<Vec<IpAddr>, NameError> {
    match answer.rcode() {
        RCODE::NoError => Ok(answer
            .answers
            .iter()
            .filter_map(|record| match &record.rdata {
                RData::A(a) => Some(IpAddr::V4(Ipv4Addr::from(a.address))),
                RData::AAAA(aaaa) => Some(IpAddr::V6(Ipv6Addr::from(aaaa.address))),
                _ => None,
            })
            .collect()),
        RCODE::NameError => Err(NameError::NoSuchName(server)),
        other => Err(NameError::Failing {
            server,
            why: format!("{other:?}").to_lowercase(),
        }),
    }
}

/// The addresses of `name` in the text of /etc/hosts.
fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address: IpAddr = words.next()?.parse().ok()?;
            words
                .any(|known| known.eq_ignore_ascii_case(name))
                .then_some(address)
        })
        .collect()
}

/// What `/etc/resolv.conf` says.
#[derive(Debug, Default)]
struct Settings {
    servers: Vec<IpAddr>,
    /// Domains that complete a name without a trailing dot.
    search: Vec<String>,
}

impl Settings {
    fn parse(text: &str) -> Settings {
        let mut settings = Settings::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                // An address with a zone (fe80::1%eth0) does not parse, so it is left out.
                Some("nameserver") => settings
                    .servers
                    .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok())),
                Some("search") => settings.search = words.map(str::to_owned).collect(),
                _ => {}
            }
        }
        settings
    }

    /// The names to query for `name`, in order. Empty if there is no server.
    fn candidates(&self, name: &str) -> Vec<String> {
        if self.servers.is_empty() {
            return Vec::new();
        }
        let mut names = vec![name.to_owned()];
        if !name.ends_with('.') {
            names.extend(self.search.iter().map(|domain| format!("{name}.{domain}")));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;
    use simple_dns::{PacketFlag, ResourceRecord};

    fn root(hosts: impl AsRef<[u8]>, resolv: impl AsRef<[u8]>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/hosts"), hosts).unwrap();
        std::fs::write(root.path().join("etc/resolv.conf"), resolv).unwrap();
        root
    }

    /// The name for which `server` answers with a failure.
    const FAILING: &str = "mc-5.a.example";

    /// Starts a DNS server on the loopback that knows one name and ends after `questions` queries. Returns its port and
    /// the thread, which returns the names that it was asked for.
    fn server(known: &'static str, questions: usize) -> (u16, std::thread::JoinHandle<Vec<String>>) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for _ in 0..questions {
                let mut buffer = [0; 512];
                let (length, from) = socket.recv_from(&mut buffer).unwrap();
                let query = Packet::parse(&buffer[..length]).unwrap();
                let name = query.questions[0].qname.to_string();
                let mut reply = Packet::new_reply(query.id());
                reply.set_flags(PacketFlag::RESPONSE);
                let is_v6 = query.questions[0].qtype == TYPE::AAAA.into();
                if name == known {
                    let record = if is_v6 {
                        RData::AAAA(Ipv6Addr::LOCALHOST.into())
                    } else {
                        RData::A(Ipv4Addr::new(10, 1, 2, 3).into())
                    };
                    let owner = Name::new_unchecked(known).into_owned();
                    reply
                        .answers
                        .push(ResourceRecord::new(owner, CLASS::IN, 5, record));
                } else if name == FAILING {
                    *reply.rcode_mut() = RCODE::ServerFailure;
                } else {
                    *reply.rcode_mut() = RCODE::NameError;
                }
                asked.push(name);
                let foreign = Packet::new_reply(query.id().wrapping_add(1))
                    .build_bytes_vec()
                    .unwrap();
                socket.send_to(&foreign, from).unwrap();
                socket.send_to(&reply.build_bytes_vec().unwrap(), from).unwrap();
            }
            asked
        });
        (port, thread)
    }

    /// A resolver that asks the server on this port for IPv4 addresses.
    fn resolver(port: u16, root: &tempfile::TempDir) -> Resolver {
        Resolver {
            port,
            has_ipv6: false,
            ..Resolver::new(root.path())
        }
    }

    fn found(address: &str) -> Result<Vec<IpAddr>, NameError> {
        Ok(vec![address.parse().unwrap()])
    }

    #[test]
    fn name_with_a_trailing_dot_is_queried_once_and_unchanged() {
        let root = root(
            "",
            "nameserver 127.0.0.1\nsearch a.example b.example\noptions ndots:5\n",
        );
        let (port, thread) = server("mc-0.flux.default.svc.cluster.local", 1);
        let resolver = resolver(port, &root);
        let name = "mc-0.flux.default.svc.cluster.local.";
        assert_eq!(block_on(resolver.lookup(name)), found("10.1.2.3"));
        assert_eq!(thread.join().unwrap(), ["mc-0.flux.default.svc.cluster.local"]);
    }

    #[test]
    fn dns_is_asked_for_a_name_that_the_hosts_file_has() {
        let root = root("10.0.0.7 mc-0\n", "nameserver 127.0.0.1\n");
        let (port, thread) = server("mc-0", 1);
        let resolver = resolver(port, &root);
        assert_eq!(block_on(resolver.lookup_in_dns("mc-0")), found("10.1.2.3"));
        assert_eq!(thread.join().unwrap(), ["mc-0"]);
        assert_eq!(block_on(resolver.lookup("mc-0")), found("10.0.0.7"));
    }

    /// A pod with hostNetwork gets the node's files, which may hold bytes that are not UTF-8.
    #[test]
    fn names_are_found_in_files_with_bytes_of_another_encoding() {
        let root = root(b"10.0.0.7 lead # B\xfcro\n", b"# B\xfcro\nnameserver 127.0.0.1\n");
        let (port, thread) = server("mc-0", 1);
        let resolver = resolver(port, &root);
        assert_eq!(block_on(resolver.lookup("lead")), found("10.0.0.7"));
        assert_eq!(block_on(resolver.lookup("mc-0.")), found("10.1.2.3"));
        assert_eq!(thread.join().unwrap(), ["mc-0"]);
    }

    #[test]
    fn dual_stack_lookup_asks_for_ipv4_and_ipv6_addresses() {
        let root = root("", "nameserver 127.0.0.1\n");
        let (port, thread) = server("mc-0", 3);
        let resolver = Resolver {
            port,
            has_ipv6: true,
            ..Resolver::new(root.path())
        };
        let found = block_on(resolver.lookup("mc-0."));
        assert_eq!(
            found,
            Ok(vec!["10.1.2.3".parse().unwrap(), "::1".parse().unwrap()])
        );
        assert_eq!(resolver.take_queries(), 2);
        assert_eq!(
            block_on(resolver.lookup("mc-9.")),
            Err(NameError::NoSuchName(Ipv4Addr::LOCALHOST.into()))
        );
        assert_eq!(
            resolver.take_queries(),
            1,
            "a name that does not exist is queried once"
        );
        assert_eq!(thread.join().unwrap(), ["mc-0", "mc-0", "mc-9"]);
    }

    #[test]
    fn lookup_completes_a_short_name_and_reports_an_unknown_one() {
        let root = root(
            "10.9.9.9 own # comment mc-0\n",
            "nameserver 127.0.0.1\nsearch a.example b.example\n",
        );
        let (port, thread) = server("mc-0.b.example", 4);
        let resolver = resolver(port, &root);
        assert_eq!(block_on(resolver.lookup("own.")), found("10.9.9.9"));
        assert_eq!(resolver.take_queries(), 0);
        assert_eq!(block_on(resolver.lookup("mc-0")), found("10.1.2.3"));
        assert_eq!(resolver.take_queries(), 3);
        assert_eq!(
            block_on(resolver.lookup("mc-9.")),
            Err(NameError::NoSuchName(Ipv4Addr::LOCALHOST.into()))
        );
        assert_eq!(
            thread.join().unwrap(),
            ["mc-0", "mc-0.a.example", "mc-0.b.example", "mc-9"]
        );
    }

    #[test]
    fn name_is_not_gone_if_one_of_its_domains_failed() {
        let root = root("", "nameserver 127.0.0.1\nsearch a.example b.example\n");
        let (port, thread) = server("", 3);
        let failing = NameError::Failing {
            server: Ipv4Addr::LOCALHOST.into(),
            why: "serverfailure".into(),
        };
        assert_eq!(block_on(resolver(port, &root).lookup("mc-5")), Err(failing));
        assert_eq!(thread.join().unwrap(), ["mc-5", FAILING, "mc-5.b.example"]);
    }

    #[test]
    fn address_needs_no_server_and_a_missing_server_is_an_error() {
        let root = root("", "");
        let resolver = Resolver::new(root.path());
        assert_eq!(block_on(resolver.lookup("192.0.2.1")), found("192.0.2.1"));
        assert_eq!(block_on(resolver.lookup("[::1]")), found("::1"));
        assert_eq!(block_on(resolver.lookup("mc-0.")), Err(NameError::NoServer));
    }

    #[test]
    fn a_silent_server_is_named() {
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let root = root("", "nameserver 127.0.0.1\n");
        let resolver = Resolver {
            port: silent.local_addr().unwrap().port(),
            ..Resolver::new(root.path())
        };
        assert_eq!(
            block_on(resolver.lookup("mc-0.")),
            Err(NameError::Silent(Ipv4Addr::LOCALHOST.into()))
        );
    }

    /// Starts a server that waits before each answer. Returns its port and the number of queries that it got.
    fn slow_server(delay: Duration) -> (u16, std::sync::Arc<std::sync::atomic::AtomicU32>) {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let count = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = std::sync::Arc::clone(&count);
        std::thread::spawn(move || {
            let mut buffer = [0_u8; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let (query, socket) = (buffer[..length].to_vec(), socket.try_clone().unwrap());
                std::thread::spawn(move || {
                    std::thread::sleep(delay);
                    let mut reply = Packet::new_reply(Packet::parse(&query).unwrap().id());
                    reply.set_flags(PacketFlag::RESPONSE);
                    let record = RData::A(Ipv4Addr::new(10, 1, 2, 3).into());
                    reply.answers.push(ResourceRecord::new(
                        Name::new_unchecked("mc-0"),
                        CLASS::IN,
                        5,
                        record,
                    ));
                    let _ = socket.send_to(&reply.build_bytes_vec().unwrap(), from);
                });
            }
        });
        (port, count)
    }

    #[test]
    fn slow_answers_are_accepted_and_asked_for_rarely() {
        for (seconds, questions) in [(1, 2), (4, 3)] {
            let (port, count) = slow_server(Duration::from_secs(seconds));
            let root = root("", "nameserver 127.0.0.1\n");
            let resolver = resolver(port, &root);
            assert_eq!(
                block_on(resolver.lookup("mc-0.")),
                found("10.1.2.3"),
                "{seconds} s"
            );
            assert_eq!(
                count.load(std::sync::atomic::Ordering::Relaxed),
                questions,
                "{seconds} s"
            );
        }
    }

    #[test]
    fn a_server_that_is_down_does_not_hide_the_next_one() {
        let (port, _) = slow_server(Duration::ZERO);
        let refusing = root("", "nameserver 127.0.0.2\nnameserver 127.0.0.1\n");
        let resolver = resolver(port, &refusing);
        let begin = std::time::Instant::now();
        assert_eq!(block_on(resolver.lookup("mc-0.")), found("10.1.2.3"));
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    }
}
