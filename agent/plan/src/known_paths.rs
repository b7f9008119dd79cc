//! Paths in images: the agent reads facts about them, and plans name them.

/// The PATH where none is set, as shells have it.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Folders for temporary files.
pub const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];
/// Where images with a Flux of their own have the broker's configuration.
pub const SYSTEM_CONFIG: &str = "/etc/flux/config";
/// Folder of the broker's socket by the documents of v1alpha1.
pub const SYSTEM_RUN: &str = "/run/flux";
/// Munge's daemon.
pub const MUNGE: &str = "/usr/sbin/munged";
/// Munge's key, from the image or from `flux.mungeSecret`: the same in every pod.
pub const MUNGE_KEY: &str = "/etc/munge/munge.key";

/// Variables with search paths of the user's, which Flux from a view must not see.
pub const KEPT_FROM_FLUX: [&str; 3] = ["LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME"];

/// The variable in which a broker carries the user's value of one that is kept from it.
pub fn users_value_name(name: &str) -> String {
    format!("FLUX_AGENT_OWN_{name}")
}

/// The `flux` program of an installation.
pub fn flux_below(install_root: &str) -> String {
    format!("{}/bin/flux", install_root.trim_end_matches('/'))
}

/// The home of a user that the agent makes.
pub fn home_of(name: &str) -> String {
    format!("/home/{name}")
}

/// Where Flux Accounting's command is, if it was installed with this `flux`.
pub fn accounting_of(flux: &str) -> Option<String> {
    Some(format!(
        "{}/libexec/flux/cmd/flux-account.py",
        flux.strip_suffix("/bin/flux")?
    ))
}
