//! Paths in any image that the facts look at and the plan names.

/// The PATH where none is set, as shells have it.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Folders for temporary files.
pub const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];
/// Where Design 3.3 has the broker's configuration.
pub const SYSTEM_CONFIG: &str = "/etc/flux/config";
/// Paths of the user's that Flux from a view must not follow.
pub const KEPT_FROM_FLUX: [&str; 3] = ["LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME"];
/// The name under which a broker carries a variable that is kept from it.
pub fn own_name(name: &str) -> String {
    format!("FLUX_AGENT_OWN_{name}")
}
/// Folder of the broker's socket by the documents of v1alpha1.
pub const SYSTEM_RUN: &str = "/run/flux";
/// Munge's daemon.
pub const MUNGE: &str = "/usr/sbin/munged";
/// Munge's key, from the image or from `flux.mungeSecret`: the same in every pod.
pub const MUNGE_KEY: &str = "/etc/munge/munge.key";

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
