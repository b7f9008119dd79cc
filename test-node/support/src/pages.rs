//! The pages of the documentation, and the fenced code blocks in them.

use std::path::{Path, PathBuf};

pub use crate::repository::repository;
use crate::{committed, pattern};

/// A fenced block of a page.
#[derive(Debug, Clone)]
pub struct Block {
    pub page: PathBuf,
    /// Number of its first line, from 1.
    pub line: usize,
    /// `yaml`, `bash`, `console`, `text`, …
    pub language: String,
    /// The word after the language. Of commands, one of [`WORDS`]: why no test runs them without a cluster. (On one,
    /// `e2e/pasted.rs` runs `needs-cluster`, and `e2e/examples/readme.rs` runs `e2e`.) Of `yaml`, one of [`YAML_WORDS`].
    pub word: Option<String>,
    pub text: String,
}

impl Block {
    pub fn place(&self) -> String {
        format!("{}:{}", self.page.display(), self.line)
    }

    /// The commands in it, each with the output shown below it. A backslash at the end continues a line.
    pub fn commands(&self) -> Vec<(String, Vec<String>)> {
        let mut all: Vec<(String, Vec<String>)> = Vec::new();
        let mut goes_on = false;
        for line in self.text.lines() {
            let command = match self.language.as_str() {
                "console" => line.strip_prefix("$ "),
                _ => (!line.is_empty() && !line.starts_with('#')).then_some(line),
            };
            match (command, all.last_mut()) {
                (_, Some(last)) if goes_on => last.0 += &format!("\n{line}"),
                (Some(command), _) => all.push((command.to_owned(), Vec::new())),
                (None, Some(last)) if self.language == "console" => last.1.push(line.to_owned()),
                _ => {}
            }
            goes_on = line.ends_with('\\') && (goes_on || command.is_some());
        }
        all
    }
}

/// Target of links from the book to other files of the repository. (A relative link that leaves the rendered
/// book would be dead.)
pub const REPOSITORY: &str = "https://github.com/flux-framework/flux-operator";

/// README.md and every page below `docs/`.
pub fn pages() -> Vec<PathBuf> {
    let mut pages = vec![repository().join("README.md")];
    below(&repository().join("docs"), &mut pages);
    pages
}

fn below(folder: &Path, pages: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            // `docs/book` is the rendered book.
            if !path.ends_with("book") {
                below(&path, pages);
            }
        } else if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
}

/// The fenced blocks of a page. A fence may be indented, as in a list.
pub fn blocks(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut all = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        match (&mut open, trimmed.strip_prefix("```")) {
            (None, Some(info)) => {
                let (language, word) = info
                    .split_once(',')
                    .map_or((info, None), |(language, word)| (language, Some(word)));
                let word = word.map(|word| word.trim().to_owned());
                let page = page.strip_prefix(repository()).unwrap_or(page).to_owned();
                let block = Block {
                    page,
                    // `number` is the fence's, from 0. The text begins one line below.
                    line: number + 2,
                    language: language.trim().into(),
                    word,
                    text: String::new(),
                };
                open = Some((block, indent));
            }
            (Some(_), Some("")) => all.extend(open.take().map(|(block, _)| block)),
            (Some((block, outer)), _) => {
                block.text += line.get((*outer).min(indent)..).unwrap_or_default();
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a fence is not closed", page.display());
    all
}

/// Words after `yaml`: a part of a spec, and a manifest that must be rejected (`operator/tests/docs/manifests.rs`).
pub const YAML_WORDS: &[&str] = &["part", "refused"];

/// Words after `bash` or `console`: why [`differences`] does not run a block.
pub const WORDS: &[&str] = &["needs-cluster", "e2e", "needs-registry", "slow", "other-tool"];

/// Runs the commands of all pages that begin with `name`, with the folder of `program` first on the PATH. Compares the
/// output with what is shown: the lines shown must be in the output in this order, and `...` matches any text. Returns
/// the number of commands and the differences.
pub fn differences(name: &str, program: &Path) -> (usize, Vec<String>) {
    let (mut run, mut wrong) = (0, Vec::new());
    let folder = program.parent().unwrap();
    let path = format!(
        "{}:{}",
        folder.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    for block in pages().iter().flat_map(|page| blocks(page)) {
        if !matches!(block.language.as_str(), "bash" | "console") || block.word.is_some() {
            continue;
        }
        for (command, shown) in block
            .commands()
            .into_iter()
            .filter(|(command, _)| command.starts_with(name))
        {
            let mut bash = std::process::Command::new("bash");
            bash.args(["-o", "pipefail", "-c", &command])
                .current_dir(repository())
                .env("PATH", &path);
            // COLUMNS would change where help texts are wrapped.
            bash.stdin(std::process::Stdio::null()).env_remove("COLUMNS");
            let output = bash.output().unwrap();
            let printed = format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            run += 1;
            // A `console` block shows the output, also of commands that fail.
            if !output.status.success() && block.language == "bash" {
                wrong.push(format!(
                    "{}: `{command}` ends with {}\n{printed}",
                    block.place(),
                    output.status
                ));
            }
            let mut lines = printed.lines();
            for line in shown.iter().filter(|line| !matches!(line.trim(), "" | "...")) {
                if !lines.any(|printed| pattern::matches(line.trim_end(), printed.trim_end())) {
                    wrong.push(format!(
                        "{}: `{command}` does not print\n{line}\nbut\n{printed}",
                        block.place()
                    ));
                    break;
                }
            }
        }
    }
    (run, wrong)
}

/// Asserts that a generated page equals its file in `docs/reference`; `UPDATE=1` renews the file.
pub fn is_committed(name: &str, text: &str) {
    committed::same(&repository().join("docs/reference").join(name), text);
}

/// The reference of a program's commands: the `--help` output of each.
pub fn help(name: &str, program: &Path) -> String {
    let ask = |arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        command
            .args(arguments)
            .env_remove("COLUMNS")
            .stdin(std::process::Stdio::null());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name} {arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let fenced = |text: &str| {
        let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
        format!("```text\n{}\n```\n", lines.join("\n"))
    };
    let top = ask(&["--help"]);
    let mut text = format!(
        "# {name}\n\n<!-- made from the program's own help by `make generate` -->\n\nWhat `{name} --help` prints, then that of each command.\n\n{}",
        fenced(&top)
    );
    let commands = top
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty());
    // A command has an indent of two. Deeper lines continue a description.
    let names = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next());
    for command in names.filter(|name| *name != "help") {
        text += &format!("\n## {name} {command}\n\n{}", fenced(&ask(&[command, "--help"])));
    }
    text
}
