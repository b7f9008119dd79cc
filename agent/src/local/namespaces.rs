//! Namespaces of the whole run: a network namespace and, without root, a user namespace in which the caller
//! is root.

use std::io;

use flux_shared::exit::Category;
use nix::sched::{CloneFlags, unshare};

use super::containers::Machine;
use crate::report::failure::{Failure, plain};

/// Moves this process, and so all that it starts, into namespaces of its own. Call it while the process has one thread:
/// the kernel refuses a new user namespace to a process with several (unshare(2)).
pub fn enter(machine: &Machine) -> Result<(), Failure> {
    if machine.is_root() {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| refused(&error.into()))
    } else {
        unshare(CloneFlags::CLONE_NEWUSER).map_err(|error| refused(&error.into()))?;
        map_ids(machine).map_err(|error| refused(&error))?;
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| refused(&error.into()))
    }
}

/// Makes the caller root in this namespace; no other user is mapped.
fn map_ids(machine: &Machine) -> io::Result<()> {
    // Without this, the kernel lets only root write the map of groups (user_namespaces(7)).
    std::fs::write("/proc/self/setgroups", "deny")?;
    // Uid inside, uid outside, number of uids.
    std::fs::write("/proc/self/uid_map", format!("0 {} 1", machine.uid))?;
    std::fs::write("/proc/self/gid_map", format!("0 {} 1", machine.gid))
}

fn refused(error: &io::Error) -> Failure {
    let cause = format!("failed to create namespaces: {}", plain(error));
    let remedy = "run it as root, or on a kernel that lets users create them (user.max_user_namespaces, \
                  kernel.unprivileged_userns_clone, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)";
    Failure::new(Category::Internal, cause, remedy)
}
