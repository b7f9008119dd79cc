//! No file of ours is longer than somebody reads at once: 400 lines of code, a file's own tests among them. No comment line
//! is wider than 125 characters: rustfmt wraps code alone.
//!
//! Lines of code are those that are neither blank nor a comment. (Functions are clippy's, `too-many-lines-threshold`.)
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "reads our source")]

use std::path::{Path, PathBuf};

const MOST: usize = 400;
const WIDEST: usize = 125;

#[test]
fn no_file_is_too_long() {
    let files = sources();
    let lengths = files.iter().map(|(path, text)| (path, code_lines(text)));
    let long: Vec<String> = lengths
        .filter(|(_, lines)| *lines > MOST)
        .map(|(path, lines)| format!("{}: {lines} lines of code", path.display()))
        .collect();
    assert!(long.is_empty(), "more than {MOST}:\n{}", long.join("\n"));
}

#[test]
fn no_comment_line_is_too_wide() {
    let files = sources();
    let wide: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| wide_comments(text).map(move |line| format!("{}:{line}", path.display())))
        .collect();
    assert!(wide.is_empty(), "more than {WIDEST} characters:\n{}", wide.join("\n"));
}

#[test]
fn width_counts_characters_of_whole_comment_lines() {
    let wide = "─".repeat(WIDEST);
    assert_eq!(wide_comments(&format!("//{wide}\n    /// {wide}\n")).collect::<Vec<_>>(), [1, 2]);
    let most = &wide[..(WIDEST - 2) * '─'.len_utf8()];
    assert_eq!(wide_comments(&format!("//{most}\nlet text = \"{wide}\"; // why\n")).count(), 0);
}

#[test]
fn comments_and_blank_lines_do_not_count_and_a_files_own_tests_do() {
    let text = "//! What it is.\n\nfn act() {\n    // why\n    go(); // and how\n}\n\n#[cfg(test)]\nmod tests {\n    fn test() {}\n}\n";
    assert_eq!(code_lines(text), 7);
}

fn code_lines(text: &str) -> usize {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// The numbers of comment lines that are too wide.
fn wide_comments(text: &str) -> impl Iterator<Item = usize> {
    let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > WIDEST;
    (1..).zip(text.lines()).filter(move |(_, line)| is_wide(line)).map(|(number, _)| number)
}

/// The Rust files of all members, each with its text.
fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let folders = members.split(',').map(|member| root.join(member.trim().trim_matches('"')));
    let files: Vec<PathBuf> = folders.flat_map(|member| rust_files(&member)).collect();
    assert!(files.len() > 400, "{} files are not all", files.len());
    let with_text = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text)
    };
    files.into_iter().map(with_text).collect()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("target") => {}
            true => files.extend(rust_files(&path)),
            false if path.extension().is_some_and(|it| it == "rs") => files.push(path),
            false => {}
        }
    }
    files
}
