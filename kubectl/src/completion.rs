//! Completions in kubectl's protocol (cobra's `__complete`): the words so far are the arguments, the last of
//! which may be empty. The output is one candidate a line, then cobra's directive for the shell. Written by hand,
//! since clap_complete generates scripts, and the names of MiniClusters come from the API server.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Command};
use kube::ResourceExt;
use kube::api::ListParams;

use crate::failure::Failure;
use crate::target::{Access, Target};

/// Name of the program that kubectl calls to complete this plugin.
pub const COMPLETER: &str = "kubectl_complete-minicluster";
/// cobra's directive for no file names.
const NO_FILES: &str = ":4";
/// cobra's directive for file names.
const FILES: &str = ":0";
/// Longest time to wait for the API server, since the shell waits for the completions.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The kind of candidates.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Words(Vec<String>),
    /// Names of MiniClusters in the namespace.
    Names,
    Files,
}

/// Creates the link by which kubectl finds the completions; returns a sentence about where it is.
pub fn install(folder: Option<PathBuf>) -> Result<String, Failure> {
    let program = match std::env::args_os().next().map(PathBuf::from) {
        // kubectl calls the plugin by the path at which it has found it. This may be a link (krew makes one), whose
        // folder is on the PATH. `current_exe` follows links.
        Some(called) if called.is_absolute() => called,
        _ => std::env::current_exe().map_err(Failure::on_this_machine("find this program"))?,
    };
    let folder = folder
        .or_else(|| program.parent().map(PathBuf::from))
        .unwrap_or_default();
    let link = folder.join(COMPLETER);
    match std::fs::remove_file(&link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::on_this_machine("replace the link of the completions")(
                error,
            ));
        }
        _ => {}
    }
    std::os::unix::fs::symlink(&program, &link)
        .map_err(Failure::on_this_machine("make the link of the completions"))?;
    Ok(format!(
        "created {}. kubectl finds it on the PATH once its own completion is loaded (kubectl completion --help)\n",
        link.display()
    ))
}

/// The candidates for the last of `words`, in cobra's format. `command` is built: then each subcommand has the global
/// options, too.
pub async fn complete(command: &Command, words: &[String]) -> String {
    let (current, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    let (candidates, directive) = match choose(command, before, current) {
        Choice::Files => (Vec::new(), FILES),
        Choice::Words(candidates) => (candidates, NO_FILES),
        Choice::Names => (
            tokio::time::timeout(TIMEOUT, names(access(before)))
                .await
                .unwrap_or_default(),
            NO_FILES,
        ),
    };
    let matching = candidates
        .into_iter()
        .filter(|candidate| candidate.starts_with(current));
    matching.map(|candidate| candidate + "\n").collect::<String>() + directive + "\n"
}

/// Names of the MiniClusters in the namespace; none if the cluster cannot be asked.
async fn names(access: Access) -> Vec<String> {
    let Ok(target) = Target::find(access).await else {
        return Vec::new();
    };
    let clusters = target.clusters().list_metadata(&ListParams::default()).await;
    clusters
        .map(|list| list.items.iter().map(|cluster| cluster.name_any()).collect())
        .unwrap_or_default()
}

/// Access to the cluster, by the options --namespace, --context and --kubeconfig in the words before.
fn access(before: &[String]) -> Access {
    let mut access = Access::default();
    let mut words = before.iter();
    while let Some(word) = words.next() {
        let (option, value) = match (word.split_once('='), word.strip_prefix("-n")) {
            // `-nteam`, `-n=team`
            (_, Some(attached)) if !attached.is_empty() => {
                ("-n", Some(attached.trim_start_matches('=').to_owned()))
            }
            (Some((option, value)), _) => (option, Some(value.to_owned())),
            (None, _) => (word.as_str(), None),
        };
        let mut value_or_next_word = || value.clone().or_else(|| words.next().cloned());
        match option {
            "-n" | "--namespace" => access.namespace = value_or_next_word(),
            "--context" => access.context = value_or_next_word(),
            "--kubeconfig" => access.kubeconfig = value_or_next_word().map(PathBuf::from),
            _ => {}
        }
    }
    access
}

/// The kind of candidates for the word `current`, which follows the words `before`.
fn choose(command: &Command, before: &[String], current: &str) -> Choice {
    let mut command = command;
    let mut positionals = 0;
    let mut words = before.iter();
    while let Some(word) = words.next() {
        // The words after `--` are a command that runs in a pod.
        if word == "--" {
            return Choice::Files;
        }
        if word.starts_with('-') {
            let is_attached = word.contains('=') || (!word.starts_with("--") && word.len() > 2);
            let needs_next_word = |option: &&Arg| !is_attached && takes_value(option);
            if let Some(option) = option(command, word).filter(needs_next_word)
                && words.next().is_none()
            {
                // No word follows in `before`: `current` is the value of this option.
                return values(option);
            }
            continue;
        }
        match command.find_subcommand(word) {
            Some(found) => command = found,
            None => positionals += 1,
        }
    }
    if current.starts_with('-') {
        let is_shown = |option: &&Arg| option.get_long().is_some() && !option.is_hide_set();
        let name = |option: &Arg| format!("--{}", option.get_long().unwrap_or_default());
        return Choice::Words(command.get_arguments().filter(is_shown).map(name).collect());
    }
    if command.has_subcommands() {
        let shown = command
            .get_subcommands()
            .filter(|subcommand| !subcommand.is_hide_set());
        let names = shown.flat_map(|subcommand| {
            std::iter::once(subcommand.get_name()).chain(subcommand.get_visible_aliases())
        });
        return Choice::Words(names.map(str::to_owned).collect());
    }
    match command
        .get_positionals()
        // Words after `--` have returned above, so skip the argument that takes them.
        .filter(|argument| !argument.is_last_set())
        .nth(positionals)
    {
        // In all commands, the argument `name` is the name of a MiniCluster.
        Some(positional) if positional.get_id() == "name" => Choice::Names,
        Some(positional) => values(positional),
        None => Choice::Words(Vec::new()),
    }
}

/// The option that a word such as `--namespace=team` or `-n` names.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or_default();
    let mut arguments = command.get_arguments();
    match name.strip_prefix("--") {
        Some(long) => arguments.find(|argument| argument.get_long() == Some(long)),
        None => arguments.find(|argument| {
            argument
                .get_short()
                .is_some_and(|short| name.strip_prefix('-') == Some(&short.to_string()))
        }),
    }
}

