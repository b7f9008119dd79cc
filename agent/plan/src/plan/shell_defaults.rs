//! Defaults of the job shell on this pod: whether it binds tasks to cores ([`super::Binding`]), and which
//! variables it changes or removes for tasks.
//!
//! Each pod has a file with these defaults. The job shell finds it by `FLUX_SHELL_RC_PATH`. A job's own option
//! (`-o cpu-affinity=…`) overrides the default binding. So does a file of the user or of the view, since the agent's
//! folder comes last in the variable.

use flux_shared::names;

use super::{Binding, Content, EnvChange, Mode, Resolved, Step, python, search_paths};

/// The variable with the folders in which the job shell looks for its files of defaults.
pub const RC_PATH_VARIABLE: &str = "FLUX_SHELL_RC_PATH";
/// Variables that Kubernetes sets to another value in each pod.
const PER_POD: [&str; 2] = [names::COMPLETION_INDEX, "HOSTNAME"];

/// The Lua variable that shows that the tasks are brokers, of an instance inside this one.
pub(super) const IS_BROKER: &str = "is_broker";
/// Its value: the first words are `flux broker`. Lua counts from 1.
const BROKER_TASK: &str = r#"string.find ("/" .. shell.info.jobspec.tasks[1].command[1], "/flux$")
    and shell.info.jobspec.tasks[1].command[2] == "broker""#;

/// The steps that write the file of defaults and its folder.
pub fn steps(resolved: &Resolved) -> [Step; 2] {
    let (paths, owner) = (&resolved.paths, resolved.agent_owner());
    let folder = Step::Directory {
        path: paths.shell_rc_dir(),
        mode: Mode(0o755),
        owner,
    };
    let mut task_rules = python::kept_from_tasks(resolved).unwrap_or_default();
    task_rules += &search_paths::given_to_tasks(resolved);
    if !task_rules.is_empty() {
        task_rules.insert_str(0, &format!("local {IS_BROKER} = {BROKER_TASK}\n"));
    }
    let content = Content::Text(defaults(&resolved.binding) + &task_rules + &own_values(resolved));
    let file = Step::File {
        path: paths.shell_rc(),
        mode: Mode(0o644),
        owner,
        content,
    };
    [folder, file]
}

/// Lua code for the job shell: the default binding. The job shell itself binds tasks unless `cpu-affinity` is `off`. So
/// the code sets nothing if they are to be bound.
fn defaults(binding: &Binding) -> String {
    let head = "-- Defaults of flux-agent for the shell of jobs on this pod.\n";
    if binding.on {
        format!("{head}-- Tasks are bound to cores: {}.\n", binding.why)
    } else {
        format!(
            "{head}-- Tasks are not bound to cores: {}.\n\
         if shell.options[\"cpu-affinity\"] == nil then\n    shell.options[\"cpu-affinity\"] = \"off\"\nend\n",
            binding.why
        )
    }
}

/// Lua code that sets the variables that differ between pods to this pod's values. Without it, tasks would see
/// the values of the pod that submitted the job. Variables that the job lacks stay unset.
fn own_values(resolved: &Resolved) -> String {
    let names = PER_POD
        .into_iter()
        .chain(resolved.spec.runner.per_pod.iter().map(String::as_str));
    let value = |name: &str| Some((lua_text(name), lua_text(resolved.facts.environment.get(name)?)));
    let lines: String = names
        .filter_map(value)
        .map(|(name, value)| {
            format!("if shell.getenv ({name}) ~= nil then shell.setenv ({name}, {value}) end\n")
        })
        .collect();
    if lines.is_empty() {
        lines
    } else {
        format!("-- Values of this pod.\n{lines}")
    }
}

/// `text` as a Lua string literal.
pub(super) fn lua_text(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        // Lua reads a backslash and three decimal digits as one byte.
        _ => format!("\\{byte:03}"),
    };
    format!("\"{}\"", text.bytes().map(escape).collect::<String>())
}

