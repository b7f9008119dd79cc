//! No file of ours is longer than somebody reads at once: 400 lines of code, a file's own tests among them.
//!
//! Lines of code are those that are neither blank nor a comment. (Functions are clippy's, `too-many-lines-threshold`.)
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "reads our source")]

use std::path::{Path, PathBuf};

const MOST: usize = 400;

#[test]
fn no_file_is_too_long() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let folders = members.split(',').map(|member| root.join(member.trim().trim_matches('"')));
    let files: Vec<PathBuf> = folders.flat_map(|member| rust_files(&member)).collect();
    assert!(files.len() > 400, "{} files are not all", files.len());
    let lengths = files.iter().map(|path| (path, code_lines(&std::fs::read_to_string(path).unwrap())));
    let long: Vec<String> = lengths
        .filter(|(_, lines)| *lines > MOST)
        .map(|(path, lines)| format!("{}: {lines} lines of code", path.display()))
        .collect();
    assert!(long.is_empty(), "more than {MOST}:\n{}", long.join("\n"));
}

#[test]
fn comments_and_blank_lines_do_not_count_and_a_files_own_tests_do() {
    let text = "//! What it is.\n\nfn act() {\n    // why\n    go(); // and how\n}\n\n#[cfg(test)]\nmod tests {\n    fn test() {}\n}\n";
    assert_eq!(code_lines(text), 7);
}

fn code_lines(text: &str) -> usize {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
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
