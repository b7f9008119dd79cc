//! Followers whose lead is missing, each in another way: what they cost while they wait. And one that has
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

/// How a lead can be missing; the first part of its cluster's name tells our DNS server what to say.
const WAYS: [&str; 4] = ["nameless", "silent", "refused", "dropped"];
const MANY: usize = 64;
/// A cluster whose lead is there.
const JOINED: &str = "joined";
const PORT: u16 = 8050;
/// A waiting follower is past its first quick attempts.
const SETTLE: Duration = Duration::from_secs(5);

pub fn measure(report: &mut Report) {
    let watched = Duration::from_secs(setting("BENCH_WAIT_SECONDS", 20) as u64);
    eprintln!(
        "wait: {} s for each way, then for {MANY} at once",
        watched.as_secs()
    );
    let queries = crate::dns::serve();
    for way in WAYS {
        let spec = crate::spec(way);
        let follower = Follower::start(way, &spec);
        std::thread::sleep(SETTLE);
        let (before, asked) = (follower.look(), queries.load(Ordering::Relaxed));
        let begin = Instant::now();
        std::thread::sleep(watched);
        let (after, seconds) = (follower.look(), begin.elapsed().as_secs_f64());
        let asked = queries.load(Ordering::Relaxed) - asked;
        report.figure(&format!("wait-{way}-rss-mib"), after.rss);
        report.figure(&format!("wait-{way}-private-mib"), after.private);
        report.figure(
            &format!("wait-{way}-wakeups-per-s"),
            (after.switches - before.switches) / seconds,
        );
        report.figure(
            &format!("wait-{way}-cpu-ms-per-s"),
            (after.cpu - before.cpu) * 1e3 / seconds,
        );
        report.figure(&format!("wait-{way}-dns-per-s"), asked as f64 / seconds);
    }
    joined(report, watched);
    let spec = crate::spec(WAYS[0]);
    let followers: Vec<Follower> = (0..MANY).map(|_| Follower::start(WAYS[0], &spec)).collect();
    std::thread::sleep(SETTLE);
    let asked = queries.load(Ordering::Relaxed);
    let begin = Instant::now();
    std::thread::sleep(watched);
    let rate = (queries.load(Ordering::Relaxed) - asked) as f64 / begin.elapsed().as_secs_f64();
    report.figure("wait-64-dns-per-s", rate);
    drop(followers);
}

/// What a follower's agent costs beside a broker that has joined: it looks whether the connection stands.
fn joined(report: &mut Report, watched: Duration) {
    let listener = TcpListener::bind((IpAddr::from(LEAD), PORT)).unwrap();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let follower = Follower::start(JOINED, &crate::spec(JOINED));
    std::thread::sleep(SETTLE);
    let (before, begin) = (follower.look(), Instant::now());
    std::thread::sleep(watched);
    let (after, seconds) = (follower.look(), begin.elapsed().as_secs_f64());
    report.figure("joined-cpu-percent", (after.cpu - before.cpu) * 100.0 / seconds);
    report.figure(
        "joined-wakeups-per-s",
        (after.switches - before.switches) / seconds,
    );
}

/// Whether this process is the broker of a follower whose lead is there.
pub fn is_joined() -> bool {
    nix::unistd::gethostname().is_ok_and(|name| name.to_string_lossy().starts_with(JOINED))
}

/// As long as the lead, which is this bench, is there.
pub fn stay_joined() {
    let mut lead = TcpStream::connect((IpAddr::from(LEAD), PORT)).unwrap();
    let _ = lead.read(&mut [0]);
}

struct Follower(Child);

struct Look {
    /// Resident, MiB.
    rss: f64,
    /// Without the pages of the binary, MiB.
    private: f64,
    switches: f64,
    /// Seconds.
    cpu: f64,
}

impl Follower {
    fn start(cluster: &str, spec: &str) -> Follower {
        // One process from the shell on, with a host name of its own.
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

    fn look(&self) -> Look {
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
        let switches = field("voluntary_ctxt_switches");
        let nanoseconds = fs::read_to_string(format!("/proc/{id}/schedstat")).unwrap();
        let nanoseconds: f64 = nanoseconds.split(' ').next().unwrap().parse().unwrap();
        Look {
            rss: field("VmRSS") / 1024.0,
            private: field("RssAnon") / 1024.0,
            switches,
            cpu: nanoseconds / 1e9,
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
