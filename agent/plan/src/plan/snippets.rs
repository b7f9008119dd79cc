//! The user's shell source as steps. All snippets share one shell. Blank source makes no step.

use std::collections::BTreeMap;

use super::{PlanError, Resolved, Snippet, SnippetPhase, SnippetShell, Step, snippet_variables};

/// The name of a sidecar's program, as a snippet or a launch.
pub const COMMAND: &str = "command";

/// Options of the shell if a failing snippet ends the container. Never -u: scripts that people source (Spack,
/// conda, Lmod) read unset variables.
const STRICT: &[&str] = &["-e"];
/// The same for bash. -E: functions inherit an ERR trap that a snippet has set (the agent sets none). pipefail: a pipe
/// fails if any command in it fails.
const STRICT_BASH: &[&str] = &["-e", "-E", "-o", "pipefail"];
/// The options that undo [`STRICT`].
const LENIENT: &[&str] = &["+e"];
/// The options that undo [`STRICT_BASH`].
const LENIENT_BASH: &[&str] = &["+e", "+E", "+o", "pipefail"];

/// The step of the snippet `name`, before the program.
pub fn step(resolved: &Resolved, name: &'static str, source: Option<&String>) -> Option<Step> {
    in_phase(SnippetPhase::Before, resolved, name, source)
}

/// The step of a sidecar's program, if that is shell source.
pub fn program(resolved: &Resolved, source: Option<&String>) -> Option<Step> {
    in_phase(SnippetPhase::Program, resolved, COMMAND, source)
}

/// The step of the snippet `post`, which cleans up after the program.
pub fn post(resolved: &Resolved, source: Option<&String>) -> Option<Step> {
    in_phase(SnippetPhase::After, resolved, "post", source)
}

fn in_phase(
    phase: SnippetPhase,
    resolved: &Resolved,
    name: &'static str,
    source: Option<&String>,
) -> Option<Step> {
    let source = source.filter(|source| !source.trim().is_empty())?.clone();
    let logging = &resolved.spec.logging;
    // With `quiet`, the output of the program and of `post` still appears.
    let silent = logging.quiet && phase == SnippetPhase::Before;
    let is_after = phase == SnippetPhase::After;
    // `post` is strict only if the spec asks for it explicitly.
    let strict = if is_after {
        logging.strict == Some(true)
    } else {
        logging.is_strict()
    };
    // A shell that was started strict must become lenient for a lenient `post`.
    let options = match (logging.is_strict() && !strict, is_bash(resolved)) {
        (false, _) => Vec::new(),
        (true, true) => LENIENT_BASH.to_vec(),
        (true, false) => LENIENT.to_vec(),
    };
    // Only in the lead's pod: the lead's exit code is the job's.
    let decides = is_after && strict && resolved.is_lead();
    let snippet = Snippet {
        name,
        source,
        strict,
        phase,
        decides,
        options,
        directory_variable: None,
        silent,
    };
    Some(Step::Snippet(snippet))
}

fn is_bash(resolved: &Resolved) -> bool {
    resolved
        .facts
        .shell
        .as_deref()
        .is_some_and(|shell| shell.ends_with("/bash"))
}

/// The steps, with the start of the shell before the first snippet. The shell ends after all these steps, so that its
/// EXIT trap runs after the program, and cannot delay the archive. If a sidecar has a command, its shell ends before
/// [`Step::Stay`].
/// `command`: the command of a sidecar; None for the runner.
pub fn in_one_shell(
    resolved: &Resolved,
    mut steps: Vec<Step>,
    command: Option<&str>,
) -> Result<Vec<Step>, PlanError> {
    let first = steps.iter().enumerate().find_map(|(position, step)| match step {
        Step::Snippet(snippet) => Some((position, snippet.name)),
        _ => None,
    });
    if let Some((first, name)) = first {
        let launch = steps.iter().find_map(|step| match step {
            Step::Launch(launch) => Some(launch.as_ref()),
            _ => None,
        });
        let variables = snippet_variables::all(resolved, launch, command);
        let shell = shell(resolved, &format!("the snippet `{name}`"), variables)?;
        name_directory_after_init(&mut steps);
        let is_program = |step: &Step| match step {
            Step::Launch(_) => true,
            Step::Snippet(snippet) => snippet.phase == SnippetPhase::Program,
            _ => false,
        };
        let end = if steps.iter().any(is_program) {
            steps.iter().position(|step| *step == Step::Stay)
        } else {
            None
        };
        steps.insert(end.unwrap_or(steps.len()), Step::EndShell);
        steps.insert(first, Step::Shell(shell));
    }
    Ok(steps)
}

