//! What the entrypoint is doing while no broker runs. The entrypoint writes this to the file of the container's
//! termination message, where `flux-agent status` reads it. The kubelet recreates that file for each start, any
//! user may write to it, and a full or read-only volume does not matter. If the container is killed meanwhile,
//! Kubernetes shows the text as the termination message.

use std::fmt;
use std::path::{Path, PathBuf};

use super::failure::write_termination;

/// What the entrypoint is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// Runs the snippet with this name.
    Snippet(String),
    /// Retries a step whose failure may be temporary.
    Retrying(Awaited),
}

/// What must become possible before a retried step can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// To read the AgentSpec.
    Spec,
    /// To find the view.
    View,
    /// To write a file.
    Volume,
    /// To start a process.
    Process,
}

impl Awaited {
    const ALL: [Awaited; 4] = [Awaited::Spec, Awaited::View, Awaited::Volume, Awaited::Process];
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activity::Snippet(name) => write!(f, "the snippet {name} runs"),
            Activity::Retrying(Awaited::Spec) => f.write_str("its spec is not readable yet"),
            Activity::Retrying(Awaited::View) => f.write_str("its view is not there yet"),
            Activity::Retrying(Awaited::Volume) => f.write_str("a file cannot be written; retrying"),
            Activity::Retrying(Awaited::Process) => f.write_str("its program cannot be started; retrying"),
        }
    }
}

impl Activity {
    /// Parses what `Display` writes.
    fn parse(line: &str) -> Option<Activity> {
        let snippet = line
            .strip_prefix("the snippet ")
            .and_then(|rest| rest.strip_suffix(" runs"));
        let retrying = || {
            Awaited::ALL
                .map(Activity::Retrying)
                .into_iter()
                .find(|activity| activity.to_string() == line)
        };
        snippet
            .map(|name| Activity::Snippet(name.to_owned()))
            .or_else(retrying)
    }
}

/// The file where the entrypoint writes what it is doing. A sidecar has none and writes nothing.
#[derive(Debug, Clone, Default)]
pub struct ActivityFile(pub Option<PathBuf>);

impl ActivityFile {
    /// Writes what the entrypoint is doing from now on. `None` empties the file: nothing is worth reporting.
    pub fn write(&self, activity: Option<&Activity>) {
        if let Some(path) = &self.0 {
            write_termination(path, &activity.map(Activity::to_string).unwrap_or_default());
        }
    }
}

/// What this container's entrypoint is doing, read from its termination message. None if the file is missing or
/// holds something else, such as the final message.
pub fn read(termination_log: &Path) -> Option<Activity> {
    Activity::parse(std::fs::read_to_string(termination_log).ok()?.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_file_reads_back_until_it_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("termination-log");
        let activity_file = ActivityFile(Some(log.clone()));
        activity_file.write(Some(&Activity::Retrying(Awaited::View)));
        assert!(!log.exists(), "only the kubelet creates the file");
        std::fs::write(&log, "").unwrap();
        let snippet = || Activity::Snippet("brokerPre".into());
        for activity in Awaited::ALL
            .map(Activity::Retrying)
            .into_iter()
            .chain([snippet()])
        {
            activity_file.write(Some(&activity));
            assert_eq!(read(&log), Some(activity));
            ActivityFile::default().write(None);
            assert!(read(&log).is_some(), "a sidecar writes nothing");
            activity_file.write(None);
            assert_eq!(
                (read(&log), std::fs::read_to_string(&log).unwrap().as_str()),
                (None, "")
            );
        }
        std::fs::write(&log, r#"{"version":1,"by":"stop","code":143}"#).unwrap();
        assert_eq!(read(&log), None);
    }
}
