//! One instance of many real brokers, under the agent and under plain Flux, in turn:
//! `make bench-brokers FLUX=/path/to/flux` (`BENCH_BROKERS`, 256 if unset).
//!
//! For a flat tree of brokers, and for a tree in which each has up to 16 children: seconds from the first process
//! to the quorum, memory of a host (its broker and what started it), and seconds from the stop to the end of the
//! last host. All brokers share this machine's processors, so only the ratios mean something. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a program"
)]

#[path = "agent/hosts.rs"]
mod hosts;
#[path = "agent/place.rs"]
mod place;
#[path = "agent/stop.rs"]
mod stop;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use hosts::Hosts;
use stop::Entrypoint;
use test_support::report::{Report, median, setting};

/// Time limit for the quorum, and for the end of all hosts: far more than either should take.
const DEADLINE: Duration = Duration::from_secs(1200);
/// Where the lead's program notes the depth of the tree when it runs.
const NOTE: &str = "/mnt/brokers";

/// Each tree's name in the report, and its `tbon.topo`. With up to 257 brokers, `kary:256` is flat.
const TREES: [(&str, &str); 2] = [("flat", "kary:256"), ("kary-16", "kary:16")];

/// Measurements of one instance.
struct Figures {
    quorum_s: f64,
    mib_per_host: f64,
    stop_s: f64,
    depth: String,
}

fn main() {
    let size = setting("BENCH_BROKERS", 256);
    let flux = hosts::prepare();
    let mut report = Report::new(include_str!("ranges.toml"));
    for (tree, topology) in TREES {
        let (mut agent_runs, mut plain_runs) = (Vec::new(), Vec::new());
        for _ in 0..setting("BENCH_RUNS", 1) {
            agent_runs.push(run(&flux, size, topology, Entrypoint::Agent));
            plain_runs.push(run(&flux, size, topology, Entrypoint::Plain));
        }
        assert!(
            agent_runs
                .iter()
                .chain(&plain_runs)
                .all(|figures| figures.depth == plain_runs[0].depth),
            "the trees of {topology} differ in depth"
        );
        let median_of = |all: &[Figures], figure: fn(&Figures) -> f64| {
            median(&all.iter().map(figure).collect::<Vec<_>>())
        };
        for (quantity, unit, figure) in [
            ("quorum", "s", (|figures| figures.quorum_s) as fn(&Figures) -> f64),
            ("memory", "mib", |figures| figures.mib_per_host),
            ("stop", "s", |figures| figures.stop_s),
        ] {
            let (ours, theirs) = (median_of(&agent_runs, figure), median_of(&plain_runs, figure));
            report.figure(&format!("brokers-{tree}-{quantity}-agent-{unit}"), ours);
            report.figure(&format!("brokers-{tree}-{quantity}-plain-{unit}"), theirs);
            report.figure(&format!("brokers-{tree}-{quantity}-ratio"), ours / theirs);
        }
    }
    report.print(&format!("Instances of {size} real brokers"));
}

fn run(flux: &Path, size: usize, topology: &str, entrypoint: Entrypoint) -> Figures {
    let _ = fs::remove_file(NOTE);
    let program = format!("flux getattr tbon.maxlevel >{NOTE}.new && mv {NOTE}.new {NOTE} && sleep 3600");
    write_spec(flux, size, topology, &program);
    // The names of all ranks, from 0 on.
    fs::write("/etc/hosts", hosts::names(size, 0)).unwrap();
    hosts::addresses(size);
    let begin = Instant::now();
    let mut all = Hosts(
        (0..size)
            .map(|rank| {
                let script = match entrypoint {
                    Entrypoint::Agent => hosts::AGENT_RUNS.into(),
                    Entrypoint::Plain => plain(size, rank, topology, &program),
                };
                hosts::start(flux, rank, &script)
            })
            .collect(),
    );
    stop::until_noted(NOTE, DEADLINE);
    let quorum_s = begin.elapsed().as_secs_f64();
    // Gives the brokers time for the start-up work that follows the quorum.
    std::thread::sleep(Duration::from_secs(5));
    let mib_per_host = memory_mib(&all.0) / size as f64;
    let begin = Instant::now();
    match entrypoint {
        Entrypoint::Agent => all.0.iter().for_each(stop::terminate),
        // Without the agent, only the lead's broker gets the signal. It stops all others.
        Entrypoint::Plain => place::run(&format!("kill -TERM {}", lead_broker(&all.0[0]))),
    }
    while all.0.iter_mut().any(|host| host.try_wait().unwrap().is_none()) {
        assert!(begin.elapsed() < DEADLINE, "no end in {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Figures {
        quorum_s,
        mib_per_host,
        stop_s: begin.elapsed().as_secs_f64(),
        depth: fs::read_to_string(NOTE).unwrap(),
    }
}

/// The script of a host without the agent.
fn plain(size: usize, rank: usize, topology: &str, program: &str) -> String {
    let program = if rank == 0 {
        format!("sh -c '{program}'")
    } else {
        String::new()
    };
    // Without `; true`, `bash -c` would replace itself with `flux start`, its last command. With it, bash stays as
    // process 1, like a script that is an image's entrypoint.
    hosts::plain(size, rank, &format!("-Stbon.topo={topology} {program}; true"))
}

/// Writes the spec for the agent. Its `connect_timeout` is the default of a MiniCluster. Plain brokers keep Flux's.
fn write_spec(flux: &Path, size: usize, topology: &str, program: &str) {
    let of_flux = format!("connect_timeout = \"5s\"\ntopology = \"{topology}\"\n");
    let program = format!("mode = \"launcher\"\nwords = [\"sh\", \"-c\", {program:?}]\n");
    hosts::write_spec(flux, size, 1, &of_flux, &program);
}

/// The children of each process.
fn children() -> BTreeMap<u32, Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap() {
        let name = entry.unwrap().file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        // The name is in parentheses and may contain any character. The state and the parent follow.
        let parent = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap();
        children.entry(parent.parse().unwrap()).or_default().push(pid);
    }
    children
}

/// The pids of the hosts' first processes and of all processes below them.
fn with_descendants(hosts: &[Child]) -> BTreeSet<u32> {
    let children = children();
    let mut found = BTreeSet::new();
    let mut open: Vec<u32> = hosts.iter().map(Child::id).collect();
    while let Some(pid) = open.pop() {
        found.insert(pid);
        open.extend(children.get(&pid).into_iter().flatten());
    }
    found
}

/// The memory of the hosts' processes (PSS: a page that several processes share counts once in all).
fn memory_mib(hosts: &[Child]) -> f64 {
    let kib = |pid| -> Option<f64> {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    with_descendants(hosts).into_iter().filter_map(kib).sum::<f64>() / 1024.0
}

/// The pid of the lead's broker. A broker's process name is `flux-broker` with the rank after it.
fn lead_broker(lead: &Child) -> u32 {
    let is_broker = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("flux-broker"))
    };
    with_descendants(std::slice::from_ref(lead))
        .into_iter()
        .find(is_broker)
        .expect("the lead's broker runs")
}