/// Sets the variable with the working directory again for the first snippet after `init`, which may have changed the
/// working directory.
fn name_directory_after_init(steps: &mut [Step]) {
    let mut snippets = steps.iter_mut().filter_map(|step| match step {
        Step::Snippet(snippet) => Some(snippet),
        _ => None,
    });
    if snippets.next().is_some_and(|first| first.name == "init")
        && let Some(second) = snippets.next()
    {
        second.directory_variable = Some(snippet_variables::DIRECTORY_VARIABLE);
    }
}

/// The shell of the snippets. `what` needs it: the error names it.
fn shell(
    resolved: &Resolved,
    what: &str,
    variables: BTreeMap<&'static str, String>,
) -> Result<SnippetShell, PlanError> {
    let shell = resolved.shell(what)?;
    let options = match (resolved.spec.logging.is_strict(), is_bash(resolved)) {
        (true, true) => STRICT_BASH,
        (true, false) => STRICT,
        (false, _) => &[],
    };
    let argv = std::iter::once(shell)
        .chain(options.iter().copied())
        .map(str::to_owned)
        .collect();
    Ok(SnippetShell {
        argv,
        as_flux: as_flux(resolved),
        variables,
    })
}

/// The value of `$asFlux`: the agent's command `as-flux`, with the spec file of this agent. It has the binary's own
/// path: snippets may run as root, and root never runs the agent by the link below the mount path (`paths.agent()`).
fn as_flux(resolved: &Resolved) -> String {
    let spec = resolved
        .facts
        .spec_file
        .as_ref()
        .map_or(String::new(), |file| format!(" --spec={file}"));
    format!("{} as-flux{spec}", resolved.facts.agent)
}

/// A script's text, with a `#!` line for the image's shell if it has none. Blanks and a byte order mark before the
/// user's `#!` are dropped: the kernel reads it only at the beginning of the file.
pub fn with_shebang(resolved: &Resolved, text: &str, what: &str) -> Result<String, PlanError> {
    let from_shebang = text.trim_start_matches(['\u{feff}', '\n', '\r', ' ', '\t']);
    if from_shebang.starts_with("#!") {
        Ok(from_shebang.to_owned())
    } else {
        Ok(resolved.shebang(what)? + text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use flux_shared::agent_spec::AgentSpec;

    #[test]
    fn shebang_counts_after_blanks_and_a_byte_order_mark() {
        let spec = AgentSpec::from_toml("name='mc'").unwrap();
        let facts = Facts {
            shell: Some("/bin/sh".into()),
            ..Facts::default()
        };
        let resolved = Resolved::new(&spec, &facts).unwrap();
        let script = |text: &str| with_shebang(&resolved, text, "the script").unwrap();
        let python = "#!/usr/bin/python3\nprint(1)\n";
        for before in ["", "\n", "\r\n\n", "  \t", "\u{feff}", "\u{feff}\n  "] {
            assert_eq!(script(&format!("{before}{python}")), python, "{before:?}");
        }
        for text in ["\n  echo a\n", "# a\n#!/bin/bash\n"] {
            assert_eq!(script(text), format!("#!/bin/sh\n{text}"));
        }
    }
}
