//! Measures what a follower costs while it waits for a lead that is missing in one of four ways, and once it has
//! joined.

use std::fs;
use std::io::Read;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::dns::LEAD;
use crate::place::AGENT;
use test_support::report::{Report, setting};

/// How a lead can be missing: its name does not exist, DNS does not answer, nobody listens at its address, or its
/// address is silent. The cluster has the same name, from which our DNS server (`dns`) derives its answer.
const WAYS: [&str; 4] = [NAMELESS, "silent", "refused", "dropped"];
/// The cluster whose lead's name has no address.
const NAMELESS: &str = "nameless";
/// Followers at once.
const MANY: usize = 64;
/// The name of a cluster whose lead is there.
const JOINED: &str = "joined";
/// The port on which brokers listen: the default of `network.port` in the spec.
const PORT: u16 = 8050;
/// Long enough for a follower to start and, if its lead is there, to join.
const SETTLE: Duration = Duration::from_secs(5);

pub fn measure(report: &mut Report) {
    let watched = Duration::from_secs(setting("BENCH_WAIT_SECONDS", 20) as u64);
    eprintln!(
        "wait: {} s for each way, then for {MANY} at once",
        watched.as_secs()
    );
    let queries = crate::dns::serve();
    for way in WAYS {
        let spec = crate::write_spec(way);
        let follower = Follower::start(way, &spec);
        std::thread::sleep(SETTLE);
        let queries_before = queries.load(Ordering::Relaxed);
        let before = follower.sample();
        let begin = Instant::now();
        std::thread::sleep(watched);
        let after = follower.sample();
        let seconds = begin.elapsed().as_secs_f64();
        let new_queries = queries.load(Ordering::Relaxed) - queries_before;
        report.figure(&format!("wait-{way}-rss-mib"), after.resident_mib);
        report.figure(&format!("wait-{way}-private-mib"), after.private_mib);
        report.figure(
            &format!("wait-{way}-wakeups-per-s"),
            (after.wakeups - before.wakeups) / seconds,
        );
        report.figure(
            &format!("wait-{way}-cpu-ms-per-s"),
            (after.cpu_seconds - before.cpu_seconds) * 1e3 / seconds,
        );
        report.figure(&format!("wait-{way}-dns-per-s"), new_queries as f64 / seconds);
    }
    joined(report, watched);
    // Many followers of a lead without a name.
    let spec = crate::write_spec(NAMELESS);
    let followers: Vec<Follower> = (0..MANY).map(|_| Follower::start(NAMELESS, &spec)).collect();
    std::thread::sleep(SETTLE);
    let queries_before = queries.load(Ordering::Relaxed);
    let begin = Instant::now();
    std::thread::sleep(watched);
    let rate = (queries.load(Ordering::Relaxed) - queries_before) as f64 / begin.elapsed().as_secs_f64();
    report.figure(&format!("wait-{MANY}-dns-per-s"), rate);
    drop(followers);
}

/// The cost of a follower's agent next to a broker that has joined. The agent watches its child. It also waits for the
/// broker's socket, which the fake flux does not have. So the figures leave out the stream of the broker's state.
fn joined(report: &mut Report, watched: Duration) {
    let listener = TcpListener::bind((IpAddr::from(LEAD), PORT)).unwrap();
    // Accepts every connection and keeps it open: this is the lead.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let follower = Follower::start(JOINED, &crate::write_spec(JOINED));
    std::thread::sleep(SETTLE);
    let before = follower.sample();
    let begin = Instant::now();
    std::thread::sleep(watched);
    let after = follower.sample();
    let seconds = begin.elapsed().as_secs_f64();
    report.figure(
        "joined-cpu-percent",
        (after.cpu_seconds - before.cpu_seconds) * 100.0 / seconds,
    );
    report.figure("joined-wakeups-per-s", (after.wakeups - before.wakeups) / seconds);
}

/// In the fake `flux`: whether it is the broker of a follower whose lead exists.
pub fn is_fake_of_joined() -> bool {
    nix::unistd::gethostname().is_ok_and(|name| name.to_string_lossy().starts_with(JOINED))
}

/// In the fake `flux`: stays connected until the lead, which is this bench's listener, closes.
pub fn stay_joined() {
    let mut lead = TcpStream::connect((IpAddr::from(LEAD), PORT)).unwrap();
    let _ = lead.read(&mut [0]);
}

struct Follower(Child);

/// Resource usage of a process. Wake-ups and CPU time are those of its main thread, which runs the agent's event loop.
struct Sample {
    resident_mib: f64,
    /// Without the pages of the binary.
    private_mib: f64,
    /// Voluntary context switches.
    wakeups: f64,
    cpu_seconds: f64,
}

impl Follower {
    fn start(cluster: &str, spec: &str) -> Follower {
        // The follower has its own host name, and the child's pid is the agent's. `$0` is the word after the
        // script: the agent.
        let script = format!(
            "hostname {cluster}-1 && exec \"$0\" run --spec {spec} --termination-log /mnt/termination"
        );
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", &script]).arg(AGENT);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Follower(command.spawn().expect("unshare"))
    }

    fn sample(&self) -> Sample {
        let id = self.0.id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let field = |name: &str| -> f64 {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap_or_else(|| panic!("{name}: it ended?"));
            line.trim_start_matches(':')
                .split_whitespace()
                .next()
                .unwrap()
                .parse()
                .unwrap()
        };
        let nanoseconds = fs::read_to_string(format!("/proc/{id}/schedstat")).unwrap();
        // The first word is the time on a CPU.
        let nanoseconds: f64 = nanoseconds.split(' ').next().unwrap().parse().unwrap();
        Sample {
            resident_mib: field("VmRSS") / 1024.0,
            private_mib: field("RssAnon") / 1024.0,
            wakeups: field("voluntary_ctxt_switches"),
            cpu_seconds: nanoseconds / 1e9,
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
