//! The pure crates depend on no crate that does I/O (`shared/clippy.toml` bans the functions of `std`), the plugin on
//! none of Linux, and the agent on none of Kubernetes. Checks their dependency trees as shipped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "asks cargo")]

use std::collections::BTreeSet;
use std::process::Command;

/// Crates that wait, log, draw random bytes, or use processes, files and the network.
const EFFECTS: &[&str] = &[
    "async-std",
    "futures",
    "getrandom",
    "hyper",
    "kube-client",
    "kube-runtime",
    "log",
    "mio",
    "nix",
    "rustix",
    "socket2",
    "tokio",
    "tower",
    "tracing",
];

/// The names of the crates in `package`'s dependency tree, without build and development dependencies.
fn tree(package: &str, options: &[&str]) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "tree",
        "--offline",
        "--locked",
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]);
    let output = command
        .args(["--package", package])
        .args(options)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names: BTreeSet<String> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect();
    // Without these, the output was misread, and would lack banned crates too.
    assert!(names.contains(package) && names.contains("serde"), "{names:?}");
    names
}

fn assert_without(package: &str, options: &[&str], banned: &[&str]) {
    let tree = tree(package, options);
    let found: Vec<_> = banned.iter().filter(|name| tree.contains(**name)).collect();
    assert!(found.is_empty(), "{package} {options:?} has {found:?}");
}

#[test]
fn pure_crates_depend_on_nothing_that_acts() {
    assert_without("flux-shared", &[], EFFECTS);
    assert_without("flux-shared", &["--all-features"], EFFECTS);
    assert_without("flux-agent-plan", &[], EFFECTS);
    assert_without("flux-operator-core", &[], EFFECTS);
}

/// Our programs, and crates that build only on Linux or with system libraries.
const OF_LINUX: &[&str] = &[
    "caps",
    "flux-agent",
    "flux-operator",
    "inotify",
    "linux-raw-sys",
    "neli",
    "netlink-packet-route",
    "netlink-sys",
    "nix",
    "openssl-sys",
    "procfs",
    "rtnetlink",
    "seccompiler",
];

#[test]
fn plugin_depends_on_no_program_of_ours_and_on_nothing_of_linux() {
    for target in ["x86_64-apple-darwin", "aarch64-apple-darwin"] {
        assert_without("kubectl-minicluster", &["--target", target], OF_LINUX);
    }
    // On Linux, rustix (of crossterm) needs linux-raw-sys.
    let others: Vec<&str> = OF_LINUX
        .iter()
        .copied()
        .filter(|name| *name != "linux-raw-sys")
        .collect();
    assert_without("kubectl-minicluster", &[], &others);
}

#[test]
fn agent_depends_on_no_kubernetes_crate() {
    assert_without(
        "flux-agent",
        &[],
        &[
            "k8s-openapi",
            "kube",
            "kube-client",
            "kube-core",
            "kube-derive",
            "schemars",
        ],
    );
}
