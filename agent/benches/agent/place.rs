//! The environment of the agent in the benchmarks: as in a pod, with its own mounts, host name and network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::{CloneFlags, unshare};

/// Name of the cluster in the measurement `start`. The benchmark's host name is that of the cluster's lead.
pub const CLUSTER: &str = "hello-world";

/// Where a copy of this program is: the fake `flux` of the benchmark `agent`.
pub const FAKE_FLUX: &str = "/mnt/flux/view/bin/flux";
/// Where the agent is: the path to which `flux-agent install` installs it.
pub const AGENT: &str = "/mnt/flux/flux-agent";

/// The shipped binary: `FLUX_AGENT`, or the one from `make dist`.
pub fn agent() -> PathBuf {
    let dist = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/flux-agent"));
    let path = std::env::var_os("FLUX_AGENT").map_or(dist, PathBuf::from);
    path.canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}; run `make dist` first", path.display()))
}

/// Moves this process, which must have only one thread, into its own namespaces.
pub fn enter(agent: &Path) {
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    let mut flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWNET;
    if !uid.is_root() {
        flags |= CloneFlags::CLONE_NEWUSER;
    }
    unshare(flags).expect("namespaces of its own (as root, or where users may have them)");
    if !uid.is_root() {
        // The kernel requires this before a gid_map.
        fs::write("/proc/self/setgroups", "deny").unwrap();
        fs::write("/proc/self/uid_map", format!("0 {uid} 1")).unwrap();
        fs::write("/proc/self/gid_map", format!("0 {gid} 1")).unwrap();
    }
    nix::unistd::sethostname(format!("{CLUSTER}-0")).unwrap();
    // Like a view's, the folder `view` has programs and Python's packages: the agent looks for both.
    for line in [
        "mount --make-rprivate /",
        "mount -t tmpfs tmpfs /mnt",
        "mkdir -p /mnt/flux/view/bin /mnt/flux/view/lib/python3.11/site-packages /mnt/etc /mnt/work",
        "mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work /etc",
        "mkdir -p /etc/flux-agent/curve",
        "ip link set lo up",
    ] {
        run(line);
    }
    let search = "default.svc.cluster.local svc.cluster.local cluster.local";
    fs::write(
        "/etc/resolv.conf",
        format!("nameserver 127.0.0.1\nsearch {search}\noptions ndots:5\n"),
    )
    .unwrap();
    // Made-up keys: the fake flux does not use them.
    let certificate = flux_shared::curve::Certificate::from_keys(CLUSTER, &[1; 32], &[2; 32]);
    fs::write("/etc/flux-agent/curve/curve.cert", certificate.to_text()).unwrap();
    // Packets loop back to this host, which does not forward: addresses in this network are silent.
    run("ip route add 198.51.100.0/24 dev lo");
    fs::copy("/proc/self/exe", FAKE_FLUX).unwrap();
    fs::copy(agent, AGENT).unwrap();
}

/// Runs a command whose words are separated by single blanks.
pub fn run(line: &str) {
    let mut words = line.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.is_ok_and(|status| status.success()), "{line} failed");
}
