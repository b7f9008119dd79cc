//! Asks the broker for its state, and the network why other brokers are missing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flux_agent_plan::plan::{BrokerAddress, Owner};
use flux_shared::exit::Category;
use flux_shared::hostlist;
use flux_shared::usage::Usage;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use super::pod::Pod;
use super::status::{self, Absent, BrokerState, Link, Observations};
use crate::execute::program_note::read_note;
use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::message::{ANY, AskError};
use crate::flux_rpc::usage;
use crate::report::activity::Activity;
use crate::report::failure::{Failure, plain};
use crate::system::below;
use crate::system::identity::Credentials;
use crate::wait::resolve::NameError;
use crate::wait::{Missing, ParentProbe};

/// How many absent hosts are probed at most. The others are only counted.
const MAX_PROBED_HOSTS: usize = 8;
/// Shortest and longest pause between two requests to a broker that is not ready.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Time between two checks whether the connection to the parent persists.
const LINK_CHECK_INTERVAL: Duration = Duration::from_millis(400);
/// Time limit of an attempt to connect to the RESTful API.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);

/// The state of this pod's broker.
pub async fn state(pod: &Pod) -> Result<BrokerState, AskError> {
    let answer = broker(pod).ask(ANY, "state-machine.get", "{}").await?;
    let name = answer["state"].as_str().unwrap_or("unknown").to_owned();
    Ok(BrokerState {
        name,
        seconds: answer["duration"].as_f64().unwrap_or_default() as u64,
    })
}

/// The broker's state, and what the entrypoint is doing if there is no broker.
pub async fn state_and_activity(pod: &Pod) -> (Result<BrokerState, AskError>, Option<Activity>) {
    let state = state(pod).await;
    let activity = if status::is_absent(&state) {
        crate::report::activity::read(&pod.termination_log)
    } else {
        None
    };
    (state, activity)
}

/// Waits up to `time` until the broker is in its running state, and the RESTful API answers if this pod serves it. The
/// error says why not and, after a wait, which brokers are missing.
pub async fn until_ready(pod: &Pod, time: Duration) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        let (state, activity) = state_and_activity(pod).await;
        let ready = match status::ready(&state, activity.as_ref()) {
            Ok(()) => check_served(pod).await,
            not_yet => not_yet,
        };
        let Err(why) = ready else { return Ok(()) };
        let left = time.saturating_sub(begin.elapsed());
        match (left.is_zero(), time.is_zero()) {
            (true, true) => return Err(why),
            (true, false) => return Err(status::with_causes(why, &all(pod, state, activity).await)),
            // Most starts are quick: ask often at first, then less and less often.
            (false, _) => {
                tokio::time::sleep(
                    (begin.elapsed() / 10)
                        .clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
                        .min(left),
                )
                .await
            }
        }
    }
}

/// Checks that the RESTful API answers, if this pod serves it; the error says why not.
pub async fn check_served(pod: &Pod) -> Result<(), String> {
    let Some(port) = pod.instance.restful_port else {
        return Ok(());
    };
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let connected = TcpStream::connect(SocketAddr::new(address, port));
        if matches!(tokio::time::timeout(CONNECT_TIMEOUT, connected).await, Ok(Ok(_))) {
            return Ok(());
        }
    }
    Err(format!("the Flux RESTful API does not answer on port {port} yet"))
}

/// Everything that can be found out from this pod.
pub async fn all(
    pod: &Pod,
    state: Result<BrokerState, AskError>,
    activity: Option<Activity>,
) -> Observations<'_> {
    let has_ended =
        status::is_absent(&state) && read_note(&pod.program_note()).is_some_and(|note| note.code.is_some());
    let mut observed = Observations {
        activity,
        has_ended,
        ..Observations::new(&pod.instance, state)
    };
    // Through a broker that has not joined yet, a request to the lead would wait for the parent.
    let joined = pod.instance.is_lead || observed.state.as_ref().is_ok_and(|state| state.has_joined());
    if joined && observed.state.is_ok() {
        let broker = broker(pod);
        // 0: the lead's rank.
        let ask = async |topic: &str, payload: &str| broker.ask(0, topic, payload).await.unwrap_or_default();
        observed.online = ranks(&ask("groups.get", "{\"name\":\"broker.online\"}").await["members"]);
        observed.torpid =
            ranks(&ask("groups.get", "{\"name\":\"broker.torpid\"}").await["members"]).unwrap_or_default();
        if observed.state.as_ref().is_ok_and(|state| state.has_resources()) {
            observed.drained = ask("resource.status", "{}").await["drain"].take();
            observed.jobs = ask("job-list.job-stats", "{}").await["job_states"].take();
            observed.recent = ask("job-list.list", RECENT_JOBS).await["jobs"].take();
        }
    }
    let offline = observed.offline();
    if let Some(parent) = &pod.instance.parent
        && !joined
    {
        observed.parent = Some((parent.host.clone(), link(parent, pod).await));
    }
    observed.absent = absent(pod, offline.into_iter().take(MAX_PROBED_HOSTS)).await;
    observed
}

