//! What the entrypoint is at while there is no broker: told by the name of its process, which costs no file and is there
//! for `ps`, too.
#![expect(clippy::disallowed_methods, reason = "looks at the processes of the pod")]

use std::ffi::CString;
use std::fs;
use std::path::Path;

/// Before a snippet's name. The kernel keeps 15 bytes.
const PREFIX: &str = "run:";
const USUAL: &str = "flux-agent";

/// This process runs the snippet `name` from now on; or no snippet any more.
pub fn be_known_for(name: Option<&str>) {
    let name = name.map_or(USUAL.into(), |name| format!("{PREFIX}{name}"));
    if let Ok(name) = CString::new(name) {
        let _ = nix::sys::prctl::set_name(&name);
    }
}

/// The snippet that this pod's `flux-agent run` is at, as the folder of processes tells it.
pub fn now(processes: &Path) -> Option<String> {
    fs::read_dir(processes).ok()?.flatten().find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let name = name.trim_end().strip_prefix(PREFIX)?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        // A sidecar has snippets of its own, and a pod may have one process namespace.
        (words.split(|byte| *byte == 0).nth(1) == Some(b"run")).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_entrypoint_that_runs_a_snippet_counts() {
        let processes = tempfile::tempdir().unwrap();
        for (id, name, words) in [
            ("7", "run:servicePre", "/mnt/flux/flux-agent\0sidecar\0a\0"),
            ("8", "flux-agent", "/mnt/flux/flux-agent\0run\0"),
            ("uptime", "", ""),
        ] {
            let folder = processes.path().join(id);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
            fs::write(folder.join("cmdline"), words).unwrap();
        }
        assert_eq!(now(processes.path()), None);
        fs::write(processes.path().join("8/comm"), "run:brokerPre\n").unwrap();
        assert_eq!(now(processes.path()), Some("brokerPre".into()));
    }
}
