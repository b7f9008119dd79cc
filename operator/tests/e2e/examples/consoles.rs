//! Compares the consoles of the examples' READMEs with what a run prints, command by command.

use std::process::Command;

pub use test_support::pattern::matches;

/// A command, and the lines below it. In these lines, `...` stands for any text.
#[derive(Debug, PartialEq)]
pub struct Shown {
    pub command: String,
    lines: Vec<String>,
}

fn consoles(readme: &str) -> Vec<Shown> {
    shown_in(readme, "```console")
}

/// The consoles of the blocks that begin with `fence`.
pub fn shown_in(readme: &str, fence: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    let mut inside = false;
    for line in readme.lines() {
        match (line, line.strip_prefix("$ ")) {
            ("```", _) => inside = false,
            (line, _) if line == fence => inside = true,
            (_, Some(command)) if inside => all.push(Shown {
                command: command.to_owned(),
                lines: Vec::new(),
            }),
            _ if inside => all.last_mut().unwrap().lines.push(line.to_owned()),
            _ => {}
        }
    }
    all
}

/// The plugin's command for logs.
const LOGS: &str = "kubectl minicluster logs ";

/// Whether a command is about the object `name`, and only reads it.
fn reads(command: &str, name: &str) -> bool {
    let words = || command.split([' ', '(', ')', '/', '=', ',']);
    let is_reading = ["kubectl get ", "kubectl logs ", LOGS]
        .iter()
        .any(|verb| command.starts_with(verb));
    is_reading && words().any(|word| word == name)
}

/// Whether this is an age as kubectl writes it: `5s`, `119s`, `2m5s`, `3h`.
fn is_age(word: &str) -> bool {
    let is_part = |part: &str| {
        part.strip_suffix(['s', 'm', 'h'])
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    !word.is_empty() && word.split_inclusive(['s', 'm', 'h']).all(is_part)
}

/// The line without ages and padding: ages differ by run, and padding differs with them.
fn squeezed(line: &str) -> String {
    line.split_whitespace()
        .map(|word| if is_age(word) { "AGE" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// How the output differs from the console of `command`. A log may have more lines, in another order. Any
/// other output must be complete.
pub fn differences_of(shown: &Shown, printed: &str) -> Option<String> {
    let lines: Vec<String> = printed.lines().map(squeezed).collect();
    let wanted: Vec<String> = shown
        .lines
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| squeezed(line))
        .collect();
    let same = if shown.command.starts_with("kubectl logs") || shown.command.starts_with(LOGS) {
        // A line `...` stands for lines left out, which may repeat a shown line.
        let more = wanted.iter().any(|line| line == "...");
        let count = |all: &[String], pattern: &str| all.iter().filter(|line| matches(pattern, line)).count();
        wanted.iter().filter(|line| *line != "...").all(|pattern| {
            let times = wanted.iter().filter(|line| *line == pattern).count();
            let found = count(&lines, pattern);
            found == times || more && found > times
        })
    } else {
        lines.len() == wanted.len()
            && wanted
                .iter()
                .zip(&lines)
                .all(|(pattern, line)| matches(pattern, line))
    };
    (!same).then(|| {
        format!(
            "`{}` shows\n{}\nbut prints\n{printed}",
            shown.command,
            shown.lines.join("\n")
        )
    })
}

/// The consoles in the README of `file` that are about the MiniCluster `name` and have output.
fn shown(file: &str, name: &str) -> Vec<Shown> {
    let folder = file.rsplit_once('/').unwrap().0;
    let readme = format!("{}/../examples/{folder}/README.md", env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(&readme).unwrap_or_else(|error| panic!("{readme}: {error}"));
    consoles(&readme)
        .into_iter()
        .filter(|shown| reads(&shown.command, name) && !shown.lines.is_empty())
        .collect()
}

pub fn shows(file: &str, name: &str) -> bool {
    !shown(file, name).is_empty()
}

/// Runs the commands that the README shows of a finished MiniCluster. Returns how their output differs.
pub fn differences(file: &str, name: &str, namespace: &str) -> Vec<String> {
    let run = |shown: &Shown| {
        // kubectl takes no option before a plugin's name, so the plugin is called directly. (E2E_PLUGIN:
        // .ci/e2e builds it.)
        let script = format!(
            "kubectl() {{ if [ \"$1\" = minicluster ]; then shift; \"$E2E_PLUGIN\" --namespace {namespace} \"$@\"; \
             else command kubectl --namespace {namespace} \"$@\"; fi; }}\n{}",
            shown.command
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };
    shown(file, name)
        .iter()
        .filter_map(|shown| differences_of(shown, &run(shown)))
        .collect()
}

#[test]
fn consoles_are_read_and_compared() {
    let readme = "x\n```console\n$ kubectl apply -f a.yaml\n$ kubectl minicluster logs -f a\none\none\nt...o\n$ kubectl get minicluster a\nN AGE\na   12s\n```\n";
    let all = consoles(readme);
    assert_eq!(all.len(), 3);
    assert_eq!(all[1].lines, ["one", "one", "t...o"]);
    assert!(!reads(&all[0].command, "a") && reads(&all[1].command, "a") && !reads(&all[1].command, "lead-a"));
    assert_eq!(differences_of(&all[1], "begin\none\ntwo\none\n"), None);
    assert!(
        differences_of(&all[1], "one\ntwo\n").is_some(),
        "shown twice, printed once"
    );
    assert!(
        differences_of(&all[1], "one\none\none\ntwo\n").is_some(),
        "shown twice, printed three times"
    );
    assert!(differences_of(&all[1], "one\none\nthree\n").is_some());
    assert_eq!(differences_of(&all[2], "N AGE\na 3m\n"), None);
    assert_eq!(differences_of(&all[2], "N AGE\na 2m5s\n"), None);
    assert!(differences_of(&all[2], "N AGE\na 2m5\n").is_some());
    assert!(differences_of(&all[2], "N AGE\nb 3m\n").is_some());
    assert!(matches("a...b...c", "a1b2bc") && !matches("a...b...c", "a1c"));
}
