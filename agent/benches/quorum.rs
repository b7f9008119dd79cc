//! Real brokers with the agent and without it, in their own network: `make bench-quorum FLUX=/path/to/flux`.
//!
//! ```text
//! together    all start at once
//! late-name   the lead's name resolves some seconds after all are up
//! lost-syns   packets to the lead are lost for some seconds; then the lead starts
//! ```
//!
//! Each gives the time from the moment when nothing is missing any more until the quorum, which starts the lead's
//! program. Two more results: a follower's DNS queries for a lead without a name, and the time of a stop. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a program"
)]

#[path = "agent/dns.rs"]
mod dns;
#[path = "agent/hosts.rs"]
mod hosts;
#[path = "agent/place.rs"]
mod place;
#[path = "agent/stop.rs"]
mod stop;

use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hosts::{Hosts, address};
use stop::Entrypoint;
use test_support::report::{Report, median, setting};

/// Values of `tbon.connect_timeout`. None: unset.
const TIMEOUTS: [Option<&str>; 3] = [Some("1s"), Some("5s"), None];
/// How long the lead has no name: long enough for all hosts to start.
const LATE: Duration = Duration::from_secs(3);
/// How long packets to the lead are lost: longer than the set values of `TIMEOUTS`.
const LOST: Duration = Duration::from_secs(8);
/// Time limit for a quorum: far more than it should take.
const DEADLINE: Duration = Duration::from_secs(120);
/// The usual grace period of a pod.
const GRACE: Duration = Duration::from_secs(30);
/// Where the lead's program notes when it started.
const NOTE: &str = "/mnt/quorum";

#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    Together,
    LateName,
    LostSyns,
}

fn main() {
    let sizes = std::env::var("BENCH_SIZES").unwrap_or_else(|_| "4 16".into());
    let flux = hosts::prepare();
    let mut report = Report::new(include_str!("ranges.toml"));
    for size in sizes
        .split(' ')
        .map(|size| size.parse::<usize>().expect("BENCH_SIZES has numbers"))
    {
        let fixture = Fixture {
            flux: flux.clone(),
            size,
        };
        for (case, trouble) in [
            ("together", Trouble::Together),
            ("late-name", Trouble::LateName),
            ("lost-syns", Trouble::LostSyns),
        ] {
            for (setup, entrypoint) in [("agent", Entrypoint::Agent), ("plain", Entrypoint::Plain)] {
                let times = TIMEOUTS.map(|timeout| {
                    let runs =
                        (0..setting("BENCH_RUNS", 1)).map(|_| fixture.run(trouble, entrypoint, timeout));
                    median(&runs.collect::<Vec<_>>())
                });
                for (timeout, time) in TIMEOUTS.iter().zip(&times) {
                    report.figure(
                        &format!("quorum-{size}-{case}-{setup}-{}-s", timeout.unwrap_or("unset")),
                        *time,
                    );
                }
                if trouble == Trouble::LostSyns {
                    // Seconds to the quorum per second of the timeout, from 1 s to unset, which is 30 s in Flux.
                    report.figure(
                        &format!("quorum-{size}-{case}-{setup}-slope"),
                        (times[2] - times[0]) / 29.0,
                    );
                }
            }
        }
    }
    let fixture = Fixture { flux, size: 4 };
    let queries = dns::serve();
    let queries_of = |entrypoint| fixture.queries_per_second(entrypoint, &queries);
    let (agent, plain) = (queries_of(Entrypoint::Agent), queries_of(Entrypoint::Plain));
    for (figure, rate) in [
        ("agent-dns-per-s", agent),
        ("plain-dns-per-s", plain),
        ("dns-ratio", agent / plain),
    ] {
        report.figure(&format!("follower-{figure}"), rate);
    }
    report.figure("stop-agent-s", fixture.stop(Entrypoint::Agent));
    report.figure("stop-plain-s", fixture.stop(Entrypoint::Plain));
    report.print("Quorum with real brokers");
}

struct Fixture {
    flux: PathBuf,
    size: usize,
}