fn takes_value(option: &Arg) -> bool {
    option.get_action().takes_values()
}

/// Candidates for the value of an option or a positional argument.
fn values(argument: &Arg) -> Choice {
    let values: Vec<String> = argument
        .get_possible_values()
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    let is_file = argument
        .get_value_names()
        .is_some_and(|names| names.iter().any(|name| name == "FILE" || name == "DIR"));
    if is_file {
        Choice::Files
    } else {
        Choice::Words(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(words: &[&str]) -> Choice {
        let (current, before) = words.split_last().unwrap();
        let before: Vec<String> = before.iter().map(|&word| word.to_owned()).collect();
        let mut command = crate::cli::command();
        command.build();
        choose(&command, &before, current)
    }

    fn candidates(words: &[&str]) -> Vec<String> {
        match chosen(words) {
            Choice::Words(candidates) => candidates,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn completion_candidates_fit_the_current_word() {
        assert!(candidates(&[""]).contains(&"connect".to_owned()));
        assert!(
            candidates(&[""]).contains(&"why".to_owned()),
            "an alias that the help names"
        );
        assert!(candidates(&["connect", "--"]).contains(&"--index".to_owned()));
        assert!(
            candidates(&["connect", "-"]).contains(&"--namespace".to_owned()),
            "those of all commands, too"
        );
        assert_eq!(chosen(&["connect", ""]), Choice::Names);
        assert_eq!(chosen(&["connect", "-n", "team", ""]), Choice::Names);
        assert_eq!(chosen(&["connect", "-nteam", ""]), Choice::Names);
        assert_eq!(chosen(&["why", "--namespace=team", ""]), Choice::Names);
        assert!(candidates(&["connect", "mc", ""]).is_empty());
        assert_eq!(
            candidates(&["wait", "mc", "--for", ""]),
            ["finished", "ready", "deleted"]
        );
        assert_eq!(chosen(&["validate", ""]), Choice::Files);
        assert_eq!(chosen(&["run", "app:1", "--", ""]), Choice::Files);
    }

    #[test]
    fn access_follows_the_options_for_namespace_and_context() {
        let words = ["connect", "-n", "team", "--context=there"].map(str::to_owned);
        let found = access(&words);
        assert_eq!(
            (found.namespace.as_deref(), found.context.as_deref()),
            (Some("team"), Some("there"))
        );
        for word in ["-nteam", "-n=team", "--namespace=team"] {
            let found = super::access(&["connect".into(), word.into()]);
            assert_eq!(found.namespace.as_deref(), Some("team"), "{word}");
        }
    }
}
