//! What the entrypoint is at while there is no broker: told by the name of its process, which costs no file and is there
//! for `ps`, too.
#![expect(clippy::disallowed_methods, reason = "looks at the processes of the pod")]

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::path::Path;

/// Before a snippet's name, and before what is waited for. The kernel keeps 15 bytes.
const SNIPPET: &str = "run:";
const WAIT: &str = "wait:";
const USUAL: &str = "flux-agent";

/// What the entrypoint is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// The snippet of this name runs.
    Snippet(String),
    /// It tries again what has failed and may not always fail.
    Waits(Awaited),
}

/// What may come or get better by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    Spec,
    View,
    Volume,
}

impl Awaited {
    const ALL: [Awaited; 3] = [Awaited::Spec, Awaited::View, Awaited::Volume];

    const fn name(self) -> &'static str {
        match self {
            Awaited::Spec => "spec",
            Awaited::View => "view",
            Awaited::Volume => "volume",
        }
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activity::Snippet(name) => write!(f, "the snippet {name} runs"),
            Activity::Waits(Awaited::Spec) => f.write_str("its spec is not readable yet"),
            Activity::Waits(Awaited::View) => f.write_str("its view is not there yet"),
            Activity::Waits(Awaited::Volume) => f.write_str("a file cannot be written; retrying"),
        }
    }
}

/// This process is at `stage` from now on; or at nothing that takes its time.
pub fn be_known_for(stage: Option<&Activity>) {
    let name = match stage {
        None => USUAL.into(),
        Some(Activity::Snippet(name)) => format!("{SNIPPET}{name}"),
        Some(Activity::Waits(awaited)) => format!("{WAIT}{}", awaited.name()),
    };
    if let Ok(name) = CString::new(name) {
        let _ = nix::sys::prctl::set_name(&name);
    }
}

fn stage_of(name: &str) -> Option<Activity> {
    if let Some(awaited) = name.strip_prefix(WAIT) {
        return Awaited::ALL.into_iter().find(|known| known.name() == awaited).map(Activity::Waits);
    }
    name.strip_prefix(SNIPPET).map(|name| Activity::Snippet(name.to_owned()))
}

/// What this pod's `flux-agent run` is at, as the folder of processes tells it.
pub fn now(processes: &Path) -> Option<Activity> {
    let container = |process: &Path| fs::read(process.join("cgroup")).ok();
    let own = container(&processes.join("self"));
    fs::read_dir(processes).ok()?.flatten().find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let stage = stage_of(name.trim_end())?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        // A sidecar has snippets of its own, and a pod may have one process namespace; or that of its node, with other pods'
        // agents.
        let is_run = words.split(|byte| *byte == 0).nth(1) == Some(b"run");
        (is_run && container(&entry.path()) == own).then_some(stage)
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
        assert_eq!(now(processes.path()), Some(Activity::Snippet("brokerPre".into())));
        fs::create_dir(processes.path().join("self")).unwrap();
        for (own, is_told) in [("0::/a\n", true), ("0::/\n", false)] {
            fs::write(processes.path().join("self/cgroup"), own).unwrap();
            fs::write(processes.path().join("8/cgroup"), "0::/a\n").unwrap();
            assert_eq!(now(processes.path()).is_some(), is_told, "another pod's, with the node's processes");
        }
        fs::write(processes.path().join("self/cgroup"), "0::/a\n").unwrap();
        for awaited in Awaited::ALL {
            fs::write(processes.path().join("8/comm"), format!("wait:{}\n", awaited.name())).unwrap();
            assert_eq!(now(processes.path()), Some(Activity::Waits(awaited)));
        }
    }
}
