//! Real jobs with the agent and with plain Flux, in turn, in their own network: `make bench-instance
//! FLUX=/path/to/flux`.
//!
//! ```text
//! output   200,000 lines and one of a mebibyte through the log
//! batch    a batch of BENCH_LINES lines
//! mpi      ping-pong within a pod and between two, and of two bare processes, with two MPI libraries
//! openmpi  `mpi` with Open MPI alone
//! mpich    `mpi` with MPICH alone
//! lammps   two tasks in one pod, and in two
//! ```
//!
//! Only the ratios mean something. Two hosts share one loopback interface, as the pods of one node share one
//! bridge. Messages between them use TCP, and so do those of the bare processes that they are compared with.
//! Needs root, and the Debian packages mpich, libmpich-dev, openmpi-bin, libopenmpi-dev and lammps.
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

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use hosts::Hosts;
use test_support::report::{Report, median, setting};

/// Time limit for one run: far more than it should take.
const DEADLINE: Duration = Duration::from_secs(1800);
/// The script of `output`: 200,000 lines, and one line of a mebibyte.
const FLOOD: &str = "awk 'BEGIN { for (i = 0; i < 200000; i++) print \"line\", i, \"of the flood\" }'\n\
                     head -c 1048576 /dev/zero | tr '\\0' x\necho\n";

/// An MPI library from Debian.
struct Library {
    name: &'static str,
    compiler: &'static str,
    /// The command that starts two bare processes.
    bare: &'static str,
    /// Variables that make messages use TCP on the loopback interface.
    tcp: &'static str,
}

const LIBRARIES: [Library; 2] = [
    Library {
        name: "openmpi",
        compiler: "mpicc.openmpi",
        bare: "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none --mca oob_tcp_if_include lo -n 2",
        tcp: "OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_pml=ob1",
    },
    Library {
        name: "mpich",
        compiler: "mpicc.mpich",
        bare: "mpiexec.mpich -bind-to none -n 2",
        tcp: "UCX_TLS=tcp,self UCX_NET_DEVICES=lo",
    },
];

fn main() {
    let lammps =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/lammps/in.lj")).unwrap();
    // `cargo bench` adds the option `--bench`. Other words name parts.
    let parts: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let flux = hosts::prepare();
    hosts::addresses(2);
    fs::write("/etc/hosts", hosts::names(2, 0)).unwrap();
    fs::write("/mnt/in.lj", lammps).unwrap();
    let mut report = Report::new(include_str!("ranges.toml"));
    let fixture = Fixture {
        flux,
        runs: setting("BENCH_RUNS", 3),
    };
    if is_wanted("output") {
        fixture.output(&mut report);
    }
    if is_wanted("batch") {
        fixture.batch(&mut report);
    }
    for library in LIBRARIES
        .iter()
        .filter(|library| is_wanted("mpi") || is_wanted(library.name))
    {
        fixture.mpi(library, &mut report);
    }
    if is_wanted("lammps") {
        fixture.lammps(&mut report);
    }
    report.print("Jobs under the agent and under plain Flux");
}

struct Fixture {
    flux: PathBuf,
    runs: usize,
}

/// The run of one job.
struct Run {
    seconds: f64,
    output: String,
}

/// A job: the number of hosts and tasks, and the script.
#[derive(Clone, Copy)]
struct Job<'a> {
    hosts: usize,
    tasks: usize,
    script: &'a str,
    /// The run is over when this is printed. None: when the lead has ended.
    last: Option<&'a str>,
}

impl Fixture {
    fn output(&self, report: &mut Report) {
        let job = Job {
            hosts: 1,
            tasks: 1,
            script: FLOOD,
            last: None,
        };
        let bare = Command::new("bash").args(["-c", FLOOD]).output().unwrap().stdout;
        let (agent, plain) = self.in_turn(|is_agent| {
            let run = self.submitted(job, is_agent);
            assert!(
                run.output.contains(std::str::from_utf8(&bare).unwrap()),
                "output is missing, agent: {is_agent}"
            );
            run.seconds
        });
        compared(report, "output", agent, plain);
    }

    fn batch(&self, report: &mut Report) {
        let lines = setting("BENCH_LINES", 200);
        let numbered: Vec<String> = (0..lines)
            .map(|number| format!("{{ number = {number}, text = 'true' }}"))
            .collect();
        hosts::write_spec(
            &self.flux,
            1,
            1,
            "",
            &format!("mode = 'batch'\nlines = [{}]\n", numbered.join(", ")),
        );
        let submit = |number| {
            format!(
                "flux submit --flags waitable --error=/mnt/flux/{number}.err --output=/mnt/flux/{number}.out true\n"
            )
        };
        let script: String = (0..lines).map(submit).collect();
        // The last three commands are those of the agent's script, which also lists what has failed (`plan/batch.rs`).
        fs::write(
            "/mnt/batch",
            format!("#!/bin/bash\n{script}flux queue idle\nflux jobs -a\nflux job wait --all\n"),
        )
        .unwrap();
        let plain = "bash -c 'flux batch -N 1 -n 1 --flags waitable /mnt/batch && flux job wait --all'";
        let (agent, plain) = self.in_turn(|is_agent| self.run(1, is_agent, plain, None).seconds);
        compared(report, "batch", agent, plain);
    }

