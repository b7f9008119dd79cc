//! The Go operator's Python SDK from PyPI, and the programs of `operator/tests/sdk` that use it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::repository::repository;

/// The output of `operator/tests/sdk/PROGRAM`: lines of JSON, each with a `step` and an `object`.
pub struct Steps(Vec<Value>);

impl Steps {
    pub fn object(&self, step: &str) -> &Value {
        let found = self.0.iter().find(|printed| printed["step"] == step);
        &found.unwrap_or_else(|| panic!("there is no step {step} in {:#?}", self.0))["object"]
    }
}

/// Runs the program in this namespace until it ends. Ignores the lines that the SDK prints: they are not JSON.
pub fn run(program: &str, namespace: &str, kubeconfig: &Path) -> Steps {
    let mut command = Command::new(python());
    command
        .arg(folder().join(program))
        .arg(namespace)
        .env("KUBECONFIG", kubeconfig);
    let printed = output(&mut command, "the SDK");
    Steps(
        printed
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect(),
    )
}

fn folder() -> PathBuf {
    repository().join("operator/tests/sdk")
}

/// The Python of a virtual environment with the SDK. It is created once, and its folder is named after the versions.
fn python() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache"));
    let requirements = folder().join("requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).unwrap();
    let name: String = wanted
        .split_whitespace()
        .collect::<Vec<_>>()
        .join("-")
        .replace("==", "-");
    let place = cache.join("flux-operator").join(name);
    let marker = place.join("complete");
    if !marker.exists() {
        let venv = ["-m", "venv", "--clear"];
        output(
            Command::new("python3").args(venv).arg(&place),
            "python3 with venv (Debian: python3-venv)",
        );
        let install = ["-m", "pip", "install", "--quiet", "-r"];
        output(
            Command::new(place.join("bin/python"))
                .args(install)
                .arg(&requirements),
            "pip and PyPI",
        );
        std::fs::write(&marker, wanted).unwrap();
    }
    place.join("bin/python")
}

fn output(command: &mut Command, needs: &str) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{needs} is needed: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed; {needs} is needed: {errors}"
    );
    String::from_utf8(output.stdout).unwrap()
}