impl Fixture {
    /// Seconds from "nothing is missing" to the quorum.
    fn run(&self, trouble: Trouble, entrypoint: Entrypoint, timeout: Option<&str>) -> f64 {
        let _ = fs::remove_file(NOTE);
        self.write_program(
            timeout,
            &format!("date +%s.%N >{NOTE}.new && mv {NOTE}.new {NOTE}"),
        );
        fs::write("/mnt/hosts.lead", hosts::names(self.size, 0)).unwrap();
        // Rank 0 is the lead.
        let first_named_rank = if trouble == Trouble::LateName { 1 } else { 0 };
        fs::write("/etc/hosts", hosts::names(self.size, first_named_rank)).unwrap();
        hosts::addresses(self.size);
        let lead = || self.start(0, entrypoint, timeout);
        let mut hosts = Hosts(Vec::new());
        if trouble == Trouble::LostSyns {
            // `hosts::addresses` routes the whole network to `lo`. So packets to an address that no host has are lost
            // without an error.
            place::run(&format!("ip addr del {}/32 dev lo", address(0)));
        } else {
            hosts.0.push(lead());
        }
        hosts
            .0
            .extend((1..self.size).map(|rank| self.start(rank, entrypoint, timeout)));
        match trouble {
            Trouble::Together => {}
            Trouble::LateName => {
                std::thread::sleep(LATE);
                fs::write("/etc/hosts", hosts::names(self.size, 0)).unwrap();
            }
            Trouble::LostSyns => {
                std::thread::sleep(LOST);
                place::run(&format!("ip addr add {}/32 dev lo", address(0)));
                hosts.0.push(lead());
            }
        }
        let begin = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        stop::until_noted(NOTE, DEADLINE);
        fs::read_to_string(NOTE).unwrap().trim().parse::<f64>().unwrap() - begin
    }

    /// DNS queries per second of one follower whose lead has no name: over ten seconds, after its first three.
    fn queries_per_second(&self, entrypoint: Entrypoint, queries: &AtomicUsize) -> f64 {
        self.write_program(None, "true");
        // From rank 1 on: the lead has no name.
        fs::write("/etc/hosts", hosts::names(self.size, 1)).unwrap();
        hosts::addresses(self.size);
        let _follower = Hosts(vec![self.start(1, entrypoint, None)]);
        std::thread::sleep(Duration::from_secs(3));
        let (begin, before) = (Instant::now(), queries.load(Ordering::Relaxed));
        std::thread::sleep(Duration::from_secs(10));
        (queries.load(Ordering::Relaxed) - before) as f64 / begin.elapsed().as_secs_f64()
    }

    /// Seconds from the moment when the entrypoint of each host, which is process 1, gets SIGTERM until the last host
    /// has ended. If this takes longer than the grace period: the grace period.
    fn stop(&self, entrypoint: Entrypoint) -> f64 {
        let _ = fs::remove_file(NOTE);
        // The default of a MiniCluster's `connectTimeout`.
        self.write_program(Some("5s"), &format!("date +%s.%N >{NOTE} && sleep 600"));
        fs::write("/mnt/hosts.lead", hosts::names(self.size, 0)).unwrap();
        fs::write("/etc/hosts", hosts::names(self.size, 0)).unwrap();
        hosts::addresses(self.size);
        let mut hosts = Hosts(
            (0..self.size)
                .map(|rank| self.start(rank, entrypoint, Some("5s")))
                .collect(),
        );
        stop::until_noted(NOTE, DEADLINE);
        let begin = Instant::now();
        hosts.0.iter().for_each(stop::terminate);
        while begin.elapsed() < GRACE && hosts.0.iter_mut().any(|host| host.try_wait().unwrap().is_none()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        begin.elapsed().as_secs_f64()
    }

    /// Writes the lead's program, a shell script, into a spec for the agent, and into a file for plain brokers.
    fn write_program(&self, timeout: Option<&str>, script: &str) {
        let timeout = timeout.map_or(String::new(), |timeout| {
            format!("connect_timeout = \"{timeout}\"\n")
        });
        let program = format!("mode = \"launcher\"\nwords = [\"sh\", \"-c\", {script:?}]\n");
        hosts::write_spec(&self.flux, self.size, self.size, &timeout, &program);
        fs::write("/mnt/program", script).unwrap();
    }

    /// Starts the host of this rank with its entrypoint.
    fn start(&self, rank: usize, entrypoint: Entrypoint, timeout: Option<&str>) -> Child {
        // The lead always resolves its own name.
        let mount_names = if rank == 0 {
            "mount --bind /mnt/hosts.lead /etc/hosts"
        } else {
            "true"
        };
        let entrypoint = match entrypoint {
            Entrypoint::Agent => hosts::AGENT_RUNS.into(),
            Entrypoint::Plain => {
                let timeout = timeout.map_or(String::new(), |timeout| {
                    format!("-Stbon.connect_timeout={timeout}")
                });
                let program = if rank == 0 {
                    "sh -c \"$(cat /mnt/program)\""
                } else {
                    ""
                };
                // `; true` keeps bash as process 1, because bash replaces itself with the last command. A
                // script as an entrypoint stays, too.
                hosts::plain(self.size, rank, &format!("{timeout} {program}; true"))
            }
        };
        hosts::start(&self.flux, rank, &format!("{mount_names} && {entrypoint}"))
    }
}