/// Probes the hosts of these ranks, all at the same time: one whose DNS server is silent takes seconds.
async fn absent(pod: &Pod, ranks: impl Iterator<Item = u32>) -> Vec<Absent> {
    let tasks = LocalSet::new();
    let probe = |rank| {
        // A `ParentProbe` can probe any broker.
        let mut target = ParentProbe::of(&pod.instance.address_of(rank), &pod.root);
        (rank, tasks.spawn_local(async move { target.probe().await.err() }))
    };
    let probes: Vec<_> = ranks.map(probe).collect();
    let mut absent = Vec::new();
    for (rank, probe) in probes {
        let Ok(why) = tasks.run_until(probe).await else {
            continue;
        };
        // If a DNS server fails, the pod may exist. Without one (`local`), /etc/hosts has the names of all pods.
        let has_no_pod = why
            .as_ref()
            .is_some_and(|why| why.is_name_gone() || matches!(why, Missing::Name(NameError::NoServer)));
        // A spare host without a pod is not missing.
        if !(has_no_pod && pod.instance.spare.contains(&rank)) {
            let host = pod.instance.hosts.get(rank as usize).cloned().unwrap_or_default();
            absent.push(Absent { rank, host, why });
        }
    }
    absent
}

/// The instance's usage, or why it is unknown.
pub async fn usage(pod: &Pod) -> Result<Usage, String> {
    let (state, activity) = state_and_activity(pod).await;
    let (Ok(found), true) = (&state, state.as_ref().is_ok_and(BrokerState::has_joined)) else {
        return Err(status::ready(&state, activity.as_ref()).err().unwrap_or_default());
    };
    let instance = usage::KnownHosts {
        hosts: &pod.instance.hosts,
        spare: &pod.instance.spare,
    };
    let usage = usage::full(&broker(pod), instance, found.has_resources()).await;
    Ok(Usage {
        state: found.name.clone(),
        seconds: found.seconds,
        ..usage
    })
}

/// Payload of `job-list.list`: the first five jobs. Flux lists pending ones first, then running, then ended ones.
const RECENT_JOBS: &str = r#"{"max_entries":5,"attrs":["state","nnodes","annotations","exception_type","exception_note"],"constraint":{}}"#;

/// Whether the parent can be reached, and whether a connection to it persists for `LINK_CHECK_INTERVAL`.
async fn link(parent: &BrokerAddress, pod: &Pod) -> Result<Link, Missing> {
    ParentProbe::of(parent, &pod.root).probe().await?;
    let before = established(parent.port);
    tokio::time::sleep(LINK_CHECK_INTERVAL).await;
    let after = established(parent.port);
    Ok(if before.iter().any(|connection| after.contains(connection)) {
        Link::Steady
    } else {
        Link::Broken
    })
}

/// Local addresses of the established TCP connections to the remote port `port`, in the kernel's hexadecimal form.
fn established(port: u16) -> Vec<String> {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    tables
        .iter()
        .flat_map(|table| established_in(table, port))
        .collect()
}

fn established_in(table: &str, port: u16) -> Vec<String> {
    /// The kernel's number of the state TCP_ESTABLISHED.
    const ESTABLISHED: &str = "01";
    let port = format!(":{port:04X}");
    let local_end = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        (remote.ends_with(&port) && state == ESTABLISHED).then(|| local.to_owned())
    };
    table.lines().skip(1).filter_map(local_end).collect()
}

/// Whether the socket of this pod's broker exists. A broker that has ended may have left it behind.
pub fn has_socket(pod: &Pod) -> bool {
    std::fs::symlink_metadata(socket(pod)).is_ok_and(|data| data.file_type().is_socket())
}

fn socket(pod: &Pod) -> PathBuf {
    below(&pod.root, &pod.instance.socket)
}

/// This pod's broker, to be asked as this process's own user.
fn broker(pod: &Pod) -> Broker {
    Broker {
        socket: socket(pod),
        owner: None,
    }
}

