//! Programs that the test node builds for the tests of the chart.

use std::path::PathBuf;
use std::process::Command;

use crate::repository::repository;

/// Helm is built once, as the control plane is. Helm 4 alone is tried, unless HELM="4 3" says more.
pub fn helms() -> Vec<PathBuf> {
    let majors = std::env::var("HELM").unwrap_or_else(|_| "4".into());
    majors.split_whitespace().map(|major| built("helm/build", &[major])).collect()
}

/// What a script of the test node prints: the path of a program that it has built.
pub fn built(script: &str, arguments: &[&str]) -> PathBuf {
    let output = Command::new(repository().join("test-node").join(script)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}
