//! How a process was started: this one, or the container's entrypoint (process 1). A process from `kubectl exec` has
//! another environment, working directory and terminal than the entrypoint.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;

use flux_shared::paths::AGENT_FILE;

/// The program of a process, and what it was started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Path of the executable.
    pub program: String,
    /// The command line, beginning with the program's name. Words that are not UTF-8 are left out.
    pub words: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub working_directory: String,
    /// Whether standard input is a terminal.
    pub terminal: bool,
}

impl Process {
    /// This process.
    pub fn own() -> Process {
        let utf8 = |words: std::env::ArgsOs| words.filter_map(|word| word.into_string().ok()).collect();
        Process {
            program: std::env::current_exe()
                .ok()
                .and_then(|file| file.to_str().map(str::to_owned))
                .unwrap_or_else(default_agent_path),
            words: utf8(std::env::args_os()),
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            working_directory: std::env::current_dir()
                .ok()
                .and_then(|folder| folder.to_str().map(str::to_owned))
                .unwrap_or_else(|| "/".into()),
            terminal: std::io::stdin().is_terminal(),
        }
    }

    /// The process that the folder `proc` (such as /proc/1) describes. None if it cannot be read.
    pub fn of(proc: &Path) -> Option<Process> {
        let parts = |name: &str| -> Option<Vec<String>> {
            let bytes = std::fs::read(proc.join(name)).ok()?;
            // A word may be empty; the last one ends with a zero, too.
            let parts = bytes
                .strip_suffix(&[0])
                .unwrap_or(&bytes)
                .split(|byte| *byte == 0);
            Some(
                parts
                    .filter_map(|part| String::from_utf8(part.to_vec()).ok())
                    .collect(),
            )
        };
        let variables = parts("environ")?;
        let link_target = |name: &str| {
            std::fs::read_link(proc.join(name))
                .ok()?
                .into_os_string()
                .into_string()
                .ok()
        };
        let input = link_target("fd/0").unwrap_or_default();
        Some(Process {
            program: link_target("exe").unwrap_or_else(default_agent_path),
            words: parts("cmdline")?,
            environment: variables
                .iter()
                .filter_map(|line| line.split_once('='))
                .map(owned)
                .collect(),
            working_directory: link_target("cwd")?,
            terminal: input.starts_with("/dev/pts/")
                || input.starts_with("/dev/tty")
                || input == "/dev/console",
        })
    }
}

/// The path where the operator puts the agent, for a process whose executable cannot be read.
fn default_agent_path() -> String {
    AGENT_FILE.to_owned()
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_read_from_its_proc_folder() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &str| std::fs::write(folder.path().join(name), bytes).unwrap();
        assert_eq!(Process::of(folder.path()), None);
        write("cmdline", "/bin/flux-agent\0run\0\0--\0");
        write("environ", "A=1\0B=x=y\0odd\0C=\0");
        std::os::unix::fs::symlink("/data", folder.path().join("cwd")).unwrap();
        assert_eq!(Process::of(folder.path()).unwrap().program, AGENT_FILE);
        std::os::unix::fs::symlink("/opt/flux-agent", folder.path().join("exe")).unwrap();
        let process = Process::of(folder.path()).unwrap();
        assert_eq!(process.program, "/opt/flux-agent");
        assert_eq!(
            (
                process.words.join(" ").as_str(),
                process.working_directory.as_str()
            ),
            ("/bin/flux-agent run  --", "/data")
        );
        let variables: Vec<String> = process
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            (variables.join(" ").as_str(), process.terminal),
            ("A=1 B=x=y C=", false)
        );
        std::fs::create_dir(folder.path().join("fd")).unwrap();
        for (target, terminal) in [
            ("/dev/null", false),
            ("pipe:[7]", false),
            ("/dev/pts/0", true),
            ("/dev/console", true),
        ] {
            let _ = std::fs::remove_file(folder.path().join("fd/0"));
            std::os::unix::fs::symlink(target, folder.path().join("fd/0")).unwrap();
            assert_eq!(Process::of(folder.path()).unwrap().terminal, terminal, "{target}");
        }
    }
}
