//! Completions in kubectl's protocol (cobra's `__complete`): the words so far are the arguments, the last of
//! which may be empty; the output is one candidate a line, then what the shell should do with them. By hand:
//! clap_complete writes scripts, and names come from the API server.

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
/// Longest time for an answer: a slow completion is no help.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What the candidates are.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    These(Vec<String>),
    /// Names of MiniClusters in the namespace.
    Names,
    Files,
}

/// Creates the link by which kubectl finds the completions; returns a sentence about where it is.
pub fn install(folder: Option<PathBuf>) -> Result<String, Failure> {
    let program = std::env::current_exe().map_err(Failure::on_this_machine("find this program"))?;
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

/// The candidates for the last of `words`, in cobra's format.
pub async fn complete(command: &Command, words: &[String]) -> String {
    let (current, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, rest)| (last.as_str(), rest));
    let (candidates, directive) = match choose(command, before, current) {
        Choice::Files => (Vec::new(), FILES),
        Choice::These(these) => (these, NO_FILES),
        Choice::Names => (
            tokio::time::timeout(TIMEOUT, names(&access(before)))
                .await
                .unwrap_or_default(),
            NO_FILES,
        ),
    };
    let fitting = candidates
        .into_iter()
        .filter(|candidate| candidate.starts_with(current));
    fitting.map(|candidate| candidate + "\n").collect::<String>() + directive + "\n"
}

/// Names of the MiniClusters in the namespace; none if the cluster cannot be asked.
async fn names(access: &Access) -> Vec<String> {
    let Ok(target) = Target::find(access).await else {
        return Vec::new();
    };
    let clusters = target.clusters().list_metadata(&ListParams::default()).await;
    clusters
        .map(|all| all.items.iter().map(|it| it.name_any()).collect())
        .unwrap_or_default()
}

/// The cluster named by --context/--namespace so far.
fn access(before: &[String]) -> Access {
    let mut access = Access::default();
    let mut words = before.iter();
    while let Some(word) = words.next() {
        let (option, value) = match word.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let mut value = || value.clone().or_else(|| words.next().cloned());
        match option {
            "-n" | "--namespace" => access.namespace = value(),
            "--context" => access.context = value(),
            "--kubeconfig" => access.kubeconfig = value().map(PathBuf::from),
            _ => {}
        }
    }
    access
}

fn choose(command: &Command, before: &[String], current: &str) -> Choice {
    let mut command = command;
    let mut places = 0;
    let mut words = before.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            return Choice::Files;
        }
        if word.starts_with('-') {
            let takes = option(command, word).is_some_and(takes_value) && !word.contains('=');
            let value = takes.then(|| words.next());
            if let Some(None) = value {
                return option(command, word).map_or(Choice::Files, values);
            }
            continue;
        }
        match command.find_subcommand(word) {
            Some(found) => command = found,
            None => places += 1,
        }
    }
    if current.starts_with('-') {
        let long = |it: &&Arg| it.get_long().is_some() && !it.is_hide_set();
        let name = |it: &Arg| format!("--{}", it.get_long().unwrap_or_default());
        return Choice::These(command.get_arguments().filter(long).map(name).collect());
    }
    if command.has_subcommands() {
        let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
        let names = shown.flat_map(|it| std::iter::once(it.get_name()).chain(it.get_visible_aliases()));
        return Choice::These(names.map(str::to_owned).collect());
    }
    match command
        .get_positionals()
        .filter(|it| !it.is_last_set())
        .nth(places)
    {
        Some(positional) if positional.get_id() == "name" => Choice::Names,
        Some(positional) => values(positional),
        None => Choice::These(Vec::new()),
    }
}

fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let name = word.split('=').next().unwrap_or_default();
    let mut all = command.get_arguments();
    match name.strip_prefix("--") {
        Some(long) => all.find(|it| it.get_long() == Some(long)),
        None => all.find(|it| {
            it.get_short()
                .is_some_and(|short| name.strip_prefix('-') == Some(&short.to_string()))
        }),
    }
}

fn takes_value(option: &Arg) -> bool {
    option.get_action().takes_values()
}

fn values(of: &Arg) -> Choice {
    let values: Vec<String> = of
        .get_possible_values()
        .iter()
        .map(|it| it.get_name().to_owned())
        .collect();
    let is_file = of
        .get_value_names()
        .is_some_and(|names| names.iter().any(|name| name == "FILE" || name == "DIR"));
    if is_file {
        Choice::Files
    } else {
        Choice::These(values)
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

    fn these(words: &[&str]) -> Vec<String> {
        match chosen(words) {
            Choice::These(these) => these,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn each_place_has_its_candidates() {
        assert!(these(&[""]).contains(&"connect".to_owned()));
        assert!(
            these(&[""]).contains(&"why".to_owned()),
            "an alias that the help names"
        );
        assert!(these(&["connect", "--"]).contains(&"--index".to_owned()));
        assert!(
            these(&["connect", "-"]).contains(&"--namespace".to_owned()),
            "those of all commands, too"
        );
        assert_eq!(chosen(&["connect", ""]), Choice::Names);
        assert_eq!(chosen(&["connect", "-n", "team", ""]), Choice::Names);
        assert_eq!(chosen(&["why", "--namespace=team", ""]), Choice::Names);
        assert!(these(&["connect", "mc", ""]).is_empty());
        assert_eq!(
            these(&["wait", "mc", "--for", ""]),
            ["finished", "ready", "deleted"]
        );
        assert_eq!(chosen(&["validate", ""]), Choice::Files);
        assert_eq!(chosen(&["run", "app:1", "--", ""]), Choice::Files);
    }

    #[test]
    fn names_are_those_of_the_namespace_that_was_named() {
        let words = ["connect", "-n", "team", "--context=there"].map(str::to_owned);
        let access = access(&words);
        assert_eq!(
            (access.namespace.as_deref(), access.context.as_deref()),
            (Some("team"), Some("there"))
        );
    }
}
