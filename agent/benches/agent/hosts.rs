//! Hosts with real brokers, with or without the agent, for the benchmarks `quorum`, `brokers` and `instance`.
//! Each host has its own mounts, name and address. All are on one loopback interface, and resolve each other by
//! /etc/hosts.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::place;

pub const CLUSTER: &str = "q";
const DOMAIN: &str = "flux-service.default.svc.cluster.local";
/// The entrypoint with the agent.
pub const AGENT_RUNS: &str =
    "exec /mnt/agent run --spec /mnt/spec.toml --termination-log /mnt/flux/termination";

/// Hosts that end when this is dropped, with all their processes.
pub struct Hosts(pub Vec<Child>);

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // This ends `unshare`. By `--kill-child`, process 1 of the host ends with it, and so do all others.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Moves this process into the namespaces of the benchmark, and returns the path of flux (`FLUX`). The agent is
/// `FLUX_AGENT`, or the one from `make dist`.
pub fn prepare() -> PathBuf {
    let flux = std::env::var_os("FLUX").expect("FLUX must name flux, such as /opt/flux/bin/flux");
    let flux = PathBuf::from(flux);
    place::enter(&place::agent());
    // Each host mounts a tmpfs over /mnt/flux, which hides the agent there.
    fs::copy(place::AGENT, "/mnt/agent").unwrap();
    let certificate = "/etc/flux-agent/curve/curve.cert";
    // Real brokers need a certificate made by Flux. The one that `place::enter` wrote has made-up keys.
    fs::remove_file(certificate).unwrap();
    place::run(&format!("{} keygen --name=bench {certificate}", flux.display()));
    flux
}

/// Writes the spec for the agent. `of_flux`: lines of `[flux]`. `program`: lines of `[runner.program]`.
pub fn write_spec(flux: &Path, size: usize, tasks: usize, of_flux: &str, program: &str) {
    // `flux` is ROOT/bin/flux.
    let root = flux.ancestors().nth(2).unwrap().display();
    let text = format!(
        "name = \"{CLUSTER}\"\nsize = {size}\ntasks = {tasks}\n[view]\nenabled = false\ninstall_root = \"{root}\"\n\
         [flux]\n{of_flux}[runner]\nlogs = \"/mnt/flux/logs\"\n[runner.program]\n{program}"
    );
    fs::write("/mnt/spec.toml", text).unwrap();
}

pub fn address(rank: usize) -> String {
    format!("198.18.{}.{}", rank / 250, rank % 250 + 1)
}

/// Adds the address of each rank to the loopback interface.
pub fn addresses(size: usize) {
    for rank in 0..size {
        let line = format!("addr replace {}/32 dev lo", address(rank));
        assert!(
            Command::new("ip")
                .args(line.split(' '))
                .status()
                .unwrap()
                .success()
        );
    }
    // The benchmark `quorum` removes an address to lose packets: with this route, they are lost without an error.
    place::run("ip route replace 198.18.0.0/16 dev lo");
}

/// Text of /etc/hosts with the ranks from `first` on. With 1, the lead has no name, as before DNS knows it.
pub fn names(size: usize, first: usize) -> String {
    let mut text = "127.0.0.1 localhost\n".to_owned();
    for rank in first..size {
        writeln!(
            text,
            "{} {CLUSTER}-{rank}.{DOMAIN} {CLUSTER}-{rank}",
            address(rank)
        )
        .unwrap();
    }
    text
}

/// Starts a host whose entrypoint is the shell script `script`. Its output is in /mnt/log-RANK and
/// /mnt/log-RANK.err.
pub fn start(flux: &Path, rank: usize, script: &str) -> Child {
    let script = format!(
        "hostname {CLUSTER}-{rank} && mount -t tmpfs tmpfs /mnt/flux && mkdir -p /mnt/flux/home && \
         ln -s /mnt/agent /mnt/flux/flux-agent && cd /mnt/flux/home && {script}"
    );
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "bash",
        "-c",
        &script,
    ]);
    let bin = flux.parent().unwrap().display();
    command
        .env_clear()
        .env("PATH", format!("{bin}:/usr/sbin:/usr/bin:/sbin:/bin"))
        .env("HOME", "/mnt/flux/home");
    let log = |kind: &str| fs::File::create(format!("/mnt/log-{rank}{kind}")).unwrap();
    command.stdin(Stdio::null()).stdout(log("")).stderr(log(".err"));
    command.spawn().unwrap()
}

/// A shell script that starts a broker at once, without the agent, with the same tree as the agent's default
/// (flat). `more` is the end of the command line. (`flux start` passes the word after `-o`, and all words after
/// its own options, to the broker.)
pub fn plain(size: usize, rank: usize, more: &str) -> String {
    let hostlist = format!("{CLUSTER}-[0-{}]", size - 1);
    format!(
        "mkdir -p /mnt/flux/run /mnt/flux/state /mnt/flux/config && install -m 400 /etc/flux-agent/curve/curve.cert /mnt/flux/curve.cert && \
         flux R encode --hosts={hostlist} --local >/mnt/flux/R && cat >/mnt/flux/config/broker.toml <<END\n\
         [bootstrap]\ncurve_cert = \"/mnt/flux/curve.cert\"\ndefault_port = 8050\n\
         default_bind = \"tcp://{}:%p\"\ndefault_connect = \"tcp://%h.{DOMAIN}:%p\"\nhosts = [ {{ host = \"{hostlist}\" }} ]\n\
         [resource]\npath = \"/mnt/flux/R\"\nEND\n\
         flux start -o --config /mnt/flux/config -Stbon.fanout=256 -Srundir=/mnt/flux/run -Sstatedir=/mnt/flux/state {more}",
        address(rank)
    )
}