    /// Ping-pong of one byte and of a mebibyte, between two pods and within one. Each is compared with plain
    /// Flux and with two bare processes.
    fn mpi(&self, library: &Library, report: &mut Report) {
        let program = format!("/mnt/ping-{}", library.name);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/ping.c");
        let compiled = Command::new(library.compiler)
            .args(["-O2", "-o", &program, source])
            .status();
        assert!(
            compiled.is_ok_and(|status| status.success()),
            "{} failed",
            library.compiler
        );
        for (place, hosts, variables) in [("within", 1, ""), ("between", 2, library.tcp)] {
            let script = format!("export {variables}\n{program}\n");
            // `last`: the run is over at the last result. MPICH 4.0 with UCX over TCP sometimes hangs at its end, which
            // is not measured here.
            let job = Job {
                hosts,
                tasks: 2,
                script: &script,
                last: Some("ping 1048576 "),
            };
            let bare = format!(
                "cd /mnt && env {variables} HOME=/mnt timeout -k 1 60 {} {program} 2>&1",
                library.bare
            );
            // For bare processes, plain Flux and the agent: the times of both sizes in each run.
            let mut times: [Vec<[f64; 2]>; 3] = Default::default();
            for _ in 0..self.runs {
                let output = Command::new("bash").args(["-c", &bare]).output().unwrap();
                times[0].push(fastest(&String::from_utf8_lossy(&output.stdout)));
                times[1].push(fastest(&self.submitted(job, false).output));
                times[2].push(fastest(&self.submitted(job, true).output));
            }
            for (size, at) in [("byte", 0), ("mebibyte", 1)] {
                let median_of =
                    |setup: usize| median(&times[setup].iter().map(|both| both[at]).collect::<Vec<_>>());
                let name = format!("mpi-{}-{place}-{size}", library.name);
                report.figure(&format!("{name}-us"), median_of(2));
                report.figure(&format!("{name}-of-plain"), median_of(2) / median_of(1));
                report.figure(&format!("{name}-of-bare"), median_of(2) / median_of(0));
            }
        }
    }

    fn lammps(&self, report: &mut Report) {
        // The variables of Open MPI, the library of Debian's lammps.
        let script = format!("export {}\nlmp -in /mnt/in.lj -log none\n", LIBRARIES[0].tcp);
        for (place, hosts) in [("one-pod", 1), ("two-pods", 2)] {
            let job = Job {
                hosts,
                tasks: 2,
                script: &script,
                last: None,
            };
            let (agent, plain) = self.in_turn(|is_agent| {
                let run = self.submitted(job, is_agent);
                assert!(run.output.contains("Loop time"), "{}{}", run.output, errors());
                run.seconds
            });
            compared(report, &format!("lammps-{place}"), agent, plain);
        }
    }

    /// Median times with the agent (`run(true)`) and without it.
    fn in_turn(&self, run: impl Fn(bool) -> f64) -> (f64, f64) {
        let times: Vec<[f64; 2]> = (0..self.runs).map(|_| [run(true), run(false)]).collect();
        let median_of = |setup: usize| median(&times.iter().map(|both| both[setup]).collect::<Vec<_>>());
        (median_of(0), median_of(1))
    }

    /// Runs a job with `flux submit --watch`. It is unbound in both cases, since the hosts share this machine's
    /// CPUs.
    fn submitted(&self, job: Job, is_agent: bool) -> Run {
        fs::write("/mnt/job", job.script).unwrap();
        let Job { hosts, tasks, .. } = job;
        let program = "mode = 'submit'\nwords = ['bash', '/mnt/job']\n";
        let flags = "option_flags = ['-t', '5m']\n";
        hosts::write_spec(&self.flux, hosts, tasks, flags, program);
        let submit = format!(
            "flux submit -N {hosts} -n {tasks} --quiet --watch -t 5m -o cpu-affinity=off bash /mnt/job"
        );
        self.run(hosts, is_agent, &submit, job.last)
    }

    /// Runs `program` on the lead, from the start of the hosts to the end of the lead, or until the lead has printed
    /// `last`. The agent runs the program of the spec instead.
    fn run(&self, hosts: usize, is_agent: bool, program: &str, last: Option<&str>) -> Run {
        let begin = Instant::now();
        let start = |rank: usize| {
            let program = if rank == 0 { program } else { "" };
            let script = if is_agent {
                hosts::AGENT_RUNS.into()
            } else {
                hosts::plain(hosts, rank, program)
            };
            hosts::start(&self.flux, rank, &script)
        };
        let mut running = Hosts((0..hosts).map(start).collect());
        let output = || fs::read_to_string("/mnt/log-0").unwrap();
        while running.0[0].try_wait().unwrap().is_none() && !last.is_some_and(|last| output().contains(last))
        {
            assert!(begin.elapsed() < DEADLINE, "no end in {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let seconds = begin.elapsed().as_secs_f64();
        Run {
            seconds,
            output: output(),
        }
    }
}

fn compared(report: &mut Report, name: &str, agent: f64, plain: f64) {
    report.figure(&format!("{name}-agent-s"), agent);
    report.figure(&format!("{name}-plain-s"), plain);
    report.figure(&format!("{name}-ratio"), agent / plain);
}

/// The lead's messages on standard error.
fn errors() -> String {
    fs::read_to_string("/mnt/log-0.err").unwrap_or_default()
}

/// The fastest tenth for one byte and for a mebibyte, as printed by ping.c.
fn fastest(output: &str) -> [f64; 2] {
    [1, 1 << 20].map(|bytes| {
        let head = format!("ping {bytes} ");
        let line = output.lines().find_map(|line| line.strip_prefix(&head));
        // The rest of the line is the median and the fastest tenth.
        line.and_then(|line| line.split(' ').nth(1)?.trim().parse().ok())
            .unwrap_or_else(|| panic!("no figures: {output}{}", errors()))
    })
}
