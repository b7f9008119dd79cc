//! Notices about what a snippet sets without effect: variables of the Go operator's entrypoint, whose values the agent
//! does not use, variables of the command that are not exported, and redirections.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::report::Report;
use super::valid::ValidRunner;
use super::{ValidMiniCluster, flux};
use crate::agent_spec::Program;
use crate::command_words::{self, Quote, Word, WordPart};
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
    // On followers, where no command starts.
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
    if matches!(
        cluster.runner.program,
        Program::Submit { .. } | Program::Launcher { .. } | Program::Script { .. }
    ) {
        for (name, _) in on_lead.into_iter().filter(|(_, source)| redirects_shell(source)) {
            report.notice(
                format!("{field}.{name}"),
                "redirects the snippets alone: the output of the program goes to the pod's log. For a job, set flux.optionFlags: --output=FILE",
            );
        }
    }
    // After `set -a`, a shell exports every variable that it assigns.
    let exports_all = |source: &str| source.contains("set -a") || source.contains("set -o allexport");
    if on_lead.iter().any(|(_, source)| exports_all(source)) {
        return;
    }
    // Do not read the texts for each variable: there may be thousands of them, and `MAX_TEXT` bytes of snippets.
    let exported: BTreeSet<&str> = on_lead.iter().flat_map(|(_, source)| exports(source)).collect();
    let mut assigned_in: HashMap<&str, &str> = HashMap::new();
    for (name, source) in on_lead {
        for variable in assignments(source) {
            assigned_in.entry(variable).or_insert(name);
        }
    }
    for (variable, read_in) in read_by(&cluster.runner) {
        // A variable that a shell has from its environment stays exported when a snippet assigns it.
        let container = &cluster.runner.container;
        let is_set = SET_IN_EVERY_POD.contains(&variable)
            || container.environment.contains_key(variable)
            || container.secrets.contains_key(variable);
        if is_set || exported.contains(variable) {
            continue;
        }
        if let Some(name) = assigned_in.get(variable) {
            report.notice(
                format!("{field}.{name}"),
                format!(
                    "assigns `{variable}` without export: the command has it only if the image or an overlay sets it: write `export {variable}`"
                ),
            );
        } else if WITHOUT_EFFECT.contains(&variable) || variable == "brokerOptions" {
            report.notice(
                format!("{field}.{read_in}"),
                format!(
                    "`${variable}` is set in snippets alone: here it is empty unless the image or an overlay sets it. Write `export {variable}` in commands.pre, or write its value"
                ),
            );
        }
    }
}

/// Whether a command of a snippet redirects the snippets' shell to a file or program.
fn redirects_shell(source: &str) -> bool {
    let commands = source.split(['\n', ';']).flat_map(|line| line.split("&&"));
    commands
        .filter_map(|command| command.trim_start().strip_prefix("exec "))
        .any(|redirection| {
            let redirection = redirection.trim_start();
            let target = ["&>", "1>", "2>", ">"]
                .into_iter()
                .find_map(|operator| redirection.strip_prefix(operator));
            // Another descriptor, as in `2>&1`, is no file.
            target.is_some_and(|target| {
                !target
                    .strip_prefix('&')
                    .is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
            })
        })
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
    // An option, such as `-g`, leaves an empty name.
    names.filter(|name| !name.is_empty())
}

/// Whether the letter can be part of a variable's name in a shell.
pub(super) fn is_name_letter(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// The variables that the program and its prefix refer to, each with the field.
fn read_by(runner: &ValidRunner) -> BTreeMap<&str, &'static str> {
    let mut read = BTreeMap::new();
    read.extend(references(&runner.prefix).map(|name| (name, "commands.prefix")));
    let scripts: Vec<&str> = match &runner.program {
        Program::Submit { words } | Program::Launcher { words } => {
            read.extend(references(words).map(|name| (name, "command")));
            Vec::new()
        }
        Program::Batch { lines } => lines.iter().map(|line| line.text.as_str()).collect(),
        Program::BatchRaw { text } => vec![text.as_str()],
        Program::Script { .. } | Program::Persistent | Program::Diagnostics => Vec::new(),
    };
    if !scripts.iter().copied().any(reads_other_source) {
        let assigned: BTreeSet<&str> = scripts.iter().copied().flat_map(set_by_script).collect();
        let names = scripts.iter().copied().flat_map(read_by_script);
        let names = names.filter(|name| !assigned.contains(name));
        read.extend(names.map(|name| (name, "command")));
    }
    read
}

/// Whether shell source reads another file or text, which may set any variable.
fn reads_other_source(text: &str) -> bool {
    text.split([' ', '\t', '\n', ';', '&', '|', '(', '{'])
        .any(|word| [".", "source", "eval"].contains(&word))
}

/// The variables that words refer to.
fn references(words: &[Word]) -> impl Iterator<Item = &str> {
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

/// The variables that shell source refers to by `$NAME` or `${NAME}`.
fn read_by_script(text: &str) -> impl Iterator<Item = &str> {
    let dollars = command_words::source_letters(text)
        .filter(|read| read.letter == '$' && read.quote != Quote::Single && !read.is_escaped);
    dollars.filter_map(|dollar| {
        let after = &text[dollar.at + 1..];
        let braced = after.strip_prefix('{');
        let rest = braced.unwrap_or(after);
        let name = rest.split(|letter| !is_name_letter(letter)).next()?;
        let is_name = name.starts_with(|c: char| !c.is_ascii_digit());
        let is_plain = braced.is_none() || rest[name.len()..].starts_with('}');
        (is_name && is_plain).then_some(name)
    })
}

/// The variables that shell source may set by itself.
fn set_by_script(text: &str) -> impl Iterator<Item = &str> {
    const DECLARING: [&str; 12] = [
        "for",
        "select",
        "read",
        "export",
        "declare",
        "typeset",
        "local",
        "readonly",
        "getopts",
        "mapfile",
        "readarray",
        "-v", // of `printf -v NAME`
    ];
    text.lines().flat_map(|line| {
        let mut declares = false;
        let words = line.split(|c: char| c.is_whitespace() || ";&|()`\"'".contains(c));
        words.filter_map(move |word| {
            let name = word.split(|letter| !is_name_letter(letter)).next()?;
            let is_set = declares || word[name.len()..].starts_with(['=', '+']);
            declares |= DECLARING.contains(&word);
            (is_set && !name.is_empty()).then_some(name)
        })
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
    fn redirection_of_the_snippets_shell_is_found() {
        for line in [
            "exec > >(tee -a /data/log) 2>&1",
            "cd /data && exec &>log",
            "true; exec 2> errors",
            "exec 1>>log",
        ] {
            assert!(redirects_shell(line), "{line}");
        }
        for line in [
            "exec 3>file",
            "exec 200>/var/lock",
            "exec my-program >log",
            "exec 2>&1",
            "exec 1>&3",
            "exec <input",
            "# exec >log",
            "(exec >log; date)",
        ] {
            assert!(!redirects_shell(line), "{line}");
        }
    }

    #[test]
    fn variables_that_a_script_sets_are_not_read() {
        let text =
            "N=1; for i in $A ${B}; do read -r x y; done # $C it's\necho '$D' \\$E \"it's $F\" ${G:-1} $1 $$";
        assert_eq!(read_by_script(text).collect::<Vec<_>>(), ["A", "B", "F"]);
        let set: BTreeSet<&str> = set_by_script(text).collect();
        assert!(
            ["N", "i", "x", "y"].iter().all(|name| set.contains(name)),
            "{set:?}"
        );
        assert!(!set.contains("F"));
    }

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
