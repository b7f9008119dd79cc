//! Golden files: the complete text for `usual.yaml`, and for every other input the differences from it. The
//! JSON has the same content in another form, so the golden files have only the parts of the JSON that the text
//! omits.

use serde_json::Value;
use test_support::committed::same;

use super::*;

/// The input that the others are compared with.
const USUAL: &str = "usual.yaml";

/// Fields of a step that the text shows.
const IN_TEXT: [&str; 36] = [
    "argv",
    "as_flux",
    "at_end",
    "below",
    "changes",
    "content",
    "drain",
    "dump",
    "environment",
    "gid",
    "hold_stop",
    "home",
    "host",
    "job_shell",
    "label",
    "lead",
    "leftovers",
    "metrics",
    "mode",
    "name",
    "needs_instance",
    "note",
    "owner",
    "parent",
    "path",
    "port",
    "record",
    "restarts",
    "run_as",
    "seconds",
    "signals",
    "silent",
    "socket",
    "source",
    "stdout",
    "target",
];

#[test]
fn plan_is_as_committed() {
    let usual = described(&input(USUAL));
    same(&committed(USUAL), &(usual.join("\n") + "\n"));
    for file in inputs() {
        let name = file.file_name().unwrap().to_str().unwrap();
        if name != USUAL {
            same(&committed(name), &differences(&usual, &described(&file)));
        }
    }
}

fn committed(input: &str) -> PathBuf {
    folder("golden").join(Path::new(input).with_extension("txt"))
}

/// The summary, the text with all steps, and the fields that only the JSON has.
fn described(file: &Path) -> Vec<String> {
    let summary = run(&args(file)).unwrap();
    let full = run(&Args {
        full: true,
        ..args(file)
    })
    .unwrap();
    let json = run(&Args {
        format: Format::Json,
        ..args(file)
    })
    .unwrap();
    let json = serde_json::from_str(&json).unwrap();
    let lines = summary.lines().chain([""]).chain(full.lines()).map(str::to_owned);
    lines.chain(only_in_json(&json)).collect()
}

fn only_in_json(document: &Value) -> Vec<String> {
    let facts = serde_json::to_string_pretty(&document["source"]["facts"]).unwrap();
    let mut lines = vec![String::new(), "Facts".to_owned()];
    lines.extend(facts.lines().map(str::to_owned));
    for pod in document["pods"].as_array().unwrap() {
        lines.extend([
            String::new(),
            format!("Only in the JSON: {} {}", pod["role"], pod["indexes"]),
        ]);
        lines.push(format!("log {}", pod["log"]));
        for step in pod["steps"].as_array().unwrap() {
            let fields = step.as_object().unwrap().iter();
            let rest = fields.filter(|(name, _)| *name != "step" && !IN_TEXT.contains(&name.as_str()));
            let rest: Vec<String> = rest.map(|(name, value)| format!(" {name}={value}")).collect();
            if !rest.is_empty() {
                lines.push(format!("{}{}", step["step"].as_str().unwrap(), rest.concat()));
            }
        }
    }
    lines
}

/// The lines that only one of the texts has, below the step that they belong to. Step numbers are ignored: an
/// added step changes all later numbers.
fn differences(old: &[String], new: &[String]) -> String {
    let (old, new) = (unnumbered(old), unnumbered(new));
    let common = common_lengths(&old, &new);
    // How many lines of each text have been read.
    let (mut in_old, mut in_new) = (0, 0);
    let (mut heading, mut step) = (String::new(), String::new());
    let mut written = String::new();
    let mut out = String::new();
    loop {
        let line = match (old.get(in_old), new.get(in_new)) {
            (None, None) => return out,
            (Some(kept), Some(other)) if kept == other => {
                (in_old, in_new) = (in_old + 1, in_new + 1);
                note_place(kept, &mut heading, &mut step);
                continue;
            }
            (None, Some(added)) => {
                in_new += 1;
                format!("+ {added}")
            }
            (Some(_), Some(added)) if common[in_old + 1][in_new] < common[in_old][in_new + 1] => {
                in_new += 1;
                format!("+ {added}")
            }
            (Some(removed), _) => {
                in_old += 1;
                format!("- {removed}")
            }
        };
        let place = format!("@ {heading}{step}");
        if written != place {
            out += &format!("{}\n", place.trim_end());
            written = place;
        }
        out += &format!("{}\n", line.trim_end());
        // Places are those of the new text, so a removed line changes none. An added step is the heading of its own
        // lines, so no `@` line follows for it.
        if line.starts_with('+') {
            note_place(&line[2..], &mut heading, &mut step);
            written = format!("@ {heading}{step}");
        }
    }
}

/// Replaces the numbers of the steps by `*`. A step's number begins in the first five columns (`text.rs`). The lines
/// below a step are indented further.
fn unnumbered(lines: &[String]) -> Vec<String> {
    let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let line = |line: &String| match line.trim_start().split_once(' ') {
        Some((number, rest)) if is_number(number) && line.find(number) < Some(5) => format!("    * {rest}"),
        _ => line.clone(),
    };
    lines.iter().map(line).collect()
}

/// Remembers the container and the step of the next lines.
fn note_place(line: &str, heading: &mut String, step: &mut String) {
    if let Some(text) = line.strip_prefix("    * ") {
        *step = format!(": {text}");
    } else if line.is_empty() {
        (*heading, *step) = (String::new(), String::new());
    } else if heading.is_empty() && !line.starts_with([' ', '{', '}']) {
        *heading = line.split([':', ' ']).next().unwrap_or_default().to_owned();
    }
}

/// For each pair of positions: the length of the longest common subsequence of the lines from there on.
fn common_lengths(old: &[String], new: &[String]) -> Vec<Vec<usize>> {
    let mut lengths = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            lengths[i][j] = if old[i] == new[j] {
                lengths[i + 1][j + 1] + 1
            } else {
                lengths[i + 1][j].max(lengths[i][j + 1])
            };
        }
    }
    lengths
}
