//! Notices about variables that a snippet assigns without effect: variables of the Go operator's entrypoint, whose
//! values the agent does not use, and variables of the command that are not exported.

use std::collections::{BTreeSet, HashMap};

use super::report::Report;
use super::{ValidMiniCluster, flux};
use crate::agent_spec::Program;
use crate::command_words::{Word, WordPart};
use crate::crd::v1alpha2::MiniClusterSpec;

/// Variables that every pod has in its environment, whatever its image.
const SET_IN_EVERY_POD: [&str; 3] = ["PATH", "HOME", "HOSTNAME"];

/// Variables of the Go operator's entrypoint. Not `brokerOptions`: the agent uses its value for the broker.
const WITHOUT_EFFECT: [&str; 17] = [
    "viewbase",
    "viewroot",
    "configroot",
    "software",
    "viewbin",
    "fluxpath",
    "hosts",
    "mainHost",
    "fluxuser",
    "fluxuid",
    "workdir",
    "cfg",
    "fluxsocket",
    "pythonversion",
    "foundroot",
    "curvepath",
    "command",
];

/// Adds the notices.
pub(super) fn check(spec: &MiniClusterSpec, cluster: &ValidMiniCluster, report: &mut Report) {
    let Some((field, _)) = flux::runner(spec) else {
        return;
    };
    let snippets = &cluster.runner.snippets;
    // Without `post`, which runs after the command.
    let on_lead = [
        ("commands.init", &snippets.init),
        ("preCommand", &snippets.pre_command),
        ("commands.pre", &snippets.pre),
        ("commands.brokerPre", &snippets.broker_pre),
    ];
    let on_lead = on_lead.map(|(name, source)| (name, source.as_deref().unwrap_or_default()));
    // It runs on followers, where no command starts.
    let on_followers = (
        "commands.workerPre",
        snippets.worker_pre.as_deref().unwrap_or_default(),
    );
    for (name, source) in on_lead.into_iter().chain([on_followers]) {
        for variable in assigned_without_effect(source) {
            report.notice(
                format!("{field}.{name}"),
                format!(
                    "assigns `{variable}`, which snippets alone see: it does not change what Flux does (`brokerOptions` does)"
                ),
            );
        }
    }
    // These export every variable.
    let exports_all = |source: &str| source.contains("set -a") || source.contains("set -o allexport");
    if on_lead.iter().any(|(_, source)| exports_all(source)) {
        return;
    }
    // Read each text only once: there may be thousands of variables, and megabytes of snippets.
    let exported: BTreeSet<&str> = on_lead.iter().flat_map(|(_, source)| exports(source)).collect();
    let mut assigned_in: HashMap<&str, &str> = HashMap::new();
    for (name, source) in on_lead {
        for variable in assignments(source) {
            assigned_in.entry(variable).or_insert(name);
        }
    }
    let read: BTreeSet<&str> = read_by(&cluster.runner.program).collect();
    for variable in read {
        // A variable that a shell has from its environment stays exported when a snippet assigns it.
        let container = &cluster.runner.container;
        let is_set = SET_IN_EVERY_POD.contains(&variable)
            || container.environment.contains_key(variable)
            || container.secrets.contains_key(variable);
        if let Some(name) = assigned_in.get(variable)
            && !is_set
            && !exported.contains(variable)
        {
            report.notice(
                format!("{field}.{name}"),
                format!(
                    "assigns `{variable}` without export: the command has it only if the image or an overlay sets it: write `export {variable}`"
                ),
            );
        }
    }
}

/// The variables that a snippet exports, with or without a value.
fn exports(source: &str) -> impl Iterator<Item = &str> {
    let after = |word| source.split(word).skip(1);
    let declarations = after("declare ").chain(after("typeset ")).filter(|list| {
        let mut options = list.split_whitespace().take_while(|word| word.starts_with('-'));
        options.any(|word| word.contains('x'))
    });
    let words = after("export ").chain(declarations).flat_map(|list| {
        // A backslash at the end of a line continues the list.
        let is_end = |(at, letter): &(usize, char)| {
            matches!(letter, ';' | '&' | '|' | ')') || (*letter == '\n' && !list[..*at].ends_with('\\'))
        };
        let end = list.char_indices().find(is_end);
        list[..end.map_or(list.len(), |(at, _)| at)].split_whitespace()
    });
    let names = words.map(|word| word.trim_start_matches(['"', '\'']));
    let names = names.filter_map(|name| name.split(|letter| !is_name_letter(letter)).next());
    // An option has no name.
    names.filter(|name| !name.is_empty())
}

/// Whether it can be part of a variable's name in a shell.
fn is_name_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// The variables that a command's words refer to.
fn read_by(program: &Program) -> impl Iterator<Item = &str> {
    let words = match program {
        Program::Submit { words } | Program::Launcher { words } => words.as_slice(),
        _ => &[],
    };
    let parts = words.iter().flat_map(|word| {
        if let Word::Template(parts) = word {
            parts.as_slice()
        } else {
            &[]
        }
    });
    parts.filter_map(|part| {
        if let WordPart::Env(name) = part {
            Some(name.as_str())
        } else {
            None
        }
    })
}

/// Those of [`WITHOUT_EFFECT`] that a snippet assigns.
fn assigned_without_effect(source: &str) -> impl Iterator<Item = &'static str> {
    let names: Vec<&str> = assignments(source).collect();
    WITHOUT_EFFECT
        .into_iter()
        .filter(move |variable| names.contains(variable))
}

/// The variables that a snippet assigns, with or without `export`, at the beginning of a command.
fn assignments(source: &str) -> impl Iterator<Item = &str> {
    let commands = source.split(['\n', ';', '&', '|', '(']).map(str::trim_start);
    commands
        .map(|command| command.strip_prefix("export ").unwrap_or(command).trim_start())
        .filter_map(|command| command.split_once('='))
        .map(|(name, _)| name.trim_end_matches('+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_entrypoint_that_a_snippet_assigns_are_found() {
        let found = |source: &str| assigned_without_effect(source).collect::<Vec<_>>();
        assert_eq!(
            found("command=\"lmp -v x 4\"\n  cfg=/etc/flux; true && export hosts=a"),
            ["hosts", "cfg", "command"]
        );
        let exported: Vec<&str> =
            exports("A=1; B=2; export A \\\n \"B\"\ndeclare -gx C=3 && (export -- D)").collect();
        assert_eq!(exported, ["A", "B", "D", "C"]);
        assert_eq!(found("brokerOptions=\"$brokerOptions -Sx=y\""), [""; 0]);
        assert_eq!(
            found("flux R encode --hosts=${hosts} --local\necho command=1\nmy_command=2 software"),
            [""; 0]
        );
    }
}
