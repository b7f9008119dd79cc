//! A folder for the files (.pyc) that Flux's own Python compiles. Without it, Python would compile Flux's modules again
//! for every command if they came without compiled files, or with files of another time stamp, and Flux's user may not
//! write beside them.
//!
//! Compiled files are programs: a user who can write them decides what their readers run. So each user has a folder of
//! its own, which no other user can read. A variable names it to Flux's processes. (A custom submit command, and the
//! script of a batch, inherit it.) Snippets do not get it, since they may run as root. Jobs do not get it, since their
//! own Python has its own compiled files: the job shell's defaults remove it, except for an instance inside this one.

use flux_shared::agent_spec::Program;

use super::shell_defaults::{IS_BROKER, lua_text};
use super::{EnvChange, Mode, Resolved, Step, restful, set};

/// The variable with the folder's path.
const CACHE_VARIABLE: &str = "PYTHONPYCACHEPREFIX";
/// Disables .pyc files.
const WRITES_NONE: &str = "PYTHONDONTWRITEBYTECODE";

/// The folder for the compiled files of Flux's user. None if Python finds compiled files that are up to date, or if the
/// user has set one of the variables.
pub fn folder(resolved: &Resolved) -> Option<String> {
    let is_needed = !resolved.facts.python_compiled && !is_users_choice(resolved);
    is_needed.then(|| resolved.paths.python_cache(resolved.identity.owner.uid))
}

/// Whether the user has set where Python's compiled files go, or that Python writes none.
fn is_users_choice(resolved: &Resolved) -> bool {
    let (container, flux) = (&resolved.facts.environment, &resolved.spec.flux.environment);
    [CACHE_VARIABLE, WRITES_NONE]
        .iter()
        .any(|name| container.contains_key(*name) || flux.contains_key(*name))
}

/// Creates the folder, within one that the agent owns.
pub fn steps(resolved: &Resolved) -> Vec<Step> {
    let Some(path) = folder(resolved) else {
        return Vec::new();
    };
    let above = Step::Directory {
        path: resolved.paths.python_caches(),
        mode: Mode(0o755),
        owner: resolved.agent_owner(),
    };
    let folder = Step::Directory {
        path,
        mode: Mode(0o700),
        owner: resolved.identity.owner,
    };
    vec![above, folder]
}

/// The variable for the brokers. Flux's commands in the instance inherit it.
pub fn variable(resolved: &Resolved) -> Option<EnvChange> {
    folder(resolved).map(|folder| set(CACHE_VARIABLE, &folder))
}

/// The option of `flux-agent program` that removes the variable for a program whose Python has its own compiled files:
/// the user's, or the Flux RESTful API.
pub fn kept_from_program(resolved: &Resolved) -> Option<String> {
    let has_own_python = match resolved.spec.runner.program {
        Program::Launcher { .. } => true,
        Program::Script { launch, .. } => launch,
        Program::Persistent => restful::wanted(resolved).is_some(),
        Program::Submit { .. } | Program::Batch { .. } | Program::BatchRaw { .. } | Program::Diagnostics => {
            false
        }
    };
    (has_own_python && folder(resolved).is_some()).then(|| format!("--without={CACHE_VARIABLE}"))
}

/// Lua for the job shell: keeps the variable from tasks, unless they are brokers. A value that the job has set itself
/// stays.
pub fn kept_from_tasks(resolved: &Resolved) -> Option<String> {
    let folder = lua_text(&folder(resolved)?);
    Some(format!(
        "-- Tasks do not get the folder for the files that Flux's own Python compiles.\n\
         if shell.getenv (\"{CACHE_VARIABLE}\") == {folder} then\n    \
         if not {IS_BROKER} then shell.unsetenv (\"{CACHE_VARIABLE}\") end\nend\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::plan::{Content, PodContainer, build};
    use flux_shared::agent_spec::AgentSpec;
    use flux_shared::command_words::Word;

    const JOB: &str = "name='mc'\n[runner.program]\nmode='submit'\nwords=['a']\n";

    fn uncompiled() -> Facts {
        Facts {
            python_compiled: false,
            ..Facts::default()
        }
    }

    fn planned(text: &str, facts: &Facts) -> Vec<Step> {
        let spec = AgentSpec::from_toml(text).unwrap();
        let plan = build(&spec, facts, &PodContainer::Runner).unwrap();
        plan.steps
    }

    fn launch_of(steps: &[Step]) -> &crate::plan::Launch {
        let found = steps.iter().find_map(|step| {
            if let Step::Launch(launch) = step {
                Some(launch)
            } else {
                None
            }
        });
        found.unwrap()
    }

    fn sets_variable(launch: &crate::plan::Launch) -> bool {
        launch
            .environment
            .iter()
            .any(|change| matches!(change, EnvChange::Set { name, .. } if name == CACHE_VARIABLE))
    }

    fn removes_variable(argv: &[Word]) -> bool {
        argv.iter()
            .any(|word| matches!(word, Word::Literal(word) if word.starts_with("--without=")))
    }

    #[test]
    fn python_cache_is_per_user_and_named_to_flux_commands_only() {
        let user = JOB.to_owned() + "[runner.user]\nname='flux'\nuid=1000\n";
        let steps = planned(&user, &uncompiled());
        let folders: Vec<_> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Directory { path, mode, owner } if path.contains("/python") => {
                    Some((path.as_str(), mode.0, owner.uid))
                }
                _ => None,
            })
            .collect();
        let want = [
            ("/mnt/flux/config/python", 0o755, 0),
            ("/mnt/flux/config/python/1000", 0o700, 1000),
        ];
        assert_eq!(folders, want);
        assert!(
            launch_of(&steps)
                .environment
                .contains(&set(CACHE_VARIABLE, "/mnt/flux/config/python/1000"))
        );
        let others = steps.iter().filter(|step| !matches!(step, Step::Launch(_)));
        for step in others {
            let names_variable = format!("{step:?}").contains(CACHE_VARIABLE);
            assert_eq!(
                names_variable,
                matches!(step, Step::File { content: Content::Text(_), path, .. } if path.ends_with(".lua")),
                "{step:?}"
            );
        }
    }

    #[test]
    fn python_cache_is_not_planned_when_useless_or_set_by_user() {
        assert!(!sets_variable(launch_of(&planned(JOB, &Facts::default()))));
        for name in [CACHE_VARIABLE, WRITES_NONE] {
            let mut facts = uncompiled();
            facts.environment.insert(name.into(), "1".into());
            assert!(!sets_variable(launch_of(&planned(JOB, &facts))), "{name}");
            let own = format!("{JOB}[flux.environment]\n{name}='1'\n");
            assert!(!sets_variable(launch_of(&planned(&own, &uncompiled()))), "{name}");
        }
    }

    #[test]
    fn launcher_program_runs_without_the_python_cache_variable() {
        let removes = |text: &str| removes_variable(&launch_of(&planned(text, &uncompiled())).argv);
        assert!(!removes(JOB));
        assert!(removes(
            "name='mc'\n[runner.program]\nmode='launcher'\nwords=['a']\n"
        ));
        assert!(!removes_variable(
            &launch_of(&planned(&JOB.replace("submit", "launcher"), &Facts::default())).argv
        ));
    }
}
