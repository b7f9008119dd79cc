//! Programs that scripts in `test-node/` build, such as Helm.

use std::path::PathBuf;
use std::process::Command;

use crate::repository::repository;

/// Helm programs, which are built once. Only Helm 4 is tried, unless HELM="4 3" asks for more.
pub fn helms() -> Vec<PathBuf> {
    let majors = std::env::var("HELM").unwrap_or_else(|_| "4".into());
    majors
        .split_whitespace()
        .map(|major| built("helm/build", &[major]))
        .collect()
}

/// Runs a script in `test-node/` that builds a program. Returns the path that the script prints.
pub fn built(script: &str, arguments: &[&str]) -> PathBuf {
    let output = Command::new(repository().join("test-node").join(script))
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().into()
}
