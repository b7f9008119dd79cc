//! What the benchmarks `quorum` and `brokers` share: they wait for the quorum of their hosts, and then stop the hosts.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use super::place;

/// The entrypoint of each host.
#[derive(Clone, Copy, PartialEq)]
pub enum Entrypoint {
    Agent,
    /// A script that starts the broker, without the agent.
    Plain,
}

/// Waits for the note of the lead's program.
pub fn until_noted(note: &str, deadline: Duration) {
    let begin = Instant::now();
    while !Path::new(note).exists() {
        assert!(
            begin.elapsed() < deadline,
            "no quorum in {deadline:?}: see /mnt/log-0.err"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends SIGTERM to the host's entrypoint, as when a pod is deleted.
pub fn terminate(host: &Child) {
    // `host` is `unshare`: its only child is process 1 of the namespace.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", host.id())).unwrap();
    place::run(&format!("kill -TERM {}", children.trim()));
}