/// Appends two folders to the variable: the view's, whose files of other packages (flux-pmix) a Spack build of
/// flux-core does not look for, and the agent's. A file of the user or of the view is read first, and the agent's file
/// does not override its `cpu-affinity`. A folder that is missing is ignored.
pub fn variable(resolved: &Resolved) -> EnvChange {
    let view = format!("{}/etc/flux/shell/lua.d", resolved.paths.view());
    let folders = [
        resolved.spec.view.enabled.then_some(view),
        Some(resolved.paths.shell_rc_dir()),
    ];
    EnvChange::Append {
        name: RC_PATH_VARIABLE.into(),
        separator: ':',
        value: folders.into_iter().flatten().collect::<Vec<_>>().join(":"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use crate::plan::{PodContainer, build};
    use flux_shared::agent_spec::{AgentSpec, Runner};

    #[test]
    fn shell_defaults_set_cpu_affinity_only_when_job_has_none() {
        let off = defaults(&Binding::of(&Runner::default(), &Facts::default()));
        assert!(
            off.contains("== nil then\n    shell.options[\"cpu-affinity\"] = \"off\"\nend\n"),
            "{off}"
        );
        let on = defaults(&Binding::of(
            &Runner::default(),
            &Facts {
                cpuset: Some(1),
                ..Facts::default()
            },
        ));
        assert!(on.lines().all(|line| line.starts_with("--")), "{on}");
    }

    #[test]
    fn shell_defaults_escape_paths_with_quotes_and_backslashes() {
        let spec = "name='mc'\nmount_path='/m\"n\\t'\n[view]\npython_path='/p\"y\\'\n\
                    [runner.program]\nmode='submit'\nwords=['a']\n";
        // Without compiled files, Flux's Python gets a folder for its cache, which is below the mount path.
        let facts = Facts {
            python_compiled: false,
            ..Facts::default()
        };
        let spec = AgentSpec::from_toml(spec).unwrap();
        let resolved = Resolved::new(&spec, &facts).unwrap();
        let text = python::kept_from_tasks(&resolved).unwrap() + &search_paths::given_to_tasks(&resolved);
        for want in [
            r#"== "/m\"n\\t/config/python/0" then"#,
            r#"(shell.getenv ("PYTHONPATH"), "/p\"y\\")"#,
        ] {
            assert!(text.contains(want), "{want}: {text}");
        }
    }

    #[test]
    fn tasks_have_the_values_of_their_own_pod() {
        let spec =
            "name='mc'\nsize=2\n[runner]\nper_pod=['NODE']\n[runner.program]\nmode='submit'\nwords=['a']\n";
        let mut facts = Facts {
            index: Some(1),
            ..Facts::default()
        };
        let values = [
            ("HOSTNAME", "mc-1"),
            ("JOB_COMPLETION_INDEX", "1"),
            ("NODE", "a \"b\\\n"),
            ("OTHER", "x"),
        ];
        facts
            .environment
            .extend(values.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let plan = build(
            &AgentSpec::from_toml(spec).unwrap(),
            &facts,
            &PodContainer::Runner,
        )
        .unwrap();
        let text = plan.steps.iter().find_map(|step| match step {
            Step::File {
                path,
                content: Content::Text(text),
                ..
            } if path.ends_with(".lua") => Some(text.clone()),
            _ => None,
        });
        let text = text.unwrap();
        for (name, value) in [
            ("HOSTNAME", "mc-1"),
            ("JOB_COMPLETION_INDEX", "1"),
            ("NODE", r#"a \"b\\\010"#),
        ] {
            let line = format!(
                "if shell.getenv (\"{name}\") ~= nil then shell.setenv (\"{name}\", \"{value}\") end\n"
            );
            assert!(text.contains(&line), "{line}: {text}");
        }
        assert!(!text.contains("OTHER"), "{text}");
    }
}
