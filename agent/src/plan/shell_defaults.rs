//! What the job shell on this pod does where a job doesn't say otherwise: whether it binds tasks to cores
//! ([`super::Binding`]), and what it keeps from them.
//!
//! Each pod has a file of defaults for the job shell, which finds it by way of `FLUX_SHELL_RC_PATH`; what a job asks
//! for itself (`-o cpu-affinity=…`) counts, and so does a file of the user's, since the path of ours comes last.

use super::{Binding, Content, EnvChange, Mode, Planned, Resolved, Step, python};

/// The variable that names the folders of such files.
pub const PATH: &str = "FLUX_SHELL_RC_PATH";
/// The facts that decide whether tasks are bound.
const FACTS: [&str; 5] = ["cores", "cpu_quota", "cpuset", "oom_score", "uid"];

/// The defaults of the job shell on this pod: every pod has its own.
pub fn steps(resolved: &Resolved) -> [Planned; 2] {
    let (paths, owner) = (&resolved.paths, resolved.agent_owner());
    let folder = Step::Directory { path: paths.shell_rc_dir(), mode: Mode(0o755), owner };
    let content = Content::Text(defaults(&resolved.binding) + &python::kept_from_tasks(resolved).unwrap_or_default());
    let file = Step::File { path: paths.shell_rc(), mode: Mode(0o644), owner, content };
    [Planned::with(&["uid"], folder), Planned::with(&FACTS, file)]
}

/// Lua, as the job shell reads it.
fn defaults(binding: &Binding) -> String {
    let head = "-- Defaults of flux-agent for the shell of jobs on this pod.\n";
    match binding.on {
        true => format!("{head}-- Tasks are bound to cores: {}.\n", binding.why),
        false => format!(
            "{head}-- Tasks are not bound to cores: {}.\n\
             if shell.options[\"cpu-affinity\"] == nil then\n    shell.options[\"cpu-affinity\"] = \"off\"\nend\n",
            binding.why
        ),
    }
}

/// Appended to what the user has set: a file of theirs comes first, and what it decides stays.
pub fn variable(resolved: &Resolved) -> EnvChange {
    EnvChange::Append { name: PATH.into(), separator: ':', value: resolved.paths.shell_rc_dir() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;

    #[test]
    fn the_file_only_sets_what_a_job_has_not() {
        let off = defaults(&Binding::of(None, &Facts::default()));
        assert!(off.contains("== nil then\n    shell.options[\"cpu-affinity\"] = \"off\"\nend\n"), "{off}");
        let on = defaults(&Binding::of(None, &Facts { cpuset: Some(1), ..Facts::default() }));
        assert!(on.lines().all(|line| line.starts_with("--")), "{on}");
    }
}
