//! What the tests of the chart call: the repository, and programs that its test node builds.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Helm is built once, as the control plane is. Helm 4 alone is tried, unless HELM="4 3" says more.
pub fn helms() -> Vec<PathBuf> {
    let majors = std::env::var("HELM").unwrap_or_else(|_| "4".into());
    majors.split_whitespace().map(|major| built("helm/build", &[major])).collect()
}

/// What a script of the test node prints: the path of a program that it has built.
pub fn built(script: &str, arguments: &[&str]) -> PathBuf {
    let output = Command::new(repository("test-node").join(script)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}
