//! Stops a host that `hosts` has started.

use std::fs;
use std::process::Child;

use super::place;

/// Sends SIGTERM to the host's entrypoint, as when a pod is deleted.
pub fn terminate(host: &Child) {
    // `host` is `unshare`: its only child is process 1 of the namespace.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", host.id())).unwrap();
    place::run(&format!("kill -TERM {}", children.trim()));
}
