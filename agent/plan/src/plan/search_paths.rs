//! The user's search paths, which Flux from a view must not follow. An old library in LD_LIBRARY_PATH, a profiler in
//! LD_PRELOAD, or a module in PYTHONPATH with the name of one of Flux's modules would break the broker and the commands
//! that the agent runs.
//!
//! Brokers start without these variables (PYTHONPATH has only Flux's folder), and carry the user's values in variables
//! with other names. From those, `flux-agent program` restores them for the user's program, and the job shell for
//! tasks. An image's own Flux may need the variables, so it keeps them.

use flux_shared::agent_spec::Program;
use flux_shared::command_words::{Word, WordPart};

use super::shell_defaults::{IS_BROKER, lua_text};
use super::{EnvChange, Resolved, restful, set};
use crate::known_paths::{KEPT_FROM_FLUX, users_value_name};

/// The variables that are kept from Flux. A variable that the user sets for Flux is not among them.
fn kept_names<'a>(resolved: &'a Resolved) -> impl Iterator<Item = &'static str> + use<'a> {
    let is_for_flux = |name: &str| resolved.spec.flux.environment.contains_key(name);
    KEPT_FROM_FLUX
        .into_iter()
        .filter(move |name| resolved.spec.view.enabled && !is_for_flux(name))
}

/// The value that Flux itself needs in the variable. None: Flux runs without the variable.
fn value_for_flux(resolved: &Resolved, name: &str) -> Option<String> {
    if name == "PYTHONPATH" {
        resolved.python_path()
    } else {
        None
    }
}

/// The changes to a broker's environment.
pub fn changes(resolved: &Resolved) -> Vec<EnvChange> {
    let changes_of = |name: &'static str| {
        // An unset variable gives an empty carrier. From this, programs and tasks get the variable unset again.
        let carry = EnvChange::Set {
            name: users_value_name(name),
            value: Word::Template(vec![WordPart::Env(name.into())]),
        };
        let replace = match value_for_flux(resolved, name) {
            Some(value) => set(name, &value),
            None => EnvChange::Remove { name: name.into() },
        };
        [carry, replace]
    };
    kept_names(resolved).flat_map(changes_of).collect()
}

/// The options of `flux-agent program` that restore the variables for the user's program.
pub fn given_to_program(resolved: &Resolved) -> Vec<String> {
    if !runs_users_program(resolved) {
        return Vec::new();
    }
    kept_names(resolved).map(|name| format!("--own={name}")).collect()
}

/// Whether the initial program runs the user's code, not only commands of Flux or the agent.
fn runs_users_program(resolved: &Resolved) -> bool {
    let runner = &resolved.spec.runner;
    let has_prefix = !runner.prefix.is_empty();
    let submit_command = resolved.spec.flux.submit_command.first();
    let is_submitted_by_flux = submit_command.is_some_and(|word| word == "flux");
    match runner.program {
        Program::Submit { .. } | Program::Script { launch: false, .. } => has_prefix || !is_submitted_by_flux,
        // The agent writes the script, which submits jobs by the same command. The script of a raw batch is the user's.
        Program::Batch { .. } => has_prefix || !is_submitted_by_flux,
        Program::Launcher { .. } | Program::Script { launch: true, .. } | Program::BatchRaw { .. } => true,
        // The RESTful API is a program from the repository that the spec names.
        Program::Persistent => restful::wanted(resolved).is_some(),
        Program::Diagnostics => false,
    }
}

/// A Lua function: whether each folder in a search path is one of `path`, or the folder of Flux's Python modules, which
/// the commands of Flux before 0.71 add to PYTHONPATH.
const HAS_ONLY_FLUX_FOLDERS: &str = r#"local function has_only_flux_folders (value, path)
    for folder in string.gmatch (value or "", "[^:]+") do
        local is_listed = string.find (":" .. path .. ":", ":" .. folder .. ":", 1, true)
        if not is_listed and not string.find (folder, "/flux/python[%d.]+$") then return false end
    end
    return true
end
"#;

