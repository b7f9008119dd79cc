//! Paths of the user's that Flux from a view must not follow: an old library in LD_LIBRARY_PATH, or a module
//! in PYTHONPATH that has the name of one of Flux's, would break the broker and the commands that the agent
//! runs.
//!
//! Brokers start without them, and carry their values under other names. A program of the user's own gets
//! them back from `flux-agent program`, tasks from the job shell's defaults. An image's own Flux may need
//! them, so it keeps them.

use flux_shared::agent_spec::Program;
use flux_shared::command_words::{Word, WordPart};

use super::{EnvChange, Resolved, restful, set};
use crate::known_paths::{KEPT_FROM_FLUX, users_value_name};

const MODULES: &str = "PYTHONPATH";

/// The variables that are kept from Flux: not those that the user sets for Flux.
fn names<'a>(resolved: &'a Resolved) -> impl Iterator<Item = &'static str> + use<'a> {
    let is_kept = |name: &&str| !resolved.spec.flux.environment.contains_key(*name);
    KEPT_FROM_FLUX
        .into_iter()
        .filter(move |name| resolved.spec.view.enabled && is_kept(name))
}

/// What Flux itself needs in the variable.
fn flux_own(resolved: &Resolved, name: &str) -> Option<String> {
    if name == MODULES {
        resolved.python_path()
    } else {
        None
    }
}

/// The changes for a broker.
pub fn changes(resolved: &Resolved) -> Vec<EnvChange> {
    let kept = |name: &'static str| {
        let value = Word::Template(vec![WordPart::Env(name.into())]);
        let without =
            flux_own(resolved, name).map_or(EnvChange::Remove { name: name.into() }, |path| set(name, &path));
        [
            EnvChange::Set {
                name: users_value_name(name),
                value,
            },
            without,
        ]
    };
    names(resolved).flat_map(kept).collect()
}

/// The options that give the variables back to a program of the user's own.
pub fn given_to_program(resolved: &Resolved) -> Vec<String> {
    let runner = &resolved.spec.runner;
    let is_by_flux = runner.prefix.is_empty()
        && resolved
            .spec
            .flux
            .submit_command
            .first()
            .is_some_and(|it| it == "flux");
    let is_own = match runner.program {
        Program::Submit { .. } | Program::Script { launch: false, .. } => !is_by_flux,
        Program::Batch { .. } => !runner.prefix.is_empty(),
        Program::Launcher { .. } | Program::Script { launch: true, .. } | Program::BatchRaw { .. } => true,
        Program::Persistent => restful::wanted(resolved).is_some(),
        Program::Diagnostics => false,
    };
    if is_own {
        names(resolved).map(|name| format!("--own={name}")).collect()
    } else {
        Vec::new()
    }
}

/// Lua for the job shell: gives the variables back to tasks, unless they are brokers or the job sets its own.
pub fn given_to_tasks(resolved: &Resolved) -> String {
    let lines: String = names(resolved)
        .map(|name| {
            let own = users_value_name(name);
            let is_unchanged = match flux_own(resolved, name) {
                // Not set at all: a `flux` in a script (`in_instance::deaf_flux`).
                Some(path) => format!(
                    "((shell.getenv (\"{name}\") or \"\") == \"\" or string.find (shell.getenv (\"{name}\"), \"{path}\", 1, true))"
                ),
                None => format!("shell.getenv (\"{name}\") == nil"),
            };
            format!(
                "    local own = shell.getenv (\"{own}\")\n    \
                 if own ~= nil and {is_unchanged} then\n        \
                 if own ~= \"\" then shell.setenv (\"{name}\", own) else shell.unsetenv (\"{name}\") end\n    \
                 end\n    \
                 if own ~= nil then shell.unsetenv (\"{own}\") end\n"
            )
        })
        .collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "-- Paths that were kept from Flux.\nif shell.info.jobspec.tasks[1].command[2] ~= \"broker\" then\n{lines}end\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::plan::{ContainerRole, Launch, Step, plan};
    use flux_shared::agent_spec::AgentSpec;

    fn launch(spec: &str, index: u32) -> Box<Launch> {
        let spec = AgentSpec::from_toml(&format!("name='mc'\nsize=2\n{spec}")).unwrap();
        let facts = Facts {
            index: Some(index),
            ..Facts::default()
        };
        let steps = plan(&spec, &facts, &ContainerRole::Runner).unwrap().steps;
        let launch = steps.into_iter().find_map(|step| match step {
            Step::Launch(launch) => Some(launch),
            _ => None,
        });
        launch.unwrap()
    }

    fn is_removed(launch: &Launch, variable: &str) -> bool {
        let own = users_value_name(variable);
        launch
            .environment
            .iter()
            .any(|it| matches!(it, EnvChange::Remove { name } if name == variable))
            && launch
                .environment
                .iter()
                .any(|it| matches!(it, EnvChange::Set { name, .. } if *name == own))
    }

    const SUBMIT: &str = "[runner.program]\nmode='submit'\nwords=['a']\n";
    const LAUNCH: &str = "[runner.program]\nmode='launcher'\nwords=['a']\n";

    #[test]
    fn every_broker_starts_without_the_users_libraries() {
        for index in [0, 1] {
            assert!(is_removed(&launch(SUBMIT, index), "LD_LIBRARY_PATH"), "{index}");
        }
        let own = launch(&format!("{SUBMIT}[view]\nenabled=false\n"), 0);
        assert!(
            !is_removed(&own, "LD_LIBRARY_PATH"),
            "an image's Flux may need them"
        );
        let asked = launch(&format!("{SUBMIT}[flux.environment]\nLD_LIBRARY_PATH='/x'\n"), 0);
        assert!(!is_removed(&asked, "LD_LIBRARY_PATH"), "they are for Flux");
    }

    #[test]
    fn own_paths_are_restored_for_user_programs_not_flux_submit() {
        let words = |spec: &str| format!("{:?}", launch(spec, 0).argv);
        assert!(!words(SUBMIT).contains("--own="));
        assert!(words(LAUNCH).contains("--own=LD_LIBRARY_PATH"));
        assert!(words(&format!("[runner]\nprefix=['mine']\n{SUBMIT}")).contains("--own=PYTHONPATH"));
        assert!(words(&format!("[flux]\nsubmit_command=['mine']\n{SUBMIT}")).contains("--own=PYTHONPATH"));
    }
}