/// If this process is root, it becomes the instance's owner, the only user whom Flux trusts. Any other user stays
/// the same, and the broker decides whether to answer.
///
/// Root connects as root only if the planned broker runs as root: any user of the pod may listen at the socket's path.
pub fn become_owner(pod: &Pod) -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    // The owner of the socket. If the socket belongs to root, or if there is none, the planned owner.
    let planned = pod.instance.owner;
    let socket_status = std::fs::symlink_metadata(socket(pod))
        .ok()
        .filter(|data| data.file_type().is_socket() && data.uid() != 0);
    let owner = socket_status.map_or(planned, |data| Owner {
        uid: data.uid(),
        gid: data.gid(),
    });
    match Credentials::of(owner, &pod.root)? {
        Some(identity) => identity.assume().map_err(|error| {
            let cause = format!(
                "failed to become uid {}, whom Flux runs as: {}",
                owner.uid,
                plain(&error)
            );
            Failure::new(Category::UserFailed, cause, "run the command as that user")
        }),
        // This process has the owner's uid and gid already.
        None => Ok(()),
    }
}

/// The ranks of an idset, such as `0-3,7`.
fn ranks(set: &Value) -> Option<Vec<u32>> {
    hostlist::idset(set.as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_established_connection_to_the_port_counts() {
        let head = "  sl  local_address rem_address   st tx_queue\n";
        let line =
            |local: &str, remote: &str, state: &str| format!("{head}   0: {local} {remote} {state} 0:0\n");
        assert_eq!(
            established_in(&line("0100007F:D431", "0100007F:1F72", "01"), 8050),
            ["0100007F:D431"]
        );
        assert!(established_in(&line("0100007F:D431", "0100007F:1F72", "02"), 8050).is_empty());
        let childs = line("0100007F:1F72", "0100007F:D431", "01");
        assert!(
            established_in(&childs, 8050).is_empty(),
            "a child's, not the parent's"
        );
        assert!(established_in(head, 8050).is_empty());
    }

    #[tokio::test]
    async fn status_probes_the_absent_hosts_at_the_same_time() {
        use nix::sys::socket::{Backlog, listen};

        let root = tempfile::tempdir().unwrap();
        let pod = Pod::of_lead("name='mc'\nsize=9", root.path());
        let names: String = (1..9)
            .map(|rank| {
                format!(
                    "127.77.0.1 {}\n",
                    pod.instance.address_of(rank).host.trim_end_matches('.')
                )
            })
            .collect();
        std::fs::write(root.path().join("etc/hosts"), names).unwrap();
        // With a full backlog, the kernel drops further connections, so each probe takes its whole timeout.
        let full = std::net::TcpListener::bind(("127.77.0.1", pod.instance.address_of(1).port)).unwrap();
        listen(&full, Backlog::new(0).unwrap()).unwrap();
        let _filling = std::net::TcpStream::connect(full.local_addr().unwrap()).unwrap();
        let begin = Instant::now();
        let found = absent(&pod, 1..9).await;
        let elapsed = begin.elapsed();
        let ranks: Vec<u32> = found.iter().map(|absent| absent.rank).collect();
        assert_eq!(ranks, (1..9).collect::<Vec<u32>>());
        assert!(
            found
                .iter()
                .all(|absent| matches!(absent.why, Some(Missing::Route { .. }))),
            "{found:?}"
        );
        assert!(elapsed < Duration::from_secs(2), "{elapsed:?}");
    }

    #[tokio::test]
    async fn spare_host_is_missing_while_dns_fails() {
        let root = tempfile::tempdir().unwrap();
        let pod = Pod::of_lead("name='mc'\nsize=1\nmax_size=2", root.path());
        assert_eq!(pod.instance.spare, [1]);
        let ranks = async || -> Vec<u32> {
            let found = absent(&pod, 1..2).await;
            found.iter().map(|absent| absent.rank).collect()
        };
        assert!(ranks().await.is_empty(), "as with `local`");
        // No DNS server listens at this address.
        std::fs::write(root.path().join("etc/resolv.conf"), "nameserver 127.77.0.2\n").unwrap();
        assert_eq!(ranks().await, [1]);
    }

    #[test]
    fn sets_of_ranks_are_read() {
        assert_eq!(ranks(&"0-2,7".into()), Some(vec![0, 1, 2, 7]));
        assert_eq!(ranks(&"3".into()), Some(vec![3]));
        assert_eq!(ranks(&"".into()), Some(vec![]));
        assert_eq!(ranks(&Value::Null), None);
        assert_eq!(ranks(&"a-b".into()), None);
    }
}