/// Lua code for the job shell that restores the variables for tasks, unless they are brokers or the job sets its own.
pub fn given_to_tasks(resolved: &Resolved) -> String {
    let lines: String = kept_names(resolved)
        .map(|name| {
            let carrier = users_value_name(name);
            // Lua: whether the job has set no value of its own.
            let is_unchanged = match value_for_flux(resolved, name) {
                // A job without a value of its own has only Flux's folders. If a script on the lead submits it, the
                // variable may be unset or empty: there, `flux` runs without it (`in_instance::flux_wrapper`).
                Some(path) => format!("has_only_flux_folders (shell.getenv (\"{name}\"), {})", lua_text(&path)),
                None => format!("shell.getenv (\"{name}\") == nil"),
            };
            format!(
                "    local own = shell.getenv (\"{carrier}\")\n    \
                 if own ~= nil and {is_unchanged} then\n        \
                 if own ~= \"\" then shell.setenv (\"{name}\", own) else shell.unsetenv (\"{name}\") end\n    \
                 end\n    \
                 if own ~= nil then shell.unsetenv (\"{carrier}\") end\n"
            )
        })
        .collect();
    if lines.is_empty() {
        return lines;
    }
    format!(
        "-- Paths that were kept from Flux.\n{HAS_ONLY_FLUX_FOLDERS}if not {IS_BROKER} then\n{lines}end\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::plan::{Launch, PodContainer, Step, build};
    use flux_shared::agent_spec::AgentSpec;

    fn launch(spec: &str, index: u32) -> Box<Launch> {
        let spec = AgentSpec::from_toml(&format!("name='mc'\nsize=2\n{spec}")).unwrap();
        let facts = Facts {
            index: Some(index),
            ..Facts::default()
        };
        let steps = build(&spec, &facts, &PodContainer::Runner).unwrap().steps;
        let launch = steps.into_iter().find_map(|step| match step {
            Step::Launch(launch) => Some(launch),
            _ => None,
        });
        launch.unwrap()
    }

    fn is_removed(launch: &Launch, variable: &str) -> bool {
        let carrier = users_value_name(variable);
        launch
            .environment
            .iter()
            .any(|change| matches!(change, EnvChange::Remove { name } if name == variable))
            && launch
                .environment
                .iter()
                .any(|change| matches!(change, EnvChange::Set { name, .. } if *name == carrier))
    }

    const SUBMIT: &str = "[runner.program]\nmode='submit'\nwords=['a']\n";
    const LAUNCH: &str = "[runner.program]\nmode='launcher'\nwords=['a']\n";

    #[test]
    fn every_broker_starts_without_the_users_libraries() {
        for (index, name) in [
            (0, "LD_LIBRARY_PATH"),
            (1, "LD_LIBRARY_PATH"),
            (0, "LD_PRELOAD"),
            (1, "LD_PRELOAD"),
        ] {
            assert!(is_removed(&launch(SUBMIT, index), name), "{index} {name}");
        }
        let with_images_flux = launch(&format!("{SUBMIT}[view]\nenabled=false\n"), 0);
        assert!(
            !is_removed(&with_images_flux, "LD_LIBRARY_PATH"),
            "an image's Flux may need them"
        );
        let set_for_flux = launch(&format!("{SUBMIT}[flux.environment]\nLD_LIBRARY_PATH='/x'\n"), 0);
        assert!(!is_removed(&set_for_flux, "LD_LIBRARY_PATH"));
    }

    #[test]
    fn search_paths_are_restored_for_user_programs_not_flux_submit() {
        let words = |spec: &str| format!("{:?}", launch(spec, 0).argv);
        assert!(!words(SUBMIT).contains("--own="));
        assert!(words(LAUNCH).contains("--own=LD_LIBRARY_PATH"));
        assert!(words(&format!("[runner]\nprefix=['mine']\n{SUBMIT}")).contains("--own=PYTHONPATH"));
        assert!(words(&format!("[flux]\nsubmit_command=['mine']\n{SUBMIT}")).contains("--own=PYTHONPATH"));
    }
}
