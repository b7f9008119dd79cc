//! Paths and variables that both plans and the agent use.

/// The PATH if the variable is not set, as in Debian's sh (dash).
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Folders for temporary files.
pub const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];
/// Folder of the broker's configuration in images that have their own Flux.
pub const SYSTEM_CONFIG: &str = "/etc/flux/config";
/// Folder of the broker's socket according to the documentation of v1alpha1. Without a view, the agent makes a link
/// there to the socket, if it can.
pub const SYSTEM_RUN: &str = "/run/flux";
/// Munge's daemon.
pub const MUNGE: &str = "/usr/sbin/munged";
/// Munge's key, from the image or from `flux.mungeSecret`: the same in every pod.
pub const MUNGE_KEY: &str = "/etc/munge/munge.key";

/// Variables with the user's search paths, which could break a Flux from a view (see `plan/search_paths.rs`).
pub const KEPT_FROM_FLUX: [&str; 4] = ["LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME"];

/// Name of the variable in which a broker keeps the user's value of `name`, a variable of `KEPT_FROM_FLUX`.
pub fn users_value_name(name: &str) -> String {
    format!("FLUX_AGENT_OWN_{name}")
}

/// The name of Flux's program.
pub const FLUX: &str = "flux";

/// Path of the `flux` program of an installation.
pub fn flux_below(install_root: &str) -> String {
    format!("{}/bin/flux", install_root.trim_end_matches('/'))
}

/// Folder with the homes of users.
pub const HOMES: &str = "/home";

/// Home directory of a user that the agent creates.
pub fn home_of(name: &str) -> String {
    format!("{HOMES}/{name}")
}
